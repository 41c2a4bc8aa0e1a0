"""Buckets of long frames of time: the common middle of all windows of an advance is one accumulator per key.

    |<- rows ->|<------------ buckets, each an accumulator a key ----------->|<- rows ->|
    ^ where the windows begin                                                ^ where they end

So an advance reads some rows at both ends, and not all of a frame. Consecutive buckets are also merged into long ones: an
advance reads these, and the buckets before the first of them and after the last. Buckets are made of messages that
are kept in any case, once the watermark is past them. Where they are missing, were made of other columns, or are hardly fewer
than the messages, these are read instead. Traub et al., "Efficient Window Aggregation with General Stream Slicing", EDBT 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.frames import Frame, RangeBetween
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregations.basic import Avg, Count, Extreme, Sum
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.aggregations.moments import Variance
from windrow.operators.over.bucketed_frames import Middle
from windrow.operators.over.frame_values import Part, columns_of
from windrow.operators.over.partitions import Lines
from windrow.operators.steps.columns import ACCUMULATOR
from windrow.operators.steps.groups import Groups, combine, key_numbers
from windrow.operators.steps.intake import Slice
from windrow.stores.event_log import TIME, Events, by_stretch
from windrow.stores.kv import KV, Batch

#: A time, or many.
TimeUs = TypeVar("TimeUs", int, IntArray)
#: A frame of time has so many slices, of no less than that.
_MANY, _SHORTEST_US = 64, 100_000
#: So many are a long one.
_IN_LONG = 8
#: Slices are worth it for a frame of so many, of which an advance passes a quarter or less,
_LONG, _SMALL = 16, 4
#: and where so many messages make an accumulator.
_FEW = 3
_KEY = b"\x00slices"


class Covered(NamedTuple):
    """The times between which all buckets exist, and their columns. idle_us: buckets are not worth it before that time."""

    low_us: int
    high_us: int
    columns: bytes
    idle_us: int


@dataclass(frozen=True)
class Long:
    """Reads of an advance over long frames. right_us: the time from which rows are read. Before it, of each frame, rows are
    read from the start of its windows, `lefts`, to its buckets."""

    right_us: int
    begins: Mapping[Frame, int]
    lefts: Mapping[Frame, int]


class Slices:
    """The buckets of one operator. parts: of its aggregations, by frame; reach_us: of the longest."""

    def __init__(
        self, cf: str, aux_cf: str, by: tuple[str, ...], parts: Sequence[Part], reach_us: int
    ) -> None:
        self.cf, self._aux_cf, self._by = cf, aux_cf, by
        self.width_us = max(reach_us // _MANY, _SHORTEST_US)
        self._events = Events(cf, self.width_us)
        self._long_us = _IN_LONG * self.width_us
        self._long_slices = Events(f"{cf}_long", self._long_us)
        #: Its families.
        self.cfs = (cf, self._long_slices.cf)
        self._reach_us = reach_us
        frames = [p.frame for p in parts if isinstance(p.frame, RangeBetween)]
        self._long = [f for f in frames if -f.low_us >= _LONG * self.width_us]
        self._others = [f for f in frames if f not in self._long]

    @property
    def any(self) -> bool:
        """True if some frame is long."""
        return bool(self._long)

    # -- where they are -----------------------------------------------------------------------------------------------

    def long(
        self, kv: KV, calculations: Sequence[tuple[Part, Calculation]], low_us: int, high_us: int
    ) -> Long | None:
        """Return the reads for messages of `[low_us, high_us)` with buckets; None if that is impossible or not worth it."""
        if not self.worth(calculations, low_us, high_us):
            return None
        covered = self._covered(kv)
        if covered is None or covered.columns != _digest(calculations) or covered.idle_us:
            return None
        rows_us = [low_us, covered.high_us, *(low_us + min(f.high_us, 0) for f in self._long)]
        rows_us += [low_us + min(f.low_us, f.high_us, 0) for f in self._others]
        right_us, width_us = floor_us(min(rows_us), self.width_us), self.width_us
        begins: dict[Frame, int] = {
            f: floor_us(high_us + f.low_us - 1, width_us) + width_us for f in self._long
        }
        if min(begins.values()) < covered.low_us or max(begins.values()) >= right_us:
            return None
        return Long(right_us, begins, {f: low_us + f.low_us for f in self._long})

    def worth(self, calculations: Sequence[tuple[Part, Calculation]], low_us: int, high_us: int) -> bool:
        """True if buckets may be worth it for rows of messages in `[low_us, high_us)`."""
        if not self._long or high_us >= END_OF_TIME_US or (high_us - low_us) * _SMALL > self._reach_us:
            return False
        return all(_foldable(c) for part, c in calculations if part.frame in self._long)

    def _covered(self, kv: KV) -> Covered | None:
        value = kv.get(self._aux_cf, _KEY)
        return None if value is None else Covered(*msgpack.unpackb(value))

    # -- reading ------------------------------------------------------------------------------------------------------

    def middle(
        self, kv: KV, long: Long, frame: Frame, left: pa.Table | None, calculation: Calculation, keys: Keys
    ) -> Middle:
        """Return the bucketed middle of a frame. left: rows from `long.lefts`, where the windows begin, to its buckets."""
        slices = self._read(kv, long.begins[frame], long.right_us)
        codes = keys.numbers([t for t in (left, slices) if t is not None])
        lines, lifted, merged = None, dict[str, pa.Array](), dict[str, pa.Array]()
        merged_keys: IntArray = np.zeros(0, dtype=np.int64)
        if left is not None and (codes[0] >= 0).any():
            known = None if (codes[0] >= 0).all() else np.flatnonzero(codes[0] >= 0)
            lines = Lines(None, codes[0], keys.size, left.column(TIME).to_numpy(), None, known)
            in_lines = left.select(columns_of(calculation)).take(pa.array(lines.order))
            lifted = calculation.lift(Slice(in_lines, lines.times))
        if slices is not None:
            merged_keys, merged = self._merged(slices, codes[-1], calculation, keys.size)
        return Middle(lines, lifted, merged, merged_keys)

    def _read(self, kv: KV, low_us: int, high_us: int) -> pa.Table | None:
        """Return all buckets between two times, long ones where they exist."""
        first_us, last_us = -floor_us(-low_us, self._long_us), floor_us(high_us, self._long_us)
        pieces, at_us = list[pa.Table | None](), low_us
        long = self._long_slices.read(kv, first_us, last_us) if first_us < last_us else None
        for begin_us, rows in () if long is None else by_stretch(long, self._long_us):
            pieces += [self._events.read(kv, at_us, begin_us) if at_us < begin_us else None, rows]
            at_us = begin_us + self._long_us
        pieces.append(self._events.read(kv, at_us, high_us) if at_us < high_us else None)
        there = [rows for rows in pieces if rows is not None]
        return concat(there) if there else None

    def _merged(
        self, slices: pa.Table, codes: IntArray, calculation: Calculation, size: int
    ) -> tuple[IntArray, dict[str, pa.Array]]:
        """Return the keys of buckets, and their merged accumulators, one a key. codes: -1 of keys that are not asked for."""
        if (codes < 0).any():
            known = codes >= 0
            slices, codes = slices.filter(pa.array(known)), codes[known]
        there = np.zeros(size, dtype=bool)
        there[codes] = True
        present = np.flatnonzero(there)
        groups = Groups.of_codes((np.cumsum(there) - 1)[codes], len(present))
        return present, calculation.merge(_accumulators(slices, calculation), groups)[0]

    # -- writing ------------------------------------------------------------------------------------------------------

    def extend(
        self,
        kv: KV,
        calculations: Sequence[tuple[Part, Calculation]],
        rows: pa.Table,
        numbers: tuple[IntArray, int] | None,
        known_us: int,
        moved: tuple[int, int],
        watermark_us: int,
        step: int,
    ) -> None:
        """Make the missing buckets up to the watermark. rows: all from `known_us` on; numbers: of the key of each,
        below the second, None where buckets are not `worth` it; moved: the times between which rows are emitted."""
        covered, columns = self._covered(kv), _digest(calculations)
        if numbers is None:
            if covered is not None:
                self._forget_all(kv)
            return
        if covered is not None and moved[0] < covered.idle_us:
            return
        low_us, high_us = -floor_us(-known_us, self.width_us), floor_us(watermark_us, self.width_us)
        first_us = low_us
        if covered is not None:
            if covered.columns == columns and not covered.idle_us and low_us <= covered.high_us:
                first_us, low_us = covered.low_us, covered.high_us
            else:
                self._forget_all(kv)
        if high_us <= low_us:
            return
        times = rows.column(TIME).to_numpy()
        inside = np.flatnonzero((times >= low_us) & (times < high_us))
        buckets = self._accumulate(calculations, rows, numbers, inside) if len(inside) else None
        idle_us = 0
        if buckets is not None and len(buckets) * _FEW > len(inside):
            self._forget_all(kv)
            idle_us = watermark_us + self._reach_us
        elif buckets is not None:
            self._events.add(kv, buckets, step)
        if not idle_us:
            self._lengthen(kv, calculations, first_us, (low_us, high_us), step)
        batch = Batch()
        batch.put(self._aux_cf, _KEY, msgpack.packb([first_us, high_us, columns, idle_us]))
        kv.write(batch)

    def _accumulate(
        self,
        calculations: Sequence[tuple[Part, Calculation]],
        rows: pa.Table,
        numbers: tuple[IntArray, int],
        some: IntArray,
    ) -> pa.Table:
        """Return an accumulator for each key and bucket, of these rows."""
        at, times = pa.array(some), rows.column(TIME).to_numpy()[some]
        slices = times // self.width_us
        first, (codes, size) = int(slices.min()), numbers
        groups = Groups.numbered(
            (slices - first) * size + codes[some], (int(slices.max()) - first + 1) * size
        )
        firsts = some[groups.first_rows]
        columns = {b: rows.column(b).take(pa.array(firsts)) for b in self._by}
        columns[TIME] = pa.array(slices[groups.first_rows] * self.width_us)
        for part, calculation in calculations:
            if part.frame in self._long:
                lifted_rows = rows.select(columns_of(calculation)).take(at)
                columns.update(calculation.merge(calculation.lift(Slice(lifted_rows, times)), groups)[0])
        return pa.table(columns)

    def _lengthen(
        self,
        kv: KV,
        calculations: Sequence[tuple[Part, Calculation]],
        first_us: int,
        made_us: tuple[int, int],
        step: int,
    ) -> None:
        """Make the long slices that are whole now that there are slices between these times. first_us: since when there are."""
        begin_us = max(-floor_us(-first_us, self._long_us), floor_us(made_us[0], self._long_us))
        end_us = floor_us(made_us[1], self._long_us)
        slices = self._events.read(kv, begin_us, end_us) if begin_us < end_us else None
        if slices is None:
            return
        starts = floor_us(slices.column(TIME).to_numpy(), self._long_us)
        groups = Groups([pa.array(starts), *(slices.column(b) for b in self._by)], len(slices))
        if groups.size * _FEW > len(slices):
            return
        firsts, columns = pa.array(groups.first_rows), dict[str, pa.Array]()
        for part, calculation in calculations:
            if part.frame in self._long:
                columns.update(calculation.merge(_accumulators(slices, calculation), groups)[0])
        columns.update({b: slices.column(b).take(firsts) for b in self._by})
        buckets = pa.table({**columns, TIME: pa.array(starts[groups.first_rows])})
        self._long_slices.add(kv, buckets, step)

    def forget(self, kv: KV, below_us: int) -> None:
        """Delete buckets before that. At the end of time, all of them."""
        for events in (self._events, self._long_slices):
            events.forget(kv, below_us)
        if below_us >= END_OF_TIME_US and kv.get(self._aux_cf, _KEY) is not None:
            self._forget_all(kv)

    def _forget_all(self, kv: KV) -> None:
        for events in (self._events, self._long_slices):
            events.forget(kv, END_OF_TIME_US)
        batch = Batch()
        batch.delete(self._aux_cf, _KEY)
        kv.write(batch)


class Keys:
    """The keys of rows, by their numbers there, below `size`."""

    def __init__(self, rows: pa.Table, codes: IntArray, size: int, by: tuple[str, ...]) -> None:
        self.size, self._by = size, by
        first = Groups.of_codes(codes, size).first_rows
        self._present = np.flatnonzero(first < len(codes))
        self._table = rows.select(by).take(pa.array(first[self._present]))

    def numbers(self, tables: Sequence[pa.Table]) -> list[IntArray]:
        """Return the numbers of the keys of other rows; -1 of keys that have none."""
        n, sizes = len(self._present), list(map(len, tables))
        both = concat([self._table, *(t.select(self._by) for t in tables)]) if self._by else None
        columns = [] if both is None else [both.column(b) for b in self._by]
        codes, size = (
            key_numbers(columns, n + sum(sizes)) if columns else (np.zeros(n + sum(sizes), np.int64), 1)
        )
        own = np.full(size, -1, dtype=np.int64)
        own[codes[:n]] = self._present
        numbers = own[codes]
        return np.split(numbers, np.cumsum([n, *sizes])[:-1])[1:]


def floor_us(time_us: TimeUs, width_us: int) -> TimeUs:
    """Return the start of the bucket of that width that holds a time."""
    return time_us // width_us * width_us


def _accumulators(slices: pa.Table, calculation: Calculation) -> dict[str, pa.Array]:
    """Return the accumulators of buckets that are of these aggregations."""
    prefixes = tuple(f"{ACCUMULATOR}{alias}." for alias in calculation.kernels)
    return {c: combine(slices.column(c)) for c in slices.column_names if c.startswith(prefixes)}


def _foldable(calculation: Calculation) -> bool:
    """True if windows are made of accumulators by `folds.folded`, whatever these are of."""
    kinds = (Count, Sum, Avg, Variance, Extreme)
    return all(isinstance(k, kinds) for k in calculation.kernels.values()) and not any(
        pa.types.is_decimal(f.type) for f in calculation.output
    )


def _digest(calculations: Sequence[tuple[Part, Calculation]]) -> bytes:
    """Return a digest of the columns, by which buckets of other columns are recognised."""
    schemas = [c.schema.remove_metadata().serialize().to_pybytes() for _, c in calculations]
    return xxhash.xxh3_64_digest(b"".join(schemas))
