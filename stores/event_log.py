"""Event log: messages that are kept for a time, in columns: one Arrow table per bucket of event time and step.

    <bucket i64><step u64>     the rows, in the order in which they came (`column_codec.py`)

bucket: the event time at its start. Steps read a range of time and evict earlier messages: both are ranges of
keys. If a bucket has many small values, a read joins the last ones: so many that the one before them
has at least twice their rows. So each row is written a few times, and a bucket has no more than a few dozen values.

Rows of a step that lie far apart would be a value each. A writer of such rows may make their buckets longer, by a power of
two, and records up to which time there are such (`Wide`): reads of earlier times begin where the long ones do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.column_codec import TIME as TIME
from windrow.stores.column_codec import Encoder, Value, opened, packed, together
from windrow.stores.kv import KV, Batch

#: A bucket with more values than this is inspected.
MANY = 12
#: Rows in memory at once where they are read in portions; a value that others are joined to has no more.
PORTION = 1 << 16
#: Rows are far apart if they are fewer per bucket than this, in more than so many buckets.
FEW, SPARSE = 64, 64
_END = b"\xff" * 17

#: Selects the wanted rows of a table, in their order.
Keep: TypeAlias = Callable[[pa.Table], pa.Table]


class Wide(NamedTuple):
    """Long buckets: those that begin before `end_us` may be `width_us` long, a power of two as long as usual."""

    width_us: int
    end_us: int


class Stretches(NamedTuple):
    """Time buckets of a log.

    width_us: their usual width; record: a family and a key that record longer ones of rows far apart; None: there are none
    """

    width_us: int
    record: tuple[str, bytes] | None = None

    def begin(self, kv: KV, time_us: int) -> int:
        """Return the start of the first bucket that may hold that time."""
        if time_us <= START_OF_TIME_US:
            return START_OF_TIME_US
        wide = self.wide(kv)
        width_us = self.width_us if wide is None or time_us >= wide.end_us else wide.width_us
        return time_us // width_us * width_us

    def wide(self, kv: KV) -> Wide | None:
        """Return the long buckets; None where all are as usual."""
        packed = None if self.record is None else kv.get(*self.record)
        return None if packed is None else Wide(decode_i64(packed), decode_i64(packed, 8))

    def width(self, kv: KV, times: IntArray) -> int:
        """Return the bucket width for new rows of these times. One above the usual width, for rows far apart, is recorded."""
        width_us = self.width_us if self.record is None else stretch_us(times, self.width_us)
        if self.record is not None and width_us > self.width_us:
            known = self.wide(kv) or Wide(width_us, width_us)
            width_us = max(width_us, known.width_us)
            batch = Batch()
            batch.put(
                *self.record, encode_i64(width_us) + encode_i64(max(known.end_us, int(times.max()) + 1))
            )
            kv.write(batch)
        return width_us


def recorded_width(kv: KV, cf: str, name: bytes, usual_us: int, *, store: bool = False) -> int:
    """Return the usual width of the buckets of a state: as recorded under a name, else as of now. store: record it."""
    packed = kv.get(cf, name)
    if packed is not None:
        return decode_i64(packed)
    if store:
        batch = Batch()
        batch.put(cf, name, encode_i64(usual_us))
        kv.write(batch)
    return usual_us


class Events:
    """Log of rows with a column `TIME`, in time buckets. prefix: before all of its keys, of one length for all that share a
    family."""

    def __init__(
        self, cf: str, width_us: int, record: tuple[str, bytes] | None = None, prefix: bytes = b""
    ) -> None:
        self.cf, self._stretches, self._prefix = cf, Stretches(width_us, record), prefix

    def add(self, kv: KV, rows: pa.Table, step: int) -> None:
        """rows: of a step, which has a number of its own."""
        batch, rows = Batch(), rows.combine_chunks()
        times = rows.column(TIME).to_numpy()
        width_us = self._stretches.width(kv, times)
        encoder = Encoder(rows, width_us)
        for bucket, part in by_stretch(encoder.kept, width_us, times):
            batch.put(self.cf, self._prefix + _key(bucket, step), encoder.value(part))
        kv.write(batch)

    def read(
        self,
        kv: KV,
        low_us: int,
        high_us: int,
        *,
        tidy: bool = False,
        exact: bool = True,
        columns: Collection[str] | None = None,
        keep: Keep | None = None,
    ) -> pa.Table | None:
        """Return the rows with `low_us <= time < high_us`, by bucket, then in order of arrival; None where there are none.

        tidy: join small values on the way, for which the store has to be one that is written
        exact: False if rows of the same stretches that are before or after do no harm, and need not be taken out
        columns: which of them are read, as far as they are there, `TIME` among them; None: all. For a read that is not tidy
        keep: what is wanted of a whole portion of rows; no more than one is in memory then, and what is wanted
        """
        tables, most = list[pa.Table](), sys.maxsize if keep is None else PORTION
        for values, _ in self._values(kv, low_us, high_us, most, tidy=tidy):
            rows = together(values, columns)
            if exact:
                rows = _inside(rows, low_us, high_us)
            tables.append(rows if keep is None or len(rows) < PORTION else keep(rows))
        return concat(tables) if tables and (not exact or any(map(len, tables))) else None

    def portions(self, kv: KV, high_us: int) -> Iterator[pa.Table]:
        """Yield the rows with `time < high_us`, about a portion at once, in order of time. Small values are joined
        on the way.
        """
        rest: list[pa.Table] = []
        for values, following_us in self._values(kv, START_OF_TIME_US, high_us, PORTION, tidy=True):
            rows = _inside(concat([*rest, together(values)]), START_OF_TIME_US, high_us)
            early = rows.column(TIME).to_numpy() < following_us
            rest = [] if early.all() else [rows.filter(pa.array(~early))]
            if early.any():
                yield rows.filter(pa.array(early)) if rest else rows

    def _values(
        self, kv: KV, low_us: int, high_us: int, most: int, *, tidy: bool
    ) -> Iterator[tuple[list[Value], int]]:
        """Yield (values of buckets that hold such times, of about `most` rows; the start of the next bucket)."""
        keys, values, rows = list[bytes](), list[Value](), 0
        for key, value in kv.scan(self.cf, self._begin(kv, low_us), self._end(high_us)):
            if rows >= most:
                self._join(kv, keys, values, tidy)
                yield values, decode_i64(key, len(self._prefix))
                keys, values, rows = [], [], 0
            keys.append(key)
            values.append(opened(value))
            rows += len(values[-1])
        if keys:
            self._join(kv, keys, values, tidy)
            yield values, END_OF_TIME_US + 1

    def read_near(
        self, kv: KV, low_us: IntArray, high_us: IntArray, *, tidy: bool = True, keep: Keep | None = None
    ) -> pa.Table | None:
        """Return the rows of the times from `low_us` to `high_us`, inclusive, of many such ranges; and some that lie between.

        tidy, keep: as of `read`
        """
        ranges = np.flatnonzero(high_us >= low_us)
        if len(ranges) == 0:
            return None
        ranges = ranges[np.argsort(low_us[ranges], kind="stable")]
        low, reached = low_us[ranges], np.maximum.accumulate(high_us[ranges])
        widths, wide = np.full(len(low) - 1, self._stretches.width_us), self._stretches.wide(kv)
        if wide is not None:
            widths[low[1:] < wide.end_us] = wide.width_us
        cuts = np.flatnonzero(low[1:] // widths > reached[:-1] // widths) + 1
        starts, ends = low[np.r_[0, cuts]], reached[np.r_[cuts - 1, len(ranges) - 1]]
        tables = [
            rows
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            if (rows := self.read(kv, start, end + 1, tidy=tidy, keep=keep)) is not None
        ]
        return concat(tables) if tables else None

    def any_between(self, kv: KV, low_us: int, high_us: int) -> bool:
        """False if there are no rows of these times; True where there may be."""
        if low_us >= high_us:
            return False
        scan = kv.scan(self.cf, self._begin(kv, low_us), self._end(high_us))
        return next(iter(scan), None) is not None

    def forget(self, kv: KV, below_us: int) -> None:
        """Stretches that are over before that."""
        end = self._prefix + (
            _END if below_us >= END_OF_TIME_US else encode_i64(self._stretches.begin(kv, below_us))
        )
        if next(iter(kv.scan(self.cf, self._prefix, end)), None) is not None:
            batch = Batch()
            batch.delete_range(self.cf, self._prefix, end)
            kv.write(batch)

    def drop(self, kv: KV, below_us: int, gone: Callable[[pa.Table], BoolArray]) -> None:
        """Evict the rows of buckets that begin before that for which `gone` is true, and no others."""
        batch = Batch()
        for key, value in kv.scan(self.cf, self._prefix, self._end(below_us)):
            rows = together([opened(value)])
            stay = ~gone(rows)
            if not stay.any():
                batch.delete(self.cf, key)
            elif not stay.all():
                batch.put(self.cf, key, packed(rows.filter(pa.array(stay))))
        kv.write(batch)

    def _begin(self, kv: KV, low_us: int) -> bytes:
        """Return the key of the first bucket that may hold that time."""
        return self._prefix + encode_i64(self._stretches.begin(kv, low_us))

    def _end(self, high_us: int) -> bytes | None:
        """Return the key after all buckets that begin before that."""
        if high_us >= END_OF_TIME_US:
            return self._prefix + _END if self._prefix else None
        return self._prefix + encode_i64(high_us)

    def _join(self, kv: KV, keys: list[bytes], values: list[Value], tidy: bool) -> None:
        """Write the last values of a bucket as one, where there are many small ones and they are to be joined."""
        if not tidy or len(keys) <= MANY:
            return
        buckets: IntArray = np.array([decode_i64(key, len(self._prefix)) for key in keys], dtype=np.int64)
        starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
        batch = Batch()
        for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(keys)], strict=True):
            if high - low <= MANY:
                continue
            first, size = high - 1, len(values[high - 1])
            while first > low and len(values[first - 1]) < 2 * size:
                if size + len(values[first - 1]) > PORTION:
                    break
                first -= 1
                size += len(values[first])
            if first < high - 1:
                batch.put(self.cf, keys[high - 1], packed(together(values[first:high])))
                batch.delete_many(self.cf, keys[first : high - 1])
        if len(batch):
            kv.write(batch)


def _inside(rows: pa.Table, low_us: int, high_us: int) -> pa.Table:
    """Return the rows with `low_us <= time < high_us`; at the end of time all that come after."""
    times = rows.column(TIME).to_numpy()
    inside = (times >= low_us) & ((times < high_us) if high_us < END_OF_TIME_US else True)
    return rows if inside.all() else rows.filter(pa.array(inside))


def stretch_us(times: IntArray, width_us: int) -> int:
    """Return the bucket width for rows of these times: `width_us`, or a power of two as long where they are far apart."""
    extent_us = int(times.max()) - int(times.min())
    most = max(SPARSE, len(times) // FEW)
    while extent_us // width_us > most and len(np.unique(times // width_us)) > most:
        width_us *= 16
    return width_us


def by_stretch(
    rows: pa.Table, width_us: int, times: IntArray | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (start, rows in order of arrival) for each bucket. times: of the rows; None: they have them as `TIME`."""
    buckets = (rows.column(TIME).to_numpy() if times is None else times) // width_us
    first, last = int(buckets.min()), int(buckets.max())
    if first == last:
        yield first * width_us, rows
        return
    if not bool((buckets[1:] >= buckets[:-1]).all()):
        few = last - first < 1 << 16  # numpy sorts 16 bits by radix
        order = np.argsort((buckets - first).astype(np.uint16) if few else buckets, kind="stable")
        rows, buckets = rows.take(pa.array(order)), buckets[order]
    cuts = np.flatnonzero(np.diff(buckets)) + 1
    for low, high in zip(np.r_[0, cuts].tolist(), np.r_[cuts, len(buckets)].tolist(), strict=True):
        yield int(buckets[low]) * width_us, rows.slice(low, high - low)


def _key(bucket: int, step: int) -> bytes:
    return encode_i64(bucket) + step.to_bytes(8, "big")
