"""The join of two inputs over time: two pure steps on a store. Seed 003 "Join Window Operator", semantics "Joins".

`ingest(tables, now)` files the messages of both sides and emits their matches. `advance(watermark, now)` emits rows of expired
unmatched messages, releases deferred rows, and evicts. Each side has a message store. A side whose unmatched (or first
matched) messages matter also keeps `<time><position>` -> (flag, message key), in the order of expiry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_i64
from windrow.core.emit import EveryBatch
from windrow.core.errors import CorruptState, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.keys import encode_equal
from windrow.core.message_keys import message_keys
from windrow.core.policy import RESERVED_COLUMNS, UNBOUNDED_US
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, HOUR_US, MINUTE_US, SECOND_US, START_OF_TIME_US
from windrow.core.types import as_type
from windrow.core.windows import Rows
from windrow.operators.join.columns import NAMES, InputColumns, JoinStep, SideRows
from windrow.operators.join.count_retention import Sizes
from windrow.operators.join.deferred_rows import put_off, released
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.output import NOBODY, Columns, alone, joined_schema, prefixes
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.operators.join.spans import spans
from windrow.operators.join.tables import Raised, came_late, conform, holds, intervals, ranks, sound, stack
from windrow.operators.operator import FileAgain, Logic, Refiling
from windrow.operators.steps.arrivals import check_inputs, without_late
from windrow.operators.steps.columns import (
    EARLY,
    LATE,
    ON_TIME,
    STEP,
    TIMING,
)
from windrow.operators.steps.dead_letters import MALFORMED, OUT_OF_RETENTION, DeadLetters
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.input_filter import divided, further
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.message_rows import (
    empty_rows,
    pack_rows,
    positions_of,
    unpack_rows,
    with_positions,
)
from windrow.operators.steps.output_rows import labelled
from windrow.operators.steps.pairing import NO_KEY, Partners, pairs, partners
from windrow.operators.steps.poison_rows import OF_STEPS, sifted
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import Redone, StepResult, limit, passed
from windrow.operators.steps.work import begin_step
from windrow.operators.view import View
from windrow.stores.incremental_work import in_batches
from windrow.stores.kv import KV, Batch, Overlay
from windrow.stores.message_store import Bound, Layout, MessageStore, choose_layout
from windrow.stores.spill import Away

#: At most about so many pairs, and so many expiring messages, are in memory at once.
PAIRS, LEAVING = 1 << 19, 1 << 16
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


class JoinOperator(Logic):
    """The operator of one join on one store. It is stateless: everything is in the store that it receives."""

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

    # -- state, and the queries on it -------------------------------------------------------------------------------

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

    def file_again(self, kv: KV, batch: Batch, new: SideRows, step: int) -> None:
        """Store lost messages as they were. step: a number for these messages of the shard alone."""
        self.put(kv, batch, *new)

    takes_columns = True

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        left, right = inputs[self.definition.left.name], inputs[self.definition.right.name]
        return joined_schema(Columns.of(self.definition, left, right), left, right)

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        left, right = self.definition.left, self.definition.right
        sides = [inputs.get(input.name, pa.schema([])) for input in (left, right)]
        for input, schema in zip((left, right), sides, strict=True):
            for column in self.definition.columns_of(input) if input.name in inputs else ():
                if column not in schema.names:
                    raise UnknownColumn(
                        f"column {column!r} of input {input.name!r} is not in its schema, which has {schema.names}"
                    )
        Columns.of(self.definition, *sides)

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
        for side, input in enumerate((self.definition.left, self.definition.right)):
            if isinstance(input.window, Rows):
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
        """Drop filed messages that have expired. A followed static row is never late: one that is older than what has expired
        waits for the next advance, which emits it and drops the others.
        """
        reached_us = Progress.load(kv, self.aux_cf).watermark_us
        inputs = (self.definition.left, self.definition.right)
        if self.sizes.sides or not any(inputs[side].static for side in self.followed):
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

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.join.views import JoinView

        return JoinView(self, stores, watermark_us)

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
        keys, values = self.stores[side].scan_between(kv, start, end, key)
        return self._decode(kv, side, keys, values, sides[side])

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

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Emit rows of messages that can match no more, release deferred rows that are due, and evict."""
        step = self._begin(kv, now_us)
        progress, result = step.progress, step.result
        watermark_us = max(watermark_us, progress.watermark_us)
        emitted = Away(result.panes)
        for rows in self._going(step, watermark_us):
            if rows is not None and len(rows):
                result.panes.append(labelled(rows, ON_TIME))
                emitted.gathered()
        if result.panes:
            step.settle()
        over = watermark_us == END_OF_TIME_US
        emit = self.definition.emit
        for rows in released(kv, self.pending_cf, emit, progress.now_us, now_us, everything=over):
            result.panes.append(rows)
            emitted.gathered()
        self._forget(kv, progress.watermark_us, watermark_us, self.done(watermark_us))
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return step.end(self.aux_cf)

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        """File the messages of a step, by input, and emit their matches."""
        check_inputs(tables, self.definition.name, [input.name for input in self.definition.inputs])
        step = self._begin(kv, now_us)
        new, reached = self._counted(step, tables)
        self._take(step, new)
        for side in (LEFT,) if self.definition.is_self_join else (LEFT, RIGHT):
            step.result.marks.update(further(event_time_marks(new[side]), reached[side]))
        if step.result.panes or self.inputs.known(kv) is not None:
            step.settle()
        step.progress.begin(now_us)
        return step.end(self.aux_cf)

    def _begin(self, kv: KV, now_us: int) -> JoinStep:
        work = begin_step(kv, self.aux_cf, self.definition.dead_letter_limit, now_us)
        return JoinStep(**vars(work), inputs=self.inputs, sides=self.inputs.schemas(kv))

    # -- intake -----------------------------------------------------------------------------------------------------

    def _counted(
        self, step: JoinStep, tables: Mapping[str, pa.Table]
    ) -> tuple[list[Slice], list[Mapping[Partition, int]]]:
        """Return (the countable messages of each side, the times that its partitions reach by rejected ones)."""
        definition, new = self.definition, list[Slice]()
        reached: list[Mapping[Partition, int]] = [{}, {}]
        for side, input in enumerate((definition.left, definition.right)):
            again = side == RIGHT and definition.is_self_join
            if input.name not in tables:
                new.append(Slice(empty_rows(step.sides[side]), np.zeros(0, dtype=np.int64)))
                continue
            table = self.readings[side].in_known_times(tables[input.name], step.sides[side])
            step.sides[side] = self.inputs.learn(step.kv, side, step.sides[side], table.schema)
            table = with_positions(table, step.progress.step, input.source_prefix)
            # Messages of a join with itself are judged once.
            dead = DeadLetters(0) if again else step.dead
            dead.input = input.name
            on_time = partial(self._on_time, side, step.progress.watermark_us)
            rows, reached[side] = self.readings[side].arrivals(table, step.now_us, dead, on_time)
            new.append(rows)
        return [Slice(conform(s.table, step.sides[i]), s.times) for i, s in enumerate(new)], reached

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

    def _above_floor(self, step: JoinStep, side: int, rows: Slice) -> Slice:
        """Return the messages that are newer than all evicted ones of their group."""
        above = self.sizes.above(step.kv, side, self._open_keys(rows), self.keys(rows, side, step.columns))
        step.dead.input = self.definition.inputs[side].name
        detail = f"{self.definition.retention!r} has newer ones"
        return without_late(rows, ~above, step.dead, detail, OUT_OF_RETENTION)

    def _open_keys(self, rows: Slice) -> list[bytes]:
        return message_keys(rows.times, *positions_of(rows.table))

    def _take(self, step: JoinStep, new: list[Slice]) -> None:
        """File the messages of both sides, and emit their matches. Drops those that do not count."""
        for side in self.sizes.sides:
            new[side] = self._above_floor(step, side, new[side])
        if len(new[LEFT]) or len(new[RIGHT]):
            self._join(step, new)

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _join(self, step: JoinStep, new: Sequence[Slice]) -> None:
        """Match the new messages with each other and with stored ones, emit the matches, and file the messages."""
        kv, columns = step.kv, step.columns
        keys = [self.keys(new[side], side, columns) for side in (LEFT, RIGHT)]
        met: list[BoolArray] = [np.zeros(len(s), dtype=bool) for s in new]
        as_of = self.definition.how == "asof"
        if not as_of or self.definition.where is not None:
            stored = [self._partners(step, side, new[1 - side], keys[1 - side]) for side in (LEFT, RIGHT)]
            both = [stack(new[side], stored[side]) for side in (LEFT, RIGHT)]
            emitted = self._already_matched(step, both[LEFT], len(new[LEFT]))
            met, away = [np.zeros(len(rows), dtype=bool) for rows in both], Away(step.result.panes)
            for part, (li, ri) in enumerate(self._slices(new, both, columns)):
                if as_of:  # answered later: if its condition raises, the later message is the dead letter
                    continue
                met[LEFT][li] = met[RIGHT][ri] = True
                late = came_late(new, both, li, ri, step.progress.watermark_us)
                self._emit_pairs(step, both, li, ri, late, emitted, part)
                away.gathered()
            for side in self.followed:
                rows = np.flatnonzero(met[side])
                self._note_matches(step, side, both[side], rows, len(new[side]), len(new[1 - side]))
        batch = Batch()
        for side in (LEFT, RIGHT):
            self._file(step, batch, SideRows(side, new[side], keys[side]), met[side][: len(new[side])])
        kv.write(batch)

    def _partners(self, step: JoinStep, side: int, others: Slice, keys: list[bytes] | None) -> Slice:
        """Return stored messages of `side` that may be partners of new ones of the other side."""
        kv, store = step.kv, self.stores[side]
        if not len(others):
            return Slice(empty_rows(step.sides[side]), np.zeros(0, dtype=np.int64))
        low, high = self.reach.partners(1 - side, others.times)
        # If fields come first, messages out of retention may stay for a while; they match nothing any more.
        low = np.maximum(low, self._floor_now(step, side))
        high = np.maximum(high, low - 1)
        stored: list[bytes] = []
        values: list[bytes] = []
        if not store.layout.fields_first:
            wanted = set(keys or ())
            for start, end in intervals(low, high):
                more, their = store.scan(kv, start, end + 1, keys=wanted)
                stored += more
                values += their
        else:
            assert keys is not None
            ranges: dict[bytes, tuple[int, int]] = {}
            for key, a, b in zip(keys, low.tolist(), high.tolist(), strict=True):
                known = ranges.get(key)
                ranges[key] = (a, b) if known is None else (min(a, known[0]), max(b, known[1]))
            held = {key: ranges[key] for key in store.holding(kv, ranges)}
            stored, values = store.scan_keys(kv, held)
        return self._decode(kv, side, stored, values, step.sides[side])

    def _pairs(
        self, new: Sequence[Slice], both: Sequence[Slice], columns: Columns, raised: Raised | None = None
    ) -> tuple[IntArray, IntArray]:
        """Return (left row, right row) of `both` that match, at least one of them new. raised: as of `_matching`."""
        pairs = [p.of(np.arange(len(p.n))) for p in self._near(new, both, columns)]
        return self._matching(both, *_together(pairs, len(new[LEFT])), columns, raised)

    def _slices(
        self, new: Sequence[Slice], both: Sequence[Slice], columns: Columns
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield `_pairs` in slices of about `PAIRS`, all pairs of a left row together, in the order of the left rows."""
        near, first = self._near(new, both, columns), len(new[LEFT])
        n = np.concatenate([p.n for p in near])
        cuts = [np.arange(len(n), dtype=np.int64)]
        if n.sum() > PAIRS:
            order = np.argsort(ranks(both[LEFT]), kind="stable")
            cuts = np.split(order, np.flatnonzero(np.diff(np.cumsum(n[order]) // PAIRS)) + 1)
        for rows in cuts:
            pairs = [near[0].of(rows[rows < first]), near[1].of(rows[rows >= first] - first)]
            yield self._matching(both, *_together(pairs, first), columns)

    def _near(self, new: Sequence[Slice], both: Sequence[Slice], columns: Columns) -> list[Partners]:
        """Return the partners of new left messages among all right ones, and of stored ones among the new."""
        codes, n, near = self._codes(both, columns), [len(s) for s in new], []
        for left, right in ((slice(n[LEFT]), slice(None)), (slice(n[LEFT], None), slice(n[RIGHT]))):
            low, high = self.reach.partners(LEFT, both[LEFT].times[left])
            near.append(partners(codes[LEFT][left], low, high, codes[RIGHT][right], both[RIGHT].times[right]))
        return near

    def _codes(self, both: Sequence[Slice], columns: Columns) -> tuple[IntArray, IntArray]:
        """Return numbers of the keys of the rows of both sides; NO_KEY where a key is null."""
        n = len(both[LEFT])
        total = n + len(both[RIGHT])
        if not columns.keys:
            codes = np.zeros(total, dtype=np.int64)
            return codes[:n], codes[n:]
        merged = [
            pa.concat_arrays(
                [as_type(combine(both[side].table.column(name)), t) for side, name in ((LEFT, a), (RIGHT, b))]
            )
            for _, a, b, t in columns.keys
        ]
        codes = Groups(merged, total).codes.copy()
        for column in merged:
            if column.null_count:
                codes[column.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
        return codes[:n], codes[n:]

    def _matching(
        self,
        both: Sequence[Slice],
        li: IntArray,
        ri: IntArray,
        columns: Columns,
        raised: Raised | None = None,
    ) -> tuple[IntArray, IntArray]:
        """Return candidates that match by the windows and `where`. raised: gets the left rows on which `where` raises."""
        if len(li) and not self.reach.exact:
            good = self.reach.fits(both[LEFT].times[li], both[RIGHT].times[ri])
            li, ri = li[good], ri[good]
        where = self.definition.where
        if len(li) and where is not None:
            asked = partial(holds, where, self.definition, both, columns)
            good = asked(li, ri) if raised is None else sound(asked, li, ri, raised)
            li, ri = li[good], ri[good]
        return li, ri

    def _emit_pairs(
        self,
        step: JoinStep,
        both: Sequence[Slice],
        li: IntArray,
        ri: IntArray,
        is_late: BoolArray,
        emitted: BoolArray,
        part: int = 0,
    ) -> None:
        """Emit matches, or defer them to the end of their period. part: the number of their slice."""
        how = self.definition.how
        if how == "anti" or not len(li):
            return
        order = np.lexsort((ranks(both[RIGHT])[ri], ranks(both[LEFT])[li]))
        li, ri, is_late = li[order], ri[order], is_late[order]
        if how == "semi":
            first = np.sort(np.unique(li, return_index=True)[1])
            li, ri, is_late = li[first], ri[first], is_late[first]
            fresh = ~emitted[li]
            li, ri, is_late = li[fresh], ri[fresh], is_late[fresh]
        rows = step.columns.rows(both[LEFT].table, both[RIGHT].table, li, ri)
        rows = rows.append_column(TIMING, pa.array(np.where(is_late, LATE, EARLY).tolist(), pa.string()))
        emit = self.definition.emit
        at_once = np.zeros(len(rows), dtype=bool)
        for timing, trigger, mask in ((EARLY, emit.early, ~is_late), (LATE, emit.late, is_late)):
            if isinstance(trigger, EveryBatch):
                at_once |= mask
            elif mask.any():
                put_off(step.kv, self.pending_cf, timing, step.progress.step, part, rows, mask)
        if at_once.any():
            step.result.panes.append(rows if at_once.all() else rows.filter(pa.array(at_once)))

    def _already_matched(self, step: JoinStep, rows: Slice, new: int) -> BoolArray:
        """Return True for left messages that matched before, which a semi-join emits no more; the first `new` have not."""
        emitted = np.zeros(len(rows), dtype=bool)
        if self.definition.how == "semi" and len(rows) > new:
            keys = self._open_keys(rows.take(np.arange(new, len(rows))))
            values = step.kv.multi_get(self.open_cfs[LEFT], keys)
            emitted[new:] = [value is not None and value[:1] == MATCHED for value in values]
        return emitted

    def _note_matches(
        self, step: JoinStep, side: int, rows: Slice, matched: IntArray, new: int, others: int
    ) -> None:
        """Mark stored messages that have a match now. others: the number of new messages of the other side."""
        old = np.unique(matched[matched >= new])
        if not len(old):
            return
        keys = self._open_keys(rows.take(old))
        kv, cf = step.kv, self.open_cfs[side]
        batch = Batch()
        for key, value in zip(keys, kv.multi_get(cf, keys), strict=True):
            if value is not None and value[:1] == OPEN:
                batch.put(cf, key, MATCHED + value[1:])
        kv.write(batch)

    def _file(self, step: JoinStep, batch: Batch, new: SideRows, matched: BoolArray) -> None:
        side, rows, keys = new
        if not len(rows):
            return
        stored = self.put(step.kv, batch, side, rows, keys)
        if side in self.sizes.sides:
            floor_us = self._floor_now(step, side)
            self.sizes.note(step.kv, batch, side, self._open_keys(rows), keys, stored, floor_us)
        if side in self.followed:
            flags = [MATCHED + k if m else OPEN + k for k, m in zip(stored, matched.tolist(), strict=True)]
            batch.put_many(self.open_cfs[side], self._open_keys(rows), flags)

    def _floor_now(self, step: JoinStep, side: int) -> int:
        """Return the event time below which messages of a side had expired as the step began."""
        reached_us = step.progress.watermark_us
        return self._floor(side, reached_us, self.done(reached_us))

    # -- advance ----------------------------------------------------------------------------------------------------

    def _going(self, step: JoinStep, watermark_us: int) -> Iterator[pa.Table | None]:
        """Yield rows of messages that expire as the watermark advances: first those beyond the count limit, then by time."""
        yield from self._shrink(step) if self.sizes.sides else ()
        for side in self.followed:
            yield from self._leave(step, side, watermark_us)

    def _leave(self, step: JoinStep, side: int, watermark_us: int) -> Iterator[pa.Table | None]:
        """Expire messages of a followed side that can match no more; emit those that never matched."""
        cf, end = self.open_cfs[side], encode_i64(self._leaves_before(side, watermark_us))
        kv, batch = step.kv, Batch()
        for entries in in_batches(kv.scan(cf, b"", end), LEAVING):
            batch.delete_range(cf, b"", end)
            stored = [value[1:] for _, value in entries if value[:1] == OPEN]
            yield self._last_words(step, side, stored)
        kv.write(batch)

    def _leaves_before(self, side: int, watermark_us: int) -> int:
        """Return the event time before which messages of a followed side have no possible partners left."""
        done_us = self.done(watermark_us)
        if self.definition.how == "semi":
            # A static row may come at any time, and emits no row for stored messages that have matched.
            return self._floor(side, watermark_us, done_us)
        # As-of is complete when every right message up to its time has come.
        return done_us if self.definition.how == "asof" else self.reach.expired_before(side, done_us)

    def _shrink(self, step: JoinStep) -> Iterator[pa.Table | None]:
        """Evict the oldest messages beyond the count limit, as the previous steps left them, and yield their rows."""
        kv, batch = step.kv, Batch()
        for side in self.sizes.sides:
            floor_us = self._floor_now(step, side)
            places, stored = self.sizes.excess(kv, side, self.stores[side], floor_us, batch)
            if side in self.followed and places:
                flags = kv.multi_get(self.open_cfs[side], places)
                open_ = [key for key, flag in zip(stored, flags, strict=True) if (flag or b"")[:1] == OPEN]
                yield self._last_words(step, side, open_)
                batch.delete_many(self.open_cfs[side], places)
        kv.write(batch)

    def _last_words(self, step: JoinStep, side: int, stored: list[bytes]) -> pa.Table | None:
        """Return the rows of expiring messages of a followed side that never matched. stored: their keys in the store."""
        if self.definition.how == "semi" or not stored:
            return None
        values = [value for value in step.kv.multi_get(self.stores[side].cf, stored) if value is not None]
        if len(values) < len(stored):
            raise CorruptState(
                f"{len(stored) - len(values)} messages of {self.open_cfs[side]!r} are not in the message store"
            )
        return self._alone(step, side, self._decode(step.kv, side, stored, values, step.sides[side]))

    def _alone(self, step: JoinStep, side: int, rows: Slice) -> pa.Table | None:
        """Return the rows of unmatched messages, and for as-of the answers to left ones."""
        if self.definition.how == "asof":
            return self._as_of_rows(step, rows)
        return alone(rows, side, step.sides, step.columns)

    # -- as-of matching: each left message with the newest matching right one at or before it ------------------------

    def _as_of_rows(self, step: JoinStep, left: Slice) -> pa.Table:
        """Return the rows of left messages whose wait is over.

        Pairs are also matched on arrival, so that the later message is the dead letter if the condition raises. For pairs
        stored under another function of the same name, the left message is the dead letter.
        """
        columns, dead = step.columns, step.dead
        right = self._partners(step, RIGHT, left, self.keys(left, LEFT, columns))
        raised: Raised = {}
        best = self._latest(left, right, columns, raised)
        if raised:
            dead.input, rows = self.definition.left.name, np.array(sorted(raised), dtype=np.int64)
            why = [raised[row] for row in rows.tolist()]
            dead.add_rows(MALFORMED, why, left.table, rows, pa.array(left.times))
        rows = np.array([row for row in range(len(left)) if row not in raised], dtype=np.int64)
        return columns.rows(left.table, right.table, rows, best[rows])

    def _latest(self, left: Slice, right: Slice, columns: Columns, raised: Raised) -> IntArray:
        """Return for each left row the newest right one up to it, or NOBODY. raised: gets rows whose condition raises."""
        best = np.full(len(left), NOBODY, dtype=np.int64)
        codes = self._codes((left, right), columns)
        low, high = self.reach.partners(LEFT, left.times)
        li, ri = pairs(codes[LEFT], low, high, codes[RIGHT], right.times)
        li, ri = self._matching((left, right), li, ri, columns, raised)
        if len(li):
            order = np.lexsort((ranks(right)[ri], right.times[ri], li))
            last = np.flatnonzero(np.append(li[order][1:] != li[order][:-1], True))
            best[li[order][last]] = ri[order][last]
        return best


def _together(found: Sequence[tuple[IntArray, IntArray]], first: int) -> tuple[IntArray, IntArray]:
    """Combine pairs of the left rows before `first` with those of the left rows from it on."""
    (new_left, right), (old_left, new_right) = found
    return np.r_[new_left, old_left + first], np.r_[right, new_right]


def stored_key(value: bytes) -> bytes:
    """Return the key in the message store of a followed message."""
    return value[9:] if value[:1] == COUNTED else value[1:]


def _without_labels(rows: pa.Schema) -> pa.Schema:
    return pa.schema([f for f in rows if f.name not in RESERVED_COLUMNS])


def refile(operator: JoinOperator, kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
    """File messages of a join over time again, ingested by steps (`STEP`, an index) of these times. Returns the number of
    messages that are malformed themselves."""
    uncounted, nows_us, watermarks_us = 0, redone.nows_us, redone.watermarks_us
    definition, sides, batch = operator.definition, operator.inputs.schemas(kv), Batch()
    columns = operator.inputs.called(kv, sides)
    for side, input in enumerate((definition.left, definition.right)):
        if input.name not in tables:
            continue
        dead, table = DeadLetters(0), tables[input.name]
        if input.where is not None:
            # A message on which the filter raises did not count, nor did one without a time.
            filtered = partial(_divided, input.where)
            table, others = sifted(filtered, Overlay(kv), {input.name: table}, OF_STEPS)
            countable_rows(operator.readings[side], others, int(nows_us.max()), dead)
        rows = countable_rows(operator.readings[side], table, int(nows_us.max()), dead)
        step = combine(rows.table.column(STEP)).to_numpy()
        good = np.ones(len(rows), dtype=bool)
        if input.max_ahead_us is not None:
            good = rows.times <= nows_us[step] + input.max_ahead_us
        if side == 0 or not definition.is_self_join:
            uncounted += dead.counts.get(MALFORMED, 0) + int((~good).sum())
        if not input.static:
            done_us = np.array([operator.done(w) for w in watermarks_us.tolist()], dtype=np.int64)
            good &= operator.reach.open_until(side, rows.times) > done_us[step]
        rows, step = rows.take(np.flatnonzero(good)), step[good]
        rows = Slice(conform(rows.table, sides[side]), rows.times)
        if len(rows):
            keys = operator.keys(rows, side, columns)
            operator.file_again(kv, batch, SideRows(side, rows, keys), int(step.max()))
    kv.write(batch)
    return uncounted


def _divided(where: Expr, kv: KV, tables: Mapping[str, pa.Table]) -> tuple[pa.Table, pa.Table]:
    [table] = tables.values()
    return divided(where, table)
