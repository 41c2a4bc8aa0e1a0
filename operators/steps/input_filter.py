"""The filter of an operator's input. A rejected message has no effect but to advance the watermark."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.expressions import Expr
from windrow.core.positions import Partition
from windrow.operators.steps.columns import MALFORMED_ROW
from windrow.operators.steps.groups import combine


def filter_of(where: pc.Expression | None) -> Expr | None:
    """Return the user's filter of an input, checked."""
    if where is None:
        return None
    remedy = "use an expression of columns of the input, such as wr.col('x') > 0"
    return Expr(check.of_type(where, pc.Expression, "where", remedy))


def divided(where: Expr, table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return (rows for which it is true, and all malformed ones, the others). Raises what Arrow raises."""
    passes = np.ones(len(table), dtype=bool)
    sound = np.arange(len(table))
    if MALFORMED_ROW in table.column_names:
        sound = np.flatnonzero(combine(table.column(MALFORMED_ROW)).is_null())
    if len(sound):  # all rows may be malformed, of types to which the condition does not apply
        sound_rows = table if len(sound) == len(table) else table.take(pa.array(sound))
        truth = pc.fill_null(combine(where.evaluate(sound_rows, "where")), False)
        passes[sound] = truth.to_numpy(zero_copy_only=False)
    return table.filter(pa.array(passes)), table.filter(pa.array(~passes))


def further(marks: Mapping[Partition, int], others: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the furthest time of each partition, by either."""
    return {p: max(m[p] for m in (marks, others) if p in m) for p in {**marks, **others}}
