"""State of a join: the stored messages of both sides, their columns, and their retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.errors import UnknownColumn
from windrow.core.keys import encode_equal
from windrow.core.policy import RESERVED_COLUMNS, UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, HOUR_US, MINUTE_US, SECOND_US, START_OF_TIME_US
from windrow.core.types import as_type
from windrow.core.windows import Rows
from windrow.operators.join.columns import NAMES, InputColumns
from windrow.operators.join.count_retention import Sizes
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.message_replay import refile
from windrow.operators.join.output import Columns, joined_schema, prefixes
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.operators.join.spans import spans
from windrow.operators.operator import FileAgain, Logic, Refiling
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import pack_rows, unpack_rows
from windrow.operators.steps.output_rows import output_rows, without_labels
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import (
    limit,
    passed,
)
from windrow.operators.view import View
from windrow.stores.kv import KV, Batch
from windrow.stores.message_store import Bound, Layout, MessageStore, PositionColumns, choose_layout

SIDES = ("left", "right")
OPEN, MATCHED = b"\x00", b"\x01"
#: Flag of a message that may be retracted; the number of its current partners follows as u64.
COUNTED = b"\x02"
#: The sides whose messages are followed until they expire: an unmatched message, or only its first match, makes a row.
FOLLOWED = {
    "inner": (),
    "left": (LEFT,),
    "right": (RIGHT,),
    "full": (LEFT, RIGHT),
    "semi": (LEFT,),
    "anti": (LEFT,),
    "asof": (LEFT,),
}


class StoredSides(Logic):
    """The state of a join, and the queries on it."""

    def __init__(self, definition: JoinDefinition) -> None:
        self.definition: JoinDefinition = definition
        self.reach = Reach(definition)
        self.aux_cf = f"{definition.name}.aux"
        self.pending_cf = f"{definition.name}.pending"
        self.open_cfs = tuple(f"{definition.name}.{side}.open" for side in SIDES)
        self.inputs = InputColumns(definition, self.aux_cf)
        self.readings = self.inputs.readings
        self.followed = FOLLOWED[definition.how]
        self.sizes = Sizes(definition, self.reach, self.aux_cf)
        #: The store with all messages that those of a step can match; None if it is the one that is written.
        self._before: KV | None = None
        self.stores = self._stores()

    def _stores(self) -> tuple[MessageStore, ...]:
        """Return the message stores of both sides."""
        return tuple(
            MessageStore(
                self._layout(side),
                f"{self.definition.name}.{name}.messages",
                f"{self.definition.name}.{name}.message_index",
                self._bucket(),
            )
            for side, name in enumerate(SIDES)
        )

    def _layout(self, side: int) -> Layout:
        """Choose a layout by seed 003's matrix."""
        definition = self.definition
        # A session is read as one range of a key.
        time_range = definition.within is not None and definition.sessions is None
        equal, large = bool(definition.on), definition.scale == "large" or definition.sizes == "key"
        return choose_layout(tuples=False, equal=equal, time_range=time_range, large=large)

    def _bucket(self) -> int:
        """Return the bucket width, in microseconds, by which messages are freed if fields come first."""
        if self.definition.sessions is not None:
            gap_us = MINUTE_US if self.definition.own_gap is not None else self.definition.sessions.sure_us
            return min(max(gap_us // 8, SECOND_US), HOUR_US)
        before, after = spans(self.definition.left, self.definition.right, self.definition.within)
        if self.definition.within is not None:
            span: int | None = self.definition.within.high_us - self.definition.within.low_us
        elif self.definition.scale == "small" and before is not None and after is not None:
            span = before + after
        else:
            span = None
        return HOUR_US if span is None else max(span // 8, SECOND_US)

    def cfs(self) -> tuple[str, ...]:
        followed = tuple(self.open_cfs[side] for side in self.followed)
        stored = tuple(cf for store in self.stores for cf in store.cfs)
        return (self.aux_cf, self.pending_cf, *followed, *stored, *self.sizes.cfs)

    def done(self, watermark_us: int) -> int:
        """Return the watermark less the allowed lateness; the end of time ends everything."""
        return passed(watermark_us, self.definition.allowed_lateness_us)

    def keys(self, rows: Slice, side: int, columns: Columns) -> list[bytes] | None:
        """Return encoded keys of rows: equal ones are equal on both sides, even if columns differ in type, and widen."""
        if not columns.keys:
            return None
        return encode_equal([as_type(combine(rows.table.column(k[1 + side])), k[3]) for k in columns.keys])

    def _decode(
        self, kv: KV, side: int, keys: Sequence[bytes], values: Sequence[bytes], schema: pa.Schema
    ) -> Slice:
        parts = [self.stores[side].split(key) for key in keys]
        table = unpack_rows(kv, self.aux_cf, values, [p.position for p in parts], schema)
        return Slice(table, np.array([p.time_us for p in parts], dtype=np.int64))

    def put(self, kv: KV, batch: Batch, side: int, rows: Slice, keys: list[bytes] | None) -> list[bytes]:
        """File messages; returns their keys in the store."""
        store, values = self.stores[side], pack_rows(kv, batch, self.aux_cf, rows.table)
        keys = keys if store.layout.has_fields else None
        return store.put_rows(batch, rows.times, positions_of(rows.table), keys, values)

    def file_again(
        self, kv: KV, batch: Batch, side: int, rows: Slice, keys: list[bytes] | None, step: int
    ) -> None:
        """File messages that are lost as they were. step: one of a shard that these are of, and no others are."""
        self.put(kv, batch, side, rows, keys)

    takes_columns = True

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        return output_rows(panes, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        left, right = inputs[self.definition.left.name], inputs[self.definition.right.name]
        return joined_schema(Columns.of(self.definition, left, right), left, right)

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        left, right = self.definition.left, self.definition.right
        sides = [inputs.get(given.name, pa.schema([])) for given in (left, right)]
        for given, schema in zip((left, right), sides, strict=True):
            for column in self.definition.columns_of(given) if given.name in inputs else ():
                if column not in schema.names:
                    raise UnknownColumn(
                        f"column {column!r} of input {given.name!r} is not in its schema, which has {schema.names}"
                    )
        Columns.of(self.definition, *sides)

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return without_labels(panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return _without_labels(self.schema(inputs))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        sides = self.inputs.known(kv)
        if sides is None:
            return None
        left, right = sides
        columns = Columns.of(self.definition, left, right, self.inputs.names(kv))
        return _without_labels(joined_schema(columns, left, right))

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        return self.inputs.schemas(kv)[LEFT if name == self.definition.left.name else RIGHT]

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.inputs.needs_of(kv, name, other_inputs)

    def called(self, input: str, column: str) -> tuple[str, ...]:
        side = 0 if input == self.definition.left.name else 1
        return column, f"{prefixes(self.definition)[side]}_{column}"

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        left, right = inputs[self.definition.left.name], inputs[self.definition.right.name]
        side = 1 if name == self.definition.left.name else 2
        return [(key[side], (key[3],)) for key in Columns.of(self.definition, left, right).keys]

    def refiling(self) -> Refiling:
        return FileAgain(
            logic=self,
            kept_from=self.kept_from,
            prepare=self.prepare,
            file=partial(refile, self),
            drop_expired=self._drop_expired,
            steps_at_once=1_000,
            checks_uncounted=self.definition.where is not None,
        )

    def prepare(self, kv: KV, scratch: KV) -> None:
        """Let columns keep the names that they have."""
        known = Batch()
        for key in (*self.inputs.stored_schemas.keys, NAMES):
            value = kv.get(self.aux_cf, key)
            if value is not None:
                known.put(self.aux_cf, key, value)
        scratch.write(known)

    def kept_from(self, kv: KV) -> int:
        """Return the event time below which no message is kept."""
        reached_us = Progress.load(kv, self.aux_cf).watermark_us
        return min(self._floor(side, reached_us, self.done(reached_us)) for side in (LEFT, RIGHT))

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        """Expire every message that can match no more: no match may follow a row that said there was none."""
        for side, given in enumerate((self.definition.left, self.definition.right)):
            if isinstance(given.window, Rows):
                continue  # not the watermark decides how long they can match
            self._cut(kv, side, self.reach.expired_before(side, self.done(progress.watermark_us)))
        super().set_back(kv, progress, watermark_us)

    def _cut(self, kv: KV, side: int, floor_us: int) -> None:
        """Delete older messages of a side, except newer followed ones that have not expired yet."""
        store, batch = self.stores[side], Batch()
        waiting = (
            {stored_key(value) for _, value in kv.scan(self.open_cfs[side])}
            if side in self.followed
            else set()
        )
        times = [(key, store.split(key).time_us) for key, _ in kv.scan(store.cf) if key not in waiting]
        batch.delete_many(
            store.cf, [key for key, time_us in times if time_us is not None and time_us < floor_us]
        )
        kv.write(batch)
        if side in self.sizes.sides:
            self.sizes.recount(kv, side, store)
            self.sizes.forget(kv, side, floor_us, START_OF_TIME_US)

    def _drop_expired(self, kv: KV) -> None:
        reached_us = Progress.load(kv, self.aux_cf).watermark_us
        self._forget(kv, reached_us, reached_us, self.done(reached_us))
        for side in self.sizes.sides:
            self.sizes.settle(kv, side, self.stores[side])

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        """Drop messages that can match no more and are out of retention, now that the watermark has come from `before_us`."""
        for side in (LEFT, RIGHT):
            batch, floor_us = Batch(), self._floor(side, watermark_us, done_us)
            if side in self.sizes.sides:
                self.sizes.recount(kv, side, self.stores[side], floor_us)
            self.stores[side].expire(kv, batch, floor_us)
            kv.write(batch)
            if side in self.sizes.sides:
                self.sizes.forget(kv, side, floor_us, done_us)

    def view(self, stores: Sequence[KV], watermark_us: int, prefix: str = "") -> View:
        from windrow.operators.join.views import JoinView

        return JoinView(self, stores, watermark_us, prefix)

    def columns(self, kv: KV) -> list[str]:
        """Return the columns of the join's rows, as known so far."""
        return self.inputs.called(kv, self.inputs.schemas(kv)).names

    def kept(self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None) -> Slice:
        """Return messages of a side from `start` to `end`, inclusive, in key order; of one key if the store has keys."""
        progress = Progress.load(kv, self.aux_cf)
        low = self._floor(side, progress.watermark_us, self.done(progress.watermark_us))
        start = start if start[0] >= low else (low, None)
        of_key = key if self.stores[side].layout.has_fields else None
        return self._between(kv, side, start, end, of_key, self.inputs.schemas(kv))

    def _between(
        self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None, sides: list[pa.Schema]
    ) -> Slice:
        found, values = self.stores[side].scan_between(kv, start, end, key)
        return self._decode(kv, side, found, values, sides[side])

    def lasting(self, kv: KV, side: int) -> int:
        """Return the side with all kept messages of an input: in a join with itself the one that expires later."""
        if not self.definition.is_self_join or self.definition.by_rows:
            return side
        reached_us = Progress.load(kv, self.aux_cf).watermark_us
        return min((LEFT, RIGHT), key=lambda s: self._floor(s, reached_us, self.done(reached_us)))

    def _floor(self, side: int, watermark_us: int, done_us: int) -> int:
        """Return the event time below which messages of a side have expired."""
        before = self.reach.expired_before(side, done_us)
        if watermark_us == END_OF_TIME_US:
            return before
        if self.definition.how == "asof" and side == LEFT:
            before = min(before, done_us)  # until then it waits for its answer
        kept_us = self.definition.retention.time_us
        return min(before, limit(watermark_us, UNBOUNDED_US if kept_us is None else kept_us))


def stored_key(value: bytes) -> bytes:
    """Return the key in the message store of a followed message."""
    return value[9:] if value[:1] == COUNTED else value[1:]


def positions_of(rows: pa.Table) -> PositionColumns:
    """Return the positions of messages, as columns."""
    partition, offset, ordinal = (rows.column(c).to_numpy() for c in (PARTITION, OFFSET, ORDINAL))
    return PositionColumns(rows.column(SOURCE), partition, offset, ordinal)


def _without_labels(rows: pa.Schema) -> pa.Schema:
    return pa.schema([f for f in rows if f.name not in RESERVED_COLUMNS])
