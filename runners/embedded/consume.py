"""Consumer loop without Spark: it reads records and publishes panes until it is stopped.

Without a group one operator reads all partitions. With one, each partition has its own operator, in its own folder.
The folder moves with the partition from process to process. The process that is assigned a partition opens its job,
fences the previous owner, and resumes from the last commit. Windows are then per partition: equal keys have to lie in one.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.connectors.kafka.cluster import ended_at, passes, topic_partition
from windrow.connectors.kafka.offsets import Range, Topic
from windrow.connectors.kafka.reading import Fetched, cluster_of
from windrow.connectors.kafka.skipped_offsets import counted_offsets, unread_of
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core import check
from windrow.core.errors import ConfigurationError, Fenced, OperatorPaused
from windrow.core.logs import get_logger
from windrow.core.positions import Partition, shown_source, topic_source
from windrow.core.time import Duration, duration_us
from windrow.operators.operator import Definition
from windrow.runners.embedded.replay import ReadInputsAgain
from windrow.runners.interrupts import Interrupts

if TYPE_CHECKING:
    from windrow.runners.embedded.operator import Embedded

logger = get_logger()

#: Records of one step, at most.
STEP_RECORDS = 50_000
#: The interval of checks for new or replaced partitions of topics.
LOOK_S = 30.0
#: Options of a group member: partitions that stay with it are read on while others move.
GROUP = {"partition_assignment_strategy": "cooperative-sticky", "session_timeout_ms": 10_000}

Open = Callable[[str], "Embedded"]
Stop = Callable[[], bool]
At = tuple[str, int]
Counted = Callable[[pa.Table], list[int]]


def run(
    open_at: Open,
    location: str,
    sources: Mapping[str, KafkaStream],
    *,
    group: str | None = None,
    stop: Stop | None = None,
    available_now: bool = False,
    tick: Duration = "1 second",
) -> None:
    """Run until `stop()` is true, Ctrl-C or SIGTERM comes, or the available records are read. `open_at` opens the operator at a
    location; sources: by input.

    Raises the errors of operator and source.
    """
    tick_s = duration_us(tick, "tick") / 1_000_000
    if tick_s <= 0:
        raise ConfigurationError(f"tick {tick!r} is no time: give at least '1 millisecond'")
    if group is not None and available_now:
        raise ConfigurationError(
            f"group {group!r} and available_now: what is there is shared with others, so nobody knows when all of it is read"
        )
    if group is not None and len(sources) > 1:
        raise ConfigurationError(
            f"group {group!r} and the inputs {list(sources)}: in a group each partition has an operator of its own, and "
            "messages of several inputs would never meet; run it without a group"
        )
    loop: _Loop = _Alone(sources) if group is None else _Member(sources, group)
    try:
        loop.begin(open_at, location)
        ends = loop.ends() if available_now else None
        with Interrupts(f"the loop at {location}") as interrupts:
            while not (interrupts.asked or (stop is not None and stop())):
                if ends is not None and loop.has_read(ends):
                    break
                loop.turn(tick_s)
            loop.end()
    finally:
        loop.abandon()


def sources_of(
    definition: Definition, source: KafkaStream | Mapping[str, KafkaStream]
) -> dict[str, KafkaStream]:
    """Return the source of each input."""
    names = [i.name for i in definition.inputs]
    streams = source if isinstance(source, Mapping) else dict.fromkeys(names[:1], source)
    for reader in streams.values():
        remedy = "give wr.sources.kafka('localhost:9092', 'topic', value=wr.decoders.json(...))"
        check.of_type(reader, KafkaStream, "source", remedy)
    if set(streams) != set(names):
        raise ConfigurationError(
            f"{definition.name!r} takes the inputs {names}, sources are given for {list(streams)}: give one for each, as "
            "{input: wr.sources.kafka(...)}"
        )
    topics = [topic for stream in streams.values() for topic in stream.topics]
    twice = sorted({topic for topic in topics if topics.count(topic) > 1})
    if twice:
        raise ConfigurationError(
            f"topic {twice[0]!r} is read for several inputs of {definition.name!r}: give them one input, or copy the topic"
        )
    if len({stream.kafka.servers for stream in streams.values()}) > 1:
        raise ConfigurationError(
            f"the sources of {definition.name!r} are of several clusters: read them from one"
        )
    return {i.name: streams[i.name].in_zone(i.time_zone) for i in definition.inputs}


def again_of(sources: Mapping[str, KafkaStream]) -> ReadInputsAgain:
    """Return a function that reads ingested messages again, by input."""
    return lambda asked: {name: sources[name].again(ranges) for name, ranges in asked.items()}


class _Loop(ABC):
    """The operators by the partitions that they read, and the one consumer that reads for all of them."""

    def __init__(self, sources: Mapping[str, KafkaStream], **settings: Any) -> None:
        self.sources = sources
        self.input_of = {topic: name for name, stream in sources.items() for topic in stream.topics}
        kafka = next(iter(sources.values())).kafka
        self.cluster = cluster_of(kafka)
        self.ids: dict[str, str] = {}
        self.held: set[At] = set()  # partitions that are not read at the moment
        self.empty_at: dict[At, int] = {}  # the offset at which a partition last had nothing more
        self.begun: dict[At, int] = {}  # the offset at which reading began
        self.consumer = kafka.consumer(enable_partition_eof=True, **settings)

    @abstractmethod
    def begin(self, open_at: Open, location: str) -> None: ...

    @abstractmethod
    def operator_of(self, at: At) -> Embedded | None:
        """Return the operator of a partition; None where it is no longer assigned."""

    @abstractmethod
    def operators(self) -> list[Embedded]: ...

    @abstractmethod
    def mend(self, error: Any) -> None:
        """Go on after the broker refused an offset or a partition; raise where that cannot be."""

    def _ended(self, at: At, end: int) -> None:
        """Note that a partition has nothing more for now."""
        self.empty_at[at] = end
        op = self.operator_of(at)
        if op is not None:
            op.engine.awaited.discard(self._partition(op, at))

    def _partition(self, op: Embedded, at: At) -> Partition:
        """Return a partition under its name in the operator's log."""
        prefix = op.definition.input(self.input_of[at[0]]).source_prefix
        return prefix + topic_source(at[0], self.ids[at[0]]), at[1]

    def _lag(self, op: Embedded) -> dict[str, dict[str, int]]:
        """Return how many records of an operator's partitions are not read, by what the brokers said last."""
        lag: dict[str, dict[str, int]] = {}
        for at, begun in self.begun.items():
            if self.operator_of(at) is op:
                _, end = self.consumer.get_watermark_offsets(topic_partition(*at), cached=True)
                source, partition = self._partition(op, at)
                behind = end - op.engine.staged.offsets.get((source, partition), begun)
                if end >= 0:  # or nothing was fetched yet
                    lag.setdefault(shown_source(source), {})[str(partition)] = max(0, behind)
        return lag

    def resume_offsets(self, op: Embedded) -> dict[str, Topic]:
        """Return the next offsets of an operator, by topic."""
        return {
            topic: offsets
            for name, stream in self.sources.items()
            for topic, offsets in stream.begin(op.next_offsets(input=name), self.cluster).items()
        }

    def go_on(self, op: Embedded, resume_offsets: Mapping[At, int], least: int = 1) -> dict[At, int]:
        """Skip offsets of these partitions where a delivery policy would skip at least so many, and note them in the operator.
        Returns the offsets to resume from."""
        now_us, skipped = op.engine.now(), dict[At, tuple[int, int]]()
        for name, stream in self.sources.items():
            input = op.definition.input(name)
            unread = unread_of(op.definition, input, stream)
            resumed = {at: offset for at, offset in resume_offsets.items() if self.input_of[at[0]] == name}
            if unread is not None and resumed:
                extents = stream.extents(self.cluster, {})
                backlog = {(t, p): (o, extents[t].stable.get(p, o)) for (t, p), o in resumed.items()}
                counted = partial(counted_offsets, op.definition, input, now_us=now_us)
                offsets = partial(self._offsets, stream, counted)
                skipped |= unread.begins(backlog, now_us, self.cluster, offsets)
        skipped = {
            at: (first, following) for at, (first, following) in skipped.items() if following - first >= least
        }
        if skipped:
            op.engine.pass_over({self._partition(op, at): span for at, span in skipped.items()}, now_us)
        return {at: following for at, (_, following) in skipped.items()}

    def _offsets(
        self, stream: KafkaStream, counted: Counted, at: At, first: int, following: int
    ) -> list[int]:
        """Return the offsets of a partition's records in `[first, following)` that are counted."""
        there = Range(at[0], self.ids[at[0]], at[1], first, following)
        return [offset for rows in stream.read([there]) for offset in counted(rows)]

    def _leap(self) -> None:
        """Skip records that a delivery policy would skip, after a full poll."""
        for op in self.operators():
            offsets = op.engine.staged.offsets
            resume_offsets = {
                at: offsets.get(self._partition(op, at), begun)
                for at, begun in self.begun.items()
                if self.operator_of(at) is op and at not in self.held
            }
            for at, offset in self.go_on(op, resume_offsets, self._most).items():
                self.consumer.seek(topic_partition(*at, offset))

    def ends(self) -> dict[At, int]:
        """Return the end of the readable records, by partition."""
        extents = [stream.extents(self.cluster, {}) for stream in self.sources.values()]
        return {
            (topic, p): end
            for by_topic in extents
            for topic, extent in by_topic.items()
            for p, end in extent.stable.items()
        }

    def has_read(self, ends: Mapping[At, int]) -> bool:
        """True if all partitions are read up to there, and everything is out."""
        read = all(end == 0 or self.empty_at.get(at, 0) >= end for at, end in ends.items())
        return read and not any(op.paused for op in self.operators())

    def turn(self, tick_s: float) -> None:
        """Feed polled records to their operators, let time pass and publish panes."""
        messages = self.consumer.consume(self._most, tick_s)
        for op, tables in self._tables(messages):
            rows = tables if op.definition.by_input else next(iter(tables.values()))
            self._keep(op, partial(op.add_messages, rows))
        for op in self.operators():
            with contextlib.suppress(OperatorPaused):
                self._keep(op, op.timeout)
        self._hold()
        if len(messages) >= self._most:
            self._leap()

    def _tables(self, messages: list[Any]) -> list[tuple[Embedded, dict[str, pa.Table]]]:
        """Return the polled records as tables, by operator and input."""
        by_partition: dict[At, list[Any]] = {}
        refused = None
        for message in messages:
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)
            elif (end := ended_at(message)) is not None:
                self._ended((message.topic(), message.partition()), end)
            elif not passes(message.error()):
                refused = message.error()
        tables: dict[int, tuple[Embedded, dict[str, list[pa.Table]]]] = {}
        for (topic, partition), records in sorted(by_partition.items()):
            op = self.operator_of((topic, partition))
            if op is not None:
                stream = self.sources[self.input_of[topic]]
                fetched = Fetched(stream.attributes)
                fetched.add(records)
                rows = stream.rows(fetched, topic, self.ids[topic], partition)
                tables.setdefault(id(op), (op, {}))[1].setdefault(self.input_of[topic], []).append(rows)
        if refused is not None:
            self.mend(refused)
        return [
            (op, {n: pa.concat_tables(rows, promote_options="permissive") for n, rows in by_input.items()})
            for op, by_input in tables.values()
        ]

    @property
    def _most(self) -> int:
        """Return the number of records read at once."""
        return min(stream.max_offsets or STEP_RECORDS for stream in self.sources.values())

    def _keep(self, op: Embedded, do: Callable[[], object]) -> None:
        do()

    def _hold(self) -> None:
        """Read nothing for an operator whose sink refuses."""
        assigned = {(p.topic, p.partition) for p in self.consumer.assignment()}
        paused = {at for at in assigned if (op := self.operator_of(at)) is not None and op.paused}
        self.consumer.pause([topic_partition(*at) for at in paused - self.held])
        self.consumer.resume([topic_partition(*at) for at in (self.held - paused) & assigned])
        self.held = paused

    def end(self) -> None:
        """Commit everything."""
        for op in self.operators():
            self._keep(op, op.close)

    def abandon(self) -> None:
        """Release everything that is open, as it is."""
        for op in self.operators():
            op.abandon()
        self.consumer.close()


