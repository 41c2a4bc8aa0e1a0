"""Sharding of keys: one hash, as SQL for Spark, and as a function for code that has the keys.

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
#: Seed of Spark's hash.
SEED = 42


@dataclass(frozen=True)
class Sharding:
    """Assignment of keys to shards. Equal keys share one, of any type: a column may widen from int to bigint or double."""

    shards: int

    def sql(self, fields: Sequence[tuple[str, bool]]) -> str:
        """Return SQL of the shard of a row. fields: of its key, as SQL, each with whether it is a number."""
        if not fields or self.shards == 1:
            return "0"
        # Equal numbers are equal as doubles; numbers that only a double cannot distinguish share a shard.
        hashed = [f"cast({sql} as double) + 0D" if number else sql for sql, number in fields]
        return f"cast((pmod(xxhash64({', '.join(hashed)}), {KEY_GROUPS}) * {self.shards}) div {KEY_GROUPS} as int)"

    def of(self, fields: Sequence[pa.Array]) -> IntArray:
        """Return the shards of rows with these columns of key fields."""
        if not fields or self.shards == 1:
            return np.zeros(len(fields[0]) if fields else 1, dtype=np.int64)
        hashes = [_hash(row) for row in zip(*map(_written, fields), strict=True)]
        return np.array([h % KEY_GROUPS * self.shards // KEY_GROUPS for h in hashes], dtype=np.int64)


def _hash(key: Sequence[bytes | None]) -> int:
    found = SEED
    for field in key:
        if field is not None:
            found = xxhash.xxh64_intdigest(field, found)
    return found


def _written(column: pa.Array) -> list[bytes | None]:
    """Return each value as the bytes that Spark hashes."""
    kind, types = column.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        write: Callable[[Any], bytes] = _double
    elif types.is_string(kind) or types.is_large_string(kind):
        write = str.encode
    elif types.is_binary(kind) or types.is_large_binary(kind):
        write = bytes
    elif types.is_timestamp(kind):
        column, write = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()), _LONG.pack
    elif types.is_date32(kind):
        column, write = column.cast(pa.int32()), _INT.pack
    elif types.is_boolean(kind):
        write = _INT.pack
    else:
        raise TypeClash(
            f"a key field of type {kind} has no shard: use text, bytes, a number, a date or a time"
        )
    return [None if value is None else write(value) for value in column.to_pylist()]


_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")


def _double(value: Any) -> bytes:
    number = float(value) + 0.0  # -0.0 + 0.0 is 0.0
    return struct.pack("<d", math.nan if math.isnan(number) else number)
