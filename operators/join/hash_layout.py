"""Hash layout of a join over time: messages in columns by key (`stores/keyed_event_store.py`), where seed 003 lets fields
lead.

A step reads only the keys of its messages, within their reach. For a followed side the store keeps its messages, their
expiry by time (`open`), and by key which of them have matched (`matched`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import CorruptState
from windrow.core.time import SECOND_US
from windrow.operators.join.columns import JoinStep, SideRows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import SIDES, JoinOperator
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import ranks
from windrow.operators.join.time_layout import AGAIN, GONE, WIDE, BlockJoinOperator, as_slice, kept_rows
from windrow.operators.join.unmatched_rows import Followed, followed_rows, places
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.intake import Slice
from windrow.stores.event_log import MANY, TIME, Events, Stretches, wide, widened
from windrow.stores.keyed_event_store import HASH, Hashes, KeyedEvents, hashes_of
from windrow.stores.kv import KV, Batch

#: Auxiliary keys: the wide buckets of `open`.
WIDE_OPEN = (b"\x00wide2", b"\x00wide3")
#: Buckets of `open` are so many times finer.
FINER = 64


class KeyedJoinOperator(BlockJoinOperator):
    """A join over time whose messages are stored in columns by key."""

    _stretches, _endless_us = 4, 1 << 62

    def __init__(self, definition: JoinDefinition) -> None:
        super().__init__(definition)
        self.matched_cfs = tuple(f"{definition.name}.{side}.matched" for side in SIDES)

    def cfs(self) -> tuple[str, ...]:
        return (*super().cfs(), *(self.matched_cfs[side] for side in self.followed))

    def keys(self, rows: Slice, side: int, columns: Columns) -> list[bytes] | None:
        return JoinOperator.keys(self, rows, side, columns)

    # -- filing -----------------------------------------------------------------------------------------------------

    def _by_key(self, kv: KV, side: int, cf: str) -> KeyedEvents:
        return KeyedEvents(cf, Stretches(self._width(kv), wide(kv, self.aux_cf, WIDE[side])))

    def _followed(self, kv: KV, side: int) -> Followed:
        longer = wide(kv, self.aux_cf, WIDE_OPEN[side])
        return Followed(Events(self.open_cfs[side], self._fine(kv), longer), self.aux_cf, GONE[side])

    def _fine(self, kv: KV) -> int:
        """Return the bucket width of `open`. Few messages of an expiring bucket outlive it."""
        return max(self._width(kv) // FINER, SECOND_US)

    def _add_by_key(self, kv: KV, side: int, cf: str, rows: pa.Table, hashes: Hashes, number: int) -> None:
        """File rows with their times, under the hashes of their keys."""
        rows = rows.append_column(HASH, pa.array(hashes))
        width_us = widened(kv, self.aux_cf, WIDE[side], self._width(kv), rows.column(TIME).to_numpy())
        self._by_key(kv, side, cf).add(kv, rows, number, width_us=width_us)

    def file_again(self, kv: KV, batch: Batch, new: SideRows, step: int) -> None:
        side, rows, keys = new
        cf = self.stores[side].cf
        self._add_by_key(kv, side, cf, kept_rows(rows), hashes_of(keys or ()), AGAIN | step)

    def _file(self, step: JoinStep, batch: Batch, new: SideRows, matched: BoolArray) -> None:
        side, rows, keys = new
        if len(rows):
            kv, number, hashes = step.kv, step.progress.step, hashes_of(keys or ())
            self._add_by_key(kv, side, self.stores[side].cf, kept_rows(rows), hashes, number)
            if side in self.followed:
                self._follow(kv, side, rows, hashes, number)
                self._note(kv, side, rows.take(np.flatnonzero(matched)), hashes[matched], 2 * number)

    def _follow(self, kv: KV, side: int, rows: Slice, hashes: Hashes, step: int) -> None:
        """Note the times at which messages expire."""
        listed = followed_rows(rows, np.zeros(len(rows), dtype=bool), step)
        listed = listed.append_column(HASH, pa.array(hashes))
        usual_us = self._fine(kv)
        width_us = widened(kv, self.aux_cf, WIDE_OPEN[side], usual_us, rows.times)
        events = Events(self.open_cfs[side], usual_us, wide(kv, self.aux_cf, WIDE_OPEN[side]))
        events.add(kv, listed, step, width_us=width_us)
        if xxhash.xxh32_intdigest(step.to_bytes(8, "big")) % MANY == 0:
            # No step reads these before they expire: small values are merged now and then as new ones are filed.
            events.read_near(kv, rows.times, rows.times, keep=_none)

    def _note(self, kv: KV, side: int, rows: Slice, hashes: Hashes, number: int) -> None:
        """Note that messages have matched."""
        if len(rows):
            noted = rows.table.select(POSITION_COLUMNS).append_column(TIME, pa.array(rows.times))
            self._add_by_key(kv, side, self.matched_cfs[side], noted, hashes, number)

    def _note_matches(
        self, step: JoinStep, side: int, rows: Slice, matched: IntArray, new: int, others: int
    ) -> None:
        old = rows.take(np.unique(matched[matched >= new]))
        if len(old):
            old = old.take(np.argsort(ranks(old)))  # their stored order depends on the caches of the process
            hashes = self._hashes(step, side, old)
            first = ~self._have_matched(step.kv, side, old.table, old.times, hashes)
            number = 2 * step.progress.step + 1
            self._note(step.kv, side, old.take(np.flatnonzero(first)), hashes[first], number)

    def _hashes(self, step: JoinStep, side: int, rows: Slice) -> Hashes:
        return hashes_of(self.keys(rows, side, step.columns) or ())

    def _have_matched(self, kv: KV, side: int, rows: pa.Table, times: IntArray, hashes: Hashes) -> BoolArray:
        """True for messages of which it is noted."""
        matched = self._by_key(kv, side, self.matched_cfs[side]).read_keys(
            self._met(kv)[0], hashes, times, times
        )
        return np.zeros(len(rows), dtype=bool) if matched is None else np.isin(*places(rows, matched))

    # -- matching ---------------------------------------------------------------------------------------------------

    def _partners(self, step: JoinStep, side: int, others: Slice, keys: list[bytes] | None) -> Slice:
        if not len(others):
            return as_slice(None, step.sides[side])
        low, high = self.reach.partners(1 - side, others.times)
        low = np.maximum(low, self._floor_now(step, side))
        events = self._by_key(step.kv, side, self.stores[side].cf)
        partners = events.read_keys(self._met(step.kv)[0], hashes_of(keys or ()), low, high)
        return as_slice(partners, step.sides[side])

    def _already_matched(self, step: JoinStep, rows: Slice, new: int) -> BoolArray:
        emitted = np.zeros(len(rows), dtype=bool)
        if self.definition.how == "semi" and len(rows) > new:
            old = rows.take(np.arange(new, len(rows)))
            hashes = self._hashes(step, LEFT, old)
            emitted[new:] = self._have_matched(step.kv, LEFT, old.table, old.times, hashes)
        return emitted

    # -- expiry -----------------------------------------------------------------------------------------------------

    def _last_words_of(self, step: JoinStep, side: int, gone: pa.Table) -> pa.Table | None:
        kv = step.kv
        times, hashes = gone.column(TIME).to_numpy(), gone.column(HASH).to_numpy()
        lonely = np.flatnonzero(~self._have_matched(kv, side, gone, times, hashes))
        if not len(lonely):
            return None
        events = self._by_key(kv, side, self.stores[side].cf)
        stored = events.read_keys(kv, hashes[lonely], times[lonely], times[lonely])
        gone = gone.take(pa.array(lonely))
        wanted, known = places(gone, gone.slice(0, 0) if stored is None else stored)
        at = pc.index_in(pa.array(wanted), value_set=pa.array(known))
        if stored is None or at.null_count:
            raise CorruptState(
                f"{at.null_count} messages of {self.open_cfs[side]!r} are not in the message store"
            )
        unmatched = as_slice(stored.take(at), step.sides[side])
        return self._alone(step, side, unmatched.take(np.lexsort((ranks(unmatched), unmatched.times))))

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        for side in (LEFT, RIGHT):
            floor_us = self._floor(side, watermark_us, done_us)
            self._by_key(kv, side, self.stores[side].cf).forget(kv, floor_us)
            if side in self.followed:
                before = self._leaves_before(side, watermark_us)
                self._by_key(kv, side, self.matched_cfs[side]).forget(kv, before)

    def _cut(self, kv: KV, side: int, floor_us: int) -> None:
        waiting = self._followed(kv, side).settle(kv) if side in self.followed else None

        def gone(rows: pa.Table) -> BoolArray:
            early = rows.column(TIME).to_numpy() < floor_us
            return np.asarray(early if waiting is None else early & ~np.isin(*places(rows, waiting)))

        cfs = [self.stores[side].cf, *([self.matched_cfs[side]] if side in self.followed else [])]
        for cf in cfs:
            self._by_key(kv, side, cf).drop(kv, floor_us, gone)

    # -- queries ----------------------------------------------------------------------------------------------------

    def _found(
        self, kv: KV, side: int, first_us: int, last_us: int, key: bytes | None, sides: list[pa.Schema]
    ) -> Slice:
        events = self._by_key(kv, side, self.stores[side].cf)
        if key is None:
            return as_slice(events.read(kv, first_us, last_us + 1), sides[side])
        low, high = np.array([first_us]), np.array([last_us])
        return as_slice(events.read_keys(kv, hashes_of([key]), low, high), sides[side])


def _none(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)
