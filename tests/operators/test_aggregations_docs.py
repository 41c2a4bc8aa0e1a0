"""docs/reference/aggregations.md: its examples run, and its tables know every kind and every part."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pyarrow as pa
import pytest

from windrow.core import aggregations as wr
from windrow.operators.aggregations import KERNELS, Arguments, make_kernel

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "aggregations.md"
TEXT = PAGE.read_text()


def test_the_examples_run() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted > 5
    assert outcome.failed == 0


def table_after(heading: str) -> dict[str, str]:
    """First column -> the rest of the line, of the first table after `heading`."""
    lines = TEXT[TEXT.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    rows: dict[str, str] = {}
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        first, rest = line.strip("|").split("|", 1)
        rows[first.strip()] = rest
    return rows


def test_every_kind_is_in_the_table() -> None:
    named = {name for cell in table_after("## The kinds") for name in re.findall(r"`(\w+)\(", cell)}
    assert named == set(KERNELS) - {"user"}


@pytest.mark.parametrize("kind", sorted(set(KERNELS) - {"user"}))
def test_every_part_is_in_the_table(kind: str) -> None:
    params = {"ddof": 1, "order": "event_time", "lg_k": 12, "fraction": 0.5, "k": 8, "descending": True}
    rows = Arguments(pa.array([0]), pa.array([b"p"]), (pa.array([1]), pa.array([2])))
    aggregation = wr.Aggregation(kind, ("x", "y"), tuple(params.items()))
    lifted = make_kernel(aggregation, [pa.int64(), pa.int64()]).lift(rows)
    cells = {
        k: rest for cell, rest in table_after("stored under these names").items() for k in cell.split(", ")
    }
    listed = set(re.findall(r"`(\w+)`", cells[kind]))
    if kind == "avg":
        listed |= set(re.findall(r"`(\w+)`", cells["sum"]))
    assert set(lifted) <= listed
