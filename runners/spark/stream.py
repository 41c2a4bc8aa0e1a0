"""Builder of a streaming job: `DataStreamWriter`'s own verbs around a windrow job.

It owns both locations, `<checkpointLocation>/spark` and `<checkpointLocation>/windrow`, keeps commits coming when there is
no input (Spark skips empty batches; timers must not), and returns a query that mirrors `StreamingQuery` and can `drain`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.checkpoint.transport import FILES, Transport
from windrow.connectors.kafka.source import KafkaSource
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core import check
from windrow.core.clock import Clock
from windrow.core.errors import ConfigurationError
from windrow.core.location import local_path
from windrow.core.suggestions import meant
from windrow.core.time import Duration, duration_us
from windrow.operators.operator import Definition
from windrow.runners.publishing import sinks_of
from windrow.runners.spark import routes
from windrow.runners.spark.batch import BatchFunction
from windrow.runners.spark.checkpoint import RETAIN, RETAINED, SparkCheckpoint
from windrow.runners.spark.inputs import check_one, frame_of, inputs_of, one_way, together
from windrow.runners.spark.kafka import ranges_of
from windrow.runners.spark.limits import warn_of_no_limit
from windrow.runners.spark.query import WindowQuery
from windrow.runners.spark.routes import HEARTBEAT
from windrow.runners.spark.session import check_session, start
from windrow.runners.spark.sinks import as_letters_sink, as_spark_sink

#: Verbs of Spark's writer that have another place here.
ELSEWHERE = {
    "outputMode": "the definition says what is emitted when: emit=wr.Emit.append(), wr.Emit.update() or others",
    "format": "use .sink(wr.sinks.parquet('out')), or another of wr.sinks",
    "foreachBatch": "use .sink(function), which gets (DataFrame of panes, token)",
    "foreach": "use .sink(function), which gets (DataFrame of panes, token)",
    "toTable": "use .sink(function), which gets (DataFrame of panes, token)",
}


class WindowStreamWriter:
    """A writer that configures and starts a windrow job on a streaming DataFrame. The verbs are Spark's.

    Options: "checkpointLocation" (required), "heartbeat" (a duration, default "1 second"; "none" for no commits without
    input), "shards", "localDir". Options of a source belong to `spark.readStream`.
    """

    OPTIONS = ("checkpointLocation", "heartbeat", "shards", "localDir")

    def __init__(
        self,
        definitions: Sequence[Definition],
        stream: DataFrame | KafkaStream | None,
        frames: Mapping[str, DataFrame] | None = None,
    ) -> None:
        """stream: the one input; frames: inputs by name, of which static ones may be bounded."""
        self._reads: KafkaStream | None = None
        if isinstance(stream, KafkaStream):
            zones = {i.time_zone for definition in definitions for i in definition.inputs}
            self._reads = stream.in_zone(zones.pop() if len(zones) == 1 else None)
        self._static: dict[str, DataFrame] = {}
        self._of_files = False
        self._stream: DataFrame | None = None
        if stream is None or frames:
            self._set_inputs(definitions, one_way(definitions, stream, frames or {}))
        else:
            check_one(definitions)
            if isinstance(stream, KafkaStream):
                routes.check_names(stream.schema.names, definitions)
            elif not frame_of(stream, "what writeStream is given").isStreaming:
                raise ConfigurationError(
                    "writeStream needs a streaming DataFrame, this one is bounded: use apply(df), or spark.readStream"
                )
            else:
                routes.check_columns(stream, definitions)
                self._stream = stream
        self._definitions = tuple(definitions)
        if self._stream is not None:
            self._definitions = inputs_of(self._definitions).honoured(self._stream, self._definitions)
        self._options: dict[str, str] = {}
        self._sink: Any = None
        self._dead_letters: Any = None
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._clock: Clock | None = None
        self._replay: Callable[[], DataFrame] | None = None
        self._source: KafkaSource | None = None
        self._log: Transport = FILES

    def _set_inputs(self, definitions: Sequence[Definition], frames: Mapping[str, DataFrame]) -> None:
        """Set the inputs by name."""
        if frames and not any(frame.isStreaming for frame in frames.values()):
            raise ConfigurationError(
                "writeStream needs streaming DataFrames, these are bounded: use apply(...)"
            )
        self._stream, self._of_files = together(definitions, frames, of_files=True)
        self._static = {name: frame for name, frame in frames.items() if not frame.isStreaming}

    def sink(self, sink: Any) -> WindowStreamWriter:
        """Set the sink of panes: `wr.sinks.*`, a function of (DataFrame, token), or a dict of these by operator."""
        sinks_of(self._definitions, sink, None, as_spark_sink)
        self._sink = sink
        return self

    def deadLetters(self, sink: Any) -> WindowStreamWriter:
        """Set the dead-letter sink: `wr.sinks.parquet(dir)`, or an idempotent function of (token, Parquet files)."""
        as_letters_sink(sink)
        self._dead_letters = sink
        return self

    def option(self, key: str, value: Any) -> WindowStreamWriter:
        """Set an option; see the class. As in Spark, upper and lower case are one."""
        name = {o.lower(): o for o in self.OPTIONS}.get(key.lower())
        if name is None:
            near = meant(key, self.OPTIONS)
            raise ConfigurationError(
                f"option {key!r}={value!r} is none of {list(self.OPTIONS)}: "
                + (f"did you mean {near!r}?" if near else "options of a source go to spark.readStream")
            )
        self._options[name] = str(value)
        return self

    def options(self, **options: Any) -> WindowStreamWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    @check.suggests
    def trigger(
        self, *, processingTime: str | None = None, availableNow: bool | None = None
    ) -> WindowStreamWriter:
        """Set the begin of a commit: every `processingTime`, or until what is available is read. As in Spark."""
        if (processingTime is None) == (availableNow is None):
            raise ConfigurationError("trigger takes one of processingTime='5 seconds' and availableNow=True")
        self._trigger = (
            {"processingTime": processingTime}
            if processingTime is not None
            else {"availableNow": availableNow}
        )
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise for missing attributes; for verbs of Spark's writer that have another place here, name it."""
            place = ELSEWHERE.get(name, "see help(wr.Aggregate.writeStream)")
            raise AttributeError(f"the writer of writeStream has no {name!r}: {place}")

    def queryName(self, name: str) -> WindowStreamWriter:
        """Set the name of the query."""
        self._name = name
        return self

    def clock(self, clock: Clock) -> WindowStreamWriter:
        """Set the source of `now`, for tests."""
        self._clock = clock
        return self

    def replay(self, source: Callable[[], DataFrame]) -> WindowStreamWriter:
        """Set a function that returns a bounded DataFrame of the stream's source, with the same transform. It is read where
        messages of the operators are lost with their snapshots and segments. `wr.sources.kafka(...)` is read again by itself.
        """
        if self._reads is not None:
            raise ConfigurationError(
                f"{self._reads!r} is read again by windrow itself: leave replay(...) out"
            )
        self._replay = source
        return self

    def source(self, source: KafkaSource) -> WindowStreamWriter:
        """Set the source to ask about the stream's partitions, `wr.KafkaSource(...)`: a partition with unread records is not
        idle, and progress reports the lag.
        """
        self._source = source
        return self

    def log(self, log: Transport) -> WindowStreamWriter:
        """Set the place of log, segments and changelog: `wr.kafka_log(cluster, name)`; the location is then a cache."""
        self._log = log
        return self

    def start(self) -> WindowQuery:
        """Start the query."""
        location = self._options.get("checkpointLocation", None)
        if location is None:
            raise ConfigurationError(
                'no checkpointLocation: use .option("checkpointLocation", "ckpt/delays")'
            )
        if self._sink is None:
            raise ConfigurationError(
                "no sink: nobody would get the panes. Use .sink(wr.sinks.parquet('out')), or .sink({}) where only the state is "
                "asked for"
            )
        location = local_path(location, "checkpointLocation")
        check_session(SparkSession.active() if self._stream is None else self._stream.sparkSession)
        self._check_schemas()
        if self._reads is not None:
            folder = os.path.join(location, "windrow") if self._log.shares_location else None
            self._stream = ranges_of(self._reads, SparkSession.active(), folder)
        assert self._stream is not None
        spark = self._stream.sparkSession
        shards = self._options.get("shards", None)
        heartbeat = self._options.get("heartbeat", "1 second")
        batch = BatchFunction(
            self._definitions,
            os.path.join(location, "windrow"),
            sink=self._sink,
            dead_letters=self._dead_letters,
            shards=None if shards is None else _shards(shards),
            clock=self._clock,
            local_dir=self._options.get("localDir", None),
            replay=self._replay,
            static=self._static,
            source=self._source,
            reads=self._reads,
            log=self._log,
        )
        batch.resumes = self._reads is not None or routes.resumes_from(self._stream, location)
        stream, batch.of_files = self._with_positions()
        batch.input_schema = stream.schema
        folder, available_now = os.path.join(location, "spark"), "availableNow" in self._trigger
        beats = SparkCheckpoint(folder).with_beats(heartbeat.lower() != "none", available_now)
        if beats:
            stream = with_heartbeat(stream, "1 second" if heartbeat.lower() == "none" else heartbeat)
        retained = int(spark.conf.get(RETAIN) or RETAINED)
        batch.checkpoint = SparkCheckpoint(folder, beats, retained)
        batch.open(spark)
        writer = stream.writeStream.foreachBatch(batch).option("checkpointLocation", folder)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        if self._name is not None:
            writer = writer.queryName(self._name)
        query = WindowQuery(batch, spark, ends_by_itself=available_now, heartbeat=beats)
        try:
            query.begin(start(writer, spark, available_now=available_now))
        except BaseException:
            batch.close()
            raise
        return query

    def _check_schemas(self) -> None:
        """Refuse columns, and types of columns, that the definitions cannot compute with; warn of a source without a limit."""
        schemas: Mapping[str, pa.Schema]
        if self._reads is not None:
            schemas = dict.fromkeys((d.inputs[0].name for d in self._definitions), self._reads.schema)
            warn_of_no_limit(self._reads)
        else:
            assert self._stream is not None
            schemas = inputs_of(self._definitions).schemas(self._stream)
            warn_of_no_limit(self._stream)
        for definition in self._definitions:
            logic, own = definition.logic(), {i.name: schemas[i.name] for i in definition.inputs}
            logic.check_schemas(own)
            logic.schema(own)

    def _with_positions(self) -> tuple[DataFrame, bool]:
        """Return the stream with the positions that the builder can give it; True if they are of files."""
        assert self._stream is not None
        if self._reads is not None or any(d.by_input for d in self._definitions):
            return self._stream, self._of_files
        if all(d.inputs[0].positions is None for d in self._definitions) and not routes.of_kafka(
            self._stream
        ):
            of_files = routes.with_file_positions(self._stream)
            if of_files is not None:
                return of_files, True
        return self._stream, False

    def __repr__(self) -> str:
        return f"<writeStream of {', '.join(repr(d) for d in self._definitions)}>"


def _shards(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"shards={text!r}: use how many, 1 or more; fixed at the first commit"
        ) from None


def with_heartbeat(stream: DataFrame, period: Duration) -> DataFrame:
    """Add a row every period that only advances time and is no message."""
    seconds = max(1, round(duration_us(period, "heartbeat") / 1_000_000))
    spark = stream.sparkSession
    beats = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 1)
        .option("numPartitions", 1)
        .load()
        .where(F.pmod(F.col("value"), F.lit(seconds)) == 0)
        .select(F.lit(True).alias(HEARTBEAT))
    )
    return stream.withColumn(HEARTBEAT, F.lit(None).cast("boolean")).unionByName(
        beats, allowMissingColumns=True
    )
