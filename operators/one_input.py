"""Base of operators of one input that emit each row once: their common options, and the frame of their steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import pyarrow as pa

from windrow.core import check
from windrow.core.deliver import Policy, policy_of
from windrow.core.errors import BadWatermark, ConfigurationError, ReservedColumn, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import UNNAMED, Input, check_reading
from windrow.core.messages import JoinedRow
from windrow.core.policy import RESERVED_COLUMNS, Watermark, bounded, letters_us, max_ahead_us
from windrow.core.positions import Ids, Positions
from windrow.core.time import TimeUnit
from windrow.core.types import as_type
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.steps.arrivals import InputReading, without_late
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.operators.steps.output_rows import to_rows
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import (
    Needs,
    check_filter,
    check_keys,
    condition_refusal,
    key_refusal,
    learn,
    missing,
)
from windrow.operators.steps.step import StepResult, passed
from windrow.operators.steps.work import Work as Work
from windrow.operators.steps.work import begin_step, save_progress
from windrow.operators.view import View
from windrow.stores.kv import KV


@dataclass(frozen=True, repr=False, init=False)
class OneInput(Definition):
    """A definition of one input. Its `__init__` passes the user's arguments to `_fill`.

    late_us: how far below the watermark a message may be and is still accepted
    """

    by: tuple[str, ...]
    event_time: str
    watermark: Watermark
    name: str
    null_keys: str
    time_zone: str | None
    event_time_unit: TimeUnit | None
    max_ahead_us: int | None
    positions: Positions | None
    ids: Ids | None
    dead_letter_limit: int
    dead_letter_retention_us: int | None
    input_name: str | None
    late_us: int
    where: Expr | None
    deliver: Policy | None
    written: tuple[tuple[str, str], ...] = field(compare=False)

    def _fill(self, options: Mapping[str, Any], **own: Any) -> None:
        """Check the arguments that all operators of one input have, and set the fields; `own`: those of this operator."""
        check.common(options)
        by = check.keys(options["by"])
        watermark, positions, zone = options["watermark"], options["positions"], options["time_zone"]
        check.of_type(
            options["event_time"], str, "event_time", "name the column that holds the time of the event"
        )
        if options["input"] is not None:
            check.name(options["input"], "input")
        check_reading(zone, options["event_time_unit"], positions)
        marked = watermark if isinstance(watermark, Watermark) else bounded(watermark)
        policy = policy_of(options.get("deliver"), own.get("ids"))
        same = ("event_time", "name", "null_keys", "event_time_unit", "dead_letter_limit")
        fields = {
            **{name: options[name] for name in same},
            "by": by,
            "watermark": marked,
            "time_zone": zone,
            "max_ahead_us": max_ahead_us(options["max_ahead"], marked),
            "positions": positions,
            "ids": None,
            "dead_letter_retention_us": letters_us(options["dead_letter_retention"]),
            "input_name": options["input"],
            "where": options.get("where"),
            "deliver": policy,
            "written": self._written({**options, "deliver": policy}),
        }
        self._set(**fields | own)
        self._check_output()

    def _check_output(self) -> None:
        for column in self.output_columns or (*self.by, self.event_time):
            if column in RESERVED_COLUMNS:
                raise ReservedColumn(
                    f"column {column!r} of {self.name!r} would clash with a column of ours in its rows "
                    f"({', '.join(RESERVED_COLUMNS)}): rename it"
                )

    def _described(self, operator: str, **own: Any) -> dict[str, Any]:
        """Describe what shapes the state of every operator of one input, and `own`."""
        return {
            "operator": operator,
            "by": list(self.by),
            "event_time": self.event_time,
            "null_keys": self.null_keys,
            "time_zone": self.time_zone,
            "event_time_unit": self.event_time_unit,
            "input": self.input_name,
            "ids": None if self.ids is None else list(self.ids.columns),
            "where": None if self.where is None else repr(self.where),
            **own,
        }

    # -- the seam ---------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        name = self.input_name or UNNAMED
        rest = (self.watermark, self.time_zone, self.max_ahead_us, self.positions)
        input = Input(name, self.event_time, None, *rest, event_time_unit=self.event_time_unit)
        return (replace(input, where=self.where, deliver=self.deliver),)

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return (self.event_time, *self.by, *(() if self.ids is None else self.ids.columns))

    def keys(self, input: Input) -> tuple[str, ...]:
        return self.by

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        watermark = watermarks.get(self.inputs[0].name)
        if watermark is None:
            return self
        written = {**dict(self.written), "watermark": repr(watermark)}
        return self._changed(watermark=watermark, written=tuple(written.items()))

    @property
    def known_by(self) -> None:
        return None

    @property
    def tables(self) -> tuple[str, ...]:
        return ()

    def values(self, rows: pa.Table, job: str) -> Iterator[JoinedRow]:
        return to_rows(rows, job)

    def taker(self, before: str) -> Taker:
        if self.watermark != bounded():
            raise BadWatermark(
                f"watermark={self.watermark!r} of {self.name!r}, which follows {before!r}: its watermark is that of "
                f"{before!r}, leave it out"
            )
        if self.positions is not None:
            raise ConfigurationError(
                f"positions={self.positions!r} of {self.name!r}, which follows {before!r}: its messages are the rows of "
                f"{before!r}, each emitted once and in order; leave it out"
            )
        input = self.inputs[0]
        return Taker(self.name, input, self.columns_of(input)[1:])

    def check_followed(self, taker: Taker) -> None:
        taker.check_rows(self, self.event_time)

    def output_delay_us(self, event_time: str) -> int:
        return 0

    def of_forwarded_rows(self, input: Input) -> Self:
        return self._changed(
            max_ahead_us=None, time_zone=input.time_zone, event_time_unit=input.event_time_unit
        )


class WholeMessages(Needs):
    """The required columns of an operator that keeps, or forwards, messages with all of their columns."""

    whole = True

    def __init__(self, definition: Definition, input: Input | None = None) -> None:
        input = input or definition.inputs[0]
        self._name, self._asked = definition.name, input.asked
        #: Columns without which no message counts.
        self.required = set(definition.columns_of(input))
        self.keys = tuple(n for n in definition.columns_of(input) if n != input.event_time)
        self._forwards = definition.output_columns is None

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        come = {*(() if known is None else known.names), *names}
        for needed in sorted(self.required - come):
            raise missing(needed, repr(self._name), come)
        for condition in self._asked:
            check_filter(condition, known, come)

    def named(self, names: Iterable[str]) -> set[str]:
        names = set(names)
        asked = {n for n in names if any(condition.mentions(n) for condition in self._asked)}
        return self.required.intersection(names) | asked

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        ours = f"one of ours ({', '.join(RESERVED_COLUMNS)}): rename it in the input"
        return {n: f"column {n!r} is {ours}" for n in names if self._forwards and n in RESERVED_COLUMNS}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = key_refusal(name, kind) if name in self.keys else None
        return refusal or condition_refusal(self._asked, name, {**known, name: kind})


class OneInputLogic(Logic):
    """The frame of both steps. An operator fills in `accept`, `pass_time` and `fields`, and names its column families."""

    definition: Any

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.aux_cf = f"{definition.name}.aux"
        self.needs = WholeMessages(definition)
        #: The reading of each input.
        self.readings = tuple(InputReading.of(definition, i) for i in definition.inputs)

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf,)

    @abstractmethod
    def accept(self, work: Work, rows: Slice) -> Slice:
        """Process messages that can be counted, in position order, and emit what they trigger. Returns those that were counted:
        dead letters do not advance the watermark."""

    @abstractmethod
    def pass_time(self, work: Work, watermark_us: int) -> None:
        """Let event time come to `watermark_us`, and time to `work.now_us`: emit and forget what is due."""

    @abstractmethod
    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of its rows over an input of these columns."""

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        [table] = tables.values()
        work = self._begin(kv, now_us)
        self._ingest(work, self.readings[0], table, self.accept)
        return self._end(work)

    def _ingest(
        self, work: Work, reading: InputReading, table: pa.Table, accept: Callable[[Work, Slice], Slice]
    ) -> None:
        """Ingest the table of an input. accept: processes the messages that can be counted"""
        table = reading.in_known_times(table, work.progress.schema)
        self._learn(work.progress, table.schema)
        work.dead.input = reading.input.shown
        rows, marks = reading.arrivals(table, work.now_us, work.dead, partial(self._on_time, work, reading))
        if len(rows):
            rows = accept(work, Slice(conformed(rows.table, work.schema), rows.times))
        prefix = reading.input.source_prefix
        reached = further(event_time_marks(rows), marks)
        work.result.marks.update({(s or prefix, p): t for (s, p), t in reached.items()})
        work.progress.begin(work.now_us)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        work = self._begin(kv, now_us)
        watermark_us = max(watermark_us, work.progress.watermark_us)
        self.pass_time(work, watermark_us)
        work.progress.watermark_us, work.progress.now_us = watermark_us, now_us
        return self._end(work)

    def _begin(self, kv: KV, now_us: int) -> Work:
        work = begin_step(kv, self.aux_cf, self.definition.dead_letter_limit, now_us)
        work.dead.input = self.definition.inputs[0].shown
        return work

    def _end(self, work: Work) -> StepResult:
        return work.end(self.aux_cf)

    def _on_time(self, work: Work, reading: InputReading, rows: Slice, dead: DeadLetters) -> Slice:
        """Drop the messages that the watermark has passed by more than the definition allows; none of a static input."""
        if reading.input.static:
            return rows
        late = rows.times < passed(work.progress.watermark_us, self.definition.late_us)
        return without_late(rows, late, dead, f"the watermark of {self.definition.name!r} has passed it")

    def _learn(self, progress: Progress, schema: pa.Schema) -> None:
        check_keys(self.definition.columns_of(self.definition.inputs[0])[1:], schema)
        for why in self.needs.refused(schema.names).values():
            raise ReservedColumn(why)
        progress.schema = learn(progress.schema, schema, self.needs, self.definition.event_time)

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        progress = self.progress(kv)
        self._learn(progress, schema)
        save_progress(kv, self.aux_cf, progress)

    # -- the seam ---------------------------------------------------------------------------------------------------

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        schema = inputs[self.definition.inputs[0].name]
        self._learn(Progress(), schema)
        for column in self.needs.required:
            if column not in schema.names:
                raise UnknownColumn.lacking(column, repr(self.definition.name), schema.names)
        return pa.schema(self.fields(schema))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        known = self.progress(kv).schema
        return None if known is None else pa.schema(self.fields(known))

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.progress(kv).schema

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.needs

    def called(self, input: str, column: str) -> tuple[str, ...]:
        return (column,) if self.definition.output_columns is None else ()

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        return View(self, stores, watermark_us)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in their types, and positions where there are any."""
    n, there = len(table), set(table.column_names)
    columns = [
        as_type(combine(table.column(f.name)), f.type) if f.name in there else pa.nulls(n, f.type)
        for f in schema
    ]
    made = pa.table(columns, schema=schema)
    for name in POSITION_COLUMNS:
        if name in there:
            made = made.append_column(name, table.column(name))
    return made
