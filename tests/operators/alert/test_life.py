"""Long lives of alerts: a year of hours, keys that come and go, clocks that are set back, moments that are over."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.alert.test_alerts import S, X, alert, messages
from windrow.checkpoint import job
from windrow.core.time import to_datetime
from windrow.runners.embedded import engine
from windrow.stores.kv import MemoryKV
from windrow.testing import ManualClock

HOUR = 3600


def sizes_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of a job; RocksDB deletes some of its own meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path, path.stat().st_size


@pytest.mark.slow
def test_a_year_of_hours_leaves_as_many_files_bytes_and_memory_as_its_first_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit each hour: three keys, of which one opens by day and is cancelled by night, with delays and repeats."""
    hours, clock, sink = usually(192, deep=8_760), ManualClock(0), wr.sinks.memory()
    monkeypatch.setattr(engine, "SNAPSHOT_EVERY", usually(12, deep=256))
    monkeypatch.setattr(job, "KEEP_COMMITS", usually(6, deep=32))
    definition = alert(
        frame="6 hours",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 75,
        actions={"mail": wr.Action(delay="1 hour", repeat=wr.every("3 hours"))},
        ttl="1 day",
    )
    measured = []
    with definition.open(str(tmp_path), clock=clock, sink=sink) as op:
        for hour in range(hours):
            clock.advance(timedelta(hours=1))
            load = 90 if hour % 24 < 12 else 10
            op.add_messages([m for key in "abc" for m in messages([load], [hour * HOUR], key=key)])
            op.next_offsets()
            sink.panes[:-1] = []
            if hour % 6 == 5 and hour > hours // 4:
                files = dict(sizes_below(tmp_path))
                sizes = [size for path, size in files.items() if not path.name.startswith("LOG")]
                measured.append((len(sizes), sum(sizes), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
                # RocksDB's own log, which grows up to 256 KiB before the next one begins.
                logs = [size for path, size in files.items() if path.name.startswith("LOG")]
                assert len(logs) <= 2 and max(logs) < 300_000
    third = len(measured) // 3
    # All rise until the next snapshot or compact changelog, and fall again: their means stay.
    for early, late in zip(
        zip(*measured[:third], strict=True), zip(*measured[-third:], strict=True), strict=True
    ):
        assert mean(late) <= 1.25 * mean(early), measured


@pytest.mark.parametrize("frame", [None, "5 seconds", 3])
def test_keys_that_opened_and_closed_leave_no_state(frame: Any) -> None:
    n, values = usually(500, deep=100_000), {"delay": "1 second", "repeat": wr.every("1 hour")}
    definition = alert(
        frame=frame,
        agg=None if frame is None else {"x": wr.avg("x")},
        actions={"mail": wr.Action(**values), "log": wr.Action()},
        variables={"twice": X * 2},
        ttl="1 minute",
    )
    logic = definition.logic()
    kv = MemoryKV(logic.cfs())
    for second, x in ((0, 90), (2, 90), (3, 10), (4, 10), (5, 10)):
        times = pa.array(np.full(n, second * S)).cast(pa.timestamp("us", "UTC"))
        table = pa.table({"t": times, "k": np.arange(n), "x": np.full(n, x)})
        opened = logic.ingest(kv, {"alert": table}, 0).then(logic.advance(kv, second * S, 0))
        if second in (0, 3):
            kept = 0 if frame is None and second else n
            assert opened.panes and len(list(kv.scan(f"{definition.name}.status"))) == kept
    logic.advance(kv, 100 * S, 0)
    left = [
        (cf, k) for cf in logic.cfs() for k, v in kv.scan(cf) if cf != logic.aux_cf or not logic.stays(k, v)
    ]
    assert not left


def test_a_clock_that_is_set_back_by_a_day_repeats_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """Restart a job with an earlier clock: what is due by `now` waits until that clock is where the job was."""
    definition = alert(actions={"mail": wr.Action(repeat=wr.every("1 hour"))})
    day, sink = 24 * HOUR * S, wr.sinks.memory()
    for start_us, later in ((10 * day, "1 minute"), (9 * day, "23 hours"), (10 * day, "2 hours")):
        clock = ManualClock(start_us)
        with definition.open(str(tmp_path), clock=clock, sink=sink) as op:
            op.add_messages(messages([80], [start_us // S + 1]))
            op.next_offsets()
            clock.advance(later)
            op.timeout()
            op.next_offsets()
    assert [row["trigger"] for row in sink.panes] == ["on_open", "on_repeat"]


def test_an_older_moment_is_explained_by_the_samples_that_are_kept(tmp_path: Path) -> None:
    definition = alert(frame="5 seconds", agg={"mean": wr.avg("x")}, when=wr.col("mean") > 80)
    with definition.open(str(tmp_path)) as op:
        op.add_messages(messages([70, 95, 99, 98, 10], [0, 1, 2, 4, 8]))
    with wr.read_state(str(tmp_path)) as state:
        [newest], [older] = (state.explain({"k": "a", "time": to_datetime(s * 1_000_000)}) for s in (8, 4))
    assert (newest.complete, [p.offset for p in newest.positions or ()]) == (True, [3, 4])
    assert (older.complete, [p.offset for p in older.positions or ()]) == (False, [3])
    assert "--as-of" in older.reasons[0]
