"""Groups that SQL has made of rows do what the rows would have done: also of an input that has a name."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    DEAD_LETTER,
    OFFSET,
    OFFSET_MAX,
    OFFSET_MIN,
    ORDINAL,
    PARTITION,
    ROWS,
    SLICE,
    SOURCE,
    TIME_MAX,
    TIME_MIN,
)
from windrow.operators.steps.dead_letters import MALFORMED
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import MemoryKV

SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string())])
SECOND = 1_000_000
#: The last one has no time.
TIMES, KEYS = [1, 12, 3, 14, None], ["a", "a", "b", "a", "a"]


def taken(source: str | None, named: str | None, how: str) -> tuple[StepResult, pa.Table]:
    """Return the rows emitted once windows end, for input as rows or as groups."""
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="1 hour",
        input=named,
    )
    logic = definition.logic()
    kv = MemoryKV(logic.cfs())
    if how == "rows":
        step = logic.ingest(kv, {definition.inputs[0].name: rows(source)}, SECOND)
    else:
        grouping = logic.grouping()
        assert grouping is not None and grouping.pushdown(SCHEMA) is not None
        grouped = grouping.ingest_groups(kv, groups(source), SCHEMA, -SECOND, SECOND)
        assert grouped.extent == ({} if source is None else {(source, 0): (0, 4)})
        step = grouped.step
    fired = logic.advance(kv, 3600 * SECOND, 2 * SECOND)
    return step, logic.rows(fired.panes, 1)


def rows(source: str | None) -> pa.Table:
    times = pa.array([None if t is None else t * SECOND for t in TIMES], pa.int64())
    columns: dict[str, Any] = {"t": times.cast(SCHEMA.field("t").type), "k": pa.array(KEYS)}
    if source is not None:
        columns |= {
            SOURCE: pa.array([source] * 5),
            PARTITION: pa.array([0] * 5),
            OFFSET: pa.array(range(5)),
            ORDINAL: pa.array([0] * 5),
        }
    return pa.table(columns)


def groups(source: str | None) -> pa.Table:
    """As `prepare_partials` makes them of `rows`."""
    at = {"id": 4} if source is None else {"source": source, "partition": 0, "offset": 4}
    letter = json.dumps({"reason": MALFORMED, "payload": '{"t": null, "k": "a"}', "at": at})
    columns: dict[str, Any] = {
        SLICE: pa.array([0, 10 * SECOND, 0, None], pa.int64()),
        DEAD_LETTER: pa.array([None, None, None, letter], pa.string()),
        "k": pa.array(["a", "a", "b", "a"]),
        ROWS: pa.array([1, 2, 1, 1]),
        TIME_MAX: pa.array([SECOND, 14 * SECOND, 3 * SECOND, None], pa.int64()),
        f"{ACCUMULATOR}n.n": pa.array([1, 2, 1, 1]),
    }
    if source is not None:
        columns |= {
            SOURCE: pa.array([source] * 4),
            PARTITION: pa.array([0] * 4),
            OFFSET_MIN: pa.array([0, 1, 2, 4]),
            OFFSET_MAX: pa.array([0, 3, 2, 4]),
        }
    return pa.table(columns)


@pytest.mark.parametrize(
    ("source", "named"),
    [(":topic", None), (None, None), ("orders:topic", "orders"), (None, "orders")],
)
def test_groups_bring_what_their_rows_bring(source: str | None, named: str | None) -> None:
    by_rows, by_size = taken(source, named, "rows")
    by_groups, told_of_groups = taken(source, named, "groups")
    assert told_of_groups.equals(by_size) and len(by_size) == 3
    assert by_groups.marks == by_rows.marks == {(source or f"{named or ''}:", 0): 14 * SECOND}
    assert by_groups.counts == by_rows.counts == {"dead.malformed": 1}
    letters = [step.dead.drop_columns(["detail", "payload"]) for step in (by_rows, by_groups) if step.dead]
    assert letters[0].equals(letters[1]) and letters[0]["input"].to_pylist() == [named]


def test_a_delay_of_a_session_runs_from_the_group_that_began_it() -> None:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.session("10 seconds"),
        agg={"n": wr.count()},
        retention="1 hour",
        emit=wr.Emit(early=wr.delay("5 seconds")),
    )
    logic = definition.logic()
    kv, grouping = MemoryKV(logic.cfs()), logic.grouping()
    assert grouping is not None and grouping.pushdown(SCHEMA) is not None
    logic.advance(kv, -SECOND, 0)
    for now, time in ((0, 0), (3, 40)):
        at = pa.array([time * SECOND], pa.int64())
        group = {
            SLICE: at,
            DEAD_LETTER: pa.nulls(1, pa.string()),
            "k": ["a"],
            ROWS: [1],
            TIME_MIN: at,
            TIME_MAX: at,
        }
        made = pa.table({**group, f"{ACCUMULATOR}n.n": [1]})
        assert not grouping.ingest_groups(kv, made, SCHEMA, -SECOND, now * SECOND).uncounted
    fired = [len(logic.advance(kv, -SECOND, now * SECOND).panes) for now in (4, 5, 7, 8)]
    assert fired == [0, 1, 0, 1]
