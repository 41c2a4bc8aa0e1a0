"""Intake of messages, by input: as tables with positions, in the stream's current types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from windrow.core.errors import InputError, UnknownColumn
from windrow.core.inputs import Input, which
from windrow.core.messages import Message
from windrow.core.types import concat, plain_type
from windrow.operators.operator import Definition, Logic
from windrow.operators.steps.admission import admitted, check_places, compared_within
from windrow.operators.steps.columns import MALFORMED_ROW
from windrow.operators.steps.intake import in_known_times
from windrow.operators.steps.schema_inference import Needs, check_keys, learn
from windrow.runners.embedded.positions import NOTHING, Passed, Placed, place, with_positions, with_prefix
from windrow.runners.embedded.step_transaction import Staged
from windrow.runners.embedded.user_input import Many, many_of
from windrow.runners.rows import is_name, table_of

#: So many of the first messages decide the types of lists and structs.
_LOOKED_AT = 1_000
#: {input: schema}, or the schema of the one input that there is.
Schemas: TypeAlias = pa.Schema | Mapping[str, pa.Schema]


class Engine(Protocol):
    """The runner that takes in the messages of a step: an open job, or one of bounded frames."""

    definition: Definition
    logic: Logic
    staged: Staged

    def ingest_and_advance(
        self, tables: Mapping[str, pa.Table], passed: Passed, *, prepared: Mapping[str, pa.Table]
    ) -> None:
        """Ingest messages, by input, with position columns. prepared: ingested in place of these."""
        ...

    def leave(self, passed: Passed) -> None:
        """Be done with messages that need no step."""
        ...


class Intake:
    """The inputs of an open job, or of bounded frames."""

    def __init__(self, engine: Engine, declared: Mapping[str, pa.Schema]) -> None:
        self.engine = engine
        self.definition, self.logic = engine.definition, engine.logic
        self.inputs = engine.definition.inputs
        self.declared = declared
        #: Inputs that are known to have the columns that they need.
        self._checked: set[str] = set()

    def input(self, name: str | None) -> Input:
        """Return the input of that name; with a single input the name may be None."""
        if name is None and len(self.inputs) == 1:
            return self.inputs[0]
        for input in self.inputs:
            if input.name == name:
                return input
        raise InputError(which(name, self.inputs, self.definition.name))

    def many(
        self, messages: Many | Mapping[str, Many], input: str | None
    ) -> dict[str, pa.Table | list[Message]]:
        """Return the user's messages by input."""
        if isinstance(messages, Mapping) and self.definition.by_input:
            return {self.input(name).name: many_of(batch) for name, batch in messages.items()}
        return {self.input(input).name: many_of(messages)}

    def ingest_messages(self, many: Mapping[str, pa.Table | list[Message]]) -> None:
        """Ingest messages as one step, in position order, whatever the order of arrival."""
        tables: dict[str, pa.Table] = {}
        passed = NOTHING
        for name, batch in many.items():
            table, done = self._table_for(self.input(name), batch, tables)
            passed = passed.then(done)
            # A table without rows declares the columns of its input before the first message does.
            if len(table) or (isinstance(batch, pa.Table) and not len(batch) and self.definition.by_input):
                tables[name] = table
        if tables:
            self.engine.ingest_and_advance(tables, passed, prepared=self._with_declared(tables))
        else:
            self.engine.leave(passed)

    def _table_for(
        self, input: Input, messages: pa.Table | list[Message], other_inputs: Mapping[str, pa.Table]
    ) -> tuple[pa.Table, Passed]:
        """New messages of an input as a slice; their sources carry the input's name."""
        if isinstance(messages, pa.Table):
            check_places(messages.schema, self._needs(input, other_inputs))
            if _is_unreadable(messages):
                messages = self._with_needed(input, messages, other_inputs)
            elif len(messages):
                self.check(input, messages, other_inputs)
            table, passed = self._placed_table(input, messages)
            time = None if input.time_made else input.event_time
            return admitted(table, self.known(input), self._needs(input, other_inputs), time), passed
        if messages:
            self.check(input, messages, other_inputs)
        placed = self.place(input, messages, in_position_order=True)
        counts = {"replayed": len(messages) - len(placed.messages)}
        return self.table_of(input, placed, counts, other_inputs=other_inputs), Passed(
            counts, placed.ordinals
        )

    def _with_needed(
        self, input: Input, messages: pa.Table, other_inputs: Mapping[str, pa.Table]
    ) -> pa.Table:
        """Give records of which none could be read the columns that the input needs: decoders without a schema learn columns
        from records."""
        while True:
            try:
                self._needs(input, other_inputs).check(None, messages.column_names)
            except UnknownColumn as error:
                if error.column is None or error.column in messages.column_names:
                    raise
                messages = messages.append_column(error.column, pa.nulls(len(messages)))
            else:
                return messages

    def _placed_table(self, input: Input, messages: pa.Table) -> tuple[pa.Table, Passed]:
        prefix = input.source_prefix
        ids = () if self.definition.ids is None else self.definition.ids.columns
        keys = (name for name in self.definition.columns_of(input) if name != input.event_time)
        check_keys((*keys, *ids), messages.schema)
        reached = {
            (s.removeprefix(prefix), p): n
            for (s, p), n in self.engine.staged.offsets.items()
            if s.startswith(prefix)
        }
        table = with_positions(messages, input.positions, reached)
        table = with_prefix(prefix, table)
        return table, Passed({"replayed": len(messages) - len(table)})

    def place(self, input: Input, messages: Sequence[Message], *, in_position_order: bool) -> Placed:
        """Return an input's messages that are new, with their positions."""
        staged = self.engine.staged
        reached = staged.offsets, staged.ordinals
        return place(input.source_prefix, messages, *reached, in_position_order=in_position_order)

    def table_of(
        self,
        input: Input,
        placed: Placed,
        counts: dict[str, int],
        *,
        other_inputs: Mapping[str, pa.Table] | None = None,
    ) -> pa.Table:
        """Return messages of an input as a slice. counts: their counters are added to it."""
        known, needs = self.known(input), self._needs(input, other_inputs or {})
        time = None if input.time_made else input.event_time
        table = table_of(
            placed.messages,
            placed.positions,
            event_time=time,
            time_zone=input.time_zone,
            event_time_unit=input.event_time_unit,
            schema=known,
            needs=needs,
            counts=counts,
        )
        return compared_within(table, known, needs, time)

    def check(
        self,
        input: Input,
        messages: pa.Table | Sequence[Message],
        other_inputs: Mapping[str, pa.Table],
    ) -> None:
        """Raise `UnknownColumn` where the first messages of an input lack a column that it needs."""
        if input.name not in self._checked:
            if isinstance(messages, pa.Table):
                names, types = set(messages.column_names), messages.schema
            else:
                names, types = {n for m in messages for n in m.payload if is_name(n)}, _nested(messages)
            known = self.known(input)
            if len(types):
                known = _with_types(known, types)
            self._needs(input, other_inputs).check(known, names)
            self._checked.add(input.name)

    def teaches(self, input: Input, table: pa.Table) -> bool:
        """True if messages have a column that the stream did not have before, or in a wider type."""
        known, needs = self.known(input), self._needs(input, {})
        named = needs.named(table.column_names)
        types = {} if known is None else {f.name: plain_type(f.type) for f in known}
        return any(
            types.get(field.name) != field.type
            for field in table.schema
            if field.name != input.event_time
            and not field.name.startswith("__")
            and (needs.whole or field.name in named)
        )

    def known(self, input: Input) -> pa.Schema | None:
        """Return the columns of an input as known so far, or declared."""
        known = self.logic.schema_of(self.engine.staged.overlay, input.name)
        if input.name not in self.declared:
            return known
        declared = self.declared[input.name]
        return declared if known is None else learn(known, _columns(declared, input))

    def _needs(self, input: Input, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.logic.needs_of(self.engine.staged.overlay, input.name, other_inputs)

    def _with_declared(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Add an input without messages to a step, with its declared columns."""
        whole = dict(tables)
        for name, declared in self.declared.items() if self.definition.by_input else ():
            input = self.input(name)
            schema = _with_instants(declared, input)
            whole[name] = schema.empty_table()
            if name in tables:
                table, columns = tables[name], _columns(schema, input)
                learn(columns, table.schema)  # raises for types that do not fit
                if input.event_time in schema.names and not input.time_made:
                    kind = schema.field(input.event_time).type
                    table = in_known_times(
                        table, input.event_time, input.time_zone, kind, input.event_time_unit
                    )
                whole[name] = concat([columns.empty_table(), table])
        return whole

    def columns(self) -> list[str]:
        """Return the columns of a join's rows as known so far; of an operator with one input, its own."""
        known: list[str] = self.logic.columns(self.engine.staged.overlay)
        return known or [name for schema in self.declared.values() for name in schema.names]


def _columns(schema: pa.Schema, input: Input) -> pa.Schema:
    """Declared columns but the event time, which is read whatever form it has."""
    return pa.schema([field for field in schema if field.name != input.event_time])


def _with_instants(schema: pa.Schema, input: Input) -> pa.Schema:
    """Declared columns; event times of a declared date or timestamp are instants.

    So rows of a join have event times of the declared type on both sides, whichever input comes first.
    """
    if input.event_time not in schema.names or input.time_made:
        return schema
    at = schema.get_field_index(input.event_time)
    kind = schema.field(at).type
    if not pa.types.is_date(kind) and not pa.types.is_timestamp(kind):
        return schema
    return schema.set(
        at, schema.field(at).with_type(pa.timestamp("us" if pa.types.is_date(kind) else kind.unit, "UTC"))
    )


def declared_of(inputs: Sequence[Input], schema: Schemas | None, name: str) -> dict[str, pa.Schema]:
    """Return `open(schema=)` by input."""
    if schema is None:
        return {}
    names = [i.name for i in inputs]
    if isinstance(schema, pa.Schema):
        if len(inputs) > 1:
            raise InputError(
                f"schema= of {name!r}, which has the inputs {names}: give a dict of a schema by input"
            )
        return {names[0]: schema}
    if not isinstance(schema, Mapping) or not all(isinstance(s, pa.Schema) for s in schema.values()):
        raise InputError(
            f"schema={schema!r:.200} of {name!r}: give a pyarrow schema, or a dict of one by input, of {names}"
        )
    for input_name in schema:
        if input_name not in names:
            raise InputError(f"schema= of {input_name!r}, which is no input of {name!r}: it has {names}")
    return dict(schema)


def _with_types(known: pa.Schema | None, seen: pa.Schema) -> pa.Schema:
    """Merge known columns with those of a table, whose types replace null types."""
    fields = {f.name: f for f in known or ()}
    for field in seen:
        untyped = field.name not in fields or pa.types.is_null(fields[field.name].type)
        if untyped and not field.name.startswith("__"):
            fields[field.name] = pa.field(field.name, plain_type(field.type))
    return pa.schema(fields.values())


def _nested(messages: Sequence[Message]) -> pa.Schema:
    """Return the types of lists and structs in the first of these messages."""
    values: dict[str, list[Any]] = {}
    for message in messages[:_LOOKED_AT]:
        for name, value in message.payload.items():
            if isinstance(value, (dict, list)) and is_name(name):
                values.setdefault(name, []).append(value)
    types = {}
    for name, held in values.items():
        with suppress(pa.ArrowException, OverflowError):  # the error is reported when the message is read
            types[name] = pa.array(held).type
    return pa.schema(types.items())


def _is_unreadable(messages: pa.Table) -> bool:
    """True if no record of a table could be read."""
    return MALFORMED_ROW in messages.column_names and messages.column(MALFORMED_ROW).null_count == 0
