"""The facade: a definition with the verbs that open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.transport import FILES, Transport
from windrow.core.aggregations import Aggregation
from windrow.core.clock import Clock
from windrow.core.emit import Emit
from windrow.core.errors import ConfigurationError
from windrow.core.inputs import Input as JoinInput
from windrow.core.inputs import make_input
from windrow.core.policy import (
    Forever,
    Retention,
    Watermark,
)
from windrow.core.positions import Ids, Positions
from windrow.core.time import Duration, TimeUnit
from windrow.core.windows import JoinWindowSpec, WindowSpec
from windrow.operators.aggregate.definition import (
    AggregateDefinition,
    NullKeys,
    normalise,
)
from windrow.operators.join.definition import (
    How,
    JoinDefinition,
    Where,
    normalise_join,
)
from windrow.operators.operator import Definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.connectors.kafka.source import KafkaSource
    from windrow.connectors.kafka.stream import KafkaStream
    from windrow.runners.chain import Chain
    from windrow.runners.embedded import Embedded
    from windrow.runners.embedded.replay import ReadAgain, ReadInputsAgain
    from windrow.runners.spark.batch import BatchFunction
    from windrow.runners.spark.stream import WindowStreamWriter


class Aggregate(AggregateDefinition):
    """A windowed aggregate: which windows, which keys, which aggregations, when to tell, how long to keep.

    A frozen value: compare it, print it, pickle it. The same definition runs embedded (`open`, `run`), on Spark
    (`foreach_batch`, `writeStream`) and on a bounded DataFrame (`apply`).

    by: key columns (one name or several); () for no key
    event_time: the column of event time: timestamps, text in ISO 8601, or ints since the epoch
    window: wr.tumbling, wr.hopping, wr.calendar, wr.tuples or wr.global_window
    agg: name -> aggregation, e.g. {"n": wr.count(), "delay": wr.avg("dep_delay")}
    retention: how long windows are kept past the watermark ("7 days"), wr.Retain(...) by size too, or wr.forever
    watermark: a delay ("2 hours"), or wr.bounded, wr.fixed, wr.explicit, wr.custom; default "0 seconds"
    allowed_lateness: how long past the watermark a window takes messages; default: its retention
    emit: wr.Emit(early=..., late=..., mode=...), wr.Emit.append(), wr.Emit.update() or wr.Emit.final()
    name: tells operators of one job apart
    null_keys: "group" (null is a key of its own, as in SQL) or "dead_letter"
    time_zone: the zone of event times that have none
    event_time_unit: what event times count that are integers: "s", "ms", "us" (the default) or "ns" since the epoch
    max_ahead: what is dated further ahead of now than this is a dead letter; default "1 day" where what comes moves the
        watermark, as under wr.bounded; wr.forever for no limit
    scale: "small" or "large": how stored messages are laid out; by default decided from the window
    integer_overflow: "dead_letter" or "decimal", for integer sums beyond int64
    positions: wr.positions(...), the columns that say where a row stands in its source
    ids: wr.ids(...), the columns by which a message is known: a second one is a duplicate, within retention
    dead_letter_limit: how many dead letters of one step are kept whole (all are counted)
    dead_letter_retention: how long of `now` they are kept, whatever a sink got; default "7 days", of no more than 4,096 files
    input: the name of the input that it takes, where the job has several, or of the operator in a graph whose rows it takes;
        default: its own, in a chain the operator before it

    Raises `ConfigurationError` and its kinds (WR1xx), naming both values and the remedy.

    >>> import windrow as wr
    >>> delays = wr.Aggregate(
    ...     by="carrier", event_time="departure", window=wr.tumbling("1 hour"), retention="7 days",
    ...     agg={"flights": wr.count(), "delay": wr.avg("delay")},
    ... )
    >>> delays.full_state
    False
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
        null_keys: NullKeys = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        scale: str | None = None,
        integer_overflow: str = "dead_letter",
        positions: Positions | None = None,
        ids: Ids | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
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
            event_time_unit=event_time_unit,
            max_ahead=max_ahead,
            scale=scale,
            integer_overflow=integer_overflow,
            positions=positions,
            ids=ids,
            dead_letter_limit=dead_letter_limit,
            dead_letter_retention=dead_letter_retention,
            input=input,
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
        replay: ReadAgain | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> Embedded:
        """Open the operator on a folder, in this process. It goes on where its last commit stood.

        location: the folder; made where it is not there
        clock: where `now` comes from; a `windrow.testing.ManualClock` in tests
        sink: takes panes as they are committed (`wr.sinks`, or a function); without one, `get_result` hands them out
        schema: a pyarrow schema of the messages, where it should not be learnt as they come
        replay: reads the source again where the messages that the operator keeps are lost with their snapshots and
            segments. It gets `{(source, partition): (first offset, next offset)}` and gives those messages, with
            positions; or a table with the columns that `positions` names
        dead_letters: a sink of their own, beside `sink`
        log: `wr.kafka_log(cluster, name)` keeps log, segments and changelog in Kafka; `location` is then a cache

        Gives an operator with `add_message`, `add_messages`, `timeout`, `get_result`, `flush`, `get_windows`, `get_messages`,
        `next_offsets`, `dead_letters`, `drain`, `health` and `close`. Raises `DefinitionChanged` (WR204) and others of WR2xx.

        >>> import tempfile, windrow as wr
        >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
        >>> with tempfile.TemporaryDirectory() as folder, counts.open(folder) as op:
        ...     op.add_message({"t": "2013-07-01 05:10Z"})
        ...     op.drain()
        ...     op.get_result()[0]["n"]
        1
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

    def run(
        self,
        location: str,
        source: KafkaStream,
        *,
        group: str | None = None,
        sink: Any = None,
        dead_letters: Any = None,
        stop: Callable[[], bool] | None = None,
        available_now: bool = False,
        tick: Duration = "1 second",
        clock: Clock | None = None,
        log: Transport = FILES,
    ) -> None:
        """Read a source, in this process, until `stop()` is true, Ctrl-C or SIGTERM: a consumer loop on what `open` opens.

        location: the job's folder. It goes on from the offsets of the last commit
        source: `wr.sources.kafka(...)`
        group: share the partitions with other processes under this name, each with an operator and a folder below `location` of
            its own; keys have to lie in one partition
        sink: takes panes. dead_letters: what could not be counted. While one refuses, nothing is read
        stop: asked at each turn whether to end
        available_now: end when what the source has at the call is read and committed, as Spark's trigger of that name
        tick: how often time passes and what has come is committed, at most
        clock, log: as in `open`; a log only without a group

        Messages that are lost with their snapshots and segments are read from the source again. Raises `SourceLost` (WR304),
        `KafkaFailed` (WR601), `Fenced` (WR205) where another process took the job.
        """
        from windrow.runners.embedded.consume import run

        if group is not None and log is not FILES:
            raise ConfigurationError(
                f"group {group!r} and log {log!r}: a group has a job for each partition, and one name is one job. Keep the "
                "logs in folders that all members see"
            )

        def open_at(place: str) -> Embedded:
            return self.open(
                place,
                clock=clock,
                sink=sink,
                replay=source.again,
                dead_letters=dead_letters,
                log=log,
            )

        run(open_at, location, source, group=group, stop=stop, available_now=available_now, tick=tick)

    def foreach_batch(
        self,
        location: str,
        *,
        sink: Any = None,
        dead_letters: Any = None,
        shards: int | None = None,
        clock: Clock | None = None,
        local_dir: str | None = None,
        replay: Callable[[], DataFrame] | None = None,
        source: KafkaSource | None = None,
        log: Transport = FILES,
    ) -> BatchFunction:
        """The function for `DataStreamWriter.foreachBatch`: Spark, bare.

        location: where the job keeps its log and state, beside and apart from Spark's own checkpoint; executors must see it
        sink: `wr.sinks.*`, or a function of (DataFrame of committed panes, token), which may get the same token again after
            a crash and must be idempotent on it
        dead_letters: wr.sinks.parquet(dir), or a function of (token, Parquet files)
        shards: fixed at the first commit; default the parallelism of the session
        clock: as in `open`
        local_dir: where executors keep their stores; environment variables are expanded there
        replay: gives a bounded DataFrame of the source, transformed as the stream is and with its position columns; read where
            messages that the operators keep are lost with their snapshots and segments
        source: wr.KafkaSource(...), whom to ask which silent partitions have more that was not read
        log: as in `open`; sinks that read panes on executors need a `location` that these see

        Raises `SparkUnsupported` (WR501), and while it runs WR2xx, `OffsetGap` (WR301), `PositionsMissing` (WR302),
        `SinkFailed` (WR403).
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
            replay=replay,
            source=source,
            log=log,
        )

    def writeStream(self, stream: DataFrame | KafkaStream) -> WindowStreamWriter:
        """Spark, builder: `DataStreamWriter`'s own verbs. Owns both checkpoint locations, adds the heartbeat and `drain`.

        stream: a streaming DataFrame, or `wr.sources.kafka(...)`, which is read from the job's own offsets

        Gives a writer with `sink`, `deadLetters`, `option`, `trigger`, `queryName`, `replay`, `source`, `log` and `start`.
        """
        return writeStream([self], stream)

    def apply(self, df: DataFrame, *, dead_letters: Any = None) -> DataFrame:
        """The panes of a bounded DataFrame: all rows in one commit, then the end of time. For backfills and unit tests.

        df: the rows
        dead_letters: takes what could not be counted, as in `foreach_batch`: `wr.sinks.parquet(dir)`, or a function of (token,
            Parquet files). The files live as long as this process

        Gives a DataFrame: `window`, keys, aggregates, `pane`, `commit`.
        """
        from windrow.runners.spark.bounded import apply

        return apply([self], df, self.name, dead_letters)

    def then(self, second: AggregateDefinition | JoinDefinition) -> Chain:
        """This operator and one that takes its panes as messages: `wr.chain(self, second)`.

        second: another aggregate, or a join with an input of this one's name
        """
        from windrow.runners.chain import chain

        return chain(self, second)


