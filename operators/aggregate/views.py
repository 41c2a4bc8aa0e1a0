"""View of an aggregate: its windows, and its messages where it keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.keys import encode_equal
from windrow.core.lazy import LazyList, Part
from windrow.core.message_keys import decode_position
from windrow.core.messages import Position, StoredMessage, TupleWindow, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.aggregate import pane_order
from windrow.operators.aggregate.definition import WINDOW_START, WINDOW_TIME, AggregateDefinition
from windrow.operators.aggregate.kept_messages import CLOSED, moments
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.output import VALUE, pane_schema, to_infos, window_column
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.sessions.kept_messages import of_sessions
from windrow.operators.aggregate.sessions.logic import SessionAggregator
from windrow.operators.aggregate.sessions.merging import JOINED_BY
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.steps.columns import END, FIRST, LAST, MESSAGES, PANES, START, UPSERT
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_columns import POSITION
from windrow.operators.steps.progress import Progress
from windrow.operators.view import (
    WINDOWS,
    Provenance,
    Query,
    StoredTable,
    View,
    alone,
    as_given,
    key_of,
    merged,
    message_columns,
    of_key,
    one_key,
    rows_without_prefix,
    stored,
    union,
    without_prefix,
)
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV, Batch
from windrow.stores.page_format import HASH, among, hashes_of, page_of
from windrow.stores.spill import Away

#: Rows of windows of more bytes are not kept in memory.
KEPT_BYTES = 64 << 20
#: Finds the messages that a shard keeps; also takes `key` or `key_prefix`, as the message store does.
Finds: TypeAlias = Callable[..., Slice | None]


class Kept(NamedTuple):
    """All windows as their view reads them, in order, and the hash of each one's key."""

    rows: pa.Table
    hashes: Hashes


