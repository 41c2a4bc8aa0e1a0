"""Rows that are told early and corrected when something comes late. Design section 3.2, and its cases."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import BadDuration, BadTrigger, ConfigurationError, DefinitionChanged
from windrow.core.messages import Kind
from windrow.testing import ManualClock, TestDriver
from windrow.testing.ledger import values_equal

S = 1_000_000
RETRACTING = wr.Emit(late=wr.every_batch, mode="retracting")


def seen(frame: Any, **options: Any) -> wr.Over:
    """Return the names in the window around each message."""
    is_counted = not hasattr(wr.count().over(frame).frame, "low_us")
    what: dict[str, Any] = {
        "event_time": "t",
        "frame": frame,
        "agg": {"seen": wr.collect_list("n", order="event_time")},
        "ttl": "1 hour" if is_counted else None,
        "max_ahead": wr.forever,
        "allowed_lateness": "1 minute",
        "emit": RETRACTING,
    }
    return wr.Over(**{**what, **options})


def said(row: Any) -> str:
    """E.g. "LATE -4#0 24": what was told of the message at 4 is taken back, which was its first row."""
    sign = "+" if row.kind is Kind.INSERT else "-"
    return f"{row.timing.value} {sign}{row['n']}#{row.index} {''.join(map(str, row['seen'] or []))}"


def played(folder: Path, over: wr.Over, times: list[int], *, drain: bool = False) -> list[list[str]]:
    """Return the rows that each message emits. Messages come one by one and are named by their time."""
    rows = []
    with TestDriver(over, folder / "job", clock=ManualClock()) as driver:
        for offset, t in enumerate(times):
            driver.add(wr.Message({"t": t * S, "n": t}, wr.Position("s", 0, offset)))
            driver.next_offsets()
            rows.append([said(row) for row in driver.panes()])
        if drain:
            driver.drain()
            rows.append([said(row) for row in driver.panes()])
        driver.check(dead_letters=True)
    return rows


@pytest.mark.parametrize(
    ("frame", "corrected"), [(("-2 s", 0), "24 234"), (wr.rows_between(-1, 0, partial="emit"), "24 34")]
)
def test_a_late_message_has_its_row_and_corrects_those_whose_windows_it_is_in(
    frame: Any, corrected: str, tmp_path: Path
) -> None:
    before, after = corrected.split()
    assert played(tmp_path, seen(frame), [2, 4, 9, 20, 3])[-1] == [
        "LATE +3#0 23",
        f"LATE -4#0 {before}",
        f"LATE +4#1 {after}",
    ]
    accumulating = seen(frame, emit=wr.Emit(late=wr.every_batch))
    assert played(tmp_path / "accumulating", accumulating, [2, 4, 9, 20, 3])[-1] == [
        "LATE +3#0 23",
        f"LATE +4#1 {after}",
    ]


def test_a_row_is_emitted_in_the_step_of_its_message_and_again_when_its_window_changes(
    tmp_path: Path,
) -> None:
    early = wr.Emit(early=wr.every_batch, mode="retracting")
    over = seen(("-2 s", "1 s"), emit=early, allowed_lateness="0 seconds")
    assert played(tmp_path, over, [2, 3, 9], drain=True) == [
        ["EARLY +2#0 2"],
        ["EARLY -2#0 2", "EARLY +2#1 23", "EARLY +3#0 23"],
        ["EARLY +9#0 9", "ON_TIME -2#1 23", "ON_TIME +2#2 23", "ON_TIME -3#0 23", "ON_TIME +3#1 23"],
        ["ON_TIME -9#0 9", "ON_TIME +9#1 9"],
    ]
    unchanged = seen(("-2 s", "1 s"), emit=wr.Emit(early=wr.every_batch, only_if_changed=True))
    assert played(tmp_path / "unchanged", unchanged, [2, 3, 9], drain=True)[2:] == [["EARLY +9#0 9"], []]


def test_corrections_may_wait_for_the_end_of_a_period_and_do_not_outlast_what_they_correct(
    tmp_path: Path,
) -> None:
    over = seen(("-2 s", 0), emit=wr.Emit(late=wr.every("10 seconds"), mode="retracting"))
    clock = ManualClock()
    with TestDriver(over, tmp_path / "job", clock=clock) as driver:
        offset = 0

        def add(t: int) -> list[str]:
            nonlocal offset
            driver.add(wr.Message({"t": t * S, "n": t}, wr.Position("s", 0, offset)))
            driver.next_offsets()
            offset += 1
            return [said(row) for row in driver.panes()]

        for t in (2, 4, 20):
            add(t)
        assert add(3) == []
        driver.advance_clock(10 * S)
        driver.timeout()
        driver.next_offsets()
        corrected = ["LATE +3#0 23", "LATE -4#0 24", "LATE +4#1 234"]
        assert [said(row) for row in driver.panes()] == corrected
        assert add(1) == []
        # A minute past all that it is in, event time closes them: what waits is told before.
        assert add(200) == [
            "LATE +1#0 1",
            "LATE -2#0 2",
            "LATE +2#1 12",
            "LATE -3#0 23",
            "LATE +3#1 123",
            "ON_TIME +20#0 20",
        ]
        driver.check(dead_letters=True)


def test_a_message_later_than_allowed_is_a_dead_letter_and_corrects_nothing(tmp_path: Path) -> None:
    with seen(("-9 s", 0), allowed_lateness="5 seconds").open(str(tmp_path), clock=ManualClock()) as op:
        for t in (0, 2, 10, 4, 5, 12):
            op.add_message({"t": t * S, "n": t})
        op.drain()
        assert [letter.event_time_us for letter in op.dead_letters()] == [4 * S]
        net = _ledger(op.get_result())
    assert sorted(row for row in net) == [(0, "0"), (2, "02"), (5, "025"), (10, "2510"), (12, "51012")]


def _ledger(rows: list[Any]) -> list[tuple[int, str]]:
    """Return the current rows at the end."""
    count: Counter[tuple[int, str]] = Counter()
    for row in rows:
        count[row["n"], "".join(map(str, row["seen"]))] += 1 if row.kind is Kind.INSERT else -1
    assert set(count.values()) <= {0, 1}
    return [row for row, n in count.items() if n]


def readings(n: int) -> pa.Table:
    chance = np.random.default_rng(5)
    times = np.sort(chance.permutation(n * 20)[:n]) * 25_000
    return pa.table(
        {
            "t": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "k": chance.integers(0, 7, n),
            "i": np.arange(n),
            "x": chance.normal(0.0, 100.0, n),
        }
    )


@pytest.mark.parametrize("early", [wr.never, wr.every_batch])
def test_the_ledger_of_corrected_rows_is_the_rows_of_the_same_messages_in_order(
    early: Any, tmp_path: Path
) -> None:
    agg = {
        "n": wr.count().over(wr.range_between("-2 seconds", "1 second")),
        "f": wr.sum("x").over(wr.range_between("-3 seconds", 0, closed="right")),
        "dev": wr.stddev("x").over("4 seconds"),
        "four": wr.avg("x").over(wr.rows_between(-3, 0, partial="null")),
        "before": wr.max("i").over(wr.rows_between(-3, -2, partial="emit")),
        "so_far": wr.sum("i").over(),
    }
    table = readings(400)
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "agg": agg,
        "ttl": "20 seconds",
        "max_ahead": wr.forever,
    }

    def rows(name: str, order: np.ndarray[Any, Any], cuts: list[int], **more: Any) -> pa.Table:
        with wr.Over(**options, **more).open(str(tmp_path / name), schema=table.schema) as op:
            for low, high in pairwise([0, *cuts, len(table)]):
                op.add_messages(table.take(pa.array(order[low:high])))
            op.drain()
            assert op.dead_letters() == []
            return op.result_table()

    wanted = rows("once", np.arange(len(table)), []).drop_columns(["pane", "commit"]).to_pylist()
    chance = np.random.default_rng(6)
    order = np.argsort(np.arange(len(table)) + chance.integers(0, 90, len(table)), kind="stable")
    emit = wr.Emit(early=early, late=wr.every_batch, mode="retracting")
    cuts = np.sort(chance.choice(np.arange(1, 400), 27, replace=False)).tolist()
    emitted = (
        rows("corrected", order, cuts, emit=emit, allowed_lateness="1 minute")
        .drop_columns(["commit"])
        .to_pylist()
    )
    assert {row["pane"]["timing"] for row in emitted} >= {"LATE", "ON_TIME"}
    ledger: Counter[str] = Counter()
    stands: dict[int, Any] = {}
    for row in emitted:
        pane = row.pop("pane")
        ledger[repr(row)] += 1 if pane["kind"] == "INSERT" else -1
        stands[row["i"]] = row
    assert set(ledger.values()) <= {0, 1}, "a row is taken back with the values that it had"
    assert {key for key, n in ledger.items() if n} == {repr(row) for row in stands.values()}
    assert len(wanted) == len(stands) == 400
    assert all(values_equal(row, stands[row["i"]]) for row in wanted)


BAD: dict[str, Any] = {
    "a trigger by number": (BadTrigger, {"emit": wr.Emit(early=wr.every(3))}),
    "a sign of life": (BadTrigger, {"emit": wr.Emit(early=wr.every("1 s", always=True))}),
    "what came since": (BadTrigger, {"emit": wr.Emit(mode="discarding")}),
    "none on time": (BadTrigger, {"emit": wr.Emit.update()}),
    "late for nobody": (BadTrigger, {"emit": wr.Emit.append()}),
    "late before its time": (BadDuration, {"allowed_lateness": "-1 s"}),
    "no emission": (ConfigurationError, {"emit": "retracting"}),
    "waits for ever": (BadTrigger, {"frame": (0, 1), "ttl": wr.forever}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_updated_is_refused_with_the_remedy(name: str) -> None:
    error, options = BAD[name]
    with pytest.raises(error, match=r"use|give"):
        seen(**{"frame": ("-1 s", 0), **options})


def test_rows_that_are_updated_are_not_taken_by_others_and_not_found_by_those_emitted_once(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadTrigger, match="leave out emit"):
        seen(("-1 s", 0)).then(wr.Over(event_time="t", frame=("-1 s", 0), agg={"m": wr.count()}, name="next"))
    with seen(("-1 s", 0)).open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message({"t": 0, "n": 1})
    with pytest.raises(DefinitionChanged):
        seen(("-1 s", 0), allowed_lateness="0 seconds").open(str(tmp_path))
    other = wr.Emit(late=wr.every("1 minute"))
    with seen(("-1 s", 0), emit=other).open(str(tmp_path), clock=ManualClock()) as op:
        op.drain()
        assert len(op.get_result()) == 1


def test_a_key_whose_new_messages_may_still_change_keeps_what_it_has_come_to(tmp_path: Path) -> None:
    over = wr.Over(
        by="k",
        event_time="t",
        agg={"so far": wr.sum("x").over(), "next": wr.count().over(("100 ms", "900 ms"))},
        ttl=wr.forever,
        select=(),
        max_ahead=wr.forever,
        allowed_lateness="2 seconds",
        emit=wr.Emit(late=wr.every_batch, mode="retracting"),
    )
    with TestDriver(over, tmp_path / "job") as driver:
        for step in ([(0, "a", 1)], [(18, "b", 2)], [(18.5, "a", 10), (20.75, "a", 100)]):
            driver.feed([{"t": int(t * 1_000_000), "k": k, "x": x} for t, k, x in step])
            driver.next_offsets()
        driver.drain()
        driver.check(dead_letters=True)
        rows = [(row["k"], row["so far"]) for row in driver.committed_panes()]
    assert rows == [("a", 1), ("b", 2), ("a", 11), ("a", 111)]
