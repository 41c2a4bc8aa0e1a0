"""Spark's home and its classes as a JVM has them in memory, once for all runs of a user: `python -m tests.spark.classes`.

A JVM that begins Spark reads, checks and links some ten thousand classes out of its jars. One that is given an archive of them
maps it, if the jars are those it was made of, and these it knows by where they lie: Spark's home is the same for all clones.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

#: What the clones of a user share (Makefile).
SHARED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windrow"
#: What Spark needs of its own folder. Of pyspark.zip, which pip's Spark has too, each worker compiles anew all that it imports.
HOME = ("bin", "jars")
#: A test that has the JVM load most of what others do.
LOADS = "tests/spark/test_chains.py::test_a_join_then_an_aggregate_give_what_spark_sql_gives_over_all_rows"


def home() -> Path | None:
    """Spark's home, made where it is missing; None without Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    place = SHARED / f"spark-{version('pyspark')}"
    if not place.exists():
        SHARED.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="spark-", dir=SHARED))
        for name in HOME:
            shutil.copytree(Path(spec.origin).with_name(name), made / name, copy_function=link)
        try:
            made.rename(place)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return place


def link(source: str, target: str) -> None:
    """As `shutil.copy2`, without a copy where there is no need of one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def archive() -> Path | None:
    """Return the folder of the classes of this Spark and this JVM; None without a JVM."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        return None
    return SHARED / f"spark-{version('pyspark')}-{os.stat(java).st_mtime_ns:x}.jsa"


def options() -> str:
    """Return the JVM's options for the archive of classes; none without one. A JVM that it does not fit ignores it."""
    place = archive()
    if place is None or not place.exists():
        return ""
    return f" -XX:SharedArchiveFile={place} -Xlog:disable -Xlog:all=warning:stderr"


def main() -> None:
    """Write the archive, if it is missing: a JVM does when it ends, of the classes that it has loaded."""
    from tests.conftest import READING

    place = archive()
    if place is None or place.exists():
        return
    written = place.with_suffix(f".{os.getpid()}")
    environment = {
        "PYSPARK_SUBMIT_ARGS": f"--driver-java-options -XX:ArchiveClassesAtExit={written} {READING}",
        "SPARK_HOME": str(home()),  # where the jars still are when the archive is used
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", LOADS]
    # The JVM outlives who has started it: what it says has come to its end when it has.
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=False)
    if done.returncode == 0 and written.exists():
        with open(written, "rb") as file:
            os.fsync(file.fileno())  # a JVM that is given a torn one ends
        written.rename(place)


if __name__ == "__main__":
    main()
