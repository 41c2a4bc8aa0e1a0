"""Kept messages of a full-state aggregate: each is stored once, and read again when a window fires.

Key: `<timestamp>_<position>` (seed 003's matrix, Time x Aggregate); sessions `<key>_<timestamp>_<position>`; tuple windows
`<key>_<number>`, tuple sessions `<key>_<number>_<position>`. Value: a row (`stores/row_codec.py`) with two columns more. The
step shows which messages came since the last pane of a window, for discarding panes. `CLOSED`: windows that end at or before it
did not take the message, which came too late for them; null where there were none. Tuple windows have the position instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.keys import encode_equal
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import as_type, concat, widened
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregations.calculation import Broken, Calculation, of_whole
from windrow.operators.steps.assigners import WindowAssigner
from windrow.operators.steps.columns import (
    EMIT_STEP,
    END,
    NUMBER,
    POSITION_COLUMNS,
    START,
    with_column,
)
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, encoded_positions, event_times
from windrow.operators.steps.message_rows import POSITION_TYPES, positions_of, with_positions
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.message_store import HOUR_US, Bound, Layout, MessageStore, PositionColumns
from windrow.stores.row_codec import Schemas, in_places, pack_rows, put_schema, unpack_rows

STEP, CLOSED = "__step", "__closed"
#: Auxiliary key: the step since which added aggregations see numbered messages.
_ADDED = b"\x00added"
#: Number of messages whose numbers are freed together.
NUMBERS = 10_000
#: Number of messages that are Python objects at a time while they are read.
PIECE = 1 << 11


class History:
    """The store of kept messages of one definition."""

    def __init__(self, definition: AggregateDefinition) -> None:
        self.definition = definition
        self.tuples = definition.tuple_window
        #: True where messages are keyed by their numbers among all messages, as others are by their times.
        self.by_number = definition.session and definition.numbered
        self.cf = f"{definition.name}.messages"
        self.index_cf = f"{definition.name}.message_index"
        self.aux_cf = f"{definition.name}.aux"
        keyed = bool(definition.by)
        layout = Layout.TIME_OFFSET
        if self.tuples:
            layout = Layout.FIELDS_OFFSET if keyed else Layout.OFFSET
        elif definition.session and keyed:
            layout = Layout.FIELDS_TIME_OFFSET
        bucket = NUMBERS if self.by_number else HOUR_US
        self.store = MessageStore(layout, self.cf, self.index_cf, bucket)
        self.cfs: tuple[str, ...] = self.store.cfs
        #: The columns that messages are keyed by, where there are any.
        self.fields = definition.by

    def add(
        self,
        kv: KV,
        rows: Slice,
        step: int | IntArray,
        calculation: Calculation,
        numbers: IntArray | None = None,
        closed: IntArray | None = None,
    ) -> None:
        """Store `rows`; tuple windows pass the number of each row within its key, others the last end closed to it.

        `step`, where each row has its own: the rows have positions.
        """
        batch, table = Batch(), self._kept(rows, step, calculation, closed)
        if numbers is not None:
            table = table.drop_columns([CLOSED])
        else:
            ends = combine(table.column(CLOSED))
            ends = pc.if_else(pc.equal(ends, START_OF_TIME_US), pa.scalar(None, pa.int64()), ends)
            table = with_column(table.drop_columns(list(POSITION_COLUMNS)), CLOSED, ends)
        # With every step: a store that took no part in a replay must find it in a segment.
        schema_id = put_schema(kv, self.aux_cf, batch, table.schema.remove_metadata(), b"h", again=True)
        values = pack_rows(table, schema_id)
        self.store.put_rows(batch, *self.places(rows, step, numbers), values)
        kv.write(batch)

    def _kept(
        self, rows: Slice, step: int | IntArray, calculation: Calculation, closed: IntArray | None
    ) -> pa.Table:
        """Return messages in the form in which they are kept: with positions, the last end closed to them, and their step."""
        table, placed, n = kept_columns(rows.table, calculation), with_positions(rows.table, step), len(rows)
        for name, kind in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True):
            table = table.append_column(name, as_type(placed.column(name), kind))
        table = table.append_column(
            CLOSED, pa.array(np.full(n, START_OF_TIME_US) if closed is None else closed)
        )
        return table.append_column(STEP, pa.array(np.broadcast_to(step, n)))

    def places(
        self, rows: Slice, step: int | IntArray, numbers: IntArray | None = None
    ) -> tuple[IntArray | None, PositionColumns, list[bytes] | None]:
        """Return (times, positions, encoded fields) of rows: the parts of their keys in the store."""
        fields = [rows.table.column(name) for name in self.fields]
        keys = encode_equal(fields) if self.store.layout.has_fields else None
        if numbers is None:
            return moments(rows), positions_of(with_positions(rows.table, step)), keys
        return None, PositionColumns(pa.array([""] * len(rows)), 0, numbers, 0), keys

    def drop(self, kv: KV, before_us: int, *, exactly: bool = False) -> None:
        """Delete messages with an event time before `before_us`: no retained window covers them. exactly: delete all."""
        batch = Batch()
        self.store.expire(kv, batch, before_us)
        kv.write(batch)

    def decode(
        self, kv: KV, keys: Sequence[bytes], values: Sequence[bytes], calculation: Calculation
    ) -> Slice | None:
        """Return stored messages as rows again, with position columns and `__step`."""
        return self.read(kv, zip(keys, values, strict=True), calculation)

    def read(self, kv: KV, pairs: Iterable[Pair], calculation: Calculation) -> Slice | None:
        """Decode messages that come one by one: few of them are Python objects at a time."""
        schemas, tables, moments = Schemas(kv, self.aux_cf, b"h"), list[pa.Table](), list[IntArray]()
        pairs = iter(pairs)
        while piece := list(itertools.islice(pairs, PIECE)):
            keys = [key for key, _ in piece]
            rows = in_places(unpack_rows([value for _, value in piece], schemas, "a message"))
            if not self.tuples:
                columns = zip(POSITION_COLUMNS, POSITION_TYPES, self.store.positions(keys), strict=True)
                for name, kind, column in columns:
                    rows = rows.append_column(name, pa.array(column, kind))
                closed = combine(rows.column(CLOSED)).fill_null(START_OF_TIME_US)
                rows = with_column(rows, CLOSED, closed)
                moments.append(self.store.times(keys))
            tables.append(rows)
        if not tables:
            return None
        table = concat(tables).combine_chunks()
        table = in_present_types(table, calculation.schema)
        if self.by_number:
            table = table.append_column(NUMBER, pa.array(np.concatenate(moments)))
        if self.tuples or self.by_number:
            times = event_times(
                table.column(self.definition.event_time),
                self.definition.event_time,
                self.definition.time_zone,
                self.definition.event_time_unit,
            )
            return Slice(table, np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64))
        return Slice(table, np.concatenate(moments))

    def between(
        self,
        kv: KV,
        start: Bound,
        end: Bound,
        calculation: Calculation,
        *,
        key: bytes | None = None,
        key_prefix: bytes | None = None,
    ) -> Slice | None:
        """Return messages from `start` to `end`, both inclusive, by their keys, as `MessageStore.scan_between` gives them."""
        keys, values = self.store.scan_between(kv, start, end, key, key_prefix=key_prefix)
        return self.decode(kv, keys, values, calculation)

    def values(
        self,
        kv: KV,
        state: pa.Table,
        calculation: Calculation,
        assigner: WindowAssigner,
        *,
        emitted: bool = False,
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return values of the (window, key)s of `state`, from the messages; `emitted`: from those of the last pane."""
        rows = self._of_windows(kv, state, calculation)
        if rows is None:
            row_of = windows = np.zeros(0, dtype=np.int64)
        else:
            row_of, windows, window_ends = assigner.assign(rows.times)
            took = window_ends > combine(rows.table.column(CLOSED)).to_numpy()[row_of]
            row_of, windows = row_of[took], windows[took]
        return self.evaluate(kv, state, rows, row_of, windows, calculation, emitted=emitted)

    def _of_windows(self, kv: KV, state: pa.Table, calculation: Calculation) -> Slice | None:
        """Return the messages of the times of windows; others may be among them."""
        low = int(combine(state.column(START)).to_numpy().min())
        high = int(combine(state.column(END)).to_numpy().max())
        return self.decode(kv, *self.store.scan(kv, low, high), calculation)

    def evaluate(
        self,
        kv: KV,
        state: pa.Table,
        rows: Slice | None,
        row_of: IntArray,
        windows: IntArray,
        calculation: Calculation,
        *,
        emitted: bool = False,
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return values of `state` rows from messages; message `row_of[i]` is in the window that starts at `windows[i]`."""
        if rows is None or len(row_of) == 0:
            return self.evaluate_members(kv, state, None, row_of, row_of, calculation, emitted=emitted)
        by, size, starts = self.definition.by, len(state), state.column(START)
        index = pa.array(row_of)
        windows_of = pa.concat_arrays([combine(starts), pa.array(windows)])
        keys = [
            pa.concat_arrays(
                [
                    as_type(combine(state.column(b)), calculation.schema.field(b).type),
                    as_type(combine(rows.table.column(b)).take(index), calculation.schema.field(b).type),
                ]
            )
            for b in by
        ]
        codes = Groups([windows_of, *keys], size + len(row_of)).codes
        # State rows come first and are distinct, so they are groups 0 .. size - 1.
        return self.evaluate_members(kv, state, rows, row_of, codes[size:], calculation, emitted=emitted)

    def evaluate_members(
        self,
        kv: KV,
        state: pa.Table,
        rows: Slice | None,
        row_of: IntArray,
        member: IntArray,
        calculation: Calculation,
        *,
        emitted: bool = False,
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return values of `state` rows from messages; message `row_of[i]` is of the row `member[i]`, or of none of them."""
        size, starts = len(state), state.column(START)
        if rows is None or len(row_of) == 0:
            values, broken = calculation.finish({}, size)
            empty = Slice(calculation.schema.empty_table(), np.zeros(0, dtype=np.int64))
            extra, more = calculation.table_functions(
                empty, Groups.of_codes(np.zeros(0, dtype=np.int64), size)
            )
            none = np.zeros(0, dtype=np.int64)
            return self._masked(kv, calculation, {**values, **extra}, broken + more, starts, (none, none))
        wanted = member < size
        if emitted or self.definition.emit.mode == "discarding":
            last = combine(state.column(EMIT_STEP)).fill_null(-1).to_numpy()[np.where(wanted, member, 0)]
            step = combine(rows.table.column(STEP)).to_numpy()[row_of]
            wanted &= step <= last if emitted else step > last
        row_of, member = row_of[wanted], member[wanted]
        # Order of arrival, by step and then by position: "any" and user folds see this order.
        order = encoded_positions(rows.table)
        arrival = pa.table({"step": combine(rows.table.column(STEP)), "order": order})
        keys = [("step", "ascending"), ("order", "ascending")]
        sequence = pc.sort_indices(arrival.take(pa.array(row_of)), sort_keys=keys)
        del order, arrival
        sequence = np.asarray(sequence.to_numpy(), dtype=np.int64)
        row_of, member = row_of[sequence], member[sequence]
        # Messages that came in time order, as most do, are in this order already.
        chosen = rows if np.array_equal(row_of, np.arange(len(rows))) else rows.take(row_of)
        groups = Groups.of_codes(member, size)
        merged, broken = calculation.merge(calculation.lift(chosen, kept=True), groups)
        values, more = calculation.finish(merged, size)
        extra, failures = calculation.table_functions(chosen, groups)
        broken += more + failures
        came = (member, combine(chosen.table.column(STEP)).to_numpy())
        return self._masked(kv, calculation, {**values, **extra}, broken, starts, came)

    def _masked(
        self,
        kv: KV,
        calculation: Calculation,
        values: Mapping[str, pa.Array],
        broken: list[Broken],
        starts: pa.ChunkedArray,
        came: tuple[IntArray, IntArray],
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Set values to null where an aggregation was added later than messages of the window. came: the step of each message,
        and its row.
        """
        if not self.definition.numbered:
            return calculation.masked(values, broken, starts)
        first = np.full(len(starts), END_OF_TIME_US, dtype=np.int64)
        np.minimum.at(first, *came)
        come = self._come_in(kv) if self.definition.since_us else {}
        return of_whole(values, broken, {alias: first >= step for alias, step in come.items()})

    # -- aggregations added to numbered messages, whose times do not show which of them came before ---------------------

    def note_come(self, kv: KV, step: int) -> None:
        """Record the step from which added aggregations see messages."""
        known = self._come_in(kv)
        if END_OF_TIME_US in known.values():
            batch, since = Batch(), dict(self.definition.since_us)
            noted = {alias: [since[alias], min(at, step)] for alias, at in known.items()}
            batch.put(self.aux_cf, _ADDED, msgpack.packb(noted))
            kv.write(batch)

    def _come_in(self, kv: KV) -> dict[str, int]:
        """Return the step in which each aggregation was added; the end of time where that is still to be."""
        value = kv.get(self.aux_cf, _ADDED)
        noted = {} if value is None else msgpack.unpackb(value)
        since = self.definition.since_us
        return {
            alias: noted[alias][1] if alias in noted and noted[alias][0] == us else END_OF_TIME_US
            for alias, us in since
        }


def moments(rows: Slice) -> IntArray:
    """Return the keys of messages among sessions: their times, or their numbers."""
    numbered = NUMBER in rows.table.column_names
    keys: IntArray = combine(rows.table.column(NUMBER)).to_numpy() if numbered else rows.times
    return keys


def kept_columns(table: pa.Table, calculation: Calculation) -> pa.Table:
    """Select the columns of messages that are kept: those of the stream, by name, in its types where a message has no value.

    So the stored bytes do not depend on how the input was cut.
    """
    names, size = calculation.input_columns(), len(table)
    known = {f.name: f for f in calculation.schema if names is None or f.name in names}
    filled = {f.name: f for f in table.schema if f.name in known and not pa.types.is_null(f.type)}
    fields = [(known | filled)[name].remove_metadata() for name in sorted(known)]
    columns = [table.column(f.name) if f.name in filled else pa.nulls(size, f.type) for f in fields]
    return pa.table(columns, schema=pa.schema(fields))


def in_present_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return messages in the current types of their columns, which may have widened since. A column that was not needed in
    between may have changed its type: its former values are null, as only former windows need them."""
    kinds = {f.name: f.type for f in schema}
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = kinds.get(name, column.type)
        widens = column.type == kind or widened(column.type, kind) == kind
        columns.append(as_type(column, kind) if widens else pa.nulls(len(column), kind))
    return pa.table(columns, names=table.column_names)
