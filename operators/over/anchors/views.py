"""Views of OVER windows around anchors: the messages that these may still hold, and the pending anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.between import Between, Ticks
from windrow.core.errors import UnknownColumn
from windrow.core.messages import StoredMessage
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.operators.over.anchors.logic import AnchoredOvers
from windrow.operators.over.anchors.pending_anchors import AT
from windrow.operators.over.anchors.spans import found_spans, high_of, low_of
from windrow.operators.over.partitions import ordered
from windrow.operators.over.required_columns import conformed, kept_columns
from windrow.operators.over.views import OverView
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.message_rows import empty_rows
from windrow.operators.view import (
    Provenance,
    Query,
    key_of,
    message_columns,
    of_key,
    rows_without_prefix,
    stored,
)
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV


class AnchoredView(OverView):
    """A view of `messages`, of either input; by event time, then position."""

    logic: AnchoredOvers  # type: ignore[assignment]

    def messages(self, query: Query) -> list[Slice]:
        input_spec = self.input(query.input)
        side, prefix = self._side(input_spec.name), self.source_prefix(input_spec.name)
        return self.selected(self._conformed(side), query, prefix)

    def message_schema(self, input: str | None) -> pa.Schema:
        side = self._side(self.input(input).name)
        known = self._columns(side)
        return message_columns([None if known is None else self._filed(side, known)])

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        """Return the rows of anchors of that time that are kept still."""
        if isinstance(self.definition.anchors, Ticks):
            return []
        at_us, wanted, dicts = instant_us(at, "time"), key_of(self.definition.by, key), list[dict[str, Any]]()
        for rows in self._conformed(1):
            matches = (rows.column(TIME).to_numpy() == at_us) & of_key(rows, wanted)
            anchors = rows.filter(pa.array(matches))
            dicts += anchors.select(user_columns(anchors)).to_pylist()
        return [row for rows in self.made_of(dicts) for row in rows]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the provenance of rows, given as they were emitted or as the columns of their anchor."""
        return [[Provenance(None, row, self._inside(row))] for row in rows]

    def _inside(self, row: Mapping[str, Any]) -> dict[str, list[StoredMessage]] | None:
        """Return the messages in the windows of an anchor; None if some may have expired, or its windows are not known."""
        spans, name = self._windows_of(row), self.definition.inputs[0].name
        if not spans or any(b not in row for b in self.definition.by):
            return None
        floors = [self._floor_us(kv) for kv in self.stores]
        if min(low for low, _ in spans) < max(floors, default=START_OF_TIME_US):
            return None
        kept, key = list[StoredMessage](), {b: row[b] for b in self.definition.by}
        for rows in self._conformed(0):
            times = rows.column(TIME).to_numpy()
            inside = np.zeros(len(rows), dtype=bool)
            for low, high in spans:
                inside |= (times >= low) & (times <= high)
            places = np.flatnonzero(inside & of_key(rows, key))
            messages = Slice(rows, times).take(places)
            messages = messages.take(ordered(messages.times, messages.table))
            kept += stored(rows_without_prefix(messages, self.source_prefix(name)))
        return {name: kept}

    def _windows_of(self, row: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Return the first and the last microsecond of each; null if the row does not have it."""
        definition, time = self.definition, self.definition.output_time
        if time not in row:
            return []
        at_us = instant_us(row[time], time)
        frames = set(definition.frames.values()) or {definition.span}
        if not isinstance(definition.span, Between):
            return [(at_us + frame.low_us, at_us + frame.high_us) for frame in frames]
        anchor = Slice(pa.Table.from_pylist([dict(row)]), np.array([at_us], dtype=np.int64))
        try:
            spans, good = found_spans(definition, anchor, DeadLetters(0))
        except (KeyError, UnknownColumn):
            return []
        low, high = (spans.column(n).to_numpy()[good] for n in (START, END))
        span = definition.span
        return list(zip(low_of(span, low).tolist(), high_of(span, high).tolist(), strict=True))

    def _conformed(self, side: int) -> list[pa.Table]:
        """Return what each shard keeps of an input, in the current types of its columns."""
        known = self._columns(side)
        if known is None:
            return []
        filed = empty_rows(self._filed(side, known)).schema.append(pa.field(TIME, pa.int64()))
        return [conformed(rows, filed) for kv in self.stores if (rows := self._rows(kv, side)) is not None]

    def _floor_us(self, kv: KV) -> int:
        """Return the time before which a shard keeps no message of the aggregated input."""
        closed_us = self.logic.closed_us(self.logic.progress(kv).watermark_us)
        lowest_us = self.logic.pending.lowest_of_waiting_us(kv, closed_us)
        return int(min(self.logic.reached_us(kv, closed_us), lowest_us))

    def _side(self, input: str | None) -> int:
        return [input.name for input in self.definition.inputs].index(self.input(input).name)

    def _columns(self, side: int) -> pa.Schema | None:
        return self.known(self.definition.inputs[side].name)

    def _filed(self, side: int, known: pa.Schema) -> pa.Schema:
        """Return the columns that are kept of the messages of an input."""
        return pa.schema([known.field(n) for n in kept_columns(self.logic.alone[side], known)])

    def _rows(self, kv: KV, side: int) -> pa.Table | None:
        """Return what one shard keeps of an input."""
        if side == 0:
            rows: pa.Table | None = self.logic.events.read(kv, self._floor_us(kv), END_OF_TIME_US)
            return rows
        anchors = self.logic.pending.kept(kv, self.logic.closed_us(self.logic.progress(kv).watermark_us))
        return (
            None if anchors is None else anchors.drop_columns([TIME]).append_column(TIME, anchors.column(AT))
        )
