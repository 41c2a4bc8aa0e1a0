"""The join with windows of rows: `ROWS n PRECEDING`. Semantics "Joins", "Windows of rows"; seed 003 case 2, tuple windows.

A side whose window counts messages numbers them, per key or per input, and keeps them under their numbers; its followed
messages are under the same keys with (flag, event time). The other side is kept as in a join over time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_i64, encode_u64
from windrow.core.errors import CorruptState
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import message_keys, position_prefix
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Rows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import JoinOperator, alone
from windrow.operators.join.output import Columns
from windrow.operators.join.pairing import NO_KEY, pairs
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.stored import MATCHED, OPEN
from windrow.operators.join.tables import ranks, stack
from windrow.operators.join.waiting import Waiting
from windrow.operators.operator import RunAgain
from windrow.operators.steps.columns import OFFSET, ON_TIME
from windrow.operators.steps.filed_rows import empty_rows, pack_rows, unpack_rows
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.told import labelled
from windrow.stores.kv import KV, Batch
from windrow.stores.messages import Bound, Layout, MessageStore

_COUNT = (b"c0", b"c1")


class RowsJoinOperator(JoinOperator):
    """A join of which a side's window counts messages."""

    def __init__(self, definition: JoinDefinition) -> None:
        super().__init__(definition)
        self._waiting = {
            side: Waiting(side, self.open_cfs[side], self.aux_cf)
            for side in self.followed
            if self._rows(side) is not None
        }

    def _begin(self, kv: KV) -> Progress:
        progress = super()._begin(kv)
        for waiting in self._waiting.values():
            waiting.begin(kv)
        return progress

    def _stores(self, *, former: bool) -> tuple[MessageStore, ...]:
        made = list(super()._stores(former=former))
        for side, store in enumerate(made):
            if not former and self._rows(side) is not None and store.layout.has_fields and self._is_small:
                # By key they are listed in the index, under the numbers of their key.
                made[side] = MessageStore(store.layout, store.index_cf, store.cf)
        return tuple(made)

    @property
    def _is_small(self) -> bool:
        return self.definition.scale == "small"

    def _layout(self, side: int, *, former: bool) -> Layout:
        window = self._rows(side)
        if window is None:
            return super()._layout(side, former=former)
        # Former versions kept what is counted per input under its number, however large the window.
        keyed = window.per == "key" or not (former or self._is_small)
        return Layout.FIELDS_OFFSET if self.definition.on and keyed else Layout.OFFSET

    def _spread(self, side: int) -> bool:
        """True if messages with numbers of the whole input lie by key: the index has the key of each number."""
        window = self._rows(side)
        return window is not None and window.per == "input" and self.stores[side].layout.has_fields

    def _listed(self, side: int) -> bool:
        """True if messages lie under numbers of the whole input, and `stores` lists these numbers by key."""
        return self.stores[side].cf.endswith(".message_index")

    def _messages(self, kv: KV, side: int, values: Sequence[bytes]) -> list[bytes]:
        """The messages that stand in a side's store, or are listed there."""
        if not self._listed(side):
            return list(values)
        found = [m for m in kv.multi_get(self.stores[side].index_cf, values) if m is not None]
        if len(found) < len(values):
            raise CorruptState(f"{len(values) - len(found)} messages are listed that are not there")
        return found

    def refiling(self) -> RunAgain:
        return RunAgain(logic=self, kept_from=self.kept_from, numbered=(b"c0", b"c2"), prepare=self._prepare)

    def _prepare(self, kv: KV, scratch: KV) -> None:
        mark = Batch()
        self.mark(mark, former=self.bind(kv, self.progress(kv)))
        scratch.write(mark)

    def cfs(self) -> tuple[str, ...]:
        unused = {
            store.index_cf
            for side, store in enumerate(self._present)
            if (window := self._rows(side)) is not None
            and window.per == "key"
            and store.index_cf.endswith(".message_index")
        }
        return tuple(cf for cf in super().cfs() if cf not in unused)

    def _rows(self, side: int) -> Rows | None:
        """The window of a side, if it counts."""
        window = (self.definition.left.window, self.definition.right.window)[side]
        return window if isinstance(window, Rows) else None

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _join(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        new: Sequence[Slice],
        sides: list[pa.Schema],
        columns: Columns,
    ) -> None:
        keys = [self.keys(new[side], side, columns) for side in (LEFT, RIGHT)]
        numbers = [self._number(kv, side, new[side], keys[side]) for side in (LEFT, RIGHT)]
        stored, held = [], []
        for side in (LEFT, RIGHT):
            rows, at = self._window(kv, side, new, keys, sides)
            stored.append(rows)
            held.append(at)
        both = [stack(new[side], stored[side]) for side in (LEFT, RIGHT)]
        li, ri = self._phases(kv, new, both, numbers, held, keys, columns)
        matched = [np.zeros(len(s), dtype=bool) for s in new]
        for side, rows_of in ((LEFT, li), (RIGHT, ri)):
            matched[side][rows_of[rows_of < len(new[side])]] = True
        late = [both[side].times < progress.watermark_us for side in (LEFT, RIGHT)]
        before = (
            self._told(kv, both[LEFT], len(new[LEFT]))
            if self._rows(LEFT) is None
            else self._told_numbered(kv, held[LEFT], len(new[LEFT]))
        )
        self._tell_pairs(kv, progress, result, new, both, li, ri, late, before, columns)
        for side in self.followed:
            old = (li, ri)[side]
            if self._rows(side) is None:
                self._note_matches(kv, side, both[side], old, len(new[side]))
            else:
                self._note_numbered(kv, side, held[side], old[old >= len(new[side])] - len(new[side]))
        batch = Batch()
        for side in (LEFT, RIGHT):
            if self._rows(side) is None:
                self._file(kv, batch, side, new[side], keys[side], matched[side])
            else:
                self._file_numbered(kv, batch, side, new[side], keys[side], numbers[side], matched[side])
        kv.write(batch)
        for side in (LEFT, RIGHT):
            if self._rows(side) is not None:
                told = self._displace(kv, side, keys[side], len(new[side]), sides, columns)
                if told is not None:
                    result.panes.append(labelled(told, ON_TIME))

    def _counter_keys(self, side: int, keys: list[bytes] | None, n: int) -> list[bytes]:
        """What each of `n` messages is counted under."""
        window = self._rows(side)
        assert window is not None
        if keys is None or window.per == "input":
            return [b""] * n
        return keys

    def _counts(self, kv: KV, side: int, keys: Sequence[bytes]) -> dict[bytes, int]:
        distinct = list(dict.fromkeys(keys))
        found = kv.multi_get(self.aux_cf, [_COUNT[side] + k for k in distinct])
        return {k: 0 if v is None else int.from_bytes(v, "big") for k, v in zip(distinct, found, strict=True)}

    def _number(self, kv: KV, side: int, rows: Slice, keys: list[bytes] | None) -> IntArray:
        """The number of each new message."""
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
        self,
        kv: KV,
        side: int,
        new: Sequence[Slice],
        keys: Sequence[list[bytes] | None],
        sides: list[pa.Schema],
    ) -> tuple[Slice, list[bytes]]:
        """Stored messages of `side` that new ones of the other may meet, and their keys in the store."""
        window = self._rows(side)
        if window is None:
            return self._partners(kv, side, new[1 - side], keys[1 - side], sides), []
        if not len(new[1 - side]):
            return Slice(empty_rows(sides[side]), np.zeros(0, dtype=np.int64)), []
        store = self.stores[side]
        counters = self._counter_keys(side, keys[1 - side], len(new[1 - side]))
        counts = self._counts(kv, side, counters)
        wanted = (keys[1 - side] or counters) if self._spread(side) else counters
        found: list[bytes] = []
        values: list[bytes] = []
        for key, counter in sorted(set(zip(wanted, counters, strict=True))):
            count = counts[counter]
            first = max(count - window.n + 1, 1)
            of_key = key if store.layout.has_fields else None
            more, their = store.scan_between(kv, (0, ("", 0, first)), (0, ("", 0, count)), of_key)
            found += more
            values += their
        return self._decode_numbered(kv, side, self._messages(kv, side, values), sides[side]), found

    def _decode_numbered(self, kv: KV, side: int, values: Sequence[bytes], schema: pa.Schema) -> Slice:
        table = unpack_rows(kv, self.aux_cf, values, None, schema)
        if not len(table):
            return Slice(table, np.zeros(0, dtype=np.int64))
        intake = self.intakes[side]
        times = event_times(
            table.column(intake.event_time), intake.event_time, intake.time_zone, intake.event_time_unit
        )
        return Slice(table, np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64))

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
        """First new left messages with what is stored of the right, then new right ones with all that is left by then."""
        codes = self._codes(both, columns)
        n_left, n_right = len(new[LEFT]), len(new[RIGHT])
        found = []
        left, right = slice(n_left), slice(n_right, None)
        low, high = self.reach.partners(LEFT, both[LEFT].times)
        li, ri = pairs(
            codes[LEFT][left], low[left], high[left], codes[RIGHT][right], both[RIGHT].times[right]
        )
        found.append((li, ri + n_right))
        present = codes[LEFT].copy()
        window = self._rows(LEFT)
        if window is not None:
            present[~self._newest(kv, window, numbers[LEFT], held[LEFT], keys[LEFT])] = NO_KEY
        li, ri = pairs(present, low, high, codes[RIGHT][:n_right], both[RIGHT].times[:n_right])
        found.append((li, ri))
        return self._matching(
            both, np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]), columns
        )

    def _newest(
        self, kv: KV, window: Rows, numbers: IntArray, held: list[bytes], keys: list[bytes] | None
    ) -> BoolArray:
        """True for the left messages, new and stored, that are still in the window after the new ones came."""
        counted = self._counter_keys(LEFT, keys, len(numbers))
        last = {}
        for key, number in zip(counted, numbers.tolist(), strict=True):
            last[key] = number
        parts = [self.stores[LEFT].split(key) for key in held]
        per_key = window.per == "key"
        stored = [((p.fields or b"") if per_key else b"", p.position[2]) for p in parts]
        before = self._counts(kv, LEFT, [k for k, _ in stored])
        mine = [last[k] - n < window.n for k, n in zip(counted, numbers.tolist(), strict=True)]
        theirs = [last.get(k, before[k]) - n < window.n for k, n in stored]
        return np.array(mine + theirs, dtype=bool)

    def _told_numbered(self, kv: KV, held: list[bytes], new: int) -> BoolArray:
        """As `_told`, of messages under these keys."""
        told = np.zeros(new + len(held), dtype=bool)
        if self.definition.how == "semi" and held:
            found = kv.multi_get(self.open_cfs[LEFT], held)
            told[new:] = [value is not None and value[:1] == MATCHED for value in found]
        return told

    def _note_numbered(self, kv: KV, side: int, held: list[bytes], matched: IntArray) -> None:
        keys = [held[i] for i in np.unique(matched).tolist()]
        batch = Batch()
        for key, value in zip(keys, kv.multi_get(self.open_cfs[side], keys), strict=True):
            if value is not None:
                batch.put(self.open_cfs[side], key, MATCHED + value[1:])
                self._waiting[side].remove(batch, [(key, value)])
        kv.write(batch)

    def _file_numbered(
        self,
        kv: KV,
        batch: Batch,
        side: int,
        rows: Slice,
        keys: list[bytes] | None,
        numbers: IntArray,
        matched: BoolArray,
    ) -> None:
        if not len(rows):
            return
        store = self.stores[side]
        values = pack_rows(kv, batch, self.aux_cf, rows.table, with_positions=True)
        zeros = np.zeros(len(rows), dtype=np.int64)
        where = (pa.array([""] * len(rows)), zeros, numbers, zeros)
        # Not by `put_rows`, whose index serves an expiry by time that windows of rows do not have.
        stored = store.row_keys(None, where, keys if store.layout.has_fields else None)
        if self._listed(side):
            values = self._file_by_offset(kv, batch, side, values)
        if self._spread(side):
            assert keys is not None
            batch.put_many(store.index_cf, message_keys(None, *where), keys)
        batch.put_many(store.cf, stored, values)
        for key, number in zip(self._counter_keys(side, keys, len(rows)), numbers.tolist(), strict=True):
            batch.put(self.aux_cf, _COUNT[side] + key, encode_u64(number))
        if side in self.followed:
            times = [encode_i64(t) for t in rows.times.tolist()]
            flags = [(MATCHED if m else OPEN) + t for m, t in zip(matched.tolist(), times, strict=True)]
            batch.put_many(self.open_cfs[side], stored, flags)
            self._waiting[side].add(batch, zip(stored, flags, strict=True))

    def _file_by_offset(self, kv: KV, batch: Batch, side: int, values: Sequence[bytes]) -> list[bytes]:
        """File messages under numbers of the whole input; returns these keys."""
        before = self._counts(kv, side, [b""])[b""]
        zeros = np.zeros(len(values), dtype=np.int64)
        numbers = before + 1 + np.arange(len(values), dtype=np.int64)
        keys = message_keys(None, pa.array([""] * len(values)), zeros, numbers, zeros)
        batch.put_many(self.stores[side].index_cf, keys, values)
        batch.put(self.aux_cf, _COUNT[side], encode_u64(before + len(values)))
        return keys

    def _drop(self, kv: KV, batch: Batch, side: int, low: bytes, high: bytes) -> None:
        """Messages of one counter, whose numbers are between."""
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

    def _by_number(self, kv: KV, side: int, low: bytes, high: bytes | None) -> list[tuple[bytes, bytes]]:
        """Keys in the store of messages that lie by key under numbers of the whole input, and these numbers' own."""
        pairs = kv.scan(self.stores[side].index_cf, low, high)
        return [(fields + FIELDS_END + number, number) for number, fields in pairs]

    def _displace(
        self, kv: KV, side: int, keys: list[bytes] | None, n: int, sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        """Drop what newer messages pushed out of the window; what matched nobody is told."""
        window, store = self._rows(side), self.stores[side]
        assert window is not None
        batch, lonely = Batch(), []
        for key, count in sorted(self._counts(kv, side, self._counter_keys(side, keys, n)).items()):
            head = key + FIELDS_END if store.layout.has_fields and not self._spread(side) else b""
            low = head + position_prefix(("", 0))
            high = head + position_prefix(("", 0, count - window.n + 1))
            if side in self.followed:
                pushed = self._open_between(kv, side, low, high)
                lonely += [key for key, _ in pushed]
                self._waiting[side].remove(batch, pushed)
            self._drop(kv, batch, side, low, high)
        told = self._lonely(kv, side, lonely, sides, columns)
        kv.write(batch)
        return told

    def _open_between(self, kv: KV, side: int, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        """Messages of one counter, whose numbers are between, that matched nobody: their keys, flags and times."""
        cf = self.open_cfs[side]
        if not self._spread(side):
            return [pair for pair in kv.scan(cf, low, high) if pair[1][:1] == OPEN]
        keys = [key for key, _ in self._by_number(kv, side, low, high)]
        flags = kv.multi_get(cf, keys)
        return [(k, flag) for k, flag in zip(keys, flags, strict=True) if flag is not None and flag[:1] == OPEN]

    def _lonely(
        self, kv: KV, side: int, stored: list[bytes], sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        if not stored or self.definition.how == "semi":
            return None
        values = [v for v in kv.multi_get(self.stores[side].cf, stored) if v is not None]
        mine = self._decode_numbered(kv, side, self._messages(kv, side, values), sides[side])
        order = np.lexsort((ranks(mine), mine.times))
        return alone(mine.take(order), side, sides, columns)

    def kept(self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None) -> Slice:
        if self._rows(side) is None:
            return super().kept(kv, side, start, end, key)
        progress = Progress.load(kv, self.aux_cf)
        self.bind(kv, progress)
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

    # -- advance ----------------------------------------------------------------------------------------------------

    def _leave(
        self, kv: KV, side: int, done_us: int, sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        if self._rows(side) is None:
            return super()._leave(kv, side, done_us, sides, columns)
        before = self.reach.expired_before(side, done_us)
        cf, batch = self.open_cfs[side], Batch()
        left = self._waiting[side].leave(kv, batch, before)
        batch.put_many(cf, [key for key, _ in left], [MATCHED + encode_i64(us) for _, us in left])
        told = self._lonely(kv, side, [key for key, _ in left], sides, columns)
        if done_us == END_OF_TIME_US:
            batch.delete_range(cf, b"", b"\xff")
        kv.write(batch)
        return told

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        for side in (LEFT, RIGHT):
            batch = Batch()
            if self._rows(side) is None:
                self.stores[side].expire(kv, batch, self._floor(side, watermark_us, done_us))
            elif done_us == END_OF_TIME_US:
                self._drop(kv, batch, side, b"", b"\xff")
                batch.delete_range(self.aux_cf, _COUNT[side], _COUNT[side] + b"\xff")
            else:
                self._sweep(
                    kv, batch, side, before_us, self._floor(side, watermark_us, done_us), watermark_us
                )
            kv.write(batch)

    def _sweep(
        self, kv: KV, batch: Batch, side: int, before_us: int, floor_us: int, watermark_us: int
    ) -> None:
        """Eight times in a retention: free the messages of keys that never return, from the oldest number on."""
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
        #: By counter: its fields and the last number that goes; the counters of which something stays.
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
        # Of a key of which nothing is left the count may begin anew.
        ended = [fields for head, (fields, _) in gone.items() if head not in stays]
        batch.delete_many(self.aux_cf, [_COUNT[side] + fields for fields in ended])