class AggregateView(View):
    """The view over time windows."""

    logic: WindowAggregator
    definition: AggregateDefinition

    def __init__(self, logic: Any, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic, stores, watermark_us)
        self.counted_in = (logic.windows_cf,)
        self._whole: Kept | None = None
        #: The start and key of a window as `_one` was asked for last, and its answer.
        self._asked: tuple[int, dict[str, Any], pa.Table | None] | None = None

    # -- its rows ---------------------------------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        panes = [
            pane_schema(self.definition, self.logic.calculation)
            for kv in self.stores
            if self._known(kv) is not None
        ]
        return union(panes) or pa.schema([])

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        self.input(input)
        schema = self.schema()
        return {b: schema.field(b).type if b in schema.names else pa.null() for b in self.definition.by}

    def _known(self, kv: KV) -> pa.Schema | None:
        """Return the columns of the input; the operator is bound to them."""
        known = Progress.load(kv, self.logic.aux_cf).schema
        if known is not None:
            self.logic._bind(known)
        return known

    # -- windows ----------------------------------------------------------------------------------------------------

    def timed(self, table: str) -> str | None:
        column = super().timed(table)
        return None if column == "window" and self.definition.numbered else column

    def windows(self, query: Query) -> Sequence[WindowInfo]:
        """Return windows that are read at once, and built when they are accessed."""
        self.input(query.input)
        rows = self._rows(query)

        def infos(low: int, high: int) -> list[WindowInfo]:
            assert rows is not None
            page = rows.slice(low, high - low)
            return without_prefix(to_infos(self.definition, page, self._fired(page)), self.prefix)

        return LazyList([] if rows is None else [Part(len(rows), infos)])

    def windows_table(self, query: Query) -> pa.Table:
        stored = self.stored_table(WINDOWS, query)
        return stored.show(stored.rows)

    def stored_table(self, table: str, query: Query) -> StoredTable:
        if table != WINDOWS:
            return super().stored_table(table, query)
        self.input(query.input)
        definition = self.definition
        rows = self._rows(query)
        emitted = ("window", *definition.by, *definition.agg)
        known = pa.schema([f for f in self.schema() if f.name in emitted])
        schema = pa.schema(
            [
                *known,
                ("messages", pa.int64()),
                ("first", POSITION),
                ("last", POSITION),
                ("panes", pa.int64()),
                ("fired", pa.bool_()),
            ]
        )
        if rows is None:
            return StoredTable(schema.empty_table())
        columns = [
            combine(rows.column(START)),
            combine(rows.column(END)),
            *(combine(rows.column(b)).cast(schema.field(b).type) for b in definition.by),
            *(combine(rows.column(VALUE + a)).cast(schema.field(a).type) for a in definition.agg),
            combine(rows.column(MESSAGES)),
            rows.column(FIRST),
            rows.column(LAST),
            combine(rows.column(PANES)),
            pa.array(self._fired(rows)),
        ]
        return StoredTable(pa.table(columns, [START, END, *schema.names[1:]]), partial(self._shown, schema))

    def _shown(self, schema: pa.Schema, rows: pa.Table) -> pa.Table:
        """Return stored rows of windows as users see them."""
        starts, ends, *values, first, last, panes, fired = rows.columns
        window = window_column(self.definition, combine(starts), combine(ends))
        positions = [_positions(column.to_pylist(), self.prefix) for column in (first, last)]
        return pa.table([window, *values, *positions, panes, fired], schema=schema)

    def _rows(self, query: Query) -> pa.Table | None:
        """Return the window rows of all shards, sorted; None where there are none."""
        low, high = query.times
        wanted, by = key_of(self.definition.by, query.key), self.definition.by
        if self._whole is not None:
            return self._selected(self._whole.rows, low, high, wanted)
        runs: list[pa.Table] = []
        for kv in self.stores:
            tables: list[pa.Table] = []
            gathered = Away(tables, pane_order.SLICE_BYTES)
            for rows in self._states(kv, low, high, wanted):
                part = self._selected(rows, low, high, wanted)
                if len(part):
                    tables.append(part)
                    gathered.gathered()
            if tables:
                runs.append(concat(tables))
        if sum(run.nbytes for run in runs) > pane_order.SLICE_BYTES:
            return pane_order.in_order(runs, by, pane_order.SLICE_BYTES) if len(runs) > 1 else runs[0]
        if len(runs) < 2:
            return runs[0] if runs else None
        whole = concat(runs)
        return whole.take(pa.array(in_window_order(whole, by)))

    def _selected(self, rows: pa.Table, low: int, high: int, wanted: Mapping[str, Any] | None) -> pa.Table:
        """Return the rows of a key that overlap the closed range."""
        starts, ends = (combine(rows.column(c)).to_numpy() for c in (START, END))
        mask = (starts <= high) & self._reach(ends, low)
        if wanted:
            mask[mask] = of_key(rows.filter(pa.array(mask)), wanted)
        return rows if mask.all() else rows.filter(pa.array(mask))

    def _reach(self, ends: IntArray, low: int) -> BoolArray:
        """True for windows that reach beyond a bound; the last number of a window is in it, its end in time is not."""
        return ends >= low if self.definition.numbered else ends > low

    def _fired(self, rows: pa.Table) -> BoolArray:
        return np.asarray(combine(rows.column(END)).to_numpy() <= self.watermark_us)

    # -- messages ---------------------------------------------------------------------------------------------------

    def messages(self, query: Query) -> list[Slice]:
        self.input(query.input)
        if self.logic.history is None:
            raise ConfigurationError(
                f"{self.definition.name!r} keeps no messages: its aggregations are incremental (only window metadata is "
                "kept). Messages are kept where an aggregation needs them, e.g. wr.median"
            )
        finds, wanted = self.asked(query), key_of(self.definition.by, query.key)
        layout = self.logic.history.store.layout
        tables = [rows for kv in self.stores if (rows := self._found(kv, finds, wanted)) is not None]
        by = self.definition.by if layout.has_fields else ()
        return [
            rows_without_prefix(rows, self.prefix)
            for rows in merged(tables, by, fields_first=layout.fields_first)
        ]

    def asked(self, query: Query) -> Finds:
        """Return a finder of the messages between two bounds; of numbered windows, also of one window."""
        low, high = query.bounds
        return partial(self.between, low=low, high=high)

    def _found(self, kv: KV, finds: Finds, wanted: Mapping[str, Any] | None) -> Slice | None:
        """Return messages of a shard; their sources have the job's prefix."""
        rows = None if self._known(kv) is None else finds(kv)
        return None if rows is None else rows.take(np.flatnonzero(of_key(rows.table, wanted)))

    def _kept(
        self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], wanted: Mapping[str, Any] | None
    ) -> Slice | None:
        return self._found(kv, partial(self.between, low=low, high=high), wanted)

    def between(self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], **fields: bytes) -> Slice | None:
        """Return kept messages between two bounds. fields: `key` or `key_prefix`, as the message store takes them."""
        purged_us = Progress.load(kv, self.logic.aux_cf).purged_us
        return self._scanned(kv, max(low, (purged_us, None), key=lambda bound: bound[0]), high, **fields)

    def _scanned(self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], **fields: bytes) -> Slice | None:
        """Return messages between two bounds of the store's order, which is of times or of numbers."""
        assert self.logic.history is not None
        return self.logic.history.between(kv, low, high, self.logic.calculation, **fields)

    def message_schema(self, input: str | None = None) -> pa.Schema:
        self.input(input)
        known = [Progress.load(kv, self.logic.aux_cf).schema for kv in self.stores]
        return message_columns([None if s is None else self.logic.seen_schema(s) for s in known])

    # -- provenance -------------------------------------------------------------------------------------------------

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        at_us = instant_us(at, "start")
        return [self._provenance(w) for w in self.windows(Query(at_us, at_us, key)) if _start(w) == at_us]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the provenance of `rows`: panes, or those columns of them that another operator keeps."""
        by_name: dict[tuple[Any, ...], Provenance] = {}
        provenances = []
        for row in rows:
            at_us, starts = _time_of(row)
            key = {b: row[b] for b in self.definition.by if b in row}
            windows = [w for w in self.windows(Query(at_us, at_us, key)) if not starts or _start(w) == at_us]
            if not starts:
                windows = [w for w in windows if getattr(w.window, "end_us", None) == at_us + 1]
            names = [(w.window, *(repr(v) for v in w.key.values())) for w in windows]
            for name, info in zip(names, windows, strict=True):
                if name not in by_name:
                    by_name[name] = self._provenance(info)
            provenances.append([by_name[name] for name in names])
        return provenances

    def _provenance(self, info: WindowInfo) -> Provenance:
        if self.logic.history is None:
            return Provenance(info, None, None)
        messages: list[StoredMessage] = []
        for kv in self.stores:
            rows = None if self._known(kv) is None else self._taken(info, kv)
            if rows is not None:
                messages += stored(rows_without_prefix(rows, self.prefix))
        return Provenance(info, None, {self.definition.inputs[0].name: messages})

    def one(self, what: Any, key: Any) -> pa.Table | None:
        if type(self) is not AggregateView:
            return None
        if isinstance(what, WindowInfo):
            return self._one(_start(what), what.key)
        if isinstance(what, Mapping):
            at_us, starts = _time_of(what)
            return self._one(at_us, {b: what[b] for b in self.definition.by if b in what}) if starts else None
        return self._one(instant_us(what, "start"), key_of(self.definition.by, key) or {})

    def part_of(self, one: pa.Table, kv: KV, changes: Batch) -> Batch:
        return self.logic.store.part_of(one, kv, changes)

    def brought(self, provenance: Provenance, kv: KV) -> list[tuple[bool, int]] | None:
        assert provenance.window is not None
        start, key = _start(provenance.window), provenance.window.key
        if self._is_divided(kv, start):
            return None
        rows = self._stored(kv, start, self._one(start, key))
        if rows is None:
            return []
        rows = rows.filter(pa.array(combine(rows.column(START)).to_numpy() == start))
        rows = rows.filter(pa.array(of_key(rows, key)))
        return list(zip(rows.column(UPSERT).to_pylist(), rows.column(MESSAGES).to_pylist(), strict=True))

    def kept(self, before: Kept | None = None, changes: Sequence[Batch] = ()) -> Kept | None:
        """Keep all windows, or bring those of an earlier commit to this one, which costs what changed."""
        self._whole = None if changes else before
        if before is not None and changes and type(self) is AggregateView and self.definition.by:
            self._whole = self._brought(before, changes)
        if self._whole is None:
            rows = self._rows(Query())
            if rows is not None and rows.nbytes <= KEPT_BYTES:
                self._whole = Kept(rows.combine_chunks(), hashes_of(rows, self.definition.by))
        return self._whole

    def _brought(self, before: Kept, changes: Sequence[Batch]) -> Kept | None:
        """Bring rows of an earlier commit to this one; None where too many changed, or their types did."""
        rows, store = before.rows, self.logic.store
        gone, whole, wanted = self._touched(before, changes)
        if 2 * gone.sum() > len(rows):
            return None
        fresh: list[pa.Table] = []
        for kv in self.stores:
            fresh += [part for start in whole for part in self.logic.states(kv, start, start + 1)]
            for start, hashes in wanted.items():
                stored = store.read(kv, [start], pa.table({HASH: hashes}))
                if stored is not None and len(stored):
                    fresh.append(self.logic._valued(kv, stored))
        if any(part.schema != rows.schema for part in fresh):
            return None
        return _replaced(before, gone, pa.concat_tables([rows.slice(0, 0), *fresh]), self.definition.by)

    def _touched(
        self, before: Kept, changes: Sequence[Batch]
    ) -> tuple[BoolArray, set[int], dict[int, Hashes]]:
        """Return the earlier rows that may have changed, the windows that are read anew, and of others hashes of such keys."""
        starts, store = combine(before.rows.column(START)).to_numpy(), self.logic.store
        gone, whole, touched = np.zeros(len(starts), dtype=bool), set[int](), dict[int, list[Hashes]]()

        def of(start: int) -> slice:
            return slice(*np.searchsorted(starts, [start, start + 1]))

        for kv, batch in zip(self.stores, changes, strict=True):
            if self._known(kv) is None:
                continue
            changed = store.changed(kv, batch)
            for low, high in changed.spans:
                gone[np.searchsorted(starts, low) : np.searchsorted(starts, high)] = True
                whole.update(start for one in self.stores for start in store.starts(one, low, high))
            for start, hashes in changed.hashes.items():
                touched.setdefault(start, []).append(hashes)
            for start, (count, numbers) in changed.pages.items():
                hashes = before.hashes[of(start)]
                touched.setdefault(start, []).append(hashes[np.isin(page_of(hashes, count), numbers)])
        wanted = {start: np.unique(np.concatenate(touched[start])) for start in touched.keys() - whole}
        for start, hashes in wanted.items():
            gone[of(start)] |= among(before.hashes[of(start)], hashes)
        return gone, whole, wanted

    def _states(self, kv: KV, low: int, high: int, key: Mapping[str, Any] | None) -> Iterator[pa.Table]:
        """Yield the windows of a shard that may overlap the closed range, sorted."""
        return self.logic.states(kv, self.logic.assigner.first_open(low), _after(high), key)

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        """Return the messages of a window that a shard keeps, as the window took them."""
        start, end = info.window.start_us, info.window.end_us  # type: ignore[union-attr]
        rows = self._kept(kv, (start, None), (end - 1, None), info.key or None)
        if rows is None:
            return None
        row_of, starts, ends = self.logic.assigner.assign(rows.times)
        # A message that came when this window was closed may be kept for another.
        took = (starts == start) & (ends > combine(rows.table.column(CLOSED)).to_numpy()[row_of])
        return rows.take(np.unique(row_of[took]))

    def _is_divided(self, kv: KV, start: int) -> bool:
        """True for a window whose values hold rows of several commits."""
        return self.logic.store.is_divided(kv, start)

    def _stored(self, kv: KV, start: int, one: pa.Table | None) -> pa.Table | None:
        """Return the stored rows of a window, not merged; `one`: its start and key, None for all keys."""
        return self.logic.store.read(kv, [start], one)

    def _one(self, start: int, key: Mapping[str, Any]) -> pa.Table | None:
        """Return a window's start and key as a row, by which its store finds it; None where there can be none."""
        if self._asked is None or self._asked[:2] != (start, key):
            keys = one_key(self.definition.by, key, self.schema())
            one = None if keys is None else keys.add_column(0, START, pa.array([start], pa.int64()))
            self._asked = start, {**key}, one
        return self._asked[2]


