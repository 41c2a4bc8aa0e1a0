"""The facade: a definition with the verbs that open it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.aggregations import Aggregation
from windrow.core.clock import Clock
from windrow.core.definition import (
    AggregateDefinition,
    Forever,
    Positions,
    Retention,
    Watermark,
    normalise,
)
from windrow.core.emit import Emit
from windrow.core.time import Duration
from windrow.core.windows import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.runners.embedded import EmbeddedOperator
    from windrow.runners.spark.batch import BatchFunction
    from windrow.runners.spark.stream import WindowStreamWriter


class Aggregate(AggregateDefinition):
    """A windowed aggregate: which windows, which keys, which aggregations, when to emit, how long to keep.

    A frozen value: compare it, print it, pickle it. The same definition runs embedded (`open`), on Spark
    (`foreach_batch`, `writeStream`) and on a bounded DataFrame (`apply`).

    by: key columns (one name or several); () for no key
    event_time: the column of event time (timestamp, or int microseconds since the epoch)
    window: wr.tumbling, wr.hopping, wr.calendar, wr.tuples or wr.global_window
    agg: name -> aggregation, e.g. {"n": wr.count(), "delay": wr.avg("dep_delay")}
    retention: how long windows are kept past the watermark ("7 days"), wr.Retain(...) by size too, or wr.forever
    watermark: a delay ("2 hours"), or wr.bounded, wr.fixed, wr.explicit, wr.custom; default "0 seconds"
    allowed_lateness: how long past the watermark a window takes messages; default: its retention
    emit: wr.Emit(early=..., late=..., mode=...), wr.Emit.append() or wr.Emit.update()
    name: tells operators of one job apart
    null_keys: "group" (null is a key of its own, as in SQL) or "dead_letter"
    time_zone: the zone of event times that have none
    max_ahead: times further ahead of now than this are dead-lettered
    scale: "small" or "large", for seed 003's key matrix; by default decided from the window
    integer_overflow: "dead_letter" or "decimal", for integer sums beyond int64
    positions: wr.positions(...), the columns that say where a row stands in its source
    dead_letter_limit: how many dead letters of one step are kept whole (all are counted)

    Raises `ConfigurationError` and its kinds, naming both values and the remedy. Source: seed 003, "Configuration of A
    Windowed Aggregator".
    """

    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        window: WindowSpec,
        agg: Mapping[str, Aggregation],
        retention: Duration | Retention | Forever | None = None,
        watermark: Duration | Watermark = "0 seconds",
        allowed_lateness: Duration | None = None,
        emit: Emit | None = None,
        name: str = "aggregate",
        null_keys: str = "group",
        time_zone: str | None = None,
        max_ahead: Duration | None = None,
        scale: str | None = None,
        integer_overflow: str = "dead_letter",
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
    ) -> None:
        fields = normalise(
            by=by,
            event_time=event_time,
            window=window,
            agg=agg,
            retention=retention,
            watermark=watermark,
            allowed_lateness=allowed_lateness,
            emit=emit if emit is not None else Emit(),
            name=name,
            null_keys=null_keys,
            time_zone=time_zone,
            max_ahead=max_ahead,
            scale=scale,
            integer_overflow=integer_overflow,
            positions=positions,
            dead_letter_limit=dead_letter_limit,
        )
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def open(
        self,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: pa.Schema | None = None,
    ) -> EmbeddedOperator:
        """Open the operator on a directory, in this process: seed 003's standalone API.

        clock: where `now` comes from (a `windrow.testing.ManualClock` in tests). sink: takes panes as they are committed;
        without one, `get_result` hands them out. schema: of the messages, where it should not be learnt as they come.
        """
        from windrow.runners.embedded import EmbeddedOperator

        return EmbeddedOperator(self, location, clock=clock, sink=sink, schema=schema)

    def foreach_batch(
        self,
        location: str,
        *,
        sink: Any = None,
        dead_letters: Any = None,
        shards: int | None = None,
        clock: Clock | None = None,
        local_dir: str | None = None,
    ) -> BatchFunction:
        """The function for `DataStreamWriter.foreachBatch`: Spark, bare.

        location: where the job keeps its log and state, beside and apart from Spark's own checkpoint. sink: `wr.sinks.*`, or
        a function of (DataFrame of committed panes, token), which may get the same token again after a crash and must be
        idempotent on it. dead_letters: wr.sinks.parquet(dir), or a function of (token, Parquet files). shards: fixed at the
        first commit; default the parallelism of the session. local_dir: where executors keep their stores; environment
        variables are expanded there.
        """
        from windrow.runners.spark.batch import BatchFunction

        return BatchFunction(
            [self],
            location,
            sink=sink,
            dead_letters=dead_letters,
            shards=shards,
            clock=clock,
            local_dir=local_dir,
        )

    def writeStream(self, stream: DataFrame) -> WindowStreamWriter:
        """Spark, builder: `DataStreamWriter`'s own verbs. Owns both checkpoint locations, adds the heartbeat and `drain`."""
        return writeStream([self], stream)

    def apply(self, df: DataFrame) -> DataFrame:
        """The panes of a bounded DataFrame: all rows in one commit, then the end of time. For backfills and unit tests."""
        from windrow.runners.spark.bounded import apply

        return apply([self], df, self.name)


def foreach_batch(definitions: Sequence[AggregateDefinition], location: str, **options: Any) -> BatchFunction:
    """One function for several operators on one input, one commit for all. Options as in `Aggregate.foreach_batch`;
    `sink` may be a dict by operator name.
    """
    from windrow.runners.spark.batch import BatchFunction

    return BatchFunction(list(definitions), location, **options)


def writeStream(definitions: Sequence[AggregateDefinition], stream: DataFrame) -> WindowStreamWriter:
    """The builder for several operators on one stream, one commit for all."""
    from windrow.runners.spark.stream import WindowStreamWriter

    return WindowStreamWriter(list(definitions), stream)
