"""Windows around anchors: a frame for each aggregation, early and late rows, and why a row is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.counting import CountingKV
from tests.operators.anchors.test_anchors import LAST_HOUR, LATE, NEXT_HOUR, over, played
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def test_each_aggregation_has_a_frame_of_its_own_around_an_anchor(tmp_path: Path) -> None:
    definition = over(
        frame=LAST_HOUR,
        agg={"before": wr.collect_list("n"), "after": wr.collect_list("n").over(NEXT_HOUR)},
        select="i",
        empty="skip",
    )
    minutes = [(t, n) for n, t in enumerate((0, 30, 60, 90, 119, 121))]
    readings = [("readings", {"t": t * 60 * S, "n": n}) for t, n in minutes]
    anchors = [("markers", {"at": t * 60 * S, "i": t}) for t in (60, 61, 400)]
    rows, letters = played(tmp_path, definition, [*anchors[:2], *readings, *anchors[2:]])
    assert rows == [
        {"at": rows[0]["at"], "i": 60, "before": [0, 1, 2], "after": [3, 4]},
        {"at": rows[1]["at"], "i": 61, "before": [1, 2], "after": [3, 4, 5]},
    ]
    assert letters == []


@pytest.mark.parametrize(
    "frame",
    [
        {"frame": LAST_HOUR, "agg": {"a": wr.collect_list("n"), "b": wr.collect_list("n").over(NEXT_HOUR)}},
        {"frame": wr.between("since", "until"), "agg": {"a": wr.collect_list("n")}},
    ],
    ids=["fixed", "said by the anchor"],
)
def test_a_row_of_an_anchor_is_explained_by_the_messages_in_its_windows(frame: Any, tmp_path: Path) -> None:
    hour = 3600 * S
    with over(by="k", retention=wr.forever, **frame).open(str(tmp_path)) as op:
        for n in range(12):
            message = {"t": n * hour // 2, "k": "ab"[n % 2], "n": n}
            op.add_message(wr.Message(message, wr.Position("s", 0, n)), "readings")
        for n, k in ((3, "a"), (4, "b"), (6, "b")):
            window = {"since": (n - 1) * hour, "until": n * hour}
            op.add_message({"at": n * hour, "k": k, **window}, "markers")
        rows = op.get_result()
    assert len(rows) == 2
    with wr.read_state(str(tmp_path)) as state:
        for row in rows:
            [why] = state.explain(row)
            assert [p.offset for p in why.positions or ()] == sorted({*row["a"], *row.values.get("b", [])})
            assert why.positions
        [waits] = state.explain(6 * hour, key="b")
        assert [p.offset for p in waits.positions or ()] == [11]
    with over(frame=LAST_HOUR).open(str(tmp_path / "short")) as op:
        for name, message in [
            ("readings", {"t": 0, "n": 0}),
            ("markers", {"at": 0}),
            ("readings", {"t": S, "n": 1}),
        ]:
            op.add_message(message, name)
        op.add_message({"at": 9 * hour}, "markers")
        op.add_message({"t": 9 * hour, "n": 2}, "readings")
        [row] = op.get_result()
    with wr.read_state(str(tmp_path / "short")) as state:
        assert state.explain(row)[0].positions is None  # they are forgotten


def test_a_late_message_corrects_the_rows_of_anchors_in_whose_windows_it_is(tmp_path: Path) -> None:
    early = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
    definition = over(frame=("-2 seconds", "1 second"), emit=early, allowed_lateness="10 seconds", select="i")
    sent = [
        ("markers", {"at": 5 * S, "i": 1}),
        ("readings", {"t": 4 * S, "n": 4}),
        ("readings", {"t": 7 * S, "n": 7}),
    ]
    sent += [
        ("markers", {"at": 7 * S, "i": 2}),
        ("readings", {"t": 6 * S, "n": 6}),
        ("markers", {"at": 4 * S, "i": 0}),
    ]
    with TestDriver(definition, tmp_path / "job") as driver:
        for n, (name, message) in enumerate(sent):
            driver.add(wr.Message(message, wr.Position("s", 0, n)), name)
            driver.next_offsets()
            driver.crash()
            driver.restart()
        driver.check(dead_letters=True)
        rows = [
            (row.timing.value, row.kind.value, row.index, row["i"], row["seen"])
            for row in driver.committed_panes()
        ]
        driver.drain()
        driver.check(dead_letters=True)
        driver.assert_state_zero()
    assert rows == [
        ("EARLY", "INSERT", 0, 1, []),
        ("EARLY", "RETRACT", 0, 1, []),
        ("EARLY", "INSERT", 1, 1, [4]),
        ("EARLY", "INSERT", 0, 2, [7]),
        ("ON_TIME", "RETRACT", 1, 1, [4]),
        ("ON_TIME", "INSERT", 2, 1, [4]),
        ("LATE", "RETRACT", 2, 1, [4]),
        ("LATE", "INSERT", 3, 1, [4, 6]),
        ("EARLY", "RETRACT", 0, 2, [7]),
        ("EARLY", "INSERT", 1, 2, [6, 7]),
        ("LATE", "INSERT", 0, 0, [4]),
    ]


def test_what_is_corrected_is_in_the_end_what_messages_in_order_give_also_after_an_aggregate(
    tmp_path: Path,
) -> None:
    anchored = over(
        by="k", frame=("-3 seconds", "2 seconds"), agg={"n": wr.count(), "x": wr.sum("n")}, emit=LATE,
        allowed_lateness="1 minute", name="anchored",
    )  # fmt: skip
    totals = wr.Aggregate(
        by="k", event_time="at", window=wr.tumbling("10 seconds"), agg={"x": wr.sum("x"), "rows": wr.count()},
        retention="1 hour", emit=wr.Emit(late=wr.every_batch), name="totals",
    )  # fmt: skip
    in_order = [
        ("markers", {"at": t * S, "k": "ab"[t % 2]})
        if t % 3
        else ("readings", {"t": t * S, "k": "ab"[t % 2], "n": t})
        for t in range(60)
    ]
    mixed = sorted(
        in_order, key=lambda one: (next(iter(one[1].values())) // (9 * S), -next(iter(one[1].values())))
    )
    outcomes = []
    for where, sent in (("in order", in_order), ("mixed", mixed)):
        with TestDriver(anchored.then(totals), tmp_path / where) as driver:
            for n, (name, message) in enumerate(sent):
                driver.add(wr.Message(message, wr.Position("s", 0, n)), name)
            driver.drain()
            assert not driver.check(dead_letters=True).dead_letters
            outcomes.append({(pane.window, pane.key["k"]): pane.values for pane in driver.committed_panes()})
    assert outcomes[0] == outcomes[1]


def test_what_a_step_reads_does_not_grow_with_the_anchors_that_may_be_corrected() -> None:
    frame = wr.range_between("-1 second", "1 second")
    definition = over(frame=frame, emit=LATE, allowed_lateness="1 day", agg={"n": wr.count()})
    logic, read = definition.logic(), []
    kv = CountingKV(logic.cfs())
    for step in range(80):
        kv.clear()
        columns = {"t": [step * 100 * S, 0 if step % 2 else step * 100 * S], "n": [step, step]}
        marks = {"at": [step * 100 * S]}
        logic.ingest(kv, {n: placed(n, step, c) for n, c in (("readings", columns), ("markers", marks))}, 0)
        logic.advance(kv, step * 100 * S, 0)
        read.append(kv.scanned.total())
    assert max(read[60:]) <= max(read[10:30])


def test_a_retention_for_queries_makes_no_longer_stretches() -> None:
    frame = wr.range_between("-1 second", "1 second")
    widths = {
        over(frame=frame, **more).logic().events._stretches.width_us  # type: ignore[attr-defined]
        for more in ({}, {"retention": "1 day"}, {"retention": wr.forever})
    }
    assert len(widths) == 1


def placed(name: str, step: int, columns: dict[str, list[Any]]) -> pa.Table:
    n = len(next(iter(columns.values())))
    places = {
        SOURCE: [f"{name}:s"] * n,
        PARTITION: [0] * n,
        OFFSET: [2 * step + i for i in range(n)],
        ORDINAL: [0] * n,
    }
    return pa.table({**{c: pa.array(v, pa.int64()) for c, v in columns.items()}, **places})


def test_rows_of_anchors_wait_for_the_end_of_a_period_and_no_longer_than_they_may_change(
    tmp_path: Path,
) -> None:
    tens = wr.Emit(early=wr.every("10 seconds"), late=wr.every("10 seconds"), mode="retracting")
    definition = over(frame=("-2 seconds", "1 second"), emit=tens, allowed_lateness="8 seconds", select="i")
    emitted: list[list[tuple[Any, ...]]] = []
    with TestDriver(definition, tmp_path, clock=ManualClock(0)) as driver:

        def add(name: str, message: dict[str, Any]) -> None:
            driver.add(message, name)

        def passes(seconds: int) -> None:
            driver.advance_clock(f"{seconds} seconds")
            driver.timeout()
            driver.next_offsets()
            emitted.append(
                [(p.timing.value, p.kind.value, p["i"], p["seen"], p.is_last) for p in driver.panes()]
            )
            driver.crash()
            driver.restart()

        add("markers", {"at": 5 * S, "i": 1})
        add("readings", {"t": 4 * S, "n": 4})
        add("readings", {"t": 5 * S, "n": 5})
        passes(9)
        passes(1)  # once, though it changed twice
        add("readings", {"t": 7 * S, "n": 7})
        add("markers", {"at": 7 * S, "i": 2})
        passes(1)
        add("readings", {"t": 3 * S, "n": 3})
        passes(1)
        passes(8)
        add("readings", {"t": 6 * S, "n": 6})
        add("readings", {"t": 16 * S, "n": 16})
        add("markers", {"at": 16 * S, "i": 3})  # nothing changes the first one any more
        passes(1)
        driver.drain()
        driver.check(dead_letters=True)
        driver.assert_state_zero()
    one = [("EARLY", "INSERT", 1, [4, 5], False)]
    assert emitted == [
        [],
        one,
        [("ON_TIME", "RETRACT", 1, [4, 5], False), ("ON_TIME", "INSERT", 1, [4, 5], False)],
        [],
        [
            ("LATE", "RETRACT", 1, [4, 5], False),
            ("LATE", "INSERT", 1, [3, 4, 5], False),
            ("EARLY", "INSERT", 2, [5, 7], False),
        ],
        [
            ("LATE", "RETRACT", 1, [3, 4, 5], False),
            ("LATE", "INSERT", 1, [3, 4, 5, 6], True),
            ("ON_TIME", "RETRACT", 2, [5, 7], False),
            ("ON_TIME", "INSERT", 2, [5, 6, 7], False),
        ],
    ]


def test_all_that_a_step_brings_waits_for_the_end_of_a_period_however_far_apart_it_is(tmp_path: Path) -> None:
    tens = wr.Emit(early=wr.every("10 seconds"), late=wr.never)
    with TestDriver(over(frame=("-2 seconds", 0), emit=tens), tmp_path, clock=ManualClock(0)) as driver:
        driver.feed([{"at": at * S} for at in (5, 100)], "markers")
        driver.advance_clock("10 seconds")
        driver.timeout()
        driver.next_offsets()
        assert [row["seen"] for row in driver.panes()] == [[], []]
        driver.check(dead_letters=True)
