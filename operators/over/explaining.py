"""Provenance of OVER rows: the messages in the windows of a message, as long as they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.frames import RangeBetween
from windrow.core.time import START_OF_TIME_US, instant_us
from windrow.operators.over.partitions import Lines
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.view import Provenance, of_key, rows_without_prefix, stored
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.over.views import OverView


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
        mine = of_key(self._rows, key)[self._lines.order]
        return np.flatnonzero(mine & (self._lines.times == at_us))

    def of_row(self, row: Mapping[str, Any]) -> IntArray:
        """Return the places of messages with the values of their row."""
        time = self._definition.event_time
        names = [n for n in user_columns(self._rows) if n in row and n != time]
        near = np.arange(len(self._lines))
        if time in row:
            near = np.flatnonzero(self._lines.times == instant_us(row[time], time))
        some = self._rows.select(names).take(pa.array(self._lines.order[near])).to_pylist()
        wanted = {n: _plain(row[n]) for n in names}
        return near[[all(_plain(one[n]) == wanted[n] for n in names) for one in some]]

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
        lines, found = self._lines, set[int]()
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
            found.update(range(low, high))
        return sorted(found)


def _plain(value: Any) -> Any:
    """Return a value that can be compared, and equals itself."""
    return repr(value) if isinstance(value, (list, dict)) or value != value else value
