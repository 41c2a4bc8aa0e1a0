"""A dict with ordered scans, and a set of key ranges: what batches, overlays and the memory store are made
of.

Point access is a plain dict lookup. Order is made only when it is needed: a dict keeps insertion
order, so the keys that `_sorted` lacks are always the last ones of the dict. A scan sees the map as it was
when the scan was asked for, as a RocksDB iterator does: a change first lets the scans that are still open
copy what they have not yet handed out.
"""

from __future__ import annotations

import bisect
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")
_FEW = 8


class _Scan(Generic[V]):
    """An open scan: the sorted keys still to come, and their values at its start if the map has changed since."""

    __slots__ = ("__weakref__", "data", "keys", "taken")

    def __init__(self, data: dict[bytes, V], keys: list[bytes]) -> None:
        self.data = data
        self.keys = keys
        self.taken = 0

    def freeze(self) -> None:
        data = self.data
        self.data = {key: data[key] for key in itertools.islice(self.keys, self.taken, None)}

    def items(self) -> Iterator[tuple[bytes, V]]:
        for key in self.keys:
            self.taken += 1
            yield key, self.data[key]


class SortedMap(Generic[V]):
    """Keys in byte order, values of any kind."""

    __slots__ = ("_scans", "_sorted", "data")

    def __init__(self) -> None:
        self.data: dict[bytes, V] = {}  # read freely; change through the methods only
        self._sorted: list[bytes] = []
        self._scans: list[weakref.ref[_Scan[V]]] = []

    def __len__(self) -> int:
        return len(self.data)

    def set(self, key: bytes, value: V) -> None:
        if self._scans:
            self._freeze()
        self.data[key] = value

    def update(self, pairs: Iterable[tuple[bytes, V]]) -> None:
        if self._scans:
            self._freeze()
        self.data.update(pairs)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forgets the keys; those that are not there are passed over."""
        gone = [key for key in keys if key in self.data]
        if not gone:
            return
        self._freeze()
        ordered = self._order()
        for key in gone:
            self.data.pop(key, None)
        if len(gone) <= _FEW:
            for key in set(gone):
                del ordered[bisect.bisect_left(ordered, key)]
        else:
            self._sorted = [key for key in ordered if key in self.data]

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Forgets the keys in [start, end)."""
        if not self.data:
            return
        ordered = self._order()
        low, high = bisect.bisect_left(ordered, start), bisect.bisect_left(ordered, end)
        if low < high:
            self._freeze()
            for key in ordered[low:high]:
                del self.data[key]
            del ordered[low:high]

    def scan_ranges(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, V]]:
        """Return the pairs of ranges that are in order and apart."""
        ordered, after, keys = self._order(), 0, list[bytes]()
        for start, end in ranges:
            low = bisect.bisect_left(ordered, start, after)
            if low == len(ordered):
                break
            if ordered[low] < end:
                after = bisect.bisect_left(ordered, end, low)
                keys += ordered[low:after]
        return [(key, self.data[key]) for key in keys]

    def scan(
        self, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, V]]:
        """Pairs with start <= key < end as of this call."""
        ordered = self._order()
        low = bisect.bisect_left(ordered, start)
        high = len(ordered) if end is None else bisect.bisect_left(ordered, end)
        keys = ordered[low:high]
        if not keys:
            return iter(())
        if reverse:
            keys.reverse()
        scan = _Scan(self.data, keys)
        self._scans.append(weakref.ref(scan, self._scans.remove))
        return scan.items()

    def _freeze(self) -> None:
        for reference in list(self._scans):
            scan = reference()
            if scan is not None:
                scan.freeze()
        self._scans.clear()

    def _order(self) -> list[bytes]:
        ordered = self._sorted
        fresh = len(self.data) - len(ordered)
        if fresh:
            late = itertools.islice(reversed(self.data), fresh)
            if fresh <= _FEW:
                for key in late:
                    bisect.insort(ordered, key)
            else:
                ordered.extend(late)
                ordered.sort()
        return ordered


class RangeSet:
    """Half-open key ranges, kept sorted, disjoint and merged."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[bytes] = []
        self.ends: list[bytes] = []

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self.starts, self.ends, strict=True)

    def add(self, start: bytes, end: bytes) -> None:
        """Adds [start, end), which must not be empty."""
        low = bisect.bisect_left(self.ends, start)
        high = bisect.bisect_right(self.starts, end)
        if low < high:
            start = min(start, self.starts[low])
            end = max(end, self.ends[high - 1])
        self.starts[low:high] = [start]
        self.ends[low:high] = [end]

    def __contains__(self, key: bytes) -> bool:
        i = bisect.bisect_right(self.starts, key) - 1
        return i >= 0 and key < self.ends[i]

    def gaps(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the parts of [start, end) that no range covers, in order; `end` None is no end."""
        first = bisect.bisect_right(self.ends, start)
        last = len(self.starts) if end is None else bisect.bisect_left(self.starts, end)
        for i in range(first, last):
            low, high = self.starts[i], self.ends[i]
            if start < low:
                yield start, low
            start = max(start, high)
        if end is None or start < end:
            yield start, end
