"""`open(store="memory")`: state in memory, built anew from snapshot and log."""

from __future__ import annotations

from pathlib import Path

import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.testing import TestDriver

S = 1_000_000
COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "middle": wr.median("v")},
    retention="1 hour",
    watermark=wr.explicit(),
    emit=wr.Emit(early=wr.every_batch, mode="retracting"),
)


def rows(*times: int) -> list[wr.Message]:
    return [wr.Message({"t": t * S, "k": "ab"[t % 2], "v": t}, wr.Position("s", 0, t)) for t in times]


def test_what_was_committed_in_memory_is_there_after_a_kill_and_is_emitted_once(tmp_path: Path) -> None:
    with TestDriver(COUNTS, tmp_path, store="memory") as driver:
        driver.feed(rows(1, 2, 3))
        driver.crash(at="before apply")
        driver.restart()
        driver.feed(rows(4, 5))
        driver.next_offsets()
        driver.op.engine.shard.snapshot()
        driver.feed(rows(6, 11))
        driver.next_offsets()
        driver.feed(rows(12))
        driver.crash()  # what was not committed comes again
        driver.restart()
        driver.feed(rows(12))
        assert sum(w.messages for w in driver.check(dead_letters=True).windows) == 8
        driver.drain()
        driver.check(dead_letters=True)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_job_moves_from_memory_to_disk_and_back(tmp_path: Path, snapshot: bool) -> None:
    kept = []
    for number, store in enumerate(["memory", "rocksdb", "memory", "rocksdb"]):
        with COUNTS.open(str(tmp_path), store=store) as op:
            op.add_messages(rows(number))
            op.flush()
            if snapshot:
                op.engine.shard.snapshot()
            kept.append(sum(w.messages for w in op.get_windows()))
            assert len(op.get_messages()) == number + 1
    assert kept == [1, 2, 3, 4]


def test_another_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="store='disk': use 'rocksdb', on disk, or 'memory'"):
        COUNTS.open(str(tmp_path), store="disk")