class TupleView(AggregateView):
    """The view over windows of sequence numbers."""

    logic: TupleAggregator  # type: ignore[assignment]

    def _is_divided(self, kv: KV, start: int) -> bool:
        return False

    def _stored(self, kv: KV, start: int, one: pa.Table | None) -> pa.Table | None:
        return self.logic.store.read_all(kv) if one is None else self.logic.store.read(kv, one)

    def _states(self, kv: KV, low: int, high: int, key: Mapping[str, Any] | None) -> Iterator[pa.Table]:
        return self.logic.states(kv, 1, _after(high))

    def _fired(self, rows: pa.Table) -> BoolArray:
        return np.asarray(combine(rows.column(MESSAGES)).to_numpy() >= self.logic.size)

    def between(self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], **fields: bytes) -> Slice | None:
        rows = self._scanned(kv, (0, None), (0, None), **fields)
        if rows is None:
            return None
        return _between(rows, rows.times, low[0], high[0])

    def asked(self, query: Query) -> Finds:
        if isinstance(query.start, TupleWindow):
            return partial(self.numbered, window=alone(query.start, query.end))
        return super().asked(query)

    def numbered(self, kv: KV, window: TupleWindow, **fields: bytes) -> Slice | None:
        """Return kept messages of these numbers, of each key its own."""
        return self._scanned(kv, (0, ("", 0, window.first)), (0, ("", 0, window.last)), **fields)

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        assert isinstance(info.window, TupleWindow)
        by, schema = self.definition.by, self.logic.calculation.schema
        if not by:
            return self.numbered(kv, info.window)
        key = encode_equal([pa.array([info.key[b]], schema.field(b).type) for b in by])[0]
        return self.numbered(kv, info.window, key=key)


