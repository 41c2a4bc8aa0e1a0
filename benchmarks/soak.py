"""A job that lives long: many small commits, a second of a manual clock apart, and what grows with them.

At 100, 1,000, 10,000 and 100,000 commits the driver stops and is measured: files and bytes below the location, and in a
process of its own how long opening, `windrow describe` and `wr.read_state` take. What is stored for windows is soon
constant, so that whatever still grows then grows with age.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

import windrow as wr
from windrow.checkpoint.transport import FILES, Transport
from windrow.console.main import main as windrow
from windrow.runners.embedded.engine import SNAPSHOT_EVERY
from windrow.testing import ManualClock

from . import topics
from .harness import Context, Row, median, scratch
from .worker import peak_mib

COMMITS = 100_000
KEYS = 10
#: Keys of a window that is filled by commits of `FILLED` rows, and then gets commits of `FEW`.
MANY_KEYS, FILLED, FEW, FEW_COMMITS = (100_000, 2_000_000), 100_000, 1_000, 1_000
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
#: From the last decade but one to the last nothing grows but by noise.
GROWTH_MOST = 1.2
#: What a sink has grows with what it was given.
TOLD = ("files of the sink", "read_panes", "commit, slowest", "commits over 3x p50")
PROBES = 3
#: Files come and go with snapshots: they are looked for every so many of the last commits, and the most of them told.
CYCLE, LOOK = 2_000, 20
#: What is measured, its unit, and below which figure all is noise.
FIGURES = {
    "files": ("files", 200.0),
    "bytes": ("MiB", 4.0),
    "files of the sink": ("files", 200.0),
    "open": ("s", 0.1),
    "describe": ("s", 0.1),
    "read_state": ("s", 0.1),
    "read_panes": ("s", 0.5),
    "memory of whoever opens": ("MiB", 20.0),
    "memory of the driver": ("MiB", 20.0),
    "commit, p50": ("ms", 1.0),
    "commit, p99": ("ms", 2.0),
    "commit, slowest": ("ms", 50.0),
    "commits over 3x p50": ("%", 5.0),
}


def soak(context: Context) -> list[Row]:
    """Growth by decade, the log in files; then how even commits are where a window has many keys."""
    rows = _soak(context, "log in files", FILES, None)
    for keys in (10_000,) if context.quick else MANY_KEYS:
        context.step(f"{keys:,} keys in one window")
        rows += _many_keys(keys)
    return rows


def soak_kafka(context: Context) -> list[Row]:
    """Growth by decade, the log in Kafka."""
    with topics.broker() as cluster:
        name = f"soak-{uuid.uuid4().hex[:12]}"  # of a broker that was used before
        return _soak(context, "log in Kafka", wr.kafka_log(cluster, name), f"log:{cluster.servers}/{name}")


def _soak(context: Context, label: str, log: Transport, place: str | None) -> list[Row]:
    most = context.commits or (1_000 if context.quick else COMMITS)
    by_age: dict[int, dict[str, float]] = {}
    with scratch() as folder:
        life = _Life(folder, log)
        for age in map(_between_snapshots, [n for n in (100, 1_000, 10_000, 100_000) if n < most] + [most]):
            context.step(f"{label}, up to commit {age:,}")
            by_age[age] = life.until(age) | _probe(folder, place)
            figures = ", ".join(
                f"{name} {value:,.4g} {FIGURES[name][0]}" for name, value in by_age[age].items()
            )
            context.bar.write(f"{label}, commit {age:,}: {figures}")
    return _rows(label, by_age)


def _between_snapshots(age: int) -> int:
    """An age near to this one at which as many commits as ever have come since the last snapshot: they are read anew."""
    return age + (SNAPSHOT_EVERY // 2 - age) % SNAPSHOT_EVERY


def _rows(label: str, by_age: dict[int, dict[str, float]]) -> list[Row]:
    """Each figure at the end, beside the same ten times as young."""
    *_, young, old = [0, *by_age]
    rows = []
    for name, (unit, least) in FIGURES.items():
        last, before = by_age[old][name], by_age.get(young, {}).get(name)
        bound, meets = f"required <= {GROWTH_MOST:g}x the younger", None
        if name in TOLD:
            bound = ""
        elif before is not None:
            meets = last <= GROWTH_MOST * max(before, least)
        rows.append(
            Row(
                f"soak, {label}: {name}, after {old:,} commits",
                unit,
                last,
                before,
                f"after {young:,}" if before is not None else "",
                before / last if before and last else None,
                bound,
                meets,
                {f"{age:,}": [figures[name]] for age, figures in by_age.items()},
            )
        )
    return rows


def _many_keys(keys: int) -> list[Row]:
    """Commits of few rows in a window of many keys, which was filled by large ones."""
    clock, random, spent = ManualClock(BEGIN), np.random.default_rng(0), list[float]()
    sums = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 day"),
        agg={"n": wr.count(), "s": wr.sum("v")},
        retention="1 minute",
        name="sums",
    )
    with scratch() as folder, sums.open(os.path.join(folder, "job"), clock=clock) as operator:
        filling = [np.arange(at, min(at + FILLED, keys)) for at in range(0, keys, FILLED)]
        few = (random.integers(0, keys, FEW) for _ in range(FEW_COMMITS))
        for numbers in (*filling, *few):
            clock.advance("1 second")
            at = pa.array([clock.now_us()] * len(numbers), pa.timestamp("us", "UTC"))
            table = pa.table({"k": numbers, "t": at, "v": numbers})
            begin = time.perf_counter()
            operator.add_messages(table)
            operator.timeout()
            if len(numbers) == FEW:
                spent.append((time.perf_counter() - begin) * 1_000)
    figures = _commits(spent)
    return [
        Row(f"soak, {keys:,} keys in one window: {name}", FIGURES[name][0], value)
        for name, value in figures.items()
    ]


def _commits(spent: list[float]) -> dict[str, float]:
    """Summarize how long commits took, in ms."""
    spent = sorted(spent)
    p50 = spent[len(spent) // 2]
    return {
        "commit, p50": p50,
        "commit, p99": spent[len(spent) * 99 // 100],
        "commit, slowest": spent[-1],
        "commits over 3x p50": 100 * sum(ms > 3 * p50 for ms in spent) / len(spent),
    }


def _resident_mib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Life:
    """A driver that is stopped and opened again; one message and one commit a second."""

    def __init__(self, folder: str, log: Transport) -> None:
        self.folder, self.log = folder, log
        self.clock = ManualClock(BEGIN)
        self.age = 0

    def until(self, age: int) -> dict[str, float]:
        """Live on up to this commit. What it was like; what was on disk, at most, since the last snapshots but some."""
        spent: list[float] = []
        on_disk: list[tuple[int, int]] = []
        with _open(self.folder, self.log, self.clock) as operator:
            while self.age < age:
                self.clock.advance("1 second")
                begin = time.perf_counter()
                operator.add_message(_message(self.age))
                operator.timeout()
                spent.append((time.perf_counter() - begin) * 1_000)
                self.age += 1
                if self.age > age - CYCLE and self.age % LOOK == 0:
                    on_disk.append(_on_disk(os.path.join(self.folder, "job")))
            memory = _resident_mib()
        files, size = (max(sizes) for sizes in zip(*on_disk, strict=True))
        return {"memory of the driver": memory, **_commits(spent), "files": files, "bytes": size / 2**20}


def _open(folder: str, log: Transport, clock: ManualClock) -> Any:
    sums = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v")},
        retention="1 minute",
        name="sums",
    )
    sink = wr.sinks.parquet(os.path.join(folder, "sink"))
    return sums.open(os.path.join(folder, "job"), clock=clock, sink=sink, log=log)


def _message(i: int) -> wr.Message:
    at = BEGIN + timedelta(seconds=i + 1)
    return wr.Message({"t": at, "k": f"key-{i % KEYS}", "v": i}, wr.Position("soak", 0, i))


# -- what is measured from outside -----------------------------------------------------------------------------------------


def _probe(folder: str, place: str | None) -> dict[str, float]:
    """Numbers of files, and the medians of processes that look at the job."""
    command = [sys.executable, "-m", "benchmarks.soak", folder, *([place] if place else [])]
    lines = []
    for _ in range(PROBES):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        lines.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        "files of the sink": _on_disk(os.path.join(folder, "sink"))[0],
        **{name: median([t[name] for t in lines]) for name in lines[0]},
    }


def _on_disk(folder: str) -> tuple[int, int]:
    """Files and their bytes. The store compacts beside us: what is gone meanwhile is not counted."""
    sizes: list[int] = []
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.stat(os.path.join(at, name)).st_size)
    return len(sizes), sum(sizes)


def _look(folder: str, place: str | None) -> dict[str, float]:
    """Seconds of whoever looks at the job for the first time, and his memory beyond what it takes to be there."""
    figures: dict[str, float] = {}
    job, before = os.path.join(folder, "job"), peak_mib()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        figures[name] = time.perf_counter() - begin

    log: Transport = FILES
    if place is not None:
        servers, _, name = place.removeprefix("log:").rpartition("/")
        log = wr.kafka_log(servers, name)
    with timed("describe"), redirect_stdout(io.StringIO()):
        assert windrow(["describe", place or job]) == 0
    with timed("read_state"), wr.read_state(job, log=log) as state:
        assert state.get_windows()
    figures["memory of whoever opens"] = peak_mib() - before
    with timed("read_panes"):
        wr.read_panes(os.path.join(folder, "sink"))
    with timed("open"):
        operator = _open(folder, log, ManualClock(BEGIN))
    operator.close()
    return figures


def main(folder: str, place: str | None = None) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    print(json.dumps(_look(folder, place)))


if __name__ == "__main__":
    main(*sys.argv[1:])
