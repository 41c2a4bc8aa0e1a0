"""Mapped run: many pairs that are put together. Their values lie in a file, their keys and offsets in memory.

The file is in the system's temporary folder and has no name: it never outlives the process.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
from collections.abc import Iterator, Sequence

import numpy as np

from windrow.core.arrays import IntArray
from windrow.stores.files import Unnamed


class _Keys(Sequence[bytes]):
    """Keys of one length, in their order, as one value."""

    __slots__ = ("data", "width")

    def __init__(self, data: bytes, width: int) -> None:
        self.data, self.width = data, width

    def __len__(self) -> int:
        return len(self.data) // self.width

    def __getitem__(self, i: int) -> bytes:  # type: ignore[override]
        return self.data[i * self.width : (i + 1) * self.width]


class Run:
    """Pairs in key order, which never change."""

    __slots__ = ("_ends", "_keys", "_starts", "_values", "high", "low")

    def __init__(
        self, keys: _Keys, starts: IntArray, ends: IntArray, values: mmap.mmap, low: int, high: int
    ) -> None:
        self._keys, self._starts, self._ends, self._values = keys, starts, ends, values
        self.low, self.high = low, high  # of all pairs those that are there

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        sizes = self._ends[self.low : self.high] - self._starts[self.low : self.high]
        return int(sizes.sum()) + len(self) * self._keys.width

    @property
    def first(self) -> bytes:
        return self._keys[self.low]

    @property
    def last(self) -> bytes:
        return self._keys[self.high - 1]

    def get(self, key: bytes) -> bytes | None:
        i = self._place(key)
        return self._value(i) if i < self.high and self._keys[i] == key else None

    def scan(
        self, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end."""
        places = range(self._place(start), self.high if end is None else self._place(end))
        return ((self._keys[i], self._value(i)) for i in (reversed(places) if reverse else places))

    def portions(self, most: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield all pairs, as keys and values, about so many bytes at a time."""
        sizes = np.cumsum(
            self._ends[self.low : self.high] - self._starts[self.low : self.high] + self._keys.width
        )
        cuts = self.low + np.searchsorted(sizes, np.arange(0, int(sizes[-1]), max(1, most)))
        cuts = np.unique(np.append(cuts, self.high))
        keys, width, values = self._keys.data, self._keys.width, self._values
        for low, high in itertools.pairwise(cuts.tolist()):
            places = zip(self._starts[low:high].tolist(), self._ends[low:high].tolist(), strict=True)
            yield (
                [keys[i : i + width] for i in range(low * width, high * width, width)],
                [values[start:end] for start, end in places],
            )

    def without(self, start: bytes, end: bytes) -> list[Run]:
        """Return the pairs before `start`, and those from `end` on."""
        cut = ((self.low, self._place(start)), (self._place(end), self.high))
        whole = (self._keys, self._starts, self._ends, self._values)
        return [Run(*whole, low, high) for low, high in cut if low < high]

    def each(self) -> list[Run]:
        """Split into runs of one pair, which are disjoint from any keys between them."""
        whole = (self._keys, self._starts, self._ends, self._values)
        return [Run(*whole, i, i + 1) for i in range(self.low, self.high)]

    def _place(self, key: bytes) -> int:
        return bisect.bisect_left(self._keys, key, self.low, self.high)

    def _value(self, i: int) -> bytes:
        return self._values[self._starts[i] : self._ends[i]]


class Pairs:
    """Builder of a run: pairs in any order, each key once, all keys of one length."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._sizes: list[int] = []
        self._file = Unnamed()

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if not keys:
            return
        self._keys.append(b"".join(keys))
        self._width = len(keys[0])
        self._sizes += map(len, values)
        self._file.write(b"".join(values))

    def run(self) -> Run | None:
        """Return all of them; None where there are none."""
        if not self._sizes:
            return None
        self._file.write(b"\0")  # what is empty cannot be mapped
        values = self._file.mapped()
        keys = np.frombuffer(b"".join(self._keys), dtype=f"S{self._width}")
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum(np.array(self._sizes, dtype=np.int64))
        starts = ends - self._sizes
        ordered = _Keys(keys[order].tobytes(), self._width)
        return Run(ordered, starts[order], ends[order], values, 0, len(order))
