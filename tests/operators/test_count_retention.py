"""Retention by size counts a row for each window, so that a message costs what it changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.counting import CountingKV
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.steps.columns import END, MESSAGES, START
from windrow.operators.view import Query
from windrow.stores.kv import MemoryKV, Overlay

S = 1_000_000
NEVER = -(1 << 62)


def limits(**retain: Any) -> SizeLimits:
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()},
        retention=wr.Retain("1 hour", **retain),
    )  # fmt: skip
    return SizeLimits(definition, "aux")


def deltas(*rows: tuple[str, int, int]) -> pa.Table:
    """(key, second in which its window starts, messages)."""
    starts = [s * S for _, s, _ in rows]
    ends = [s + S for s in starts]
    return pa.table({"k": [k for k, *_ in rows], START: starts, END: ends, MESSAGES: [n for *_, n in rows]})


@pytest.mark.parametrize("per", ["job", "key"])
def test_a_message_writes_what_it_changes_however_many_windows_there_are(per: str) -> None:
    kept, kv = limits(windows=100_000, per=per), MemoryKV(["aux"])
    kept.note(kv, deltas(*[("k", second, 1) for second in range(9_000)]))
    list(kept.evict(kv, NEVER))
    step = Overlay(kv)
    kept.note(step, deltas(("k", 4_000, 1)))
    assert list(kept.evict(step, NEVER)) == []
    assert len(step.batch.encode()) < 200


def test_what_has_expired_by_time_is_counted_no_more() -> None:
    kept, kv = limits(windows=2), MemoryKV(["aux"])
    kept.note(kv, deltas(("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("b", 5, 1)))
    assert list(kept.evict(kv, NEVER)) == []
    kept.forget(kv, 3 * S)
    assert {k[:1] for k, _ in kv.scan("aux")} == {b"k", b"w", b"x"}
    assert len([k for k, _ in kv.scan("aux", b"k", b"l")]) == 1  # nothing of a is left
    kept.note(kv, deltas(("b", 6, 1)))
    assert list(kept.evict(kv, NEVER)) == []  # two windows of b
    kept.forget(kv, 100 * S)
    assert not list(kv.scan("aux"))


def test_a_key_of_which_only_a_floor_is_left_is_removed_with_it() -> None:
    kept, kv = limits(messages=1), MemoryKV(["aux"])
    kept.note(kv, deltas(("a", 5, 2)))
    assert [start for _, start, *_ in kept.evict(kv, NEVER)] == [5 * S]
    kept.forget(kv, 5 * S)
    assert kept.floors(kv, deltas(("a", 5, 1))).tolist() == [6 * S]
    kept.forget(kv, 6 * S)
    assert not list(kv.scan("aux"))


def test_a_window_that_is_removed_reads_the_pages_of_its_key_and_leaves_the_others() -> None:
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()},
        retention=wr.Retain("1 hour", windows=2), watermark=wr.explicit(),
    )  # fmt: skip
    logic = definition.logic()
    kv, name = CountingKV(logic.cfs()), definition.inputs[0].name
    keys = [f"key-{n}" for n in range(3_000)]

    def ingest(second: int, batch: list[str]) -> None:
        times = pa.array([second * S] * len(batch), pa.timestamp("us", "UTC"))
        logic.ingest(kv, {name: pa.table({"t": times, "k": batch})}, 0)

    def kept(key: str) -> list[int]:
        return [w.window.start_us // S for w in logic.view([kv], 2 * S).windows(Query(key=key))]

    for second in (0, 1):
        ingest(second, keys)
        logic.advance(kv, (second + 1) * S, 0)
    ingest(2, ["key-7", "key-8"])
    before = sum(len(v) for _, v in kv.scan(logic.windows_cf))
    kv.clear()
    logic.advance(kv, 2 * S, 0)
    assert 10 * kv.read[logic.windows_cf] < before, f"{kv.read} bytes of {before} were read"
    assert (kept("key-7"), kept("key-8"), kept("key-9")) == ([1, 2], [1, 2], [0, 1])
    ingest(2, keys)  # the rest of the first window goes, and with it its pages
    logic.advance(kv, 2 * S, 0)
    assert logic.store.starts(kv, 0, 10 * S) == [1 * S, 2 * S]
