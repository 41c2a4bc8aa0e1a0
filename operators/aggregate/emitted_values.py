"""Last emitted values per (window, key), needed to emit retractions and to suppress unchanged panes.

Under an emission that remembers, rows store them in the emitted columns. Other emissions do not: as long as no message came
since, they equal the accumulators. If an emitted row is merged with later messages, and is not emitted at once, the merge
stores them. So the emission may change between two runs, and the last emitted values are known. The exception is a pane after
which the window could not be computed (an overflow): it may be unknown, and is then not retracted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.types import as_type
from windrow.operators.aggregations.calculation import Broken, Calculation
from windrow.operators.steps.columns import EMITTED, PANES, PENDING, TOLD
from windrow.operators.steps.groups import combine

#: Values of state rows: (values by alias, failures).
Values = Callable[[pa.Table], tuple[dict[str, pa.Array], list[Broken]]]


class EmittedValues(NamedTuple):
    """Last emitted values of rows, by alias, where `known`. open: a pane was emitted, but its values were not recorded."""

    values: dict[str, pa.Array]
    known: BoolArray
    open: BoolArray


def noted(rows: pa.Table, kinds: Mapping[str, pa.DataType]) -> EmittedValues:
    """Return the values that the rows themselves record."""
    size = len(rows)
    had = combine(rows.column(PANES)).to_numpy() > 0
    values = {
        a: as_type(combine(rows.column(EMITTED + a)), kind)
        if EMITTED + a in rows.column_names
        else pa.nulls(size, kind)
        for a, kind in kinds.items()
    }
    mark = combine(rows.column(TOLD)) if TOLD in rows.column_names else pa.nulls(size, pa.bool_())
    unmarked = mark.is_null().to_numpy(zero_copy_only=False)
    known = had & mark.fill_null(False).to_numpy(zero_copy_only=False)
    return EmittedValues(values, known, had & unmarked)


def of_gone(rows: pa.Table, aliases: Collection[str]) -> dict[str, pa.Array]:
    """Return the last emitted values of removed aggregations: one may be added again before another pane is emitted."""
    columns = {n.removeprefix(EMITTED): n for n in rows.column_names if n.startswith(EMITTED)}
    return {alias: combine(rows.column(n)) for alias, n in columns.items() if alias not in aliases}


def note(rows: pa.Table, values: Mapping[str, pa.Array], mark: pa.Array) -> pa.Table:
    """Return the rows with their last emitted values, and the mark that says if these are known."""
    names = [n for n in rows.column_names if not n.startswith(EMITTED) and n != TOLD]
    columns = [rows.column(n) for n in names]
    names += [*(EMITTED + a for a in values), TOLD]
    return pa.table([*columns, *values.values(), mark], names=names)


def last_emitted(
    rows: pa.Table, now: Mapping[str, pa.Array], computed: BoolArray, read: Values | None
) -> tuple[dict[str, pa.Array], BoolArray]:
    """Return (last emitted values, where they are known) of merged rows with present values `now` where `computed`.

    `read` computes them from kept messages, those up to the last pane.
    """
    emitted = noted(rows, {a: column.type for a, column in now.items()})
    if not emitted.open.any():
        return emitted.values, emitted.known
    if read is None:
        current: Mapping[str, pa.Array] = now
        fresh = emitted.open & computed & (combine(rows.column(PENDING)).to_numpy() == 0)
    else:
        current, broken = read(rows)
        fresh = emitted.open.copy()
        fresh[[b.group for b in broken]] = False
    values = {a: choose(fresh, combine(current[a]), old) for a, old in emitted.values.items()}
    return values, emitted.known | fresh


def note_before_merge(calculation: Calculation, head: pa.Table, merged: pa.Table) -> pa.Table:
    """Record the last emitted values in `merged` rows where the accumulators move away from them; `head`: the stored rows."""
    unmoved = combine(head.column(PENDING)).to_numpy() == 0
    if not unmoved.any():
        return merged
    kinds = {f.name: f.type for f in calculation.output}
    before = noted(head, kinds)
    moves = before.open & unmoved & (combine(merged.column(PENDING)).to_numpy() > 0)
    if not moves.any():
        return merged
    at = np.flatnonzero(moves)
    emitted = head.take(pa.array(at))
    current, broken = calculation.finish({n: emitted.column(n) for n in emitted.column_names}, len(emitted))
    lost = np.zeros(len(head), dtype=bool)
    lost[[at[b.group] for b in broken]] = True
    place = np.zeros(len(head), dtype=np.int64)
    place[at] = np.arange(len(at))
    values = {
        a: choose(moves, combine(current[a]).take(pa.array(place)), old) for a, old in before.values.items()
    }
    return note(
        merged, values | of_gone(head, values), marks(before.known | (moves & ~lost), lost | _lost(head))
    )


def marks(known: BoolArray, lost: BoolArray) -> pa.Array:
    """Return the mark of each row."""
    return pa.array(known & ~lost, mask=~(known | lost))


def _lost(rows: pa.Table) -> BoolArray:
    if TOLD not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(~combine(rows.column(TOLD)).fill_null(True).to_numpy(zero_copy_only=False), dtype=bool)


def choose(mask: BoolArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Return row by row `yes` or `no`, for any type."""
    size = len(mask)
    if mask.all():
        return yes
    picks = np.where(mask, np.arange(size), np.arange(size) + size)
    return pa.concat_arrays([yes, as_type(no, yes.type)]).take(pa.array(picks))
