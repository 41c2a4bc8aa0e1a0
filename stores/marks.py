"""Time index of keys: the keys to inspect when time reaches a moment, written without reads and read by ranges of time.

    <prefix><bucket i64><step u64>   the moments as i64, then as many numbers of keys (`stores/page_format.py`) as u64, little
    endian;
                                 of many marks the next ones under <part u32> after the step

A bucket is `width_us` of moments. Marks are never deleted one by one: the reader checks whether there still is
something to do, and a bucket is deleted as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, encode_i64, encode_u64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV, Batch, Pair

#: The most marks in a value: a reader of earlier marks may have to read it.
MOST = 1 << 12


class Marks:
    """Marks under one prefix of a column family."""

    def __init__(self, cf: str, prefix: bytes, width_us: int) -> None:
        self.cf, self.prefix, self.width_us = cf, prefix, width_us

    def add(self, kv: KV, moments: IntArray, hashes: Hashes, step: int) -> None:
        if len(moments) == 0:
            return
        batch = Batch()
        buckets = moments // self.width_us
        order = np.argsort(buckets, kind="stable")
        moments, hashes, buckets = moments[order], hashes[order], buckets[order]
        begins = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
        for low, high in pairwise([*begins.tolist(), len(buckets)]):
            key = self.prefix + encode_i64(int(buckets[low])) + encode_u64(step)
            for part, first in enumerate(range(low, high, MOST)):
                chosen = slice(first, min(first + MOST, high))
                name = key if part == 0 else key + part.to_bytes(4, "big")
                before = _unpack(kv.get(self.cf, name) or b"")
                columns = [
                    np.concatenate(p) for p in zip(before, (moments[chosen], hashes[chosen]), strict=True)
                ]
                batch.put(self.cf, name, b"".join(column.tobytes() for column in columns))
        kv.write(batch)

    def between(self, kv: KV, low_us: int, high_us: int) -> tuple[IntArray, Hashes]:
        """Return (moments, numbers of keys) with `low <= moment <= high`."""
        first, last = self._key(low_us), self._key(high_us) + b"\xff" * 9
        return _of(kv.scan(self.cf, first, last), low_us, high_us)

    def passed(self, kv: KV, low_us: int, high_us: int, before_us: int) -> tuple[IntArray, Hashes, bool]:
        """Return as `between`, and whether there is something to `drop` before a moment: one scan if it was dropped before."""
        last = self._key(high_us) + b"\xff" * 9
        pairs = list(kv.scan(self.cf, self._key(START_OF_TIME_US), last))
        older = bool(pairs) and pairs[0][0] < self._key(before_us)
        return *_of(pairs, low_us, high_us), older

    def first(self, kv: KV) -> int | None:
        """Return the first moment that is marked."""
        pair = next(iter(kv.scan(self.cf, self.prefix, self.prefix + b"\xff" * 17)), None)
        if pair is None:
            return None
        bucket = decode_i64(pair[0], len(self.prefix)) * self.width_us
        return int(self.between(kv, bucket, bucket + self.width_us - 1)[0].min())

    def drop(self, kv: KV, before_us: int = END_OF_TIME_US) -> None:
        """Delete buckets that end at or before a moment, by default all."""
        every = before_us >= END_OF_TIME_US
        self._drop(
            kv, self._key(START_OF_TIME_US), self.prefix + b"\xff" * 17 if every else self._key(before_us)
        )

    def drop_between(self, kv: KV, low_us: int, high_us: int) -> None:
        """Delete the buckets of these moments, and of those between."""
        self._drop(kv, self._key(low_us), self._key(high_us) + b"\xff" * 9)

    def _drop(self, kv: KV, first: bytes, last: bytes) -> None:
        if next(iter(kv.scan(self.cf, first, last)), None) is not None:
            batch = Batch()
            batch.delete_range(self.cf, first, last)
            kv.write(batch)

    def _key(self, moment_us: int) -> bytes:
        return self.prefix + encode_i64(moment_us // self.width_us)


def _of(pairs: Iterable[Pair], low_us: int, high_us: int) -> tuple[IntArray, Hashes]:
    """Return the marks of these moments among the pairs."""
    unpacked = [_unpack(value) for _, value in pairs]
    if not unpacked:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    moments, hashes = (np.concatenate(column) for column in zip(*unpacked, strict=True))
    inside = (moments >= low_us) & (moments <= high_us)
    return moments[inside], hashes[inside]


def _unpack(value: bytes) -> tuple[IntArray, Hashes]:
    half = len(value) // 2
    return np.frombuffer(value[:half], "<i8"), np.frombuffer(value[half:], "<u8")
