"""Aggregations that take values back: whatever came and went, in whatever pieces, what is left is that of what stands."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.core.messages import Position
from windrow.operators.aggregations import RETRACTABLE, Arguments, Typed
from windrow.operators.aggregations.base import concat_parts
from windrow.operators.oracle.aggregates import Row, evaluate
from windrow.operators.steps.groups import Groups

KINDS: dict[str, Any] = {
    "count": wr.count("x"),
    "sum": wr.sum("x"),
    "avg": wr.avg("x"),
    "variance": wr.variance("x"),
    "stddev": wr.stddev("x", ddof=0),
    "min": wr.min("x"),
    "max": wr.max("x"),
    "collect_set": wr.collect_set("x"),
    "count_distinct": wr.count_distinct("x"),
    "median": wr.median("x"),
    "percentile": wr.percentile("x", 0.3),
    "top_k": wr.top_k("x", 3),
}
VALUES: dict[pa.DataType, Any] = {
    pa.int64(): st.sampled_from([None, -(2**62), -3, 0, 1, 1, 7, 2**40, 2**62]),
    pa.float64(): st.sampled_from([None, -1.5, 0.0, 0.25, 3.0, 1e6, math.nan, math.inf, -math.inf]),
    pa.decimal128(20, 2): st.sampled_from([None, Decimal("-1.50"), Decimal("0.01"), Decimal("99999999.99")]),
    pa.bool_(): st.sampled_from([None, True, False]),
}


def left(kind: str, values: list[Any], type_: pa.DataType, signs: list[int], cuts: list[int]) -> Any:
    """Aggregate rows that come in pieces."""
    kernel = RETRACTABLE[kind](Typed(KINDS[kind], (type_,), {"integer_overflow": "decimal"}))
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        n = end - start
        rows = Arguments(
            pa.array([0] * n, pa.int64()), None, (pa.array(values[start:end], type_),),
            np.array(signs[start:end], dtype=np.int64),
        )  # fmt: skip
        one = Groups.of_codes(np.zeros(n, dtype=np.int64), 1)
        pieces.append((kernel.merge(kernel.lift(rows), one, []), 1))
        if len(pieces) == 3:  # what is stored is merged with what comes
            two = concat_parts(pieces)
            pieces = [(kernel.merge(two, Groups.of_codes(np.zeros(3, dtype=np.int64), 1), []), 1)]
    groups = Groups.of_codes(np.zeros(len(pieces), dtype=np.int64), 1)
    return kernel.finish(kernel.merge(concat_parts(pieces), groups, []), 1)[0].as_py()


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
@examples(15, deep=3_000)
def test_what_came_and_went_leaves_no_trace(kind: str, data: st.DataObject) -> None:
    ranked = kind in ("median", "percentile")  # of numbers alone
    type_ = data.draw(st.sampled_from([t for t in VALUES if not (ranked and pa.types.is_boolean(t))]))
    came: list[tuple[Any, int]] = []
    standing: list[Any] = []
    for value, goes in data.draw(st.lists(st.tuples(VALUES[type_], st.booleans()), max_size=12)):
        if goes and standing:
            came.append((standing.pop(len(came) % len(standing)), -1))
        else:
            came.append((value, 1))
            standing.append(value)
    places = st.integers(0, len(came))
    cuts = sorted(data.draw(st.lists(places, max_size=4)))
    remainder = left(kind, [v for v, _ in came], type_, [s for _, s in came], cuts)
    rows = [Row(0, Position("s", 0, i), {}, (value,)) for i, value in enumerate(standing)]
    wanted = evaluate(KINDS[kind], rows, "decimal")
    if isinstance(wanted, float) and kind in ("variance", "stddev") and pa.types.is_integer(type_):
        assert math.isclose(remainder, wanted, rel_tol=1e-9)  # to nought: whole numbers leave no rounding
        return
    if isinstance(wanted, float) and kind in ("avg", "variance", "stddev", "sum"):
        largest = max((abs(float(v)) for v, _ in came if v is not None and math.isfinite(v)), default=1.0)
        scale = largest * largest if kind == "variance" else largest
        # What went has been there: its digits are lost, as in any sum of floats.
        close = math.isclose(
            remainder, wanted, rel_tol=1e-9, abs_tol=1e-13 * scale if kind != "stddev" else 1e-6 * scale
        )
        assert close or (math.isnan(remainder) and math.isnan(wanted))
        return
    if isinstance(wanted, list):
        assert repr(remainder) == repr(wanted)
        return
    assert remainder == wanted or (isinstance(wanted, float) and math.isnan(wanted) and math.isnan(remainder))


def test_many_corrections_do_not_wear_a_variance_out() -> None:
    """A window of four values far from nought, each corrected a thousand times."""
    values: list[float] = []
    signs: list[int] = []
    for turn in range(1000):
        for i in range(4):
            values += [1e6 + i + turn % 10] * 2
            signs += [1, -1]
    values += [1e6 + i for i in range(4)]
    signs += [1] * 4
    value = left("variance", values, pa.float64(), signs, [100, 4000])
    assert math.isclose(value, 5 / 3, rel_tol=1e-6)
