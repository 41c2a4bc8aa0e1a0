"""As-of matching: each left message with the newest matching right message at or before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.operators.join.output import NOBODY, Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import Raised, ranks
from windrow.operators.steps.dead_letters import MALFORMED
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.pairing import pairs

if TYPE_CHECKING:
    from windrow.operators.join.columns import JoinStep
    from windrow.operators.join.logic import JoinOperator


def answers(join: JoinOperator, step: JoinStep, left: Slice) -> pa.Table:
    """Return the rows of left messages whose wait is over.

    Pairs are also matched on arrival, so that the later message is the dead letter if the condition raises. For pairs stored
    before that rule, or under another function of the same name, the left message is the dead letter.
    """
    columns, dead = step.columns, step.dead
    right = join._partners(step, RIGHT, left, join.keys(left, LEFT, columns))
    raised: Raised = {}
    best = latest(join, left, right, columns, raised)
    if raised:
        dead.input, rows = join.definition.left.name, np.array(sorted(raised), dtype=np.int64)
        why = [raised[row] for row in rows.tolist()]
        dead.add_rows(MALFORMED, why, left.table, rows, pa.array(left.times))
    rows = np.array([row for row in range(len(left)) if row not in raised], dtype=np.int64)
    return columns.rows(left.table, right.table, rows, best[rows])


def latest(join: JoinOperator, left: Slice, right: Slice, columns: Columns, raised: Raised) -> IntArray:
    """Return for each left row the newest right one up to it, or NOBODY. raised: gets rows on which the condition raises."""
    best = np.full(len(left), NOBODY, dtype=np.int64)
    codes = join._codes((left, right), columns)
    low, high = join.reach.partners(LEFT, left.times)
    li, ri = pairs(codes[LEFT], low, high, codes[RIGHT], right.times)
    li, ri = join._matching((left, right), li, ri, columns, raised)
    if len(li):
        order = np.lexsort((ranks(right)[ri], right.times[ri], li))
        last = np.flatnonzero(np.append(li[order][1:] != li[order][:-1], True))
        best[li[order][last]] = ri[order][last]
    return best
