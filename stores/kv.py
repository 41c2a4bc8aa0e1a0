"""Key-value interface of all stores: batches, the KV protocol, and an overlay of pending changes.

A store is a set of named column families ("cfs"), each an ordered map from bytes to bytes. It changes by whole batches only.
Operators read through an `Overlay` and write into its batch; the batch becomes a segment, and only when the commit that names
the segment exists is it written to the store (log first, apply later).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgpack

from windrow.core.errors import CorruptState
from windrow.stores.mapped_run import Run
from windrow.stores.sorted_map import RangeSet, SortedMap

Pair: TypeAlias = tuple[bytes, bytes]
Op: TypeAlias = tuple[Literal["put", "delete", "delete_range"], str, bytes, bytes]
_UNSET: Final = object()
#: A part of a batch gets so many pairs at a time.
_PAIRS: Final = 256
#: msgpack has at most so many bytes before a key and its value.
_HEADER_BYTES: Final = 10
#: Values of at least so many bytes on average may be views of encoded bytes.
VIEWED_BYTES = 4 << 10
#: Bytes of msgpack's size of bytes, texts and lists, by the byte before it; the size of short texts and lists is in that byte.
_WIDTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}
_NIL: Final = 0xC0


class _Changes:
    """Changes of one cf: deleted ranges, then disjoint runs of puts, then points (None: deleted)
    that came after them.
    """

    __slots__ = ("points", "ranges", "runs")

    def __init__(self) -> None:
        self.points: SortedMap[bytes | None] = SortedMap()
        self.ranges = RangeSet()
        self.runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self.points or self.runs or self.ranges)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.points.remove_range(start, end)
        self.runs = [left for run in self.runs for left in run.without(start, end)]
        self.ranges.add(start, end)

    def put_run(self, run: Run) -> None:
        beside = all(other.last < run.first or run.last < other.first for other in self.runs)
        if beside and next(self.points.scan(run.first, run.last + b"\0"), None) is None:
            self.runs = sorted([*self.runs, run], key=lambda one: one.first)
        else:
            self.points.update(run.scan())

    def in_runs(self, key: bytes) -> bytes | None:
        at = bisect.bisect_right(self.runs, key, key=lambda run: run.first) - 1
        return self.runs[at].get(key) if at >= 0 else None

    def scan_runs(self, start: bytes, end: bytes | None, reverse: bool) -> Iterator[Pair]:
        runs = reversed(self.runs) if reverse else self.runs
        return itertools.chain.from_iterable(run.scan(start, end, reverse) for run in runs)

    def net(self) -> dict[bytes, bytes | None]:
        """Return the last change of each key."""
        if not self.runs:
            return self.points.data
        return {**dict(self.scan_runs(b"", None, False)), **self.points.data}


class Batch:
    """Changes that take effect together, the later of two on one key winning.

    Kept in its net form: for each cf the deleted ranges, then one last change for each key. So only net changes are
    encoded, logged and written, and a batch can be read through (`Overlay`).
    """

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[str, _Changes] = {}

    def put(self, cf: str, key: bytes, value: bytes) -> None:
        self._of(cf).points.set(key, value)

    def put_many(self, cf: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Put each pair, much faster than `put`."""
        self._of(cf).points.update(zip(keys, values, strict=True))

    def put_run(self, cf: str, run: Run) -> None:
        """Put all pairs of a run, without a copy."""
        self._of(cf).put_run(run)

    def delete(self, cf: str, key: bytes) -> None:
        self._of(cf).points.set(key, None)

    def delete_many(self, cf: str, keys: Iterable[bytes]) -> None:
        self._of(cf).points.update((key, None) for key in keys)

    def delete_range(self, cf: str, start: bytes, end: bytes) -> None:
        """Deletes start <= key < end; nothing where that is empty (RocksDB would take it and fail at its next flush)."""
        if start < end:
            self._of(cf).delete_range(start, end)

    def extend(self, later: Batch) -> None:
        """Adds the changes of a later batch."""
        for cf, changes in later._changes.items():
            own = self._of(cf)
            for start, end in changes.ranges:
                own.delete_range(start, end)
            for run in changes.runs:
                own.put_run(run)
            own.points.update(changes.points.data.items())

    def clear(self) -> None:
        self._changes.clear()

    def only(self, cfs: Iterable[str]) -> Batch:
        """Return the part that concerns these cfs (shared with this batch, not copied)."""
        part = Batch()
        part._changes = {cf: self._changes[cf] for cf in cfs if cf in self._changes}
        return part

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values that are put."""
        runs = sum(run.nbytes for changes in self._changes.values() for run in changes.runs)
        return runs + self.held_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of those keys and values that are in memory."""
        points = [changes.points.data for changes in self._changes.values()]
        return sum(
            sum(map(len, changed)) + sum(map(len, filter(None, changed.values()))) for changed in points
        )

    def parts(self, most: int) -> Iterator[Batch]:
        """Yield the same changes as batches of about so many bytes, to be written one after the other."""
        part, size = Batch(), 0
        for cf, changes in self._changes.items():
            for start, end in changes.ranges:
                part.delete_range(cf, start, end)
            for keys, values in (portion for run in changes.runs for portion in run.portions(most)):
                part.put_many(cf, keys, values)
                size += sum(map(len, keys)) + sum(map(len, values))
                if size >= most:
                    yield part
                    part, size = Batch(), 0
            pairs = iter(changes.points.data.items())
            while portion := list(itertools.islice(pairs, _PAIRS)):
                part._of(cf).points.update(portion)
                put = [value for _, value in portion if value]
                size += sum([len(key) for key, _ in portion]) + sum(map(len, put))
                if size >= most:
                    yield part
                    part, size = Batch(), 0
        if len(part):
            yield part

    @property
    def cfs(self) -> tuple[str, ...]:
        return tuple(cf for cf, changes in self._changes.items() if changes)

    @property
    def ops(self) -> Iterator[Op]:
        """Net changes, for each cf ranges first: (kind, cf, key or start, value or end; a delete has b"")."""
        for cf, changes in self._changes.items():
            for start, end in changes.ranges:
                yield "delete_range", cf, start, end
            points = changes.points.data
            for key, value in changes.scan_runs(b"", None, False):
                if key not in points:
                    yield "put", cf, key, value
            for key, last in points.items():
                yield ("delete", cf, key, b"") if last is None else ("put", cf, key, last)

    def ranges(self, cf: str) -> RangeSet:
        """Deleted ranges of a cf; they take effect before its points."""
        return self._changes[cf].ranges if cf in self._changes else RangeSet()

    def points(self, cf: str) -> dict[bytes, bytes | None]:
        """Last change of each key of a cf, None for a delete. Not to be changed."""
        return self._changes[cf].net() if cf in self._changes else {}

    def changes(self, cf: str) -> _Changes | None:
        """Live changes of a cf, None where nothing changed yet."""
        return self._changes.get(cf)

    def __len__(self) -> int:
        each = self._changes.values()
        return sum(len(c.points) + len(c.ranges) + sum(map(len, c.runs)) for c in each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self._net() == other._net()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        of = self._changes.items()
        counts = ", ".join(f"{cf}: {len(c.points)} points, {len(c.ranges)} ranges" for cf, c in of)
        return f"<Batch {counts or 'empty'}>"

    def encode(self) -> bytes:
        """Return msgpack [[cf, [start, ...], [end, ...], [key, ...], [value or nil, ...]], ...] (docs/reference/formats.md)"""
        return bytes(self.packed(self.nbytes))

    def packed(self, expected: int) -> memoryview:
        """Encode as `encode` does, without a copy. expected: so many bytes of keys and values, about"""
        changes = [
            [cf, c.ranges.starts, c.ranges.ends, list(net := c.net()), list(net.values())]
            for cf, c in self._changes.items()
            if c
        ]
        size = expected + _HEADER_BYTES * (1 + sum(len(keys) for *_, keys, _ in changes))
        packer = msgpack.Packer(autoreset=False, buf_size=max(size, 1 << 10))
        packer.pack(changes)
        return packer.getbuffer()  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, data: bytes | memoryview, views: bool = False) -> Batch:
        """Decode what `encode` returns. views: large values are views of `data`, for a reader that keeps none of them"""
        batch = cls()
        try:
            for cf, starts, ends, keys, values in (
                _viewed(memoryview(data)) if views else msgpack.unpackb(data)
            ):
                changes = batch._of(cf)
                for start, end in zip(starts, ends, strict=True):
                    changes.ranges.add(start, end)
                changes.points.update(zip(keys, values, strict=True))
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise CorruptState(f"a batch of {len(data)} bytes cannot be read: {error}") from error
        return batch

    def _of(self, cf: str) -> _Changes:
        changes = self._changes.get(cf)
        if changes is None:
            changes = self._changes[cf] = _Changes()
        return changes

    def _net(self) -> dict[str, Any]:
        return {cf: (list(self.ranges(cf)), self.points(cf)) for cf in self.cfs}


