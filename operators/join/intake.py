"""Intake of a join: accepts the messages of a step; the others become dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.message_keys import message_keys
from windrow.core.positions import Partition
from windrow.operators.join.join_state import StoredSides, positions_of
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import RIGHT
from windrow.operators.join.tables import conform
from windrow.operators.steps.arrivals import without_late
from windrow.operators.steps.dead_letters import OUT_OF_RETENTION, DeadLetters
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows, with_positions
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit
from windrow.stores.kv import KV


class TakingSides(StoredSides):
    """The intake of a join, which accepts or rejects each message by itself."""

    def _counted(
        self,
        kv: KV,
        progress: Progress,
        tables: Mapping[str, pa.Table],
        now_us: int,
        sides: list[pa.Schema],
        dead: DeadLetters,
    ) -> tuple[list[Slice], list[Mapping[Partition, int]]]:
        """Return (the countable messages of each side, the times that its partitions reach by rejected ones)."""
        definition = self.definition
        new: list[Slice] = []
        heard: list[Mapping[Partition, int]] = [{}, {}]
        for side, given in enumerate((definition.left, definition.right)):
            again = side == RIGHT and definition.is_self_join
            if given.name in tables:
                table = self.readings[side].in_known_times(tables[given.name], sides[side])
                sides[side] = self.inputs.learn(kv, side, sides[side], table.schema)
                table = with_positions(table, progress.step, given.source_prefix)
                # Messages of a join with itself are judged once.
                letters = DeadLetters(0) if again else dead
                letters.input = given.name
                on_time = partial(self._on_time, side, progress.watermark_us)
                rows, heard[side] = self.readings[side].arrivals(table, now_us, letters, on_time)
                new.append(rows)
            else:
                new.append(Slice(empty_rows(sides[side]), np.zeros(0, dtype=np.int64)))
        return [Slice(conform(s.table, sides[i]), s.times) for i, s in enumerate(new)], heard

    def _on_time(self, side: int, watermark_us: int, rows: Slice, dead: DeadLetters) -> Slice:
        """Drop the messages that the watermark has passed by more than they may wait."""
        if self.readings[side].input.static:
            return rows
        until, detail = (
            self.reach.open_until(side, rows.times),
            f"the watermark of {self.definition.name!r} has passed it",
        )
        lost, kept_us = until <= self.done(watermark_us), self.definition.retention.time_us
        if kept_us is not None:
            gone = lost & (until <= limit(watermark_us, kept_us))
            rows, lost = without_late(rows, gone, dead, detail, OUT_OF_RETENTION), lost[~gone]
        return without_late(rows, lost, dead, detail)

    def _above_floor(self, kv: KV, side: int, rows: Slice, columns: Columns, dead: DeadLetters) -> Slice:
        """Return the messages that are newer than all evicted ones of their group."""
        above = self.sizes.above(kv, side, self._open_keys(rows), self.keys(rows, side, columns))
        dead.input = self.definition.inputs[side].name
        detail = f"{self.definition.retention!r} has newer ones"
        return without_late(rows, ~above, dead, detail, OUT_OF_RETENTION)

    def _open_keys(self, rows: Slice) -> list[bytes]:
        return message_keys(rows.times, *positions_of(rows.table))
