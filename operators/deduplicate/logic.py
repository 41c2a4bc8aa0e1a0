"""Deduplication: two pure steps on a store. The state of a forwarded message is its ids and event time.

A message is a duplicate if one of its key and ids was forwarded that is at most `within` earlier or later in event time. It
is too late once the watermark is more than `within` past it. An id twice as old decides nothing any more, and expires.
"""

from __future__ import annotations

import pyarrow as pa

from windrow.operators.deduplicate.definition import DeduplicateDefinition
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.steps.columns import EARLY, LATE, TIMING
from windrow.operators.steps.ids import SeenIds
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import passed


class Deduplicator(OneInputLogic):
    """The operator of one definition on one store. It is stateless: everything is in the store that it receives."""

    definition: DeduplicateDefinition

    def __init__(self, definition: DeduplicateDefinition) -> None:
        super().__init__(definition)
        within_us = definition.within_us
        self.seen = SeenIds(definition, self.aux_cf, None if within_us is None else 2 * within_us, within_us)

    def cfs(self) -> tuple[str, ...]:
        return (self.aux_cf, self.seen.cf)

    def accept(self, work: Work, rows: Slice) -> Slice:
        came, reached_us = rows, work.progress.watermark_us
        fresh = self.seen.first_seen(work.kv, rows, self._floor(reached_us))
        if len(fresh) < len(rows):
            work.result.counts["duplicates"] = len(rows) - len(fresh)
            rows = rows.take(fresh)
        if len(rows):
            timing = [LATE if late else EARLY for late in (rows.times < reached_us).tolist()]
            emitted = rows.table.select(work.schema.names).append_column(
                TIMING, pa.array(timing, pa.string())
            )
            work.result.panes.append(emitted)
        return came

    def pass_time(self, work: Work, watermark_us: int) -> None:
        self.seen.forget(work.kv, self._floor(watermark_us))

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        return list(schema)

    def _floor(self, watermark_us: int) -> int:
        """Return the event time below which ids expire: every message that they could make a duplicate is too late."""
        return passed(watermark_us, 2 * self.definition.late_us)
