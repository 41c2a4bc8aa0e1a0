"""The input's schema as an operator knows it: columns may be added, types may widen; only what is needed is learnt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from windrow.core.aggregations import Aggregation
from windrow.core.definition import RESERVED_COLUMNS, AggregateDefinition
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.join import JoinDefinition
from windrow.core.types import as_type, is_key, widened
from windrow.operators.aggregations import KERNELS
from windrow.operators.groups import combine
from windrow.operators.join_output import Names, prefixes


def learn(known: pa.Schema | None, seen: pa.Schema, only: Collection[str] | None = None) -> pa.Schema:
    """The schema after a slice with `seen` columns (of them `only`); system columns (two underscores) are no part of it."""
    types = {} if known is None else {f.name: f.type for f in known if only is None or f.name in only}
    for field in seen:
        name = field.name
        if name.startswith("__") or (only is not None and name not in only):
            continue
        kind = widened(types.get(name, pa.null()), field.type)
        if kind is None:
            raise TypeClash(
                f"column {name!r} of the input was {types[name]} and is now {field.type}, which do not go together: cast it "
                "to its former type before it reaches the operator"
            )
        types[name] = kind
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


def in_learnt_types(table: pa.Table, schema: pa.Schema, event_time: str) -> pa.Table:
    """The columns of `schema` in its types; the others, and times, which are read as integers, as they came."""
    for i, field in enumerate(table.schema):
        if field.name == event_time or field.name not in schema.names:
            continue
        if field.type != schema.field(field.name).type:
            kind = schema.field(field.name).type
            table = table.set_column(i, pa.field(field.name, kind), as_type(table.column(i), kind))
    return table


def key_refusal(name: str, kind: pa.DataType) -> str | None:
    """Why a column of that type cannot be a key; None where it can."""
    if is_key(kind):
        return None
    return (
        f"key {name!r} is of type {kind}: keys are text, bytes, numbers, booleans, dates or times; make one of it, "
        "e.g. cast it to text, or take one of its fields"
    )


def check_keys(names: Iterable[str], schema: pa.Schema) -> None:
    """Raise `TypeClash` where a key is of a type that cannot be one."""
    for name in names:
        if name in schema.names:
            refusal = key_refusal(name, schema.field(name).type)
            if refusal is not None:
                raise TypeClash(refusal)


class Needs(Protocol):
    """What an operator needs of the columns of an input."""

    #: True if messages are kept with all of their columns.
    whole: bool

    def named(self, names: Iterable[str]) -> set[str]:
        """Those of the columns that the definition names: a message in which one of them cannot be read does not count."""
        ...

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        """The columns that no message may have, and why."""
        ...

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        """Why a column cannot be of that type, where the others are of the `known` ones; None where it can."""
        ...


class AggregateNeeds:
    """Of an aggregate: keys, event time, ids, what is aggregated or filtered by."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.whole = definition.full_state and any(_whole(a) for a in definition.agg.values())
        ids = () if definition.ids is None else definition.ids.columns
        self.keys = (*definition.by, *ids)
        self._names = {definition.event_time, *self.keys}
        for aggregation in definition.agg.values():
            self._names.update(aggregation.columns)

    def named(self, names: Iterable[str]) -> set[str]:
        uses = [u for a in self.definition.agg.values() for u in _expressions(a)]
        return {n for n in names if n in self._names or any(u.mentions(n) for u in uses)}

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        refusal = key_refusal(name, kind) if name in self.keys else None
        if refusal is not None:
            return refusal
        types = {**known, name: kind}
        options = {"integer_overflow": self.definition.integer_overflow}
        for aggregation in self.definition.agg.values():
            uses = _expressions(aggregation)
            if name not in aggregation.columns and not any(u.mentions(name) for u in uses):
                continue
            empty = pa.schema(list(types.items())).empty_table()
            try:
                for condition in uses:
                    condition.evaluate(empty)
                if aggregation.kind in KERNELS:
                    found = tuple(
                        combine(a.evaluate(empty)).type if isinstance(a, Expr) else types.get(a, pa.null())
                        for a in aggregation.args
                    )
                    KERNELS[aggregation.kind](aggregation, found, options)
            except (TypeClash, UnknownColumn) as error:
                return error.message
        return None


class JoinNeeds:
    """Of one input of a join: keys, event time, what the condition names. All messages are kept whole."""

    whole = True

    def __init__(
        self, definition: JoinDefinition, side: int, sides: Sequence[pa.Schema], called: Names | None
    ) -> None:
        given = (definition.left, definition.right)[side]
        self._definition, self._side, self._sides, self._called = definition, side, sides, called
        self._where = None if definition.where is None else definition.where.expression
        #: Keys and event time.
        self.required = {given.event_time, *(pair[side] for pair in definition.on)}
        self._prefixes = {prefixes(definition)[side]}
        if definition.is_self_join:
            self._prefixes.update(prefixes(definition))
            self.required.update(name for pair in definition.on for name in pair)

    def named(self, names: Iterable[str]) -> set[str]:
        return {n for n in names if n in self.required or self._mentioned(n)}

    def _mentioned(self, name: str) -> bool:
        where = self._where
        return where is not None and any(
            where.mentions(n) for n in (name, *(f"{prefix}_{name}" for prefix in self._prefixes))
        )

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        """New columns that would stand in rows under a name of ours, or one that another column has."""
        definition = self._definition
        left_only = definition.how in ("semi", "anti")
        if left_only and self._side == 1:
            return {}
        known = {*self._sides[self._side].names, *self.required}
        taken = (
            {}
            if left_only or self._called is None
            else {c: n for side in self._called for n, c in side.items()}
        )
        found = {}
        for name in names:
            if name in known:
                continue
            if name in RESERVED_COLUMNS:
                found[name] = (
                    f"column {name!r} is one of ours ({', '.join(RESERVED_COLUMNS)}): rename it in the input"
                )
            elif taken.get(name, name) != name:
                found[name] = (
                    f"column {name!r} of the rows is {taken[name]!r} of an input: rename it in the input"
                )
        return found

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        itself = self._definition.is_self_join
        for pair in self._definition.on:
            if name in (pair if itself else pair[self._side : self._side + 1]):
                refusal = key_refusal(name, kind)
                if refusal is not None:
                    return refusal
            for side in (0, 1) if itself else (self._side,):
                partner, schema = pair[1 - side], self._sides[1 - side]
                if pair[side] != name or (itself and partner == name):
                    continue
                other = schema.field(partner).type if partner in schema.names else pa.null()
                if itself:
                    other = known.get(partner, other)
                if widened(kind, other) is None:
                    return f"key {name!r} is {kind}, its partner {partner!r} is {other}, which cannot be compared"
        return None


def _whole(aggregation: Aggregation) -> bool:
    """True if messages are kept with all of their columns for it."""
    return aggregation.kind == "table_function" or bool(_expressions(aggregation))


def _expressions(aggregation: Aggregation) -> list[Expr]:
    uses = [a for a in aggregation.args if isinstance(a, Expr)]
    return uses if aggregation.condition is None else [*uses, aggregation.condition]
