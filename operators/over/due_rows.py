"""Due rows of partitions of messages: the messages that are due, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.frames import Frame, RangeBetween, RowsBetween
from windrow.core.time import START_OF_TIME_US
from windrow.operators.aggregations.base import SumOverflow, concat_parts
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.one_input import Work
from windrow.operators.over.bucketed_frames import Middle, Sliced
from windrow.operators.over.frame_values import (
    Part,
    Values,
    anchors_of,
    over_frame,
    over_slices,
    read_by,
    running,
)
from windrow.operators.over.partitions import Lines, ordered
from windrow.operators.steps.columns import ACCUMULATOR
from windrow.operators.steps.dead_letters import AGGREGATE_FAILED, INTEGER_OVERFLOW
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice

#: Event time of the last message that a running aggregation has taken.
LAST = "__last"


class Reached(NamedTuple):
    """Progress of event time: the watermark, and the time before which messages are settled."""

    watermark_us: int
    settled_us: int


@dataclass
class Sums:
    """The accumulators of running aggregations: `LAST`, columns of accumulators; codes: of their keys."""

    rows: pa.Table
    codes: IntArray


class DueRows:
    """An advance over messages in partitions, which are made of `rows`."""

    def __init__(
        self,
        lines: Lines,
        rows: pa.Table,
        calculations: Sequence[tuple[Part, Calculation]],
        waits: int,
        middles: Mapping[Frame, Middle] | None = None,
        right_us: int = START_OF_TIME_US,
        times: IntArray | None = None,
    ) -> None:
        self.lines, self.waits = lines, waits
        #: Event times, by which partitions are ordered by default.
        self._times = lines.times if times is None else times
        #: Of bucketed frames, all before `right_us`.
        self._middles, self._right_us = middles or {}, right_us
        self._rows, self._calculations = rows, calculations
        self._columns: dict[str, pa.Array] = {}

    def at(self, places: IntArray, names: Sequence[str]) -> pa.Table:
        """Return these columns of the messages at these places."""
        order = pa.array(self.lines.order[places])
        return pa.table({name: self._column(name).take(order) for name in names})

    def _column(self, name: str) -> pa.Array:
        """Return a column in one piece, from which taking rows is faster."""
        if name not in self._columns:
            self._columns[name] = combine(self._rows.column(name))
        return self._columns[name]

    def numbers(self, name: str) -> IntArray:
        """Return a column of whole numbers, in the order of partitions."""
        numbers: IntArray = self._rows.column(name).to_numpy()[self.lines.order]
        return numbers

    def due(self, before: Reached, after: Reached) -> IntArray:
        """Return the places of messages whose rows are due now, and were not before."""
        return np.flatnonzero(self.is_due(after) & ~self.is_due(before))

    def is_due(self, at: Reached) -> BoolArray:
        """True for messages around which nothing can come any more."""
        settled: BoolArray = self.lines.times < at.settled_us
        return settled & self.lines.complete(self.waits, at.watermark_us)

    def whole(self, places: IntArray, work: Work) -> IntArray:
        """Return the places whose frames are whole, if only whole frames make rows."""
        kept = self.is_whole(places)
        if not kept.all():
            work.result.counts["incomplete"] = int(len(kept) - kept.sum())
        return places[kept]

    def is_whole(self, places: IntArray) -> BoolArray:
        """True where no frame that is cut off keeps a message from having a row."""
        kept = np.ones(len(places), dtype=bool)
        for part, _ in self._calculations:
            if not part.running and isinstance(part.frame, RowsBetween) and part.frame.partial == "skip":
                kept &= self.lines.windows(part.frame, places).whole
        return kept

    def values(self, places: IntArray, ran: tuple[IntArray, Values] | None) -> Values:
        """Return the values by alias. ran: of running aggregations, for more places."""
        values = Values({}, [])
        for part, calculation in self._calculations:
            if part.running:
                assert ran is not None
                at = np.searchsorted(ran[0], places)
                taken = pa.array(at)
                values.columns.update({a: c.take(taken) for a, c in ran[1].columns.items()})
                of = {place: i for i, place in enumerate(at.tolist())} if ran[1].broken else {}
                values.broken += [
                    Broken(b.alias, of[b.group], b.error) for b in ran[1].broken if b.group in of
                ]
                continue
            rows = self._slice(calculation, np.arange(len(self.lines)))
            lifted = calculation.lift(rows)
            middle = self._middles.get(part.frame)
            if middle is None:
                bounds = self.lines.windows(part.frame, places)
                partial = getattr(part.frame, "partial", "emit")
                values.extend(over_frame(calculation, rows, lifted, bounds, partial))
                continue
            assert isinstance(part.frame, RangeBetween)
            sliced = Sliced(middle, self.lines, lifted, self._right_us, part.frame, places)
            values.extend(over_slices(calculation, sliced.pieces, sliced, len(places)))
        return values

    def run(
        self, places: IntArray, sums: Sums | None, upto: BoolArray | None = None
    ) -> tuple[tuple[IntArray, Values] | None, Sums | None]:
        """Run the running aggregations of the messages at these places. Returns the values and the accumulators by key; None
        without any. sums: the accumulators before. upto: true for the first messages of a key, up to which the new accumulators
        go; by default all
        """
        running = [calculation for part, calculation in self._calculations if part.running]
        if not running or not len(places):
            return None, None
        values, reached = Values({}, []), None
        for calculation in running:
            computed, own = self._run(calculation, places, sums, upto)
            values.extend(computed)
            if reached is None:
                reached = own
            else:  # of the same keys, up to the same messages
                for name in own.rows.column_names[1:]:
                    reached.rows = reached.rows.append_column(name, own.rows.column(name))
        return (places, values), reached

    def _run(
        self, calculation: Calculation, places: IntArray, sums: Sums | None, upto: BoolArray | None
    ) -> tuple[Values, Sums]:
        """Compute the running aggregations of one frame."""
        rows = self._slice(calculation, places)
        lifted = calculation.lift(rows)
        codes, begins = self.lines.codes[places], self.lines.begins[places]
        firsts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
        if sums is not None and len(sums.rows):
            continued = self._continued(sums, codes[firsts], rows.times[firsts])
        else:
            continued = np.full(len(firsts), -1, dtype=np.int64)
        kept = continued >= 0
        pieces: list[tuple[Mapping[str, pa.Array], int]] = []
        if kept.any():
            assert sums is not None
            stored = sums.rows.take(pa.array(continued[kept]))
            own = tuple(f"{ACCUMULATOR}{alias}." for alias in calculation.definition.agg)
            names = [n for n in stored.column_names if n.startswith(own)]
            pieces.append(({n: combine(stored.column(n)) for n in names}, int(kept.sum())))
        pieces.append((lifted, len(places)))
        # Partitions one after the other; the continued accumulators of a key come before its first message.
        line = np.r_[begins[firsts[kept]], begins]
        order = np.argsort(line, kind="stable")
        both = {n: c.take(pa.array(order)) for n, c in concat_parts(pieces).items()}
        accumulated, broken = running(calculation, both, line[order])
        new = np.flatnonzero(order >= int(kept.sum()))
        running_values = {n: c.take(pa.array(new)) for n, c in accumulated.items()}
        shown, frame = running_values, getattr(calculation.definition, "frame", None)
        if isinstance(frame, RowsBetween) and frame.peers:
            last = np.searchsorted(places, self.lines.peers[1][places] - 1)
            shown = {n: c.take(pa.array(last)) for n, c in running_values.items()}
        finished, more = calculation.finish(shown, len(places))
        at = {int(row): i for i, row in enumerate(new)} if broken else {}
        failed = [Broken(b.alias, at[b.group], b.error) for b in broken if b.group in at]
        lasts = np.r_[firsts[1:], len(places)] - 1
        if upto is not None:
            many = np.add.reduceat(upto.astype(np.int64), firsts)
            lasts = (firsts + many - 1)[many > 0]
        columns = {n: c.take(pa.array(lasts)) for n, c in running_values.items()}
        table = pa.table({LAST: pa.array(rows.times[lasts], pa.int64()), **columns})
        return Values(finished, failed + more), Sums(table, codes[lasts])

    def _continued(self, sums: Sums, codes: IntArray, first_us: IntArray) -> IntArray:
        """Return for each key the row of its accumulators, if its first message is not too long after; else -1."""
        of = np.full(self.lines.size, -1, dtype=np.int64)
        of[sums.codes] = np.arange(len(sums.codes))
        rows = of[codes]
        if self.lines.ttl_us is not None:
            last = sums.rows.column(LAST).to_numpy()[np.maximum(rows, 0)]
            rows = np.where(first_us - last > self.lines.ttl_us, -1, rows)
        return rows

    def _slice(self, calculation: Calculation, places: IntArray) -> Slice:
        """Return the columns of the messages at these places that the calculation reads."""
        return Slice(self.at(places, read_by(calculation)), self._times[places])

    def bury(
        self, work: Work, places: IntArray, broken: Sequence[Broken], aliases: Sequence[str]
    ) -> IntArray:
        """Add dead letters for messages whose row could not be made. Returns the numbers of the others."""

        def anchors(numbers: IntArray) -> tuple[pa.Table, IntArray]:
            at = places[numbers]
            return self.at(at, self._rows.column_names), self._times[at]

        return buried(work, broken, aliases, anchors, len(places))

    def in_order(self, places: IntArray) -> IntArray:
        """Return the messages at these places by event time and position."""
        return ordered(self.lines.times[places], self.lines.ties, self.lines.order[places])


def buried(
    work: Work,
    broken: Sequence[Broken],
    aliases: Sequence[str],
    anchors: Callable[[IntArray], tuple[pa.Table, IntArray]],
    size: int,
) -> IntArray:
    """Add dead letters for anchors whose row could not be made. `anchors` returns anchors by numbers below `size`, with their
    event times. Returns the numbers of the others."""
    kept = np.ones(size, dtype=bool)
    by_reason: dict[str, list[tuple[int, str]]] = {}
    for anchor, b in anchors_of(broken, aliases):
        kept[anchor] = False
        overflow = isinstance(b.error, SumOverflow)
        reason = INTEGER_OVERFLOW if overflow else AGGREGATE_FAILED
        remedy = "use integer_overflow='decimal' for sums beyond int64"
        detail = f"{b.error}: {remedy}" if overflow else f"{b.alias}: {b.error}"
        by_reason.setdefault(reason, []).append((anchor, detail))
    for reason, failures in by_reason.items():
        rows, times = anchors(np.array([anchor for anchor, _ in failures]))
        work.dead.add_rows(
            reason, [detail for _, detail in failures], rows, np.arange(len(failures)), pa.array(times)
        )
    return np.flatnonzero(kept)
