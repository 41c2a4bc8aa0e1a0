"""Spark session settings: those windrow requires, and those it changes while a query begins and while a commit runs."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from windrow.checkpoint.read_only_shard import KeptStores
from windrow.core.errors import SparkUnsupported
from windrow.core.logs import get_logger
from windrow.runners import tasks
from windrow.runners.spark import jvm_calls

logger = get_logger()

_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
#: A query that has not planned its sources by then has a trigger of its own to end it.
_BEGIN_MS = 60_000


NO_CONNECT = "Spark Connect runs foreachBatch on the server, away from windrow's log: use a classic session"


def check_session(spark: SparkSession) -> None:
    """Refuse settings under which exactly once cannot be promised."""
    if not isinstance(spark, SparkSession) or not hasattr(spark, "_jsparkSession"):
        raise SparkUnsupported(NO_CONNECT)
    _check_python(spark)
    if (spark.sparkContext.getConf().get("spark.speculation") or "false").strip().lower() == "true":
        raise SparkUnsupported(
            "spark.speculation is true: two attempts of one shard would fight for its store; set spark.speculation=false"
        )

    if not jvm_calls.is_local(spark):
        check_waits(spark.sparkContext._jsc.getConf())


#: Spark's settings of how long a task waits for a place that it prefers; windrow's prefer an executor.
_WAITS = [f"spark.locality.wait.{level}" for level in ("process", "node", "rack")]
_LONG_WAIT_MS = 10_000


def check_waits(conf: Any) -> None:
    """Warn of settings (Spark's `SparkConf`) under which tasks of a lost executor wait long before they run elsewhere."""
    usual = conf.get("spark.locality.wait", "3s")
    long = {name: conf.get(name, usual) for name in _WAITS if conf.getTimeAsMs(name, usual) > _LONG_WAIT_MS}
    if long:
        logger.warning(
            "tasks of an executor that is lost in a commit wait long before they run elsewhere: set "
            "spark.locality.wait.process to 10s or less, and spark.locality.wait.node and .rack to 0s",
            **long,
        )


_checked_pythons: set[str] = set()


def _check_python(spark: SparkSession) -> None:
    """Set the workers' Python on this machine unless the user has, and reject one that lacks windrow."""
    if "PYSPARK_PYTHON" not in os.environ and (spark.sparkContext.master or "").startswith("local"):
        # Spark would take whichever python3 is found first. Other machines have a Python of their own.
        spark.sparkContext.pythonExec = sys.executable
    executable = spark.sparkContext.pythonExec
    if executable in _checked_pythons or not (spark.sparkContext.master or "").startswith("local["):
        return
    path = shutil.which(executable)
    if path is None or os.path.realpath(path) != os.path.realpath(sys.executable):
        tried = subprocess.run(
            [executable, "-c", "import windrow, pyarrow"], capture_output=True, text=True, check=False
        )
        if tried.returncode != 0:
            raise SparkUnsupported(
                f"Spark runs its workers with {executable!r}, which cannot import windrow "
                f"({tried.stderr.strip().splitlines()[-1:]}); this process is {sys.executable!r}. Set PYSPARK_PYTHON to it "
                "before the session is made"
            )
    _checked_pythons.add(executable)


#: The stores that this worker has open. What Spark forks workers from has none.
_kept = KeptStores()


def run_on_partition(plan: tasks.TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task of a commit whose shards are partitions: its number is known before its rows."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        plan = replace(plan, rests=False)
    yield from tasks.run(plan, batches, None if context is None else context.partitionId(), _kept)
    _settle()


def run_several_on_partition(
    plan: tasks.TaskPlan, shards: int, partitions: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a task of a commit whose `shards` share `partitions`: shard n is in partition n modulo their number."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        plan = replace(plan, rests=False)
    yield from tasks.run_several(plan, batches, range(context.partitionId(), shards, partitions), _kept)
    _settle()


_settled: set[int] = set()


def _settle() -> None:
    """Exclude loaded objects from the garbage collections of this worker.

    Spark's workers collect all after each task: for what windrow and Arrow have loaded that takes longer than a small task.
    """
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()


def start(writer: DataStreamWriter, spark: SparkSession, *, available_now: bool) -> StreamingQuery:
    """Start a query. Under `availableNow` the heartbeat, which knows nothing of it, is read to where it is at the start.

    Without that setting of Spark's one such source makes it read all sources at once, whatever their limits. It looks at the
    setting when the query has planned its sources.
    """
    settings = _of_local_files(spark)
    if available_now:
        settings[_WRAPPER] = "true"
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        query = writer.start()
        if available_now:
            query._jsq.streamingQuery().awaitInitialization(_BEGIN_MS)
        return query
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def _of_local_files(spark: SparkSession) -> dict[str, str]:
    """Return the setting under which Spark renames the files of its checkpoint without a process for each look at one.

    Where Hadoop's own library is not loaded, which is usual, it asks the program `readlink` whether a local file is a link,
    about twenty times a batch, and nothing else is done meanwhile. Spark's other way looks and renames without.
    """
    asked = spark.conf.get(_MANAGER, None)
    local = str(spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")).startswith("file:")
    jvm: Any = spark.sparkContext._jvm
    known = jvm.org.apache.spark.util.Utils.classIsLoadable(_BY_FILE_SYSTEM)
    return {_MANAGER: _BY_FILE_SYSTEM} if asked is None and local and known else {}


def found_nothing_more(query: StreamingQuery) -> bool:
    """True if the last look of a query at its sources found nothing new: all available records are committed."""
    return bool(query._jsq.streamingQuery().noNewData())


_RUNS = count()


class Tagged:
    """Tags for the jobs of one run of an action, to learn whether a stage of them ran twice. Each run has a tag of its own."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._sc: Any = spark.sparkContext
        self._tag = f"{tag}-{next(_RUNS)}"

    def __enter__(self) -> Tagged:
        self._sc.addJobTag(self._tag)
        return self

    def __exit__(self, *_: object) -> None:
        self._sc.removeJobTag(self._tag)

    def second_attempts(self) -> bool:
        shown = self._sc._jvm.java.util.Arrays.toString  # of an array's items each is a call of its own
        tracker = self._sc._jsc.sc().statusTracker()
        for job in _numbers(shown(tracker.getJobIdsForTag(self._tag))):
            info = tracker.getJobInfo(job)
            for stage in _numbers(shown(info.get().stageIds())) if info.isDefined() else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info.isDefined() and stage_info.get().currentAttemptId() > 0:
                    return True
        return False


def _numbers(shown: str) -> list[int]:
    return [int(n) for n in shown.strip("[]").split(",") if n]


def of_stream(spark: SparkSession) -> bool:
    """True in the thread of a streaming query: a frame there holds existing rows and has no plan of its own."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") is not None


_MOST_BYTES, _MOST_ROWS = (f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Bytes", "Records"))
#: With this as the most bytes Spark does not measure.
_NO_LIMIT = str(2**31 - 1)
#: Rows that come may be so many times as wide as those before.
_WIDER = 4


def in_bytes(said: str) -> int:
    """Parse a size of Spark's settings, such as 64MB."""
    number = said.strip().lower().removesuffix("b")
    return int(number.rstrip("kmgtp")) << 10 * ("kmgtp".find(number[-1]) + 1)


class FixedStages:
    """Settings that run one batch of a stream as one job of fixed stages.

    Spark gives `foreachBatch` the rows of the user's plan, so all that is planned here are two small shuffles of ours;
    planning again after each of them (adaptive execution) costs a tenth of a batch and finds nothing. A bounded frame
    brings its own plan, and keeps what helps it.

    Rows go to Python so many at a time, and as soon as they reach so many bytes, for which Spark measures them all again
    after each of them: a third of what its tasks compute. Narrow ones do not come near that.
    """

    def __init__(
        self, df: DataFrame, shards: int, width: int | None = None, *, is_planned: bool = False
    ) -> None:
        """width: bytes a row, as rows came before; None where it is unknown or does not matter. is_planned: Spark plans nothing
        more and passes its settings to tasks no more; they see those of the thread's jobs.
        """
        self._conf, self._sc, self._is_planned = (
            df.sparkSession.conf,
            df.sparkSession.sparkContext,
            is_planned,
        )
        self._of_stream = of_stream(df.sparkSession)
        self._settings = dict[str, str]()
        if not is_planned:
            self._settings = {
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.shuffle.partitions": str(max(shards, self._sc.defaultParallelism)),
            }
        if self._of_stream and width is not None and self._narrow(width):
            self._settings[_MOST_BYTES] = _NO_LIMIT
        self._before: dict[str, str | None] = {}

    def _narrow(self, width: int) -> bool:
        """True if as many rows as go at a time cannot reach the most bytes, also if they get wider."""
        most_bytes, most_rows = self._conf.get(_MOST_BYTES), self._conf.get(_MOST_ROWS)
        assert most_bytes is not None and most_rows is not None  # both have defaults
        return 0 < _WIDER * width * int(most_rows) <= in_bytes(most_bytes)

    def __enter__(self) -> FixedStages:
        if self._of_stream:
            get = self._sc.getLocalProperty if self._is_planned else self._conf.get
            self._before = {name: get(name) for name in self._settings}
            self._set(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self._before)

    def _set(self, settings: Mapping[str, str | None]) -> None:
        for name, value in settings.items():
            if self._is_planned:
                self._sc.setLocalProperty(name, value)  # type: ignore[arg-type]  # None is as if it had not been set
            else:
                assert value is not None  # all have defaults
                self._conf.set(name, value)
