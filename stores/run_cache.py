"""Cache of decoded runs of kept messages, in the process, by a digest of their bytes: a cached run is not read again.

The content of a digest never changes. An abandoned attempt, a reset state, or another process that has had the
shard in between does no harm. An entry is never evicted for being wrong, only for not being read, or to
make room: the process holds so many bytes, of which each store that is read has its part. Entries of stores that were not
read for a while are evicted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable

import pyarrow as pa

from windrow.stores.kv import KV, Overlay

#: Bytes that are held in all. Overhead of a table beyond its columns.
MOST_BYTES, TABLE_BYTES = 128 << 20, 16 << 10
#: An entry that is not used in so many reads of its store is evicted.
READS = 256
#: All entries of a store that was not read for so many seconds are evicted.
IDLE_S = 60.0


class Held:
    """Cached runs of one store."""

    def __init__(self, all_of_them: Decoded, read_s: float) -> None:
        self._all, self._reads = all_of_them, 0
        self.nbytes, self.read_s = 0, read_s
        #: (rows, bytes, the read that used them last), the most recently used last.
        self.tables: dict[bytes, tuple[pa.Table, int, int]] = {}

    def begin(self) -> None:
        """Begin a read, of one or many runs."""
        with self._all.lock:
            self._all.here(self)
            self._reads += 1
            if self._reads % READS == 0:  # an interrupt may have come between a table and its size
                self.nbytes = sum(size for _, size, _ in self.tables.values())
            while self.tables:
                digest, (_, _, read) = next(iter(self.tables.items()))
                if self._reads - read <= READS:
                    break
                self.forget(digest)

    def get(self, digest: bytes) -> pa.Table | None:
        with self._all.lock:
            entry = self.tables.pop(digest, None)
            if entry is None:
                return None
            self.tables[digest] = (entry[0], entry[1], self._reads)
            return entry[0]

    def has_room(self, nbytes: int) -> bool:
        """True if so many bytes would fit: in the free room, or in a store's share."""
        with self._all.lock:
            size = nbytes + TABLE_BYTES
            return size <= self._all.free or self.nbytes + size <= self._all.share

    def put(self, digest: bytes, rows: pa.Table) -> None:
        """Hold rows, if they find room."""
        with self._all.lock:
            nbytes = int(rows.nbytes)
            if digest not in self.tables and self.has_room(nbytes):
                self._all.make_room(nbytes + TABLE_BYTES)
                self.tables[digest] = (rows, nbytes + TABLE_BYTES, self._reads)
                self.nbytes += nbytes + TABLE_BYTES

    def forget(self, digest: bytes) -> None:
        """Drop a run that was merged or deleted."""
        with self._all.lock:
            if digest in self.tables:
                self.nbytes -= self.tables.pop(digest)[1]


class Decoded:
    """Cache of tables of all stores, `most_bytes` in all. idle_s: a store not read in so many seconds loses its own; None: it
    does not.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        idle_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle_s, self._clock = most_bytes, idle_s, clock
        self._stores: dict[Hashable, Held] = {}
        self._watch: threading.Timer | None = None
        # An interrupt may leave it held, by a thread that then continues and does not wait for itself.
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return sum(len(held.tables) for held in self._stores.values())

    def of(self, store: Hashable) -> Held:
        """Return the cached runs of the store of this name."""
        with self.lock:
            if store not in self._stores:
                self._stores[store] = Held(self, self._clock())
            return self._stores[store]

    @property
    def free(self) -> int:
        return self._most - sum(held.nbytes for held in self._stores.values())

    @property
    def share(self) -> int:
        """Return the bytes that each store may have, whatever the others have."""
        return self._most // max(len(self._stores), 1)

    def here(self, held: Held) -> None:
        """Note that a store is read."""
        held.read_s = self._clock()
        if self._idle_s is not None and (self._watch is None or not self._watch.is_alive()):
            self._watch_for(self._idle_s)

    def make_room(self, nbytes: int) -> None:
        """Evict the least recently used entries of the largest stores."""
        while self._stores and self.free < nbytes:
            largest = max(self._stores.values(), key=lambda held: held.nbytes)
            if not largest.tables:
                largest.nbytes = 0
                return
            largest.forget(next(iter(largest.tables)))

    def release(self) -> None:
        """Evict the entries of stores that are no longer read."""
        if self._idle_s is None:
            return
        with self.lock:
            before_s = self._clock() - self._idle_s
            for store in [name for name, held in self._stores.items() if held.read_s <= before_s]:
                del self._stores[store]

    def _watch_for(self, seconds: float) -> None:
        watch = threading.Timer(seconds, self._look)
        watch.daemon = True
        try:
            watch.start()
        except RuntimeError:  # the process ends, or has as many as it may: the next read tries again
            self._watch = None
        else:
            self._watch = watch

    def forked(self) -> None:
        """Reset the cache after a fork: lost threads may have held the lock, and the stores are the parent's."""
        self.lock, self._stores, self._watch = threading.RLock(), {}, None

    def _look(self) -> None:
        with self.lock:
            self.release()
            if self._stores and self._idle_s is not None:
                self._watch_for(self._idle_s)
            else:
                self._watch = None


def name_of(kv: KV) -> Hashable:
    """Return the cache name of a store: its folder, however often it is opened; the object's id where it has none."""
    while isinstance(kv, Overlay):
        kv = kv.base
    return getattr(kv, "path", id(kv))


#: The cache of this process.
DECODED = Decoded(idle_s=IDLE_S)
os.register_at_fork(after_in_child=DECODED.forked)
