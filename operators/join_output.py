"""Rows of a join: which columns they have, and how pairs become them. Semantics "Joins", "Columns"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.definition import RESERVED_COLUMNS
from windrow.core.errors import ReservedColumn, TypeClash
from windrow.core.join import JoinDefinition
from windrow.core.messages import JoinedRow, Timing, Token
from windrow.core.types import as_type, concat, widened
from windrow.operators.columns import TIMING
from windrow.operators.groups import combine
from windrow.operators.output import PANE_TYPE

IntArray = npt.NDArray[np.int64]
#: Instead of a row: the other side has none.
NOBODY = -1


@dataclass(frozen=True)
class Columns:
    """The columns of a join's rows.

    keys: (name, left column, right column, type); left, right: (name, column).
    """

    keys: tuple[tuple[str, str, str, pa.DataType], ...]
    left: tuple[tuple[str, str], ...]
    right: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, definition: JoinDefinition, left: pa.Schema, right: pa.Schema, *, both: bool = False
    ) -> Columns:
        """From the schemas of both inputs; one that was never seen is empty. `both`: of pairs, whatever is told of them."""
        keys = tuple(
            (a, a, b, _common(definition, _type(left, a), _type(right, b), a, b)) for a, b in definition.on
        )
        lefts = [n for n in left.names if n not in definition.left_keys]
        if definition.how in ("semi", "anti") and not both:
            made = cls(keys, tuple((n, n) for n in lefts), ())
        else:
            rights = [n for n in right.names if n not in definition.right_keys]
            twice = set(lefts) & set(rights)
            names = [k[0] for k in keys]
            a, b = (
                ("left", "right")
                if definition.is_self_join
                else (definition.left.name, definition.right.name)
            )
            made = cls(
                keys,
                tuple((f"{a}_{n}" if n in twice else n, n) for n in lefts),
                tuple((f"{b}_{n}" if n in twice or n in names else n, n) for n in rights),
            )
        made._check(definition)
        return made

    @property
    def names(self) -> list[str]:
        return [k[0] for k in self.keys] + [n for n, _ in (*self.left, *self.right)]

    def _check(self, definition: JoinDefinition) -> None:
        names = self.names
        taken = [n for n in names if n in RESERVED_COLUMNS or names.count(n) > 1]
        if taken:
            raise ReservedColumn(
                f"the rows of {definition.name!r} would have a column {taken[0]!r} twice, or one of ours "
                f"({', '.join(RESERVED_COLUMNS)}): rename it in the input"
            )

    def rows(self, left: pa.Table, right: pa.Table, li: IntArray, ri: IntArray) -> pa.Table:
        """The rows of pairs (left row, right row), either of which may be NOBODY."""
        columns, names = [], []
        mine, theirs = _indices(li), _indices(ri)
        for name, a, b, kind in self.keys:
            column = as_type(combine(left.column(a)), kind).take(mine)
            if (li == NOBODY).any():
                column = pc.coalesce(column, as_type(combine(right.column(b)), kind).take(theirs))
            columns.append(column)
            names.append(name)
        for pairs, table, indices in ((self.left, left, mine), (self.right, right, theirs)):
            for name, source in pairs:
                columns.append(combine(table.column(source)).take(indices))
                names.append(name)
        if not columns:
            return pa.table({"__pair": mine})
        return pa.table(columns, names=names)


def _indices(rows: IntArray) -> pa.Array:
    return pa.array(rows, mask=rows == NOBODY)


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if name in schema.names else pa.null()


def _common(definition: JoinDefinition, a: pa.DataType, b: pa.DataType, left: str, right: str) -> pa.DataType:
    """The type in which two keys are compared."""
    kind = widened(a, b)
    if kind is None:
        raise TypeClash(
            f"key {left!r} of {definition.left.name!r} is {a}, key {right!r} of {definition.right.name!r} is {b}, which "
            "cannot be compared: cast one of them before it reaches the join"
        )
    return kind


def labelled(rows: pa.Table, timing: str) -> pa.Table:
    """Rows with the timing of their emission."""
    return rows.append_column(TIMING, pa.array([timing] * len(rows), pa.string()))


def joined_rows(told: Sequence[pa.Table], commit: int) -> pa.Table:
    """Rows of the steps of a commit, with the columns of a pane: each is told once, and for good."""
    tables = []
    for rows in told:
        n = len(rows)
        timings = combine(rows.column(TIMING))
        labels = [
            timings,
            pa.array(np.zeros(n, dtype=np.int32)),
            pa.array([True] * n),
            pa.array(["INSERT"] * n),
        ]
        tables.append(
            rows.drop_columns([TIMING])
            .append_column("pane", pa.StructArray.from_arrays(labels, fields=list(PANE_TYPE)))
            .append_column("commit", pa.array(np.full(n, commit, dtype=np.int64)))
        )
    return concat(tables)


def letters_by_input(letters: pa.Table | None) -> pa.Table | None:
    """Dead letters with the sources that whoever fed them gave: their inputs stand in a column of their own."""
    if letters is None:
        return None
    sources = [
        None if source is None else source.removeprefix(f"{name}:")
        for source, name in zip(*(letters.column(c).to_pylist() for c in ("source", "input")), strict=True)
    ]
    where = letters.column_names.index("source")
    return letters.set_column(where, "source", pa.array(sources, pa.string()))


def to_joined(rows: pa.Table, job: str) -> Iterator[JoinedRow]:
    """Rows of a join as Python values."""
    for row in rows.to_pylist():
        label, commit = row.pop("pane"), row.pop("commit")
        yield JoinedRow(row, Timing(label["timing"]), commit, Token(job, commit))


def joined_schema(columns: Columns, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The schema of `joined_rows`."""
    fields = [pa.field(name, kind) for name, _, _, kind in columns.keys]
    for pairs, schema in ((columns.left, left), (columns.right, right)):
        fields += [pa.field(name, schema.field(source).type) for name, source in pairs]
    return pa.schema([*fields, pa.field("pane", PANE_TYPE), pa.field("commit", pa.int64())])
