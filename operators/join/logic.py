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
from windrow.core.errors import CorruptState
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import as_type
from windrow.operators.join.asof import answers
from windrow.operators.join.deferred_rows import put_off, released
from windrow.operators.join.intake import TakingSides
from windrow.operators.join.join_state import MATCHED, OPEN
from windrow.operators.join.output import Columns, Leaving, alone
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import Raised, came_late, holds, intervals, ranks, sound, stack
from windrow.operators.steps.arrivals import check_inputs
from windrow.operators.steps.columns import EARLY, LATE, ON_TIME, TIMING
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.input_filter import further
from windrow.operators.steps.intake import Slice, event_time_marks
from windrow.operators.steps.message_rows import empty_rows
from windrow.operators.steps.output_rows import labelled
from windrow.operators.steps.pairing import NO_KEY, Partners, partners
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import (
    StepResult,
)
from windrow.operators.steps.work import end_step
from windrow.stores.incremental_work import in_batches
from windrow.stores.kv import KV, Batch
from windrow.stores.spill import Away

#: At most about so many pairs, and so many expiring messages, are in memory at once.
PAIRS, LEAVING = 1 << 19, 1 << 16


class JoinOperator(TakingSides):
    """The operator of one join on one store. It is stateless: everything is in the store that it receives."""

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Emit rows of messages that can match no more, release deferred rows that are due, and evict."""
        progress, result = self._begin(kv), StepResult()
        watermark_us = max(watermark_us, progress.watermark_us)
        sides = self.inputs.schemas(kv)
        columns = self.inputs.called(kv, sides)
        done_us = self.done(watermark_us)
        emitted, dead = Away(result.panes), DeadLetters(self.definition.dead_letter_limit)
        for rows in self._going(kv, progress, watermark_us, now_us, Leaving(sides, columns, dead)):
            if rows is not None and len(rows):
                result.panes.append(labelled(rows, ON_TIME))
                emitted.gathered()
        if result.panes:
            self.inputs.settle(kv, columns)
        over = watermark_us == END_OF_TIME_US
        emit = self.definition.emit
        for rows in released(kv, self.pending_cf, emit, progress.now_us, now_us, everything=over):
            result.panes.append(rows)
            emitted.gathered()
        self._forget(kv, progress.watermark_us, watermark_us, done_us)
        progress.watermark_us, progress.now_us = watermark_us, now_us
        return self._end(kv, progress, result, dead)

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        """File the messages of a step, by input, and emit their matches."""
        definition = self.definition
        check_inputs(tables, definition.name, [given.name for given in definition.inputs])
        progress, result = self._begin(kv), StepResult()
        dead = DeadLetters(definition.dead_letter_limit)
        sides = self.inputs.schemas(kv)
        new, heard = self._counted(kv, progress, tables, now_us, sides, dead)
        columns = self.inputs.called(kv, sides)
        for side in self.sizes.sides:
            new[side] = self._above_floor(kv, side, new[side], columns, dead)
        for side in (LEFT,) if definition.is_self_join else (LEFT, RIGHT):
            result.marks.update(further(event_time_marks(new[side]), heard[side]))
        if len(new[LEFT]) or len(new[RIGHT]):
            self._join(kv, progress, result, new, sides, columns, dead)
        return self._filed(kv, progress, result, columns, now_us, dead)

    def _filed(
        self,
        kv: KV,
        progress: Progress,
        result: StepResult,
        columns: Columns,
        now_us: int,
        dead: DeadLetters,
    ) -> StepResult:
        """End a step that filed messages."""
        if result.panes or self.inputs.known(kv) is not None:
            self.inputs.settle(kv, columns)
        progress.begin(now_us)
        return self._end(kv, progress, result, dead)

    def _begin(self, kv: KV) -> Progress:
        progress = Progress.load(kv, self.aux_cf)
        progress.step += 1
        return progress

    def _end(self, kv: KV, progress: Progress, result: StepResult, dead: DeadLetters) -> StepResult:
        return end_step(kv, self.aux_cf, progress, result, dead)

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
        """Match the new messages with each other and with stored ones, emit the matches, and file the messages."""
        keys = [self.keys(new[side], side, columns) for side in (LEFT, RIGHT)]
        met: list[BoolArray] = [np.zeros(len(s), dtype=bool) for s in new]
        as_of = self.definition.how == "asof"
        if not as_of or self.definition.where is not None:
            stored = [
                self._partners(kv, side, new[1 - side], keys[1 - side], sides) for side in (LEFT, RIGHT)
            ]
            both = [stack(new[side], stored[side]) for side in (LEFT, RIGHT)]
            emitted = self._already_matched(kv, both[LEFT], len(new[LEFT]))
            met, away = [np.zeros(len(rows), dtype=bool) for rows in both], Away(result.panes)
            for part, (li, ri) in enumerate(self._slices(new, both, columns)):
                if as_of:  # answered later: if its condition raises, the later message is the dead letter
                    continue
                met[LEFT][li] = met[RIGHT][ri] = True
                late = came_late(new, both, li, ri, progress.watermark_us)
                self._emit_pairs(kv, progress, result, both, li, ri, late, emitted, columns, part)
                away.gathered()
            for side in self.followed:
                rows = np.flatnonzero(met[side])
                self._note_matches(kv, side, both[side], rows, len(new[side]), len(new[1 - side]))
        batch = Batch()
        for side in (LEFT, RIGHT):
            self._file(kv, batch, side, new[side], keys[side], met[side][: len(new[side])])
        kv.write(batch)

    def _partners(
        self, kv: KV, side: int, others: Slice, keys: list[bytes] | None, sides: list[pa.Schema]
    ) -> Slice:
        """Return stored messages of `side` that may be partners of new ones of the other side."""
        store = self.stores[side]
        if not len(others):
            return Slice(empty_rows(sides[side]), np.zeros(0, dtype=np.int64))
        low, high = self.reach.partners(1 - side, others.times)
        # If fields come first, messages out of retention may stay for a while; they match nothing any more.
        reached_us = self.progress(kv).watermark_us
        low = np.maximum(low, self._floor(side, reached_us, self.done(reached_us)))
        high = np.maximum(high, low - 1)
        found: list[bytes] = []
        values: list[bytes] = []
        if not store.layout.fields_first:
            wanted = set(keys or ())
            for start, end in intervals(low, high):
                more, their = store.scan(kv, start, end + 1, keys=wanted)
                found += more
                values += their
        else:
            assert keys is not None
            ranges: dict[bytes, tuple[int, int]] = {}
            for key, a, b in zip(keys, low.tolist(), high.tolist(), strict=True):
                known = ranges.get(key)
                ranges[key] = (a, b) if known is None else (min(a, known[0]), max(b, known[1]))
            held = {key: ranges[key] for key in store.holding(kv, ranges)}
            found, values = store.scan_keys(kv, held)
        return self._decode(kv, side, found, values, sides[side])

    def _pairs(
        self, new: Sequence[Slice], both: Sequence[Slice], columns: Columns, raised: Raised | None = None
    ) -> tuple[IntArray, IntArray]:
        """Return (left row, right row) of `both` that match, at least one of them new. raised: as of `_matching`."""
        found = [p.of(np.arange(len(p.n))) for p in self._near(new, both, columns)]
        return self._matching(both, *_together(found, len(new[LEFT])), columns, raised)

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
            found = [near[0].of(rows[rows < first]), near[1].of(rows[rows >= first] - first)]
            yield self._matching(both, *_together(found, first), columns)

    def _near(self, new: Sequence[Slice], both: Sequence[Slice], columns: Columns) -> list[Partners]:
        """Return the partners of new left messages among all right ones, and of stored ones among the new."""
        codes, n, found = self._codes(both, columns), [len(s) for s in new], []
        for left, right in ((slice(n[LEFT]), slice(None)), (slice(n[LEFT], None), slice(n[RIGHT]))):
            low, high = self.reach.partners(LEFT, both[LEFT].times[left])
            found.append(
                partners(codes[LEFT][left], low, high, codes[RIGHT][right], both[RIGHT].times[right])
            )
        return found

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
        kv: KV,
        progress: Progress,
        result: StepResult,
        both: Sequence[Slice],
        li: IntArray,
        ri: IntArray,
        is_late: BoolArray,
        emitted: BoolArray,
        columns: Columns,
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
        rows = columns.rows(both[LEFT].table, both[RIGHT].table, li, ri)
        rows = rows.append_column(TIMING, pa.array(np.where(is_late, LATE, EARLY).tolist(), pa.string()))
        emit = self.definition.emit
        at_once = np.zeros(len(rows), dtype=bool)
        for timing, trigger, mask in ((EARLY, emit.early, ~is_late), (LATE, emit.late, is_late)):
            if isinstance(trigger, EveryBatch):
                at_once |= mask
            elif mask.any():
                put_off(kv, self.pending_cf, timing, progress.step, part, rows, mask)
        if at_once.any():
            result.panes.append(rows if at_once.all() else rows.filter(pa.array(at_once)))

    def _already_matched(self, kv: KV, rows: Slice, new: int) -> BoolArray:
        """Return True for left messages that matched before, which a semi-join emits no more; the first `new` have not."""
        emitted = np.zeros(len(rows), dtype=bool)
        if self.definition.how == "semi" and len(rows) > new:
            keys = self._open_keys(rows.take(np.arange(new, len(rows))))
            found = kv.multi_get(self.open_cfs[LEFT], keys)
            emitted[new:] = [value is not None and value[:1] == MATCHED for value in found]
        return emitted

    def _note_matches(self, kv: KV, side: int, rows: Slice, matched: IntArray, new: int, others: int) -> None:
        """Mark stored messages that have a match now. others: the number of new messages of the other side."""
        old = np.unique(matched[matched >= new])
        if not len(old):
            return
        keys = self._open_keys(rows.take(old))
        cf = self.open_cfs[side]
        batch = Batch()
        for key, value in zip(keys, kv.multi_get(cf, keys), strict=True):
            if value is not None and value[:1] == OPEN:
                batch.put(cf, key, MATCHED + value[1:])
        kv.write(batch)

    def _file(
        self, kv: KV, batch: Batch, side: int, rows: Slice, keys: list[bytes] | None, matched: BoolArray
    ) -> None:
        if not len(rows):
            return
        stored = self.put(kv, batch, side, rows, keys)
        if side in self.sizes.sides:
            reached_us = self.progress(kv).watermark_us
            floor_us = self._floor(side, reached_us, self.done(reached_us))
            self.sizes.note(kv, batch, side, self._open_keys(rows), keys, stored, floor_us)
        if side in self.followed:
            flags = [MATCHED + k if m else OPEN + k for k, m in zip(stored, matched.tolist(), strict=True)]
            batch.put_many(self.open_cfs[side], self._open_keys(rows), flags)

    # -- advance ----------------------------------------------------------------------------------------------------

    def _going(
        self, kv: KV, progress: Progress, watermark_us: int, now_us: int, of: Leaving
    ) -> Iterator[pa.Table | None]:
        """Yield rows of messages that expire as the watermark advances: first those beyond the count limit, then by time."""
        yield from self._shrink(kv, progress.watermark_us, of) if self.sizes.sides else ()
        for side in self.followed:
            yield from self._leave(kv, side, watermark_us, of)

    def _leave(self, kv: KV, side: int, watermark_us: int, of: Leaving) -> Iterator[pa.Table | None]:
        """Expire messages of a followed side that can match no more; emit those that never matched."""
        cf, end = self.open_cfs[side], encode_i64(self._leaves_before(side, watermark_us))
        batch = Batch()
        for entries in in_batches(kv.scan(cf, b"", end), LEAVING):
            batch.delete_range(cf, b"", end)
            stored = [value[1:] for _, value in entries if value[:1] == OPEN]
            yield self._last_words(kv, side, stored, of)
        kv.write(batch)

    def _leaves_before(self, side: int, watermark_us: int) -> int:
        """Return the event time before which messages of a followed side have no possible partners left."""
        done_us = self.done(watermark_us)
        if self.definition.how == "semi":
            # A static row may come at any time, and emits no row for stored messages that have matched.
            return self._floor(side, watermark_us, done_us)
        # As-of is complete when every right message up to its time has come.
        return done_us if self.definition.how == "asof" else self.reach.expired_before(side, done_us)

    def _shrink(self, kv: KV, reached_us: int, of: Leaving) -> Iterator[pa.Table | None]:
        """Evict the oldest messages beyond the count limit, as the previous steps left them, and yield their rows."""
        batch = Batch()
        for side in self.sizes.sides:
            floor_us = self._floor(side, reached_us, self.done(reached_us))
            places, stored = self.sizes.excess(kv, side, self.stores[side], floor_us, batch)
            if side in self.followed and places:
                flags = kv.multi_get(self.open_cfs[side], places)
                open_ = [key for key, flag in zip(stored, flags, strict=True) if (flag or b"")[:1] == OPEN]
                yield self._last_words(kv, side, open_, of)
                batch.delete_many(self.open_cfs[side], places)
        kv.write(batch)

    def _last_words(self, kv: KV, side: int, stored: list[bytes], of: Leaving) -> pa.Table | None:
        """Return the rows of expiring messages of a followed side that never matched. stored: their keys in the store."""
        if self.definition.how == "semi" or not stored:
            return None
        values = [value for value in kv.multi_get(self.stores[side].cf, stored) if value is not None]
        if len(values) < len(stored):
            raise CorruptState(
                f"{len(stored) - len(values)} messages of {self.open_cfs[side]!r} are not in the message store"
            )
        mine = self._decode(kv, side, stored, values, of.sides[side])
        return self._alone(kv, side, mine, of)

    def _alone(self, kv: KV, side: int, rows: Slice, of: Leaving) -> pa.Table | None:
        """Return the rows of unmatched messages, and for as-of the answers to left ones."""
        if self.definition.how == "asof":
            return answers(self, kv, rows, of)
        return alone(rows, side, of.sides, of.columns)


def _together(found: Sequence[tuple[IntArray, IntArray]], first: int) -> tuple[IntArray, IntArray]:
    """Combine pairs of the left rows before `first` with those of the left rows from it on."""
    (new_left, right), (old_left, new_right) = found
    return np.r_[new_left, old_left + first], np.r_[right, new_right]
