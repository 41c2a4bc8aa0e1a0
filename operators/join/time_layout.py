"""Time layout of a join over time: messages in columns (`stores/event_log.py`), adjacent by time.

These are the layouts of seed 003 that time leads. Queries return messages in the order of their keys.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import CorruptState
from windrow.core.time import HOUR_US, SECOND_US
from windrow.core.types import as_type
from windrow.operators.join.columns import JoinStep, SideRows
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.output import Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.spans import spans
from windrow.operators.join.tables import conform, ranks
from windrow.operators.join.unmatched_rows import Followed, followed_rows, places
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows, inside
from windrow.stores.event_log import TIME, Events, Keep, recorded_width
from windrow.stores.kv import KV, Batch
from windrow.stores.message_store import Bound

#: Auxiliary keys: the bucket width; per side, the wider buckets; per followed side, the expired messages.
WIDTH = b"\x00width"
WIDE, GONE = (b"\x00wide0", b"\x00wide1"), (b"\x00gone0", b"\x00gone1")
#: Steps that replay messages have numbers that no other step has.
AGAIN = 1 << 63
#: If there are so many times more messages than in the step, those of other keys are filtered out first.
_MANY = 4


class BlockJoinOperator(JoinOperator):
    """A join over time whose messages are stored in columns by time."""

    #: The most buckets, plus one, that a message's reach covers; the bucket width if nothing bounds the reach.
    _stretches, _endless_us = 8, HOUR_US

    @property
    def suits(self) -> bool:
        """True if time leads: messages lie by it, and not by their keys."""
        return not any(store.layout.fields_first for store in self.stores)

    def apart(self, before: KV) -> BlockJoinOperator:
        copied = copy.copy(self)
        copied._before = before
        return copied

    def _begin(self, kv: KV, now_us: int) -> JoinStep:
        step = super()._begin(kv, now_us)
        if step.progress.step == 1:
            recorded_width(kv, self.aux_cf, WIDTH, self._usual_width(), store=True)
        return step

    def prepare(self, kv: KV, scratch: KV) -> None:
        super().prepare(kv, scratch)
        recorded_width(scratch, self.aux_cf, WIDTH, self._width(kv), store=True)

    def _usual_width(self) -> int:
        """Return the bucket width of new state. The retention may change later; the width may not."""
        definition = self.definition
        before, after = spans(definition.left, definition.right, definition.within)
        kept_us = definition.retention.time_us
        if definition.within is not None:
            span: int | None = definition.within.high_us - definition.within.low_us
        elif before is not None and after is not None:
            span = before + after
        else:
            span = None if kept_us is None else 2 * kept_us
        return self._endless_us if span is None else min(max(span // self._stretches, SECOND_US), 1 << 62)

    def _width(self, kv: KV) -> int:
        """Return the bucket width of this state."""
        return recorded_width(kv, self.aux_cf, WIDTH, self._usual_width())

    def keys(self, rows: Slice, side: int, columns: Columns) -> list[bytes] | None:
        """Return None: messages are not filed by keys."""
        return None

    # -- filing -----------------------------------------------------------------------------------------------------

    def _log(self, kv: KV, side: int, cf: str) -> Events:
        """Return one of the logs of a side."""
        return Events(cf, self._width(kv), (self.aux_cf, WIDE[side]))

    def _messages(self, kv: KV, side: int) -> Events:
        return self._log(kv, side, self.stores[side].cf)

    def _followed(self, kv: KV, side: int) -> Followed:
        """Return the followed messages of a side that have not expired."""
        return Followed(self._log(kv, side, self.open_cfs[side]), self.aux_cf, GONE[side])

    def file_again(self, kv: KV, batch: Batch, new: SideRows, step: int) -> None:
        side, rows, _ = new
        self._messages(kv, side).add(kv, kept_rows(rows), AGAIN | step)

    def _file(self, step: JoinStep, batch: Batch, new: SideRows, matched: BoolArray) -> None:
        side, rows, _ = new
        if len(rows):
            kv, number = step.kv, step.progress.step
            self._messages(kv, side).add(kv, kept_rows(rows), number)
            if side in self.followed:
                listed = followed_rows(rows, matched, number)
                self._log(kv, side, self.open_cfs[side]).add(kv, listed, 2 * number)

    def _note_matches(
        self, step: JoinStep, side: int, rows: Slice, matched: IntArray, new: int, others: int
    ) -> None:
        kv, number = step.kv, step.progress.step
        places_of = Slice(rows.table.select(POSITION_COLUMNS), rows.times)
        old = places_of.take(np.unique(matched[matched >= new]))
        if len(old) > others:
            # Others are noted again as they match again: no more than messages come, which costs less than to look.
            old = old.take(np.flatnonzero(~self._followed(kv, side).matched(*self._met(kv), old)))
        if len(old):
            listed = followed_rows(old, np.ones(len(old), dtype=bool), number)
            self._log(kv, side, self.open_cfs[side]).add(kv, listed, 2 * number + 1)

    # -- matching ---------------------------------------------------------------------------------------------------

    def _partners(self, step: JoinStep, side: int, others: Slice, keys: list[bytes] | None) -> Slice:
        if not len(others):
            return as_slice(None, step.sides[side])
        low, high = self.reach.partners(1 - side, others.times)
        # Messages out of retention stay until their bucket is purged; they match nothing any more.
        low = np.maximum(low, self._floor_now(step, side))
        keep = self._of_keys(step, side, others)
        met, tidy = self._met(step.kv)
        stored = self._messages(step.kv, side).read_near(met, low, high, tidy=tidy, keep=keep)
        if stored is not None and keep is not None and len(stored) > _MANY * len(others):
            stored = keep(stored)
        return as_slice(stored, step.sides[side])

    def _of_keys(self, step: JoinStep, side: int, others: Slice) -> Keep | None:
        """Return a filter that drops rows whose first key none of the others has; None if all must be read."""
        for key in step.columns.keys[:1]:
            own, other, kind = key[1 + side], key[2 - side], key[3]
            if _is_plain(kind):
                wanted = as_type(combine(others.table.column(other)), kind)
                return partial(_with_keys, own, wanted)
        return None

    def _met(self, kv: KV) -> tuple[KV, bool]:
        """Return (the store with the messages that a step can match, whether small values may be merged there)."""
        return (kv, True) if self._before is None else (self._before, False)

    def _already_matched(self, step: JoinStep, rows: Slice, new: int) -> BoolArray:
        emitted = np.zeros(len(rows), dtype=bool)
        if self.definition.how == "semi":
            old = rows.take(np.arange(new, len(rows)))
            emitted[new:] = self._followed(step.kv, LEFT).matched(*self._met(step.kv), old)
        return emitted

    # -- expiry -----------------------------------------------------------------------------------------------------

    def _leave(self, step: JoinStep, side: int, watermark_us: int) -> Iterator[pa.Table | None]:
        before_us = self._leaves_before(side, watermark_us)
        for gone in self._followed(step.kv, side).leave(step.kv, before_us, step.progress.step):
            if len(gone) and self.definition.how != "semi":
                yield self._last_words_of(step, side, gone)

    def _last_words_of(self, step: JoinStep, side: int, gone: pa.Table) -> pa.Table | None:
        """Return the rows of messages that expire unmatched and are in the store."""
        times = gone.column(TIME).to_numpy()
        return self._unmatched(
            step, side, gone, self._messages(step.kv, side).read_near(step.kv, times, times)
        )

    def _unmatched(
        self, step: JoinStep, side: int, gone: pa.Table, stored: pa.Table | None
    ) -> pa.Table | None:
        """Return the rows of unmatched messages, of which `gone` has the positions and `stored` the columns."""
        stored = gone.slice(0, 0) if stored is None else stored
        wanted, known = places(gone, stored)
        at = pc.index_in(pa.array(wanted), value_set=pa.array(known))
        if at.null_count:
            raise CorruptState(
                f"{at.null_count} messages of {self.open_cfs[side]!r} are not in the message store"
            )
        unmatched = as_slice(stored.take(at), step.sides[side])
        return self._alone(step, side, unmatched.take(np.lexsort((ranks(unmatched), unmatched.times))))

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        for side in (LEFT, RIGHT):
            self._messages(kv, side).forget(kv, self._floor(side, watermark_us, done_us))

    def _cut(self, kv: KV, side: int, floor_us: int) -> None:
        waiting = self._followed(kv, side).settle(kv) if side in self.followed else None

        def gone(rows: pa.Table) -> BoolArray:
            early = rows.column(TIME).to_numpy() < floor_us
            return np.asarray(early if waiting is None else early & ~np.isin(*places(rows, waiting)))

        for cf in self._by_message(side):
            self._log(kv, side, cf).drop(kv, floor_us, gone)

    def _by_message(self, side: int) -> tuple[str, ...]:
        """Return the families with a row of each message that can match."""
        return (self.stores[side].cf,)

    # -- queries ----------------------------------------------------------------------------------------------------

    def _between(
        self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None, sides: list[pa.Schema]
    ) -> Slice:
        """Return messages in the order of the keys that they would have as single values."""
        rows, keys = self._found(kv, side, start[0], end[0], key, sides), None
        if self.stores[side].layout.has_fields:
            columns = self.inputs.called(kv, sides)
            keys = pa.array(JoinOperator.keys(self, rows, side, columns), pa.binary())
            if key is not None:
                of_key = pc.equal(keys, pa.scalar(key, pa.binary()))
                rows, keys = rows.take(np.flatnonzero(of_key)), keys.filter(of_key)
        places = ranks(rows)
        order = [places, rows.times]
        if keys is not None:
            coded = keys.dictionary_encode()
            fields = pc.rank(coded.dictionary).to_numpy()[coded.indices.to_numpy()] if len(keys) else places
            order.insert(2 if self.stores[side].layout.fields_first else 1, fields)
        chosen = np.lexsort(order)
        return rows.take(chosen[inside(rows, start, end)[chosen]])

    def _found(
        self, kv: KV, side: int, first_us: int, last_us: int, key: bytes | None, sides: list[pa.Schema]
    ) -> Slice:
        """Return the messages from the first to the last of these times; those of other keys may be among them."""
        return as_slice(self._messages(kv, side).read(kv, first_us, last_us + 1), sides[side])


def kept_rows(rows: Slice) -> pa.Table:
    """Return messages in the form in which they are kept."""
    return rows.table.append_column(TIME, pa.array(rows.times))


def as_slice(found: pa.Table | None, schema: pa.Schema) -> Slice:
    """Return kept messages in the current types of their columns."""
    if found is None:
        return Slice(empty_rows(schema), np.zeros(0, dtype=np.int64))
    return Slice(conform(found, schema), found.column(TIME).to_numpy())


def _with_keys(name: str, wanted: pa.Array, rows: pa.Table) -> pa.Table:
    """Return the rows with one of these values in a column."""
    if name not in rows.column_names:
        return rows
    own = as_type(rows.column(name), wanted.type)
    return rows.filter(pc.is_in(own, value_set=wanted.unique(), skip_nulls=True))


def _is_plain(kind: pa.DataType) -> bool:
    """True if keys of that type are equal where their values are."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_timestamp(kind)
    )
