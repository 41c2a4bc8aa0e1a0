"""Many steps of one message each, run as few: the result is the same, message by message.

`add_message` is `ingest` of one, then `advance`. Between two advances at which something can happen (a window ends, closes or
expires; a period of `now` is crossed) the ingests of a run can be done as one, each row with the watermark of its own step.
Only definitions that cannot speak inside an ingest run like this: no trigger by count or by batch, no tuple windows, no size
limits, no ids, no code of the user's that may fail for one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.emit import EveryPeriod
from windrow.core.messages import Position
from windrow.core.policy import UNBOUNDED_US
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US
from windrow.operators.steps.columns import MALFORMED_ROW
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import countable
from windrow.operators.steps.runs import Run, Runs
from windrow.operators.steps.step import StepResult, limit, passed
from windrow.operators.steps.watermarks import idle_partitions, watermark_of, watermark_us
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.aggregate.logic import WindowAggregator


class WindowRuns(Runs):
    """Of an aggregate over time windows."""

    def __init__(
        self,
        operator: WindowAggregator,
        largest_us: Mapping[Partition, int],
        seen_us: Mapping[Partition, int],
        watermark: int,
        now_us: int | None,
    ) -> None:
        self._operator = operator
        self.definition = operator.definition
        self._prefix = operator.definition.prefix(operator.definition.inputs[0])
        self._assigner = operator.assigner
        #: A run is taken in position order, which must then be the order of arrival.
        self._by_arrival = any(a.kind == "any_value" for a in self.definition.agg.values())
        self.largest_us, self.seen_us = dict(largest_us), dict(seen_us)
        self.watermark_us = watermark
        self._now_us = now_us
        self._next_event_us = self._horizon(watermark)
        self._open_from_us = self._assigner.first_open(passed(watermark, self.definition.allowed_lateness_us))

    def take(self, kv: KV, table: pa.Table, run: Run) -> StepResult:
        watermarks, nows = (np.array(us, dtype=np.int64) for us in (run.watermarks_us, run.nows_us))
        return self._operator.take(kv, table, run.nows_us[0], watermarks, nows)

    def cut(self, table: pa.Table, positions: Sequence[Position], nows_us: Sequence[int]) -> Iterator[Run]:
        run = Run(0)
        for i, (time_us, position, now_us) in enumerate(
            zip(self._times(table, nows_us), positions, nows_us, strict=True)
        ):
            if self._by_arrival and run.positions and position < run.positions[-1]:
                yield run
                run = Run(i)
            run.positions.append(position)
            run.watermarks_us.append(self.watermark_us)
            run.nows_us.append(now_us)
            acts = self._take(time_us, position, now_us)
            run.after_us.append(self.watermark_us)
            if acts:
                yield run
                run = Run(i + 1)
        if run.positions:
            yield run

    def _times(self, table: pa.Table, nows_us: Sequence[int]) -> list[int | None]:
        """The event time of each row; None of what cannot be counted, and says nothing about time."""
        definition = self.definition
        times = combine(table.column(definition.event_time)).cast(pa.int64())
        counts = countable(times, np.array(nows_us, dtype=np.int64), definition.max_ahead_us)
        if MALFORMED_ROW in table.column_names:
            counts = pc.and_(counts, table.column(MALFORMED_ROW).is_null())
        if definition.null_keys == "dead_letter":
            for name in definition.by:
                counts = pc.and_(counts, combine(table.column(name)).is_valid())
        return pc.if_else(counts, times, pa.scalar(None, pa.int64())).to_pylist()  # type: ignore[no-any-return]

    def _take(self, time_us: int | None, position: Position, now_us: int) -> bool:
        """Move the watermark past one message; True if the advance after it may fire, close or expire something."""
        definition = self.definition
        if time_us is not None and time_us >= self._open_from_us:
            partition = (position.source, position.partition)
            known = self.largest_us.get(partition)
            self.largest_us[partition] = time_us if known is None else max(time_us, known)
            self.seen_us[partition] = now_us
        ticks = self._ticks(now_us)
        self._now_us = now_us
        self.watermark_us = self._watermark(now_us)
        if self.watermark_us < self._next_event_us:
            return ticks
        self._next_event_us = self._horizon(self.watermark_us)
        self._open_from_us = self._assigner.first_open(
            passed(self.watermark_us, definition.allowed_lateness_us)
        )
        return True

    def _watermark(self, now_us: int) -> int:
        if self._prefix:
            return watermark_of(self.definition, self.largest_us, self.seen_us, now_us, self.watermark_us)[0]
        watermark = self.definition.watermark  # the same without a look at inputs, for each message
        idle = idle_partitions(watermark, self.seen_us, now_us)
        return watermark_us(watermark, self.largest_us, now_us, self.watermark_us, idle)

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
