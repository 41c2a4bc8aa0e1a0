"""Processing-time timers of time windows: periods and delays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.emit import Trigger, by_end, by_time
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.aggregate.base import together
from windrow.operators.aggregate.event_time_timers import StoredWindows
from windrow.operators.aggregate.triggers import Moment, delays
from windrow.operators.steps.columns import EARLY, LATE, PENDING, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult, passed
from windrow.stores.kv import KV

#: Windows are merged this many at a time, which bounds memory.
WINDOWS_AT_ONCE = 64


class Ticking(StoredWindows):
    """The part of an aggregator over time windows that `now` moves."""

    def _waits(self, timing: str, trigger: Trigger) -> bool:
        """True if rows that are not emitted at once are emitted later, even if no message comes."""
        return by_time(trigger) or (timing == EARLY and not self.definition.emit.on_time)

    def _tick(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        moment: Moment,
        watermark_us: int,
        ended: list[int],
    ) -> None:
        """Fire by processing time. Periods tick on one grid of `now` for the whole definition, delays for each (key, window).

        ended: starts of windows that the watermark has passed, and that emitted no pane for that
        """
        emit, emitted, waiting = self.definition.emit, len(result.panes), list[pa.Table]()
        due, looked_at = self.due.passed(kv, moment.now_us), set[int]()
        for timing, trigger in ((EARLY, emit.early), (LATE, emit.late)):
            starts = set(due) if delays(trigger) else set()
            if by_end(trigger):
                starts.update(ended)
            if moment.comes(trigger):
                starts |= progress.dirty
            if moment.insists(trigger):
                starts.update(self._taking(kv, watermark_us))
            if not starts:
                continue
            ordered = np.array(sorted(starts), dtype=np.int64)
            early = self.assigner.ends(ordered) > watermark_us
            for chunk in chunks(ordered[early if timing == EARLY else ~early].tolist()):
                left = self._fire_triggered(kv, progress, result, dead, chunk, timing, trigger, moment)
                looked_at.update(chunk)
                progress.dirty.difference_update(chunk)
                if left is not None:
                    progress.dirty.update(combine(left.column(START)).to_numpy().tolist())
                    waiting.append(left)
        if due - looked_at and not delays(emit.late):
            # A row that was due early, and was emitted when its window ended, is no longer pending.
            rest = np.array(sorted(due - looked_at), dtype=np.int64)
            looked_at.update(rest[self.assigner.ends(rest) <= watermark_us].tolist())
        self.due.note(kv, due & looked_at, waiting, moment.now_us)
        result.panes[emitted:] = together(result.panes[emitted:], self.definition.by)

    def _taking(self, kv: KV, watermark_us: int) -> list[int]:
        """Return the starts of windows that still take messages."""
        return self.store.starts(kv, self._first_open(watermark_us), END_OF_TIME_US)

    def _first_open(self, watermark_us: int) -> int:
        """Return the start of the first window that still takes messages."""
        return self.assigner.first_open(passed(watermark_us, self.definition.allowed_lateness_us))

    def _fire_triggered(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        dead: DeadLetters,
        starts: list[int],
        timing: str,
        trigger: Trigger,
        moment: Moment,
    ) -> pa.Table | None:
        """Fire the rows that the trigger selects; return the rows that stay pending."""
        always = moment.insists(trigger)

        def emit_fired(emitted: StepResult, rows: pa.Table) -> pa.Table:
            fires = self._judged(kv, rows, moment).fires(trigger)
            if always:  # of a closed window only keys with new messages
                takes = combine(rows.column(START)).to_numpy() >= self._first_open(moment.moved[1])
                fires &= takes | (combine(rows.column(PENDING)).to_numpy() > 0)
            if not fires.any():
                return rows
            fired = self._fire(
                kv, progress, emitted, dead, rows.filter(pa.array(fires)), timing, always=always
            )
            return concat([rows.filter(pa.array(~fires)), fired])

        if always:  # it emits whole windows, and leaves no row pending
            self._fire_whole(kv, result, dead, starts, progress.watermark_us, emit_fired)
            return None
        near = self.store.near(kv, starts, None)
        if near.rows is None:
            return None
        rows = self._merge(near.rows, dead, notes=self._notes(True))
        after = emit_fired(result, rows)
        if after is not rows:
            self.store.put(kv, near, after)
        waiting = combine(after.column(PENDING)).to_numpy() > 0
        return after.filter(pa.array(waiting)) if waiting.any() else None


def chunks(starts: list[int]) -> list[list[int]]:
    return [starts[i : i + WINDOWS_AT_ONCE] for i in range(0, len(starts), WINDOWS_AT_ONCE)]
