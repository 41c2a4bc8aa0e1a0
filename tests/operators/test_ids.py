"""Ids in the store: what is written where, what one lookup finds, and what is let go."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest

import windrow as wr
from tests.format_pages import examples_of_formats
from windrow.core.byte_order import encode_i64
from windrow.core.keys import encode_key
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import Batch, MemoryKV

S = 1_000_000


def define(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "70 seconds",
        "ids": wr.ids("id"),
        "watermark": wr.explicit(),
    }
    return wr.Aggregate(**(options | changed))


class Steps:
    """An operator on a store in memory that keeps every batch it was given."""

    def __init__(self, definition: wr.Aggregate) -> None:
        make = TupleAggregator if definition.tuple_window else WindowAggregator
        self.operator = make(definition)
        self.batches: list[Batch] = []
        self.kv = MemoryKV(self.operator.cfs())
        write = self.kv.write

        def note(batch: Batch) -> None:
            self.batches.append(batch)
            write(batch)

        self.kv.write = note  # type: ignore[method-assign]

    def ingest(self, *rows: tuple[Any, float, Any]) -> StepResult:
        ks, ts, ids = zip(*rows, strict=True)
        table = pa.table({"k": list(ks), "t": pa.array([int(t * S) for t in ts]), "id": list(ids)})
        return self.operator.ingest_table(self.kv, table, 0)

    def advance(self, watermark: float) -> StepResult:
        return self.operator.advance(self.kv, int(watermark * S), 0)

    @property
    def ids(self) -> dict[bytes, bytes]:
        return dict(self.kv.scan("aggregate.ids"))


def golden(name: str) -> bytes:
    return examples_of_formats()[name]


def test_the_key_and_the_value_of_an_id_are_those_of_the_formats_page() -> None:
    steps = Steps(define(ids=wr.ids("id")))
    steps.ingest(("JFK", 25, 7))
    assert steps.ids == {golden("window-id-key"): golden("window-id-value")}
    assert steps.kv.get("aggregate.aux", b"i") == golden("window-id-buckets") == msgpack.packb([30 * S])


def test_one_bucket_serves_what_is_kept_for_good() -> None:
    for changed in ({"retention": wr.forever}, {"window": wr.tuples(3), "retention": wr.Retain(windows=2)}):
        steps = Steps(define(**changed))
        steps.ingest(("a", -5, 1), ("a", 10**9, 2))
        assert {key[:8] for key in steps.ids} == {encode_i64(2**63 - 1)}


def test_buckets_below_the_floor_are_dropped_whole_by_one_range_and_never_by_key() -> None:
    steps = Steps(define())
    for second in range(0, 60, 3):
        steps.ingest(("a", second, second), ("b", second, second))
    assert len(steps.ids) == 40
    steps.batches.clear()
    steps.advance(105)  # windows that begin before 30 are out of retention
    deleted = [op for batch in steps.batches for op in batch.ops if op[1] == "aggregate.ids"]
    assert [op[0] for op in deleted] == ["delete_range"]
    assert len(steps.ids) == 20 and min(steps.ids.values()) == encode_i64(30 * S)


def test_a_bucket_that_is_left_only_in_part_is_kept_but_says_nothing_of_what_is_forgotten() -> None:
    steps = Steps(define(window=wr.tumbling("3 seconds"), retention="77 seconds"))  # buckets of 10 seconds
    steps.ingest(("a", 1, 1), ("a", 9, 9))
    steps.advance(83)  # the window [3, 6) is out of retention
    assert len(steps.ids) == 2
    again = steps.ingest(("a", 1, 1), ("a", 9, 9), ("a", 8, 1))
    assert again.counts == {"duplicates": 1, "dead.out_of_retention": 1}


def test_a_longer_or_shorter_retention_still_finds_and_drops_the_ids_of_the_one_before() -> None:
    steps = Steps(define())
    steps.ingest(("a", 25, 1))
    steps.operator = WindowAggregator(define(retention="1 day"))
    assert steps.ingest(("a", 25, 1), ("a", 26, 2)).counts == {"duplicates": 1}
    steps.operator = WindowAggregator(define(retention="10 seconds"))
    assert steps.ingest(("a", 25, 1), ("a", 26, 2)).counts == {"duplicates": 2}
    steps.advance(10**6)
    assert steps.ids == {}


def test_ids_are_distinguished_by_type_and_equal_numbers_are_one() -> None:
    steps = Steps(define())
    assert steps.ingest(("a", 1, 1), ("a", 1, 2)).counts == {}
    assert steps.ingest(("a", 1, 1.0), ("a", 1, 2.5), ("a", 1, 2.0)).counts == {"duplicates": 2}
    assert encode_key([1]) != encode_key(["1"]) != encode_key([True])


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_message_without_its_id_is_a_dead_letter_that_says_so(missing: Any) -> None:
    steps = Steps(define())
    step = steps.ingest(("a", 1, 0.5), ("a", 2, missing))
    assert step.counts == {"dead.malformed": 1}
    assert step.dead is not None and step.dead.column("detail").to_pylist() == ["id 'id' is null"]
    assert len(steps.ids) == 1


def test_an_input_without_the_column_is_another_input() -> None:
    steps = Steps(define(ids=wr.ids("order_id")))
    with pytest.raises(wr.WindrowError, match=r"'order_id' of 'aggregate' is not in the input"):
        steps.ingest(("a", 1, 1))


def test_without_ids_nothing_is_kept_of_them() -> None:
    assert "aggregate.ids" not in WindowAggregator(define(ids=None)).cfs()
