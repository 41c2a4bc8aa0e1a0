"""Key watermarks: per key, a promised lower bound for the window starts of later anchors.

Column families: `key_watermarks`, the times by key, in pages (`key_state.py`); `floors`, the time of all anchors without keys;
`watermark_expiry`, the keys by the buckets of these times, for expiry.

    floors             nothing                     i64
    watermark_expiry   <stretch i64><step u64>     keys, Arrow
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64, encode_u64
from windrow.core.time import END_OF_TIME_US, SECOND_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.over.anchors.spans import OBSOLETE
from windrow.operators.over.key_state import Found, Keyed
from windrow.operators.over.partitions import ordered
from windrow.operators.steps.columns import START
from windrow.operators.steps.groups import Groups, combine, stable_order
from windrow.operators.steps.step import limit
from windrow.stores.kv import KV, Batch

#: A retention is about so many buckets of promises long.
_STRETCHES = 8
_WATERMARK = "__watermark"
#: Numbers below it leave room for a sum.
_MOST = 1 << 62


class _Held(NamedTuple):
    """Promises of the keys of a step, by number. found: for writing back; rows: of the keys found, with their numbers."""

    us: IntArray
    found: Found | None
    rows: pa.Table | None
    codes: IntArray


class Promises:
    """The promises of the anchors of one definition on one store, which it receives. back_us: how far before the watermark
    a promise can have an effect; None: any time."""

    def __init__(self, name: str, aux_cf: str, by: tuple[str, ...], back_us: int | None) -> None:
        self.by, self.back_us = by, back_us
        self.floors_cf, self.promises_cf = f"{name}.floors", f"{name}.watermark_expiry"
        self._keyed = Keyed(f"{name}.key_watermarks", aux_cf, by, None)
        self.cfs = (self.floors_cf, self.promises_cf, self._keyed.cf)

    def judge(self, kv: KV, anchors: pa.Table, times: IntArray, step: int) -> tuple[BoolArray, IntArray]:
        """Return (True for anchors, of these times, that keep earlier promises of their key, the time before which
        no window of each may begin). Promises of other anchors do not count."""
        n = len(anchors)
        groups = Groups([anchors.column(b) for b in self.by], n)
        in_time = ordered(times, anchors)
        order = in_time[stable_order(groups.codes[in_time], groups.size)]
        codes = groups.codes[order]
        start = anchors.column(START).to_numpy()[order]
        promised = combine(anchors.column(OBSOLETE)).fill_null(START_OF_TIME_US).to_numpy()[order]
        keys = anchors.select(self.by).take(pa.array(groups.first_rows)) if self.by else None
        fires = np.zeros(groups.size, dtype=bool)
        fires[codes[promised > START_OF_TIME_US]] = True
        held = self._held(kv, keys, groups.size, fires)
        floors = floors_of(codes, promised, held.us)
        good = _kept(start, promised, floors)
        broken = np.unique(codes[~good])
        ends = [np.searchsorted(codes, broken, side=side).tolist() for side in ("left", "right")]
        for code, low, high in zip(broken.tolist(), *ends, strict=True):
            _one_by_one(np.arange(low, high), start, promised, floors, good, int(held.us[code]))
        after = held.us.copy()
        np.maximum.at(after, codes[good], promised[good])
        if (after > held.us).any():
            self._promise(kv, keys, held, after, step)
        judged, floor_us = np.empty(n, dtype=bool), np.empty(n, dtype=np.int64)
        judged[order], floor_us[order] = good, floors
        return judged, floor_us

    def of_all_us(self, kv: KV) -> int:
        """Return the time before which no window of any key begins any more: known if there is but one key."""
        value = None if self.by else kv.get(self.floors_cf, b"")
        return START_OF_TIME_US if value is None else decode_i64(value)

    def forget(self, kv: KV, batch: Batch, watermark_us: int) -> None:
        """Delete promises that say no more than the retention does."""
        if watermark_us >= END_OF_TIME_US:
            for cf in (self.floors_cf, self.promises_cf):
                batch.delete_many(cf, [key for key, _ in kv.scan(cf)])
            self._keyed.forget(kv, watermark_us)
        elif self.back_us is not None:
            self._forget_until(kv, batch, limit(watermark_us, self.back_us))

    # -- earlier promises -------------------------------------------------------------------------------------------

    def _held(self, kv: KV, keys: pa.Table | None, size: int, fires: BoolArray) -> _Held:
        """Return the promise of each key. fires: true for keys with a new promise in this step."""
        if keys is None:
            us = np.array([self.of_all_us(kv)], dtype=np.int64)
            return _Held(us, None, None, np.zeros(0, dtype=np.int64))
        us = np.full(size, START_OF_TIME_US, dtype=np.int64)
        near = self._keyed.near(kv, keys, np.zeros(size, dtype=np.int64), fires, START_OF_TIME_US)
        if near.rows is None:
            return _Held(us, near, None, np.zeros(0, dtype=np.int64))
        both = concat([keys, near.rows.select(self.by)])
        codes = Groups([both.column(b) for b in self.by], len(both)).codes[size:]
        of_keys = codes < size
        np.maximum.at(us, codes[of_keys], near.rows.column(_WATERMARK).to_numpy()[of_keys])
        return _Held(us, near, near.rows, codes)

    def _promise(self, kv: KV, keys: pa.Table | None, held: _Held, after: IntArray, step: int) -> None:
        batch = Batch()
        if keys is None or held.found is None:
            batch.put(self.floors_cf, b"", encode_i64(int(after[0])))
            kv.write(batch)
            return
        promising = np.flatnonzero(after > START_OF_TIME_US)
        fresh = keys.take(pa.array(promising)).append_column(_WATERMARK, pa.array(after[promising]))
        fresh = fresh.append_column(START, pa.array(np.zeros(len(promising), dtype=np.int64)))
        beside = [] if held.rows is None else [held.rows.filter(pa.array(held.codes >= len(after)))]
        self._keyed.put(kv, held.found, [*beside, fresh])
        if self.back_us is not None:  # else they stay for good
            width_us = self._width_us
            entered = np.flatnonzero(after // width_us > held.us // width_us)
            stretches = after[entered] // width_us
            for stretch in np.unique(stretches).tolist():
                entry = encode_i64(stretch * width_us) + encode_u64(step)
                batch.put(
                    self.promises_cf, entry, _packed(keys.take(pa.array(entered[stretches == stretch])))
                )
        kv.write(batch)

    @property
    def _width_us(self) -> int:
        """Return the width of a bucket of promises, which expire together."""
        return max((self.back_us or 0) // _STRETCHES, SECOND_US)

    def _forget_until(self, kv: KV, batch: Batch, said_us: int) -> None:
        """Delete promises up to that time. A later promise of a key is in a later bucket."""
        end = encode_i64(said_us // self._width_us * self._width_us)
        tables = [_unpacked(value) for _, value in kv.scan(self.promises_cf, b"", end)]
        if tables:
            batch.delete_range(self.promises_cf, b"", end)
            self._forget_keys(kv, concat(tables), said_us)

    def _forget_keys(self, kv: KV, keys: pa.Table, said_us: int) -> None:
        groups = Groups([keys.column(b) for b in self.by], len(keys))
        keys, none = keys.take(pa.array(groups.first_rows)), np.zeros(groups.size, dtype=np.int64)
        near = self._keyed.near(kv, keys, none, none.astype(bool), START_OF_TIME_US)
        if near.rows is not None:
            lasting = near.rows.column(_WATERMARK).to_numpy() > said_us
            self._keyed.put(kv, near, [near.rows.filter(pa.array(lasting))])


def _packed(keys: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return bytes(sink.getvalue())


def _unpacked(value: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(value)).read_all()


def floors_of(codes: IntArray, promised: IntArray, before: IntArray) -> IntArray:
    """Return the largest promise before each anchor: of those of its key, one after the other, and of earlier steps."""
    opens = np.r_[True, codes[1:] != codes[:-1]][: len(codes)]
    floors = before[codes]
    floors[1:] = np.where(opens[1:], floors[1:], np.maximum(floors[1:], promised[:-1]))
    none = floors == START_OF_TIME_US
    if none.all():
        return floors
    low, high = int(floors[~none].min()), int(floors.max())
    if (high - low + 2) * (len(before) + 1) < _MOST:
        # The values of each partition are above those of the one before it: the running maximum stays within a partition.
        lines, span = np.cumsum(opens), high - low + 2
        packed = np.maximum.accumulate(np.where(none, 0, floors - low + 1) + lines * span) - lines * span
        floor: IntArray = np.where(packed == 0, START_OF_TIME_US, packed + low - 1)
        return floor
    for begin, end in itertools.pairwise([*np.flatnonzero(opens).tolist(), len(codes)]):
        np.maximum.accumulate(floors[begin:end], out=floors[begin:end])
    return floors


def _kept(start: IntArray, promised: IntArray, floors: IntArray) -> BoolArray:
    """True where a window does not begin before the floor, and its promise, if any, is not below it."""
    good: BoolArray = (start >= floors) & ((promised >= floors) | (promised == START_OF_TIME_US))
    return good


def _one_by_one(
    places: IntArray, start: IntArray, promised: IntArray, floors: IntArray, good: BoolArray, floor_us: int
) -> None:
    """Judge the anchors of a key one by one: a promise of an anchor that broke an earlier one does not count for later ones."""
    for i in places.tolist():
        floors[i] = floor_us
        good[i] = start[i] >= floor_us and (promised[i] >= floor_us or promised[i] == START_OF_TIME_US)
        if good[i]:
            floor_us = max(floor_us, int(promised[i]))
