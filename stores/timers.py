"""Timers in a key-value store: an index of (time, key, kind), read in the order of time.

    <prefix><time i64><key><kind u8>   the value that was set with the timer

One index is one clock. No key of an index is the beginning of another one: all have one length, or delimit themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.byte_order import (
    Bytes2D,
    binary_column,
    bytes_to_i64_array,
    bytes_to_rows,
    decode_i64,
    encode_i64,
    i64_array_to_bytes,
    prefix_end,
    rows_to_bytes,
)
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores.kv import KV, Batch, Pair

#: A column of keys: bytes, an Arrow binary array, a matrix of one row a key, or hashes.
Keys: TypeAlias = Sequence[bytes] | pa.Array | Bytes2D | npt.NDArray[np.uint64]
Kinds: TypeAlias = npt.NDArray[np.uint8]
#: Up to so many timers are written one by one.
_FEW = 16


@dataclass(frozen=True)
class DueTimers:
    """Timers in the order of (time, key, kind), by columns."""

    times: IntArray
    keys: list[bytes]
    kinds: Kinds
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[int, bytes, int, bytes]]:
        return zip(self.times.tolist(), self.keys, self.kinds.tolist(), self.values, strict=True)

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The keys as numbers, where they were set as such."""
        return np.frombuffer(b"".join(self.keys), ">u8").astype(np.uint64)

    def of(self, kind: int) -> DueTimers:
        """Return the timers of one kind."""
        places = np.flatnonzero(self.kinds == kind)
        rows = places.tolist()
        keys, values = [self.keys[i] for i in rows], [self.values[i] for i in rows]
        return DueTimers(self.times[places], keys, self.kinds[places], values)


class TimerIndex:
    """The timers under one prefix of a column family. Holds no state of its own."""

    def __init__(self, cf: str, prefix: bytes = b"t") -> None:
        end = prefix_end(prefix)
        assert end is not None, "an index needs a prefix"
        self.cf, self._prefix, self._end = cf, prefix, end

    # -- writing ----------------------------------------------------------------------------------------------------

    def set(self, batch: Batch, time_us: int, key: bytes, kind: int = 0, value: bytes = b"") -> None:
        """Set a timer; twice is once, and the last value counts."""
        batch.put(self.cf, self._name(time_us, key, kind), value)

    def set_many(
        self,
        batch: Batch,
        times: IntArray,
        keys: Keys,
        kinds: int | Kinds = 0,
        values: Sequence[bytes] | None = None,
    ) -> None:
        """Set a timer for each row of columns."""
        names = self._names(times, keys, kinds)
        batch.put_many(self.cf, names, [b""] * len(names) if values is None else values)

    def cancel(self, batch: Batch, time_us: int, key: bytes, kind: int = 0) -> None:
        """Cancel a timer; one that is not set is none."""
        batch.delete(self.cf, self._name(time_us, key, kind))

    def cancel_many(self, batch: Batch, times: IntArray, keys: Keys, kinds: int | Kinds = 0) -> None:
        """Cancel the timer of each row of columns."""
        batch.delete_many(self.cf, self._names(times, keys, kinds))

    def drop(self, batch: Batch, until_us: int = END_OF_TIME_US) -> None:
        """Cancel all timers up to a time, by default all, at once."""
        batch.delete_range(self.cf, *self._range(START_OF_TIME_US, until_us))

    # -- reading ----------------------------------------------------------------------------------------------------

    def due(self, kv: KV, until_us: int) -> DueTimers:
        """Return the timers up to a time, which stay: one range read."""
        return self.between(kv, START_OF_TIME_US, until_us)

    def pop(self, kv: KV, batch: Batch, until_us: int) -> DueTimers:
        """Return the timers up to a time, which are cancelled: they fire."""
        due = self.due(kv, until_us)
        if due:
            self.drop(batch, until_us)
        return due

    def between(self, kv: KV, low_us: int, high_us: int) -> DueTimers:
        """Return the timers from one time to another, both included."""
        return self._timers(kv.scan(self.cf, *self._range(low_us, high_us)))

    def next(self, kv: KV) -> int | None:
        """Return the first time that is set."""
        pair = next(iter(kv.scan(self.cf, self._prefix, self._end)), None)
        return None if pair is None else decode_i64(pair[0], len(self._prefix))

    def get(self, kv: KV, time_us: int, key: bytes, kind: int = 0) -> bytes | None:
        """Return the value of a timer, None where it is not set."""
        return kv.get(self.cf, self._name(time_us, key, kind))

    # -- bytes ------------------------------------------------------------------------------------------------------

    def _name(self, time_us: int, key: bytes, kind: int) -> bytes:
        return self._prefix + encode_i64(time_us) + key + bytes((kind,))

    def _names(self, times: IntArray, keys: Keys, kinds: int | Kinds) -> list[bytes]:
        n = len(times)
        if n <= _FEW and isinstance(keys, list | tuple):
            each = np.broadcast_to(np.asarray(kinds, dtype=np.uint8), (n,)).tolist()
            return [self._name(*timer) for timer in zip(times.tolist(), keys, each, strict=True)]
        head = np.empty((n, len(self._prefix) + 8), dtype=np.uint8)
        head[:, : len(self._prefix)] = np.frombuffer(self._prefix, np.uint8)
        head[:, len(self._prefix) :] = i64_array_to_bytes(times)
        tail = np.broadcast_to(np.asarray(kinds, dtype=np.uint8), (n,)).reshape(-1, 1)
        if isinstance(keys, np.ndarray):
            return rows_to_bytes(head, _matrix(keys), tail)
        column = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        joined = pc.binary_join_element_wise(
            binary_column(head), column, binary_column(np.ascontiguousarray(tail)), b""
        )
        return joined.to_pylist()  # type: ignore[no-any-return]

    def _range(self, low_us: int, high_us: int) -> tuple[bytes, bytes]:
        start = self._prefix + encode_i64(low_us)
        ends = high_us >= END_OF_TIME_US
        return start, self._end if ends else self._prefix + encode_i64(high_us + 1)

    def _timers(self, pairs: Iterable[Pair]) -> DueTimers:
        names, values = map(list, zip(*pairs, strict=True)) if (pairs := list(pairs)) else ([], [])
        at = len(self._prefix)
        times = bytes_to_i64_array(bytes_to_rows([name[at : at + 8] for name in names], 8))
        kinds = np.frombuffer(b"".join([name[-1:] for name in names]), np.uint8)
        return DueTimers(times, [name[at + 8 : -1] for name in names], kinds, values)


def _matrix(keys: npt.NDArray[Any]) -> Bytes2D:
    """Keys as rows of bytes; numbers in their order."""
    return keys.astype(">u8").view(np.uint8).reshape(-1, 8) if keys.dtype == np.uint64 else keys
