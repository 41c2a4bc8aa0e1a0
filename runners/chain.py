"""The facade of chains: `wr.chain`, and the verbs that open what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.operator import Definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.connectors.kafka.source import KafkaSource
    from windrow.runners.embedded import Embedded
    from windrow.runners.embedded.intake import Schemas
    from windrow.runners.embedded.replay import Again
    from windrow.runners.spark.batch import BatchFunction
    from windrow.runners.spark.stream import WindowStreamWriter


class Chain(ChainDefinition):
    """Operators in a chain, one commit for all. A frozen value, made by `wr.chain` or `first.then(second)`.

    parts: the operators, in order

    >>> import windrow as wr
    >>> join = wr.Join(
    ...     left=wr.Input("a", event_time="t"), right=wr.Input("b", event_time="t"), on="k", within=("0 s", "5 s"),
    ... )
    >>> counts = wr.Aggregate(
    ...     by="k", event_time="a_t", window=wr.tumbling("1 minute"), agg={"n": wr.count()}, retention="1 hour",
    ... )
    >>> [part.name for part in join.then(counts).parts]
    ['join', 'aggregate']
    """

    def then(self, second: Definition) -> Chain:
        """The chain with one operator more.

        second: the operator that takes the rows of the last
        """
        return chain(self, second)

    def open(
        self,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: Schemas | None = None,
        replay: Again | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> Embedded:
        """Open the chain on a folder, in this process: fed as its first operator is, or by input where messages name theirs.

        location, clock, dead_letters, log: as for `wr.Aggregate`
        sink: takes the last operator's panes as they are committed, or a dict by operator name, for those inside the chain too;
            without one, `get_result` hands out the last operator's
        schema: a pyarrow schema of the messages, or {input: schema}, where columns and types should not be learnt as they come
        replay: is refused: operators that take each other's rows cannot file lost messages again one by one
        """
        from windrow.runners.embedded import Embedded

        return Embedded(
            self,
            location,
            clock=clock,
            sink=sink,
            schema=schema,
            replay=replay,
            dead_letters=dead_letters,
            log=log,
        )

    def together(self, **frames: DataFrame) -> DataFrame:
        """Of a chain with a join in it: its inputs as the one stream that `foreach_batch` takes.

        frames: a streaming DataFrame by the name of each input
        """
        from windrow.runners.spark.inputs import one_way, together

        return together([self], one_way([self], None, frames))[0]

    def foreach_batch(
        self,
        location: str,
        *,
        sink: Any = None,
        dead_letters: Any = None,
        shards: int | None = None,
        clock: Clock | None = None,
        local_dir: str | None = None,
        static: Mapping[str, DataFrame] | None = None,
        source: KafkaSource | None = None,
        log: Transport = FILES,
    ) -> BatchFunction:
        """The function for `DataStreamWriter.foreachBatch`, one commit for all operators.

        location, dead_letters, shards, clock, local_dir, source, log: as for `wr.Aggregate`. Rows stay in the shard of the keys
            that all operators share; without such keys there can only be one shard
        sink: as in `open`
        static: bounded frames of static inputs of a join, by name
        """
        from windrow.runners.spark.batch import BatchFunction

        options: dict[str, Any] = {
            "sink": sink,
            "dead_letters": dead_letters,
            "shards": shards,
            "clock": clock,
            "local_dir": local_dir,
            "source": source,
            "log": log,
        }
        return BatchFunction([self], location, static=static, **options)

    def writeStream(self, stream: DataFrame | None = None, **frames: DataFrame) -> WindowStreamWriter:
        """Spark, builder, over the stream of the first operator; where one is a join, over all inputs.

        stream: a streaming DataFrame, where the chain has one input
        frames: else a streaming DataFrame by the name of each input
        """
        from windrow.runners.spark.stream import WindowStreamWriter

        return WindowStreamWriter([self], stream, frames)

    def apply(
        self, df: DataFrame | None = None, *, dead_letters: Any = None, **frames: DataFrame
    ) -> DataFrame:
        """The last operator's panes, or rows, of bounded DataFrames.

        df: a DataFrame, where the chain has one input
        frames: else a DataFrame by the name of each input
        dead_letters: as for `wr.Aggregate`
        """
        from windrow.runners.spark.bounded import apply

        return apply([self], df, self.name, dead_letters, frames)


def chain(*operators: Definition) -> Chain:
    """Operators of which each takes the rows of the one before it as messages, in the same commit.

    operators: aggregates and joins, in order, each with a name of its own

    After an aggregate the event time is `window_time`, the last moment of the window of a pane, after a join that of an input;
    the watermark is that of the one before. Panes bring `window_start`, `window_end`, keys and aggregates. A later join takes
    the rows on the input that has the name of the operator before it; its other input comes from outside, and messages of all
    inputs are then given by name (an aggregate's has its name). Only what is told once can be handed on:
    `wr.Emit.append()`, mode "discarding", joins.

    Raises `ConfigurationError` and its kinds (WR1xx), naming both values and the remedy.

    >>> import windrow as wr
    >>> each = wr.Aggregate(
    ...     by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count()}, retention="1 minute",
    ...     emit=wr.Emit.append(), name="seconds",
    ... )
    >>> tens = wr.Aggregate(
    ...     by="k", event_time="window_time", window=wr.tumbling("10 seconds"), agg={"most": wr.max("n")},
    ...     retention="1 minute", name="tens",
    ... )
    >>> wr.chain(each, tens).name
    'tens'
    """
    return Chain(tuple(part for operator in operators for part in operator.parts))