class _Alone(_Loop):
    """One operator, all partitions."""

    def __init__(self, sources: Mapping[str, KafkaStream]) -> None:
        super().__init__(sources)
        self._op: Embedded | None = None
        self._look_at = 0.0

    def begin(self, open_at: Open, location: str) -> None:
        self._op = open_at(location)
        self._op.engine.lag = partial(self._lag, self._op)
        self._assign()

    def _assign(self) -> None:
        """Assign all current partitions, from the operator's next offsets."""
        assert self._op is not None
        begin = self.resume_offsets(self._op)
        self.ids = {name: topic.id for name, topic in begin.items()}
        self.begun = {(name, p): o for name, topic in begin.items() for p, o in topic.next.items()}
        self.begun |= self.go_on(self._op, self.begun)
        self.consumer.assign([topic_partition(t, p, o) for (t, p), o in sorted(self.begun.items())])
        self.held = set()
        # The watermark waits for the first messages of each, however unevenly they come.
        self._op.engine.awaited = {self._partition(self._op, at) for at in self.begun}
        self._look_at = time.monotonic() + LOOK_S

    def turn(self, tick_s: float) -> None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            now = self.cluster.ids(tuple(self.input_of))
            there = {(name, p) for name, (_, partitions) in now.items() for p in partitions}
            if there != set(self.begun) or {n: i for n, (i, _) in now.items()} != self.ids:
                self._assign()
        super().turn(tick_s)

    def operator_of(self, at: At) -> Embedded | None:
        return self._op

    def operators(self) -> list[Embedded]:
        return [] if self._op is None else [self._op]

    def mend(self, error: Any) -> None:
        logger.warning("reading begins again", error=str(error))
        self._assign()


