"""Retention by size for time windows: at most so many windows, or messages, per key or for the whole job.

Decided at the beginning of an `advance` from what the steps before left; the oldest windows, by end, go first. What they
leave is a floor: windows of that key that end at or below it are out of retention and never come back.

Auxiliary keys: `k<key>` -> msgpack [floor, [[start, end, messages], ...]], the retained windows of a key (per job: of all);
`t<key>` marks those that changed since the last `advance`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.keys import Encode, encode_equal
from windrow.core.time import START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.steps.columns import END, MESSAGES, START
from windrow.operators.steps.groups import Groups, combine
from windrow.stores.kv import KV, Batch

_LEDGER, _TOUCHED = b"k", b"t"


class SizeLimits:
    """Counts the windows of each key (or of the job) and says which have to go."""

    def __init__(self, definition: AggregateDefinition, aux_cf: str) -> None:
        retention = definition.retention
        self.windows, self.messages = retention.windows, retention.messages
        self.by = definition.by if retention.per == "key" else ()
        self.aux_cf = aux_cf
        self.encode: Encode = encode_equal

    @property
    def active(self) -> bool:
        return self.windows is not None or self.messages is not None

    def _keys(self, table: pa.Table) -> tuple[list[bytes], Groups]:
        groups = Groups([table.column(b) for b in self.by], len(table))
        first = pa.array(groups.first_rows)
        return self.encode([combine(table.column(b)).take(first) for b in self.by]) if self.by else [
            b""
        ], groups

    def floors(self, kv: KV, table: pa.Table) -> IntArray:
        """For each row, the end at or below which windows of its key are out of retention."""
        if len(table) == 0:
            return np.zeros(0, dtype=np.int64)
        keys, groups = self._keys(table)
        values = kv.multi_get(self.aux_cf, [_LEDGER + k for k in keys])
        floors = [START_OF_TIME_US if v is None else msgpack.unpackb(v)[0] for v in values]
        return np.array(floors, dtype=np.int64)[groups.codes]

    def note(self, kv: KV, deltas: pa.Table) -> None:
        """Count what was filed."""
        keys, groups = self._keys(deltas)
        stored = kv.multi_get(self.aux_cf, [_LEDGER + k for k in keys])
        ledgers = [_load(v) for v in stored]
        columns = (combine(deltas.column(c)).to_pylist() for c in (START, END, MESSAGES))
        for code, start, end, n in zip(groups.codes.tolist(), *columns, strict=True):
            windows = ledgers[code][1]
            known = windows.get((start, end), 0)
            windows[start, end] = known + n
        batch = Batch()
        batch.put_many(self.aux_cf, [_LEDGER + k for k in keys], [_dump(*ledger) for ledger in ledgers])
        batch.put_many(self.aux_cf, [_TOUCHED + k for k in keys], [b""] * len(keys))
        kv.write(batch)

    def evict(self, kv: KV, retention_floor_us: int) -> Iterator[tuple[bytes, int]]:
        """(encoded key, start) of each window that is beyond the limits; the floors rise accordingly."""
        touched = [k[1:] for k, _ in kv.scan(self.aux_cf, _TOUCHED, b"u")]
        if not touched:
            return
        batch = Batch()
        gone: list[tuple[bytes, int]] = []
        for key in touched:
            floor, windows = _load(kv.get(self.aux_cf, _LEDGER + key))
            windows = {w: n for w, n in windows.items() if w[1] > retention_floor_us}
            total = sum(windows.values())
            for window in sorted(windows, key=lambda w: (w[1], w[0])):
                too_many = self.windows is not None and len(windows) > self.windows
                if not too_many and not (self.messages is not None and total > self.messages):
                    break
                total -= windows.pop(window)
                floor = max(floor, window[1])
                gone.append((key, window[0]))
            batch.put(self.aux_cf, _LEDGER + key, _dump(floor, windows))
        batch.delete_range(self.aux_cf, _TOUCHED, b"u")
        kv.write(batch)
        yield from gone

    def forget(self, kv: KV, retention_floor_us: int) -> None:
        """Free what is counted of keys whose windows have all expired by time."""
        batch = Batch()
        for key, value in kv.scan(self.aux_cf, _LEDGER, b"l"):
            floor, windows = _load(value)
            if floor <= retention_floor_us and all(end <= retention_floor_us for _, end in windows):
                batch.delete(self.aux_cf, key)
        kv.write(batch)


def _load(value: bytes | None) -> tuple[int, dict[tuple[int, int], int]]:
    if value is None:
        return START_OF_TIME_US, {}
    floor, windows = msgpack.unpackb(value)
    return floor, {(start, end): n for start, end, n in windows}


def _dump(floor: int, windows: dict[tuple[int, int], int]) -> bytes:
    packed: bytes = msgpack.packb([floor, [[start, end, n] for (start, end), n in sorted(windows.items())]])
    return packed
