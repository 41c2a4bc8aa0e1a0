"""The facade: a definition with the verbs that open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from windrow.checkpoint.transport import FILES, Transport
from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.clock import Clock
from windrow.core.deliver import Policy
from windrow.core.emit import Emit
from windrow.core.expressions import Expression
from windrow.core.inputs import Expiry, make_input, make_interval, make_table
from windrow.core.inputs import Input as JoinInput
from windrow.core.policy import (
    Forever,
    Retention,
    Watermark,
)
from windrow.core.positions import Ids, Positions
from windrow.core.time import Duration, TimeUnit
from windrow.core.windows import JoinWindowSpec, Session, WindowSpec
from windrow.operators.aggregate.definition import AggregateDefinition, NullKeys
from windrow.operators.aggregate.validation import normalise
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.cogroup.definition import CoGroupDefinition
from windrow.operators.deduplicate.definition import DeduplicateDefinition
from windrow.operators.delivery.definition import DeliveryDefinition
from windrow.operators.graph.parallel import several
from windrow.operators.join.definition import How, JoinDefinition, Where
from windrow.operators.join.validation import normalise_join
from windrow.operators.join_window.definition import JoinWindowDefinition
from windrow.operators.operator import Definition
from windrow.operators.over.definition import OverDefinition
from windrow.operators.process.definition import ProcessDefinition
from windrow.operators.rules.definition import RulesDefinition
from windrow.operators.steps.input_filter import filter_of
from windrow.runners.facade import Verbs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.connectors.kafka.source import KafkaSource
    from windrow.connectors.kafka.stream import KafkaStream
    from windrow.runners.embedded import Embedded
    from windrow.runners.embedded.intake import Schemas
    from windrow.runners.embedded.replay import Again
    from windrow.runners.spark.batch import BatchFunction
    from windrow.runners.spark.stream import WindowStreamWriter


class Aggregate(AggregateDefinition, Verbs):
    """A windowed aggregate: its windows, keys and aggregations, when it emits, and how long it keeps state.

    A frozen value: compare it, print it, pickle it. The same definition runs embedded (`open`, `run`), on Spark
    (`foreach_batch`, `writeStream`) and on a bounded DataFrame (`apply`).

    by: key columns (one name or several); {name: expression} computes key columns from others; () for no key
    event_time: the column of event time: timestamps, text in ISO 8601, ints since the epoch; or an expression that gives them
    window: wr.tumbling, wr.hopping, wr.calendar, wr.session, wr.tuples or wr.global_window
    agg: name -> aggregation, e.g. {"n": wr.count(), "delay": wr.avg("dep_delay")}
    retention: a window is kept until the watermark is this far past its end ("7 days"); wr.Retain(...) by size too, or
        wr.forever. Required, except with wr.Emit.append() and wr.Emit.update(), where it is "0 seconds"
    watermark: a delay ("2 hours"), or wr.bounded, wr.fixed, wr.explicit, wr.custom; default "0 seconds"
    allowed_lateness: a window accepts messages until the watermark is this far past its end; default: its retention
    emit: wr.Emit(early=..., late=..., mode=...), wr.Emit.append(), wr.Emit.update() or wr.Emit.final()
    name: the operator's name, unique in its job
    null_keys: "group" (null is a key of its own, as in SQL) or "dead_letter"
    time_zone: the zone of event times that have none
    event_time_unit: the unit of integer event times: "s", "ms", "us" (the default) or "ns" since the epoch
    max_ahead: a message dated further ahead of now than this is a dead letter; default "1 day" where messages move the
        watermark, as under wr.bounded; wr.forever for no limit
    scale: "small" or "large", the layout of stored messages; by default decided from the window
    integer_overflow: "dead_letter" or "decimal", for integer sums beyond int64
    positions: wr.positions(...), the columns of a row's position in its source
    ids: the columns that identify a message, one name or several: a later message with the same id is a duplicate and not
        counted, within retention
    dead_letter_limit: how many dead letters of one batch are kept whole (all are counted)
    dead_letter_retention: how long dead letters are kept in processing time, whether or not a sink received them; default
        "7 days", at most 4,096 files of them
    input: the name of its input; in a graph, the name of an operator. Default: an unnamed input; in a chain, the operator
        before it
    where: a filter of the input, e.g. `wr.col("kind") == "sale"`. A message that does not pass is not counted, neither as a
        dead letter nor as a duplicate; its time still advances the watermark
    deliver: which messages of a batch to process when the job falls behind: wr.deliver.latest(), newest(1000), within("2 s") or
        throttle("1 s"). The others are skipped: counted, and they advance the watermark only. With .marked(), wr.skipped()
        counts them in each window. wr.deliver.synchronous() processes all

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import windrow as wr
    >>> delays = wr.Aggregate(
    ...     by="carrier", event_time="departure", window=wr.tumbling("1 hour"), retention="7 days",
    ...     agg={"flights": wr.count(), "delay": wr.avg("delay")},
    ... )
    >>> delays.full_state
    False
    """

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] | Mapping[str, str | Expression] = (),
        event_time: str | Expression,
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
        ids: Ids | str | Sequence[str] | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
        deliver: Policy | None = None,
    ) -> None:
        self._set(**normalise(**check.arguments(locals())))


@check.suggests
def open(
    definitions: Sequence[Definition],
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
    """Open several operators on one folder, in this process: all take each message, in one step, and in one commit.

    definitions: operators, each with a name of its own. They take one input, with one event time and one watermark; or inputs
        that have names (`wr.Join`, `wr.Aggregate(input=...)`)
    sink: as in `Aggregate.open`, or a dict by operator name
    location, clock, schema, replay, dead_letters, log, store, recompute: as there

    Queries name the `operator`; `get_result()` gives the results of one after those of the other. Raises
    `ConfigurationError` (WR100) where an operator does not say which of several inputs it takes.

    >>> import tempfile, windrow as wr
    >>> what = dict(event_time="t", agg={"n": wr.count()}, retention="1 day")
    >>> hours = wr.Aggregate(name="hours", window=wr.tumbling("1 hour"), **what)
    >>> days = wr.Aggregate(name="days", window=wr.tumbling("1 day"), **what)
    >>> with tempfile.TemporaryDirectory() as folder, wr.open([hours, days], folder) as op:
    ...     for hour in ("05", "06"):
    ...         op.add_message({"t": f"2013-07-01 {hour}:10Z"})
    ...     op.drain()
    ...     [pane["n"] for pane in op.get_result("hours")], [pane["n"] for pane in op.get_result("days")]
    ([1, 1], [2])
    """
    from windrow.operators.graph.parallel import in_parallel
    from windrow.runners.embedded import Embedded

    return Embedded(
        in_parallel(_opened(definitions, recompute)),
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
def foreach_batch(
    definitions: Sequence[Definition],
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
    """Return one function for several operators, one commit for all.

    definitions: operators, each with a name of its own; where their inputs have names, its batches come from `wr.together`
    location: as in `Aggregate.foreach_batch`
    sink: as there, or a dict by operator name
    dead_letters, shards, clock, local_dir, static, replay, source, log, recompute: as there

    Raises `ConfigurationError` (WR100) where an operator does not say which of several inputs it takes.

    >>> import windrow as wr
    >>> what = dict(event_time="t", agg={"n": wr.count()}, retention="1 day")
    >>> hours = wr.Aggregate(name="hours", window=wr.tumbling("1 hour"), **what)
    >>> days = wr.Aggregate(name="days", window=wr.tumbling("1 day"), **what)
    >>> function = wr.foreach_batch([hours, days], "ckpt/both", sink=wr.sinks.memory())

    `stream.writeStream.foreachBatch(function).option("checkpointLocation", "ckpt/spark").start()` runs both.
    """
    from windrow.runners.spark.batch import BatchFunction

    return BatchFunction(
        _opened(definitions, recompute),
        location,
        sink=sink,
        dead_letters=dead_letters,
        shards=shards,
        clock=clock,
        local_dir=local_dir,
        static=static,
        replay=replay,
        source=source,
        log=log,
    )


def writeStream(
    definitions: Sequence[Definition],
    stream: DataFrame | KafkaStream | None = None,
    *,
    recompute: bool = False,
    **frames: DataFrame,
) -> WindowStreamWriter:
    """Return the builder for several operators, one commit for all.

    definitions: operators, each with a name of its own
    stream: as in `Aggregate.writeStream`, where they share one input
    recompute: as in `Aggregate.open`
    frames: else a streaming DataFrame by the name of each input

    Raises `ConfigurationError` (WR100) where an operator does not say which of several inputs it takes.

    `wr.writeStream([hours, days], stream).sink(...).option("checkpointLocation", "ckpt/both").start()` runs both.
    """
    from windrow.runners.spark.stream import WindowStreamWriter

    return WindowStreamWriter(_opened(definitions, recompute), stream, frames)


def _opened(definitions: Sequence[Definition], recompute: bool) -> list[Definition]:
    """Return the definitions with which a job is opened."""
    again, listed = check.flag(recompute, "recompute"), several(definitions)
    return [definition.recomputing() for definition in listed] if again else listed


def together(definitions: Sequence[Definition], **frames: DataFrame) -> DataFrame:
    """Return the inputs of several operators as the one stream that `wr.foreach_batch` takes.

    definitions: operators, each with a name of its own, whose inputs have names (`wr.Join`, `wr.Aggregate(input=...)`)
    frames: a streaming DataFrame by the name of each input

    `stream = wr.together([pairs, totals], orders=orders, payments=payments)`, and then
    `stream.writeStream.foreachBatch(wr.foreach_batch([pairs, totals], "ckpt/both"))`.
    """
    from windrow.runners.spark.inputs import together

    return together(several(definitions), frames)[0]


class Deduplicate(DeduplicateDefinition, Verbs): ...


class Delivery(DeliveryDefinition, Verbs): ...


class Process(ProcessDefinition, Verbs): ...


class Over(OverDefinition, Verbs): ...


class Alert(AlertDefinition, Verbs): ...


class JoinWindow(JoinWindowDefinition, Verbs): ...


class Rules(RulesDefinition, Verbs): ...


class CoGroup(CoGroupDefinition, Verbs): ...


class Join(JoinDefinition, Verbs):
    """A join of two inputs: its keys, event times and pairs of rows, and how long it keeps messages.

    A frozen value: compare it, print it, pickle it. It runs as `wr.Aggregate` does; messages name their input.

    left, right: wr.Input(...); one input twice joins a stream with itself
    on: key columns: a name, several, or {left name: right name}; () for none (a theta join)
    window: wr.session("10 minutes"): messages of both inputs make sessions together, and meet all others of theirs
    within: (low, high) bounds of the right event time less the left one, e.g. ("0 seconds", "2 minutes")
    closed: which of these bounds count: "both", "left", "right", "neither"
    how: "inner", "left", "right", "full", "semi", "anti", or "asof" (the latest right message at or before)
    where: a condition on pairs: an expression such as wr.col("value") > wr.col("cost"), or wr.pairs(function, name=...)
    retention: how long messages are kept; by default as long as windows and `within` reach. wr.Retain("1 day", messages=1000)
        keeps no more than so many of each input, of each key or, with per="job", in all; a session is evicted whole, of these
        also windows=100
    allowed_lateness: how long past the watermark a message is accepted; default: the retention
    emit: wr.Emit(early=..., late=...), each wr.every_batch (default: at once) or a period
    name: the operator's name, unique in its job
    scale: "small" or "large", the layout of stored messages; by default decided from the windows
    dead_letter_limit: how many dead letters of one step are kept whole (all are counted)
    dead_letter_retention: how long they are kept in processing time, delivered to a sink or not; default "7 days", at most
        4,096 files

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import windrow as wr
    >>> shipped = wr.Join(
    ...     left=wr.Input("orders", event_time="t"), right=wr.Input("shipments", event_time="t"),
    ...     on="id", within=("0 seconds", "2 hours"), how="left",
    ... )
    >>> shipped.name
    'join'
    """

    @check.suggests
    def __init__(
        self,
        *,
        left: JoinInput,
        right: JoinInput,
        on: str | Sequence[str] | Mapping[str, str] = (),
        window: Session | None = None,
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
        options = check.arguments(locals())
        self._set(**normalise_join(**options))
        shown = {"on": on if isinstance(on, (str, Mapping)) else tuple(on), "where": self.where}
        self._set(written=self._written({**options, **shown, "scale": self.scale}))


@check.suggests
def Input(
    name: str,
    *,
    event_time: str | None,
    window: JoinWindowSpec | None = None,
    watermark: Duration | Watermark = "0 seconds",
    time_zone: str | None = None,
    max_ahead: Duration | Forever | None = None,
    positions: Positions | None = None,
    static: bool = False,
    event_time_unit: TimeUnit | None = None,
    where: pc.Expression | None = None,
    by: str | Sequence[str] | None = None,
    deliver: Policy | None = None,
    duration: str | None = None,
    duration_unit: TimeUnit | None = None,
    start: str | None = None,
    end: str | None = None,
    longest: Duration | None = None,
    expires: Duration | Expiry | Forever | None = None,
) -> JoinInput:
    """Declare one input of an operator that has several: its event time; of a join, the window of it that the other side sees.

    name: the input's name, unique in its operator
    event_time: the column of event time; of wr.Rules None stamps with `now` of the commit
    window: of a join: wr.sliding, wr.unbounded, wr.tumbling, wr.hopping, wr.rows, or wr.session for sessions of its messages
    watermark, time_zone, event_time_unit, max_ahead, positions: as for `wr.Aggregate`
    static: of a join, a table that changes slowly (weather, prices): none of its messages is late, it holds no watermark back
    where: a filter of the input, e.g. `wr.col("kind") == "sale"`, as for `wr.Aggregate`: a message that does not pass advances
        the watermark, finds no partner and is not emitted
    by: its key columns, in the order of those of the operator, if their names differ; of wr.CoGroup and wr.Rules
    deliver: the messages of a step that are processed, e.g. wr.deliver.latest(): as for `wr.Aggregate`
    duration, duration_unit, end, start: of wr.Rules, the other end of an event: the column of how long it lasts (a duration,
        or a number of "s", "ms", "us" or "ns"), in which it ends, or in which it started where `event_time` is its end
    longest, expires: of wr.Rules: a longer event is a dead letter; how long past their end events are kept, in place of what
        rules need: a duration, wr.at_least("1 hour"), wr.otherwise("1 hour"), wr.forever

    Raises `BadWindow` (WR105), `ConfigurationError` (WR100).

    >>> import windrow as wr
    >>> wr.Input("quotes", event_time="t", window=wr.sliding("5 minutes"))
    wr.Input('quotes', event_time='t', window=wr.sliding('5 minutes'))
    """
    options = check.arguments(locals())
    ends = {
        option: options.pop(option) for option in ("duration", "duration_unit", "start", "end", "longest")
    }
    return make_input(**{**options, "where": filter_of(where), "interval": make_interval(name, **ends)})


@check.suggests
def Table(
    name: str,
    *,
    key: str | Sequence[str] | None = None,
    deleted: str | None = None,
    event_time: str | None = None,
    by: str | Sequence[str] | None = None,
    time_zone: str | None = None,
    event_time_unit: TimeUnit | None = None,
    positions: Positions | None = None,
    where: pc.Expression | None = None,
) -> JoinInput:
    """Declare facts of `wr.Rules`: rows that are current until another message replaces or deletes them.

    name: the table's name, unique among the inputs
    key: the columns of which a message replaces the row; without key each message is a row
    deleted: the column that is true where a message deletes the row of its key
    event_time: the column of a time that temporal operators may compare; no row is late by it, and none holds the watermark
        back
    by: its partition columns if their names differ from those of the rules; () for rows that belong to every partition: each
        shard keeps a copy
    time_zone, event_time_unit, positions, where: as for `wr.Input`

    Raises `ConfigurationError` (WR100).

    >>> import windrow as wr
    >>> wr.Table("accounts", key="accountId", deleted="closed")
    wr.Table('accounts', key=('accountId',), deleted='closed')
    """
    return make_table(**{**check.arguments(locals()), "where": filter_of(where)})
