"""What the last pane of each (window, key) said, which a later one takes back or is compared with.

Under an emission that remembers, it is noted in the emitted columns. Under others it is not, and need not be: as long as
nothing came since, the accumulators say it. Where a told row is merged with what came later, and is not told again at once, it
is noted then. So the emission may change between two runs, and what was said before is known. Only of a pane after which the
window could not be computed (an overflow) it may not be, and such a pane is not taken back.
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

#: Values of state rows: (values by alias, what broke).
Values = Callable[[pa.Table], tuple[dict[str, pa.Array], list[Broken]]]


class EmittedValues(NamedTuple):
    """values: what last panes said, by alias, where `known`. open: there was one, and nobody noted what it said."""

    values: dict[str, pa.Array]
    known: BoolArray
    open: BoolArray


def noted(rows: pa.Table, kinds: Mapping[str, pa.DataType]) -> EmittedValues:
    """What the rows themselves note."""
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
    """What last panes said of aggregations that the definition has no more: one may come again before another pane is told."""
    said = {n.removeprefix(EMITTED): n for n in rows.column_names if n.startswith(EMITTED)}
    return {alias: combine(rows.column(n)) for alias, n in said.items() if alias not in aliases}


def note(rows: pa.Table, values: Mapping[str, pa.Array], mark: pa.Array) -> pa.Table:
    """The rows with what their last panes said, and whether that is known."""
    names = [n for n in rows.column_names if not n.startswith(EMITTED) and n != TOLD]
    columns = [rows.column(n) for n in names]
    names += [*(EMITTED + a for a in values), TOLD]
    return pa.table([*columns, *values.values(), mark], names=names)


def last_emitted(
    rows: pa.Table, now: Mapping[str, pa.Array], computed: BoolArray, read: Values | None
) -> tuple[dict[str, pa.Array], BoolArray]:
    """(what last panes said, where that is known) of merged rows, whose present values are `now` where `computed`.

    `read` has it from kept messages, those up to the last pane.
    """
    emitted = noted(rows, {a: column.type for a, column in now.items()})
    if not emitted.open.any():
        return emitted.values, emitted.known
    if read is None:
        found: Mapping[str, pa.Array] = now
        fresh = emitted.open & computed & (combine(rows.column(PENDING)).to_numpy() == 0)
    else:
        found, broken = read(rows)
        fresh = emitted.open.copy()
        fresh[[b.group for b in broken]] = False
    values = {a: choose(fresh, combine(found[a]), old) for a, old in emitted.values.items()}
    return values, emitted.known | fresh


def note_before_merge(calculation: Calculation, head: pa.Table, merged: pa.Table) -> pa.Table:
    """`merged` rows, of which `head` are what was stored: what was told is noted where the accumulators move away from it."""
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
    found, broken = calculation.finish({n: emitted.column(n) for n in emitted.column_names}, len(emitted))
    lost = np.zeros(len(head), dtype=bool)
    lost[[at[b.group] for b in broken]] = True
    place = np.zeros(len(head), dtype=np.int64)
    place[at] = np.arange(len(at))
    values = {
        a: choose(moves, combine(found[a]).take(pa.array(place)), old) for a, old in before.values.items()
    }
    return note(
        merged, values | of_gone(head, values), marks(before.known | (moves & ~lost), lost | _lost(head))
    )


def marks(known: BoolArray, lost: BoolArray) -> pa.Array:
    """The mark of each row."""
    return pa.array(known & ~lost, mask=~(known | lost))


def _lost(rows: pa.Table) -> BoolArray:
    if TOLD not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(~combine(rows.column(TOLD)).fill_null(True).to_numpy(zero_copy_only=False), dtype=bool)


def choose(mask: BoolArray, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Row by row `yes` or `no`, for any type."""
    size = len(mask)
    if mask.all():
        return yes
    picks = np.where(mask, np.arange(size), np.arange(size) + size)
    return pa.concat_arrays([yes, as_type(no, yes.type)]).take(pa.array(picks))
