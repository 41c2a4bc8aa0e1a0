"""Messages of a window of rows that wait for a partner are found by event time: an advance looks at those that leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.stores.kv import MemoryKV, Pair

S = 1_000_000


class Watched(MemoryKV):
    """Counts the pairs that were looked at."""

    looked = 0

    def scan(self, *args: Any, **options: Any) -> Iterator[Pair]:
        for pair in super().scan(*args, **options):
            self.looked += 1
            yield pair


def a_join(how: Any) -> wr.Join:
    return wr.Join(
        left=wr.Input("left", event_time="t", window=wr.rows(500)),
        right=wr.Input("right", event_time="t"),
        on="id",
        how=how,
        within=("0 s", "10 s"),
        retention="1 hour",
        allowed_lateness="0 seconds",
    )


def rows(name: str, seconds: list[int], first: int = 0) -> dict[str, pa.Table]:
    n = len(seconds)
    columns: dict[str, Any] = {"t": [s * S for s in seconds], "id": [s % 3 for s in seconds]}
    where = {SOURCE: [f"{name}:"] * n, PARTITION: [0] * n, OFFSET: range(first, first + n), ORDINAL: [0] * n}
    return {name: pa.table(columns | where)}


def filed(how: str = "left") -> tuple[Any, Watched]:
    """400 left messages, a second apart; every tenth has met one."""
    logic = a_join(how).logic()
    kv = Watched(logic.cfs())
    logic.ingest(kv, rows("left", list(range(100, 500))), 0)
    logic.ingest(kv, rows("right", list(range(100, 500, 10))), 0)
    return logic, kv


def fired_at(logic: Any, kv: Any, second: int) -> list[int]:
    step = logic.advance(kv, second * S, 0)
    time = "t" if logic.definition.how == "anti" else "left_t"
    return [t // S for p in step.panes for t in p.column(time).cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize("how", ["left", "anti"])
def test_an_advance_looks_at_what_leaves_and_not_at_all_that_is_kept(how: str) -> None:
    logic, kv = filed(how)
    first = fired_at(logic, kv, 150)
    kv.looked = 0
    after = fired_at(logic, kv, 153)
    assert kv.looked < 10
    assert len(first) > 20 and 0 < len(after) <= 3
    assert sorted(first + after + fired_at(logic, kv, 1000)) == [s for s in range(100, 500) if not _met(s)]


def _met(second: int) -> bool:
    return any(second <= s <= second + 10 and s % 3 == second % 3 for s in range(100, 500, 10))


def test_what_matches_or_is_pushed_out_waits_no_more() -> None:
    logic, kv = filed()
    waiting = list(kv.scan(logic.aux_cf, b"w0", b"w1"))
    assert len(waiting) == len([s for s in range(100, 500) if not _met(s)])
    logic.ingest(kv, rows("left", [500 + i for i in range(3 * 500)], 400), 0)
    listed = [k[10:-1] for k, _ in kv.scan(logic.aux_cf, b"w0", b"w1")]
    assert sorted(listed) == [k for k, v in kv.scan("join.left.open") if v[:1] == b"\x00"]
    assert len(listed) == 3 * 500
