"""A type that two others widen to holds all values of both, for every pair of types."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import windrow as wr
from tests.border.kinds import KINDS, held
from tests.deep import usually
from windrow.core.types import as_type, plain_type, rounds, widened

INTEGERS = {32: pa.int32(), 64: pa.int64()}


def shown(value: Any) -> Any:
    """A value such that equal ones are equal, whatever type holds them."""
    if isinstance(value, dict):
        return {n: shown(v) for n, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [shown(v) for v in value]
    return value.bytes if isinstance(value, UUID) else "nan" if value != value else value


def is_same(one: Any, other: Any) -> bool:
    """As `==`; a decimal is the float that prints as it does."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(v, other[n]) for n, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if type(one).__name__ == "Decimal" and isinstance(other, float):
        return bool(type(one)(repr(other)) == one)
    return bool(one == other)


def small(values: pa.Array) -> pa.Array:
    """Without integers beyond what floats hold, which are judged by value."""
    kept = [v for v in values.to_pylist() if not _is_beyond(v)]
    return pa.array(kept, values.type)


def _is_beyond(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_beyond, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_beyond, value))
    if isinstance(value, Decimal):
        return len(value.as_tuple().digits) > 15
    return isinstance(value, int) and abs(value) > 2**53


def test_what_types_widen_to_holds_all_values_of_both() -> None:
    draw, widening = random.Random(0), 0
    every = list(itertools.product(KINDS, KINDS))
    pairs = draw.choices(every, k=usually(1_800, deep=100_000))
    for a, b in pairs:
        wide = widened(a, b)
        back = widened(b, a)
        assert (wide is None) == (back is None), (a, b)
        if wide is None:
            continue
        widening += 1
        values = held(a, draw)
        if rounds(plain_type(a), wide):
            values = small(values)
        made = as_type(values, wide)
        assert made.type == wide
        before, after = (list(map(shown, column.to_pylist())) for column in (values, made))
        if wide == pa.null() or pa.struct([]) in (a, b):
            continue
        assert all(map(is_same, before, after)), (a, b, wide, before, after)
    print(f"{len(pairs)} pairs of types, of which {widening} widen")


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.duration("s"), pa.duration("us")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")),
        (pa.time32("s"), pa.time64("us")),
        (pa.date64(), pa.date32()),
        (pa.uint64(), pa.decimal128(20, 0)),
    ],
    ids=str,
)
def test_an_aggregate_over_a_column_that_widens_is_that_over_the_wide_one(
    tmp_path: Path, narrow: pa.DataType, wide: pa.DataType
) -> None:
    draw, day = random.Random(1), 86_400
    numbers = [draw.choice([0, 1, 2, 7]) * (1 if pa.types.is_time(narrow) else day) for _ in range(30)]
    if pa.types.is_integer(narrow):
        numbers = [2**63, 2**63, 2**64 - 1, *numbers]
    if pa.types.is_date64(narrow):
        numbers = [1000 * n for n in numbers]
    values = pa.array(numbers, pa.uint64() if narrow == pa.uint64() else INTEGERS[narrow.bit_width]).cast(
        narrow
    )
    kinds = (wr.min, wr.max, wr.first, wr.last, wr.count_distinct, wr.approx_count_distinct, wr.collect_set)
    rows = wr.Aggregate(
        event_time="t",
        window=wr.global_window(),
        retention=wr.forever,
        agg={kind.__name__: kind("v") for kind in kinds},
    )
    emitted = []
    for name, first in (("narrow", values), ("wide", as_type(values, wide))):
        with rows.open(str(tmp_path / name), store="memory") as op:
            for part in (first, as_type(values, wide)):
                op.add_messages(pa.table({"t": pa.array(range(len(part)), pa.int64()), "v": part}))
                op.flush()
            op.drain()
            emitted.append(op.result_table().drop_columns("commit").to_pylist())
    assert emitted[0] == emitted[1]
    assert emitted[0][0]["approx_count_distinct"] == emitted[0][0]["count_distinct"]


@pytest.mark.parametrize(
    ("a", "b", "wide"),
    [
        (pa.timestamp("us"), pa.timestamp("ns"), None),
        (pa.int64(), pa.uint64(), pa.decimal128(20, 0)),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.decimal128(15, 2), pa.float64(), pa.float64()),
        (pa.decimal128(16, 2), pa.float64(), pa.float64()),
        (pa.bool_(), pa.int64(), None),
        (pa.string(), pa.binary(), None),
    ],
)
def test_pairs_that_are_decided(a: pa.DataType, b: pa.DataType, wide: pa.DataType | None) -> None:
    assert widened(a, b) == widened(b, a) == wide
