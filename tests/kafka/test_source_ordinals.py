"""Rows made from one record are told apart by ordinals."""

from __future__ import annotations

import pyarrow as pa

from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.runners.wire import CONTROL, OPERATOR, SHARD, tables_of_shard, with_ordinals


def rows(*where: tuple[int, str, int, int, int | None]) -> pa.Table:
    names = (OPERATOR, SOURCE, PARTITION, OFFSET, ORDINAL)
    types = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    return pa.table(
        {n: pa.array([w[i] for w in where], t) for i, (n, t) in enumerate(zip(names, types, strict=True))}
    )


def test_rows_of_a_record_are_numbered_as_they_come_for_each_operator() -> None:
    table = rows(
        (0, "t", 0, 7, None), (1, "t", 0, 7, None), (0, "t", 0, 7, None), (0, "t", 1, 7, None),
        (0, "s", 0, 7, None), (0, "t", 0, 6, None), (0, "t", 0, 7, None), (1, "t", 0, 7, None),
    )  # fmt: skip
    assert with_ordinals(table)[ORDINAL].to_pylist() == [0, 0, 1, 0, 0, 0, 2, 1]


def test_ordinals_that_are_there_stay_and_a_record_of_one_row_has_ordinal_0() -> None:
    table = rows((0, "t", 0, 7, 4), (0, "t", 0, 8, None))
    assert with_ordinals(table)[ORDINAL].to_pylist() == [4, 0]
    known = rows((0, "t", 0, 7, 4), (0, "t", 0, 7, 4))
    assert with_ordinals(known) is known
    assert with_ordinals(rows()).num_rows == 0


def test_rows_of_one_record_in_several_parts_have_ordinals_of_their_own() -> None:
    table = pa.table(
        {
            SHARD: pa.array([0] * 7, pa.int32()),
            CONTROL: pa.nulls(7, pa.bool_()),
            SOURCE: ["a", "a", "b", "a", "a", "b", "a"],
            PARTITION: pa.array([0] * 7, pa.int64()),
            OFFSET: pa.array([1, 2, 5, 2, 3, 5, 2], pa.int64()),
            ORDINAL: pa.nulls(7, pa.int64()),
        }
    )
    parts = [t[ORDINAL].to_pylist() for _, t in tables_of_shard(table.to_batches(max_chunksize=1), 1)]
    assert parts == [[0, 0], [0, 2], [0, 4], [6]]
