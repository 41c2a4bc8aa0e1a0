"""The join with windows of rows: `ROWS n PRECEDING`. Semantics "Joins", "Windows of rows"; seed 003 case 2, tuple windows.

A side whose window counts messages numbers them on arrival. A message leaves the window when enough newer ones have come.
`row_count_state.py` describes the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import bytes_to_i64_array, decode_i64, encode_i64, encode_u64
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import message_keys, position_prefix
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Rows
from windrow.operators.join.join_state import MATCHED, OPEN
from windrow.operators.join.output import Columns, Leaving, alone
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.row_count_state import COUNT, PLACE, NumberedSides
from windrow.operators.join.tables import came_late, ranks, stack
from windrow.operators.steps.columns import ON_TIME
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows, pack_rows
from windrow.operators.steps.output_rows import labelled
from windrow.operators.steps.pairing import NO_KEY, pairs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV, Batch, scan_ranges

#: Lengths at the end of a key in the store: the number with what follows it, and what follows it alone.
_TAIL, _END = 12, 4


class Entered(NamedTuple):
    """New messages of a side whose window counts, with their keys, their numbers, and a flag for matched ones."""

    rows: Slice
    keys: list[bytes] | None
    numbers: IntArray
    matched: BoolArray


class RowsJoinOperator(NumberedSides):
    """A join in which the window of a side counts messages."""

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
            self._already_matched(kv, both[LEFT], len(new[LEFT]))
            if self._rows(LEFT) is None
            else self._already_matched_numbered(kv, held[LEFT], len(new[LEFT]))
        )
        self._emit_pairs(kv, progress, result, both, li, ri, late, before, columns)
        for side in self.followed:
            old = (li, ri)[side]
            if self._rows(side) is None:
                self._note_matches(kv, side, both[side], old, len(new[side]), len(new[1 - side]))
            else:
                self._note_numbered(kv, side, held[side], old[old >= len(new[side])] - len(new[side]))
        batch = Batch()
        for side in (LEFT, RIGHT):
            if self._rows(side) is None:
                self._file(kv, batch, side, new[side], keys[side], matched[side])
        for side in (LEFT, RIGHT):
            if self._rows(side) is not None and len(new[side]):
                entered = Entered(new[side], keys[side], numbers[side], matched[side])
                emitted = self._displace(kv, batch, side, entered, sides, columns)
                if emitted is not None:
                    result.panes.append(labelled(emitted, ON_TIME))
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
        self,
        kv: KV,
        side: int,
        new: Sequence[Slice],
        keys: Sequence[list[bytes] | None],
        sides: list[pa.Schema],
    ) -> tuple[Slice, list[bytes]]:
        """Return stored messages of `side` that new ones of the other may match, and their keys in the store."""
        window = self._rows(side)
        if window is None:
            return self._partners(kv, side, new[1 - side], keys[1 - side], sides), []
        if not len(new[1 - side]):
            return Slice(empty_rows(sides[side]), np.zeros(0, dtype=np.int64)), []
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
        found = scan_ranges(kv, store.cf, sorted(ranges))
        values = self._messages(kv, side, [value for _, value in found])
        return self._decode_numbered(kv, side, values, sides[side]), [key for key, _ in found]

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
        fields = self.stores[LEFT].layout.has_fields and window.per == "key"
        of = [key[: -len(PLACE) - len(FIELDS_END)] for key in held] if fields else [b""] * len(held)
        before = self._counts(kv, LEFT, of)
        mine = [last[k] - n < window.n for k, n in zip(counted, numbers.tolist(), strict=True)]
        theirs = [last.get(k, before[k]) - n < window.n for k, n in zip(of, _numbers(held), strict=True)]
        return np.array(mine + theirs, dtype=bool)

    def _already_matched_numbered(self, kv: KV, held: list[bytes], new: int) -> BoolArray:
        """Return True for left messages under these keys that matched before, as `_already_matched`."""
        emitted = np.zeros(new + len(held), dtype=bool)
        if self.definition.how == "semi" and held:
            found = kv.multi_get(self.open_cfs[LEFT], held)
            emitted[new:] = [value is not None and value[:1] == MATCHED for value in found]
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

    def _displace(
        self, kv: KV, batch: Batch, side: int, entered: Entered, sides: list[pa.Schema], columns: Columns
    ) -> pa.Table | None:
        """File the new messages, evict those pushed out of the window, and return the unmatched ones as rows."""
        window = self._rows(side)
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
        emitted = self._lonely(kv, side, lonely, sides, columns, rows)
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
        self,
        kv: KV,
        side: int,
        stored: list[bytes],
        sides: list[pa.Schema],
        columns: Columns,
        others: Slice | None = None,
    ) -> pa.Table | None:
        """Return the rows of unmatched messages: those stored under these keys, and others."""
        if not (stored or others) or self.definition.how == "semi":
            return None
        values = [v for v in kv.multi_get(self.stores[side].cf, stored) if v is not None]
        mine = self._decode_numbered(kv, side, self._messages(kv, side, values), sides[side])
        mine = mine if others is None else stack(others, mine)
        order = np.lexsort((ranks(mine), mine.times))
        return alone(mine.take(order), side, sides, columns)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _leave(self, kv: KV, side: int, watermark_us: int, of: Leaving) -> Iterator[pa.Table | None]:
        if self._rows(side) is None:
            yield from super()._leave(kv, side, watermark_us, of)
            return
        done_us = self.done(watermark_us)
        before = self.reach.expired_before(side, done_us)
        cf, batch = self.open_cfs[side], Batch()
        due = self._unmatched[side].pop(kv, batch, before - 1)
        batch.put_many(cf, due.keys, [MATCHED + encode_i64(us) for us in due.times.tolist()])
        emitted = self._lonely(kv, side, due.keys, of.sides, of.columns)
        if done_us == END_OF_TIME_US:
            batch.delete_range(cf, b"", b"\xff")
        kv.write(batch)
        yield emitted


def _numbers(held: Sequence[bytes]) -> list[int]:
    """Return the numbers of messages under these keys in the store."""
    packed = np.frombuffer(b"".join([key[-_TAIL:-_END] for key in held]), dtype=np.uint8)
    numbers: list[int] = bytes_to_i64_array(packed.reshape(-1, 8)).tolist()
    return numbers
