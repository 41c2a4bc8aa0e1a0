"""The join with windows of rows: `ROWS n PRECEDING`. Semantics "Joins", "Windows of rows"; seed 003 case 2, tuple windows.

A side whose window counts messages numbers them as they come, and a message leaves when enough newer ones have come. What is
kept of it says `numbered.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_i64, encode_u64
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import message_keys, position_prefix
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Rows
from windrow.operators.join.numbered import COUNT, NumberedSides
from windrow.operators.join.output import Columns, alone
from windrow.operators.join.pairing import NO_KEY, pairs
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.stored import MATCHED, OPEN
from windrow.operators.join.tables import came_late, ranks, stack
from windrow.operators.steps.columns import ON_TIME
from windrow.operators.steps.dead import DeadLetters
from windrow.operators.steps.filed_rows import empty_rows, pack_rows
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.operators.steps.told import labelled
from windrow.stores.kv import KV, Batch


class RowsJoinOperator(NumberedSides):
    """A join of which a side's window counts messages."""

    # -- ingest -----------------------------------------------------------------------------------------------------

    def _join(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        new: Sequence[Slice],
        sides: list[pa.Schema],
        columns: Columns,
        dead: DeadLetters,
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
        late = came_late(new, both, li, ri, progress.watermark_us)
        before = (
            self._told(kv, both[LEFT], len(new[LEFT]))
            if self._rows(LEFT) is None
            else self._told_numbered(kv, held[LEFT], len(new[LEFT]))
        )
        self._tell_pairs(kv, progress, result, both, li, ri, late, before, columns)
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
            batch.put(self.aux_cf, COUNT[side] + key, encode_u64(number))
        if side in self.followed:
            times = [encode_i64(t) for t in rows.times.tolist()]
            flags = [(MATCHED if m else OPEN) + t for m, t in zip(matched.tolist(), times, strict=True)]
            batch.put_many(self.open_cfs[side], stored, flags)
            self._waiting[side].add(batch, zip(stored, flags, strict=True))

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

    def _lonely(
        self, kv: KV, side: int, stored: list[bytes], sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        if not stored or self.definition.how == "semi":
            return None
        values = [v for v in kv.multi_get(self.stores[side].cf, stored) if v is not None]
        mine = self._decode_numbered(kv, side, self._messages(kv, side, values), sides[side])
        order = np.lexsort((ranks(mine), mine.times))
        return alone(mine.take(order), side, sides, columns)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _leave(
        self, kv: KV, side: int, watermark_us: int, sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        if self._rows(side) is None:
            return super()._leave(kv, side, watermark_us, sides, columns)
        done_us = self.done(watermark_us)
        before = self.reach.expired_before(side, done_us)
        cf, batch = self.open_cfs[side], Batch()
        left = self._waiting[side].leave(kv, batch, before)
        batch.put_many(cf, [key for key, _ in left], [MATCHED + encode_i64(us) for _, us in left])
        told = self._lonely(kv, side, [key for key, _ in left], sides, columns)
        if done_us == END_OF_TIME_US:
            batch.delete_range(cf, b"", b"\xff")
        kv.write(batch)
        return told
