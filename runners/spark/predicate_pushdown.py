"""Pushdown of Spark's filters, as Arrow conditions and as bounds of the reads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from windrow.core.time import instant_us

_COMPARED = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass
class Pushed:
    """The accepted filters: all of them hold for every returned row. Picklable."""

    filters: list[Filter] = field(default_factory=list)

    def accept(self, condition: Filter, types: dict[str, pa.DataType]) -> bool:
        """True if the condition is taken. Floats are left to Spark, which compares NaN in its own way."""
        path = getattr(condition, "attribute", None)
        if not path or not isinstance(condition, (*_COMPARED, In, IsNull, IsNotNull)):
            return False
        kind = types.get(path[0])
        for name in path[1:]:
            if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                return False
            kind = kind.field(name).type
        if kind is None or not _is_comparable(kind):
            return False
        values = condition.value if isinstance(condition, In) else [getattr(condition, "value", None)]
        if any(isinstance(v, datetime) and v.tzinfo is None for v in values) and getattr(kind, "tz", None):
            return False
        if any(v is None for v in values) and not isinstance(condition, (IsNull, IsNotNull)):
            return False
        self.filters.append(condition)
        return True

    def of(self, table: pa.Table) -> pa.Table:
        """Return the rows for which all conditions are true."""
        if not self.filters:
            return table
        return table.filter(functools.reduce(operator.and_, map(_condition, self.filters)))

    def narrowed(
        self, column: str | None, start: int | None, end: int | None
    ) -> tuple[int | None, int | None]:
        """Narrow the bounds of a query by the conditions on a window's start and end or a message's time."""
        for condition in self.filters:
            path: tuple[str, ...] = getattr(condition, "attribute", ())
            value = getattr(condition, "value", None)
            if len(path) != 2 or path[0] != column or not isinstance(value, datetime):
                continue
            us = instant_us(value)
            if isinstance(condition, (GreaterThan, GreaterThanOrEqual, EqualTo)):
                # A window that ends at `us` is not among those that overlap it.
                low = us - 1 if path[1] == "end" else us
                start = low if start is None else max(start, low)
            if isinstance(condition, (LessThan, LessThanOrEqual, EqualTo)):
                end = us if end is None else min(end, us)
        return start, end

    def key(self, by: Collection[str], key: Any) -> Any:
        """Return the key fields of the conditions, unless the user has given them."""
        if key is not None:
            return key
        fields = {
            f.attribute[0]: f.value
            for f in self.filters
            if isinstance(f, EqualTo) and len(f.attribute) == 1 and f.attribute[0] in by
        }
        return fields or None


def _is_comparable(kind: pa.DataType) -> bool:
    t = pa.types
    return any(is_(kind) for is_ in (t.is_integer, t.is_string, t.is_boolean, t.is_timestamp, t.is_date))


def _condition(term: Filter) -> pc.Expression:
    column = pc.field(*term.attribute) if len(term.attribute) > 1 else pc.field(term.attribute[0])  # type: ignore[attr-defined]
    if isinstance(term, IsNull):
        return column.is_null()
    if isinstance(term, IsNotNull):
        return column.is_valid()
    if isinstance(term, In):
        return column.isin(list(term.value))
    return _COMPARED[type(term)](column, term.value)  # type: ignore[attr-defined]
