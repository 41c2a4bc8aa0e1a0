"""The join with windows of rows: `ROWS n PRECEDING`. Semantics "Joins", "Windows of rows"; seed 003 case 2, tuple windows.

A side whose window counts messages numbers them on arrival. A message leaves the window when enough newer ones have come.
Messages lie by number, per key or per input, and not by time. Followed ones are under the same keys with (flag, event time).
The other side is kept as in a join over time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import bytes_to_i64_array, decode_i64, encode_i64, encode_u64
from windrow.core.errors import CorruptState
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import message_keys, position_prefix
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Rows
from windrow.operators.join.columns import JoinStep, SideRows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import MATCHED, OPEN, JoinOperator
from windrow.operators.join.output import Columns, alone
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import came_late, ranks, stack
from windrow.operators.operator import RunAgain, numbers_of
from windrow.operators.steps.columns import OFFSET, ON_TIME
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.message_rows import empty_rows, pack_rows, unpack_rows
from windrow.operators.steps.output_rows import labelled
from windrow.operators.steps.pairing import NO_KEY, pairs
from windrow.operators.steps.progress import Progress
from windrow.stores.kv import KV, Batch, scan_ranges
from windrow.stores.message_store import Bound, Layout, MessageStore
from windrow.stores.timers import TimerIndex

#: Auxiliary keys: the last number of a key, or of the input.
COUNT = (b"c0", b"c1")
UNMATCHED = (b"w0", b"w1")
#: The bytes after the fields in a key of the store, with the number 0 in them.
PLACE = position_prefix(("", 0, 0, 0))
#: Lengths at the end of a key in the store: the number with what follows it, and what follows it alone.
_TAIL, _END = 12, 4


class Entered(NamedTuple):
    """New messages of a side whose window counts, with their keys, their numbers, and a flag for matched ones."""

    rows: Slice
    keys: list[bytes] | None
    numbers: IntArray
    matched: BoolArray


class RowsJoinOperator(JoinOperator):
    """A join in which the window of a side counts messages."""

    def __init__(self, definition: JoinDefinition) -> None:
        super().__init__(definition)
        #: The unmatched messages of followed sides, by event time; a key as in its store.
        self._unmatched = {
            side: TimerIndex(self.aux_cf, UNMATCHED[side])
            for side in self.followed
            if self._rows(side) is not None
        }

    def _rows(self, side: int) -> Rows | None:
        """Return the window of a side, if it counts."""
        window = (self.definition.left.window, self.definition.right.window)[side]
        return window if isinstance(window, Rows) else None

    @property
    def _is_small(self) -> bool:
        return self.definition.scale == "small"

    def _stores(self) -> tuple[MessageStore, ...]:
        stores = list(super()._stores())
        for side, store in enumerate(stores):
            if self._rows(side) is not None and store.layout.has_fields and self._is_small:
                # By key they are listed in the index, under the numbers of their key.
                stores[side] = MessageStore(store.layout, store.index_cf, store.cf)
        return tuple(stores)

    def _layout(self, side: int) -> Layout:
        window = self._rows(side)
        if window is None:
            return super()._layout(side)
        keyed = window.per == "key" or not self._is_small
        return Layout.FIELDS_OFFSET if self.definition.on and keyed else Layout.OFFSET

    def _spread(self, side: int) -> bool:
        """True if messages with numbers of the whole input are filed by key: the index has the key of each number."""
        window = self._rows(side)
        return window is not None and window.per == "input" and self.stores[side].layout.has_fields

    def _listed(self, side: int) -> bool:
        """True if messages are filed under numbers of the whole input, and `stores` lists these numbers by key."""
        return self.stores[side].cf.endswith(".message_index")

    def cfs(self) -> tuple[str, ...]:
        unused = {
            store.index_cf
            for side, store in enumerate(self.stores)
            if (window := self._rows(side)) is not None
            and window.per == "key"
            and store.index_cf.endswith(".message_index")
        }
        return tuple(cf for cf in super().cfs() if cf not in unused)

    def refiling(self) -> RunAgain:
        return RunAgain(
            logic=self,
            kept_from=self.kept_from,
            prepare=self.prepare,
            reached=numbers_of(self, b"c0", b"c2"),
            why=f"{self.definition.name!r} numbers messages by all that came before them",
        )

    def _counter_keys(self, side: int, keys: list[bytes] | None, n: int) -> list[bytes]:
        """Return the counter key of each of `n` messages."""
        window = self._rows(side)
        assert window is not None
        if keys is None or window.per == "input":
            return [b""] * n
        return keys

    def _counts(self, kv: KV, side: int, keys: Sequence[bytes]) -> dict[bytes, int]:
        distinct = list(dict.fromkeys(keys))
        known = kv.multi_get(self.aux_cf, [COUNT[side] + k for k in distinct])
        return {k: 0 if v is None else int.from_bytes(v, "big") for k, v in zip(distinct, known, strict=True)}

    def _messages(self, kv: KV, side: int, values: Sequence[bytes]) -> list[bytes]:
        """Return the messages that a side's store holds or lists."""
        if not self._listed(side):
            return list(values)
        bodies = [m for m in kv.multi_get(self.stores[side].index_cf, values) if m is not None]
        if len(bodies) < len(values):
            raise CorruptState(f"{len(values) - len(bodies)} messages are listed that are not there")
        return bodies

    def _decode_numbered(self, kv: KV, side: int, values: Sequence[bytes], schema: pa.Schema) -> Slice:
        table = unpack_rows(kv, self.aux_cf, values, None, schema)
        if not len(table):
            return Slice(table, np.zeros(0, dtype=np.int64))
        reading = self.readings[side]
        times = event_times(
            table.column(reading.event_time), reading.event_time, reading.time_zone, reading.event_time_unit
        )
        return Slice(table, np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64))

    def _by_number(self, kv: KV, side: int, low: bytes, high: bytes | None) -> list[tuple[bytes, bytes]]:
        """Return stored keys of messages that are filed by key under numbers of the whole input, and these numbers' own."""
        pairs = kv.scan(self.stores[side].index_cf, low, high)
        return [(fields + FIELDS_END + number, number) for number, fields in pairs]

    def kept(self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None) -> Slice:
        if self._rows(side) is None:
            return super().kept(kv, side, start, end, key)
        progress = Progress.load(kv, self.aux_cf)
        store = self.stores[side]
        floor_us = self._floor(side, progress.watermark_us, self.done(progress.watermark_us))
        of_key = key if store.layout.has_fields else None
        _, values = store.scan_between(kv, (0, None), (0, None), of_key)
        values = self._messages(kv, side, values)
        rows = self._decode_numbered(kv, side, values, self.inputs.schemas(kv)[side])
        offsets = rows.table.column(OFFSET).to_numpy()
        mask = (rows.times >= max(start[0], floor_us)) & (rows.times <= end[0])
        if isinstance(start[1], int):
            mask &= (rows.times > start[0]) | (offsets >= start[1])
        if isinstance(end[1], int):
            mask &= (rows.times < end[0]) | (offsets <= end[1])
        return rows.take(np.flatnonzero(mask))

    def _file_by_offset(
        self, kv: KV, batch: Batch, side: int, values: Sequence[bytes], at: IntArray, n: int
    ) -> list[bytes]:
        """File messages under numbers of the whole input; returns these keys. at: their indices among `n` new ones."""
        before = self._counts(kv, side, [b""])[b""]
        zeros = np.zeros(len(values), dtype=np.int64)
        keys = message_keys(None, pa.array([""] * len(values)), zeros, before + 1 + at, zeros)
        batch.put_many(self.stores[side].index_cf, keys, values)
        batch.put(self.aux_cf, COUNT[side], encode_u64(before + n))
        return keys

    def _drop_pushed(self, kv: KV, batch: Batch, side: int, stored: Sequence[bytes]) -> None:
        """Delete the messages under these keys in the store."""
        store = self.stores[side]
        if self._listed(side):
            there = [value for value in kv.multi_get(store.cf, stored) if value is not None]
            batch.delete_many(store.index_cf, there)
        elif self._spread(side) and stored:
            numbers = [key[-len(PLACE) :] for key in stored]
            batch.delete_range(store.index_cf, min(numbers), max(numbers) + b"\x00")
        batch.delete_many(store.cf, stored)
        if side in self.followed:
            batch.delete_many(self.open_cfs[side], stored)

    def _drop(self, kv: KV, batch: Batch, side: int, low: bytes, high: bytes) -> None:
        """Delete the messages of one counter with numbers in that range."""
        store = self.stores[side]
        if self._listed(side):
            batch.delete_many(store.index_cf, [key for _, key in kv.scan(store.cf, low, high)])
        if self._spread(side):
            gone = [key for key, _ in self._by_number(kv, side, low, high)]
            batch.delete_many(store.cf, gone)
            if side in self.followed:
                batch.delete_many(self.open_cfs[side], gone)
            batch.delete_range(store.index_cf, low, high)
            return
        batch.delete_range(store.cf, low, high)
        if side in self.followed:
            batch.delete_range(self.open_cfs[side], low, high)

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        for side in (LEFT, RIGHT):
            batch = Batch()
            if self._rows(side) is None:
                self.stores[side].expire(kv, batch, self._floor(side, watermark_us, done_us))
            elif done_us == END_OF_TIME_US:
                self._drop(kv, batch, side, b"", b"\xff")
                batch.delete_range(self.aux_cf, COUNT[side], COUNT[side] + b"\xff")
            else:
                self._sweep(
                    kv, batch, side, before_us, self._floor(side, watermark_us, done_us), watermark_us
                )
            kv.write(batch)

    def _sweep(
        self, kv: KV, batch: Batch, side: int, before_us: int, floor_us: int, watermark_us: int
    ) -> None:
        """Free the messages of keys that never return, from the oldest number on, eight times in a retention."""
        kept_us = self.definition.retention.time_us
        if kept_us is None:
            return
        period_us = max(kept_us // 8, 1)
        if watermark_us // period_us <= before_us // period_us:
            return
        store, schema = self.stores[side], self.inputs.schemas(kv)[side]
        if self._spread(side):
            entries = self._by_number(kv, side, b"", None)
            values = [v for v in kv.multi_get(store.cf, [key for key, _ in entries]) if v is not None]
        else:
            pairs = list(kv.scan(store.cf))
            entries = [(key, key) for key, _ in pairs]
            values = self._messages(kv, side, [value for _, value in pairs])
        rows = self._decode_numbered(kv, side, values, schema)
        #: By counter: its fields and the last evicted number; the counters with remaining messages.
        gone: dict[bytes, tuple[bytes, bytes]] = {}
        stays: set[bytes] = set()
        for (key, number), time_us in zip(entries, rows.times.tolist(), strict=True):
            fields = b"" if self._spread(side) else store.split(key).fields
            head = b"" if not fields else fields + FIELDS_END
            if time_us >= floor_us:
                stays.add(head)
            elif head not in stays:
                gone[head] = (fields or b"", number)
        for head, (_, last) in gone.items():
            self._drop(kv, batch, side, head + position_prefix(("", 0)), last + b"\x00")
        # A key without any messages left may restart its count.
        ended = [fields for head, (fields, _) in gone.items() if head not in stays]
        batch.delete_many(self.aux_cf, [COUNT[side] + fields for fields in ended])

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _join(self, step: JoinStep, new: Sequence[Slice]) -> None:
        kv, columns = step.kv, step.columns
        keys = [self.keys(new[side], side, columns) for side in (LEFT, RIGHT)]
        numbers = [self._number(kv, side, new[side], keys[side]) for side in (LEFT, RIGHT)]
        stored, held = [], []
        for side in (LEFT, RIGHT):
            rows, at = self._window(step, side, new, keys)
            stored.append(rows)
            held.append(at)
        both = [stack(new[side], stored[side]) for side in (LEFT, RIGHT)]
        li, ri = self._phases(kv, new, both, numbers, held, keys, columns)
        matched = [np.zeros(len(s), dtype=bool) for s in new]
        for side, rows_of in ((LEFT, li), (RIGHT, ri)):
            matched[side][rows_of[rows_of < len(new[side])]] = True
        late = came_late(new, both, li, ri, step.progress.watermark_us)
        before = (
            self._already_matched(step, both[LEFT], len(new[LEFT]))
            if self._rows(LEFT) is None
            else self._already_matched_numbered(kv, held[LEFT], len(new[LEFT]))
        )
        self._emit_pairs(step, both, li, ri, late, before)
        for side in self.followed:
            old = (li, ri)[side]
            if self._rows(side) is None:
                self._note_matches(step, side, both[side], old, len(new[side]), len(new[1 - side]))
            else:
                self._note_numbered(kv, side, held[side], old[old >= len(new[side])] - len(new[side]))
        batch = Batch()
        for side in (LEFT, RIGHT):
            if self._rows(side) is None:
                self._file(step, batch, SideRows(side, new[side], keys[side]), matched[side])
        for side in (LEFT, RIGHT):
            if self._rows(side) is not None and len(new[side]):
                entered = Entered(new[side], keys[side], numbers[side], matched[side])
                emitted = self._displace(step, batch, side, entered)
                if emitted is not None:
                    step.result.panes.append(labelled(emitted, ON_TIME))
        kv.write(batch)

    def _number(self, kv: KV, side: int, rows: Slice, keys: list[bytes] | None) -> IntArray:
        """Return the number of each new message."""
        if self._rows(side) is None:
            return np.zeros(len(rows), dtype=np.int64)
        counted = self._counter_keys(side, keys, len(rows))
        counts = self._counts(kv, side, counted)
        numbers = []
        for key in counted:
            counts[key] += 1
            numbers.append(counts[key])
        return np.array(numbers, dtype=np.int64)

    def _window(
        self, step: JoinStep, side: int, new: Sequence[Slice], keys: Sequence[list[bytes] | None]
    ) -> tuple[Slice, list[bytes]]:
        """Return stored messages of `side` that new ones of the other may match, and their keys in the store."""
        kv, window = step.kv, self._rows(side)
        if window is None:
            return self._partners(step, side, new[1 - side], keys[1 - side]), []
        if not len(new[1 - side]):
            return Slice(empty_rows(step.sides[side]), np.zeros(0, dtype=np.int64)), []
        store = self.stores[side]
        counters = self._counter_keys(side, keys[1 - side], len(new[1 - side]))
        counts = self._counts(kv, side, counters)
        wanted = (keys[1 - side] or counters) if self._spread(side) else counters
        ranges = []
        for key, counter in set(zip(wanted, counters, strict=True)):
            head, count = key + FIELDS_END if store.layout.has_fields else b"", counts[counter]
            first = max(count - window.n + 1, 1)
            if count:
                head += PLACE[:-_TAIL]
                ranges.append((head + encode_i64(first), head + encode_i64(count + 1)))
        pairs = scan_ranges(kv, store.cf, sorted(ranges))
        values = self._messages(kv, side, [value for _, value in pairs])
        return self._decode_numbered(kv, side, values, step.sides[side]), [key for key, _ in pairs]

    def _phases(
        self,
        kv: KV,
        new: Sequence[Slice],
        both: Sequence[Slice],
        numbers: Sequence[IntArray],
        held: Sequence[list[bytes]],
        keys: Sequence[list[bytes] | None],
        columns: Columns,
    ) -> tuple[IntArray, IntArray]:
        """Match new left messages with the stored right ones, then new right ones with all left ones by then."""
        codes = self._codes(both, columns)
        n_left, n_right = len(new[LEFT]), len(new[RIGHT])
        phases = []
        left, right = slice(n_left), slice(n_right, None)
        low, high = self.reach.partners(LEFT, both[LEFT].times)
        li, ri = pairs(
            codes[LEFT][left], low[left], high[left], codes[RIGHT][right], both[RIGHT].times[right]
        )
        phases.append((li, ri + n_right))
        present = codes[LEFT].copy()
        window = self._rows(LEFT)
        if window is not None:
            present[~self._newest(kv, window, numbers[LEFT], held[LEFT], keys[LEFT])] = NO_KEY
        li, ri = pairs(present, low, high, codes[RIGHT][:n_right], both[RIGHT].times[:n_right])
        phases.append((li, ri))
        return self._matching(
            both, np.concatenate([f[0] for f in phases]), np.concatenate([f[1] for f in phases]), columns
        )

    def _newest(
        self, kv: KV, window: Rows, numbers: IntArray, held: list[bytes], keys: list[bytes] | None
    ) -> BoolArray:
        """True for the left messages, new and stored, that are still in the window after the new ones came."""
        counted = self._counter_keys(LEFT, keys, len(numbers))
        last = {}
        for key, number in zip(counted, numbers.tolist(), strict=True):
            last[key] = number
        fields = self.stores[LEFT].layout.has_fields and window.per == "key"
        of = [key[: -len(PLACE) - len(FIELDS_END)] for key in held] if fields else [b""] * len(held)
        before = self._counts(kv, LEFT, of)
        of_new = [last[k] - n < window.n for k, n in zip(counted, numbers.tolist(), strict=True)]
        of_stored = [last.get(k, before[k]) - n < window.n for k, n in zip(of, _numbers(held), strict=True)]
        return np.array(of_new + of_stored, dtype=bool)

    def _already_matched_numbered(self, kv: KV, held: list[bytes], new: int) -> BoolArray:
        """Return True for left messages under these keys that matched before, as `_already_matched`."""
        emitted = np.zeros(new + len(held), dtype=bool)
        if self.definition.how == "semi" and held:
            values = kv.multi_get(self.open_cfs[LEFT], held)
            emitted[new:] = [value is not None and value[:1] == MATCHED for value in values]
        return emitted

    def _note_numbered(self, kv: KV, side: int, held: list[bytes], matched: IntArray) -> None:
        keys = [held[i] for i in np.unique(matched).tolist()]
        batch = Batch()
        for key, value in zip(keys, kv.multi_get(self.open_cfs[side], keys), strict=True):
            if value is not None:
                batch.put(self.open_cfs[side], key, MATCHED + value[1:])
                if value[:1] == OPEN:
                    self._unmatched[side].cancel(batch, decode_i64(value, 1), key)
        kv.write(batch)

    def _file_numbered(self, kv: KV, batch: Batch, side: int, entered: Entered, stays: BoolArray) -> None:
        """File those that stay."""
        kept, store = np.flatnonzero(stays), self.stores[side]
        for key, number in zip(
            self._counter_keys(side, entered.keys, len(stays)), entered.numbers.tolist(), strict=True
        ):
            batch.put(self.aux_cf, COUNT[side] + key, encode_u64(number))
        rows, n = entered.rows.take(kept), len(kept)
        keys = None if entered.keys is None else [entered.keys[i] for i in kept.tolist()]
        values = pack_rows(kv, batch, self.aux_cf, rows.table, with_positions=True)
        zeros = np.zeros(n, dtype=np.int64)
        where = (pa.array([""] * n), zeros, entered.numbers[kept], zeros)
        # Not by `put_rows`, whose index serves an expiry by time that windows of rows do not have.
        stored = store.row_keys(None, where, keys if store.layout.has_fields else None)
        if self._listed(side):
            values = self._file_by_offset(kv, batch, side, values, kept, len(stays))
        if self._spread(side):
            assert keys is not None
            batch.put_many(store.index_cf, message_keys(None, *where), keys)
        batch.put_many(store.cf, stored, values)
        if side in self.followed:
            times, matched = [encode_i64(t) for t in rows.times.tolist()], entered.matched[kept]
            flags = [(MATCHED if m else OPEN) + t for m, t in zip(matched.tolist(), times, strict=True)]
            batch.put_many(self.open_cfs[side], stored, flags)
            opened = np.flatnonzero(~matched)
            self._unmatched[side].set_many(batch, rows.times[opened], [stored[i] for i in opened.tolist()])

    def _displace(self, step: JoinStep, batch: Batch, side: int, entered: Entered) -> pa.Table | None:
        """File the new messages, evict those pushed out of the window, and return the unmatched ones as rows."""
        kv, window = step.kv, self._rows(side)
        assert window is not None
        counters, numbers = self._counter_keys(side, entered.keys, len(entered.rows)), entered.numbers
        last = dict(zip(counters, numbers.tolist(), strict=True))
        stays = np.array([last[k] for k in counters], dtype=np.int64) - numbers < window.n
        pushed = self._pushed(kv, side, window, counters, last)
        lonely, rows = list[bytes](), entered.rows.take(np.flatnonzero(~stays & ~entered.matched))
        if side in self.followed:
            flags = zip(pushed, kv.multi_get(self.open_cfs[side], pushed), strict=True)
            unmatched = [(key, flag) for key, flag in flags if flag is not None and flag[:1] == OPEN]
            lonely = [key for key, _ in unmatched]
            times = np.array([decode_i64(flag, 1) for _, flag in unmatched], dtype=np.int64)
            self._unmatched[side].cancel_many(batch, times, lonely)
        else:
            rows = rows.take(np.zeros(0, dtype=np.int64))
        emitted = self._lonely(step, side, lonely, rows)
        self._drop_pushed(kv, batch, side, pushed)
        self._file_numbered(kv, batch, side, entered, stays)
        return emitted

    def _pushed(
        self, kv: KV, side: int, window: Rows, counters: Sequence[bytes], last: Mapping[bytes, int]
    ) -> list[bytes]:
        """Return the keys in the store of stored messages that newer ones push out of the window."""
        store, pushed = self.stores[side], list[bytes]()
        for counter, came in Counter(counters).items():
            before = last[counter] - came
            first, end = max(before - window.n + 1, 1), min(before, last[counter] - window.n) + 1
            if self._spread(side):
                low, high = (position_prefix(("", 0, number)) for number in (first, end))
                pushed += [key for key, _ in self._by_number(kv, side, low, high)] if first < end else []
                continue
            head = counter + FIELDS_END if store.layout.has_fields else b""
            pushed += [head + PLACE[:-_TAIL] + encode_i64(n) + PLACE[-_END:] for n in range(first, end)]
        return pushed

    def _lonely(
        self, step: JoinStep, side: int, stored: list[bytes], others: Slice | None = None
    ) -> pa.Table | None:
        """Return the rows of unmatched messages: those stored under these keys, and others."""
        if not (stored or others) or self.definition.how == "semi":
            return None
        kv = step.kv
        values = [v for v in kv.multi_get(self.stores[side].cf, stored) if v is not None]
        unmatched = self._decode_numbered(kv, side, self._messages(kv, side, values), step.sides[side])
        unmatched = unmatched if others is None else stack(others, unmatched)
        order = np.lexsort((ranks(unmatched), unmatched.times))
        return alone(unmatched.take(order), side, step.sides, step.columns)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _leave(self, step: JoinStep, side: int, watermark_us: int) -> Iterator[pa.Table | None]:
        if self._rows(side) is None:
            yield from super()._leave(step, side, watermark_us)
            return
        done_us = self.done(watermark_us)
        before = self.reach.expired_before(side, done_us)
        kv, cf, batch = step.kv, self.open_cfs[side], Batch()
        due = self._unmatched[side].pop(kv, batch, before - 1)
        batch.put_many(cf, due.keys, [MATCHED + encode_i64(us) for us in due.times.tolist()])
        emitted = self._lonely(step, side, due.keys)
        if done_us == END_OF_TIME_US:
            batch.delete_range(cf, b"", b"\xff")
        kv.write(batch)
        yield emitted


def _numbers(held: Sequence[bytes]) -> list[int]:
    """Return the numbers of messages under these keys in the store."""
    packed = np.frombuffer(b"".join([key[-_TAIL:-_END] for key in held]), dtype=np.uint8)
    numbers: list[int] = bytes_to_i64_array(packed.reshape(-1, 8)).tolist()
    return numbers
