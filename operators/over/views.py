"""Views of OVER windows: the messages that these may still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.time import END_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.over.explaining import KeptLines
from windrow.operators.over.partitions import ordered
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.step import limit
from windrow.operators.view import (
    MESSAGES,
    WINDOWS,
    Bound,
    Provenance,
    View,
    key_of,
    message_columns,
    messages_table,
    of_key,
    rows_without_prefix,
    selected,
)
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV


class OverView(View):
    """A view of `messages`: unsettled ones, and those that later windows reach back to; by event time, then position."""

    def refuse(self, table: str) -> ConfigurationError:
        had = super().refuse(table)
        if table != WINDOWS:
            return had
        return ConfigurationError(
            f"{had.message}. OVER windows are emitted, each as a row, and not kept: explain() of such a row, or of the "
            "time of a message, says what is in them"
        )

    def messages(self, start: Bound | None, end: Bound | None, key: object, input: str | None) -> list[Slice]:
        self.input(input)
        found = [rows for kv in self.stores if (rows := self._kept(kv)) is not None]
        return self.selected(found, start, end, key, self.prefix)

    def selected(
        self, found: Sequence[pa.Table], start: Bound | None, end: Bound | None, key: object, prefix: str
    ) -> list[Slice]:
        """Return the kept messages of these bounds and this key, in order."""
        wanted = key_of(self.definition.by, key)
        if not found:
            return []
        table = concat(found)
        rows = Slice(table, table.column(TIME).to_numpy())
        some = rows.take(np.flatnonzero(selected(rows, start, end) & of_key(table, wanted)))
        return [rows_without_prefix(some.take(ordered(some.times, some.table)), prefix)]

    def message_schema(self, input: str | None) -> pa.Schema:
        self.input(input)
        known = self.known()
        return message_columns([None if known is None else self.logic.filed(known)])

    def table(
        self,
        table: str,
        start: object = None,
        end: object = None,
        key: object = None,
        input: str | None = None,
    ) -> pa.Table:
        if table != MESSAGES:
            raise self.refuse(table)
        return messages_table(self.messages(start, end, key, input), self.message_schema(input))  # type: ignore[arg-type]

    # -- why --------------------------------------------------------------------------------------------------------

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        """Return the rows of messages of that time."""
        at_us, wanted = instant_us(at, "time"), key_of(self.definition.by, key)
        return [made for kept in self._lines() for made in kept.provenance(kept.of_time(at_us, wanted), None)]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the provenance of rows. rows: rows that it emitted, or some columns of their messages."""
        lines = self._lines()
        return [[made for kept in lines for made in kept.provenance(kept.of_row(row), row)] for row in rows]

    def _lines(self) -> list[KeptLines]:
        """Return the kept messages of each shard, in partitions."""
        found = ((kv, self._kept(kv)) for kv in self.stores)
        return [KeptLines(self, kv, rows) for kv, rows in found if rows is not None]

    def _kept(self, kv: KV) -> pa.Table | None:
        """Return the messages that one shard needs."""
        progress, logic = self.logic.progress(kv), self.logic
        if progress.schema is None:
            return None
        at, floor_us = logic.closed(progress.watermark_us), logic.floor(progress.watermark_us)
        found = [logic.events(kv).read(kv, floor_us, END_OF_TIME_US), self._last(kv, at.settled_us, floor_us)]
        some = [logic.in_types(rows, progress.schema) for rows in found if rows is not None and len(rows)]
        return concat(some) if some else None

    def _last(self, kv: KV, settled_us: int, floor_us: int) -> pa.Table | None:
        """Return the last messages of keys before a time, of keys that can be continued."""
        rows = self.logic.remembered.tails.all(kv)
        if rows is None:
            return None
        times = rows.column(TIME).to_numpy()
        kept = times < floor_us
        if self.definition.ttl_us is not None:
            groups = Groups([rows.column(b) for b in self.definition.by], len(rows))
            newest = np.full(groups.size, times.min(initial=0))
            np.maximum.at(newest, groups.codes, times)
            kept &= newest[groups.codes] >= limit(settled_us, self.definition.ttl_us)
        return rows.filter(pa.array(kept))
