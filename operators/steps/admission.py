"""Admission of a slice: the only way by which outside columns reach an operator, from whatever route.

Rows whose values cannot be counted are marked malformed, and name column and value; the others are in the types of the stream.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.column_types import brought, without
from windrow.core.errors import TypeClash
from windrow.core.faults import faults, without_place
from windrow.core.types import is_text, plain_type
from windrow.operators.steps.columns import RAW
from windrow.operators.steps.dead_letters import payloads
from windrow.operators.steps.poison_rows import marked
from windrow.operators.steps.schema_inference import Needs

#: Units of times that are read unchanged: times of others may be beyond the range of these.
_READ_UNITS = ("us", "ns")


def admitted(table: pa.Table, known: pa.Schema | None, needs: Needs, event_time: str | None) -> pa.Table:
    """Check the columns that an operator requires, and cast them to the known types.

    event_time: it keeps its type, which decides how it is read; None where it is made of other columns.
    """
    return compared_within(_admitted(table, known, needs, event_time), known, needs, event_time)


def compared_within(
    table: pa.Table, known: pa.Schema | None, needs: Needs, event_time: str | None
) -> pa.Table:
    """Check columns of a slice that are compared with each other, as in a self-join."""
    among = needs.among(table.schema)
    return table if among is None else _admitted(table, known, among, event_time)


def _admitted(table: pa.Table, known: pa.Schema | None, needs: Needs, event_time: str | None) -> pa.Table:
    wrong: dict[int, str] = {}
    admitted = table
    names = [n for n in table.column_names if not n.startswith("__")]
    needed = set(names) if needs.whole else needs.named(names)
    types = dict.fromkeys(names, pa.null()) | {f.name: plain_type(f.type) for f in known or ()}
    for i, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        name = field.name
        if (refused := without_place(field.type)) is not None:
            raise TypeClash(
                f"column {name!r} is of type {refused}, which no column has here: drop or cast it"
            )
        if name not in needed or (name == event_time and not _is_checked(field.type)):
            continue
        misfits = faults(column)
        whole = column = without(column, misfits)
        if name != event_time:
            before = (
                pa.field(name, pa.null()) if known is None or name not in known.names else known.field(name)
            )
            fitted = brought(column, before, needs.compared_with(name))
            if fitted is not None:  # else it is refused where it is learnt
                column, field, misfits = fitted.values, fitted.field, {**fitted.misfits, **misfits}
            kind = plain_type(field.type)
            why = None if kind == types[name] else needs.uncomputable(name, kind, types)
            if why is None:
                types[name] = kind
            else:
                for row in np.flatnonzero(column.is_valid()).tolist():
                    wrong.setdefault(row, why)
                column, field, misfits = pa.nulls(len(column), types[name]), field.with_type(types[name]), {}
        if misfits or column is not whole or field is not table.schema.field(i):
            admitted = admitted.set_column(i, field, column)
        for row, why in misfits.items():
            wrong.setdefault(row, f"{'event time' if name == event_time else 'column'} {name!r}: {why}")
    return _marked(admitted, table, wrong) if wrong else admitted


def check_places(schema: pa.Schema, needs: Needs) -> None:
    """Raise `TypeClash` on a type that no column has."""
    needed = set(schema.names) if needs.whole else needs.named(schema.names)
    for field in schema:
        if (refused := without_place(field.type, unnamed=field.name not in needed)) is not None:
            raise TypeClash(
                f"column {field.name!r} is of type {refused}, which no column has here: drop it, or cast it, an interval to "
                "text or a duration, a union to one of its types, before it reaches windrow"
            )


def _is_checked(kind: pa.DataType) -> bool:
    """True if event times of that type may be none that can be read."""
    return is_text(kind) or (pa.types.is_temporal(kind) and getattr(kind, "unit", "s") not in _READ_UNITS)


def _marked(derived: pa.Table, table: pa.Table, wrong: dict[int, str]) -> pa.Table:
    """Return the table with these rows malformed, each with its payload as it came."""
    derived = marked({"": derived}, {("", row): why for row, why in wrong.items()})[""]
    raw: list[str | None] = derived.column(RAW).to_pylist()
    for row, payload in zip(wrong, payloads(table.take(pa.array([*wrong]))), strict=True):
        raw[row] = payload if raw[row] is None else raw[row]
    return derived.set_column(derived.column_names.index(RAW), RAW, pa.array(raw, pa.string()))
