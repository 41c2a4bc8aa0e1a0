"""Write-through cache of the pages that a store wrote last. A busy job rewrites the same pages in every commit, and with this
cache it need not read them back from RocksDB.

Nobody else writes an open store, so the cache holds what the store holds. A reader gets the very value that was written, and
may recognize it by identity. A process caches so many bytes of pages, of all its stores. Above that, the pages of other stores
are evicted first. A store whose own pages exceed the limit evicts all, and starts again with those of its next write. If each
commit writes more than that, it reads all pages from RocksDB.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.types import concat
from windrow.stores.block_format import PAGES
from windrow.stores.kv import Batch
from windrow.stores.page_format import rows_in, unpack
from windrow.stores.rocks import LOOKED_UP, RocksKV
from windrow.stores.row_codec import Schemas
from windrow.stores.window_state import UPSERT

RECENT_BYTES: Final = 64 << 20
#: The part of a page's key between its window and its number, and the bound after all pages of a window.
_AT, _START = slice(8, 10), itemgetter(slice(8))
_FIRST, _LAST = (PAGES.to_bytes(8, "big")[:2], ((PAGES >> 48) + 1).to_bytes(2, "big"))


class RecentKV(RocksKV):
    """`RocksKV` with a write-through cache of pages."""

    def __init__(
        self, path: str | os.PathLike[str], cfs: Sequence[str], *, lock_wait_s: float = 10.0
    ) -> None:
        self._pages: dict[str, _Pages] = {}
        super().__init__(path, cfs, lock_wait_s=lock_wait_s)
        _STORES.add(self)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        pages = self._pages.get(cf)
        if not pages:
            return super().multi_get(cf, keys)
        values = list(map(pages.values.get, keys))
        asked = [i for i, value in enumerate(values) if value is None]
        for i, value in zip(asked, super().multi_get(cf, [keys[i] for i in asked]), strict=True):
            values[i] = value
        return values

    def write(self, batch: Batch) -> None:
        # Errors and interrupts come at any line: the cache is empty until the write is complete.
        pages, self._pages = self._pages, {}
        super().write(batch)
        for cf in batch.cfs:
            if cf.endswith(LOOKED_UP):
                pages.setdefault(cf, _Pages()).change(batch, cf)
        size = sum(cached.nbytes for cached in pages.values())
        others = [store for store in list(_STORES) if store is not self and store._pages]
        if others and size + sum(store.nbytes for store in others) > RECENT_BYTES:
            for store in others:
                store._pages = {}
        if size <= RECENT_BYTES:
            self._pages = pages

    @property
    def nbytes(self) -> int:
        """Bytes of the pages at hand."""
        return sum(pages.nbytes for pages in list(self._pages.values()))

    def _release(self) -> None:
        self._pages = {}
        super()._release()


class _Pages:
    """Cached pages of a column family. starts: of the windows that they are of."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.starts: set[bytes] = set()
        self.nbytes = 0

    def change(self, batch: Batch, cf: str) -> None:
        """Apply a batch to the cached pages."""
        for low, high in batch.ranges(cf):
            of = {start for start in self.starts if low < start + _LAST and start + _FIRST < high}
            if of:
                self._remember([key for key in self.values if low <= key < high])
        points = {key: value for key, value in batch.points(cf).items() if key[_AT] == _FIRST}
        before = map(self.values.get, points)
        self.nbytes -= sum(map(len, filter(None, before)))
        fresh = {key: value for key, value in points.items() if value is not None}
        for key in points.keys() - fresh.keys() if len(fresh) < len(points) else ():
            self.values.pop(key, None)
        self.values.update(fresh)
        self.nbytes += sum(map(len, fresh.values()))
        self.starts.update(map(_START, fresh))

    def _remember(self, keys: Iterable[bytes]) -> None:
        self.nbytes -= sum(len(self.values.pop(key)) for key in keys)


#: Stores that are open, or have not been dropped yet.
_STORES: weakref.WeakSet[RecentKV] = weakref.WeakSet()


# -- decoded page cache -----------------------------------------------------------------------------------------------
# Cache of the pages that were written last with their decoded rows: a read of these very values need not decode them.
# It does not matter which store they were read from, nor when: a value is recognized by identity. The cache of raw pages
# is in `stores/page_cache.py`.

