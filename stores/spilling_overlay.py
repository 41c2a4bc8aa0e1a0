"""Overlay that spills: if a step's changes do not fit memory, they are written to a store of their own and read from it.

Each cf has first its deleted ranges, in memory, then later points, in the store: 01 and the value of a
put, 00 for a delete. The store lives as long as its step.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from windrow.stores.files import make_folder
from windrow.stores.kv import KV, Batch, Changes, Overlay, Pair, gaps_of, laid_over
from windrow.stores.rocks import RocksKV
from windrow.stores.sorted_map import RangeSet

#: More than this is no longer kept in memory.
SPILL_BYTES: Final = 32 << 20
#: Changes are read back about so many bytes at a time.
PART_BYTES: Final = 8 << 20
_PUT, _DELETED = b"\x01", b"\x00"


class Spilling(Overlay):
    """Overlay whose changes `relieve` spills to disk when they are large. Reads see spilled changes."""

    def __init__(self, base: KV, store_path: str) -> None:
        """store_path: the store next to whose folder changes are spilled, in a folder of their own, until this is closed."""
        super().__init__(base)
        self._folder = f"{store_path}.spill-{os.getpid()}-{time.monotonic_ns()}"
        self._spilled: _Spilled | None = None

    def folder(self) -> str:
        """Return the folder, made if it is not there."""
        make_folder(self._folder)
        return self._folder

    @property
    def spilled(self) -> bool:
        """True if some changes are spilled."""
        return self._spilled is not None

    def so_far(self) -> KV:
        """Return a view of the store as it is now. Later writes do not change it, but spilled changes may still change."""
        now = Overlay(self.base)
        now.batch.extend(self.batch)
        return now

    def relieve(self) -> None:
        """Keep no more than `SPILL_BYTES` in memory."""
        if self.batch.held_bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._spilled is None:
            self.base = self._spilled = _Spilled(self.base, self._store())
        self._spilled.write(self.batch)
        self.batch = Batch()

    def _store(self) -> KV:
        return RocksKV(os.path.join(self.folder(), "changes"), self.cfs)

    @property
    def changes(self) -> Changes:
        """All that is pending."""
        if self._spilled is None:
            return self.batch
        self._spill()
        return self._spilled.changes()

    def close(self) -> None:
        super().close()
        if self._spilled is not None:
            self.base = self._spilled.base
            self._spilled.close()
            self._spilled = None
        shutil.rmtree(self._folder, ignore_errors=True)


class _Spilled:
    """View of a store with changes over it that are spilled to another store."""

    def __init__(self, base: KV, store: KV) -> None:
        self.base, self._store = base, store
        self._ranges: dict[str, RangeSet] = {}
        self._sizes: dict[str, int] = {}

    @property
    def cfs(self) -> tuple[str, ...]:
        return self.base.cfs

    def get(self, cf: str, key: bytes) -> bytes | None:
        [value] = self.multi_get(cf, [key])
        return value

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        stored, ranges = self._store.multi_get(cf, keys), self._ranges.get(cf, ())
        asked = [i for i, value in enumerate(stored) if value is None and keys[i] not in ranges]
        values = [None if value is None else _value(value) for value in stored]
        for i, value in zip(asked, self.base.multi_get(cf, [keys[i] for i in asked]), strict=True):
            values[i] = value
        return values

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        gaps = list(self._ranges.get(cf, RangeSet()).gaps(start, end))
        if reverse:
            gaps.reverse()
        pending = ((key, _value(value)) for key, value in self._store.scan(cf, start, end, reverse))
        return laid_over(gaps_of(self.base, cf, gaps, reverse), pending, reverse)

    def write(self, batch: Batch) -> None:
        """Later changes."""
        for part in batch.parts(PART_BYTES):
            changes = Batch()
            for cf in part.cfs:
                ranges = self._ranges.setdefault(cf, RangeSet())
                for start, end in part.ranges(cf):
                    ranges.add(start, end)
                    changes.delete_range(cf, start, end)
                points = part.points(cf)
                self._sizes[cf] = self._sizes.get(cf, 0) + part.only([cf]).nbytes
                changes.put_many(cf, points, [_DELETED if v is None else _PUT + v for v in points.values()])
            self._store.write(changes)

    def changes(self) -> _Changes:
        """Return all of them."""
        return _Changes(self._store, self._ranges, self._sizes, self.cfs)

    def close(self) -> None:
        self._store.close()


@dataclass(frozen=True)
class _Changes:
    """Net changes of some cfs that do not fit memory."""

    store: KV
    ranges: Mapping[str, RangeSet]
    sizes: Mapping[str, int]
    cfs: tuple[str, ...]

    def only(self, cfs: Iterable[str]) -> _Changes:
        return replace(self, cfs=tuple(cfs))

    @property
    def nbytes(self) -> int:
        """Bytes of all puts; a key that is put again counts twice."""
        return sum(self.sizes.get(cf, 0) for cf in self.cfs)

    def __len__(self) -> int:
        """Return more than 0 where there are any."""
        return sum(len(self.ranges.get(cf, ())) + any(True for _ in self.store.scan(cf)) for cf in self.cfs)

    def parts(self, most: int) -> Iterator[Batch]:
        part, size = Batch(), 0
        for cf in self.cfs:
            for start, end in self.ranges.get(cf, ()):
                part.delete_range(cf, start, end)
            for key, value in self.store.scan(cf):
                if value == _DELETED:
                    part.delete(cf, key)
                else:
                    part.put(cf, key, value[1:])
                size += len(key) + len(value)
                if size >= most:
                    yield part
                    part, size = Batch(), 0
        if len(part):
            yield part

    def encode(self) -> bytes:
        return bytes(self.packed(self.nbytes))

    def packed(self, expected: int) -> memoryview:
        whole = Batch()
        for part in self.parts(PART_BYTES):
            whole.extend(part)
        return whole.packed(expected)


def _value(stored: bytes) -> bytes | None:
    return None if stored == _DELETED else stored[1:]
