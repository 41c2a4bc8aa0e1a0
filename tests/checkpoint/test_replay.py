"""Steps and messages to replay, and refusals: pure functions of the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import windrow as wr
from windrow.checkpoint.records import Commit, Mark, ShardResult, Step
from windrow.checkpoint.replay import FILING, Redo, extent, is_total, owners, steps_again
from windrow.core.errors import StateLost

P, Q = (":topic", 0), (":topic", 1)
TIMED = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"m": wr.median("x")}, retention="1 hour"
)
TUPLES = wr.Aggregate(
    by="k", event_time="t", window=wr.tuples(3), agg={"m": wr.median("x")}, retention=wr.forever
)


def ingest(first: dict[Any, int], following: dict[Any, int], rows: int, watermark: int = 0) -> Step:
    return Step(
        kind="ingest",
        now_us=5,
        watermark_us=watermark,
        first_offsets=first,
        next_offsets=following,
        rows=rows,
    )


ADVANCE = Step(kind="advance", now_us=5, watermark_us=0)


def commit(number: int, steps: list[Step], last: int, largest: int, **changes: Any) -> Commit:
    definition = changes.pop("definition", TIMED)
    counters = changes.pop("counters", {f"step.{definition.name}": last})
    fields: dict[str, Any] = {
        "epoch": 1,
        "commit": number,
        "steps": tuple(steps),
        "next_offsets": {},
        "shards": (ShardResult(shard=0, counters=counters),),
        "published": 0,
        "watermark_us": 0,
        "marks": {P: Mark(max_time_us=largest, seen_us=5)},
        "meta": {"watermarks": {definition.name: 0}, FILING: {definition.name: definition.filing()}},
    }
    return Commit(**{**fields, **changes})


THREE = [
    commit(1, [ingest({P: 0}, {P: 10}, 10), ADVANCE], 2, 100),
    commit(
        2,
        [ingest({P: 10}, {P: 11}, 1, 3), ADVANCE, ingest({P: 11, Q: 4}, {P: 20, Q: 6}, 8, 4), ADVANCE],
        6,
        200,
    ),
    commit(3, [ADVANCE, ingest({Q: 6}, {Q: 7}, 1, 9), ADVANCE], 9, 200),
]


def test_ingests_are_numbered_from_the_end_of_their_commit() -> None:
    redo = steps_again(THREE, TIMED, 0, 50)
    assert [(s.commit, s.number, s.rows, s.watermark_us) for s in redo] == [
        (1, 1, 10, 0),
        (2, 3, 1, 3),
        (2, 5, 8, 4),
        (3, 8, 1, 9),
    ]
    assert extent(redo) == {P: (0, 20), Q: (4, 7)}


@pytest.mark.parametrize(("kept_from_us", "first"), [(100, 1), (101, 2), (200, 2), (201, None)])
def test_commits_before_all_that_is_retained_are_left_out(kept_from_us: int, first: int | None) -> None:
    redo = steps_again(THREE, TIMED, 0, kept_from_us)
    assert (redo[0].commit if redo else None) == first


def test_tuple_windows_need_every_step_and_advances_too() -> None:
    steps = [ADVANCE, ingest({P: 0}, {P: 2}, 2)]
    log = [commit(1, steps, 2, 0, definition=TUPLES), commit(2, [ADVANCE], 3, 0, definition=TUPLES)]
    redo = steps_again(log, TUPLES, 0, None)
    assert [(s.kind, s.number, s.ranges) for s in redo] == [
        ("advance", 1, {}),
        ("ingest", 2, {P: (0, 2)}),
        ("advance", 3, {}),
    ]


def test_a_truncated_log_will_do_where_what_it_lacks_has_expired() -> None:
    assert [s.commit for s in steps_again(THREE[1:], TIMED, 0, 201)] == []
    later = [*THREE[1:], commit(4, [ingest({P: 20}, {P: 21}, 1)], 10, 300)]
    assert [s.commit for s in steps_again(later, TIMED, 0, 250)] == [4]
    with pytest.raises(StateLost, match="begins at commit 2"):
        steps_again(THREE[1:], TIMED, 0, 150)


def several(number: int, last: int, rows: int, first: int, following: int) -> Commit:
    counters = {"step.aggregate": last, "taken.aggregate": rows, "rows": rows}
    step = ingest({P: first}, {P: following}, 9)
    return commit(number, [ADVANCE, step], last, 100, counters=counters)


def test_of_several_shards_each_has_its_own_rows_and_steps() -> None:
    redo = steps_again(
        [several(1, 2, 4, 0, 9), several(2, 3, 0, 9, 12), several(3, 5, 3, 12, 20)], TIMED, 0, 0
    )
    assert [(s.commit, s.number, s.rows) for s in redo] == [(1, 2, 4), (3, 5, 3)]


def test_rows_that_were_read_before_are_in_the_extent_and_were_not_taken() -> None:
    redo = steps_again([several(1, 2, 4, 0, 9), several(2, 4, 3, 5, 12)], TIMED, 0, 0)
    assert [s.ranges for s in redo] == [{P: (0, 9)}, {P: (9, 12)}]
    # Of a truncated log the first commit says it for all before.
    truncated = commit(2, [ADVANCE], 2, 10, next_offsets={P: 9})
    redo = steps_again([truncated, several(3, 4, 3, 5, 12)], TIMED, 0, 50)
    assert [s.ranges for s in redo] == [{P: (9, 12)}]


def test_of_several_operators_on_spark_each_has_its_own_watermark() -> None:
    meta = {"watermarks": {"aggregate": 7, "other": 3}, FILING: {"aggregate": TIMED.filing()}}
    steps = [ADVANCE, ingest({P: 0}, {P: 1}, 1, 3)]
    counters = {"step.aggregate": 2, "taken.aggregate": 1}
    [step] = steps_again([commit(1, steps, 2, 1, meta=meta, counters=counters)], TIMED, 0, 0)
    assert step.watermark_us == 7
    [step] = steps_again([commit(1, steps, 2, 1, meta=meta)], TIMED, 0, 0)
    assert step.watermark_us == 3, "embedded each step says its own, which is that of all"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"counters": {}}, "it kept no messages then"),
        ({"meta": {}}, "it kept no messages then"),
        (
            {"meta": {FILING: {"aggregate": {**TIMED.filing(), "max_ahead_us": 5}}}},
            "max_ahead_us=5, now 86400000000",
        ),
        ({"meta": {FILING: {}}}, "it kept no messages then"),
    ],
)
def test_what_the_log_does_not_say_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(StateLost, match=why):
        steps_again([commit(1, [ADVANCE], 1, 100, **changes)], TIMED, 0, 0)


def test_messages_without_positions_cannot_be_distinguished() -> None:
    with pytest.raises(StateLost, match="had no positions"):
        steps_again([commit(1, [ingest({}, {}, 3)], 1, 100)], TIMED, 0, 0)


def took(ranges: dict[Any, tuple[int, int]], rows: int) -> Redo:
    return Redo(commit=1, number=1, kind="ingest", now_us=0, watermark_us=0, ranges=ranges, rows=rows)


def offsets(**of: list[int]) -> dict[Any, Any]:
    return {{"p": P, "q": Q}[name]: np.array(values, dtype=np.int64) for name, values in of.items()}


def owned(redo: list[Redo], **of: list[int]) -> dict[str, list[int]]:
    owner = owners(redo, offsets(**of))
    return {name: owner[{"p": P, "q": Q}[name]].tolist() for name in of}


def test_messages_belong_to_the_step_in_whose_range_they_lie() -> None:
    redo = [took({P: (2, 5)}, 2), took({P: (5, 6), Q: (0, 3)}, 4)]
    # Offset 3 is none of a message: counts are compared, not numbers. 1 and 9 are not asked for.
    assert owned(redo, p=[1, 2, 4, 5, 9], q=[0, 1, 2]) == {"p": [-1, 0, 0, 1, -1], "q": [1, 1, 1]}


def test_rows_of_one_record_go_to_the_steps_in_the_order_in_which_they_were_taken() -> None:
    redo = [took({P: (0, 2)}, 2), took({P: (1, 2)}, 1), took({P: (1, 4)}, 3)]
    assert owned(redo, p=[0, 1, 1, 1, 2, 3]) == {"p": [0, 0, 1, 2, 2, 2]}


@pytest.mark.parametrize(
    ("redo", "of"),
    [
        ([took({P: (0, 3)}, 3)], {"p": [0, 1]}),
        ([took({P: (0, 3)}, 3)], {"q": [0, 1, 2]}),
        ([took({P: (0, 3)}, 3)], {"p": [0, 1, 2, 2]}),
        ([took({P: (0, 2)}, 1), took({P: (1, 3)}, 2)], {"p": [0, 0, 1, 2]}),
        # Of which partition the record was split, the log does not say.
        ([took({P: (0, 2), Q: (0, 2)}, 3), took({P: (1, 2), Q: (1, 2)}, 1)], {"p": [0, 1], "q": [0, 1]}),
    ],
    ids=["too few", "of another partition", "too many", "too many before a split", "two may be split"],
)
def test_where_the_source_gives_something_else_it_is_refused(
    redo: list[Redo], of: dict[str, list[int]]
) -> None:
    with pytest.raises(StateLost, match=r"commit 1 took \d messages of .*'topic'/0.* the source gives \d"):
        owners(redo, offsets(**of))


def test_facts_of_one_commit_are_no_totals() -> None:
    assert [
        is_total(n) for n in ("rows", "replayed", "dead.too_late", "step.a", "taken.a", "kept_from.a")
    ] == [True] * 3 + [False] * 3