class SessionView(AggregateView):
    """The view over session windows."""

    logic: SessionAggregator  # type: ignore[assignment]

    def __init__(self, logic: Any, stores: Sequence[KV], watermark_us: int) -> None:
        super().__init__(logic, stores, watermark_us)
        self.counted_in = ()  # a commit writes a whole session

    def _states(self, kv: KV, low: int, high: int, key: Mapping[str, Any] | None) -> Iterator[pa.Table]:
        return self.logic.states(kv, low, _after(high), key)

    def between(self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], **fields: bytes) -> Slice | None:
        rows = self._scanned(kv, low, high, **fields)
        if rows is None:
            return None
        return of_sessions(rows, self.logic.kept(kv, low[0], _after(high[0]), None), self.definition.by)

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        start, end = info.window.start_us, info.window.end_us  # type: ignore[union-attr]
        rows, sessions = (
            self._kept(kv, (start, None), (end - 1, None), info.key or None),
            self._row_of(info, kv),
        )
        return None if rows is None else of_sessions(rows, sessions, self.definition.by)

    def _row_of(self, info: WindowInfo, kv: KV) -> pa.Table | None:
        """Return the state row of a session."""
        start = _start(info)
        rows = self.logic.kept(kv, start, start + 1, info.key)
        if rows is None:
            return None
        matches = (combine(rows.column(START)).to_numpy() == start) & of_key(rows, info.key)
        if not isinstance(info.window, TupleWindow):
            matches &= combine(rows.column(END)).to_numpy() == info.window.end_us
        return rows.filter(pa.array(matches))

    def _provenance(self, info: WindowInfo) -> Provenance:
        return replace(super()._provenance(info), joined_by=self._joined_by(info))

    def _joined_by(self, info: WindowInfo) -> Position | None:
        """Return the message that merged two sessions into this one; of several the last."""
        for kv in self.stores:
            rows = self._row_of(info, kv)
            if rows is not None and JOINED_BY in rows.column_names:
                for position in rows.column(JOINED_BY).drop_null().to_pylist():
                    return as_given(Position(*decode_position(position)[0]), self.prefix)
        return None


