"""Long frames of time: what lies in the middle of all windows of an advance is taken as one accumulator of each key.

    |<- rows ->|<------------ slices, each an accumulator a key ------------>|<- rows ->|
    ^ where the windows begin                                                ^ where they end

So an advance reads some rows at both ends, and not all of a frame. Slices are made of messages that are kept in any case, when
the watermark is past them: where they are missing, were made of other columns, or are hardly fewer than the messages, these are
read instead. Traub et al., "Efficient Window Aggregation with General Stream Slicing", EDBT 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.frames import Frame, RangeBetween
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregations.base import concat_parts
from windrow.operators.aggregations.basic import Avg, Count, Extreme, Sum
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.aggregations.moments import Variance
from windrow.operators.over.lines import Bounds, Lines
from windrow.operators.over.values import Part, columns_of
from windrow.operators.steps.columns import ACCUMULATOR
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice
from windrow.stores.events import TIME, Events
from windrow.stores.kv import KV, Batch

#: A frame of time has so many slices, of no less than that.
_MANY, _SHORTEST_US = 64, 100_000
#: Slices are worth it for a frame of so many, of which an advance passes a quarter or less,
_LONG, _SMALL = 16, 4
#: and where so many messages make an accumulator.
_FEW = 3
_KEY = b"\x00slices"


class Covered(NamedTuple):
    """Between which times there are all slices, and of which columns. idle_us: they are not worth it before that."""

    low_us: int
    high_us: int
    columns: bytes
    idle_us: int


@dataclass(frozen=True)
class Long:
    """What an advance reads of long frames. right_us: from here on it reads rows; before it, of each frame, rows up to where
    its slices begin."""

    right_us: int
    begins: Mapping[Frame, int]


class Middle(NamedTuple):
    """Of one frame: rows before its slices, in lines, and their accumulators, None where there are none; the accumulators of
    its slices, one a key, and the numbers of these keys."""

    lines: Lines | None
    lifted: Mapping[str, pa.Array]
    merged: Mapping[str, pa.Array]
    codes: IntArray


class Slices:
    """The slices of one operator. parts: of its aggregations, by frame; reach_us: of the longest."""

    def __init__(
        self, cf: str, aux_cf: str, by: tuple[str, ...], parts: Sequence[Part], reach_us: int
    ) -> None:
        self.cf, self._aux_cf, self._by = cf, aux_cf, by
        self.width_us = max(reach_us // _MANY, _SHORTEST_US)
        self._events = Events(cf, self.width_us)
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
        """How to tell messages of `[low_us, high_us)` by slices; None where that cannot be, or is not worth it."""
        if not self._worth(calculations, low_us, high_us):
            return None
        covered = self._covered(kv)
        if covered is None or covered.columns != _digest(calculations) or covered.idle_us:
            return None
        rows_us = [low_us, covered.high_us, *(low_us + min(f.high_us, 0) for f in self._long)]
        rows_us += [low_us + min(f.low_us, f.high_us, 0) for f in self._others]
        right_us = self._floor(min(rows_us))
        begins: dict[Frame, int] = {
            f: self._floor(high_us + f.low_us - 1) + self.width_us for f in self._long
        }
        if min(begins.values()) < covered.low_us or max(begins.values()) >= right_us:
            return None
        return Long(right_us, begins)

    def _worth(self, calculations: Sequence[tuple[Part, Calculation]], low_us: int, high_us: int) -> bool:
        if not self._long or high_us >= END_OF_TIME_US or (high_us - low_us) * _SMALL > self._reach_us:
            return False
        return all(_foldable(c) for part, c in calculations if part.frame in self._long)

    def _floor(self, time_us: int) -> int:
        return time_us // self.width_us * self.width_us

    def _covered(self, kv: KV) -> Covered | None:
        value = kv.get(self._aux_cf, _KEY)
        return None if value is None else Covered(*msgpack.unpackb(value))

    # -- reading ------------------------------------------------------------------------------------------------------

    def middle(
        self, kv: KV, long: Long, frame: Frame, left: pa.Table | None, calculation: Calculation, keys: Keys
    ) -> Middle:
        """Of a frame. left: the rows that are read before its slices."""
        slices = self._events.read(kv, long.begins[frame], long.right_us)
        tables = [t for t in (left, slices) if t is not None]
        codes = keys.numbers(tables, self._by)
        lines, lifted, merged, found = (
            None,
            dict[str, pa.Array](),
            dict[str, pa.Array](),
            np.zeros(0, np.int64),
        )
        if left is not None and (codes[0] >= 0).any():
            mine = codes[0] >= 0
            rows = left.filter(pa.array(mine))
            lines = Lines(rows, codes[0][mine], keys.size, rows.column(TIME).to_numpy(), None)
            in_lines = rows.select(columns_of(calculation)).take(pa.array(lines.order))
            lifted = calculation.lift(Slice(in_lines, lines.times))
        if slices is not None:
            mine = codes[-1] >= 0
            some = slices.filter(pa.array(mine))
            found, dense = np.unique(codes[-1][mine], return_inverse=True)
            prefixes = tuple(f"{ACCUMULATOR}{alias}." for alias in calculation.kernels)
            columns = {c: combine(some.column(c)) for c in some.column_names if c.startswith(prefixes)}
            merged, _ = calculation.merge(columns, Groups.of_codes(dense.astype(np.int64), len(found)))
        return Middle(lines, lifted, merged, found)

    # -- writing ------------------------------------------------------------------------------------------------------

    def extend(
        self,
        kv: KV,
        calculations: Sequence[tuple[Part, Calculation]],
        rows: pa.Table,
        known_us: int,
        moved: tuple[int, int],
        watermark_us: int,
        step: int,
    ) -> None:
        """Make what is missing of slices that the watermark is past. rows: all from `known_us` on; moved: between which times
        messages are told."""
        covered, columns = self._covered(kv), _digest(calculations)
        if not self._worth(calculations, *moved):
            if covered is not None:
                self._forget_all(kv)
            return
        if covered is not None and moved[0] < covered.idle_us:
            return
        low_us, high_us = -(-known_us // self.width_us) * self.width_us, self._floor(watermark_us)
        first_us = low_us
        if covered is not None:
            if covered.columns == columns and not covered.idle_us and low_us <= covered.high_us:
                first_us, low_us = covered.low_us, covered.high_us
            else:
                self._forget_all(kv)
        if high_us <= low_us:
            return
        times = rows.column(TIME).to_numpy()
        some = rows.filter(pa.array((times >= low_us) & (times < high_us)))
        made = self._made(calculations, some) if len(some) else None
        idle_us = 0
        if made is not None and len(made) * _FEW > len(some):
            self._forget_all(kv)
            idle_us = watermark_us + self._reach_us
        elif made is not None:
            self._events.add(kv, made, step)
        batch = Batch()
        batch.put(self._aux_cf, _KEY, msgpack.packb([first_us, high_us, columns, idle_us]))
        kv.write(batch)

    def _made(self, calculations: Sequence[tuple[Part, Calculation]], rows: pa.Table) -> pa.Table:
        """An accumulator for each key and slice."""
        starts = rows.column(TIME).to_numpy() // self.width_us * self.width_us
        groups = Groups([pa.array(starts), *(rows.column(b) for b in self._by)], len(rows))
        firsts = pa.array(groups.first_rows)
        columns = {b: rows.column(b).take(firsts) for b in self._by}
        columns[TIME] = pa.array(starts).take(firsts)
        for part, calculation in calculations:
            if part.frame in self._long:
                lifted = calculation.lift(
                    Slice(rows.select(columns_of(calculation)), rows.column(TIME).to_numpy())
                )
                columns.update(calculation.merge(lifted, groups)[0])
        return pa.table(columns)

    def forget(self, kv: KV, below_us: int) -> None:
        """Slices before that. At the end of time, all of them."""
        self._events.forget(kv, below_us)
        if below_us >= END_OF_TIME_US and kv.get(self._aux_cf, _KEY) is not None:
            self._forget_all(kv)

    def _forget_all(self, kv: KV) -> None:
        self._events.forget(kv, END_OF_TIME_US)
        batch = Batch()
        batch.delete(self._aux_cf, _KEY)
        kv.write(batch)


class Keys:
    """The keys of lines, by number."""

    def __init__(self, lines: Lines, rows: pa.Table, by: tuple[str, ...]) -> None:
        self.size = lines.size
        self._present, first = np.unique(lines.codes, return_index=True)
        self._table = rows.select(by).take(pa.array(lines.order[first]))

    def numbers(self, tables: Sequence[pa.Table], by: tuple[str, ...]) -> list[IntArray]:
        """The numbers of the keys of rows; -1 of keys that have none."""
        n, sizes = len(self._present), list(map(len, tables))
        both = concat([self._table, *(t.select(by) for t in tables)]) if by else None
        columns = [] if both is None else [both.column(b) for b in by]
        codes = Groups(columns, n + sum(sizes)).codes
        found = np.r_[self._present, -1][np.minimum(codes, n)]
        return np.split(found, np.cumsum([n, *sizes])[:-1])[1:]


def windows_by(
    middle: Middle,
    lines: Lines,
    right: Mapping[str, pa.Array],
    right_us: int,
    frame: RangeBetween,
    places: IntArray,
) -> tuple[dict[str, pa.Array], Bounds]:
    """Accumulators of what windows are made of, one key after the other: rows before the slices, all slices, rows after them;
    and the windows around the messages at these places of `lines`, whose accumulators are `right`, from `right_us` on."""
    size, left = lines.size, middle.lines
    after = lines.times >= right_us
    before_place = np.r_[0, np.cumsum(after)]  # how many of those there are before each place
    line_starts = before_place[np.searchsorted(lines.codes, np.arange(size))]
    left_codes = np.zeros(0, dtype=np.int64) if left is None else left.codes
    left_n, middle_n = np.bincount(left_codes, minlength=size), np.zeros(size, dtype=np.int64)
    middle_n[middle.codes] = 1
    sizes = left_n + middle_n + np.bincount(lines.codes[after], minlength=size)
    starts = np.cumsum(sizes) - sizes
    left_starts, behind = np.cumsum(left_n) - left_n, starts + left_n + middle_n - line_starts
    n, m, r = len(left_codes), len(middle.codes), int(after.sum())
    order = np.empty(n + m + r, dtype=np.int64)
    order[starts[left_codes] + np.arange(n) - left_starts[left_codes]] = np.arange(n)
    order[starts[middle.codes] + left_n[middle.codes]] = n + np.arange(m)
    order[behind[lines.codes[after]] + np.arange(r)] = n + m + np.arange(r)
    kept = pa.array(np.flatnonzero(after))
    pieces = [(middle.lifted, n), (middle.merged, m), ({c: v.take(kept) for c, v in right.items()}, r)]
    both = {c: v.take(pa.array(order)) for c, v in concat_parts([p for p in pieces if p[1]]).items()}
    codes, times = lines.codes[places], lines.times[places]
    low = starts[codes]
    if left is not None:
        low = low + left.first_from(codes, times + frame.low_us) - left_starts[codes]
    high = before_place[lines.first_from(codes, times + frame.high_us + 1)] + behind[codes]
    return both, Bounds(low, np.maximum(high, low), np.ones(len(places), dtype=bool))


def _foldable(calculation: Calculation) -> bool:
    """True if windows are made of accumulators by `folds.folded`, whatever these are of."""
    kinds = (Count, Sum, Avg, Variance, Extreme)
    return all(isinstance(k, kinds) for k in calculation.kernels.values()) and not any(
        pa.types.is_decimal(f.type) for f in calculation.output
    )


def _digest(calculations: Sequence[tuple[Part, Calculation]]) -> bytes:
    """By which slices that were made of other columns are known."""
    schemas = [c.schema.remove_metadata().serialize().to_pybytes() for _, c in calculations]
    return xxhash.xxh3_64_digest(b"".join(schemas))
