"""Frame values of emitted rows: each aggregation over its frames around messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.arrays import BoolArray, IntArray
from windrow.core.frames import Frame, RowsBetween
from windrow.operators.aggregations.base import concat_parts
from windrow.operators.aggregations.calculation import Aggregating, Broken, Calculation
from windrow.operators.over.frame_kernels import Once, Ranges, Windows, folded, laid_out, null_where
from windrow.operators.over.partitions import Bounds
from windrow.operators.steps.columns import ACCUMULATOR, POSITION_COLUMNS
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice


@dataclass(frozen=True)
class Part:
    """The aggregations of a definition that share a frame, in the form that `Calculation` takes."""

    by: tuple[str, ...]
    event_time: str
    agg: Mapping[str, Aggregation]
    integer_overflow: str
    frame: Frame

    @property
    def running(self) -> bool:
        """True if it is of all messages so far."""
        return isinstance(self.frame, RowsBetween) and self.frame.low is None


@dataclass
class Values:
    """Columns by alias, a value for each anchor. broken: the values that failed."""

    columns: dict[str, pa.Array]
    broken: list[Broken]

    def extend(self, other: Values) -> None:
        self.columns.update(other.columns)
        self.broken += other.broken


def parts_of(definition: Aggregating) -> list[Part]:
    """Return the aggregations by frame."""
    by_frame: dict[Frame, dict[str, Aggregation]] = {}
    for alias, aggregation in definition.agg.items():
        assert aggregation.frame is not None
        by_frame.setdefault(aggregation.frame, {})[alias] = aggregation
    by, event_time, overflow = definition.by, definition.event_time, definition.integer_overflow
    return [Part(by, event_time, aggregations, overflow, frame) for frame, aggregations in by_frame.items()]


def columns_of(calculation: Calculation) -> list[str]:
    """Return the columns of messages that a calculation reads."""
    if calculation.input_columns() is None:
        return list(calculation.schema.names)
    agg = calculation.definition.agg.values()
    return list(dict.fromkeys(c for aggregation in agg for c in aggregation.columns))


def read_by(calculation: Calculation) -> list[str]:
    """Return the columns of messages that windows are calculated of: with their places, where these matter."""
    places = calculation.ordered or calculation.input_columns() is None
    return [*columns_of(calculation), *(POSITION_COLUMNS if places else ())]


def over_frame(
    calculation: Calculation, rows: Slice, lifted: Mapping[str, pa.Array], bounds: Bounds, partial: str
) -> Values:
    """Return the values of windows. rows: in partitions, `lifted` their accumulators."""
    size, merged, left, windows = len(bounds.low), dict[str, pa.Array](), list[str](), Once(Ranges(bounds))
    for alias, kernel in calculation.kernels.items():
        if kernel is None:
            continue
        parts = folded(kernel, [calculation.parts_of(alias, lifted)], windows)
        if parts is None:
            left.append(alias)
        else:
            merged.update({f"{ACCUMULATOR}{alias}.{part}": column for part, column in parts.items()})
    broken: list[Broken] = []
    if left:
        prefixes = tuple(f"{ACCUMULATOR}{alias}." for alias in left)
        columns = {name: column for name, column in lifted.items() if name.startswith(prefixes)}
        others, broken = _merged(calculation, columns, bounds)
        merged.update(others)
    finished, more = calculation.finish(merged, size)
    values = Values(finished, broken + more)
    if any(kernel is None for kernel in calculation.kernels.values()):
        values.extend(_of_tables(calculation, rows, bounds))
    return _nulled(values, bounds.whole) if partial == "null" else values


def over_slices(
    calculation: Calculation, pieces: Sequence[Mapping[str, pa.Array]], windows: Windows, size: int
) -> Values:
    """Return the values of windows of accumulators that all can be folded."""
    merged, windows = dict[str, pa.Array](), Once(windows)
    for alias, kernel in calculation.kernels.items():
        assert kernel is not None
        parts = folded(kernel, [calculation.parts_of(alias, piece) for piece in pieces], windows)
        assert parts is not None
        merged.update({f"{ACCUMULATOR}{alias}.{part}": column for part, column in parts.items()})
    return Values(*calculation.finish(merged, size))


def _merged(
    calculation: Calculation, columns: Mapping[str, pa.Array], bounds: Bounds
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Return the accumulators of windows that only the kernels can merge."""
    pieces: list[tuple[dict[str, pa.Array], int]] = []
    broken: list[Broken] = []
    for first, last, rows, of in laid_out(bounds):
        if len(rows) == 0:
            pieces.append(({}, last - first))
            continue
        taken, groups = pa.array(rows), Groups.of_codes(of, last - first)
        merged, failed = calculation.merge({n: c.take(taken) for n, c in columns.items()}, groups)
        pieces.append((merged, last - first))
        broken += [Broken(b.alias, b.group + first, b.error) for b in failed]
    return concat_parts(pieces), broken