#: So few values are runs of their own.
FEW_VALUES = 64


class _Source:
    """Rows, page by page. bounds: where those of each page begin, and where the last ends; places: the place of each value"""

    def __init__(self, values: list[bytes], rows: pa.Table, bounds: IntArray) -> None:
        self.table = rows.append_column(UPSERT, pa.array(np.ones(len(rows), dtype=bool)))
        self.bounds, self._values = bounds, values
        self.places = dict(zip(map(id, values), range(len(values)), strict=True))
        self.nbytes = int(rows.nbytes)


class Written:
    """Cache of the last write of one kind of pages, and of the largest write before it until most of that is rewritten."""

    def __init__(self) -> None:
        self._sources: tuple[_Source, ...] = ()

    def add(self, values: list[bytes], rows: pa.Table, bounds: IntArray) -> None:
        last = _Source(values, rows, bounds)
        most = max(self._sources, key=lambda source: len(source.places), default=last)
        self._sources = (last,) if len(most.places) <= 2 * len(values) else (most, last)

    def release(self) -> None:
        """Drop the cached rows if they are too large to keep beyond a commit."""
        if sum(source.nbytes for source in self._sources) > RECENT_BYTES:
            self._sources = ()

    def has(self, value: bytes) -> bool:
        """True if it was written last, or the last write was so large that it is buffered in a file."""
        return any(id(value) in source.places or source.nbytes > RECENT_BYTES for source in self._sources)

    def rows(self, values: list[bytes], schemas: Schemas) -> list[pa.Table]:
        """Return the rows of pages, in their order; for cached pages without decoding."""
        sources, n = self._sources, len(values)
        ids, of, place = list(map(id, values)), np.full(n, len(sources)), np.zeros(n, dtype=np.int64)
        for i, source in enumerate(sources):
            cached = np.fromiter(map(source.places.get, ids, repeat(-1)), np.int64, n)
            of[cached >= 0], place[cached >= 0] = i, cached[cached >= 0]
        others = np.flatnonzero(of == len(sources))
        read = [values[i] for i in others.tolist()]
        tables = unpack(read, schemas)
        if len(others) == n:
            return tables
        if len(tables) > 1:
            return unpack(values, schemas)
        place[others] = np.arange(len(others))
        each = [(source.table, source.bounds) for source in sources]
        each += [(table, np.r_[0, np.cumsum(rows_in(read))]) for table in tables]
        return [_side_by_side(each, of, place)]


def _side_by_side(each: Sequence[tuple[pa.Table, IntArray]], of: IntArray, place: IntArray) -> pa.Table:
    """Join the rows of pages in order. each: tables, and where the rows of their pages begin; of, place: in which of
    these a page is, and which of its pages it is.
    """
    begins = np.flatnonzero(np.r_[True, (of[1:] != of[:-1]) | (place[1:] != place[:-1] + 1)])
    ends = np.r_[begins[1:], len(of)] - 1
    sizes, lows = np.zeros(len(begins), dtype=np.int64), np.zeros(len(begins), dtype=np.int64)
    for i, (_, bounds) in enumerate(each):
        in_table = of[begins] == i
        lows[in_table] = bounds[place[begins[in_table]]]
        sizes[in_table] = bounds[place[ends[in_table]] + 1] - lows[in_table]
    if len(begins) <= FEW_VALUES:
        runs = zip(of[begins].tolist(), lows.tolist(), sizes.tolist(), strict=True)
        return concat([each[i][0].slice(low, size) for i, low, size in runs])
    # Each table by itself: of few rows of a large one nothing else is touched.
    at, parts, places = np.r_[0, np.cumsum(sizes)[:-1]], list[pa.Table](), list[IntArray]()
    for i, (table, _) in enumerate(each):
        in_table = of[begins] == i
        if in_table.any():
            parts.append(table.take(pa.array(_ranges(lows[in_table], sizes[in_table]))))
            places.append(_ranges(at[in_table], sizes[in_table]))
    if len(parts) == 1:
        return parts[0]
    return concat(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _ranges(lows: IntArray, sizes: IntArray) -> IntArray:
    """Return the numbers of ranges, one range after the other."""
    before = np.cumsum(sizes) - sizes
    numbers: IntArray = np.arange(sizes.sum()) + np.repeat(lows - before, sizes)
    return numbers