def _viewed(data: memoryview) -> Any:
    """Decode msgpack's list of families. Where values are large on average they are views, of which msgpack makes copies."""
    families: list[tuple[str, list[bytes], list[bytes], list[bytes], list[memoryview | None]]] = []
    count, at = _sized(data, 0)
    for _ in range(count):
        size, at = _sized(data, at + 1)
        cf, at = str(data[at : at + size], "utf-8"), at + size
        starts, at = _list(data, at)
        ends, at = _list(data, at)
        if _sized(data, at)[0] * VIEWED_BYTES > len(data):
            return msgpack.unpackb(data)
        keys, at = _list(data, at)
        values, at = _list(data, at)
        families.append((cf, _bytes(starts), _bytes(ends), _bytes(keys), values))
    return families


def _bytes(views: Iterable[memoryview | None]) -> list[bytes]:
    return [b"" if view is None else bytes(view) for view in views]


def _list(data: memoryview, at: int) -> tuple[list[memoryview | None], int]:
    """Return the elements of msgpack's list of bytes or nil at a place, and where it ends."""
    elements: list[memoryview | None] = []
    count, at = _sized(data, at)
    for _ in range(count):
        size, begin = _sized(data, at)
        elements.append(None if data[at] == _NIL else data[begin : begin + size])
        at = begin + size
    return elements, at


