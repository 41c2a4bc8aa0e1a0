"""Rows wait in a file without a name."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.errors import DiskFailed
from windrow.stores import files
from windrow.stores import spill as spill_module
from windrow.stores.spill import Away, Gathered, Spill


def table(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "s": [f"{v}" * v if v else None for v in values]})


def test_tables_are_read_as_they_grew_and_outlive_the_spill() -> None:
    spill = Spill()
    for number, rows in ((3, table(1, 2)), (0, table(3)), (3, table(0, 4).slice(1)), (5, table())):
        spill.add(rows, number)
    assert spill.numbers == [0, 3]
    assert [spill.rows(n) for n in (0, 3, 5)] == [1, 3, 0]
    assert pa.concat_tables(spill.read([3, 0])).to_pylist() == table(1, 2, 4, 3).to_pylist()
    mapped = spill.mapped()
    del spill
    gc.collect()
    assert {number: rows.to_pylist() for number, rows in mapped.items()} == {
        0: table(3).to_pylist(),
        3: table(1, 2, 4).to_pylist(),
    }


def test_a_column_that_comes_later_is_null_before() -> None:
    spill = Spill()
    spill.add(table(1).drop_columns(["s"]))
    spill.add(table(2))
    assert spill.mapped()[0].to_pylist() == [{"n": 1, "s": None}, {"n": 2, "s": "22"}]


def wide(n: int, first: int = 0) -> pa.Table:
    """Rows of which some columns have one value, or what others have."""
    own = pa.array(range(first, first + n), pa.int64())
    zeros = pa.array([0.0] * (n // 2) + [-0.0] * (n - n // 2))
    return pa.table(
        {
            "one": ["ON_TIME"] * n,
            "n": own,
            "again": own.take(pa.array(range(n))),
            "moment": own.cast(pa.timestamp("us")),
            "zero": zeros,
            "none": pa.nulls(n, pa.int64()),
            "seldom": pa.array([None] + [1] * (n - 1), pa.int64()),
            "late": own.take(pa.array([*range(n - 1), 0])),
            "near": own.take(pa.array([0, 0, *range(2, n)])),
            "span": pa.array([pa.MonthDayNano([1, 2, 3])] * n),
            "is": [True] * n,
            "last": own,
        }
    )


def test_a_column_of_one_value_and_one_that_is_as_another_are_reported_and_not_written() -> None:
    n, spill = spill_module._MANY, Spill()
    tables = [wide(n), wide(n + 5, 7), wide(3), wide(n + 1, 9).slice(1)]
    for i, table in enumerate(tables):
        spill.add(table, i % 2)
    wanted = [pa.concat_tables(tables[i::2]) for i in range(2)]
    mapped = spill.mapped()
    for read in (
        [mapped[0], mapped[1]],
        [pa.concat_tables(tables) for tables in (spill.read([0]), spill.read([1]))],
    ):
        assert [rows.schema for rows in read] == [rows.schema for rows in wanted]
        assert [str(rows.to_pydict()) for rows in read] == [str(rows.to_pydict()) for rows in wanted]
    assert spill._file.size < 0.75 * sum(rows.nbytes for rows in tables)
    assert spill.nbytes(0) >= wanted[0].nbytes  # of all, as where they are in memory
    former, latter = mapped[1].column("one").chunks
    assert former.buffers()[2].address == latter.buffers()[2].address


@pytest.mark.parametrize("n", [spill_module._MANY - 1, spill_module._MANY, 3 * spill_module._MANY])
def test_rows_that_are_dealt_are_read_by_number_in_their_order_each_column_in_one_piece(n: int) -> None:
    spill = Spill()
    tables = [wide(n, one).append_column("step", pa.array([one] * n)) for one in (7, 8)]
    few = wide(3).append_column("step", pa.array([7, 8, 9]))
    to = [np.array([(7 * row + i) % 5 for row in range(n)], dtype=np.uint8) for i in range(2)]
    for rows, numbers in zip(tables, to, strict=True):
        spill.deal(pa.concat_tables([rows.slice(0, 9), rows.slice(9)]), numbers)
    spill.add(few, 7)
    spill.add(tables[0], 8)
    assert spill.numbers == [0, 1, 2, 3, 4, 7, 8]
    for asked in ([3], [0, 4], [0, 1, 2, 3, 4, 7], [7, 8]):
        of = [
            rows.take(np.flatnonzero(numbers == number))
            for number in asked
            for rows, numbers in zip(tables, to, strict=True)
            if number < 7
        ]
        wanted = pa.concat_tables([*of, *([few] if 7 in asked else []), *([tables[0]] if 8 in asked else [])])
        read = spill.whole(asked)
        read.validate(full=True)
        assert read.schema == wanted.schema
        assert str(read.to_pydict()) == str(wanted.to_pydict())
        assert {column.num_chunks for column in read.columns} == {1}
        assert sum(map(spill.rows, asked)) == len(wanted)
        assert sum(map(spill.nbytes, asked)) >= 0.9 * wanted.nbytes
    if n >= spill_module._MANY:
        assert spill._file.size < 0.75 * (2 * tables[0].nbytes + tables[1].nbytes)


def test_columns_of_many_values_each_are_written_before_they_take_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, spill = spill_module._MANY, Spill()
    monkeypatch.setattr(spill_module, "SLICE_BYTES", 20 * n)  # room for two of them
    tables = [pa.table({"start": pa.array([i] * n), "row": pa.array(range(i, i + n))}) for i in range(6)]
    for rows in tables:
        spill.add(rows)
    assert [len(piece.held) for piece in spill._pieces[0]] == [1, 1, 0, 0, 0, 0]
    assert pa.concat_tables(spill.read([0])).equals(pa.concat_tables(tables))


@pytest.mark.parametrize("most", [1, 100, 1 << 20])
def test_rows_that_gather_are_read_in_their_order_about_so_many_at_once(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_module, "SLICE_BYTES", most)
    monkeypatch.setattr(spill_module, "SLICE_ROWS", 2)
    gathered = Gathered()
    for rows in (table(1, 2).drop_columns(["s"]), table(), table(3, 4, 5), table(6)):
        gathered.add(rows)
    parts = list(gathered.tables())
    assert {part.schema for part in parts} == {gathered.schema} and len(gathered) == 6
    every = [row for part in parts for row in part.to_pylist()]
    assert every == [{"n": n, "s": None if n < 3 else f"{n}" * n} for n in range(1, 7)]
    if most == 1:
        assert gathered.held is None and [len(part) for part in parts] == [2, 2, 1, 1]
    if most > 100:
        assert gathered.held is not None and gathered.held.to_pylist() == every


def test_tables_in_a_list_go_to_a_file_and_stay_in_their_order() -> None:
    tables = [table(1)]
    away = Away(tables, 10)
    for n in range(2, 1_000):
        tables.append(table(*[n] * (1 + n % 3)))
        away.gathered()
        assert len(tables) < 12  # each holds a descriptor of the file
    assert pa.concat_tables(tables).column("n").to_pylist() == [1] + [
        n for n in range(2, 1_000) for _ in range(1 + n % 3)
    ]


def test_nothing_is_left_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill()
    spill.add(table(*range(9)))
    assert len(spill.mapped()[0]) == 9 and os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill()

    def full(descriptor: int, data: list[memoryview]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "writev", full)
    with pytest.raises(DiskFailed, match=f"{tmp_path} cannot be written: No space left on device"):
        spill.add(table(1))
