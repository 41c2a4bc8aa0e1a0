"""Rows wait in a file without a name."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from windrow.core.errors import DiskFailed
from windrow.stores import files
from windrow.stores.spill import Spill


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


def test_nothing_is_left_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill()
    spill.add(table(*range(9)))
    assert len(spill.mapped()[0]) == 9 and os.listdir(tmp_path) == []


def test_a_full_disk_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill()

    def full(descriptor: int, data: list[memoryview]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "writev", full)
    with pytest.raises(DiskFailed, match=f"{tmp_path} cannot be written: No space left on device"):
        spill.add(table(1))
