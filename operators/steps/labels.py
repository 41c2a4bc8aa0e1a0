"""Columns that rows of all operators have for users: when and how a row was told, moments of time, positions."""

from __future__ import annotations

import pyarrow as pa

from windrow.operators.steps.intake import FIRST_US, LAST_US

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
#: Columns that say how a row was told, and by which commit.
LABELS = ("pane", "commit")
POSITION = pa.struct(
    [("source", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()), ("ordinal", pa.int64())]
)
STORED = pa.struct([("time", STAMP), *POSITION])


def stamps(times: pa.Array) -> pa.Array:
    """Timestamps of Spark and of Python hold the years 1 to 9999: a bound of a window beyond them is null."""
    values = times.to_numpy(zero_copy_only=False)
    return pa.array(values, mask=(values < FIRST_US) | (values > LAST_US)).cast(STAMP)


def stamp_us(time_us: int) -> int | None:
    """`stamps` of one time."""
    return time_us if FIRST_US <= time_us <= LAST_US else None