class _Member(_Loop):
    """A member of a group: an operator for each partition that it is assigned."""

    def __init__(self, sources: Mapping[str, KafkaStream], group: str) -> None:
        super().__init__(sources, group_id=group, **GROUP)
        self._ops: dict[At, Embedded] = {}

    def begin(self, open_at: Open, location: str) -> None:
        self._open_at, self._location = open_at, location
        self.ends()  # every topic is there
        self.consumer.subscribe(
            list(self.input_of), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
        )

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        for p in partitions:
            at = (p.topic, p.partition)
            self.held.discard(at)
            op = self._open_at(os.path.join(self._location, f"{p.topic}-{p.partition}"))
            self._ops[at] = op
            op.engine.lag = partial(self._lag, op)
            topic = self.resume_offsets(op)[p.topic]
            self.ids[p.topic] = topic.id
            begin = topic.next[p.partition]
            self.begun[at] = p.offset = self.go_on(op, {at: begin}).get(at, begin)
            logger.info("partition assigned", topic=p.topic, partition=p.partition, offset=p.offset)
        consumer.incremental_assign(partitions)

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        """Commit before another process opens the job."""
        for p in partitions:
            self.begun.pop((p.topic, p.partition), None)
            op = self._ops.pop((p.topic, p.partition), None)
            if op is not None:
                self._keep(op, op.close)
        consumer.incremental_unassign(partitions)

    def _lose(self, consumer: Any, partitions: list[Any]) -> None:
        """Abandon lost partitions: another process has them, and redoes uncommitted steps."""
        for p in partitions:
            self.begun.pop((p.topic, p.partition), None)
            op = self._ops.pop((p.topic, p.partition), None)
            if op is not None:
                op.abandon()
        consumer.incremental_unassign(partitions)

    def _keep(self, op: Embedded, do: Callable[[], object]) -> None:
        try:
            do()
        except Fenced as error:
            logger.warning("another member has taken a partition", error=str(error))
            self._ops = {at: other for at, other in self._ops.items() if other is not op}
            op.abandon()

    def operator_of(self, at: At) -> Embedded | None:
        return self._ops.get(at)

    def operators(self) -> list[Embedded]:
        return list(self._ops.values())

    def mend(self, error: Any) -> None:
        logger.warning("reading begins again", error=str(error))
        for (name, p), op in self._ops.items():
            self.consumer.seek(topic_partition(name, p, self.resume_offsets(op)[name].next[p]))