class TupleSessionView(SessionView):
    """The view over sessions by messages of others: windows of the numbers of messages."""

    def __init__(self, logic: Any, stores: Sequence[KV], watermark_us: int) -> None:
        last = max((logic.progress(kv).watermark_us for kv in stores), default=0)
        super().__init__(logic, stores, last)

    def between(self, kv: KV, low: tuple[int, Any], high: tuple[int, Any], **fields: bytes) -> Slice | None:
        rows = super().between(kv, (0, None), (END_OF_TIME_US, None), **fields)
        if rows is None:
            return None
        return _between(rows, rows.times, low[0], high[0])

    def asked(self, query: Query) -> Finds:
        if isinstance(query.start, TupleWindow):
            return partial(self.numbered, window=alone(query.start, query.end))
        return super().asked(query)

    def numbered(self, kv: KV, window: TupleWindow, **fields: bytes) -> Slice | None:
        """Return kept messages of these numbers, which are of all keys."""
        rows = super().between(kv, (window.first, None), (window.last, None), **fields)
        if rows is None:
            return None
        return _between(rows, moments(rows), window.first, window.last)

    def _taken(self, info: WindowInfo, kv: KV) -> Slice | None:
        assert isinstance(info.window, TupleWindow)
        return self._found(kv, partial(self.numbered, window=info.window), info.key)

    def _fired(self, rows: pa.Table) -> BoolArray:
        return np.asarray(combine(rows.column(END)).to_numpy() + self.logic.gap_us <= self.watermark_us)


