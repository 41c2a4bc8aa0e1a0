"""Retention by size for time windows: at most so many windows, or messages, per key or for the whole job.

An `advance` evicts at its beginning, by the counts that the steps before left: the oldest windows first, by end. Eviction
raises a floor: windows of that key that end at or below it are out of retention and never come back.

Auxiliary keys, of the retained windows of a key (per job: of all, under no key):

    k<key>                       msgpack [floor, windows, messages]
    w<key><end i64><start i64>   messages of a window, u64
    x                            timers at their ends, by <key><start i64>, where limits are per key
    y<end i64><start i64><hash>  nothing: the key of a session of that window, as pages have it, u64, where limits are per job
    t<key>                       marks those that changed since the last `advance`: hash of the key, u64, as pages have it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, decode_u64, encode_i64, encode_u64, prefix_end
from windrow.core.keys import encode_equal
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.steps.columns import END, MESSAGES, START
from windrow.operators.steps.groups import Groups, combine
from windrow.stores.kv import KV, Batch
from windrow.stores.page_format import hashes_of
from windrow.stores.timers import TimerIndex

_COUNTED, _TOUCHED, _WINDOW, _ENDS, _KEYS = b"k", b"t", b"w", b"x", b"y"


class Gone(NamedTuple):
    """A window that is beyond the limits. key: encoded, b"" where they are per job; hashed: the key's hash in pages, None where
    limits are per job; messages: of all that have this window.
    """

    key: bytes
    start: int
    end: int
    hashed: int | None
    messages: int


@dataclass
class Counted:
    """The retained windows and messages of a key. floor: windows that end at or below it have been evicted."""

    floor: int = START_OF_TIME_US
    windows: int = 0
    messages: int = 0

    @classmethod
    def load(cls, value: bytes | None) -> Counted:
        return cls() if value is None else cls(*msgpack.unpackb(value))

    def dump(self) -> bytes:
        packed: bytes = msgpack.packb([self.floor, self.windows, self.messages])
        return packed


class SizeLimits:
    """The windows of each key (or of the job), counted; it chooses the windows to evict."""

    def __init__(self, definition: AggregateDefinition, aux_cf: str) -> None:
        retention = definition.retention
        self.windows, self.messages = retention.windows, retention.messages
        self.by = definition.by if retention.per == "key" else ()
        #: The keys that identify sessions in pages, where limits are per job.
        self.keys = () if self.by else definition.by
        self.aux_cf, self._ends = aux_cf, TimerIndex(aux_cf, _ENDS)

    @property
    def active(self) -> bool:
        return self.windows is not None or self.messages is not None

    def _keys(self, table: pa.Table) -> tuple[list[bytes], Groups]:
        groups = Groups([table.column(b) for b in self.by], len(table))
        first = pa.array(groups.first_rows)
        return encode_equal([combine(table.column(b)).take(first) for b in self.by]) if self.by else [
            b""
        ], groups

    def _hashes(self, table: pa.Table, groups: Groups) -> list[int]:
        """Return the hashes of `_keys` in pages."""
        if not self.by:
            return [0]
        hashes: list[int] = hashes_of(
            table.select(self.by).take(pa.array(groups.first_rows)), self.by
        ).tolist()
        return hashes

    def floors(self, kv: KV, table: pa.Table) -> IntArray:
        """Return for each row the end at or below which windows of its key are out of retention."""
        if len(table) == 0:
            return np.zeros(0, dtype=np.int64)
        keys, groups = self._keys(table)
        values = kv.multi_get(self.aux_cf, [_COUNTED + k for k in keys])
        floors = [START_OF_TIME_US if v is None else msgpack.unpackb(v)[0] for v in values]
        return np.array(floors, dtype=np.int64)[groups.codes]

    def note(self, kv: KV, deltas: pa.Table) -> None:
        """Count the windows and messages of new rows."""
        keys, groups = self._keys(deltas)
        columns = (combine(deltas.column(c)).to_pylist() for c in (START, END, MESSAGES))
        added: Counter[tuple[int, int, int]] = Counter()
        for code, start, end, n in zip(groups.codes.tolist(), *columns, strict=True):
            added[code, end, start] += n
        counted = [Counted.load(v) for v in kv.multi_get(self.aux_cf, [_COUNTED + k for k in keys])]
        known = kv.multi_get(self.aux_cf, [_row(keys[code], end, start) for code, end, start in added])
        batch = Batch()
        for ((code, end, start), n), value in zip(added.items(), known, strict=True):
            self._put(batch, keys[code], end, start, n + (0 if value is None else decode_u64(value)))
            counted[code].windows += value is None
            counted[code].messages += n
        batch.put_many(self.aux_cf, [_COUNTED + k for k in keys], [c.dump() for c in counted])
        hashes = self._hashes(deltas, groups)
        batch.put_many(self.aux_cf, [_TOUCHED + k for k in keys], map(encode_u64, hashes))
        kv.write(batch)

    def change(self, kv: KV, before: pa.Table | None, after: pa.Table) -> None:
        """Replace the counts of the windows `before` by those of `after`, which may be others or hold more: sessions."""
        names = [START, END, MESSAGES, *self.by]
        tables = [table.select(names) for table in (before, after) if table is not None]
        sign = np.ones(sum(map(len, tables)), dtype=np.int64)
        sign[: len(sign) - len(after)] = -1
        rows = concat(tables)
        messages = combine(rows.column(MESSAGES)).to_numpy() * sign
        groups = Groups([rows.column(n) for n in names if n != MESSAGES], len(rows))
        more = np.bincount(groups.codes, messages, groups.size).astype(np.int64)
        self._change(kv, rows.take(pa.array(groups.first_rows)), more)
        if self.keys:
            self._note_keys(kv, before, after)

    def _note_keys(self, kv: KV, before: pa.Table | None, after: pa.Table) -> None:
        """Replace the recorded keys of sessions by those that have sessions now, window by window."""
        batch, there = Batch(), _names_of_keys(after, self.keys)
        were = set[bytes]() if before is None else _names_of_keys(before, self.keys)
        batch.delete_many(self.aux_cf, sorted(were - there))
        came = sorted(there - were)  # their neighbours in a page stay as they are
        batch.put_many(self.aux_cf, came, [b""] * len(came))
        kv.write(batch)

    def keys_of(self, kv: KV, start: int, end: int) -> list[int]:
        """Remove and return the key hashes of the sessions of an evicted window, where limits are per job."""
        head, batch = _KEYS + encode_i64(end) + encode_i64(start), Batch()
        hashes = [decode_u64(name, len(head)) for name, _ in kv.scan(self.aux_cf, head, prefix_end(head))]
        batch.delete_range(self.aux_cf, head, head + b"\xff" * 9)
        kv.write(batch)
        return hashes

    def _change(self, kv: KV, windows: pa.Table, more: IntArray) -> None:
        """Add to the counts of windows. more: the change in messages of each of these windows."""
        windows, more = windows.filter(pa.array(more != 0)), more[more != 0]
        if len(windows) == 0:
            return
        keys, groups = self._keys(windows)
        counted = [Counted.load(v) for v in kv.multi_get(self.aux_cf, [_COUNTED + k for k in keys])]
        columns = (combine(windows.column(c)).to_pylist() for c in (END, START))
        places = list(zip(groups.codes.tolist(), *columns, strict=True))
        known = kv.multi_get(self.aux_cf, [_row(keys[code], end, start) for code, end, start in places])
        batch = Batch()
        for (code, end, start), n, value in zip(places, more.tolist(), known, strict=True):
            there = 0 if value is None else decode_u64(value)
            if there + n > 0:
                self._put(batch, keys[code], end, start, there + n)
                counted[code].windows += value is None
                counted[code].messages += n
            elif value is not None:
                self._remove(batch, keys[code], end, start, there, counted[code])
        batch.put_many(self.aux_cf, [_COUNTED + k for k in keys], [c.dump() for c in counted])
        hashes = self._hashes(windows, groups)
        batch.put_many(self.aux_cf, [_TOUCHED + k for k in keys], map(encode_u64, hashes))
        kv.write(batch)

    def begin_anew(self, kv: KV) -> None:
        """Delete the windows; the floors stay."""
        batch = Batch()
        for name, value in kv.scan(self.aux_cf, _COUNTED, b"l"):
            batch.put(self.aux_cf, name, Counted(Counted.load(value).floor).dump())
        batch.delete_range(self.aux_cf, _WINDOW, _ENDS)
        batch.delete_range(self.aux_cf, _KEYS, b"z")
        kv.write(batch)

    def evict(self, kv: KV, retention_floor_us: int) -> Iterator[Gone]:
        """Yield each window that is beyond the limits; the floors rise accordingly."""
        touched = [(k[1:], v) for k, v in kv.scan(self.aux_cf, _TOUCHED, b"u")]
        if not touched:
            return
        batch = Batch()
        gone: list[Gone] = []
        for key, value in touched:
            counted = Counted.load(kv.get(self.aux_cf, _COUNTED + key))
            for end, start, messages in self._oldest(kv, key):
                expired = end <= retention_floor_us
                if not expired and not self._too_much(counted):
                    break
                self._remove(batch, key, end, start, messages, counted)
                if not expired:
                    counted.floor = max(counted.floor, end)
                    hashed = decode_u64(value) if self.by else None
                    gone.append(Gone(key, start, end, hashed, messages))
            batch.put(self.aux_cf, _COUNTED + key, counted.dump())
            if self.by and not counted.windows:
                # Only its floor is left: it is read again when no window could be below it any more.
                self._ends.set(batch, counted.floor, key + encode_i64(START_OF_TIME_US))
        batch.delete_range(self.aux_cf, _TOUCHED, b"u")
        kv.write(batch)
        yield from gone

    def forget(self, kv: KV, retention_floor_us: int) -> None:
        """Delete the counts of keys whose windows have all expired by time."""
        batch = Batch()
        keys = [b""]
        if self.by:
            due = self._ends.pop(kv, batch, retention_floor_us)
            keys = list(dict.fromkeys(name[:-8] for name in due.keys))
        values = kv.multi_get(self.aux_cf, [_COUNTED + key for key in keys])
        for key, value in zip(keys, values, strict=True):
            counted = Counted.load(value)
            for end, start, messages in self._oldest(kv, key):
                if end > retention_floor_us:
                    break
                self._remove(batch, key, end, start, messages, counted)
            if value is None or (not counted.windows and counted.floor <= retention_floor_us):
                batch.delete(self.aux_cf, _COUNTED + key)
            else:
                batch.put(self.aux_cf, _COUNTED + key, counted.dump())
        if self.keys:
            batch.delete_range(self.aux_cf, _KEYS, _KEYS + encode_i64(retention_floor_us) + b"\xff")
        kv.write(batch)

    def _too_much(self, counted: Counted) -> bool:
        return (self.windows is not None and counted.windows > self.windows) or (
            self.messages is not None and counted.messages > self.messages
        )

    def _oldest(self, kv: KV, key: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield (end, start, messages) of the windows of a key, oldest first."""
        head = _WINDOW + key
        for name, value in kv.scan(self.aux_cf, head, prefix_end(head)):
            yield decode_i64(name, len(head)), decode_i64(name, len(head) + 8), decode_u64(value)

    def _put(self, batch: Batch, key: bytes, end: int, start: int, messages: int) -> None:
        batch.put(self.aux_cf, _row(key, end, start), encode_u64(messages))
        if self.by:
            self._ends.set(batch, end, key + encode_i64(start))

    def _remove(
        self, batch: Batch, key: bytes, end: int, start: int, messages: int, counted: Counted
    ) -> None:
        counted.windows -= 1
        counted.messages -= messages
        batch.delete(self.aux_cf, _row(key, end, start))
        if self.by:
            self._ends.cancel(batch, end, key + encode_i64(start))


def _row(key: bytes, end: int, start: int) -> bytes:
    return _WINDOW + key + encode_i64(end) + encode_i64(start)


def _names_of_keys(sessions: pa.Table, by: tuple[str, ...]) -> set[bytes]:
    columns = (combine(sessions.column(c)).to_pylist() for c in (END, START))
    hashes = hashes_of(sessions, by).tolist()
    return {
        _KEYS + encode_i64(end) + encode_i64(start) + encode_u64(hashed)
        for end, start, hashed in zip(*columns, hashes, strict=True)
    }
