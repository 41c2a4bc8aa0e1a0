"""Flink's side: its SQL in a JVM of its own, which takes one query after the other. Jars come by Maven, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ..data import cache
from ..harness import scratch
from .queries import Query, result
from .sides import Spent, cpu_seconds, measured

_HERE = Path(__file__).parent
_TOOLS = ("java", "javac", "mvn")
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.net",
    "java.io",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
)


def lacking() -> list[str]:
    """What Flink needs and this machine has not."""
    return [tool for tool in _TOOLS if shutil.which(tool) is None]


class Flink:
    """A running JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect("ready")

    def run(self, query: Query, path: str, folder: str) -> tuple[Spent, pl.DataFrame]:
        """One query, until its last window has fired."""
        assert self._process.stdin is not None
        inputs = next(iter(query.plans.values())).inputs.values()
        columns = ["kind", *dict.fromkeys(c for _, given in inputs for c in given)]
        out = os.path.join(folder, "out.csv")
        words = [path, ",".join(columns), out, os.path.join(folder, "state"), " ".join(query.flink.split())]
        with measured(lambda: cpu_seconds([self._process.pid])) as spent:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
            self._expect("done")
        rows = pl.read_csv(out, has_header=False, new_columns=list(query.columns))
        times = pl.col("^window_end|t$").cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
        return spent, result(query, rows.with_columns(times))

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == word, f"Flink said {said!r}, not {word!r}: its errors are above"


@contextmanager
def flink() -> Iterator[Flink]:
    """Flink, as long as the block lasts."""
    jars = _jars()
    with scratch() as folder:
        classpath = os.path.join(jars, "*")
        subprocess.run(["javac", "-cp", classpath, "-d", folder, str(_HERE / "Flink.java")], check=True)
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        command = ["java", "-Xmx3g", *opened, "-cp", f"{folder}{os.pathsep}{classpath}", "Flink"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Flink(process)
            finally:
                process.kill()


def _jars() -> str:
    """The folder of the jars that pom.xml names."""
    path = Path(cache(), "flink-2.2.0")
    if not (path / "made").exists():
        command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={path}"], check=True)
        (path / "made").touch()
    return str(path)
