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
from operator import itemgetter
from typing import Final

from windrow.stores.block_format import PAGES
from windrow.stores.kv import Batch
from windrow.stores.rocks import LOOKED_UP, RocksKV

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
