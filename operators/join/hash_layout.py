"""Hash layout of a join over time: messages in columns by key (`stores/keyed_event_store.py`), where seed 003 lets fields
lead.

A step reads only the keys of its messages, within their reach. For a followed side the store keeps its messages, their
expiry by time (`open`), and by key which of them have matched (`matched`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import SECOND_US
from windrow.operators.join.columns import JoinStep, SideRows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import SIDES, JoinOperator
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import LEFT
from windrow.operators.join.tables import ranks
from windrow.operators.join.time_layout import AGAIN, GONE, WIDE, BlockJoinOperator, as_slice, kept_rows
from windrow.operators.join.unmatched_rows import Followed, followed_rows, places
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.intake import Slice
from windrow.stores.event_log import MANY, TIME, Events
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

    def _log(self, kv: KV, side: int, cf: str) -> KeyedEvents:  # type: ignore[override]
        return KeyedEvents(cf, self._width(kv), (self.aux_cf, WIDE[side]))

    def _messages(self, kv: KV, side: int) -> KeyedEvents:  # type: ignore[override]
        return self._log(kv, side, self.stores[side].cf)

    def _open(self, kv: KV, side: int) -> Events:
        """Return the times of followed messages. Few messages of an expiring bucket outlive it."""
        fine_us = max(self._width(kv) // FINER, SECOND_US)
        return Events(self.open_cfs[side], fine_us, (self.aux_cf, WIDE_OPEN[side]))

    def _followed(self, kv: KV, side: int) -> Followed:
        return Followed(self._open(kv, side), self.aux_cf, GONE[side])

    def file_again(self, kv: KV, batch: Batch, new: SideRows, step: int) -> None:
        side, rows, keys = new
        self._messages(kv, side).add(kv, _hashed(kept_rows(rows), hashes_of(keys or ())), AGAIN | step)

    def _file(self, step: JoinStep, batch: Batch, new: SideRows, matched: BoolArray) -> None:
        side, rows, keys = new
        if len(rows):
            kv, number, hashes = step.kv, step.progress.step, hashes_of(keys or ())
            self._messages(kv, side).add(kv, _hashed(kept_rows(rows), hashes), number)
            if side in self.followed:
                self._follow(kv, side, rows, hashes, number)
                self._note(kv, side, rows.take(np.flatnonzero(matched)), hashes[matched], 2 * number)

    def _follow(self, kv: KV, side: int, rows: Slice, hashes: Hashes, step: int) -> None:
        """Note the times at which messages expire."""
        events = self._open(kv, side)
        events.add(kv, _hashed(followed_rows(rows, np.zeros(len(rows), dtype=bool), step), hashes), step)
        if xxhash.xxh32_intdigest(step.to_bytes(8, "big")) % MANY == 0:
            # No step reads these before they expire: small values are merged now and then as new ones are filed.
            events.read_near(kv, rows.times, rows.times, keep=_none)

    def _note(self, kv: KV, side: int, rows: Slice, hashes: Hashes, number: int) -> None:
        """Note that messages have matched."""
        if len(rows):
            noted = rows.table.select(POSITION_COLUMNS).append_column(TIME, pa.array(rows.times))
            self._log(kv, side, self.matched_cfs[side]).add(kv, _hashed(noted, hashes), number)

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
        log = self._log(kv, side, self.matched_cfs[side])
        matched = log.read_keys(self._met(kv)[0], hashes, times, times)
        return np.zeros(len(rows), dtype=bool) if matched is None else np.isin(*places(rows, matched))

    # -- matching ---------------------------------------------------------------------------------------------------

    def _partners(self, step: JoinStep, side: int, others: Slice, keys: list[bytes] | None) -> Slice:
        if not len(others):
            return as_slice(None, step.sides[side])
        low, high = self.reach.partners(1 - side, others.times)
        low = np.maximum(low, self._floor_now(step, side))
        met, hashes = self._met(step.kv)[0], hashes_of(keys or ())
        partners = self._messages(step.kv, side).read_keys(met, hashes, low, high)
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
        events = self._messages(kv, side)
        stored = events.read_keys(kv, hashes[lonely], times[lonely], times[lonely])
        return self._unmatched(step, side, gone.take(pa.array(lonely)), stored)

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        super()._forget(kv, before_us, watermark_us, done_us)
        for side in self.followed:
            self._log(kv, side, self.matched_cfs[side]).forget(kv, self._leaves_before(side, watermark_us))

    def _by_message(self, side: int) -> tuple[str, ...]:
        return (self.stores[side].cf, *([self.matched_cfs[side]] if side in self.followed else []))

    # -- queries ----------------------------------------------------------------------------------------------------

    def _found(
        self, kv: KV, side: int, first_us: int, last_us: int, key: bytes | None, sides: list[pa.Schema]
    ) -> Slice:
        events = self._messages(kv, side)
        if key is None:
            return as_slice(events.read(kv, first_us, last_us + 1), sides[side])
        low, high = np.array([first_us]), np.array([last_us])
        return as_slice(events.read_keys(kv, hashes_of([key]), low, high), sides[side])


def _hashed(rows: pa.Table, hashes: Hashes) -> pa.Table:
    return rows.append_column(HASH, pa.array(hashes))


def _none(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)
