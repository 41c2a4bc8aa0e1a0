"""Dynamic gap: the expression of a session window gives each message its own gap.

A message is the range from its time to the end of its gap, as with a fixed gap; ranges that overlap or touch are one session,
so that the gap that reaches furthest decides. A gap of zero counts as a microsecond: every message lies in its window.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import TypeClash, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.windows import LAST_END_US
from windrow.operators.steps.dead_letters import MALFORMED, DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice

#: Column of a row that is not in its session yet: microseconds.
GAP = "__gap"
#: Microseconds in a unit of durations; of nanoseconds so many are one.
_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1000}


def with_gaps(gap: Expr, rows: Slice, dead: DeadLetters) -> Slice:
    """Return rows with their gaps; those that have none are dead letters. Raises Arrow's errors."""
    column = combine(gap.evaluate(rows.table, "gap"))
    refusal = gap_refusal(gap, column.type)
    if refusal is not None:
        raise TypeClash(refusal)
    gaps, sound = _microseconds(column)
    if not sound.all():
        detail = f"its gap, {gap}, is null or negative"
        dead.add_rows(MALFORMED, detail, rows.table, np.flatnonzero(~sound), pa.array(rows.times))
        rows, gaps = rows.take(np.flatnonzero(sound)), gaps[sound]
    return Slice(rows.table.append_column(GAP, pa.array(gaps)), rows.times)


def gaps_of(gap: Expr, rows: Slice) -> IntArray:
    """Return the gaps of accepted messages."""
    gaps, _ = _microseconds(combine(gap.evaluate(rows.table)))
    return gaps


def gap_refusal(gap: Expr, kind: pa.DataType) -> str | None:
    """Return the reason why values of an expression cannot be a gap; None where they can."""
    if pa.types.is_duration(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return None
    return (
        f"the gap of sessions, {gap}, is of type {kind}: gaps are durations, or microseconds as integers; make one of it, e.g. "
        "(wr.col('seconds') * 1_000_000).cast('int64')"
    )


def gap_refused(gap: Expr | None, types: Mapping[str, pa.DataType]) -> str | None:
    """Return the reason why sessions cannot have the gap of an expression over columns of these types."""
    if gap is None or any(pa.types.is_null(k) and gap.mentions(n) for n, k in types.items()):
        return None
    try:
        return gap_refusal(gap, gap.evaluate(pa.schema(list(types.items())).empty_table()).type)
    except (UnknownColumn, TypeClash):
        return None  # not all of its columns are known yet


def _microseconds(column: pa.Array) -> tuple[IntArray, BoolArray]:
    """Return (gaps, true where there is one)."""
    kind = column.type
    numbers = column.cast(pa.int64())
    sound = numbers.is_valid().to_numpy(zero_copy_only=False)
    gaps = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    sound &= gaps >= 0
    if pa.types.is_duration(kind):
        many = _UNITS[kind.unit]
        gaps = gaps // many if kind.unit == "ns" else np.minimum(gaps, LAST_END_US // many) * many
    return np.clip(gaps, 1, LAST_END_US), sound
