"""Sub-patterns of rules: conditions on an input's messages for complete tuples, decided once their deadline is over.

An absence keeps the tuples without a message; an accumulate adds the aggregates of the messages. Both are one join of the
tuples with the messages that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.expressions import Expr, error_text
from windrow.core.inputs import Input
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, START, Point, Timing, holds, reach
from windrow.core.time import START_OF_TIME_US
from windrow.core.types import as_type, widened
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.rules.chains import PAIRS, Candidates, OfCandidates, equal_codes, related
from windrow.operators.rules.patterns import Pattern
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, POSITION_COLUMNS, SOURCE
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.pairing import partners
from windrow.operators.steps.poison_rows import is_of_data

#: The hash of the partition of a tuple.
PARTITION_HASH = "__partition_hash"


class OfTuples:
    """The moments of complete tuples, a table with columns `<binding>.<place>`."""

    def __init__(self, tuples: pa.Table, inputs: Mapping[str, Input]) -> None:
        self._tuples, self._inputs = tuples, inputs
        self._times: dict[Point, tuple[IntArray, BoolArray]] = {}

    def _read(self, point: Point) -> tuple[IntArray, BoolArray]:
        if point not in self._times:
            column = self._tuples.column(f"{point.binding}.{point.place}")
            if point.place in (START, END):
                values = combine(column)
            else:
                input = self._inputs[point.binding]
                values = event_times(column, point.place, input.time_zone, input.event_time_unit)
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            self._times[point] = values.fill_null(0).to_numpy(zero_copy_only=False), valid
        return self._times[point]

    def values(self, point: Point) -> IntArray:
        if not point.binding:
            return np.full(len(self._tuples), int(point.place), dtype=np.int64)
        return self._read(point)[0]

    def valid(self, point: Point) -> BoolArray:
        return self._read(point)[1] if point.binding else np.ones(len(self._tuples), dtype=bool)


@dataclass(frozen=True)
class OfPairs:
    """The moments of pairs of a tuple and a message of a sub-pattern."""

    binding: str
    tuples: OfTuples
    messages: OfCandidates
    left: IntArray

    def values(self, point: Point) -> IntArray:
        if point.binding == self.binding:
            return self.messages.values(point)
        return self.tuples.values(point)[self.left]

    def valid(self, point: Point) -> BoolArray:
        if point.binding == self.binding:
            return self.messages.valid(point)
        return self.tuples.valid(point)[self.left]


def deadlines(timing: Timing, moments: OfTuples, at_us: IntArray) -> IntArray | None:
    """Compute when each tuple is decided; None where it is in the step that completes it. at_us: the ends of tuples."""
    latest: IntArray | None = None
    for span in timing.subpatterns:
        own: IntArray | None = None
        for point, us in timing.deadline_of(span.binding):
            due = np.where(moments.valid(point), moments.values(point) + us, START_OF_TIME_US)
            own = due if own is None else np.minimum(own, due)
        if own is not None:
            latest = own if latest is None else np.maximum(latest, own)
    if timing.delay_us is not None:
        late = at_us + timing.delay_us
        latest = late if latest is None else np.maximum(latest, late)
    return latest


class Failures:
    """Pairs on which a condition raised, by rule: reported as dead letters."""

    def __init__(self, bury: Callable[[str, str, pa.Table, int], None]) -> None:
        self._bury = bury

    def report(self, rule: str, detail: str, table: pa.Table, row: int) -> None:
        """Report a row."""
        self._bury(rule, detail, table, row)

    def true(self, rule: str, binding: str, condition: Expr, table: pa.Table) -> BoolArray:
        """True for the rows for which a condition is; a row on which it raises is reported, and is not true."""

        def true(some: pa.Table) -> BoolArray:
            answer = pc.fill_null(combine(condition.evaluate(some, binding)), False)
            return np.asarray(answer.to_numpy(zero_copy_only=False), dtype=bool)

        return self.each(rule, binding, true, table)

    def each(
        self, rule: str, binding: str, true: Callable[[pa.Table], BoolArray], table: pa.Table
    ) -> BoolArray:
        """True for the rows for which the user's code is; a row on which it raises is reported, and is not true."""
        try:
            return true(table)
        except Exception as error:
            if not is_of_data(error):
                raise
            if len(table) == 1:
                self._bury(rule, f"{binding}: {error_text(error)}", table, 0)
                return np.zeros(1, dtype=bool)
        half = len(table) // 2
        parts = [self.each(rule, binding, true, t) for t in (table.slice(0, half), table.slice(half))]
        return np.concatenate(parts)

    def having(self, rule: str, binding: str, pattern: Pattern, tuples: pa.Table) -> BoolArray:
        """True for the tuples whose aggregates fulfil `having`."""
        if pattern.having is None:
            return np.ones(len(tuples), dtype=bool)
        names = {alias: tuples.column(f"{binding}.{alias}") for alias in pattern.agg}
        bound = {c: tuples.column(c) for c in tuples.column_names if "." in c}
        return self.true(rule, binding, pattern.having, pa.table({**bound, **names}))


