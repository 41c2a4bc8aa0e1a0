"""Early and updated rows: the rows that are emitted, and the rows that they retract."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Emit, EveryPeriod, Trigger
from windrow.operators.over.emitted_marks import Marks
from windrow.operators.steps.columns import EARLY, INDEX, INSERT, IS_LAST, KIND, ON_TIME, RETRACT, TIMING


def ticks(trigger: Trigger | None, before_us: int | None, now_us: int) -> bool:
    """True if a period of it has ended."""
    if before_us is None or not isinstance(trigger, EveryPeriod):
        return False
    return now_us // trigger.period_us > before_us // trigger.period_us


def judged(
    emit: Emit,
    timing: str,
    step: int,
    computed: BoolArray,
    fails: BoolArray,
    values: dict[str, pa.Array],
    marks: Marks,
) -> tuple[BoolArray, BoolArray, Marks]:
    """Return (True for rows to emit, True for rows to retract, the marks from then on).

    computed: there is a row; fails: it could not be made
    """
    decides = timing != EARLY
    changed = computed & marks.differ(values)
    fires = computed if timing == ON_TIME and not emit.only_if_changed else changed
    back = marks.current & ((fires & (emit.mode == "retracting")) | ~computed)
    after = Marks(
        marks.rows + fires,
        marks.decided | decides,
        fires | (marks.current & ~back),
        marks.buried | (fails & decides),
        np.full(len(computed), step),
        {alias: _chosen(fires, values[alias], old) for alias, old in marks.values.items()},
    )
    return fires, back, after


def emitted_rows(
    fields: Sequence[pa.Field],
    timing: str,
    messages: Callable[[IntArray, list[str]], pa.Table],
    rank: IntArray,
    values: dict[str, pa.Array],
    marks: Marks,
    fires: BoolArray,
    back: BoolArray,
    closed: BoolArray,
) -> pa.Table | None:
    """Return rows in the order of their rank; a retraction is right before the row that replaces the retracted one.

    messages: columns of those of some numbers; closed: nothing can change them any more
    """
    tables: list[pa.Table] = []
    ranks: list[IntArray] = []
    none = np.zeros(len(rank), dtype=bool)
    emitted: tuple[tuple[BoolArray, dict[str, pa.Array], IntArray, BoolArray, str], ...] = (
        (back, marks.values, marks.rows - 1, none, RETRACT),
        (fires, values, marks.rows, closed, INSERT),
    )
    for mask, columns, index, is_last, kind in emitted:
        places = np.flatnonzero(mask)
        if not len(places):
            continue
        at, own = pa.array(places), messages(places, [f.name for f in fields if f.name not in columns])
        row = [columns[f.name].take(at) if f.name in columns else own.column(f.name) for f in fields]
        labels = {
            TIMING: pa.repeat(pa.scalar(timing, pa.string()), len(places)),
            INDEX: pa.array(index[places].astype(np.int32)),
            IS_LAST: pa.array(is_last[places]),
            KIND: pa.repeat(pa.scalar(kind, pa.string()), len(places)),
        }
        table = pa.table(row, schema=pa.schema(fields))
        for name, column in labels.items():
            table = table.append_column(name, column)
        tables.append(table)
        ranks.append(2 * rank[places] + (kind == INSERT))
    if not tables:
        return None
    order = np.argsort(np.concatenate(ranks), kind="stable")
    return pa.concat_tables(tables).take(pa.array(order))


def _chosen(mask: BoolArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    picks = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([yes, no]).take(pa.array(picks))
