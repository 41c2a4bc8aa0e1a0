"""State rows: one row per (window, key), merged from stored rows and the rows of a step.

Stored rows come oldest first. An upsert row replaces everything before it; deltas after it are merged in. The merge is
a left fold in that order, so the same commits give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.types import concat
from windrow.operators.aggregate.emitter import note_before_merge
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    END,
    FIRST,
    LAST,
    MESSAGES,
    MESSAGES_FROM,
    PANES,
    PENDING,
    SINCE,
    START,
    UPSERT,
)
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.intake import Slice, encoded_positions


def delta_rows(
    calculation: Calculation,
    rows: Slice,
    row_of: IntArray,
    starts: IntArray,
    ends: IntArray,
    *,
    in_position_order: bool = True,
    each: bool = False,
    groups: Groups | None = None,
) -> tuple[pa.Table, Groups, list[Broken]]:
    """Return the deltas of a slice: `row_of[i]` belongs to the window `[starts[i], ends[i])`; one row per (window, key).

    each: one for each of these lines; groups: these lines by (window, key), where that is known
    """
    by = calculation.definition.by
    index = None if _is_each(row_of, len(rows)) else pa.array(row_of)
    keys = [combine(rows.table.column(b)) for b in by]
    if index is not None:
        keys = [k.take(index) for k in keys]
    if each:
        groups = Groups.of_codes(np.arange(len(row_of)), len(row_of))
    elif groups is None:
        groups = Groups([pa.array(starts), *keys], len(row_of))
    lifted = calculation.lift(rows)
    if index is not None:
        lifted = {name: column.take(index) for name, column in lifted.items()}
    merged, broken = calculation.merge(lifted, groups)
    first, last = groups.first_rows, groups.last_rows
    counts = np.bincount(groups.codes, minlength=groups.size).astype(np.int64)
    current = counts if rows.sign is None else _net_counts(rows.sign[row_of], groups)
    if rows.has_positions:
        if in_position_order or each:
            first_position, last_position = (
                encoded_positions(rows.table, row_of[places]) for places in (first, last)
            )
        else:
            order = rows.order
            assert order is not None
            each = order if index is None else order.take(index)
            first_position, last_position = groups.aggregate([(each, "min"), (each, "max")])
    else:
        first_position = last_position = pa.nulls(groups.size, pa.binary())
    zeros = pa.array(np.zeros(groups.size, dtype=np.int64))
    columns = {
        START: pa.array(starts[first]),
        END: pa.array(ends[first]),
        **{b: k.take(pa.array(first)) for b, k in zip(by, keys, strict=True)},
        MESSAGES: pa.array(current),
        PENDING: pa.array(counts),
        PANES: zeros,
        EMIT_STEP: pa.nulls(groups.size, pa.int64()),
        FIRST: first_position,
        LAST: last_position,
        **merged,
    }
    return pa.table(columns), groups, broken


def _is_each(row_of: IntArray, rows: int) -> bool:
    """True if these are all rows, in order."""
    return len(row_of) == rows and bool((row_of == np.arange(rows)).all())


def _net_counts(sign: IntArray, groups: Groups) -> IntArray:
    """Return of each group the number of messages that came less those that were retracted."""
    net = np.zeros(groups.size, dtype=np.int64)
    np.add.at(net, groups.codes, sign)
    return net


class Windows(NamedTuple):
    """The windows that rows are part of: row `row_of[i]` of `[starts[i], ends[i])`; a row may be part of many."""

    row_of: IntArray
    starts: IntArray
    ends: IntArray


def merge_slices(
    calculation: Calculation, slices: pa.Table, windows: Windows, groups: Groups | None = None
) -> tuple[pa.Table, list[Broken]]:
    """Return one delta per (window, key) from deltas of slices, which are not repeated for each of their windows.

    `slices` have the columns of state rows but `__start` and `__end`, and nothing was emitted of them. groups: the rows of
    `windows` by (window, key), if known
    """
    by = calculation.definition.by
    row_of, starts, ends = windows
    if groups is None:
        keys = Groups([slices.column(b) for b in by], len(slices)).codes
        groups = Groups([pa.array(starts), pa.array(keys[row_of])], len(row_of))
    first = groups.first_rows
    index = None if _is_each(row_of, len(slices)) else pa.array(row_of)

    def spread(name: str) -> pa.Array:
        column = combine(slices.column(name))
        if index is None:
            return column
        return pa.nulls(len(index), column.type) if column.null_count == len(column) else column.take(index)

    accumulators = {c: spread(c) for c in slices.column_names if c.startswith(ACCUMULATOR)}
    merged, broken = calculation.merge(accumulators, groups)
    messages, first_position, last_position = groups.aggregate(
        [(spread(MESSAGES), "sum"), (spread(FIRST), "min"), (spread(LAST), "max")]
    )
    columns = {
        START: pa.array(starts[first]),
        END: pa.array(ends[first]),
        **{b: slices.column(b).take(pa.array(row_of[first])) for b in by},
        MESSAGES: messages,
        PENDING: messages,
        PANES: pa.array(np.zeros(groups.size, dtype=np.int64)),
        EMIT_STEP: pa.nulls(groups.size, pa.int64()),
        FIRST: first_position,
        LAST: last_position,
        **merged,
    }
    return pa.table(columns), broken


def apart(calculation: Calculation, rows: pa.Table, touched_from: int) -> tuple[pa.Table, pa.Table]:
    """Return (rows of those (window, key) that have one at that index or later, the others)."""
    by = calculation.definition.by
    codes = Groups([rows.column(START), *(rows.column(b) for b in by)], len(rows)).codes
    touched = np.zeros(len(rows), dtype=bool)
    touched[codes[touched_from:]] = True
    keep = touched[codes]
    return (
        (rows, rows.slice(0, 0))
        if keep.all()
        else (rows.filter(pa.array(keep)), rows.filter(pa.array(~keep)))
    )


def merge_rows(
    calculation: Calculation, rows: pa.Table, *, notes: bool = False, groups: Groups | None = None
) -> tuple[pa.Table, list[Broken]]:
    """Merge `rows`, which come oldest first, to one row per (window, key).

    `notes`: last emitted values are recorded where later rows are merged in. groups: the rows by (window, key), if known
    """
    by = calculation.definition.by
    if groups is None:
        groups = Groups([rows.column(START), *(rows.column(b) for b in by)], len(rows))
    if groups.size == len(rows):
        return without(rows, UPSERT), []
    upsert = rows.column(UPSERT).to_numpy(zero_copy_only=False) if UPSERT in rows.column_names else None
    if upsert is not None and upsert.any():
        newest = np.full(groups.size, -1, dtype=np.int64)
        at = np.flatnonzero(upsert)
        newest[groups.codes[at]] = at
        keep = np.arange(len(rows)) >= newest[groups.codes]
        if not keep.all():
            rows = rows.filter(pa.array(keep))
            groups = Groups.of_codes(groups.codes[keep], groups.size)
    several = np.bincount(groups.codes, minlength=groups.size) > 1
    if 2 * several.sum() < groups.size:
        return _merge_some(calculation, rows, groups, several, notes)
    return _merge_groups(calculation, rows, groups, notes)


def _merge_some(
    calculation: Calculation, rows: pa.Table, groups: Groups, several: BoolArray, notes: bool
) -> tuple[pa.Table, list[Broken]]:
    """Merge as `_merge_groups` where most groups have one row, which stays as it is."""
    numbers = np.flatnonzero(several)
    affected = several[groups.codes]
    few = Groups.of_codes((np.cumsum(several) - 1)[groups.codes[affected]], len(numbers))
    merged, broken = _merge_groups(calculation, rows.filter(pa.array(affected)), few, notes)
    alone = without(rows.filter(pa.array(~affected)), UPSERT)
    if not merged.schema.equals(alone.schema):
        return _merge_groups(calculation, rows, groups, notes)
    order = np.argsort(np.concatenate([groups.codes[~affected], numbers]))
    table = pa.concat_tables([alone, merged]).take(pa.array(order))
    return table, [replace(b, group=int(numbers[b.group])) for b in broken]


def _merge_groups(
    calculation: Calculation, rows: pa.Table, groups: Groups, notes: bool
) -> tuple[pa.Table, list[Broken]]:
    sums = [MESSAGES, PENDING]
    wanted = [(rows.column(c), "sum") for c in sums]
    wanted += [(rows.column(PANES), "max"), (rows.column(EMIT_STEP), "max")]
    wanted += [(rows.column(FIRST), "min"), (rows.column(LAST), "max")]
    names = [*sums, PANES, EMIT_STEP, FIRST, LAST]
    if SINCE in rows.column_names:
        wanted.append((rows.column(SINCE), "min"))
        names.append(SINCE)
    if MESSAGES_FROM in rows.column_names:
        wanted.append((rows.column(MESSAGES_FROM), "min"))
        names.append(MESSAGES_FROM)
    accumulators = {c: combine(rows.column(c)) for c in rows.column_names if c.startswith(ACCUMULATOR)}
    merged, broken = calculation.fold(accumulators, groups)
    fresh = dict(zip(names, groups.aggregate(wanted), strict=True))
    head = rows if notes else rows.select([n for n in rows.column_names if _stays(n, fresh)])
    head = taken(head, groups.first_rows)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for name in rows.column_names:
        if name in fresh:
            columns[name] = fresh[name]
        elif name in merged:
            columns[name] = merged[name]
        elif _stays(name, fresh):
            columns[name] = head.column(name)
    for name, column in merged.items():
        columns.setdefault(name, column)
    table = pa.table(columns)
    return note_before_merge(calculation, head, table) if notes else table, broken


def _stays(name: str, fresh: Mapping[str, pa.Array]) -> bool:
    """True for a column in which a group keeps the value of its first row."""
    return name != UPSERT and name not in fresh and not name.startswith(ACCUMULATOR)


def broken_where_they_meet(
    calculation: Calculation, stored: pa.Table | None, deltas: pa.Table, codes: IntArray | None = None
) -> list[Broken]:
    """Return the failures of user code by row of `deltas`, a row a (window, key). No code is called where nothing is stored.

    stored: state rows, oldest first, of these (window, key)s and perhaps of others. codes: a number for the (window, key) of
    each row, stored ones first, if known
    """
    if not calculation.runs_code or stored is None or len(stored) == 0:
        return []
    rows = concat([stored, deltas.append_column(UPSERT, pa.array(np.zeros(len(deltas), dtype=bool)))])
    if codes is None:
        codes = Groups([rows.column(name) for name in (START, *calculation.definition.by)], len(rows)).codes
    place = np.full(int(codes.max()) + 1, -1, dtype=np.int64)
    place[codes[len(stored) :]] = np.arange(len(deltas))
    with_delta = place[codes] >= 0
    groups = Groups.of_codes(place[codes[with_delta]], len(deltas))
    _, broken = merge_rows(calculation, rows.filter(pa.array(with_delta)), groups=groups)
    return broken