def _sized(data: memoryview, at: int) -> tuple[int, int]:
    """Return the size of msgpack's list, text or bytes at a place, and where its content begins. Nil has no content."""
    head = data[at]
    width = _WIDTHS.get(head, 0)
    if not width:
        return head & (0x1F if head & 0xE0 == 0xA0 else 0x0F), at + 1
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


class Changes(Protocol):
    """Changes of a step, of any size: a batch, or changes that do not fit memory."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def only(self, cfs: Iterable[str]) -> Changes: ...

    def parts(self, most: int) -> Iterator[Batch]: ...

    def encode(self) -> bytes: ...

    def packed(self, expected: int) -> memoryview: ...


@runtime_checkable
class KV(Protocol):
    """Column families of ordered bytes. A scan sees the store as of the call, whatever is written meanwhile."""

    @property
    def cfs(self) -> tuple[str, ...]: ...

    def get(self, cf: str, key: bytes) -> bytes | None: ...

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        """Pairs with start <= key < end in key order, or from the end backwards."""
        ...

    def write(self, batch: Batch) -> None:
        """Write all of the batch or nothing."""
        ...

    def close(self) -> None: ...


class LocalStore(KV, Protocol):
    """A store in a folder of its own, as a shard opens it."""

    @property
    def path(self) -> str: ...

    def checkpoint(self, path: str) -> None:
        """Write a consistent copy to `path`, which must not exist."""


class MemoryKV:
    """A store that lives as long as its process: for tests, and for state that is cheap to rebuild."""

    def __init__(self, cfs: Sequence[str]) -> None:
        self._maps: dict[str, SortedMap[bytes]] = {cf: SortedMap() for cf in cfs}

    @property
    def cfs(self) -> tuple[str, ...]:
        return tuple(self._maps)

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._maps[cf].data.get(key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._maps[cf].data.get, keys))

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        return self._maps[cf].scan(start, end, reverse)

    def write(self, batch: Batch) -> None:
        maps = [self._maps[cf] for cf in batch.cfs]  # an unknown cf fails before anything changes
        for cf, target in zip(batch.cfs, maps, strict=True):
            for start, end in batch.ranges(cf):
                target.remove_range(start, end)
            points = batch.points(cf)
            target.remove(key for key, value in points.items() if value is None)
            target.update((key, value) for key, value in points.items() if value is not None)

    def close(self) -> None:
        """Nothing to release; the contents stay readable."""


class Overlay:
    """A store with a pending batch on top: reads see the writes, and the store below does not change.

    Writes are added to `batch`, through the overlay or directly. While an overlay is in use nobody else writes to
    its base.
    """

    def __init__(self, base: KV) -> None:
        self.base = base
        self.batch = Batch()

    @property
    def cfs(self) -> tuple[str, ...]:
        return self.base.cfs

    def put(self, cf: str, key: bytes, value: bytes) -> None:
        self.batch.put(cf, key, value)

    def delete(self, cf: str, key: bytes) -> None:
        self.batch.delete(cf, key)

    def delete_range(self, cf: str, start: bytes, end: bytes) -> None:
        self.batch.delete_range(cf, start, end)

    def write(self, batch: Batch) -> None:
        unknown = set(batch.cfs) - set(self.cfs)
        if unknown:
            raise KeyError(unknown.pop())
        self.batch.extend(batch)

    def get(self, cf: str, key: bytes) -> bytes | None:
        changes = self.batch.changes(cf)
        if changes is not None:
            value = changes.points.data.get(key, _UNSET)
            if value is _UNSET and changes.runs and (put := changes.in_runs(key)) is not None:
                return put
            if value is not _UNSET:
                return value  # type: ignore[return-value]
            if changes.ranges and key in changes.ranges:
                return None
        return self.base.get(cf, key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        changes = self.batch.changes(cf)
        if changes is None:
            return self.base.multi_get(cf, keys)
        ranges = changes.ranges
        values: list[Any] = [changes.points.data.get(key, _UNSET) for key in keys]
        if changes.runs:
            low, high = changes.runs[0].first, changes.runs[-1].last  # mostly of windows that are not read
            for i in [i for i, key in enumerate(keys) if low <= key <= high and values[i] is _UNSET]:
                if (put := changes.in_runs(keys[i])) is not None:
                    values[i] = put
        asked = [
            i for i, value in enumerate(values) if value is _UNSET and not (ranges and keys[i] in ranges)
        ]
        for i, value in zip(asked, self.base.multi_get(cf, [keys[i] for i in asked]), strict=True):
            values[i] = value
        return [None if value is _UNSET else value for value in values]

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        changes = self.batch.changes(cf)
        if changes is None:
            return self.base.scan(cf, start, end, reverse)
        pending = changes.points.scan(start, end, reverse)
        gaps = list(changes.ranges.gaps(start, end))[:: -1 if reverse else 1]
        below = gaps_of(self.base, cf, gaps, reverse)
        if changes.runs:
            below = laid_over(below, changes.scan_runs(start, end, reverse), reverse)
        return laid_over(below, pending, reverse) if changes.points else below

    def scan_ranges(self, cf: str, ranges: Sequence[tuple[bytes, bytes]]) -> list[Pair]:
        changes = self.batch.changes(cf)
        if changes is None:
            return scan_ranges(self.base, cf, ranges)
        if changes.runs:
            return [pair for start, end in ranges for pair in self.scan(cf, start, end)]
        gaps = [gap for pair in ranges for gap in changes.ranges.gaps(*pair)] if changes.ranges else ranges
        below = scan_ranges(self.base, cf, gaps)  # type: ignore[arg-type]
        pending = changes.points.scan_ranges(ranges)
        return list(laid_over(iter(below), iter(pending), False)) if pending else below

    def close(self) -> None:
        """Forgets the pending batch; the base stays open."""
        self.batch = Batch()


def scan_ranges(kv: KV, cf: str, ranges: Sequence[tuple[bytes, bytes]]) -> list[Pair]:
    """Return the pairs of many ranges that are in order and apart: as scans of each give them, at once where the store can."""
    at_once: Any = getattr(kv, "scan_ranges", None)
    if at_once is not None:
        return list(at_once(cf, ranges))
    return [pair for start, end in ranges for pair in kv.scan(cf, start, end)]


def gaps_of(base: KV, cf: str, gaps: list[tuple[bytes, bytes | None]], reverse: bool) -> Iterator[Pair]:
    """Scans of the base over the gaps between deleted ranges: deleted rows are not even read."""
    if len(gaps) == 1:
        return base.scan(cf, *gaps[0], reverse)
    return (pair for gap in gaps for pair in base.scan(cf, *gap, reverse))


def laid_over(
    below: Iterator[Pair], pending: Iterator[tuple[bytes, bytes | None]] | Iterator[Pair], reverse: bool
) -> Iterator[Pair]:
    """Both in key order; of two with one key the pending one, and a pending None hides it."""
    newer = next(pending, None)
    for pair in below:
        key = pair[0]
        while newer is not None and (newer[0] > key if reverse else newer[0] < key):
            if newer[1] is not None:
                yield newer[0], newer[1]
            newer = next(pending, None)
        if newer is None or newer[0] != key:
            yield pair
            continue
        if newer[1] is not None:
            yield key, newer[1]
        newer = next(pending, None)
    while newer is not None:
        if newer[1] is not None:
            yield newer[0], newer[1]
        newer = next(pending, None)
