"""Labels of emitted rows: those of many rows that are alike are in memory once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.operators.steps import output_rows
from windrow.operators.steps.columns import TIMING


@pytest.mark.parametrize("timings", [["EARLY"] * 8, ["EARLY"] * 7 + ["LATE"]])
def test_shared_labels_are_those_of_each_row(monkeypatch: pytest.MonkeyPatch, timings: list[str]) -> None:
    rows = pa.table({"v": range(8), TIMING: timings})
    each = output_rows.output_rows([rows], 5)
    monkeypatch.setattr(output_rows, "SHARED", 3)
    shared = output_rows.output_rows([rows], 5)
    assert shared.equals(each) and shared["commit"].to_pylist() == [5] * 8
    chunks = shared["commit"].chunks
    assert len(chunks) == (3 if timings[-1] == "EARLY" else 1)
    assert len({chunk.buffers()[1].address for chunk in chunks}) == 1