def foreach_batch(definitions: Sequence[Definition], location: str, **options: Any) -> BatchFunction:
    """One function for several operators, one commit for all.

    definitions: operators, each with a name of its own; where their inputs have names, its batches come from `wr.together`
    location: as in `Aggregate.foreach_batch`
    options: those of `Aggregate.foreach_batch`; `sink` may be a dict by operator name

    Raises `ConfigurationError` (WR100) where an operator does not say which of several inputs it takes.

    >>> import windrow as wr
    >>> what = dict(event_time="t", agg={"n": wr.count()}, retention="1 day")
    >>> hours = wr.Aggregate(name="hours", window=wr.tumbling("1 hour"), **what)
    >>> days = wr.Aggregate(name="days", window=wr.tumbling("1 day"), **what)
    >>> function = wr.foreach_batch([hours, days], "ckpt/both", sink=wr.sinks.memory())

    `stream.writeStream.foreachBatch(function).option("checkpointLocation", "ckpt/spark").start()` runs both.
    """
    from windrow.runners.spark.batch import BatchFunction

    return BatchFunction(list(definitions), location, **options)


def writeStream(
    definitions: Sequence[Definition], stream: DataFrame | KafkaStream | None = None, **frames: DataFrame
) -> WindowStreamWriter:
    """The builder for several operators, one commit for all.

    definitions: operators, each with a name of its own
    stream: as in `Aggregate.writeStream`, where they share one input
    frames: else a streaming DataFrame by the name of each input

    Raises `ConfigurationError` (WR100) where an operator does not say which of several inputs it takes.

    `wr.writeStream([hours, days], stream).sink(...).option("checkpointLocation", "ckpt/both").start()` runs both.
    """
    from windrow.runners.spark.stream import WindowStreamWriter

    return WindowStreamWriter(list(definitions), stream, frames)


