"""Which shard a key is on: one hash, as SQL for Spark, and as a function for whoever has the keys.

It is Spark's `xxhash64` over the key fields: the XXH64 of each that is not null, seeded with that of the fields before it. Keys
go to shards through key groups, so that a state can be resharded without a replay.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.errors import TypeClash

KEY_GROUPS = 4096
#: Of Spark's hash.
SEED = 42


@dataclass(frozen=True)
class Sharding:
    """How many shards there are, and how keys go to them.

    by_value: equal keys go to one shard, whatever their type: a column may widen from int to bigint or double. Jobs that were
    begun before hash by Spark's type, and go on so.
    """

    shards: int
    by_value: bool = True

    def sql(self, fields: Sequence[tuple[str, bool]]) -> str:
        """SQL of the shard of a row. fields: of its key, as SQL, each with whether it is a number."""
        if not fields or self.shards == 1:
            return "0"
        # What is equal as a number is equal as a double; what only a double cannot tell apart shares a shard.
        hashed = [
            f"cast({sql} as double) + 0D" if self.by_value and number else sql for sql, number in fields
        ]
        return f"cast((pmod(xxhash64({', '.join(hashed)}), {KEY_GROUPS}) * {self.shards}) div {KEY_GROUPS} as int)"

    def of(self, fields: Sequence[pa.Array]) -> IntArray:
        """The shards of rows with these columns of key fields."""
        if not fields or self.shards == 1:
            return np.zeros(len(fields[0]) if fields else 1, dtype=np.int64)
        written = [_written(field, self.by_value) for field in fields]
        hashes = [_hash(row) for row in zip(*written, strict=True)]
        return np.array([h % KEY_GROUPS * self.shards // KEY_GROUPS for h in hashes], dtype=np.int64)


def _hash(key: Sequence[bytes | None]) -> int:
    found = SEED
    for field in key:
        if field is not None:
            found = xxhash.xxh64_intdigest(field, found)
    return found


def _written(column: pa.Array, by_value: bool) -> list[bytes | None]:
    """Each value as the bytes that Spark hashes."""
    kind, types = column.type, pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if (by_value and number) or types.is_float64(kind):
        write: Callable[[Any], bytes] = _double
    elif types.is_string(kind) or types.is_large_string(kind):
        write = str.encode
    elif types.is_binary(kind) or types.is_large_binary(kind):
        write = bytes
    elif types.is_float32(kind):
        write = _float
    elif types.is_decimal(kind):
        write = _long_decimal if kind.precision > 18 else _short_decimal
    elif types.is_timestamp(kind):
        column, write = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()), _LONG.pack
    elif types.is_date32(kind):
        column, write = column.cast(pa.int32()), _INT.pack
    elif types.is_boolean(kind) or types.is_integer(kind):
        write = _LONG.pack if kind in (pa.int64(), pa.uint32(), pa.uint64()) else _INT.pack
    else:
        raise TypeClash(
            f"a key field of type {kind} has no shard: use text, bytes, a number, a date or a time"
        )
    return [None if value is None else write(value) for value in column.to_pylist()]


_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")


def _double(value: Any) -> bytes:
    number = float(value) + 0.0  # -0.0 + 0.0 is 0.0
    return struct.pack("<d", math.nan if math.isnan(number) else number)


def _float(value: float) -> bytes:
    return struct.pack("<f", math.nan if math.isnan(value) else value + 0.0)


def _short_decimal(value: Any) -> bytes:
    return _LONG.pack(_unscaled(value))


def _long_decimal(value: Any) -> bytes:
    whole = _unscaled(value)
    return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, signed=True)


def _unscaled(value: Any) -> int:
    sign, digits, _ = value.as_tuple()
    whole = int("".join(map(str, digits)))
    return -whole if sign else whole
