"""Layouts of message keys (`message_store.py`), and decoding of many keys, column by column."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import bytes_to_i64_array
from windrow.core.keys import decode_fields
from windrow.core.message_keys import decode_positions


class Layout(enum.Enum):
    """Layout of a message key: its parts, in order."""

    OFFSET = "offset"
    FIELDS_OFFSET = "fields_offset"
    TIME_OFFSET = "time_offset"
    FIELDS_TIME_OFFSET = "fields_time_offset"
    TIME_FIELDS_OFFSET = "time_fields_offset"

    @property
    def has_time(self) -> bool:
        return "time" in self.value

    @property
    def has_fields(self) -> bool:
        return "fields" in self.value

    @property
    def fields_first(self) -> bool:
        return self.value.startswith("fields")


def times_of(layout: Layout, keys: Sequence[bytes]) -> IntArray:
    """Event time of each key, in microseconds."""
    if not layout.has_time:
        raise ValueError(f"the layout {layout.name} has no time")
    starts = _after_fields(layout, keys) if layout.fields_first else [0] * len(keys)
    packed = b"".join([key[at : at + 8] for key, at in zip(keys, starts, strict=True)])
    return bytes_to_i64_array(np.frombuffer(packed, dtype=np.uint8).reshape(-1, 8))


def positions_of(layout: Layout, keys: Sequence[bytes]) -> tuple[pa.Array, IntArray, IntArray, IntArray]:
    """Return (sources, partitions, offsets, ordinals) of keys."""
    timed = layout.has_time and layout is not Layout.TIME_FIELDS_OFFSET
    return decode_positions(keys, [at + 8 if timed else at for at in _after_fields(layout, keys)])


def _after_fields(layout: Layout, keys: Sequence[bytes]) -> list[int]:
    """Return the offsets in keys after the fields, which are parsed once where keys of the same fields are adjacent."""
    begin = 8 if layout is Layout.TIME_FIELDS_OFFSET else 0
    if not layout.has_fields:
        return [begin] * len(keys)
    fields, end, found = None, 0, list[int]()
    for key in keys:
        if fields is None or not key.startswith(fields, begin):
            end = decode_fields(key, begin)[1] + 1
            fields = key[begin:end]
        found.append(end)
    return found
