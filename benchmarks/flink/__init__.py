"""Flink's SQL in a JVM of its own, which takes one query after the other. Jars come by Maven, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ..data import cache
from ..harness import scratch
from ..spent import Spent, cpu_seconds, measured

_HERE = Path(__file__).parent
_TOOLS = ("java", "javac", "mvn")
_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.net",
    "java.io",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
)
OPENED = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES)


def lacking() -> list[str]:
    """Name the parts of Flink that this machine lacks."""
    return [tool for tool in _TOOLS if shutil.which(tool) is None]


@dataclass(frozen=True)
class Events:
    """Definition of `events`, the table of a query: a folder of Parquet files, in the order of their names.

    columns: those that are read, with their types: INT, BIGINT, DOUBLE, STRING or TIMESTAMP, which is of milliseconds; event
        time is the column `t`
    watermark_ms: how far behind the largest time the watermark is
    """

    path: str
    columns: Mapping[str, str]
    watermark_ms: int


class Flink:
    """A running JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect("ready")

    def run(
        self, events: Events, statements: Sequence[str], columns: Sequence[str], folder: str
    ) -> tuple[Spent, pl.DataFrame]:
        """A query, the last of the statements, until all is read and told; the rows that stand in the end, times as
        milliseconds."""
        assert self._process.stdin is not None
        out = Path(folder, "out")
        out.mkdir()
        typed = ",".join(f"{name} {sql}" for name, sql in events.columns.items())
        sql = ";".join(" ".join(s.split()) for s in statements)
        words = [events.path, typed, str(events.watermark_ms), str(out), os.path.join(folder, "state"), sql]
        with measured(lambda: cpu_seconds([self._process.pid])) as spent:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
            self._expect("done")
        files = [f for f in out.iterdir() if f.stat().st_size]
        rows = [pl.read_csv(f, has_header=False, new_columns=["kind", *columns]) for f in files]
        return spent, _current(pl.concat(rows))

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == word, f"Flink said {said!r}, not {word!r}: its errors are above"


def _current(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that were told and not taken back."""
    kind = pl.col("kind")
    if rows.select((kind == "+I").all()).item():
        return rows.drop("kind")
    times = pl.when(kind.str.starts_with("+")).then(1).otherwise(-1).sum().alias("times")
    counted = rows.group_by(pl.exclude("kind")).agg(times).filter(pl.col("times") != 0)
    assert counted["times"].min() > 0, f"Flink took back what it had not told: {counted.sort('times').row(0)}"  # type: ignore[operator]
    return counted.select(pl.exclude("times").repeat_by("times")).explode(pl.all())


@contextmanager
def flink() -> Iterator[Flink]:
    """Flink, as long as the block lasts."""
    of_flink = jars()
    with scratch() as folder:
        classpath = os.path.join(of_flink, "*")
        subprocess.run(["javac", "-cp", classpath, "-d", folder, str(_HERE / "Flink.java")], check=True)
        command = ["java", "-Xmx3g", *OPENED, "-cp", f"{folder}{os.pathsep}{classpath}", "Flink"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Flink(process)
            finally:
                process.kill()


def jars() -> str:
    """The folder of the jars that pom.xml names."""
    path = Path(cache(), "flink-2.2.0-cep")
    if not (path / "made").exists():
        command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={path}"], check=True)
        (path / "made").touch()
    return str(path)
