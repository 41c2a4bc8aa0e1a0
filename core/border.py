"""Conversion of values from outside to values of a column: it is exact, or gives the rows that fail, and why.

`fit` is for Python values of a known type, such as results of a user's function. `read` is for Python values that say their
type themselves, such as those of messages. For columns of Arrow there are `core/faults.py` and `core/column_types.py`.
`pa.array` is no check: it cuts fractions, and drops times of day and zones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.faults import faults, is_sound
from windrow.core.types import (
    HOLDERS,
    holds_too_deep,
    is_listlike,
    is_text,
)

_NONE = type(None)
#: Values that Arrow refuses where they do not fit the type, by what it is: no other look at them is needed.
_SURE: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (pa.types.is_integer, frozenset({int, _NONE})),
    (pa.types.is_float64, frozenset({float, int, _NONE})),
    (is_text, frozenset({str, _NONE})),
    (pa.types.is_boolean, frozenset({bool, _NONE})),
    (pa.types.is_binary, frozenset({bytes, _NONE})),
    (pa.types.is_decimal, frozenset({int, Decimal, _NONE})),
)
#: Classes that may be mixed in a column, with None, and that Arrow reads without loss.
_TOGETHER = (frozenset({int, float}), frozenset({int, Decimal}))
#: Classes that Arrow reads as they are.
_ORDINARY = frozenset({_NONE, int, float, bool, str, bytes, Decimal, date, datetime, time, timedelta})


@dataclass(frozen=True)
class Fitted:
    """A column, null where a value does not fit; why, by row."""

    array: pa.Array
    misfits: Mapping[int, str] = dataclasses.field(default_factory=dict)


def fit(values: Sequence[Any], kind: pa.DataType) -> Fitted:
    """Make a column of `kind` of Python values. A value fits if the column holds it exactly: as the same number, text, moment.

    Floats are the nearest of their type, NaT and NA are null. What does not fit is null, with the reason.
    """
    try:
        classes = set(map(type, values)) - {_NONE}
        if pa.types.is_struct(kind) and kind.num_fields and all(issubclass(c, Mapping) for c in classes):
            return _fit_structs(values, kind)
        if pa.types.is_list(kind) and classes <= {list, tuple}:
            return _fit_lists(values, kind)
        if any(issubclass(c, HOLDERS) for c in classes) and any(map(holds_too_deep, values)):
            raise ValueError("too deep")  # Arrow follows them until the process is gone
        if _in_sure(values, kind):
            array = pa.array(values, kind, from_pandas=False)
            if not is_sound(array):
                raise ValueError("a moment outside the years 1 to 9999")
            return Fitted(array)
        plains = [plain(v) for v in values]
        if _has_map(kind) and any(_has_null_pair(v, kind) for v in plains):
            raise ValueError("a map with a null in place of a pair")  # on which Arrow ends the process
        finer = any(
            getattr(v, "nanosecond", 0) or getattr(v, "nanoseconds", 0) for v in plains
        )  # of pandas; Arrow drops them
        if finer and len(values) > 1:
            raise ValueError("nanoseconds")
        array = pa.array([v.value for v in plains] if finer else plains, kind, from_pandas=False)
        same = [_is_same(v, held, kind) for v, held in zip(plains, array.to_pylist(), strict=True)]
    except (MemoryError, OSError):
        raise
    except Exception:  # also out of code of the value's
        if len(values) > 1:
            return _fit_halves(values, kind)
        return Fitted(
            pa.nulls(len(values), kind), {i: f"{cut_repr(v)} is no {kind}" for i, v in enumerate(values)}
        )
    if all(same):
        return Fitted(array)
    lossy = {i: f"{cut_repr(values[i])} is no {kind} without loss" for i, one in enumerate(same) if not one}
    held = [v if one else None for v, one in zip(plains, same, strict=True)]
    return Fitted(pa.array(held, kind, from_pandas=False), lossy)


def _has_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _has_null_pair(value: Any, kind: pa.DataType) -> bool:
    """True if a value under a type that has maps holds a map with a null in place of a pair, or may hold one."""
    if value is None or not _has_map(kind):
        return False
    if pa.types.is_struct(kind):
        return not isinstance(value, Mapping) or any(_has_null_pair(value.get(f.name), f.type) for f in kind)
    if not pa.types.is_map(kind):
        return any(_has_null_pair(v, kind.value_type) for v in value)
    pairs = value.items() if isinstance(value, Mapping) else value
    return any(
        pair is None
        or any(_has_null_pair(v, t) for v, t in zip(pair, (kind.key_type, kind.item_type), strict=True))
        for pair in pairs
    )


def _fit_halves(values: Sequence[Any], kind: pa.DataType) -> Fitted:
    middle = len(values) // 2
    first, second = fit(values[:middle], kind), fit(values[middle:], kind)
    misfits = {**first.misfits, **{middle + i: why for i, why in second.misfits.items()}}
    return Fitted(pa.concat_arrays([first.array, second.array]), misfits)


def _fit_structs(values: Sequence[Any], kind: pa.StructType) -> Fitted:
    """Objects, field by field. Fields that are not there are null, and one that the type does not have does not fit."""
    names = {f.name for f in kind}
    misfits = {
        i: f"{cut_repr(v)} is no {kind} without loss"
        for i, v in enumerate(values)
        if v is not None and not names.issuperset(v)
    }
    fields = [fit([None if v is None else v.get(f.name) for v in values], f.type) for f in kind]
    for one in fields:
        misfits.update(one.misfits)
    none = pa.array([v is None or i in misfits for i, v in enumerate(values)], pa.bool_())
    return Fitted(
        pa.StructArray.from_arrays([f.array for f in fields], fields=list(kind), mask=none), misfits
    )


def _fit_lists(values: Sequence[Any], kind: pa.ListType) -> Fitted:
    """Lists, all their values at once."""
    ends = np.cumsum([0, *(0 if v is None else len(v) for v in values)])
    inner = fit([one for v in values if v is not None for one in v], kind.value_type)
    misfits = {int(np.searchsorted(ends, at, "right")) - 1: why for at, why in inner.misfits.items()}
    none = pa.array([v is None or i in misfits for i, v in enumerate(values)], pa.bool_())
    starts = pa.array(ends, pa.int32())
    return Fitted(pa.ListArray.from_arrays(starts, inner.array, type=kind, mask=none), misfits)


def _in_sure(values: Sequence[Any], kind: pa.DataType) -> bool:
    """True if Arrow refuses those of the values that it would change."""
    classes = set(map(type, values))
    if any(classes <= sure for is_kind, sure in _SURE if is_kind(kind)):
        return True
    if not pa.types.is_timestamp(kind) or kind.unit not in ("us", "ns") or not classes <= {datetime, _NONE}:
        return False
    return {v.tzinfo is None for v in values if v is not None} <= {kind.tz is None}


def plain(value: Any) -> Any:
    """Convert a value of numpy or pandas: numbers and times become Python's own where these hold them, NaT and NA None."""
    kind = type(value)
    if kind in _ORDINARY or kind is pa.MonthDayNano:
        return value
    if kind.__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _plain_time(value)
    if isinstance(value, pa.Scalar):
        return plain(value.as_py())
    if isinstance(value, np.generic):
        found = value.item()
        return float(found) if isinstance(found, np.floating) and float(found) == found else found
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value] if value.dtype.kind in "mMO" else value.tolist()
    if isinstance(value, Mapping):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple):  # such as a pair of a map
        return tuple(map(plain, value))
    if isinstance(value, (list, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, datetime) and hasattr(value, "to_pydatetime"):
        return value if _has_nanoseconds(value) else value.to_pydatetime()
    if isinstance(value, timedelta) and hasattr(value, "to_pytimedelta"):
        return value if _has_nanoseconds(value) else value.to_pytimedelta()
    return value


def _plain_time(value: Any) -> Any:
    """Return a time of numpy as Python has it; as numpy has it where that is finer, or beyond the years 1 to 9999."""
    if np.isnat(value):
        return None
    found = value.astype(f"{value.dtype.kind}8[us]").item()
    whole = isinstance(found, (datetime, timedelta)) and value == type(value)(found)
    return found if whole else value


def cut_repr(value: Any) -> str:
    """Return the `repr` of a value, which may be anything, cut."""
    try:
        return f"{value!r:.100}" if type(value) in _ORDINARY else repr(value)[:100]
    except MemoryError:
        raise
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _is_same(value: Any, held: Any, kind: pa.DataType) -> bool:
    """True if a column holds the value that it received."""
    t = pa.types
    if value is None or held is None:
        return value is held
    if isinstance(value, bool) != t.is_boolean(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType) or t.is_dictionary(kind):
        return bool(value == held)
    if t.is_floating(kind):
        if isinstance(value, float):  # the nearest of its type
            return math.isfinite(value) == math.isfinite(held)
        return bool(value == held)
    if t.is_struct(kind):
        return _is_same_struct(value, held, kind)
    if t.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return (
            isinstance(value, (Mapping, list, tuple))
            and len(pairs) == len(held)
            and all(
                _is_same(k, a, kind.key_type) and _is_same(v, b, kind.item_type)
                for (k, v), (a, b) in zip(pairs, held, strict=True)
            )
        )
    if is_listlike(kind):
        return (
            isinstance(value, (list, tuple, set, frozenset))
            and len(value) == len(held)
            and all(_is_same(v, h, kind.value_type) for v, h in zip(value, held, strict=True))
        )
    if is_text(kind) and isinstance(value, bytes):
        return False
    if t.is_interval(kind):
        return not isinstance(value, timedelta) or value == timedelta(0)
    if t.is_timestamp(kind) and isinstance(value, np.datetime64):
        return bool(value == np.datetime64(held.asm8 if hasattr(held, "asm8") else held))
    if t.is_time(kind) and getattr(value, "tzinfo", None) is not None:
        return False
    if isinstance(value, datetime) and isinstance(held, datetime) and None not in (value.tzinfo, held.tzinfo):
        # As Python compares them, times in the hour that comes twice, or never, equal none of another zone.
        return bool(value.astimezone(UTC) == held.astimezone(UTC))
    return bool(value == held)


def _is_same_struct(value: Any, held: Any, kind: pa.StructType) -> bool:
    """True if all fields are held; missing ones are null."""
    if not isinstance(value, Mapping):
        return False
    return all(kind.get_field_index(name) >= 0 for name in value) and all(
        _is_same(value.get(f.name), held[f.name], f.type) for f in kind
    )


def read(values: Sequence[Any]) -> pa.Array | None:
    """Make a column of Python values in their own type; None where their types are incompatible."""
    classes = set(map(type, values)) - {_NONE}
    if any((issubclass(c, HOLDERS) and c is not pa.MonthDayNano) or c is np.ndarray for c in classes):
        return _read_nested(values)
    if len(classes) > 1 and classes not in _TOGETHER:
        return None
    [kind] = classes or {_NONE} if len(classes) < 2 else {int}
    if kind.__name__ in ("NaTType", "NAType"):
        return pa.nulls(len(values))
    if issubclass(kind, (datetime, time)) and not _of_one_clock(values, kind):
        return None
    if issubclass(kind, (datetime, timedelta)) and any(map(_has_nanoseconds, values)):
        return _nanoseconds(values, kind)
    if kind in (np.longdouble, np.clongdouble):
        values = [plain(v) for v in values]
    array = _array(values)
    of_numpy = array is not None and issubclass(kind, (np.datetime64, np.timedelta64))
    return None if of_numpy and faults(array) else array


def _of_one_clock(values: Sequence[Any], kind: type) -> bool:
    """True if all times have a zone, or none has. Arrow drops the zone of a time of day."""
    zoned = {v.tzinfo is not None for v in values if v is not None}
    return len(zoned) < 2 and (issubclass(kind, datetime) or zoned == {False})


def _has_nanoseconds(value: Any) -> bool:
    """True of a time of pandas that Python's do not hold."""
    return bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def _nanoseconds(values: Sequence[Any], kind: type) -> pa.Array | None:
    """Times of pandas, some of which have nanoseconds."""
    if issubclass(kind, timedelta):
        target = pa.duration("ns")
    else:
        zones = {str(v.tzinfo) for v in values if v is not None and v.tzinfo is not None}
        target = pa.timestamp("ns", None if not zones else zones.pop() if len(zones) == 1 else "UTC")
    return _array([None if v is None else v.value for v in values], target)


def _read_nested(values: Sequence[Any]) -> pa.Array | None:
    """Convert lists and objects. Their items may be anything: the column has to hold the original values."""
    if any(map(holds_too_deep, values)):
        return None  # Arrow follows them until the process is gone
    try:
        values = [plain(v) for v in values]
        array = None if any(map(_has_numpy, values)) else _array(values)
        if array is None or _go_together(set(_leaves(values))):
            return array
        same = all(_is_same(v, h, array.type) for v, h in zip(values, array.to_pylist(), strict=True))
        return array if same else None
    except (MemoryError, OSError):
        raise
    except Exception:  # out of code of the values'
        return None


def _go_together(classes: set[type]) -> bool:
    """True if Arrow raises for a mix of values of these classes."""
    return classes <= {_NONE, int, float, str} or classes <= {_NONE, int, bool, str}


def _leaves(values: Sequence[Any]) -> Iterator[type]:
    level: list[Any] = list(values)
    while level:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            else:
                yield type(value)
        level = inner


def _has_numpy(value: Any) -> bool:
    """True if it has times that only numpy holds, for which Arrow's inference may end the process."""
    return any(issubclass(c, (np.datetime64, np.timedelta64)) for c in _leaves([value]))


def _array(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array | None:
    """Convert values to a column; None where their types are incompatible, or Arrow cannot hold one."""
    try:
        return pa.array(values, kind, from_pandas=False)
    except (MemoryError, OSError):
        raise
    except Exception:  # also out of code of the value's
        return None
