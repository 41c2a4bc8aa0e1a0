"""Anchors that are not told yet, and what they promise.

Column families: `anchors`, those that the watermark has not passed, by event time; `waiting`, those whose windows are not over,
by the time behind which they are; `lows`, for each stretch of these the first moment that a window of it holds; `floors`, for
each key the time before which no window begins any more, and `promises`, the keys by the stretches of these times.

    lows       <stretch i64>          i64
    floors     <key>                  i64
    promises   <stretch i64>00<step u64>     keys, msgpack; before there were such: <stretch i64><key>, and nothing
"""

from __future__ import annotations

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.between import Between, Ticks
from windrow.core.byte_order import (
    bytes_to_i64_array,
    bytes_to_rows,
    decode_i64,
    encode_i64,
    encode_u64,
    i64_array_to_bytes,
    rows_to_bytes,
)
from windrow.core.frames import RangeBetween
from windrow.core.keys import FIELDS_END, encode_equal
from windrow.core.time import END_OF_TIME_US, SECOND_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.over.definition import OverDefinition
from windrow.operators.over.lines import ordered
from windrow.operators.over.spans import OBSOLETE, around, high_of, low_of
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.step import limit
from windrow.stores.events import TIME, Events
from windrow.stores.kv import KV, Batch

#: A retention is so many stretches of floors long, about.
_STRETCHES = 8
#: The event time of an anchor.
AT = "__at"
#: Under it stands how far a clock has come, and the first and the last time that it has heard.
_CLOCK = b"clock"
_NOTHING = encode_i64(START_OF_TIME_US)


