"""A source that does not know where it was: ids alone keep its messages apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.testing import ManualClock, TestDriver


@given(
    seconds=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), min_size=1, max_size=25),
    lives=st.lists(st.integers(1, 9), max_size=4),
)
@examples(16, deep=3_000)
def test_a_source_that_begins_anew_with_every_life_counts_each_id_once(
    seconds: list[tuple[int, int]], lives: list[int]
) -> None:
    """Messages without positions: what was counted before the crash comes again, and more."""
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="30 seconds",
        ids=wr.ids("u"),
        emit=wr.Emit(late=wr.every_batch),
    )
    rows = [{"t": t * 1_000_000, "u": f"{t}/{u}"} for t, u in seconds]
    with TestDriver(definition, clock=ManualClock()) as driver:
        for reached in [*lives, len(rows)]:
            for row in rows[:reached]:
                driver.add(row)
            driver.next_offsets()  # which commits
            driver.restart()
        driver.drain()
        counted = {(p.window.start_us, p.index): p["n"] for p in driver.committed_panes()}  # type: ignore[union-attr]
        per_window = {start: n for (start, _), n in sorted(counted.items())}
        driver.check(dead_letters=True)
        for start, n in per_window.items():
            assert n <= len({row["u"] for row in rows if start <= row["t"] < start + 10_000_000})