def view_of(definition: AggregateDefinition) -> type[AggregateView]:
    """Return the view class of windows of this definition."""
    if definition.session:
        return TupleSessionView if definition.numbered else SessionView
    return TupleView if definition.tuple_window else AggregateView


def _between(rows: Slice, values: IntArray, low: int, high: int) -> Slice:
    """Return the rows whose value is in a closed range."""
    return rows.take(np.flatnonzero((values >= low) & (values <= high)))


def _replaced(before: Kept, gone: BoolArray, fresh: pa.Table, by: Sequence[str]) -> Kept:
    """Return windows of which some are gone and others came, in order."""
    fresh, places = fresh.take(pa.array(in_window_order(fresh, by))), np.flatnonzero(gone)
    hashes = np.r_[before.hashes, hashes_of(fresh, by)]
    names, n = [START, END, *by], len(before.rows)
    rows = pa.concat_tables([before.rows, fresh]).combine_chunks()
    if before.rows.select(names).take(pa.array(places)).equals(fresh.select(names)):
        order = np.arange(n)
        order[places] = n + np.arange(len(fresh))
    else:
        left = np.r_[np.flatnonzero(~gone), n + np.arange(len(fresh))]
        order = left[in_window_order(rows.take(pa.array(left)), by)]
    return Kept(rows.take(pa.array(order)), hashes[order])


def _after(high: int) -> int:
    return min(high, END_OF_TIME_US - 1) + 1


def _start(info: WindowInfo) -> int:
    """Return the start of a window: microseconds, or the number of its first message."""
    return info.window.first if isinstance(info.window, TupleWindow) else info.window.start_us


def _time_of(row: Mapping[str, Any]) -> tuple[int, bool]:
    """Return a time at which the window of a pane is open, and True if it starts there; False if that is its last moment."""
    window = row.get("window")
    start = row.get(WINDOW_START) if window is None else window.get("start", window.get("first"))
    if start is not None:
        return instant_us(start, "start"), True
    if isinstance(row.get(WINDOW_TIME), (int, datetime)):
        return instant_us(row[WINDOW_TIME], "time"), False
    if window is not None or WINDOW_START in row:
        return START_OF_TIME_US, True
    raise ConfigurationError(f"{dict(row)!r} is no row of a window: it needs 'window', or {WINDOW_START!r}")


def _positions(encoded: Iterable[bytes | None], prefix: str) -> pa.Array:
    names = [field.name for field in POSITION]
    positions = [None if e is None else dict(zip(names, decode_position(e)[0], strict=True)) for e in encoded]
    for at in positions:
        if at is not None:
            at["source"] = str(at["source"]).removeprefix(prefix)
    return pa.array(positions, POSITION)
