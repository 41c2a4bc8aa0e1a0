"""Tagged union of several inputs: the aggregate that does the work, and the rows that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation
from windrow.core.column_types import compared
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.positions import Ids
from windrow.core.time import to_datetime
from windrow.core.types import as_type
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.required_columns import AggregateNeeds
from windrow.operators.aggregations.calculation import with_columns_of
from windrow.operators.aggregations.required_columns import mentioned
from windrow.operators.cogroup.definition import (
    PASSES,
    TIME,
    WHICH,
    CoGroupDefinition,
    column,
    ending,
    marker,
)
from windrow.operators.steps.columns import POSITION_COLUMNS, SOURCE, STEP
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.output_columns import STAMP


class OfInput(Expr):
    """An expression over the columns of one input, or over columns of all, evaluated on united rows.

    Rows of other inputs have null, whatever the expression makes of nulls.
    """

    __slots__ = ("input", "plain")

    def __init__(self, plain: Expr, input: str | None) -> None:
        super().__init__(plain.expression)
        self.plain, self.input = plain, input

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfInput) and (self.plain, self.input) == (other.plain, other.input)

    def __hash__(self) -> int:
        return hash((self.plain, self.input))

    def __repr__(self) -> str:
        return f"{self.plain}{ending(self.input)}"

    def mentions(self, name: str) -> bool:
        if self.input is not None and name == marker(self.input):
            return True
        end = ending(self.input)
        return name.endswith(end) and self.plain.mentions(name.removesuffix(end))

    def _evaluated(self, table: pa.Table) -> pa.ChunkedArray:
        end = ending(self.input)
        names = [n for n in table.column_names if n.endswith(end)]
        # The time is selected, too, for the number of rows.
        rows = table.select([TIME, *names]).rename_columns([TIME, *(n.removesuffix(end) for n in names)])
        of_input = None if self.input is None else _truth(table.column(marker(self.input)))
        if of_input is None or of_input.all():
            return self._over(rows)
        value = combine(self._over(rows.filter(pa.array(of_input))))
        places = np.where(of_input, np.cumsum(of_input) - 1, 0)
        return pa.chunked_array([value.take(pa.array(places, mask=~of_input))])

    def _over(self, rows: pa.Table) -> pa.ChunkedArray:
        try:
            return self.plain.evaluate(rows)
        except UnknownColumn as error:
            if error.column is None:
                raise
            names = [n for n in rows.column_names if n != TIME]
            raise UnknownColumn.lacking(column(error.column, self.input), error.of, names) from None


def _truth(values: pa.ChunkedArray) -> Any:
    return combine(values).cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)


def _own(function: Any, input: str | None, table: pa.Table) -> Any:
    """Return the result of a function of messages, on those of one input with their own columns."""
    end = ending(input)
    own = {n: n.removesuffix(end) for n in table.column_names if n.endswith(end)}
    own |= {n: n for n in table.column_names if n in POSITION_COLUMNS}
    return function(table.select([*own]).rename_columns([*own.values()]))


class ByInput:
    """A class of the user's with a method for each input, over united rows.

    Its arguments are, for each of the inputs, whether the row is of it, and the columns that it takes of such rows.
    """

    def __init__(self, body: Any, counts: Sequence[tuple[str, int]]) -> None:
        self.initial, self.merge, self.finish = body.initial, body.merge, body.finish
        self._adds = [(getattr(body, f"add_{name}"), count) for name, count in counts]

    def add(self, state: Any, *values: Any) -> Any:
        at = 0
        for add, count in self._adds:
            if values[at]:
                return add(state, *values[at + 1 : at + 1 + count])
            at += 1 + count
        return state


def _shared(aggregation: Aggregation) -> Aggregation:
    """Return an aggregation of several inputs as one of united rows."""
    args: list[str | Expr] = []
    for name, taken in aggregation.shares:
        args += [marker(name), *(_place(one, name) for one in taken)]
    assert aggregation.function is not None
    body = ByInput(aggregation.function.body, [(name, len(taken)) for name, taken in aggregation.shares])
    function = replace(aggregation.function, body=body, adds=())
    # Null of rows of other inputs is nothing that has been added.
    one_of_them = reduce(or_, (pc.field(marker(name)).is_valid() for name, _ in aggregation.shares))
    return replace(aggregation, args=tuple(args), condition=Expr(one_of_them), function=function, shares=())


def _place(argument: str | Expr, input: str | None) -> str | Expr:
    return OfInput(argument, input) if isinstance(argument, Expr) else column(argument, input)


def _united(aggregation: Aggregation) -> Aggregation:
    """Return an aggregation of an input as one of united rows."""
    if aggregation.shares:
        return _shared(aggregation)
    input, condition, function = aggregation.input, aggregation.condition, aggregation.function
    if condition is not None:
        condition = OfInput(condition, input)
    elif input is not None:
        condition = Expr(pc.field(marker(input)))
    if function is not None and function.whole_table:
        function = replace(function, body=partial(_own, function.body, input))
    args = tuple(_place(a, input) for a in aggregation.args)
    return replace(aggregation, args=args, condition=condition, function=function, input=None)


def united(definition: CoGroupDefinition) -> AggregateDefinition:
    """Return the aggregate of united rows."""
    ids = definition.ids
    return _aggregate(
        definition,
        agg={alias: _united(a) for alias, a in definition.agg.items()},
        where=Expr(pc.field(PASSES)) if any(i.where is not None for i in definition.inputs) else None,
        ids=None if ids is None else Ids((WHICH, *(column(name, None) for name in ids.columns))),
    )


def alone(definition: CoGroupDefinition, input: Input) -> AggregateDefinition:
    """Return the aggregations of one input as an aggregate of it alone."""
    parts = {alias: a.part(input.name) for alias, a in definition.agg.items()}
    own = {alias: replace(part, input=None) for alias, part in parts.items() if part is not None}
    return _aggregate(
        definition,
        agg=own,
        by=definition.keys(input),
        event_time=input.event_time,
        watermark=input.watermark,
        time_zone=input.time_zone,
        event_time_unit=input.event_time_unit,
        max_ahead_us=input.max_ahead_us,
        positions=input.positions,
        input_name=input.name,
        where=input.where,
        deliver=input.deliver,
        since_us=tuple(one for one in definition.since_us if one[0] in own),
        recomputed_us=tuple(one for one in definition.recomputed_us if one[0] in own),
    )


def _aggregate(definition: CoGroupDefinition, **changes: Any) -> AggregateDefinition:
    made = object.__new__(AggregateDefinition)
    for field in fields(AggregateDefinition):
        object.__setattr__(made, field.name, changes.get(field.name, getattr(definition, field.name)))
    return made


class United:
    """The tagged union of the inputs of a definition. Holds no state."""

    def __init__(self, definition: CoGroupDefinition) -> None:
        self.definition, self.one = definition, united(definition)
        self.alone = {i.name: alone(definition, i) for i in definition.inputs}
        self.needs = {name: AggregateNeeds(one) for name, one in self.alone.items()}
        self._schemas: Mapping[str, pa.Schema] | None = None
        self._schema = pa.schema([])

    def places(self, stream: Input, names: Sequence[str]) -> dict[str, str]:
        """Return the united columns that rows of an input have, besides time, with its own name for each."""
        found = dict(zip(self.definition.by, self.definition.keys(stream), strict=True))
        every = self.definition.agg.values()
        own = [part for a in every if not a.of_all and (part := a.part(stream.name)) is not None]
        for input, aggregations in ((stream.name, own), (None, [a for a in every if a.of_all])):
            found |= {column(name, input): name for name in _used(aggregations, names)}
        ids = () if self.definition.ids is None else self.definition.ids.columns
        return found | {column(name, None): name for name in ids}

    def takes_whole(self, input: Input) -> bool:
        """True if messages of an input are kept with all of their columns."""
        own = (a for a in self.definition.agg.values() if a.input == input.name)
        return any(a.kind == "table_function" for a in own)

    def schema(self, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        """Return the columns of united rows, over inputs of these. Raises `TypeClash` if those of one name cannot be one."""
        if self._schemas is None or self._schemas != schemas:
            self._schemas, self._schema = dict(schemas), self._schema_over(schemas)
        return self._schema

    def _schema_over(self, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        fields = {name: pa.field(name, pa.null()) for name in self.definition.by}
        first: dict[str, str] = {}
        for input in self.definition.inputs:
            schema = schemas.get(input.name, pa.schema([]))
            for name, own in self.places(input, schema.names).items():
                if own not in schema.names:
                    continue
                before = fields.get(name, pa.field(name, pa.null()))
                both = compared(before, schema.field(own))
                if both is None:
                    raise TypeClash(
                        f"column {own!r} of input {input.name!r} of {self.definition.name!r} is {schema.field(own).type}, "
                        f"and {before.type} in input {first[name]!r}, which do not go together: cast one of them"
                    )
                fields[name] = both
                first.setdefault(name, input.name)
        types = {name: field.type for name, field in fields.items()}
        types |= {TIME: pa.int64(), **{marker(i.name): pa.bool_() for i in self.definition.inputs}}
        types |= {} if self.one.where is None else {PASSES: pa.bool_()}
        types |= {} if self.one.ids is None else {WHICH: pa.string()}
        known = with_columns_of(self.one.agg.values(), pa.schema(list(types.items())))
        by = self.definition.by
        rest = sorted(name for name in known.names if name not in by)
        return pa.schema([known.field(name) for name in (*by, *rest)])

    def table(self, parts: Iterable[tuple[Input, Slice]], schema: pa.Schema) -> pa.Table:
        """Return the united rows of inputs, with their positions."""
        made = [self._part(input, rows, schema) for input, rows in parts]
        return pa.concat_tables(made) if made else schema.empty_table()

    def _part(self, input: Input, rows: Slice, schema: pa.Schema) -> pa.Table:
        table, n = rows.table, len(rows)
        places = self.places(input, user_columns(table))
        columns = []
        for field in schema:
            own = places.get(field.name)
            if field.name == TIME:
                columns.append(pa.array(rows.times))
            elif field.name == marker(input.name):
                columns.append(pa.array(np.ones(n, dtype=bool)))
            elif field.name == PASSES:
                filtered = input.where is not None
                columns.append(
                    combine(table.column(PASSES)) if filtered else pa.array(np.ones(n, dtype=bool))
                )
            elif field.name == WHICH:
                columns.append(pa.repeat(input.name, n))
            elif own in table.column_names:
                columns.append(as_type(combine(table.column(own)), field.type))
            else:
                columns.append(pa.nulls(n, field.type))
        made = pa.table(columns, schema=schema)
        for name in (*POSITION_COLUMNS, STEP):
            if name in table.column_names:
                made = made.append_column(name, table.column(name))
        return made

    def back(self, rows: Slice, input: Input) -> Slice:
        """Return the united rows of an input, under its own column names."""
        own_rows = rows.take(np.flatnonzero(_of(self.definition, rows.table.column(SOURCE), input)))
        called = self._called(input, own_rows.table.column_names)
        columns = {own: own_rows.table.column(name) for own, name in called.items()}
        if called[input.event_time] == TIME:
            columns[input.event_time] = columns[input.event_time].cast(STAMP)
        where = {name: own_rows.table.column(name) for name in POSITION_COLUMNS}
        return Slice(pa.table({**columns, **where}), own_rows.times)

    def payload(self, message: Mapping[str, Any], input: Input) -> dict[str, Any]:
        """Return a united message of an input, under its own column names."""
        called = self._called(input, message)
        found = {own: message[name] for own, name in called.items()}
        if called[input.event_time] == TIME:
            found[input.event_time] = to_datetime(message[TIME])
        return found

    def schema_of(self, input: Input, schema: pa.Schema) -> pa.Schema:
        """Return the columns of kept messages of an input, if united rows have these."""
        called = self._called(input, schema.names)
        kinds = {own: STAMP if name == TIME else schema.field(name).type for own, name in called.items()}
        return pa.schema(list(kinds.items()))

    def _called(self, input: Input, names: Iterable[str]) -> dict[str, str]:
        """Return the columns of an input, with the united name of each."""
        names = list(names)
        found = {input.event_time: TIME}
        found |= dict(zip(self.definition.keys(input), self.definition.by, strict=True))
        for end in (ending(None), ending(input.name)):
            found |= {name.removesuffix(end): name for name in names if name.endswith(end)}
        return found


def _of(definition: CoGroupDefinition, sources: pa.ChunkedArray, input: Input) -> Any:
    """True for rows whose source is of the input."""
    encoded = combine(sources).dictionary_encode()
    of = [definition.input_of(source).name == input.name for source in encoded.dictionary.to_pylist()]
    return np.array(of, dtype=bool)[encoded.indices.to_numpy(zero_copy_only=False)]


def _used(aggregations: Sequence[Aggregation], names: Sequence[str]) -> set[str]:
    """Return the names that aggregations take."""
    if any(a.kind == "table_function" for a in aggregations):
        return set(names)
    return {c for a in aggregations for c in a.columns if c in names} | mentioned(aggregations, names)
