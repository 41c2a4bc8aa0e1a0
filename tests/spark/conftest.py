"""The Spark session of the tests, and streams of Parquet files that tests add one by one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import READ

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORKERS = Path(__file__).with_name("workers")


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


@contextmanager
def forking() -> Iterator[None]:
    """A session that is begun meanwhile has its sources planned by forks of one process (workers/forks.py)."""
    with tempfile.TemporaryDirectory(prefix="forks-") as folder, pytest.MonkeyPatch.context() as patch:
        place = os.path.join(folder, "asked")
        with subprocess.Popen([sys.executable, str(WORKERS / "forks.py"), place], stdin=subprocess.PIPE):
            for name, value in (("WINDROW_FORKS", place), ("WINDROW_PYTHON", sys.executable)):
                patch.setenv(name, value)
            yield


def session() -> Any:
    """A session for small queries."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        if "WINDROW_FORKS" in os.environ:
            for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
                patch.setenv(name, str(WORKERS / "python"))
        return _session(SparkSession.builder)


def _session(builder: Any) -> Any:
    made = (
        builder.master("local[2]")
        .appName("windrow-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=READ)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        # Who is not heard of for two minutes, as on a machine that stands still, is given up, and in local mode never taken
        # back: the JVM ends itself ten minutes later.
        .config("spark.storage.blockManagerHeartbeatTimeoutMs", "1d")
        # Checkpoints of Spark's without a file of checksums beside each file, which is a process more for each.
        .config("spark.hadoop.fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.RawLocalFs")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


#: What led to JVMs that are gone: nobody is warned of connections that nobody closed.
GONE: list[Any] = []


def is_gone(session: Any) -> bool:
    """True if the JVM of a session has ended."""
    return session.sparkContext._gateway.proc.poll() is not None


def forget(session: Any) -> None:
    """Have the next session begin with a JVM of its own: Spark clears what it knows only where the last one answers."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    GONE.append((session, SparkContext._gateway))
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


class Feed:
    """A directory of Parquet files: the input of a file stream, one file a batch."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self.ddl: str | None = None  # Spark's schema, where it is not what Spark makes of Arrow's
        path.mkdir(parents=True, exist_ok=True)
        self._n = 0

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """One more file; its modification time is later than that of the files before."""
        table = pa.Table.from_pylist(list(rows), self.schema)
        name = self.path / f"{self._n:05d}.parquet"
        temporary = self.path / f".{self._n:05d}.tmp"
        pq.write_table(table, temporary)
        stamp = 1_600_000_000 + self._n
        os.utime(temporary, (stamp, stamp))
        temporary.rename(name)
        self._n += 1

    def stream(self, spark: Any, **options: Any) -> Any:
        schema = spark.createDataFrame(self.schema.empty_table()).schema
        reader = spark.readStream.schema(self.ddl or schema).option("maxFilesPerTrigger", 1)
        for key, value in options.items():
            reader = reader.option(key, value)
        return reader.parquet(str(self.path))


SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def feed(tmp_path: Path) -> Callable[..., Feed]:
    def make(name: str = "input", schema: pa.Schema = SCHEMA) -> Feed:
        return Feed(tmp_path / name, schema)

    return make
