"""The verbs of a definition, whatever its operators and inputs: open it here, run it on a source, on Spark; and chains."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from windrow.checkpoint.transport import FILES, Transport
from windrow.core import check
from windrow.core.clock import Clock
from windrow.core.errors import ConfigurationError
from windrow.core.time import Duration
from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.operator import Definition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from windrow.connectors.kafka.source import KafkaSource
    from windrow.connectors.kafka.stream import KafkaStream
    from windrow.drawing.svg import Picture
    from windrow.runners.embedded import Embedded
    from windrow.runners.embedded.intake import Schemas
    from windrow.runners.embedded.replay import Again
    from windrow.runners.spark.batch import BatchFunction
    from windrow.runners.spark.stream import WindowStreamWriter


#: The methods of a definition for users, and its own attributes.
_USED = frozenset(
    (
        "apply",
        "backtest",
        "foreach_batch",
        "open",
        "plot",
        "run",
        "then",
        "together",
        "writeStream",
        "name",
        "fingerprint",
        "parts",
    )
)


class _Shown(ABCMeta):
    """The metaclass of definitions: `dir` of them, and completion in a notebook, list the methods for users."""

    def __dir__(cls) -> list[str]:
        return sorted(_USED)


class Verbs(Definition, metaclass=_Shown):
    """The methods that open or run an operator, or a graph of operators."""

    def __dir__(self) -> list[str]:
        return sorted(_USED)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__doc__:  # of a definition with nothing to add but these verbs
            cls.__doc__ = next((base.__doc__ for base in cls.__mro__[1:] if base.__doc__), None)

    @check.suggests
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
        store: str = "rocksdb",
        recompute: bool = False,
    ) -> Embedded:
        """Open the operator on a folder, in this process. It resumes from its last commit.

        location: the folder; created if it does not exist
        clock: the source of `now`; a `windrow.testing.ManualClock` in tests
        sink: receives panes, or rows, as they are committed (`wr.sinks`, or a function); without it `get_result` returns them.
            Of a chain it gets those of the last operator; or a dict by operator name, for those inside it too
        schema: a pyarrow schema of the messages, or {input: schema}, where it should not be learnt as they come; of a join it
            decides the column names of rows
        replay: reads the source again where the messages that the operator keeps are lost with their snapshots and
            segments. It gets `{(source, partition): (first offset, next offset)}` and gives those messages, with
            positions; or a table with the columns that `positions` names. With named inputs, argument and result are
            `{input: ...}`. Where an operator of a chain keeps rows of another one, all steps are run again, and
            the log is kept from its first commit on
        dead_letters: a sink of their own, apart from `sink`
        log: `wr.kafka_log(cluster, name)` keeps log, segments and changelog in Kafka; `location` is then a cache
        store: "rocksdb", on disk, or "memory": for small state, which is read from snapshot and log whenever the job is opened,
            and is as durable; a snapshot writes all of it. It may differ from run to run
        recompute: an aggregation added to the definition is also computed for existing windows, from kept messages. Panes of
            windows that still accept messages are corrected. Otherwise, and where no messages are kept, it is null there

        Where there are several inputs, `add_message(message, input)` names the message's.

        Returns an operator with `add_message`, `add_messages`, `timeout`, `get_result`, `flush`, `get_windows`, `get_messages`,
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
            self.recomputing() if check.flag(recompute, "recompute") else self,
            location,
            clock=clock,
            sink=sink,
            schema=schema,
            replay=replay,
            dead_letters=dead_letters,
            log=log,
            store=store,
        )

    @check.suggests
    def run(
        self,
        location: str,
        source: KafkaStream | Mapping[str, KafkaStream],
        *,
        group: str | None = None,
        sink: Any = None,
        dead_letters: Any = None,
        stop: Callable[[], bool] | None = None,
        available_now: bool = False,
        tick: Duration = "1 second",
        clock: Clock | None = None,
        log: Transport = FILES,
        store: str = "rocksdb",
    ) -> None:
        """Read a source, in this process, until `stop()` is true, Ctrl-C or SIGTERM: a consumer loop on what `open` opens.

        location: the job's folder. It resumes from the offsets of the last commit
        source: `wr.sources.kafka(...)`; of several inputs {input: source}, of one cluster, each with topics of its own
        group: share the partitions with other processes under this name, each with an operator and a folder below `location` of
            its own; keys have to lie in one partition. For one input
        sink: receives panes. dead_letters: receives dead letters. While one refuses, nothing is read
        stop: called at each turn; the loop ends when it returns true
        available_now: end when the records that the source has at the call are committed, as Spark's trigger of that name
        tick: how often time passes and ingested records are committed, at most
        clock, log, store: as in `open`; `log` cannot be combined with `group`

        Messages that are lost with their snapshots and segments are read from the source again. Raises `SourceLost` (WR304),
        `KafkaFailed` (WR601), `Fenced` (WR205) where another process took the job.
        """
        from windrow.runners.embedded.consume import again_of, run, sources_of
        from windrow.runners.replay import read_unasked

        if group is not None and not log.shares_location:
            raise ConfigurationError(
                f"group {group!r} and log {log!r}: a group has a job for each partition, and one name is one job. Keep the "
                "logs in folders that all members see"
            )
        sources = sources_of(self, source)
        again: Again | None = None
        if read_unasked(self):
            again = again_of(sources) if self.by_input else sources[self.inputs[0].name].again

        def open_at(place: str) -> Embedded:
            return self.open(
                place,
                clock=clock,
                sink=sink,
                replay=again,
                dead_letters=dead_letters,
                log=log,
                store=store,
            )

        run(open_at, location, sources, group=group, stop=stop, available_now=available_now, tick=tick)

    @check.suggests
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
        replay: Callable[[], DataFrame | Mapping[str, DataFrame]] | None = None,
        source: KafkaSource | None = None,
        log: Transport = FILES,
        recompute: bool = False,
    ) -> BatchFunction:
        """Return the function for `DataStreamWriter.foreachBatch`, to run on Spark. Several inputs come as the stream
        that `together` gives.

        location: where the job keeps its log and state, apart from Spark's own checkpoint; executors must see it
        sink: `wr.sinks.*`, or a function of (DataFrame of committed panes, token), which may get the same token again after
            a crash and must be idempotent on it
        dead_letters: wr.sinks.parquet(dir), or a function of (token, Parquet files)
        shards: fixed at the first commit; default the parallelism of the session. Operators of a chain stay together by the
            keys that they share; without such keys there can only be one shard
        clock: as in `open`
        local_dir: where executors keep their stores; environment variables are expanded there
        static: bounded frames of inputs that are `static=True`, by name; they are ingested with the first commit
        replay: gives a bounded DataFrame of the source, transformed as the stream is and with its position columns; read where
            messages that the operators keep are lost with their snapshots and segments; {input: frame} where these have names
        source: wr.KafkaSource(...), which reports which silent partitions have unread records
        log: as in `open`; sinks that read panes on executors need a `location` that these see
        recompute: as in `open`

        Raises `SparkUnsupported` (WR501), and while it runs WR2xx, `OffsetGap` (WR301), `PositionsMissing` (WR302),
        `SinkFailed` (WR403).
        """
        from windrow.runners.spark.batch import BatchFunction

        return BatchFunction(
            [self.recomputing() if check.flag(recompute, "recompute") else self],
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

    def together(self, **frames: DataFrame) -> DataFrame:
        """Merge inputs that have names into the one stream that `foreach_batch` takes.

        frames: a streaming DataFrame by the name of each input
        """
        from windrow.runners.spark.inputs import together

        return together([self], frames)[0]

    def writeStream(
        self,
        stream: DataFrame | KafkaStream | None = None,
        *,
        recompute: bool = False,
        **frames: DataFrame,
    ) -> WindowStreamWriter:
        """Return a writer with the methods of `DataStreamWriter`, to run on Spark.

        It sets Spark's checkpoint location and the job's, sends empty batches on time, and its queries have `drain`.

        stream: a streaming DataFrame, or `wr.sources.kafka(...)`, which is read from the job's own offsets
        recompute: as in `open`
        frames: else, where inputs have names, a streaming DataFrame by the name of each

        The writer has `sink`, `deadLetters`, `option`, `trigger`, `queryName`, `replay`, `source`, `log` and `start`.
        """
        from windrow.runners.spark.stream import WindowStreamWriter

        opened = self.recomputing() if check.flag(recompute, "recompute") else self
        return WindowStreamWriter([opened], stream, frames)

    def apply(
        self,
        df: Any = None,
        *,
        dead_letters: Any = None,
        clock: Clock | None = None,
        **frames: Any,
    ) -> Any:
        """Compute the rows of bounded frames: all rows are one commit, then every window fires.

        df: an Arrow table, a frame of polars or pandas, or a list of messages: computed in this process, in memory, without a
            folder. A DataFrame of Spark: computed there. {input: frame} where inputs have names
        frames: the same, each as an argument by the name of its input
        dead_letters: a sink of the dead letters, as in `open`; of Spark's as in `foreach_batch`, and its files live as
            long as this process. Without one, a warning counts them
        clock: as in `open`

        Returns an Arrow table: `window`, keys, aggregates, `pane`, `commit`; of a join its columns; of a chain the rows of its
        last operator. Polars in, polars out, with flat columns as `get_result().to_polars()` has; Spark in, Spark out. Nothing
        is late: the watermark moves once, past all rows.

        >>> import windrow as wr
        >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
        >>> counts.apply([{"t": "2013-07-01 05:10Z"}, {"t": "2013-07-01 05:50Z"}])["n"].to_pylist()
        [2]
        """
        all_frames = [*(df.values() if isinstance(df, Mapping) else [df]), *frames.values()]
        if any(type(frame).__module__.startswith("pyspark.") for frame in all_frames):
            from windrow.runners.spark.bounded import apply as apply_on_spark

            if isinstance(df, Mapping):
                df, frames = None, {**df, **frames}
            return apply_on_spark([self], df, self.name, dead_letters, frames, clock)
        from windrow.runners.embedded.bounded import apply, frames_of

        return apply(self, frames_of(self, df, frames), dead_letters=dead_letters, clock=clock)

    def backtest(
        self,
        df: Any = None,
        *,
        commits: Duration = "1 second",
        arrived: str | None = None,
        drain: bool = True,
        dead_letters: Any = None,
        **frames: Any,
    ) -> pa.Table:
        """Replay bounded frames through the operator as it runs live, and say when each row is emitted.

        df: an Arrow table, a frame of polars or pandas, or a list of dicts; {input: frame} where inputs have names
        commits: the period of commits: messages that arrive within one period are one commit, with `now` at its end
        arrived: the column of the time at which a message arrives, e.g. "received_at"; by default, and in frames that have no
            such column, its event time, so that nothing is late. Rows of a `wr.Table` come first
        drain: end event time after the last message, as `apply` does; False for the rows that a job has emitted by then
        dead_letters: a sink of the dead letters, as in `open`
        frames: the frames, each as an argument by the name of its input

        Returns an Arrow table of the rows, with the column `emitted_at`: `now` of their commit, null where
        only the end of event time emits them. It runs an open job, in memory: with the same commits, a backtest returns the
        rows that the live job emitted.

        >>> import windrow as wr
        >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
        >>> rows = counts.backtest([{"t": "2013-07-01 05:10Z"}, {"t": "2013-07-01 06:05Z"}], drain=False)
        >>> [(str(row["emitted_at"]), row["n"]) for row in rows.to_pylist()]
        [('2013-07-01 06:05:01+00:00', 1)]
        """
        from windrow.runners.embedded.backtest import backtest
        from windrow.runners.embedded.bounded import frames_of

        named = frames_of(self, df, frames, "backtest")
        return backtest(self, named, commits=commits, arrived=arrived, drain=drain, dead_letters=dead_letters)

    def plot(self, messages: Any) -> Picture:
        """Draw the windows into which a handful of messages fall, with the watermark and the panes.

        messages: in the order in which they come: `wr.Message`s or dicts, an Arrow table, a data frame. Of several inputs
            {input: messages}, which come by event time; messages of one input stay in their order

        Messages run through the live operator in memory, one a step, with their event times as `now`; at the end the watermark
        passes all windows. Gives SVG, as text with `save(path)`. After 60 messages it is cut, with a notice.

        >>> import windrow as wr
        >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
        >>> counts.plot([{"t": "2013-07-01 05:10Z"}, {"t": "2013-07-01 06:05Z"}])[:4]
        '<svg'
        """
        from windrow.runners.embedded.plot import plot

        return plot(self, messages)

    def _repr_html_(self) -> str:
        from windrow.runners.definition_picture import definition_html

        return definition_html(self)

    def then(self, second: Definition) -> Chain:
        """Chain this operator, or chain, and one that takes its panes or rows as messages: `wr.chain(self, second)`.

        second: the operator that follows: of one input, or a join with an input of this one's name
        """
        return chain(self, second)


class Chain(ChainDefinition, Verbs):
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


def chain(*operators: Definition) -> Chain:
    """Chain operators: each takes the rows of the one before it, or of those that its inputs name, in the same commit.

    operators: of any kind, in order, each with a name of its own

    After an aggregate the event time is `window_time`, the last moment of the window of a pane, else that of an input;
    the watermark is that of the one before. Panes bring `window_start`, `window_end`, keys and aggregates. A later join takes
    the rows on the input that has the name of the operator before it; its other input comes from outside, and messages of all
    inputs are then given by name (an aggregate's has its name). Only rows that are emitted once can be forwarded:
    `wr.Emit.append()`, mode "discarding", operators other than aggregates.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

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
    for operator in operators:
        remedy = "give operators, such as wr.Aggregate(...), one by one"
        check.of_type(operator, Definition, "an operator of a chain", remedy)
    return Chain(tuple(part for operator in operators for part in operator.parts))