def _of_tables(calculation: Calculation, rows: Slice, bounds: Bounds) -> Values:
    """Return the values of functions of the messages of a window."""
    pieces: dict[str, list[pa.Array]] = {}
    broken: list[Broken] = []
    for first, last, places, of in laid_out(bounds):
        groups = Groups.of_codes(of, last - first)
        computed, failed = calculation.table_functions(rows.take(places), groups)
        for alias, column in computed.items():
            pieces.setdefault(alias, []).append(combine(column))
        broken += [Broken(b.alias, b.group + first, b.error) for b in failed]
    types = {field.name: field.type for field in calculation.output}
    columns = {
        alias: combine(pa.chunked_array(pieces.get(alias, []), types[alias]))
        for alias, kernel in calculation.kernels.items()
        if kernel is None
    }
    return Values(columns, broken)


def _nulled(values: Values, whole: BoolArray) -> Values:
    """Return values with null where the frame is cut off: failures of the rest do not matter."""
    columns = {alias: null_where(column, ~whole) for alias, column in values.columns.items()}
    return Values(columns, [b for b in values.broken if whole[b.group]])


# -- running ----------------------------------------------------------------------------------------------------------


def running(
    calculation: Calculation, lifted: Mapping[str, pa.Array], codes: IntArray
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Return the accumulators of each row with all earlier rows of its group. lifted: accumulators, sorted by group."""
    n = len(codes)
    first = np.ones(n, dtype=bool)
    first[1:] = codes[1:] != codes[:-1]
    begins = np.maximum.accumulate(np.where(first, np.arange(n), 0))
    bounds = Bounds(begins, np.arange(n) + 1, np.ones(n, dtype=bool))
    accumulators: dict[str, pa.Array] = {}
    broken: list[Broken] = []
    for alias, kernel in calculation.kernels.items():
        if kernel is None:
            continue
        parts = calculation.parts_of(alias, lifted)
        done = folded(kernel, [parts], Ranges(bounds))
        if done is None:
            prefix = f"{ACCUMULATOR}{alias}."
            columns = {f"{prefix}{part}": column for part, column in parts.items()}
            sums, failed = _step_by_step(calculation, columns, np.arange(n) - begins)
            accumulators.update(sums)
            broken += failed
        else:
            accumulators.update({f"{ACCUMULATOR}{alias}.{part}": column for part, column in done.items()})
    return accumulators, broken


def _step_by_step(
    calculation: Calculation, columns: Mapping[str, pa.Array], depths: IntArray
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Merge one row of each group after the other, of all groups at once. depths: the place of each row in its group."""
    by_depth = np.argsort(depths, kind="stable")
    cuts = np.searchsorted(depths[by_depth], np.arange(int(depths.max(initial=-1)) + 2))
    pieces: list[tuple[dict[str, pa.Array], int]] = []
    broken: list[Broken] = []
    before: dict[str, pa.Array] = {}
    reached = np.zeros(0, dtype=np.int64)
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        here = by_depth[low:high]
        size = len(here)
        own = {n: c.take(pa.array(here)) for n, c in columns.items()}
        kept = pa.array(np.searchsorted(reached, here - 1) if low else np.zeros(0, dtype=np.int64))
        former = {n: c.take(kept) for n, c in before.items()}
        both = concat_parts([(former, len(kept)), (own, size)])
        codes = np.r_[np.arange(len(kept)), np.arange(size)]
        own, failed = calculation.merge(both, Groups.of_codes(codes, size))
        broken += [Broken(b.alias, int(here[b.group]), b.error) for b in failed]
        if low:
            own = _kept_where_broken(own, former, [b.group for b in failed])
        before, reached = own, here
        pieces.append((dict(own), len(here)))
    back = np.empty(len(depths), dtype=np.int64)
    back[by_depth] = np.arange(len(depths))
    return {n: c.take(pa.array(back)) for n, c in concat_parts(pieces).items()}, broken


def _kept_where_broken(
    merged: Mapping[str, pa.Array], former: Mapping[str, pa.Array], failed: Sequence[int]
) -> dict[str, pa.Array]:
    """Keep the accumulator unchanged for a message that a user's aggregate rejects."""
    if not failed:
        return dict(merged)
    size = len(next(iter(merged.values())))
    places = np.arange(size)
    places[list(failed)] += size
    both = concat_parts([(merged, size), (former, size)])
    return {name: column.take(pa.array(places)) for name, column in both.items()}


def anchors_of(broken: Sequence[Broken], aliases: Sequence[str]) -> Iterator[tuple[int, Broken]]:
    """Yield each anchor with a failed value, and its first failure by the order of aggregations."""
    first: dict[int, Broken] = {}
    for b in sorted(broken, key=lambda b: aliases.index(b.alias)):
        first.setdefault(b.group, b)
    yield from sorted(first.items())
