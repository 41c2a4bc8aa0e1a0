"""Messages as Python values to a slice of columns, the types of a stream being learnt as it comes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.border import fit, read
from windrow.core.column_types import brought
from windrow.core.faults import without_place
from windrow.core.messages import Message, Position
from windrow.core.show import json_text
from windrow.core.time import TIME_UNITS, TimeUnit, instant_us, read_iso
from windrow.core.types import as_type, is_text, plain_type
from windrow.core.zones import Zone, zone_of
from windrow.operators.steps.columns import MALFORMED_ROW, OFFSET, ORDINAL, PARTITION, RAW, SOURCE
from windrow.operators.steps.dead_letters import PAYLOAD_LIMIT
from windrow.operators.steps.intake import NO_FLOAT, in_known_times
from windrow.operators.steps.schema_inference import Needs

_STAMP = pa.timestamp("us", "UTC")
_I64 = range(-(2**63), 2**63)
#: Messages add no more columns than this: each makes every commit dearer for good, where messages are kept or emitted whole.
MOST_COLUMNS = 1_000


def table_of(
    messages: Sequence[Message],
    positions: Sequence[Position],
    *,
    event_time: str | None,
    time_zone: str | None,
    event_time_unit: TimeUnit | None,
    schema: pa.Schema | None,
    needs: Needs,
    counts: dict[str, int] | None = None,
) -> pa.Table:
    """Return a slice of `messages`. A message that cannot be a row of the stream is malformed, with its payload as it came.

    counts: `nulled` counts values that do not fit their column, which no definition names.
    event_time: None where it is made of other columns.
    """
    wrong: list[str | None] = [None] * len(messages)
    names = _names(messages, schema, event_time, needs, wrong)
    refused = needs.refused(names)
    names = [name for name in names if name not in refused]
    while True:
        reader = _Columns(schema, names, needs, wrong, time_zone, event_time_unit)
        for name, why in refused.items():
            for i, m in enumerate(messages):
                if m.payload.get(name) is not None:
                    reader.spoil(i, why)
        columns: dict[str, pa.Array] = dict.fromkeys(names)
        if event_time in columns:  # a wrong time is named before all else
            times = [m.payload.get(event_time) for m in messages]
            columns[event_time] = _times(times, event_time, time_zone, event_time_unit, reader)
        sound = wrong.count(None)
        for name in names:
            if name != event_time:
                # A malformed message does not decide the types of columns.
                values = [None if w else m.payload.get(name) for m, w in zip(messages, wrong, strict=True)]
                columns[name] = reader.read(name, values)
        if wrong.count(None) == sound:
            break  # else columns that were read before a message turned out to be malformed have its values
    columns[SOURCE] = pa.array([p.source for p in positions], pa.string())
    columns[PARTITION] = pa.array([p.partition for p in positions], pa.int64())
    columns[OFFSET] = pa.array([p.offset for p in positions], pa.int64())
    columns[ORDINAL] = pa.array([p.ordinal for p in positions], pa.int64())
    if any(w is not None for w in reader.wrong):
        columns[MALFORMED_ROW] = pa.array([None if w is None else _readable(w) for w in wrong], pa.string())
        raw = [
            None if w is None else _readable(_shown(m.payload)) for w, m in zip(wrong, messages, strict=True)
        ]
        columns[RAW] = pa.array(raw, pa.string())
    if counts is not None and reader.nulled:
        counts["nulled"] = counts.get("nulled", 0) + reader.nulled
    fields = [reader.field(name, column.type) for name, column in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def _names(
    messages: Sequence[Message],
    schema: pa.Schema | None,
    event_time: str | None,
    needs: Needs,
    wrong: list[str | None],
) -> list[str]:
    """Return the column names of a slice, in order of arrival, without reserved names, `__...`. A message with an invalid
    name, or with too many new ones, is malformed."""
    names: dict[Any, None] = dict.fromkeys(schema.names if schema is not None else ())
    if event_time is not None:
        names.setdefault(event_time)
    for i, m in enumerate(messages):
        if m.payload.keys() <= names.keys():
            continue
        new = [name for name in m.payload if name not in names]
        bad = [name for name in new if not is_name(name)]
        if bad:
            wrong[i] = f"{bad[0]!r} is no name of a column"
            new = [name for name in new if is_name(name)]
        elif needs.whole and len(names) + len(new) > MOST_COLUMNS:
            wrong[i] = (
                f"its {len(new)} columns that no message had before, such as {new[0]!r:.100}, would be more than "
                f"{MOST_COLUMNS} with the others: declare those that are wanted by open(schema=)"
            )
        if len(names) + len(new) > MOST_COLUMNS:
            named = needs.named(new)
            new = [name for name in new if name in named or not needs.whole]
        names.update(dict.fromkeys(new))
    own = [name for name in names if not name.startswith("__")]
    if len(own) <= MOST_COLUMNS or needs.whole:
        return own
    named = needs.named(own)  # the others would only be in dead letters
    return [name for n, name in enumerate(own) if n < MOST_COLUMNS or name in named]


def is_name(name: Any) -> bool:
    """True if a column can have that name."""
    try:
        return isinstance(name, str) and bool(name.isascii() or name.encode())
    except UnicodeEncodeError:
        return False


def _shown(value: Any) -> str:
    """Format a value, or a payload, as text."""
    try:
        return json_text(dict(value) if isinstance(value, Mapping) else value)
    except MemoryError:
        raise
    except Exception:  # names that are no text, something that holds itself
        return _cut_repr(value)


def _cut_repr(value: Any) -> str:
    """Return the `repr` of a value of any type."""
    try:
        return repr(value)
    except MemoryError:
        raise
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _readable(text: str) -> str:
    """Text that any file can hold, and not too much of it."""
    return text[:PAYLOAD_LIMIT].encode(errors="backslashreplace").decode()


def _times(
    values: list[Any], name: str, time_zone: str | None, unit: TimeUnit | None, derived: _Columns
) -> pa.Array:
    zone = None if time_zone is None else zone_of(time_zone)
    times: list[int | None] = []
    for i, value in enumerate(values):
        time_us, problem = event_time_us(value, zone, unit)
        times.append(time_us)
        if problem is not None:
            derived.spoil(i, f"event time {name!r} {problem}")
    return pa.array(times, pa.int64()).cast(_STAMP)


def event_time_us(
    value: Any, zone: Zone | None, unit: TimeUnit | None = None
) -> tuple[int | None, str | None]:
    """Return (microseconds, None) of a time, (None, the reason) of any other value."""
    if value is None:
        return None, "is null"
    if isinstance(value, (float, np.floating)):
        return None, "is NaN" if math.isnan(value) else f"is {_cut_repr(value)}, {NO_FLOAT}"
    if isinstance(value, bool):
        return None, f"is {_cut_repr(value)}, no time"
    if isinstance(value, (int, np.integer)):
        many, each_us = TIME_UNITS[unit or "us"]
        time_us = int(value) // many * each_us
        return (time_us, None) if time_us in _I64 else (None, "does not fit 64 bits")
    if isinstance(value, str):
        try:
            value = read_iso(value)
        except ValueError:
            return None, f"is {_cut_repr(value)}, no time"
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
        if value is None:
            return None, "is NaT"
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    if isinstance(value, datetime):
        if value != value:  # pandas.NaT
            return None, "is NaT"
        if value.tzinfo is None:
            if zone is None:
                return None, f"{value!r} has no time zone: declare time_zone="
            return zone.instant(value), None
        return instant_us(value), None
    return None, f"is {_cut_repr(value)}, no time"


class _Columns:
    """The columns of a slice, each in the type that the stream has for it by then."""

    def __init__(
        self,
        schema: pa.Schema | None,
        names: Iterable[str],
        needs: Needs,
        wrong: list[str | None],
        time_zone: str | None,
        unit: TimeUnit | None,
    ) -> None:
        self._time_zone, self._unit = time_zone, unit
        self._fields = {name: pa.field(name, pa.null()) for name in names}
        self._fields.update({f.name: f.with_type(plain_type(f.type)) for f in schema or ()})
        self._needs, self._named = needs, needs.named(self._fields)
        #: The error of each message; how many values are left out of messages that count.
        self.wrong = wrong
        self.nulled = 0

    def read(self, name: str, values: list[Any]) -> pa.Array:
        known = self._fields.setdefault(name, pa.field(name, pa.null()))
        if name in self._needs.times:
            values = self._only_times(name, values)
        array = read(values)
        if name not in self._named and not self._needs.whole:
            # It is looked at no more, but in a dead letter.
            return array if array is not None else pa.array([_text(v) for v in values], pa.string())
        if array is None or pa.types.is_integer(array.type) or pa.types.is_map(known.type):
            array = _in_type(values, known.type) or array
        placed = array is not None and without_place(array.type) is None
        column = brought(array, known, self._others(name)) if placed else None
        if column is not None and not column.misfits and self._refusal(column.field) is None:
            self._fields[name] = column.field
            return column.values
        return self._one_by_one(name, values)

    def _others(self, name: str) -> Sequence[pa.Field]:
        return self._needs.compared_with(name) if name in self._named else ()

    def field(self, name: str, kind: pa.DataType) -> pa.Field:
        """Return a column of the slice, with its metadata."""
        known = self._fields.get(name)
        return known if known is not None and known.type == kind else pa.field(name, kind)

    def _refusal(self, field: pa.Field) -> str | None:
        """Why a column that is named cannot become like this."""
        if field.name not in self._named or self._fields[field.name].type == field.type:
            return None
        types = {name: known.type for name, known in self._fields.items()}
        return self._needs.refusal(field.name, field.type, types)

    def _one_by_one(self, name: str, values: list[Any]) -> pa.Array:
        """Return the values that fit one type, in order. A message with another value is malformed where the definition names
        the column; else the value is left out, or kept as text in a column of text."""
        good: list[pa.Array | None] = []
        for i, value in enumerate(values):
            fitted = None if value is None else self._one(name, value)
            if isinstance(fitted, str) and name in self._needs.times:
                fitted = self._in_known_time(name, value)
            if isinstance(fitted, str):
                fitted = self._left_out(i, name, value, fitted)
            good.append(fitted)
        kind = self._fields[name].type
        return pa.concat_arrays([pa.nulls(1, kind) if g is None else as_type(g, kind) for g in good])

    def _one(self, name: str, value: Any) -> pa.Array | str:
        """Return a value in the type that fits it and those before it, now the column's type; or the reason why none does."""
        known = self._fields[name]
        of_text = is_text(known.type) and isinstance(value, bytes)
        array = fit([value], known.type).array if of_text else read([value])
        if array is None or pa.types.is_integer(array.type) or pa.types.is_map(known.type):
            array = _in_type([value], known.type) or array
        if array is None or without_place(array.type) or (of_text and array.null_count):
            return f"which {'cannot be read' if pa.types.is_null(known.type) else f'is no {known.type}'}"
        column = brought(array, known, self._others(name))
        if column is None:
            return f"which is no {known.type}"
        if column.misfits:
            return f"which is no {column.misfits[0].rpartition(' is no ')[2]}"
        refusal = self._refusal(column.field)
        if refusal is not None:
            return refusal
        self._fields[name] = column.field
        return column.values

    def _only_times(self, name: str, values: list[Any]) -> list[Any]:
        """Return the values that are times in any form; a message with another one is malformed."""
        times = list(values)
        for i, value in enumerate(values):
            problem = None if value is None else self._time_us(value)[1]
            if problem is not None:
                array = read([value])
                if array is None or not array.null_count:
                    self.spoil(i, f"column {name!r} {problem}")
                times[i] = None
        return times

    def _in_known_time(self, name: str, value: Any) -> pa.Array | str:
        """Convert a time to its column's type; or return the reason why it cannot be."""
        known = self._fields[name]
        stamp = pa.table({name: pa.array([self._time_us(value)[0]], pa.int64()).cast(_STAMP)})
        converted = in_known_times(stamp, name, self._time_zone, known.type, self._unit, "column")
        if MALFORMED_ROW in converted.column_names:
            return str(converted.column(MALFORMED_ROW)[0])
        column = brought(converted.column(name).combine_chunks(), known)
        if column is None or column.misfits:
            return f"which is no {known.type}"
        self._fields[name] = column.field
        return column.values

    def _time_us(self, value: Any) -> tuple[int | None, str | None]:
        zone = None if self._time_zone is None else zone_of(self._time_zone)
        return event_time_us(value, zone, self._unit)

    def _left_out(self, row: int, name: str, value: Any, why: str) -> pa.Array | None:
        """Return the replacement of a value that does not fit its column."""
        if name in self._named:
            self.spoil(
                row, f"column {name!r} is {_cut_repr(value)}, {why}" if why.startswith("which ") else why
            )
        elif is_text(self._fields[name].type):
            return pa.array([_text(value)], pa.string())
        else:
            self.nulled += 1
        return None

    def spoil(self, row: int, why: str) -> None:
        """Mark a message as not counted; its first reason is reported."""
        if self.wrong[row] is None:
            self.wrong[row] = why


def _in_type(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    """Return values in the column's type where Arrow reads none as such: maps, and whole numbers of many digits.

    None if one is none of that type.
    """
    if not (pa.types.is_decimal(kind) or kind == pa.uint64() or pa.types.is_map(kind)):
        return None
    fitted = fit(values, kind)
    return None if fitted.misfits else fitted.array


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    text = value if isinstance(value, str) else _shown(value)
    return text.encode(errors="backslashreplace").decode()
