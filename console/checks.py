"""`windrow verify` and `windrow doctor`: is a job whole, is this machine fit."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, TextIO

from windrow.checkpoint.verify import Report
from windrow.checkpoint.verify import verify as verified
from windrow.connectors.manifests import FOLDER
from windrow.connectors.manifests import verify as verified_sink
from windrow.console.text import say_facts, say_json, say_table
from windrow.core.zones import DATABASE
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV

OK, MISSING, WRONG = "ok", "missing", "wrong"
#: The state of a missing part that was not requested.
OPTIONAL, OPTIONAL_PARTS = "optional", ("spark", "kafka")
#: Less than this left, and a job will soon stop.
FREE_BYTES = 1 << 30
#: A commit waits for a few of these.
SLOW_FSYNC_S = 0.1


def verify(options: argparse.Namespace, out: TextIO) -> int:
    """Check a job, or the directory of a Parquet sink; 1 where something is wrong."""
    if os.path.isdir(os.path.join(options.location, FOLDER)):
        commit, files, wrong = verified_sink(options.location)
        report = Report(options.location, commit=commit, checked={"data files": files}, wrong=wrong)
    else:
        report = verified(options.location)
    if options.json:
        say_json(
            {
                "location": report.location,
                "job": report.job,
                "commit": report.commit,
                "checked": report.checked,
                "wrong": [{"what": what, "why": why} for what, why in report.wrong],
            },
            out,
        )
        return 1 if report.wrong else 0
    counts = ", ".join(f"{n} {kind}" for kind, n in report.checked.items())
    say_facts(
        {"location": report.location, "job": report.job, "commit": report.commit, "checked": counts}, out
    )
    for what, why in report.wrong:
        print(f"WRONG  {what}: {why}", file=out)
    if not report.wrong:
        print("whole", file=out)
    return 1 if report.wrong else 0


class Finding(NamedTuple):
    """A finding of the doctor, one line: what, whether it is fit, what was found, what to do."""

    what: str
    state: str
    found: str
    remedy: str = ""


def doctor(options: argparse.Namespace, out: TextIO) -> int:
    """Check this machine; 1 if something is wrong, or a requested part is missing."""
    asked = {part for part in OPTIONAL_PARTS if getattr(options, part)}
    findings = [_unless_asked(check(), asked) for check in _checks(options.folder)]
    if options.json:
        for finding in findings:
            say_json(finding._asdict(), out)
    else:
        say_table(Finding._fields, findings, out)
    return 0 if all(f.state in (OK, OPTIONAL) for f in findings) else 1


def _unless_asked(finding: Finding, asked: set[str]) -> Finding:
    """Downgrade a finding on Spark or Kafka unless it is asked for: the runner in this process needs neither."""
    part = "kafka" if finding.what == "confluent-kafka" else "spark"
    return finding._replace(state=OPTIONAL) if finding.state == MISSING and part not in asked else finding


def _checks(folder: str) -> list[Callable[[], Finding]]:
    return [
        _python,
        _zones,
        _rocksdb,
        _spark,
        _java,
        _workers,
        _kafka,
        lambda: _space(folder),
        lambda: _disk(folder),
    ]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _python() -> Finding:
    found = ".".join(str(n) for n in sys.version_info[:3])
    return Finding("python", OK, found)


def _zones() -> Finding:
    return Finding("time zones", OK, DATABASE)


def _rocksdb() -> Finding:
    found = _installed("rocksdict")
    if found is None:
        return Finding("rocksdict", WRONG, "", "pip install rocksdict")
    try:
        with tempfile.TemporaryDirectory(prefix="windrow-doctor-") as folder:
            with RocksKV(os.path.join(folder, "store"), ("a",)) as kv:
                batch = Batch()
                batch.put("a", b"k", b"v")
                kv.write(batch)
            with RocksKV(os.path.join(folder, "store"), ("a",)) as kv:
                fit = kv.get("a", b"k") == b"v"
    except Exception as error:
        return Finding(
            "rocksdict", WRONG, f"{found}: {error}", "reinstall it: pip install --force-reinstall rocksdict"
        )
    return Finding(
        "rocksdict", OK if fit else WRONG, found, "" if fit else "a store does not give back what it got"
    )


def _spark() -> Finding:
    found = _installed("pyspark")
    if found is None:
        return Finding("pyspark", MISSING, "", "for Spark: pip install 'windrow[spark]'")
    major, minor = (int(n) for n in re.findall(r"\d+", found)[:2])
    if (major, minor) < (4, 2) or major > 4:
        return Finding("pyspark", WRONG, found, "install 4.2 or newer, below 5: pip install 'windrow[spark]'")
    return Finding("pyspark", OK, found)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    needed = _installed("pyspark") is not None
    if command is None:
        return Finding(
            "java", WRONG if needed else MISSING, "", "for Spark: install Java 17 or newer, or set JAVA_HOME"
        )
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", WRONG, f"{command}: {error}", "set JAVA_HOME to a Java 17 or newer")
    match = re.search(r'version "(\d+)[^"]*"', said.stderr + said.stdout)
    if match is None:
        return Finding(
            "java", WRONG, command, "does not print its version: set JAVA_HOME to a Java 17 or newer"
        )
    if int(match[1]) < 17:
        return Finding("java", WRONG, match[0], "install Java 17 or newer, or set JAVA_HOME to one")
    return Finding("java", OK, match[0].removeprefix("version ").strip('"'))


def _workers() -> Finding:
    name = "PYSPARK_PYTHON"
    value = os.environ.get(name)
    if _installed("pyspark") is None:
        return Finding(name, OK, value or "not set")
    if value is None:
        return Finding(name, OK, f"not set: on this machine {sys.executable}")
    found = shutil.which(value)
    if found is None:
        return Finding(name, WRONG, value, f"is no program: export {name}={sys.executable}")
    try:
        asked = [found, "-c", "import sys, windrow; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, WRONG, f"{value}: {error}", f"export {name}={sys.executable}")
    if said.returncode != 0:
        return Finding(name, WRONG, value, f"cannot import windrow: export {name}={sys.executable}")
    ours = ".".join(str(n) for n in sys.version_info[:2])
    if said.stdout.strip() != ours:
        return Finding(
            name,
            WRONG,
            f"{value} is {said.stdout.strip()}",
            f"drivers and workers need one Python, ours is {ours}",
        )
    return Finding(name, OK, value)


def _kafka() -> Finding:
    found = _installed("confluent-kafka")
    if found is None:
        return Finding("confluent-kafka", MISSING, "", "for Kafka: pip install 'windrow[kafka]'")
    return Finding("confluent-kafka", OK, found)


def _space(folder: str) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GiB free at {os.path.abspath(folder)}"
    return Finding(
        "disk space", OK if free >= FREE_BYTES else WRONG, text, "" if free >= FREE_BYTES else "make room"
    )


def _disk(folder: str) -> Finding:
    """Check a folder for a log: hard links that fail where the name exists, and an fsync that is not too slow."""
    try:
        with tempfile.TemporaryDirectory(prefix=".windrow-doctor-", dir=folder) as place:
            record, link = os.path.join(place, "record"), os.path.join(place, "link")
            took = []
            for _ in range(5):
                begun = time.perf_counter()
                with open(record, "wb") as file:
                    file.write(b"x" * 512)
                    file.flush()
                    os.fsync(file.fileno())
                took.append(time.perf_counter() - begun)
            os.link(record, link)
            try:
                os.link(record, link)
                return Finding(
                    "disk", WRONG, "a hard link replaces a file", "put locations on a local disk or NFS"
                )
            except FileExistsError:
                pass
    except OSError as error:
        return Finding(
            "disk", WRONG, str(error), "put locations on a file system with hard links that can be written"
        )
    fsync = sorted(took)[len(took) // 2]
    text = f"hard links work, fsync takes {fsync * 1000:.1f} ms"
    return Finding(
        "disk", OK, text, "each commit waits for several: a faster disk helps" if fsync > SLOW_FSYNC_S else ""
    )