class Pending:
    """The anchors of one definition on one store, which it is given."""

    def __init__(self, definition: OverDefinition, aux_cf: str, width_us: int) -> None:
        assert definition.span is not None
        self.definition, self.span, self.aux_cf, self.width_us = definition, definition.span, aux_cf, width_us
        name = definition.name
        self.anchors = Events(f"{name}.anchors", width_us)
        self.waiting = Events(f"{name}.waiting", width_us)
        self.lows_cf, self.floors_cf, self.promises_cf = f"{name}.lows", f"{name}.floors", f"{name}.promises"
        #: True if anchors may promise something.
        self.judges = isinstance(self.span, Between) and self.span.promises
        self.cfs = (self.anchors.cf, self.waiting.cf, self.lows_cf, self.floors_cf, self.promises_cf)

    # -- anchors that come ------------------------------------------------------------------------------------------

    def add(self, kv: KV, anchors: pa.Table, step: int) -> None:
        """Anchors of a step, with `AT`, and where their windows lie."""
        self.anchors.add(kv, anchors.append_column(TIME, anchors.column(AT)), step)

    def passed(self, kv: KV, before_us: int, watermark_us: int) -> pa.Table | None:
        """Those that the watermark has passed on its way from `before_us`."""
        if not self.anchors.any_between(kv, before_us, watermark_us):
            return None
        rows = self.anchors.read(kv, before_us, watermark_us, tidy=True)
        return None if rows is None else rows.drop_columns([TIME])

    # -- a clock ----------------------------------------------------------------------------------------------------

    def hear(self, kv: KV, times: IntArray) -> None:
        """A clock begins with the first message, and ends with the last."""
        if not isinstance(self.definition.anchors, Ticks):
            return
        at_us, first_us, last_us = self._clock(kv)
        now = (at_us, min(first_us, int(times.min())), max(last_us, int(times.max())))
        batch = Batch()
        batch.put(self.aux_cf, _CLOCK, msgpack.packb(now))
        kv.write(batch)

    def ticked(self, kv: KV, watermark_us: int) -> IntArray | None:
        """The ticks that the watermark has passed, each once."""
        clock = self.definition.anchors
        assert isinstance(clock, Ticks)
        at_us, first_us, last_us = self._clock(kv)
        if first_us > last_us:
            return None  # nothing was heard
        at_us = clock.first_at(first_us) if at_us is None else at_us
        end_us = min(watermark_us, last_us + 1) if watermark_us >= END_OF_TIME_US else watermark_us
        if at_us >= end_us:
            return None
        times = np.arange(at_us, end_us, clock.period_us, dtype=np.int64)
        batch = Batch()
        batch.put(self.aux_cf, _CLOCK, msgpack.packb((int(times[-1]) + clock.period_us, first_us, last_us)))
        kv.write(batch)
        return times

    def _clock(self, kv: KV) -> tuple[int | None, int, int]:
        packed = kv.get(self.aux_cf, _CLOCK)
        if packed is None:
            return None, END_OF_TIME_US, START_OF_TIME_US
        at_us, first_us, last_us = msgpack.unpackb(packed)
        return at_us, first_us, last_us

    # -- what they promise ------------------------------------------------------------------------------------------

    def judge(self, kv: KV, anchors: pa.Table, step: int) -> tuple[BoolArray, IntArray]:
        """True for anchors that keep what those of their key before them have promised; and before which time, of each, no
        window may begin. What the others promise does not count."""
        n, by = len(anchors), self.definition.by
        times = combine(anchors.column(AT)).to_numpy()
        groups = Groups([anchors.column(b) for b in by], n)
        keys = (
            encode_equal([combine(anchors.column(b)).take(pa.array(groups.first_rows)) for b in by])
            if by
            else [b""]
        )
        before = self._said_us(kv, keys)
        in_time = ordered(times, anchors)
        order = in_time[np.argsort(groups.codes[in_time], kind="stable")]
        codes = groups.codes[order]
        start = anchors.column(START).to_numpy()[order]
        promised = combine(anchors.column(OBSOLETE)).fill_null(START_OF_TIME_US).to_numpy()[order]
        floors = _floors(codes, promised, before)
        good = _kept(start, promised, floors)
        for code in np.unique(codes[~good]).tolist():
            _one_by_one(np.flatnonzero(codes == code), start, promised, floors, good, int(before[code]))
        after = before.copy()
        np.maximum.at(after, codes[good], promised[good])
        self._promise(kv, keys, before, after, step)
        judged, said = np.empty(n, dtype=bool), np.empty(n, dtype=np.int64)
        judged[order], said[order] = good, floors
        return judged, said

    def promised_us(self, kv: KV) -> int:
        """Before it no window of any key begins any more: known where there is but one."""
        value = None if self.definition.by or not self.judges else kv.get(self.floors_cf, b"")
        return START_OF_TIME_US if value is None else decode_i64(value)

    def _said_us(self, kv: KV, keys: list[bytes]) -> IntArray:
        """Before which time no window of each key begins any more."""
        stored = kv.multi_get(self.floors_cf, keys)
        return bytes_to_i64_array(bytes_to_rows([v or _NOTHING for v in stored], 8))

    def _promise(self, kv: KV, keys: list[bytes], before: IntArray, after: IntArray, step: int) -> None:
        changed, batch = np.flatnonzero(after > before), Batch()
        batch.put_many(self.floors_cf, [keys[i] for i in changed.tolist()], _encoded(after[changed]))
        if self.definition.back_us is not None:  # else they stay for good
            width_us = self._promise_us
            entered = changed[after[changed] // width_us > before[changed] // width_us]
            stretches = after[entered] // width_us
            for stretch in np.unique(stretches).tolist():
                some = [keys[i] for i in entered[stretches == stretch].tolist()]
                entry = encode_i64(stretch * width_us) + FIELDS_END + encode_u64(step)
                batch.put(self.promises_cf, entry, msgpack.packb(some))
        kv.write(batch)

    @property
    def _promise_us(self) -> int:
        """How long a stretch of floors is, which are forgotten together."""
        return max((self.definition.back_us or 0) // _STRETCHES, SECOND_US)

    def _forget_promises(self, kv: KV, batch: Batch, said_us: int) -> None:
        """Floors up to that time. One that has moved on is known in its later stretch."""
        end = encode_i64(said_us // self._promise_us * self._promise_us)
        keys = [key for entry in kv.scan(self.promises_cf, b"", end) for key in _keys_of(*entry)]
        if not keys:
            return
        batch.delete_range(self.promises_cf, b"", end)
        over = np.flatnonzero(self._said_us(kv, keys) <= said_us)
        batch.delete_many(self.floors_cf, [keys[i] for i in over.tolist()])

    # -- windows that are not over ----------------------------------------------------------------------------------

    def due(
        self, kv: KV, fresh: pa.Table | None, before_us: int, watermark_us: int
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """Anchors whose windows the watermark is behind now; and those of the fresh ones that have to wait, with `TIME`, until
        when."""
        found, later = list[pa.Table](), None
        if self.waiting.any_between(kv, before_us, watermark_us):
            waited = self.waiting.read(kv, before_us, watermark_us, tidy=True)
            found += [] if waited is None else [waited.drop_columns([TIME])]
        if fresh is not None:
            over_us = np.maximum(
                fresh.column(AT).to_numpy(), high_of(self.span, fresh.column(END).to_numpy())
            )
            done = (over_us < watermark_us) | (watermark_us >= END_OF_TIME_US)
            found.append(fresh.filter(pa.array(done)))
            later = fresh.append_column(TIME, pa.array(over_us)).filter(pa.array(~done))
        return (concat(found) if found else None), later

    def wait(self, kv: KV, anchors: pa.Table, step: int) -> None:
        """File anchors that have to wait."""
        self.waiting.add(kv, anchors, step)
        stretches = anchors.column(TIME).to_numpy() // self.width_us * self.width_us
        lows = low_of(self.span, anchors.column(START).to_numpy())
        each, of = np.unique(stretches, return_inverse=True)
        least = np.full(len(each), END_OF_TIME_US, dtype=np.int64)
        np.minimum.at(least, of, lows)
        keys = [encode_i64(us) for us in each.tolist()]
        batch = Batch()
        for key, us, known in zip(keys, least.tolist(), kv.multi_get(self.lows_cf, keys), strict=True):
            batch.put(self.lows_cf, key, encode_i64(us if known is None else min(us, decode_i64(known))))
        kv.write(batch)

    def lowest_us(self, kv: KV) -> int:
        """The first moment that the window of an anchor that waits holds, or a little before."""
        return min((decode_i64(value) for _, value in kv.scan(self.lows_cf)), default=END_OF_TIME_US)

    def forget(self, kv: KV, watermark_us: int) -> None:
        """What the watermark has passed, and promises that say no more than the retention."""
        self.anchors.forget(kv, watermark_us)
        self.waiting.forget(kv, watermark_us)
        ends, batch = watermark_us >= END_OF_TIME_US, Batch()
        whole = b"\xff" * 9
        passed = whole if ends else encode_i64(watermark_us // self.width_us * self.width_us)
        if next(iter(kv.scan(self.lows_cf, b"", passed)), None) is not None:
            batch.delete_range(self.lows_cf, b"", passed)
        back_us = self.definition.back_us
        if self.judges and ends:
            for cf in (self.floors_cf, self.promises_cf):
                batch.delete_many(cf, [key for key, _ in kv.scan(cf)])
        elif self.judges and back_us is not None:
            self._forget_promises(kv, batch, limit(watermark_us, back_us))
        if ends and kv.get(self.aux_cf, _CLOCK) is not None:
            batch.delete_many(self.aux_cf, [_CLOCK])
        kv.write(batch)

    # -- what is kept -----------------------------------------------------------------------------------------------

    def lowest_of_waiting_us(self, kv: KV, watermark_us: int) -> int:
        """`lowest_us` as it is, of those that still wait."""
        rows = self.waiting.read(kv, watermark_us, END_OF_TIME_US)
        return END_OF_TIME_US if rows is None else int(low_of(self.span, rows.column(START).to_numpy()).min())

    def kept(self, kv: KV, watermark_us: int) -> pa.Table | None:
        """All anchors that are not told."""
        found = [events.read(kv, watermark_us, END_OF_TIME_US) for events in (self.anchors, self.waiting)]
        some = [rows for rows in found if rows is not None]
        return concat(some) if some else None


def ticks(definition: OverDefinition, times: IntArray) -> pa.Table:
    """Anchors of a clock."""
    assert isinstance(definition.span, RangeBetween)
    rows = around(definition.span, times)
    moments = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return rows.append_column(AT, pa.array(times)).append_column(definition.told_time, moments)


def _floors(codes: IntArray, promised: IntArray, before: IntArray) -> IntArray:
    """The largest promise before each anchor: of those of its key, one after the other, and of earlier steps."""
    values, ranks = np.unique(np.r_[promised, before], return_inverse=True)
    own, first = ranks[: len(codes)], ranks[len(codes) :]
    former = np.empty(len(codes), dtype=np.int64)
    opens = np.r_[True, codes[1:] != codes[:-1]][: len(codes)]
    former[opens] = first[codes[opens]]
    former[1:][~opens[1:]] = own[:-1][~opens[1:]]
    packed = np.maximum.accumulate(np.cumsum(opens) * len(values) + np.maximum(former, first[codes]))
    found: IntArray = values[packed % len(values)]
    return found


def _kept(start: IntArray, promised: IntArray, floors: IntArray) -> BoolArray:
    """True where a window does not begin before the floor, and what is promised, if anything, does not fall below it."""
    good: BoolArray = (start >= floors) & ((promised >= floors) | (promised == START_OF_TIME_US))
    return good


def _one_by_one(
    places: IntArray, start: IntArray, promised: IntArray, floors: IntArray, good: BoolArray, floor_us: int
) -> None:
    """A key in which an anchor broke a promise: what that one promises is not counted for those behind it."""
    for i in places.tolist():
        floors[i] = floor_us
        good[i] = start[i] >= floor_us and (promised[i] >= floor_us or promised[i] == START_OF_TIME_US)
        if good[i]:
            floor_us = max(floor_us, int(promised[i]))


def _keys_of(entry: bytes, value: bytes) -> list[bytes]:
    """The keys that entered a stretch: of a step, or one of a state from before."""
    one = entry[8:]
    return msgpack.unpackb(value) if one.startswith(FIELDS_END) else [one]


def _encoded(values: IntArray) -> list[bytes]:
    """`encode_i64` of each."""
    return rows_to_bytes(i64_array_to_bytes(values))