@dataclass(frozen=True)
class Decision:
    """The parameters that decide a sub-pattern: its place in its rule, and the columns of its input."""

    rule: str
    binding: str
    pattern: Pattern
    timing: Timing
    #: Column names of the partition: of tuples, and of the input.
    by: tuple[tuple[str, str], ...]
    read: Callable[[IntArray, IntArray, IntArray], Candidates]

    def pairs(
        self, tuples: pa.Table, moments: OfTuples, due: IntArray | None, failures: Failures
    ) -> Iterator[tuple[Candidates, IntArray, IntArray]]:
        """Find the messages of each tuple, a slice at a time: (messages, rows of tuples, rows of messages).

        due: the deadlines of tuples, None without bound
        """
        n = len(tuples)
        low, high = self._reach(moments, n)
        messages = self.read(combine(tuples.column(PARTITION_HASH)).to_numpy(), low, high)
        rows = np.flatnonzero(messages.fits[self.rule, self.binding])
        if not len(rows):
            return
        left, right = self.codes(tuples, messages.table.take(pa.array(rows)))
        found = partners(left, low, high, right, messages.ends[rows])
        cuts = [np.arange(n, dtype=np.int64)]
        if int(found.n.sum()) > PAIRS:
            cuts = np.split(cuts[0], np.flatnonzero(np.diff(np.cumsum(found.n) // PAIRS)) + 1)
        for cut in cuts:
            of, at = found.of(cut)
            at = rows[at]
            kept = self._fits(tuples, moments, messages, of, at, due)
            of, at = of[kept], at[kept]
            if len(of) and self.pattern.where is not None:
                table = self._table(self.pattern.where, tuples, messages, of, at)
                kept = failures.true(self.rule, self.binding, self.pattern.where, table)
                of, at = of[kept], at[kept]
            if len(of):
                yield messages, of, at

    def _reach(self, moments: OfTuples, n: int) -> tuple[IntArray, IntArray]:
        """Compute where the messages of each tuple may end."""
        matrix = self.timing.matrices[self.binding]
        ranges = matrix.range(
            (p for p in matrix.points if p.binding != self.binding), Point(self.binding, END)
        )
        low, high = reach(ranges, moments.values, n)
        for point, _, _ in ranges:
            low = np.where(moments.valid(point), low, INFINITE_US)
        return low, high

    def codes(self, tuples: pa.Table, rows: pa.Table) -> tuple[IntArray, IntArray]:
        """Number partitions and equal columns of tuples and of messages."""
        n, columns = len(tuples), []
        for one, other in self.by:
            sides = combine(tuples.column(one)), combine(rows.column(other))
            kind = widened(sides[0].type, sides[1].type) or sides[0].type
            columns.append(pa.concat_arrays([as_type(side, kind) for side in sides]))
        codes = Groups(columns, n + len(rows)).codes if columns else np.zeros(n + len(rows), dtype=np.int64)
        pairs = [
            (combine(tuples.column(dotted)), combine(rows.column(own))) for own, dotted in self.pattern.on
        ]
        return equal_codes(codes[:n], codes[n:], pairs) if pairs else (codes[:n], codes[n:])

    def _fits(
        self,
        tuples: pa.Table,
        moments: OfTuples,
        messages: Candidates,
        of: IntArray,
        at: IntArray,
        due: IntArray | None,
    ) -> BoolArray:
        """True for the pairs that keep all constraints, and whose message is not an excluded one of the tuple."""
        pairs = OfPairs(self.binding, moments, OfCandidates({self.binding: messages}, {self.binding: at}), of)
        kept = holds(self.timing.more_of(self.binding), pairs.values, len(of))
        for relation in self.pattern.time:
            kept &= related(self.binding, relation, pairs, len(of))
        expires_us = self.timing.expires_us.get(self.binding)
        if expires_us is not None and due is not None:
            kept &= due[of] - messages.ends[at] <= expires_us
        for other in self.pattern.other_than:
            kept &= ~_one(messages.table, at, tuples, other, of)
        return kept

    def _table(
        self, condition: Expr, tuples: pa.Table, messages: Candidates, of: IntArray, at: IntArray
    ) -> pa.Table:
        """Give the columns of pairs that a condition may name, and the places of both."""
        rows, bound = messages.table.take(pa.array(at)), tuples.take(pa.array(of))
        for name in bound.column_names:
            if "." in name and (condition.mentions(name) or name.endswith(POSITION_COLUMNS)):
                rows = rows.append_column(name, bound.column(name))
        return rows


def _one(rows: pa.Table, at: IntArray, tuples: pa.Table, binding: str, of: IntArray) -> BoolArray:
    """True for the pairs of which the message is that of the binding."""
    same = np.ones(len(of), dtype=bool)
    for name in (OFFSET, PARTITION, ORDINAL):
        same &= rows.column(name).to_numpy()[at] == tuples.column(f"{binding}.{name}").to_numpy()[of]
    for i in np.flatnonzero(same).tolist():
        same[i] = rows.column(SOURCE)[at[i]].as_py() == tuples.column(f"{binding}.{SOURCE}")[of[i]].as_py()
    return same


def without_any(found: Iterator[tuple[Candidates, IntArray, IntArray]], n: int) -> BoolArray:
    """True for the tuples of which no message was found."""
    absent = np.ones(n, dtype=bool)
    for _, of, _ in found:
        absent[of] = False
    return absent


def accumulated(
    decision: Decision,
    calculation: Calculation,
    found: Iterator[tuple[Candidates, IntArray, IntArray]],
    tuples: pa.Table,
    failures: Failures,
) -> tuple[pa.Table, BoolArray]:
    """Add the aggregates of the messages of each tuple; and say which tuples have them, and fulfil `having`."""
    n, pattern = len(tuples), decision.pattern
    kept, places = np.ones(n, dtype=bool), np.full(n, 0, dtype=np.int64)
    none = calculation.schema.empty_table()
    parts = [
        aggregates(calculation, Slice(none, np.zeros(0, dtype=np.int64)), np.zeros(0, dtype=np.int64), 1)[0]
    ]
    size = 1
    for messages, of, at in found:
        order = np.lexsort((at, messages.ends[at], of))
        of, at = of[order], at[order]
        groups, codes = np.unique(of, return_inverse=True)
        rows = Slice(messages.table.take(pa.array(at)), messages.ends[at])
        values, broken = aggregates(calculation, rows, codes, len(groups))
        places[groups] = size + np.arange(len(groups))
        size += len(groups)
        parts.append(values)
        for one in broken:
            kept[groups[one.group]] = False
            failures.report(
                decision.rule, f"{decision.binding}: {one.alias}: {one.error}", tuples, int(groups[one.group])
            )
    for f in calculation.output:
        column = pa.concat_arrays([as_type(part[f.name], f.type) for part in parts]).take(pa.array(places))
        if f.name in pattern.empty:
            fill = pa.scalar(pattern.empty[f.name], f.type)
            column = pc.if_else(pa.array(places == 0), fill, column)
        tuples = tuples.append_column(f"{decision.binding}.{f.name}", column)
    kept &= failures.having(decision.rule, decision.binding, pattern, tuples)
    return tuples, kept


def aggregates(
    calculation: Calculation, rows: Slice, codes: IntArray, size: int
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Aggregate the messages of groups."""
    groups = Groups.of_codes(codes, size)
    merged, broken = calculation.merge(calculation.lift(rows), groups)
    values, more = calculation.finish(merged, size)
    functions, failed = calculation.table_functions(rows, groups)
    return {**values, **functions}, [*broken, *more, *failed]
