"""Messages as Python values to a slice of columns, the types of a stream being learnt as it comes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from windrow.core.messages import Message, Position
from windrow.core.time import instant_us
from windrow.operators.columns import MALFORMED_ROW, OFFSET, ORDINAL, PARTITION, RAW, SOURCE

_STAMP = pa.timestamp("us", "UTC")
_I64 = range(-(2**63), 2**63)


def table_of(
    messages: Sequence[Message],
    positions: Sequence[Position],
    *,
    event_time: str,
    time_zone: str | None,
    schema: pa.Schema | None,
) -> pa.Table:
    """A slice of `messages`. What cannot be a row of the stream is marked malformed, with its payload as it came."""
    n = len(messages)
    names = dict.fromkeys(f.name for f in schema) if schema is not None else {}
    for m in messages:
        names.update(dict.fromkeys(m.payload))
    names.setdefault(event_time)
    wrong: list[str | None] = [None] * n
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [m.payload.get(name) for m in messages]
        if name == event_time:
            columns[name] = _times(values, name, time_zone, wrong)
            continue
        known = None
        if schema is not None and name in schema.names:
            known = schema.field(name).type
        columns[name] = _column(values, name, known, wrong)
    columns[SOURCE] = pa.array([p.source for p in positions], pa.string())
    columns[PARTITION] = pa.array([p.partition for p in positions], pa.int64())
    columns[OFFSET] = pa.array([p.offset for p in positions], pa.int64())
    columns[ORDINAL] = pa.array([p.ordinal for p in positions], pa.int64())
    if any(w is not None for w in wrong):
        columns[MALFORMED_ROW] = pa.array(wrong, pa.string())
        raw = [
            None if w is None else json.dumps(dict(m.payload), default=str)
            for w, m in zip(wrong, messages, strict=True)
        ]
        columns[RAW] = pa.array(raw, pa.string())
    return pa.table(columns)


def _times(values: list[Any], name: str, time_zone: str | None, wrong: list[str | None]) -> pa.Array:
    zone = None if time_zone is None else ZoneInfo(time_zone)
    times: list[int | None] = []
    for i, value in enumerate(values):
        time_us, problem = event_time_us(value, zone)
        times.append(time_us)
        if problem is not None and wrong[i] is None:
            wrong[i] = f"event time {name!r} {problem}"
    return pa.array(times, pa.int64()).cast(_STAMP)


def event_time_us(value: Any, zone: ZoneInfo | None) -> tuple[int | None, str | None]:
    """(microseconds, None) of what is a time, (None, what is wrong) of what is none."""
    if value is None:
        return None, "is null"
    if isinstance(value, bool) or (isinstance(value, float) and not isinstance(value, np.integer)):
        return None, "is NaN" if isinstance(value, float) and math.isnan(value) else f"is {value!r}, no time"
    if isinstance(value, (int, np.integer)):
        return (int(value), None) if int(value) in _I64 else (None, "does not fit 64 bits")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None, f"is {value!r}, no time"
    if isinstance(value, datetime):
        if value != value:  # pandas.NaT
            return None, "is NaT"
        if value.tzinfo is None:
            if zone is None:
                return None, f"{value!r} has no time zone: declare time_zone="
            value = value.replace(tzinfo=zone)
        return instant_us(value), None
    return None, f"is {value!r}, no time"


def _column(values: list[Any], name: str, known: pa.DataType | None, wrong: list[str | None]) -> pa.Array:
    known = None if known is not None and pa.types.is_null(known) else known
    try:
        array = pa.array(values, from_pandas=False)
        if known is None or array.type == known or pa.types.is_null(array.type):
            return array
        if _number(known) and _number(array.type):
            return array  # numbers may widen; the operator's schema learns it
        return pa.array(values, known)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        pass
    return _one_by_one(values, name, known, wrong)


def _one_by_one(values: list[Any], name: str, known: pa.DataType | None, wrong: list[str | None]) -> pa.Array:
    """The values that fit the type of the stream (or of the first of them); the others' rows are malformed."""
    good: list[Any] = []
    kind = known
    for i, value in enumerate(values):
        if value is None:
            good.append(None)
            continue
        try:
            scalar = pa.array([value])
            if kind is None:
                kind = scalar.type
            elif not (_number(kind) and _number(scalar.type)):
                if scalar.type != kind:
                    pa.array([value], kind)
            elif kind != scalar.type:
                kind = pa.float64()
            good.append(value)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            good.append(None)
            if wrong[i] is None:
                wrong[i] = f"column {name!r} is {value!r}, which is no {kind}"
    if kind is not None and pa.types.is_floating(kind):
        good = [None if v is None else float(v) for v in good]
    return pa.array(good, kind)


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
