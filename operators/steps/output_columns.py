"""Output columns that rows of all operators have for users: how and by which commit a row was emitted, moments, positions."""

from __future__ import annotations

import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.faults import FIRST_US, LAST_US

STAMP = pa.timestamp("us", "UTC")
PANE_TYPE = pa.struct(
    [
        pa.field("timing", pa.string()),
        pa.field("index", pa.int32()),
        pa.field("is_last", pa.bool_()),
        pa.field("kind", pa.string()),
    ]
)
TIME_WINDOW_TYPE = pa.struct([pa.field("start", STAMP), pa.field("end", STAMP)])
TUPLE_WINDOW_TYPE = pa.struct([pa.field("first", pa.int64()), pa.field("last", pa.int64())])
#: Columns with the pane and the commit in which a row was emitted.
LABELS = ("pane", "commit")
POSITION = pa.struct(
    [("source", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()), ("ordinal", pa.int64())]
)
STORED = pa.struct([("time", STAMP), *POSITION])


def stamps(times: pa.Array) -> pa.Array:
    """Return timestamps for users. Spark and Python hold the years 1 to 9999: a window bound beyond them is null."""
    values = times.to_numpy(zero_copy_only=False)
    beyond = (values < FIRST_US) | (values > LAST_US)
    return (pa.array(values, mask=beyond) if beyond.any() else times).cast(STAMP)


def flat(rows: pa.Table) -> pa.Table:
    """Return rows with the fields of `window` and `pane` as columns: `window_start`, `window_end`, `pane_timing`, ..."""
    names, columns = list[str](), list[pa.ChunkedArray]()
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name in ("window", LABELS[0]) and pa.types.is_struct(field.type):
            names += [f"{field.name}_{child.name}" for child in field.type]
            columns += column.flatten()
        else:
            names.append(field.name)
            columns.append(column)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"column {twice[0]!r} is of the rows themselves and of their window: use the table, where the window is one column"
        )
    return pa.table(columns, names=names)


def stamp_us(time_us: int) -> int | None:
    """Return one time as by `stamps`."""
    return time_us if FIRST_US <= time_us <= LAST_US else None
