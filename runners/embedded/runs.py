"""Many steps of one message each, run as few: the result is the same, message by message.

`add_message` is `ingest` of one, then `advance`. Between two advances at which something can happen (a window ends, closes or
expires; a period of `now` is crossed) the ingests of a run can be done as one, each row with the watermark of its own step.
Only definitions that cannot speak inside an ingest run like this: no trigger by count or by batch, no tuple windows, no size
limits, no ids, no code of the user's that may fail for one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import numpy as np

from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import Mark
from windrow.core.definition import UNBOUNDED_US, AggregateDefinition
from windrow.core.emit import EveryPeriod, Never
from windrow.core.messages import Message, Position
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Hopping
from windrow.operators.aggregate import WindowAggregator
from windrow.operators.intake import FIRST_US, last_times
from windrow.operators.step import limit
from windrow.operators.watermarks import idle_partitions, watermark_us
from windrow.runners.rows import event_time_us


def runs(definition: AggregateDefinition) -> bool:
    """True if steps of one message may be run together."""
    emit, retention = definition.emit, definition.retention
    gaps = isinstance(definition.window, Hopping) and definition.window.hop_us > definition.window.size_us
    return (
        not definition.tuple_window
        and not gaps
        and isinstance(emit.early, (Never, EveryPeriod))
        and isinstance(emit.late, (Never, EveryPeriod))
        and definition.ids is None  # what is a duplicate must not move the watermark
        and retention.windows is None
        and retention.messages is None
        and all(a.kind != "user" for a in definition.agg.values())
    )


@dataclass
class Run:
    """Messages whose ingests are one; `watermarks_us` has the watermark of each one's step, `after_us` that of the end."""

    messages: list[Message] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    watermarks_us: list[int] = field(default_factory=list)
    after_us: list[int] = field(default_factory=list)
    nows_us: list[int] = field(default_factory=list)


class Runner:
    """Cuts a sequence of messages into runs, keeping the watermark as single steps would."""

    def __init__(
        self, operator: WindowAggregator, marks: dict[Partition, Mark], watermark: int, now_us: int | None
    ) -> None:
        self.definition = operator.definition
        self._assigner = operator.assigner
        #: A run is taken in position order, which must then be the order of arrival.
        self._by_arrival = any(a.kind == "any_value" for a in self.definition.agg.values())
        self._zone = None if self.definition.time_zone is None else ZoneInfo(self.definition.time_zone)
        self.marks = dict(marks)
        self.watermark_us = watermark
        self._now_us = now_us
        self._next_event_us = self._horizon(watermark)
        self._open_from_us = self._assigner.first_open(limit(watermark, self.definition.allowed_lateness_us))

    def cut(self, fed: Sequence[tuple[Message, Position, int]]) -> Iterator[Run]:
        """Runs of (message, position, now), in order. A run ends where its last advance may do something."""
        run = Run()
        for message, position, now_us in fed:
            if self._by_arrival and run.positions and position < run.positions[-1]:
                yield run
                run = Run()
            run.messages.append(message)
            run.positions.append(position)
            run.watermarks_us.append(self.watermark_us)
            run.nows_us.append(now_us)
            acts = self._take(message, position, now_us)
            run.after_us.append(self.watermark_us)
            if acts:
                yield run
                run = Run()
        if run.messages:
            yield run

    def _take(self, message: Message, position: Position, now_us: int) -> bool:
        """Move the watermark past one message; True if the advance after it may fire, close or expire something."""
        definition = self.definition
        time_us, problem = event_time_us(message.payload.get(definition.event_time), self._zone)
        last_us = last_times(definition.max_ahead_us, now_us)
        counts = problem is None and time_us is not None and FIRST_US <= time_us <= last_us
        if counts and definition.null_keys == "dead_letter":
            counts = all(message.payload.get(b) is not None for b in definition.by)
        if counts and time_us is not None and time_us >= self._open_from_us:
            partition = (position.source, position.partition)
            known = self.marks.get(partition)
            highest = (
                time_us if known is None or known.max_time_us is None else max(time_us, known.max_time_us)
            )
            self.marks[partition] = Mark(max_time_us=highest, seen_us=now_us)
        ticks = self._ticks(now_us)
        self._now_us = now_us
        seen = {p: m.seen_us for p, m in self.marks.items() if m.seen_us is not None}
        largest = {p: m.max_time_us for p, m in self.marks.items() if m.max_time_us is not None}
        idle = idle_partitions(definition.watermark, seen, now_us)
        self.watermark_us = watermark_us(definition.watermark, largest, now_us, self.watermark_us, idle)
        if self.watermark_us < self._next_event_us:
            return ticks
        self._next_event_us = self._horizon(self.watermark_us)
        self._open_from_us = self._assigner.first_open(
            limit(self.watermark_us, definition.allowed_lateness_us)
        )
        return True

    def _ticks(self, now_us: int) -> bool:
        before = now_us if self._now_us is None else self._now_us
        emit = self.definition.emit
        return any(
            isinstance(t, EveryPeriod) and now_us // t.period_us > before // t.period_us
            for t in (emit.early, emit.late)
        )

    def _horizon(self, watermark: int) -> int:
        """The first watermark at which a window ends, closes or expires."""
        definition = self.definition
        horizon = END_OF_TIME_US
        for reach_us in (0, definition.allowed_lateness_us, definition.retention.time_us):
            if reach_us is None or reach_us >= UNBOUNDED_US:
                continue
            start = self._assigner.first_open(limit(watermark, reach_us))
            end = int(self._assigner.ends(np.array([start], dtype=np.int64))[0])
            horizon = min(horizon, end + reach_us)
        return horizon
