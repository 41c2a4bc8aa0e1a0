"""Entries of a run: the contributions of its messages, laid out by (window, key), and the accumulators up to any of them.

Accumulators are folded from left to right, as single steps would have merged them, so that they have the same bits. The fold
works on parts of the entries: each place is given all entries before it in its part, and the result of the part before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.types import concat
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.columns import ACCUMULATOR, END, START
from windrow.operators.steps.groups import Groups, combine

#: Number of entries of a (window, key) in a part.
AT_ONCE = 128


@dataclass(frozen=True)
class Entries:
    """The contributions of the messages of a run to their windows, in order of arrival.

    rows: deltas. at: the message of the run that each is of; steps: the number of its step
    """

    rows: pa.Table
    at: IntArray
    steps: IntArray


class Laid:
    """Entries by (window, key). Group g has those from `bounds[g]` on; a group with a stored row has the number of that row.

    table: stored rows, then entries. order: the entries, group by group; of each its group, and its place in it from 0
    """

    def __init__(self, by: tuple[str, ...], stored: pa.Table | None, entries: Entries) -> None:
        self.by, self.stored = by, 0 if stored is None else len(stored)
        self.table = entries.rows if stored is None else concat([stored, entries.rows])
        columns = [self.table.column(START), *(self.table.column(b) for b in by)]
        self.groups = Groups(columns, len(self.table))
        self.size, self.first = self.groups.size, self.groups.first_rows
        codes = self.groups.codes[self.stored :]
        self.order, self.bounds = Groups.of_codes(codes, self.size).slices()
        self.group = codes[self.order]
        self.place = np.arange(len(codes)) - self.bounds[self.group]
        self.last = self.bounds[1:] - 1
        self.at, self.steps = entries.at[self.order], entries.steps[self.order]

    def before(self, name: str) -> IntArray:
        """Return a count of each stored row; 0 for new rows."""
        values = np.zeros(self.size, dtype=np.int64)
        values[: self.stored] = combine(self.table.column(name).slice(0, self.stored)).fill_null(0).to_numpy()
        return values

    def names(self, groups: IntArray) -> pa.Table:
        """Return window and key of groups."""
        return self.table.select([START, END, *self.by]).take(pa.array(self.first[groups]))

    def newest(self, chosen: BoolArray) -> IntArray:
        """Return for each entry, in order, the chosen one of its group that is nearest before it; -1 where there is none."""
        newest = np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))
        before = np.r_[-1, newest[:-1]]
        return np.where(before >= self.bounds[self.group], before, -1)

    # -- accumulators ---------------------------------------------------------------------------------------------------

    @cached_property
    def accumulators(self) -> pa.Table | None:
        """Return the accumulators of the rows of `table`; None where there are none."""
        names = [n for n in self.table.column_names if n.startswith(ACCUMULATOR)]
        return self.table.select(names) if names else None

    def folded(self, calculation: Calculation, places: BoolArray) -> pa.Table | None:
        """Return the accumulators at places, each continued from the place before."""
        if self.accumulators is None:
            return None
        base, base_of = self.accumulators, np.full(self.size, -1, dtype=np.int64)
        base_of[: self.stored] = np.arange(self.stored)
        block = self.place // AT_ONCE
        ends = self.place % AT_ONCE == AT_ONCE - 1
        wanted = np.flatnonzero(places | ends)
        bases, where = list[pa.Table](), list[IntArray]()
        for number in range(int(block.max(initial=-1)) + 1):
            here = wanted[block[wanted] == number]
            if len(here) == 0:
                continue
            groups = self.group[here]
            first = self.bounds[groups] + number * AT_ONCE
            counts = here - first + 1
            of, rows = _ranges(first, counts)
            base = self._fold(calculation, base, base_of[groups], self.stored + self.order[rows], of)
            base_of = np.full(self.size, -1, dtype=np.int64)
            base_of[groups[ends[here]]] = np.flatnonzero(ends[here])
            bases.append(base)
            where.append(here)
        at = np.full(len(self.place), -1, dtype=np.int64)
        at[np.concatenate(where)] = np.arange(sum(map(len, where)))
        return concat(bases).take(pa.array(at[places]))

    def parted(self, calculation: Calculation, places: BoolArray) -> pa.Table | None:
        """Return the accumulators at places, each of the entries since the place before."""
        if self.accumulators is None:
            return None
        of: IntArray = np.cumsum(places) - places
        base_of = np.full(int(places.sum()), -1, dtype=np.int64)
        base_of[of[self.bounds[: self.stored]]] = np.arange(self.stored)
        return self._fold(calculation, self.accumulators, base_of, self.stored + self.order, of)

    def _fold(
        self, calculation: Calculation, base: pa.Table, base_of: IntArray, rows: IntArray, of: IntArray
    ) -> pa.Table:
        """Fold a row for each of `base_of`: that row of `base`, then the rows of the table that are `of` it, in order."""
        assert self.accumulators is not None
        entries = self.accumulators.take(pa.array(rows))
        has = np.flatnonzero(base_of >= 0)
        if len(has) == 0 and len(rows) == len(base_of):
            return entries  # a first message is stored as it was lifted
        several = np.bincount(of, minlength=len(base_of)) + (base_of >= 0) > 1
        codes = np.r_[has, of]
        together = concat([base.take(pa.array(base_of[has])), entries])
        chosen = several[codes]
        numbers = np.cumsum(several) - 1
        few = Groups.of_codes(numbers[codes[chosen]], int(several.sum()))
        many = together if chosen.all() else together.filter(pa.array(chosen))
        merged, _ = calculation.fold({n: combine(many.column(n)) for n in many.column_names}, few)
        if several.all():
            return pa.table(merged)
        alone = together.filter(pa.array(~chosen))
        order = np.argsort(np.r_[codes[~chosen], np.flatnonzero(several)], kind="stable")
        return concat([alone, pa.table(merged)]).take(pa.array(order))


def _ranges(first: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return (i, number) for the numbers from `first[i]` on, `counts[i]` of them."""
    of = np.repeat(np.arange(len(first)), counts)
    return of, np.arange(len(of)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
