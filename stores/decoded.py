"""Decoded runs of kept messages, in the process, by a digest of their bytes: whoever finds one there need not read it again.

What a digest stands for never changes: an attempt that is given up, state that is set back, another process that has had the
shard in between, all that does no harm. So nothing is ever thrown away for being wrong, only for not being asked for.
"""

from __future__ import annotations

import threading

import pyarrow as pa

#: So many bytes are held in all. What a table takes beside its columns.
MOST_BYTES, TABLE_BYTES = 128 << 20, 16 << 10
#: What nobody has asked for in so many reads goes. Other tables stay, and what finds no room beside them is not held.
READS = 256


class Decoded:
    """Tables by digest, those that were asked for last behind."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._held, self._reads = most_bytes, 0, 0
        self._tables: dict[bytes, tuple[pa.Table, int, int]] = {}
        # An interrupt may leave it held: by a thread that goes on then, and does not wait for itself.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._tables)

    def begin(self) -> None:
        """A read, of one or many runs."""
        with self._lock:
            self._reads += 1
            if self._reads % READS == 0:  # an interrupt may have come between a table and its size
                self._held = sum(size for _, size, _ in self._tables.values())
            while self._tables:
                digest = next(iter(self._tables))
                _, size, read = self._tables[digest]
                if self._reads - read <= READS:
                    break
                self._remove(digest, size)

    def get(self, digest: bytes) -> pa.Table | None:
        with self._lock:
            found = self._tables.pop(digest, None)
            if found is None:
                return None
            self._tables[digest] = (found[0], found[1], self._reads)
            return found[0]

    def has_room(self, nbytes: int) -> bool:
        return self._held + nbytes + TABLE_BYTES <= self._most

    def put(self, digest: bytes, rows: pa.Table) -> None:
        size = int(rows.nbytes) + TABLE_BYTES
        with self._lock:
            if digest not in self._tables and self._held + size <= self._most:
                self._tables[digest] = (rows, size, self._reads)
                self._held += size

    def forget(self, digest: bytes) -> None:
        """It was merged, or taken away."""
        with self._lock:
            if digest in self._tables:
                self._remove(digest, self._tables[digest][1])

    def _remove(self, digest: bytes, size: int) -> None:
        del self._tables[digest]
        self._held -= size


#: Those of this process.
DECODED = Decoded()
