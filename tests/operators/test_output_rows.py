"""Labels of emitted rows: those of many rows that are alike are in memory once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.operators.steps import output_rows
from windrow.operators.steps.columns import TIMING


@pytest.mark.parametrize("last", ["EARLY", "LATE"])
def test_shared_labels_are_those_of_each_row(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    chunks = pa.chunked_array([["EARLY"] * 8, ["LATE"] * 7 + [last]])
    rows = pa.table({"v": range(16), TIMING: chunks})
    each = output_rows.output_rows([rows, rows], 5)
    monkeypatch.setattr(output_rows, "SHARED", 3)
    shared = output_rows.output_rows([rows, rows], 5)
    assert shared.equals(each) and shared["commit"].to_pylist() == [5] * 32
    assert len({chunk.buffers()[1].address for chunk in shared["commit"].chunks}) == 1
    timings = {chunk.field(0).buffers()[2].address for chunk in shared["pane"].chunks}
    assert len(timings) == 2  # mixed chunks have their own
