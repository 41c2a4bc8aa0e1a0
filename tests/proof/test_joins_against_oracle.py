"""Joins on a store in memory, step by step beside the oracle: where nothing is too late the rows do not depend on the cut.

Jobs of any join are the contract suite's (tests/operators/test_contract.py). WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.join.cases import JoinCase, S, cases, rows
from windrow.core.messages import Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.operators.join.oracle import JoinOracle
from windrow.operators.oracle.oracle import Outcome
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE, TIMING
from windrow.operators.steps.step import StepResult
from windrow.runners.rows import table_of
from windrow.stores.kv import MemoryKV
from windrow.testing.ledger import values_equal

PROFILE = examples(24, deep=10_000)
POSITION = {SOURCE: pa.string(), PARTITION: pa.int64(), OFFSET: pa.int64(), ORDINAL: pa.int64()}
Told = tuple[str, dict[str, Any]]


@dataclass
class Run:
    """The operator and the oracle, side by side on one store."""

    case: JoinCase
    watermark_us: int = START_OF_TIME_US
    now_us: int = 100 * S
    offset: int = 0
    emitted: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.operator = self.case.definition.logic()
        self.kv = MemoryKV(self.operator.cfs())
        self.oracle: JoinOracle = self.case.definition.oracle(self.case.schemas)
        # What columns there are is known from the start: here a step without messages tells.
        empty = {
            source.name: pa.schema([*self.case.columns(source).items(), *POSITION.items()]).empty_table()
            for source in self.case.definition.inputs
        }
        self._compare(
            self.operator.ingest(self.kv, empty, self.now_us),
            self.oracle.ingest({}, self.now_us, self.watermark_us),
        )

    def ingest(self, drawn: Sequence[dict[str, Any]]) -> None:
        messages: dict[str, list[Message]] = {}
        for row in drawn:
            message = self.case.message(row, self.offset)
            self.offset += 1
            assert message.position is not None
            messages.setdefault(message.position.source.partition(":")[0], []).append(message)
        tables = {name: self._table(name, made) for name, made in messages.items()}
        step = self.oracle.ingest(messages, self.now_us, self.watermark_us)
        actual = self.operator.ingest(self.kv, tables, self.now_us)
        self._compare(actual, step)
        marks: dict[tuple[str, int], int] = {}
        for source, partition, time_us in self.oracle.counted:
            marks[source, partition] = max(time_us, marks.get((source, partition), time_us))
        assert actual.marks == marks

    def advance(self, watermark_us: int, seconds: int) -> None:
        self.watermark_us = max(self.watermark_us, watermark_us)
        self.now_us += seconds * S
        self._compare(
            self.operator.advance(self.kv, self.watermark_us, self.now_us),
            self.oracle.advance(self.watermark_us, self.now_us),
        )

    def end(self) -> None:
        """After the end of time nothing is kept but progress and what columns there are."""
        self.advance(END_OF_TIME_US, 1)
        assert self.oracle.is_empty
        for cf in self.operator.cfs():
            assert cf.endswith(".aux") or not list(self.kv.scan(cf)), cf

    def _table(self, name: str, messages: Sequence[Message]) -> pa.Table:
        [source] = [one for one in self.case.definition.inputs if one.name == name]
        columns = self.case.columns(source)
        positions = [m.position for m in messages if m.position is not None]
        if self.case.timestamps:
            return table_of(
                messages,
                positions,
                event_time=source.event_time,
                time_zone=source.time_zone,
                event_time_unit=source.event_time_unit,
                schema=self.case.schemas[name],
                needs=self.operator.inputs.needs_of(self.kv, name),
            )
        made = {n: pa.array([m.payload[n] for m in messages], kind) for n, kind in columns.items()}
        fields = zip(*positions, strict=True)
        made |= {n: pa.array(f, kind) for (n, kind), f in zip(POSITION.items(), fields, strict=True)}
        return pa.table(made)

    def _compare(self, actual: StepResult, step: Outcome) -> None:
        got = [row for table in actual.panes for row in _rows(table)]
        wanted = [(row.timing.value, {n: plain(v) for n, v in row.values.items()}) for row in step.rows]
        assert [(timing, list(values)) for timing, values in got] == [
            (t, list(values)) for t, values in wanted
        ]
        assert all(values_equal(a, b) for (_, a), (_, b) in zip(got, wanted, strict=True)), (got, wanted)
        self.emitted += got
        letters = [] if actual.dead is None else actual.dead.to_pylist()
        assert [
            (d["reason"], Position(f"{d['input']}:{d['source']}", d["partition"], d["offset"], d["ordinal"]))
            for d in letters
        ] == [(d.reason, d.position) for d in step.dead]


def _rows(table: pa.Table) -> list[Told]:
    names = [name for name in table.column_names if not name.startswith("__")]
    return [(row[TIMING], {name: plain(row[name]) for name in names}) for row in table.to_pylist()]


def plain(value: Any) -> Any:
    return instant_us(value) if isinstance(value, datetime) else value


#: An advance is by so many units of event time and microseconds, and by so many seconds of `now`.
ADVANCES = st.tuples(st.sampled_from([0, 1, 1, 2, 3, 5, 12]), st.sampled_from([0, 0, 1]), st.integers(0, 6))
STEPS = st.one_of(
    st.tuples(st.just("ingest"), st.lists(rows(), min_size=1, max_size=7)),
    st.tuples(st.just("ingest"), st.lists(rows(), min_size=1, max_size=7)),
    st.tuples(st.just("advance"), ADVANCES),
)


def test_what_is_out_of_retention_is_met_by_nobody_though_it_still_lies_there() -> None:
    """Messages by key are freed an hour at a time; a static input may ask for them at any time."""
    sides = {
        "left": wr.Input("l", event_time="t", max_ahead=wr.forever),
        "right": wr.Input("r", event_time="u", static=True),
    }
    join = wr.Join(
        **sides, on=("k", "g"), retention="15 seconds", allowed_lateness="0 seconds", scale="large"
    )
    case, row = (
        JoinCase(definition=join, unit_us=S, timestamps=True),
        {"partition": 0, "jitter": 0, "k": "a", "g": 1},
    )
    more = {"key": None, "v": 1, "x": 0.25, "a": None, "b": None}
    run = Run(case)
    run.ingest([{"side": 0, "t": 9, **row, **more}, {"side": 0, "t": 20, **row, **more}])
    run.advance(27 * S, 1)
    run.ingest([{"side": 1, "t": 5, **row, **more}])
    assert len(run.emitted) == 1
    run.end()


def in_pieces(case: JoinCase, arrivals: Sequence[dict[str, Any]], cuts: Sequence[int]) -> Run:
    """All arrivals, cut into steps, the watermark as far behind each as what follows needs."""
    run = Run(case)
    at, piece = 0, 0
    while at < len(arrivals):
        size = cuts[piece % len(cuts)]
        run.ingest(arrivals[at : at + size])
        at, piece = at + size, piece + 1
        left = [row["t"] * case.unit_us + row["jitter"] for row in arrivals[at:]]
        run.advance(min(left, default=run.watermark_us), piece % 3)
    run.end()
    return run


@given(
    case=cases(rows=False),
    arrivals=st.lists(rows(good=True), min_size=2, max_size=16),
    cuts=st.tuples(
        st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(st.integers(2, 16), min_size=1)
    ),
)
@PROFILE
def test_where_nothing_is_too_late_the_rows_do_not_depend_on_the_cut(
    case: JoinCase, arrivals: list[dict[str, Any]], cuts: tuple[list[int], list[int]]
) -> None:
    kept, gap = case.definition.retention, case.definition.own_gap
    by_number = kept.windows is not None or kept.messages is not None
    assume(not (by_number and case.definition.sessions))  # these go between steps
    assume(
        gap is None or "divide" not in repr(gap)
    )  # what it raises on is left out by who calls the operator
    emitted = [in_pieces(case, arrivals, cut).emitted for cut in cuts]
    one, two = (sorted(repr(values) for _, values in rows_) for rows_ in emitted)
    assert one == two
