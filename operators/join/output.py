"""Output rows of a join: their columns, and how pairs become rows. Semantics "Joins", "Columns"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.column_types import compared
from windrow.core.errors import ReservedColumn, TypeClash
from windrow.core.expressions import Expr
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.types import as_type
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows
from windrow.operators.steps.output_rows import output_schema

#: Instead of a row: the other side has none.
NOBODY = -1


#: Output names of the columns of the left, and of the right input, in the rows of pairs. Keys have their left name.
Names: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]


def prefixes(definition: JoinDefinition) -> tuple[str, str]:
    """Return the prefixes of column names that both inputs have."""
    if definition.is_self_join:
        return ("left", "right")
    return (definition.left.name, definition.right.name)


def named(
    definition: JoinDefinition, left: Iterable[str], right: Iterable[str], chosen_names: Names | None = None
) -> Names:
    """Return the output names of columns. A column with a chosen name keeps it. A new one keeps its own name. It is prefixed
    with the input's name if the other input, a key or another column has that name."""
    outputs: tuple[dict[str, str], dict[str, str]] = (
        ({}, {}) if chosen_names is None else (dict(chosen_names[0]), dict(chosen_names[1]))
    )
    of_left = [n for n in left if n not in definition.left_keys]
    of_right = [n for n in right if n not in definition.right_keys]
    others: tuple[set[str], set[str]] = ({*of_right}, {*of_left, *definition.left_keys})
    taken = {*definition.left_keys, *outputs[0].values(), *outputs[1].values()}
    for side, names in enumerate((of_left, of_right)):
        prefix = prefixes(definition)[side]
        for name in names:
            if name in outputs[side]:
                continue
            called = f"{prefix}_{name}" if name in others[side] else name
            while called in taken:
                called = f"{prefix}_{called}"
            outputs[side][name] = called
            taken.add(called)
    return outputs


@dataclass(frozen=True)
class Columns:
    """The columns of a join's rows.

    keys: (name, left column, right column, type); left, right: (name, column). called: the names of all columns of pairs,
    emitted or not.
    """

    keys: tuple[tuple[str, str, str, pa.DataType], ...]
    left: tuple[tuple[str, str], ...]
    right: tuple[tuple[str, str], ...]
    called: Names

    @classmethod
    def of(
        cls, definition: JoinDefinition, left: pa.Schema, right: pa.Schema, chosen_names: Names | None = None
    ) -> Columns:
        """Return the columns for the schemas of both inputs; an unseen one has keys and event time. chosen_names: stay."""
        keys = tuple(
            (a, a, b, _common(definition, _field(left, a), _field(right, b))) for a, b in definition.on
        )
        called = named(definition, left.names, right.names, chosen_names)
        if definition.how in ("semi", "anti"):
            lefts = [n for n in left.names if n not in definition.left_keys]
            columns = cls(keys, tuple((n, n) for n in lefts), (), called)
        else:
            emitted = [
                tuple((names[n], n) for n in schema.names if n in names)
                for names, schema in zip(called, (left, right), strict=True)
            ]
            columns = cls(keys, emitted[0], emitted[1], called)
        columns._check(definition)
        return columns

    @property
    def names(self) -> list[str]:
        return [k[0] for k in self.keys] + [n for n, _ in (*self.left, *self.right)]

    def _check(self, definition: JoinDefinition) -> None:
        taken = [n for n in self.names if n in RESERVED_COLUMNS]
        if taken:
            raise ReservedColumn(
                f"the rows of {definition.name!r} would have a column {taken[0]!r}, which is one of ours "
                f"({', '.join(RESERVED_COLUMNS)}): rename it in the input"
            )

    def rows(self, left: pa.Table, right: pa.Table, li: IntArray, ri: IntArray) -> pa.Table:
        """Return the rows of pairs (left row, right row), either of which may be NOBODY."""
        columns, names = [], []
        at_left, at_right = _indices(li), _indices(ri)
        for key in self.keys:
            columns.append(self._key(key, left, right, li, ri))
            names.append(key[0])
        for pairs, table, indices in ((self.left, left, at_left), (self.right, right, at_right)):
            for name, source in pairs:
                columns.append(combine(table.column(source)).take(indices))
                names.append(name)
        if not columns:
            return pa.table({"__pair": at_left})
        return pa.table(columns, names=names)

    def _key(
        self,
        key: tuple[str, str, str, pa.DataType],
        left: pa.Table,
        right: pa.Table,
        li: IntArray,
        ri: IntArray,
    ) -> pa.Array:
        _, a, b, kind = key
        column = as_type(combine(left.column(a)), kind).take(_indices(li))
        if (li == NOBODY).any():
            column = pc.coalesce(column, as_type(combine(right.column(b)), kind).take(_indices(ri)))
        return column

    def looked_at(
        self,
        definition: JoinDefinition,
        condition: Expr,
        left: pa.Table,
        right: pa.Table,
        li: IntArray,
        ri: IntArray,
    ) -> pa.Table:
        """Return the columns of pairs that a condition names, under their output names or with their input's name as prefix."""
        columns = {"__pair": _indices(li)}
        for key in self.keys:
            if condition.mentions(key[0]):
                columns[key[0]] = self._key(key, left, right, li, ri)
        sides = list(zip(self.called, prefixes(definition), (left, right), (li, ri), strict=True))
        for whole in (False, True):
            for called, prefix, table, rows in sides:
                there = set(table.column_names)
                for source, name in called.items():
                    name = f"{prefix}_{source}" if whole else name
                    if name not in columns and source in there and condition.mentions(name):
                        columns[name] = combine(table.column(source)).take(_indices(rows))
        return pa.table(columns)


def _indices(rows: IntArray) -> pa.Array:
    return pa.array(rows, mask=rows == NOBODY)


def _field(schema: pa.Schema, name: str) -> pa.Field:
    return schema.field(name) if name in schema.names else pa.field(name, pa.null())


def _common(definition: JoinDefinition, a: pa.Field, b: pa.Field) -> pa.DataType:
    """Return the type in which two keys are compared."""
    common = compared(a, b)
    if common is None:
        raise TypeClash(
            f"key {a.name!r} of {definition.left.name!r} is {a.type}, key {b.name!r} of {definition.right.name!r} is {b.type}, "
            "which cannot be compared: cast one of them before it reaches the join"
        )
    return common.type


def joined_schema(columns: Columns, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return the schema of a join's rows."""
    fields = [pa.field(name, kind) for name, _, _, kind in columns.keys]
    for pairs, schema in ((columns.left, left), (columns.right, right)):
        fields += [pa.field(name, schema.field(source).type) for name, source in pairs]
    return output_schema(fields)


def alone(table: Slice, side: int, sides: Sequence[pa.Schema], columns: Columns) -> pa.Table:
    """Return rows of unmatched messages of one side."""
    none = np.full(len(table), NOBODY, dtype=np.int64)
    rows = np.arange(len(table), dtype=np.int64)
    nobody = empty_rows(sides[1 - side])
    if side == 0:
        return columns.rows(table.table, nobody, rows, none)
    return columns.rows(nobody, table.table, none, rows)