def together(definitions: Sequence[Definition], **frames: DataFrame) -> DataFrame:
    """The inputs of several operators as the one stream that `wr.foreach_batch` takes.

    definitions: operators, each with a name of its own, whose inputs have names (`wr.Join`, `wr.Aggregate(input=...)`)
    frames: a streaming DataFrame by the name of each input

    `stream = wr.together([pairs, totals], orders=orders, payments=payments)`, and then
    `stream.writeStream.foreachBatch(wr.foreach_batch([pairs, totals], "ckpt/both"))`.
    """
    from windrow.runners.spark.inputs import together

    return together(definitions, frames)[0]


class Join(JoinDefinition):
    """A join of two inputs: which keys, which times, which rows, how long to keep.

    A frozen value: compare it, print it, pickle it. It runs as `wr.Aggregate` does; messages name their input.

    left, right: wr.Input(...); one input twice joins a stream with itself
    on: key columns: a name, several, or {left name: right name}; () for none (a theta join)
    within: (low, high) bounds of the right event time less the left one, e.g. ("0 seconds", "2 minutes")
    closed: which of these bounds count: "both", "left", "right", "neither"
    how: "inner", "left", "right", "full", "semi", "anti", or "asof" (the latest right message at or before)
    where: a condition on pairs: an expression such as wr.col("value") > wr.col("cost"), or wr.pairs(function, name=...)
    retention: how long messages are kept; by default as long as windows and `within` reach
    allowed_lateness: how long past the watermark a message is taken; default: the retention
    emit: wr.Emit(early=..., late=...), each wr.every_batch (default: at once) or a period
    name: tells operators of one job apart
    scale: "small" or "large": how stored messages are laid out; by default decided from the windows
    dead_letter_limit: how many dead letters of one step are kept whole (all are counted)
    dead_letter_retention: how long of `now` they are kept, whatever a sink got; default "7 days", of no more than 4,096 files

    Raises `ConfigurationError` and its kinds (WR1xx), naming both values and the remedy.

    >>> import windrow as wr
    >>> shipped = wr.Join(
    ...     left=wr.Input("orders", event_time="t"), right=wr.Input("shipments", event_time="t"),
    ...     on="id", within=("0 seconds", "2 hours"), how="left",
    ... )
    >>> shipped.name
    'join'
    """

    def __init__(
        self,
        *,
        left: JoinInput,
        right: JoinInput,
        on: str | Sequence[str] | Mapping[str, str] = (),
        within: tuple[Duration, Duration] | None = None,
        closed: str = "both",
        how: How = "inner",
        where: pc.Expression | Where | None = None,
        retention: Duration | Retention | Forever | None = None,
        allowed_lateness: Duration | None = None,
        emit: Emit | None = None,
        name: str = "join",
        scale: str | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
    ) -> None:
        fields = normalise_join(
            left=left,
            right=right,
            on=on,
            within=within,
            closed=closed,
            how=how,
            where=where,
            retention=retention,
            allowed_lateness=allowed_lateness,
            emit=emit,
            name=name,
            scale=scale,
            dead_letter_limit=dead_letter_limit,
            dead_letter_retention=dead_letter_retention,
        )
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def open(
        self,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: Mapping[str, pa.Schema] | None = None,
        replay: ReadInputsAgain | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> Embedded:
        """Open the join on a folder, in this process; `add_message(message, input)` names the input.

        location, clock, dead_letters, log: as for `wr.Aggregate`
        sink: takes rows as they are committed; without one, `get_result` hands them out
        schema: {input: pyarrow schema} of the messages, where columns and types should not be learnt as they come: it decides
            what the columns of rows are called
        replay: reads the sources again where kept messages are lost with their snapshots and segments; it gets
            `{input: {(source, partition): (first offset, next offset)}}` and gives `{input: messages}`
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
        """Both inputs as the one stream that `foreach_batch` takes.

        frames: a streaming DataFrame by the name of each input
        """
        from windrow.runners.spark.inputs import together

        return together([self], frames)[0]

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
        replay: Callable[[], Mapping[str, DataFrame]] | None = None,
        source: KafkaSource | None = None,
        log: Transport = FILES,
    ) -> BatchFunction:
        """The function for `DataStreamWriter.foreachBatch` on the stream that `together` gives.

        location, sink, dead_letters, shards, clock, local_dir, source, log: as for `wr.Aggregate`
        static: bounded frames of inputs that are `static=True`, by name; they are taken in with the first commit
        replay: gives bounded DataFrames of the inputs, by name, transformed as the streams are and with their position columns;
            read where messages that the join keeps are lost with their snapshots and segments
        """
        from windrow.runners.spark.batch import BatchFunction

        return BatchFunction(
            [self],
            location,
            static=static,
            sink=sink,
            dead_letters=dead_letters,
            shards=shards,
            clock=clock,
            local_dir=local_dir,
            replay=replay,
            source=source,
            log=log,
        )

    def writeStream(self, **frames: DataFrame) -> WindowStreamWriter:
        """Spark, builder: `DataStreamWriter`'s own verbs over both inputs; one commit for both.

        frames: a streaming DataFrame by the name of each input
        """
        from windrow.runners.spark.stream import WindowStreamWriter

        return WindowStreamWriter([self], None, frames)

    def apply(self, *, dead_letters: Any = None, **frames: DataFrame) -> DataFrame:
        """The rows of bounded DataFrames, as `Aggregate.apply`.

        frames: a DataFrame by the name of each input
        dead_letters: as for `wr.Aggregate`
        """
        from windrow.runners.spark.bounded import apply

        return apply([self], None, self.name, dead_letters, frames)

    def then(self, second: AggregateDefinition | JoinDefinition) -> Chain:
        """This join and an operator that takes its rows as messages: `wr.chain(self, second)`.

        second: an aggregate, or another join with an input of this one's name
        """
        from windrow.runners.chain import chain

        return chain(self, second)


def Input(
    name: str,
    *,
    event_time: str,
    window: JoinWindowSpec | None = None,
    watermark: Duration | Watermark = "0 seconds",
    time_zone: str | None = None,
    max_ahead: Duration | Forever | None = None,
    positions: Positions | None = None,
    static: bool = False,
    event_time_unit: TimeUnit | None = None,
) -> JoinInput:
    """One input of a join: its event time, and the window of it that the other side sees.

    name: tells it from the other
    event_time: the column of event time
    window: wr.sliding, wr.unbounded, wr.tumbling, wr.hopping or wr.rows
    watermark, time_zone, event_time_unit, max_ahead, positions: as for `wr.Aggregate`
    static: a table that is there from the beginning or changes slowly (weather, prices, a dimension): none of its messages is
        late, and it does not hold the watermark back

    Raises `BadWindow` (WR105), `ConfigurationError` (WR100).

    >>> import windrow as wr
    >>> wr.Input("quotes", event_time="t", window=wr.sliding("5 minutes"))
    wr.Input('quotes', event_time='t', window=wr.sliding('5 minutes'))
    """
    return make_input(
        name,
        event_time=event_time,
        window=window,
        watermark=watermark,
        time_zone=time_zone,
        max_ahead=max_ahead,
        positions=positions,
        static=static,
        event_time_unit=event_time_unit,
    )
