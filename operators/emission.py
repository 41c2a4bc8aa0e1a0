"""From state rows that fire to panes, and what the rows are afterwards. Semantics "Emission", "Retractions".

Panes are tables: `__start`, `__end`, the keys, the aggregates, `__timing`, `__index`, `__is_last`, `__kind`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.definition import AggregateDefinition
from windrow.core.types import as_type
from windrow.operators.calculation import Broken, Calculation, any_differ
from windrow.operators.columns import (
    ACCUMULATOR,
    EMIT_STEP,
    EMITTED,
    END,
    INDEX,
    INSERT,
    IS_LAST,
    KIND,
    ON_TIME,
    PANES,
    PENDING,
    RETRACT,
    START,
    TIMING,
)
from windrow.operators.dead import AGGREGATE_FAILED, INTEGER_OVERFLOW, DeadLetters
from windrow.operators.groups import combine
from windrow.operators.state_rows import emitted_columns, in_window_order

BoolArray = npt.NDArray[np.bool_]
#: Values of state rows: (values by alias, what broke).
Values = Callable[[pa.Table], tuple[dict[str, pa.Array], list[Broken]]]


@dataclass(frozen=True)
class Fired:
    """panes: what was emitted, or None. rows: the state rows after, in the order they came."""

    panes: pa.Table | None
    rows: pa.Table


def fire(
    definition: AggregateDefinition,
    calculation: Calculation,
    rows: pa.Table,
    values_of: Values,
    *,
    timing: str,
    is_last: BoolArray,
    closing: bool,
    step: int,
    dead: DeadLetters,
) -> Fired:
    """Fire every row of `rows`. `closing`: these are last panes; one that was asked for is sent though nothing changed."""
    size = len(rows)
    if size == 0:
        return Fired(None, rows)
    emit = definition.emit
    values, broken = values_of(rows)
    aliases = list(definition.agg)
    columns = [combine(values[a]) for a in aliases]
    speaks = np.ones(size, dtype=bool)
    for b in broken:
        if speaks[b.group]:
            _bury(definition, rows, b, dead)
        speaks[b.group] = False

    panes_before = combine(rows.column(PANES)).to_numpy()
    remembers = emit.mode == "retracting" or emit.only_if_changed
    retracts = np.zeros(size, dtype=bool)
    before = emitted_columns(rows, aliases) if remembers else None
    if remembers:
        had = panes_before > 0
        changed = np.ones(size, dtype=bool) if before is None else any_differ(before, columns, size) | ~had
        if emit.only_if_changed and not (closing and emit.closing_pane):
            if emit.mode == "discarding":
                speaks &= combine(rows.column(PENDING)).to_numpy() > 0
            else:
                speaks &= changed
        if emit.mode == "retracting":
            if timing != ON_TIME and not closing:
                speaks &= changed
            retracts = speaks & had

    panes = _panes(definition, rows, columns, before, speaks, retracts, timing, is_last)
    return Fired(
        panes, _after(definition, rows, dict(zip(aliases, columns, strict=True)), speaks, remembers, step)
    )


def _bury(definition: AggregateDefinition, rows: pa.Table, broken: Broken, dead: DeadLetters) -> None:
    row = rows.slice(broken.group, 1)
    payload = {
        "window": [row.column(START)[0].as_py(), row.column(END)[0].as_py()],
        "key": {b: row.column(b)[0].as_py() for b in definition.by},
    }
    if isinstance(broken.error, OverflowError):
        detail = f"{broken.error}: use integer_overflow='decimal' for sums beyond int64"
        dead.add(INTEGER_OVERFLOW, detail, payload)
        return
    text = "".join(traceback.format_exception(broken.error)[-6:])
    dead.add(AGGREGATE_FAILED, f"{broken.alias}: {text}", payload)


def _panes(
    definition: AggregateDefinition,
    rows: pa.Table,
    columns: list[pa.Array],
    before: list[pa.Array] | None,
    speaks: BoolArray,
    retracts: BoolArray,
    timing: str,
    is_last: BoolArray,
) -> pa.Table | None:
    order = in_window_order(rows, definition.by)
    order = order[speaks[order]]
    if len(order) == 0:
        return None
    index = combine(rows.column(PANES)).to_numpy()
    fixed = [START, END, *definition.by]
    take = pa.array(order)
    n = len(order)
    inserts = rows.select(fixed).take(take)
    for alias, column in zip(definition.agg, columns, strict=True):
        inserts = inserts.append_column(alias, column.take(take))
    inserts = _label(inserts, timing, index[order], is_last[order], INSERT)
    back = order[retracts[order]]
    if len(back) == 0 or before is None:
        return inserts
    retractions = rows.select(fixed).take(pa.array(back))
    for alias, old, new in zip(definition.agg, before, columns, strict=True):
        retractions = retractions.append_column(alias, as_type(old.take(pa.array(back)), new.type))
    retractions = _label(retractions, timing, index[back] - 1, np.zeros(len(back), dtype=bool), RETRACT)
    # A retraction stands directly before the pane that replaces it.
    place = np.empty(n, dtype=np.int64)
    paired = retracts[order]
    place = np.arange(n) + np.cumsum(paired)
    both = pa.concat_tables([inserts, retractions])
    positions = np.concatenate([place, place[paired] - 1])
    return both.take(pa.array(np.argsort(positions, kind="stable")))


def _label(
    panes: pa.Table, timing: str, index: npt.NDArray[np.int64], is_last: BoolArray, kind: str
) -> pa.Table:
    n = len(panes)
    panes = panes.append_column(TIMING, pa.array([timing] * n, pa.string()))
    panes = panes.append_column(INDEX, pa.array(index.astype(np.int32)))
    panes = panes.append_column(IS_LAST, pa.array(is_last))
    return panes.append_column(KIND, pa.array([kind] * n, pa.string()))


def _after(
    definition: AggregateDefinition,
    rows: pa.Table,
    values: dict[str, pa.Array],
    speaks: BoolArray,
    remembers: bool,
    step: int,
) -> pa.Table:
    """The rows after firing: nothing pending, one pane more where one was sent, accumulators dropped if discarding."""
    size = len(rows)
    panes = combine(rows.column(PANES)).to_numpy() + speaks
    replaced = {
        PENDING: pa.array(np.zeros(size, dtype=np.int64)),
        PANES: pa.array(panes),
        EMIT_STEP: pa.array(np.full(size, step, dtype=np.int64)),
    }
    names, columns = [], []
    for name in rows.column_names:
        if definition.emit.mode == "discarding" and name.startswith(ACCUMULATOR):
            continue
        if name.startswith(EMITTED):
            continue
        names.append(name)
        columns.append(replaced.get(name, rows.column(name)))
    if remembers:
        said = pa.array(speaks)
        for alias, value in values.items():
            name = EMITTED + alias
            if speaks.all():
                kept = value
            elif name in rows.column_names:
                kept = _choose(said, value, combine(rows.column(name)))
            else:
                kept = _choose(said, value, pa.nulls(size, value.type))
            names.append(name)
            columns.append(kept)
    return pa.table(columns, names=names)


def _choose(mask: pa.Array, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Row by row `yes` or `no`, for any type."""
    size = len(mask)
    picks = np.where(mask.to_numpy(zero_copy_only=False), np.arange(size), np.arange(size) + size)
    return pa.concat_arrays([yes, as_type(no, yes.type)]).take(pa.array(picks))
