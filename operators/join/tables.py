"""Tables of both sides of a join: aligned, stacked, ordered by position, and filtered by the user's condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import UnknownColumn
from windrow.core.expressions import error_text, note
from windrow.core.types import as_type
from windrow.operators.join.definition import JoinDefinition, Where
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SIGN, SOURCE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows
from windrow.operators.steps.poison_rows import is_of_data

#: Rows on which the user's condition raises, with the error.
Raised: TypeAlias = dict[int, str]


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in their types, the position columns, and signs where there are some."""
    n, there = len(table), set(table.column_names)
    columns = [
        as_type(combine(table.column(f.name)), f.type) if f.name in there else pa.nulls(n, f.type)
        for f in schema
    ]
    where = [combine(table.column(c)) for c in (SOURCE, PARTITION, OFFSET, ORDINAL)]
    conformed = pa.table([*columns, *where], schema=empty_rows(schema).schema)
    return conformed.append_column(SIGN, table.column(SIGN)) if SIGN in there else conformed


def intervals(low: IntArray, high: IntArray) -> list[tuple[int, int]]:
    """Return the union of closed intervals, as intervals apart from each other."""
    order = np.argsort(low, kind="stable")
    low, reached = low[order], np.maximum.accumulate(high[order])
    cut = np.flatnonzero(low[1:] > reached[:-1] + 1)
    starts = low[np.concatenate([[0], cut + 1])]
    ends = reached[np.concatenate([cut, [len(low) - 1]])]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def stack(new: Slice, stored: Slice) -> Slice:
    """Stack new rows on stored ones."""
    return Slice(pa.concat_tables([new.table, stored.table]), np.concatenate([new.times, stored.times]))


def ranks(rows: Slice) -> IntArray:
    """Return numbers in the order of positions."""
    t = rows.table
    source = combine(t.column(SOURCE)).dictionary_encode()
    names = pc.rank(source.dictionary, sort_keys="ascending").to_numpy() if len(source.dictionary) else []
    codes = np.asarray(names, dtype=np.int64)[source.indices.to_numpy()]
    keys = (
        t.column(ORDINAL).to_numpy(),
        t.column(OFFSET).to_numpy(),
        t.column(PARTITION).to_numpy(),
        codes,
    )
    varying = [k for k in keys if len(k) and (k != k[0]).any()]
    ranks = np.zeros(len(rows), dtype=np.int64)
    if varying:
        ranks[np.lexsort(varying)] = np.arange(len(rows), dtype=np.int64)
    return ranks


def holds(
    where: Where,
    definition: JoinDefinition,
    both: Sequence[Slice],
    columns: Columns,
    li: IntArray,
    ri: IntArray,
) -> BoolArray:
    """True for the pairs for which the user's condition is true."""
    if where.function is not None:
        sides = []
        for side, rows in ((LEFT, li), (RIGHT, ri)):
            table = both[side].table
            user = [n for n in table.column_names if not n.startswith("__")]
            sides.append(table.select(user).take(pa.array(rows)))
        try:
            answer: Any = where.function(sides[LEFT], sides[RIGHT])
        except Exception as error:
            note(error, f"where={where.name}")
            raise
    elif where.expression is not None:
        answer = where.expression.evaluate(
            columns.looked_at(definition, where.expression, both[LEFT].table, both[RIGHT].table, li, ri),
            "where",
        )
    else:
        raise UnknownColumn(f"the condition {where.name!r} of {definition.name!r} has no function any more")
    mask = combine(answer) if isinstance(answer, (pa.Array, pa.ChunkedArray)) else pa.array(answer)
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), dtype=bool)


def sound(
    asked: Callable[[IntArray, IntArray], BoolArray], li: IntArray, ri: IntArray, raised: Raised
) -> BoolArray:
    """True for the pairs for which the user's condition is true, none of those of left rows on which it raises."""
    try:
        return asked(li, ri)
    except Exception as error:
        rows = np.unique(li)
        if not is_of_data(error):
            raise
        if len(rows) == 1:
            raised[int(rows[0])] = error_text(error)
            return np.zeros(len(li), dtype=bool)
    good, early = np.zeros(len(li), dtype=bool), li < rows[len(rows) // 2]
    for half in (early, ~early):
        good[half] = sound(asked, li[half], ri[half], raised)
    return good


def came_late(
    new: Sequence[Slice], both: Sequence[Slice], li: IntArray, ri: IntArray, watermark_us: int
) -> BoolArray:
    """Return True for pairs whose new messages are all late; new rows come first in `both`."""
    left_new, right_new = li < len(new[LEFT]), ri < len(new[RIGHT])
    left, right = both[LEFT].times[li] < watermark_us, both[RIGHT].times[ri] < watermark_us
    return np.where(left_new & right_new, left & right, np.where(left_new, left, right))
