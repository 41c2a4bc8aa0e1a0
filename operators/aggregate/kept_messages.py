"""Kept messages of a full-state aggregate: each is stored once, and read again when a window fires.

Key: `<timestamp>_<position>` (seed 003's matrix, Time x Aggregate); sessions `<key>_<timestamp>_<position>`; tuple windows
`<key>_<number>`, tuple sessions `<key>_<number>_<position>`. Value: version byte,
msgpack `[schema id, step, closed, values...]`; the schemas are under `h<id>` in the operator's auxiliary family. The step
shows which messages came since the last pane of a window, for discarding panes. `closed`: windows that end at or before it did
not take the message, which came too late for them; nil where there were none. Tuple windows have the position in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.core.arrays import IntArray
from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState
from windrow.core.keys import encode_equal
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import as_type, concat, widened
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregations.calculation import Broken, Calculation, of_whole
from windrow.operators.steps.assigners import WindowAssigner
from windrow.operators.steps.columns import EMIT_STEP, END, NUMBER, OFFSET, ORDINAL, PARTITION, SOURCE, START
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, encoded_positions, event_times
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.message_store import HOUR_US, Bound, Layout, MessageStore
from windrow.stores.window_state import pack_column, unpack_column

FORMAT = 1
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
        batch = Batch()
        table = kept_columns(rows.table, calculation)
        packed = table.schema.remove_metadata().serialize().to_pybytes()
        schema_id = xxhash.xxh3_64_digest(packed)
        # With every step: a store that took no part in a replay must find it in a segment.
        batch.put(self.aux_cf, b"h" + schema_id, packed)
        n = len(rows)
        steps = [step] * n if isinstance(step, int) else step.tolist()
        columns = [pack_column(c) for c in table.columns]
        head = bytes((FORMAT,))
        pack = msgpack.Packer(autoreset=True).pack
        positions = [list(p) for p in self._own_positions(rows, step)] if numbers is not None else None
        if positions is not None:
            values = [
                head + pack((schema_id, s, p, *v))
                for s, p, v in zip(
                    steps, zip(*positions, strict=True), zip(*columns, strict=True), strict=True
                )
            ]
        elif closed is not None:
            missed = [None if c == START_OF_TIME_US else c for c in closed.tolist()]
            values = [
                head + pack((schema_id, s, c, *v))
                for s, c, v in zip(steps, missed, zip(*columns, strict=True), strict=True)
            ]
        else:
            values = [
                head + pack((schema_id, s, None, *v))
                for s, v in zip(steps, zip(*columns, strict=True), strict=True)
            ]
        self.store.put_rows(batch, *self.places(rows, step, numbers), values)
        kv.write(batch)

    def places(
        self, rows: Slice, step: int | IntArray, numbers: IntArray | None = None
    ) -> tuple[IntArray | None, tuple[Any, Any, Any, Any], list[bytes] | None]:
        """Return (times, positions, encoded fields) of rows: the parts of their keys in the store."""
        fields = [rows.table.column(name) for name in self.fields]
        keys = encode_equal(fields) if self.store.layout.has_fields else None
        if numbers is None:
            return moments(rows), self._positions(rows, step), keys
        n = len(rows)
        zeros = np.zeros(n, dtype=np.int64)
        return None, (pa.array([""] * n), zeros, numbers, zeros), keys

    def _positions(self, rows: Slice, step: int | IntArray) -> tuple[object, object, object, object]:
        n = len(rows)
        if rows.has_positions:
            t = rows.table
            ordinal = (
                t.column(ORDINAL).to_numpy() if ORDINAL in t.column_names else np.zeros(n, dtype=np.int64)
            )
            return t.column(SOURCE), t.column(PARTITION).to_numpy(), t.column(OFFSET).to_numpy(), ordinal
        # Rows without positions are numbered by step: each is a message of its own.
        return (
            pa.array([""] * n),
            np.zeros(n, dtype=np.int64),
            (step << 32) + np.arange(n, dtype=np.int64),
            np.zeros(n, dtype=np.int64),
        )

    def _own_positions(self, rows: Slice, step: int | IntArray) -> tuple[list[object], ...]:
        source, partition, offset, ordinal = self._positions(rows, step)
        return (
            source.to_pylist(),  # type: ignore[attr-defined]
            np.asarray(partition).tolist(),
            np.asarray(offset).tolist(),
            np.asarray(ordinal).tolist(),
        )

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
        schemas, tables = dict[bytes, pa.Schema](), dict[bytes, list[pa.Table]]()
        places: dict[bytes, list[IntArray]] = {}
        moments, n = list[IntArray](), 0
        pairs = iter(pairs)
        while piece := list(itertools.islice(pairs, PIECE)):
            keys = [key for key, _ in piece]
            bodies = _bodies([value for _, value in piece])
            groups: dict[bytes, list[int]] = {}
            for i, body in enumerate(bodies):
                groups.setdefault(body[0], []).append(i)
            for schema_id, at in groups.items():
                schema = schemas[schema_id] = schemas.get(schema_id) or self._schema(kv, schema_id)
                table = self._table(schema, [bodies[i] for i in at], [keys[i] for i in at])
                tables.setdefault(schema_id, []).append(table)
                places.setdefault(schema_id, []).append(np.array(at, dtype=np.int64) + n)
            if not self.tuples:
                moments.append(self.store.times(keys))
            n += len(piece)
        if not n:
            return None
        table = concat([pa.concat_tables(pieces).combine_chunks() for pieces in tables.values()])
        if len(tables) > 1:
            order = np.concatenate([at for pieces in places.values() for at in pieces])
            table = table.take(pa.array(np.argsort(order, kind="stable")))
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

    def _schema(self, kv: KV, schema_id: bytes) -> pa.Schema:
        packed = kv.get(self.aux_cf, b"h" + schema_id)
        if packed is None:
            raise CorruptState(f"messages of schema {schema_id.hex()} are here, the schema is not")
        return pa.ipc.read_schema(pa.py_buffer(packed))

    def _table(self, schema: pa.Schema, bodies: Sequence[Any], keys: Sequence[bytes]) -> pa.Table:
        """Return messages that were stored under one schema."""
        columns = list(zip(*bodies, strict=True))
        arrays = [unpack_column(list(c), f.type) for c, f in zip(columns[3:], schema, strict=True)]
        positions = zip(*columns[2], strict=True) if self.tuples else self.store.positions(keys)
        kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
        arrays += [pa.array(column, kind) for column, kind in zip(positions, kinds, strict=True)]
        names = [*schema.names, SOURCE, PARTITION, OFFSET, ORDINAL]
        if not self.tuples:
            missed = [START_OF_TIME_US if c is None else c for c in columns[2]]
            arrays.append(pa.array(missed, pa.int64()))
            names.append(CLOSED)
        arrays.append(pa.array(columns[1], pa.int64()))
        return pa.table(arrays, names=[*names, STEP])

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


def _bodies(values: Sequence[bytes]) -> Sequence[Any]:
    """Unpack values together, as one array: their version bytes are numbers of msgpack."""
    for version in {value[0] for value in values}:
        check_version("a message", version, FORMAT)
    head = b"\xdd" + (2 * len(values)).to_bytes(4, "big")
    bodies: Sequence[Any] = msgpack.unpackb(head + b"".join(values), use_list=False)[1::2]
    return bodies


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
