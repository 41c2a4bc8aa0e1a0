"""Derived columns that an operator computes from those of its input: keys, and event time, by expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.errors import ConfigurationError
from windrow.core.expressions import Expr
from windrow.operators.steps.columns import MALFORMED_ROW, with_column
from windrow.operators.steps.groups import combine

#: Expressions of derived columns, by name. One replaces the input's column of the same name.
Makes: TypeAlias = tuple[tuple[str, Expr], ...]
#: The column of event time, where that is an expression.
EVENT_TIME = "event_time"
_KEYS = "name a column, several as by=('origin', 'carrier'), each by an expression as by={'name': ...}, or () for no key"


def keys_of(by: Any) -> tuple[tuple[str, ...], Makes]:
    """Return (the names of the key columns, the derived ones)."""
    if not isinstance(by, Mapping):
        return check.names(by, "by", _KEYS), ()
    makes = []
    for name, what in by.items():
        if isinstance(what, str) and what != name:
            what = pc.field(what)
        if isinstance(what, pc.Expression):
            makes.append((name, Expr(what)))
        elif what != name:
            raise ConfigurationError(f"by={{{name!r}: {what!r}}}: {_KEYS}")
    return check.names(by, "by", _KEYS), tuple(makes)


def time_of(event_time: Any) -> tuple[str, Makes]:
    """Return (the name of the column of event time, its derivation)."""
    if isinstance(event_time, pc.Expression):
        return EVENT_TIME, ((EVENT_TIME, Expr(event_time)),)
    remedy = "name the column that holds the time of the event, or give an expression of columns"
    return check.of_type(event_time, str, "event_time", remedy), ()


def with_derived(makes: Makes, table: pa.Table) -> pa.Table:
    """Return the table with its derived columns; malformed rows have none. Raises what Arrow raises."""
    if not makes:
        return table
    sound = np.ones(len(table), dtype=bool)
    if MALFORMED_ROW in table.column_names:
        sound = np.asarray(combine(table.column(MALFORMED_ROW)).is_null())
    sound_rows = table if sound.all() else table.filter(pa.array(sound))
    target = pa.array(np.where(sound, np.cumsum(sound) - 1, 0), mask=~sound)
    for name, expression in makes:
        table = with_column(table, name, combine(expression.evaluate(sound_rows, name)).take(target))
    return table


def made_schema(makes: Makes, schema: pa.Schema) -> pa.Schema:
    """Return the columns of an input with the derived ones."""
    return with_derived(makes, schema.empty_table()).schema if makes else schema


def raw(names: Sequence[str], makes: Makes) -> tuple[str, ...]:
    """Return those of the names that the input must have."""
    of_ours = {name for name, _ in makes}
    return tuple(name for name in names if name not in of_ours)
