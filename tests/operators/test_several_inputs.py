"""The intake of operators with several inputs, of an operator that counts by input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from windrow.core.errors import InputError
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.operators.one_input import WholeMessages
from windrow.operators.several_inputs import SeveralInputsLogic
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.work import Work
from windrow.operators.view import View
from windrow.stores.kv import KV, MemoryKV

INPUTS = (
    Input("bids", "t", where=Expr(pc.field("n") > 0)),
    Input("asks", "at", by=("who",)),
    Input("names", "t", static=True),
)


class Counting(SeveralInputsLogic):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__(
            SimpleNamespace(
                name="c",
                inputs=INPUTS,
                late_us=5,
                dead_letter_limit=10,
                null_keys="dead_letter",
                ids=None,
                output_columns=(),
                keys=lambda source: source.by or ("k",),
                columns_of=lambda source: (source.event_time, *(source.by or ("k",))),
            )
        )
        self.taken: list[dict[str, list[int]]] = []
        self.passed: list[tuple[int, int]] = []

    def needs(self, source: Input) -> Needs:
        return WholeMessages(self.definition, source)

    def accept(self, work: Work, rows: Mapping[str, Slice]) -> Mapping[str, Slice]:
        self.taken.append({name: part.times.tolist() for name, part in rows.items()})
        return rows

    def pass_time(self, work: Work, watermark_us: int) -> None:
        self.passed.append((watermark_us, work.now_us))

    def fields(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        return [pa.field(name, schema.field(0).type) for name, schema in schemas.items()]

    def view(self, stores: Sequence[KV], watermark_us: int, prefix: str = "") -> View:
        raise AssertionError("nothing is asked of this operator")


def rows(time: str, times: list[int | None], key: str = "k", **columns: list[Any]) -> pa.Table:
    made = {time: pa.array(times, pa.int64()), key: pa.array(["x"] * len(times), pa.string())}
    return pa.table({**made, **columns})


def test_each_input_is_filtered_judged_and_learnt_by_itself() -> None:
    logic, kv = Counting(), MemoryKV(("c.aux",))
    logic.advance(kv, 100, 7)
    bids = rows("t", [95, 94, 120, 130, 99], n=[1, 1, 0, 1, 1])
    bids = bids.set_column(1, "k", pa.array(["x", "x", "x", "x", None]))
    step = logic.ingest(kv, {"names": rows("t", [1]), "bids": bids, "asks": rows("at", [None, 96], "who")}, 8)
    assert logic.taken == [{"bids": [95, 130], "asks": [96], "names": [1]}]
    assert step.marks == {("bids:", 0): 130, ("asks:", 0): 96, ("names:", 0): 1}
    assert step.dead is not None
    letters = sorted((row["reason"], row["input"], row["source"]) for row in step.dead.to_pylist())
    assert letters == [("malformed", "asks", ""), ("null_key", "bids", ""), ("too_late", "bids", "")]
    assert step.counts == {"dead.malformed": 1, "dead.null_key": 1, "dead.too_late": 1}
    assert logic.passed == [(100, 7)]
    logic.advance(kv, 50, 9)
    assert logic.passed[-1] == (100, 9)


def test_a_message_that_does_not_pass_the_filter_advances_the_watermark_unless_it_is_late() -> None:
    logic, kv = Counting(), MemoryKV(("c.aux",))
    step = logic.ingest(kv, {"bids": rows("t", [120, 110], n=[0, 1])}, 0)
    assert (logic.taken, step.marks, step.dead) == ([{"bids": [110]}], {("bids:", 0): 120}, None)
    logic.advance(kv, 130, 0)
    step = logic.ingest(kv, {"bids": rows("t", [124], n=[0])}, 0)
    assert (step.marks, step.dead) == ({}, None)


def test_columns_are_known_by_input_and_widen() -> None:
    logic, kv = Counting(), MemoryKV(("c.aux",))
    assert logic.schema_of(kv, "asks") is None
    logic.ingest(kv, {"asks": rows("at", [1], "who", v=pa.array([1], pa.int32()))}, 0)
    assert logic.known_schema(kv) is None
    logic.ingest(kv, {"asks": rows("at", [1], "who", v=pa.array([1.5]), w=[True])}, 0)
    schema = logic.schema_of(kv, "asks")
    assert schema is not None and dict(zip(schema.names, schema.types, strict=True)) == {
        "at": pa.int64(),
        "who": pa.string(),
        "v": pa.float64(),
        "w": pa.bool_(),
    }
    for name in ("bids", "names"):
        logic.learn(kv, name, rows("t", []).schema)
    assert logic.columns(kv) == ["bids", "asks", "names"]
    with pytest.raises(InputError, match="'offers' is no input of 'c', which has"):
        logic.ingest(kv, {"offers": rows("t", [1])}, 0)
