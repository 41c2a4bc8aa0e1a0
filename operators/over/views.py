"""Views of OVER windows: the messages that these may still hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.frames import RangeBetween
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.over.logic import Overs
from windrow.operators.over.partitions import Lines, ordered
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.step import limit
from windrow.operators.view import (
    WINDOWS,
    Provenance,
    Query,
    View,
    key_of,
    message_columns,
    of_key,
    rows_without_prefix,
    stored,
)
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV


class OverView(View):
    """A view of `messages`: unsettled ones, and those that later windows reach back to; by event time, then position."""

    logic: Overs

    def refuse(self, table: str) -> ConfigurationError:
        had = super().refuse(table)
        if table != WINDOWS:
            return had
        return ConfigurationError(
            f"{had.message}. OVER windows are emitted, each as a row, and not kept: explain() of such a row, or of the "
            "time of a message, says what is in them"
        )

    def messages(self, query: Query) -> list[Slice]:
        self.input(query.input)
        tables = [rows for kv in self.stores if (rows := self._kept(kv)) is not None]
        return self.selected(tables, query, self.prefix)

    def selected(self, found: Sequence[pa.Table], query: Query, prefix: str) -> list[Slice]:
        """Return the kept messages that a query means, in order."""
        if not found:
            return []
        table = concat(found)
        rows = Slice(table, table.column(TIME).to_numpy())
        chosen = rows.take(np.flatnonzero(query.selects(rows, self.definition.by)))
        return [rows_without_prefix(chosen.take(ordered(chosen.times, chosen.table)), prefix)]

    def message_schema(self, input: str | None) -> pa.Schema:
        self.input(input)
        known = self.known()
        return message_columns([None if known is None else self.logic.filed(known)])

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
        kept = ((kv, self._kept(kv)) for kv in self.stores)
        return [KeptLines(self, kv, rows) for kv, rows in kept if rows is not None]

    def _kept(self, kv: KV) -> pa.Table | None:
        """Return the messages that one shard needs."""
        progress, logic = self.logic.progress(kv), self.logic
        if progress.schema is None:
            return None
        at, floor_us = logic.closed(progress.watermark_us), logic.floor(progress.watermark_us)
        parts = [logic.events(kv).read(kv, floor_us, END_OF_TIME_US), self._last(kv, at.settled_us, floor_us)]
        tables = [logic.in_types(rows, progress.schema) for rows in parts if rows is not None and len(rows)]
        return concat(tables) if tables else None

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


class KeptLines:
    """The messages that one shard keeps, in partitions."""

    def __init__(self, view: OverView, kv: KV, rows: pa.Table) -> None:
        self._view, self._definition, self._rows = view, view.definition, rows
        self._floor_us = view.logic.floor(view.logic.progress(kv).watermark_us)
        groups = Groups([rows.column(b) for b in self._definition.by], len(rows))
        times = rows.column(TIME).to_numpy()
        self._lines = Lines(rows, groups.codes, groups.size, times, self._definition.ttl_us)

    def of_time(self, at_us: int, key: Mapping[str, Any] | None) -> IntArray:
        """Return the places of messages of that time, and of that key."""
        matches = of_key(self._rows, key)[self._lines.order]
        return np.flatnonzero(matches & (self._lines.times == at_us))

    def of_row(self, row: Mapping[str, Any]) -> IntArray:
        """Return the places of messages with the values of their row."""
        time = self._definition.event_time
        names = [n for n in user_columns(self._rows) if n in row and n != time]
        near = np.arange(len(self._lines))
        if time in row:
            near = np.flatnonzero(self._lines.times == instant_us(row[time], time))
        candidates = self._rows.select(names).take(pa.array(self._lines.order[near])).to_pylist()
        wanted = {n: _plain(row[n]) for n in names}
        return near[[all(_plain(candidate[n]) == wanted[n] for n in names) for candidate in candidates]]

    def provenance(self, places: IntArray, row: Mapping[str, Any] | None) -> Iterator[Provenance]:
        """Yield the provenance of the rows of messages at these places. row: the emitted row, if it is known."""
        for place in places.tolist():
            inside = self._inside(place)
            at = self._lines.order[[place] if inside is None else inside]
            table = self._rows.take(pa.array(at))
            kept = stored(rows_without_prefix(Slice(table, table.column(TIME).to_numpy()), self._view.prefix))
            message = dict(self._rows.slice(int(self._lines.order[place]), 1).to_pylist()[0])
            shown = {n: message[n] for n in user_columns(self._rows)} if row is None else row
            name = self._definition.inputs[0].name
            yield Provenance(None, shown, None if inside is None else {name: kept})

    def _inside(self, place: int) -> list[int] | None:
        """Return the places of messages in the windows of one; None if some may have expired."""
        lines, places = self._lines, set[int]()
        whole, ttl_us, begin = self._floor_us <= START_OF_TIME_US, lines.ttl_us, int(lines.begins[place])
        # True if earlier messages of the partition would be kept, so that there are none.
        begins = whole or (ttl_us is not None and int(lines.times[begin]) - ttl_us >= self._floor_us)
        for frame in self._definition.frames.values():
            if not isinstance(frame, RangeBetween) and frame.low is None:
                last = int(lines.peers[1][place]) if frame.peers else place + 1
                low, high, known = begin, last, begins
            else:
                bounds = lines.windows(frame, np.array([place]))
                low, high, known = int(bounds.low[0]), int(bounds.high[0]), begins or bool(bounds.whole[0])
                if isinstance(frame, RangeBetween):
                    known = whole or int(lines.times[place]) + frame.low_us >= self._floor_us
            if not known:
                return None
            places.update(range(low, high))
        return sorted(places)


def _plain(value: Any) -> Any:
    """Return a value that can be compared, and equals itself."""
    return repr(value) if isinstance(value, (list, dict)) or value != value else value
