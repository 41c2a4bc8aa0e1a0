"""A definition that cannot open a job's state is refused by `start`, in one message, before Spark starts a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import DefinitionChanged, JobMismatch, TypeClash, UnknownColumn

from .batches import ROWS, define

pytestmark = pytest.mark.spark


def test_what_cannot_be_opened_is_refused_before_the_query_starts(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source = feed()
    source.add(ROWS[0])

    def writer(definition: Any) -> Any:
        stream = (
            definition.writeStream(source.stream(spark)).sink(wr.sinks.memory()).trigger(availableNow=True)
        )
        return stream.option("checkpointLocation", str(tmp_path / "ckpt"))

    writer(define({"n": wr.count()})).option("shards", 2).start().awaitTermination()
    before = len(spark.streams.active)
    for changed, shards, refused in (
        (define({"n": wr.count()}, by=()), 2, DefinitionChanged),
        (define({"n": wr.count()}), 3, JobMismatch),
    ):
        with pytest.raises(refused) as caught:
            writer(changed).option("shards", shards).start()
        assert len(str(caught.value).splitlines()) < 12 and len(spark.streams.active) == before
    again = writer(define({"n": wr.count()})).start()
    again.awaitTermination()
    assert again.exception() is None


@pytest.mark.parametrize(
    ("aggregation", "refused", "said"),
    [
        (wr.sum("vv"), UnknownColumn, "did you mean 'v'"),
        (wr.sum("k"), TypeClash, "'k'.*string"),
        (wr.sum(wr.col("vv") + 1), UnknownColumn, "vv"),
    ],
    ids=["unknown", "type", "expression"],
)
def test_columns_that_do_not_fit_are_refused_before_the_query_starts(
    spark: Any, feed: Any, tmp_path: Path, aggregation: Any, refused: type[Exception], said: str
) -> None:
    definition = define({"x": aggregation})
    days = wr.Aggregate(
        event_time="window_time",
        window=wr.tumbling("1 day"),
        retention="7 days",
        agg={"y": wr.count()},
        name="days",
    )
    before = len(spark.streams.active)
    for definitions in (definition, wr.chain(definition, days)):
        writer = definitions.writeStream(feed().stream(spark)).sink(wr.sinks.memory())
        with pytest.raises(refused, match=said) as caught:
            writer.option("checkpointLocation", str(tmp_path / "ckpt")).start()
        assert len(str(caught.value).splitlines()) == 1 and len(spark.streams.active) == before
    assert not (tmp_path / "ckpt").exists()
