"""Operators of several inputs: their intake, schemas and dead letters by input.

An operator fills in `SeveralInputsLogic`. One that delegates to another operator, or judges late messages by itself, takes the
parts: `InputSchemas` here, `InputReading` and `check_inputs` of `steps/arrivals.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from windrow.core.errors import BadWatermark, ConfigurationError
from windrow.core.inputs import STAMPED, Input
from windrow.core.messages import JoinedRow
from windrow.core.policy import Watermark, bounded
from windrow.core.positions import Partition
from windrow.operators.one_input import conformed
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.steps.arrivals import InputReading, check_inputs, without_late
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.operators.steps.message_rows import with_positions
from windrow.operators.steps.output_rows import to_rows
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs, check_keys, learn
from windrow.operators.steps.step import StepResult, passed
from windrow.operators.steps.work import Work, begin_step
from windrow.stores.kv import KV, Batch


def normalise_inputs(inputs: Any, example: str) -> tuple[Input, ...]:
    """Return the inputs of an operator, checked: their names differ, and an explicit watermark is that of all."""
    remedy = f"give them as inputs={example}"
    if isinstance(inputs, Input | str) or not isinstance(inputs, Sequence) or not inputs:
        raise ConfigurationError(f"inputs={inputs!r} are no inputs: {remedy}")
    for input in inputs:
        if not isinstance(input, Input):
            raise ConfigurationError(f"{input!r} of inputs= is no input: {remedy}")
    names = [i.name for i in inputs]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"the inputs are named {names}: give each a name of its own")
    moving = [i for i in inputs if not i.static]
    if len({i.watermark.kind == "explicit" for i in moving}) > 1:
        shown = ", ".join(f"{i.name!r}: {i.watermark!r}" for i in moving)
        raise BadWatermark(
            f"the inputs have the watermarks {shown}: an explicit watermark is the whole operator's, use it on all of them"
        )
    return tuple(inputs)


class NamedInputs(Definition):
    """A definition of the user's inputs. user_inputs: as the user gave them."""

    user_inputs: tuple[Input, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.user_inputs

    def keys(self, input: Input) -> tuple[str, ...]:
        return self.by if input.by is None else input.by

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        inputs = tuple(replace(i, watermark=watermarks.get(i.name, i.watermark)) for i in self.user_inputs)
        return self._changed(user_inputs=inputs)

    def filing(self) -> dict[str, Any]:
        return {**super().filing(), "max_ahead_us": [i.max_ahead_us for i in self.user_inputs]}

    def of_forwarded_rows(self, input: Input) -> Self:
        forwarded = replace(input, max_ahead_us=None)
        return self._changed(
            user_inputs=tuple(forwarded if i.name == input.name else i for i in self.user_inputs)
        )


class SeveralInputs(NamedInputs):
    """A definition of several inputs, which emits each row once. A frozen dataclass on top of it names its fields.

    late_us: how far below the watermark a message is taken
    """

    null_keys: str
    late_us: int
    #: Messages are known by their positions.
    ids = None

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return tuple(dict.fromkeys((input.event_time, *self.keys(input))))

    def filing(self) -> dict[str, Any]:
        return {**super().filing(), "allowed_lateness_us": self.late_us}

    @property
    def tables(self) -> tuple[str, ...]:
        return ()

    @property
    def known_by(self) -> tuple[str, ...] | None:
        return None

    def values(self, rows: pa.Table, job: str) -> Iterator[JoinedRow]:
        return to_rows(rows, job)

    def taker(self, before: str) -> Taker:
        names = [i.name for i in self.user_inputs]
        if before not in names:
            raise ConfigurationError(
                f"{self.name!r}, which follows {before!r}, has the inputs {names}, none of which is {before!r}: name the input "
                f"that takes its rows {before!r}, e.g. wr.Input({before!r}, event_time=...)"
            )
        input = self.input(before)
        others = [i.watermark for i in self.user_inputs if i is not input and not i.static]
        follows = input.watermark.kind == "explicit" and input.watermark in others
        if (input.watermark != bounded() and not follows) or input.positions is not None:
            raise BadWatermark(
                f"{input!r} of {self.name!r} takes the rows of {before!r}, whose watermark and positions they have: leave "
                "watermark= and positions= out"
            )
        return Taker(self.name, input, self.columns_of(input), "it takes no message back", self.late_us)

    def output_delay_us(self, event_time: str) -> int:
        return self.late_us


class InputSchemas:
    """The columns that are known of each input, under `s<slot>` of the auxiliary family."""

    def __init__(self, aux_cf: str, slots: Sequence[str]) -> None:
        self._aux_cf, self._keys = aux_cf, {slot: b"s" + slot.encode() for slot in slots}

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(self._keys.values())

    def known(self, kv: KV) -> dict[str, pa.Schema]:
        """Return the columns of the inputs that have come."""
        packed = zip(self._keys, kv.multi_get(self._aux_cf, self.keys), strict=True)
        return {slot: pa.ipc.read_schema(pa.py_buffer(value)) for slot, value in packed if value is not None}

    def of(self, kv: KV, slot: str) -> pa.Schema | None:
        """Return the columns of an input; None before the first message."""
        packed = kv.get(self._aux_cf, self._keys[slot])
        return None if packed is None else pa.ipc.read_schema(pa.py_buffer(packed))

    def save(self, kv: KV, slot: str, before: pa.Schema | None, schema: pa.Schema) -> None:
        """Write the columns of an input where they have changed."""
        if before is None or not schema.equals(before, check_metadata=True):
            batch = Batch()
            batch.put(self._aux_cf, self._keys[slot], schema.serialize().to_pybytes())
            kv.write(batch)


class SeveralInputsLogic(Logic):
    """The frame of both steps. An operator fills in `needs`, `accept`, `pass_time` and `fields`, and names its families."""

    definition: Any

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.aux_cf = f"{definition.name}.aux"
        self.readings = {i.name: InputReading.of(definition, i) for i in definition.inputs}
        self.schemas = InputSchemas(self.aux_cf, list(self.readings))

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf,)

    @abstractmethod
    def needs(self, input: Input) -> Needs:
        """Return what is needed of the columns of an input."""

    @abstractmethod
    def accept(self, work: Any, rows: Mapping[str, Slice]) -> Mapping[str, Slice]:
        """Process the messages of a step by input, in position order, in the learnt types. Returns those that counted:
        dead letters do not advance the watermark."""

    @abstractmethod
    def pass_time(self, work: Any, watermark_us: int) -> None:
        """Let event time come to `watermark_us`, and time to `work.now_us`: emit and forget what is due."""

    @abstractmethod
    def fields(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        """Return the columns of its rows over such inputs."""

    def begin(self, kv: KV, now_us: int) -> Work:
        """Begin a step. An operator may return a `Work` with fields of its own, which `accept` and `pass_time` get."""
        return begin_step(kv, self.aux_cf, self.definition.dead_letter_limit, now_us)

    def closed_us(self, progress: Progress) -> int:
        """Return the event time below which messages of inputs that are not static are too late."""
        return passed(progress.watermark_us, self.definition.late_us)

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        check_inputs(tables, self.definition.name, self.readings)
        work = self.begin(kv, now_us)
        rows, marks = dict[str, Slice](), dict[str, Mapping[Partition, int]]()
        for name, reading in self.readings.items():
            if name in tables:
                rows[name], marks[name] = self._arrivals(work, reading, tables[name])
        for name, counted in self.accept(work, rows).items():
            work.result.marks.update(further(event_time_marks(counted), marks[name]))
        work.progress.begin(now_us)
        return work.end(self.aux_cf)

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        work = self.begin(kv, now_us)
        watermark_us = max(watermark_us, work.progress.watermark_us)
        self.pass_time(work, watermark_us)
        work.progress.watermark_us, work.progress.now_us = watermark_us, now_us
        return work.end(self.aux_cf)

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        self._learn(kv, self.readings[input], schema)

    def _arrivals(
        self, work: Work, reading: InputReading, table: pa.Table
    ) -> tuple[Slice, Mapping[Partition, int]]:
        input, kv = reading.input, work.kv
        work.dead.input = input.name
        if input.stamped:
            table = table.append_column(STAMPED, pa.array(np.full(len(table), work.now_us, dtype=np.int64)))
        table = reading.in_known_times(table, self.schemas.of(kv, input.name))
        schema = self._learn(kv, reading, table.schema)
        table = with_positions(table, work.progress.step, input.source_prefix)
        rows, marks = reading.arrivals(table, work.now_us, work.dead, partial(self._on_time, work, input))
        return Slice(conformed(rows.table, schema), rows.times), marks

    def _on_time(self, work: Work, input: Input, rows: Slice, dead: DeadLetters) -> Slice:
        if input.static:
            return rows
        late = rows.times < self.closed_us(work.progress)
        return without_late(rows, late, dead, f"the watermark of {self.definition.name!r} has passed it")

    def _learn(self, kv: KV, reading: InputReading, seen: pa.Schema) -> pa.Schema:
        known = self.schemas.of(kv, reading.input.name)
        check_keys(reading.by, seen)
        schema = learn(known, seen, self.needs(reading.input), reading.event_time)
        self.schemas.save(kv, reading.input.name, known, schema)
        return schema

    # -- as an operator ---------------------------------------------------------------------------------------------

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        self.check_schemas(inputs)
        return pa.schema(self.fields(inputs))

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for name, schema in inputs.items():
            self.needs(self.readings[name].input).check(schema, schema.names)

    def known_schema(self, kv: KV) -> pa.Schema | None:
        known = self.schemas.known(kv)
        return pa.schema(self.fields(known)) if len(known) == len(self.readings) else None

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.schemas.of(kv, name)

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.needs(self.readings[name].input)
