"""The messages of a step that a join takes; the others are dead letters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from windrow.core.message_keys import message_keys
from windrow.core.positions import Partition
from windrow.operators.join.join_state import StoredSides, positions_of
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import RIGHT
from windrow.operators.join.tables import conform
from windrow.operators.steps.dead_letters import OUT_OF_RETENTION, TOO_LATE, DeadLetters
from windrow.operators.steps.input_filter import divided
from windrow.operators.steps.intake import Slice, event_time_marks, in_known_times, take_in
from windrow.operators.steps.message_rows import empty_rows, with_positions
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import limit
from windrow.stores.kv import KV


class TakingSides(StoredSides):
    """Judges messages, each by itself."""

    def _given(
        self,
        kv: KV,
        progress: Progress,
        tables: Mapping[str, pa.Table],
        now_us: int,
        sides: list[pa.Schema],
        dead: DeadLetters,
    ) -> tuple[list[Slice], list[Mapping[Partition, int]]]:
        """(the messages of each side that count, how far its partitions have come by those that do not pass its filter)."""
        definition = self.definition
        new: list[Slice] = []
        heard: list[Mapping[Partition, int]] = [{}, {}]
        for side, given in enumerate((definition.left, definition.right)):
            again = side == RIGHT and definition.is_self_join
            if given.name in tables:
                times = sides[side].field(given.event_time).type
                table = in_known_times(
                    tables[given.name], given.event_time, given.time_zone, times, given.event_time_unit
                )
                sides[side] = self.inputs.learn(kv, side, sides[side], table.schema)
                table = with_positions(table, progress.step, given.source_prefix)
                # Messages of a join with itself are judged once.
                letters = DeadLetters(0) if again else dead
                letters.input = given.name
                rows, heard[side] = self._take(side, table, now_us, progress.watermark_us, letters)
                new.append(rows)
            else:
                new.append(Slice(empty_rows(sides[side]), np.zeros(0, dtype=np.int64)))
        return [Slice(conform(s.table, sides[i]), s.times) for i, s in enumerate(new)], heard

    def _take(
        self, side: int, table: pa.Table, now_us: int, watermark_us: int, dead: DeadLetters
    ) -> tuple[Slice, Mapping[Partition, int]]:
        """(the messages that count, how far partitions have come by those that do not pass the filter, which move the watermark
        as if they had). The others are dead letters."""
        where, heard = (self.definition.left, self.definition.right)[side].where, dict[Partition, int]()
        if where is not None:
            table, others = divided(where, table)
            silent = take_in(self.intakes[side], others, now_us, dead)
            heard = dict(event_time_marks(self._on_time(side, silent, watermark_us, DeadLetters(0))))
        return self._on_time(
            side, take_in(self.intakes[side], table, now_us, dead), watermark_us, dead
        ), heard

    def _on_time(self, side: int, rows: Slice, watermark_us: int, dead: DeadLetters) -> Slice:
        """The messages that the watermark has not passed by more than they may wait."""
        if (self.definition.left, self.definition.right)[side].static:
            return rows
        until = self.reach.open_until(side, rows.times)
        lost = until <= self.done(watermark_us)
        if lost.any():
            kept_us = self.definition.retention.time_us
            gone = (
                lost & (until <= limit(watermark_us, kept_us)) if kept_us is not None else np.zeros_like(lost)
            )
            times = pa.array(rows.times)
            detail = f"the watermark of {self.definition.name!r} has passed it"
            dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(gone), times)
            dead.add_rows(TOO_LATE, detail, rows.table, np.flatnonzero(lost & ~gone), times)
            rows = rows.take(np.flatnonzero(~lost))
        return rows

    def _above_floor(self, kv: KV, side: int, rows: Slice, columns: Columns, dead: DeadLetters) -> Slice:
        """The messages that are newer than all that went of their group because there were too many."""
        above = self.sizes.above(kv, side, self._open_keys(rows), self.keys(rows, side, columns))
        if above.all():
            return rows
        dead.input = self.definition.inputs[side].name
        detail = f"{self.definition.retention!r} has newer ones"
        dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(~above), pa.array(rows.times))
        return rows.take(np.flatnonzero(above))

    def _open_keys(self, rows: Slice) -> list[bytes]:
        return message_keys(rows.times, *positions_of(rows.table))
