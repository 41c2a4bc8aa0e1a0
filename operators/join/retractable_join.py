"""A join whose inputs may retract messages: rows of an operator that corrects its output. Semantics "Corrected messages".

A step first finds the retracted stored messages and retracts their pairs; then it emits the pairs of new messages. A message
is stored until it can be retracted no more, so that every retractable pair is known. For a followed side the store counts the
partners of each message: one that has lost all of them is unmatched again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_u64, encode_u64
from windrow.operators.join.columns import JoinStep
from windrow.operators.join.logic import COUNTED, OPEN, JoinOperator, stored_key
from windrow.operators.join.output import NOBODY, Columns
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import came_late, intervals, ranks, stack
from windrow.operators.steps.columns import EARLY, INSERT, IS_LAST, KIND, LATE, RETRACT, SIGN, TIMING
from windrow.operators.steps.dead_letters import TOO_LATE
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import empty_rows
from windrow.operators.steps.output_rows import signed
from windrow.stores.kv import KV, Batch
from windrow.stores.row_codec import pack_column

#: (partners before, and after) of stored messages by place.
Changes: TypeAlias = Mapping[bytes, tuple[int, int]]


class Going(NamedTuple):
    """The changes of one side in a step: retracted stored messages, their keys in the store, and new messages."""

    gone: Slice
    stored: list[bytes]
    came: Slice


class Met(NamedTuple):
    """Pairs of new, or retracted, messages with stored ones; the former come first in `both`."""

    some: Sequence[Slice]
    both: Sequence[Slice]
    li: IntArray
    ri: IntArray


class EmittedPairs(NamedTuple):
    """Pairs to be emitted as rows. late: True for those whose rows are LATE."""

    li: IntArray
    ri: IntArray
    late: BoolArray

    def of(self, some: BoolArray) -> EmittedPairs:
        return EmittedPairs(self.li[some], self.ri[some], self.late[some])


class CorrectedJoinOperator(JoinOperator):
    """A join over time with at least one input that may retract messages."""

    def _join(self, step: JoinStep, new: Sequence[Slice]) -> None:
        """Retract the pairs of retracted messages, emit those of new messages, and file these."""
        kv, columns = step.kv, step.columns
        going = [self._going_of(step, side, new[side]) for side in (LEFT, RIGHT)]
        had = [self._matches(kv, side, going[side].gone) for side in (LEFT, RIGHT)]
        batch = Batch()
        for side, (gone, stored, _) in enumerate(going):
            batch.delete_many(self.stores[side].cf, stored)
            if side in self.followed and len(gone):
                batch.delete_many(self.open_cfs[side], self._open_keys(gone))
        kv.write(batch)
        batch = Batch()
        if self.definition.how == "asof":
            if self.definition.where is not None:  # if it raises, the later message is the dead letter
                self._met(step, [g.came for g in going])
            for side in (LEFT, RIGHT):
                self._file_counted(kv, batch, side, going[side].came, np.zeros(0, dtype=np.int64), columns)
            kv.write(batch)
            return
        back = self._met(step, [g.gone for g in going])
        fresh = self._met(step, [g.came for g in going])
        changes = [self._recount(kv, batch, side, back, fresh) for side in (LEFT, RIGHT)]
        for side in (LEFT, RIGHT):
            self._file_counted(kv, batch, side, going[side].came, (fresh.li, fresh.ri)[side], columns)
        kv.write(batch)
        reached_us = step.progress.watermark_us
        if self.definition.how == "semi":
            lost, gained = (
                self._lost(back, had[LEFT], changes[LEFT], reached_us),
                self._found(fresh, changes[LEFT], reached_us),
            )
        else:
            lost, gained = _all(back, reached_us), _all(fresh, reached_us)
        self._say(step, RETRACT, back, lost)
        self._say(step, INSERT, fresh, gained)

    # -- retractions ------------------------------------------------------------------------------------------------

    def _going_of(self, step: JoinStep, side: int, rows: Slice) -> Going:
        """Split the rows of a step into retracted messages and new ones.

        A row retracts the oldest equal message; a row equal to a retracted message brings it back.
        """
        sign = rows.sign
        rows = Slice(rows.table.drop_columns([SIGN]), rows.times) if sign is not None else rows
        none = Slice(empty_rows(step.sides[side]), np.zeros(0, dtype=np.int64))
        if sign is None or (sign > 0).all():
            return Going(none, [], rows)
        back = rows.take(np.flatnonzero(sign < 0))
        stored, keys = self._at(step.kv, side, back, self.keys(back, side, step.columns), step.sides[side])
        held, current = _identities(stored), defaultdict[bytes, deque[int]](deque)
        for row in np.argsort(ranks(stored), kind="stable").tolist():
            current[held[row]].append(row)
        gone, comes, lost = defaultdict[bytes, deque[int]](deque), dict[int, None](), []
        for row, (what, is_new) in enumerate(zip(_identities(rows), (sign > 0).tolist(), strict=True)):
            if is_new and gone[what]:
                current[what].appendleft(gone[what].popleft())
            elif is_new:
                current[what].append(len(stored) + row)
                comes[row] = None
            elif not current[what]:
                lost.append(row)
            elif (place := current[what].popleft()) < len(stored):
                gone[what].append(place)
            else:
                del comes[place - len(stored)]
        if lost:
            step.dead.input = (self.definition.left, self.definition.right)[side].name
            detail = "what it takes back is not kept"
            step.dead.add_rows(TOO_LATE, detail, rows.table, np.array(lost), pa.array(rows.times))
        places = [place for gone_places in gone.values() for place in gone_places]
        retracted = stored.take(np.array(places, dtype=np.int64))
        return Going(
            retracted, [keys[place] for place in places], rows.take(np.array(list(comes), dtype=np.int64))
        )

    def _at(
        self, kv: KV, side: int, rows: Slice, keys: list[bytes] | None, schema: pa.Schema
    ) -> tuple[Slice, list[bytes]]:
        """Return the stored messages with the times and keys of these, and their keys in the store."""
        store, names, values = self.stores[side], list[bytes](), list[bytes]()
        if store.layout.fields_first:
            assert keys is not None
            spans = sorted(set(zip(keys, rows.times.tolist(), strict=True)))
            names, values, _ = store.scan_spans(kv, *zip(*((key, t, t + 1) for key, t in spans), strict=True))
        else:
            for start, end in intervals(rows.times, rows.times):
                more, their = store.scan(kv, start, end + 1, keys=set(keys or ()))
                names, values = names + more, values + their
        return self._decode(kv, side, names, values, schema), names

    # -- pairs ------------------------------------------------------------------------------------------------------

    def _met(self, step: JoinStep, some: Sequence[Slice]) -> Met:
        """Return the pairs of these messages with each other, and with those that stay."""
        keys = [self.keys(some[side], side, step.columns) for side in (LEFT, RIGHT)]
        stay = [self._partners(step, side, some[1 - side], keys[1 - side]) for side in (LEFT, RIGHT)]
        both = [stack(some[side], stay[side]) for side in (LEFT, RIGHT)]
        li, ri = self._pairs(some, both, step.columns)
        order = np.lexsort((ranks(both[RIGHT])[ri], ranks(both[LEFT])[li]))
        return Met(some, both, li[order], ri[order])

    def _matches(self, kv: KV, side: int, rows: Slice) -> IntArray:
        """Return the number of partners of each stored message of a followed side."""
        counts = (
            kv.multi_get(self.open_cfs[side], self._open_keys(rows))
            if side in self.followed and len(rows)
            else []
        )
        return np.array([_count(value) for value in counts], dtype=np.int64)

    def _recount(self, kv: KV, batch: Batch, side: int, back: Met, fresh: Met) -> Changes:
        """Return (partners before, and after) by place, of the stored messages of a followed side that stay."""
        if side not in self.followed:
            return {}
        changes: dict[bytes, int] = defaultdict(int)
        for met, sign in ((back, -1), (fresh, 1)):
            rows = (met.li, met.ri)[side]
            those, n = np.unique(rows[rows >= len(met.some[side])], return_counts=True)
            places = self._open_keys(met.both[side].take(those)) if len(those) else []
            for place, many in zip(places, n.tolist(), strict=True):
                changes[place] += sign * many
        counts: dict[bytes, tuple[int, int]] = {}
        for place, value in zip(changes, kv.multi_get(self.open_cfs[side], list(changes)), strict=True):
            if value is not None:
                counts[place] = (_count(value), _count(value) + changes[place])
                batch.put(self.open_cfs[side], place, _flag(counts[place][1], stored_key(value)))
        return counts

    def _file_counted(
        self, kv: KV, batch: Batch, side: int, rows: Slice, matched: IntArray, columns: Columns
    ) -> None:
        """File new messages, each with the number of its partners. matched: the rows in pairs, new ones first."""
        if not len(rows):
            return
        stored = self.put(kv, batch, side, rows, self.keys(rows, side, columns))
        if side in self.followed:
            n = np.bincount(matched[matched < len(rows)], minlength=len(rows))
            flags = [_flag(many, key) for many, key in zip(n.tolist(), stored, strict=True)]
            batch.put_many(self.open_cfs[side], self._open_keys(rows), flags)

    # -- emitted rows -----------------------------------------------------------------------------------------------

    def _lost(self, back: Met, had: IntArray, changes: Changes, reached_us: int) -> EmittedPairs:
        """Return left messages that a semi-join emitted and that are retracted, or have no partner any more."""
        emitted, n = _firsts(back, reached_us), len(back.some[LEFT])
        stay = emitted.of(emitted.li >= n)
        counts = self._changed_counts(back, stay, changes)
        stay = stay.of(np.array([before > 0 and after == 0 for before, after in counts], dtype=bool))
        own = np.flatnonzero(had > 0)
        late = np.concatenate([back.some[LEFT].times[own] < reached_us, stay.late])
        li = np.concatenate([own, stay.li])
        order = np.argsort(ranks(back.both[LEFT])[li], kind="stable")
        return EmittedPairs(li[order], np.full(len(li), NOBODY, dtype=np.int64), late[order])

    def _found(self, fresh: Met, changes: Changes, reached_us: int) -> EmittedPairs:
        """Return the left messages that have a first partner."""
        emitted, n = _firsts(fresh, reached_us), len(fresh.some[LEFT])
        counts = self._changed_counts(fresh, emitted, changes)
        first = np.array([before == 0 and after > 0 for before, after in counts], dtype=bool)
        return emitted.of((emitted.li < n) | first)

    def _changed_counts(self, met: Met, emitted: EmittedPairs, changes: Changes) -> list[tuple[int, int]]:
        """Return (partners before, and after) of left messages; (0, 0) for those that are not stored."""
        places = self._open_keys(met.both[LEFT].take(emitted.li)) if len(emitted.li) else []
        return [changes.get(place, (0, 0)) for place in places]

    def _say(self, step: JoinStep, kind: str, met: Met, emitted: EmittedPairs) -> None:
        """Emit the rows of new or retracted pairs."""
        n = len(emitted.li)
        if self.definition.how == "anti" or not n:
            return
        rows = step.columns.rows(met.both[LEFT].table, met.both[RIGHT].table, emitted.li, emitted.ri)
        rows = rows.append_column(TIMING, pa.array(np.where(emitted.late, LATE, EARLY).tolist(), pa.string()))
        rows = rows.append_column(IS_LAST, pa.repeat(pa.scalar(False), n))
        step.result.panes.append(rows.append_column(KIND, pa.repeat(pa.scalar(kind, pa.string()), n)))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return signed([_of_kind(rows) for rows in panes])


def _all(met: Met, reached_us: int) -> EmittedPairs:
    return EmittedPairs(met.li, met.ri, came_late(met.some, met.both, met.li, met.ri, reached_us))


def _firsts(met: Met, reached_us: int) -> EmittedPairs:
    """Return the first pair of each left message."""
    first = np.sort(np.unique(met.li, return_index=True)[1])
    emitted = _all(met, reached_us)
    return EmittedPairs(emitted.li[first], emitted.ri[first], emitted.late[first])


def _of_kind(rows: pa.Table) -> pa.Table:
    """Return rows with their kind: INSERT, or RETRACT for a retraction."""
    if KIND in rows.column_names:
        return rows
    return rows.append_column(KIND, pa.repeat(pa.scalar(INSERT, pa.string()), len(rows)))


def _identities(rows: Slice) -> list[bytes]:
    """Return identities of messages: equal for equal messages."""
    table = rows.table.select([name for name in rows.table.column_names if not name.startswith("__")])
    pack = msgpack.Packer(autoreset=True).pack
    columns = [rows.times.tolist(), *(pack_column(column) for column in table.columns)]
    return [pack(values) for values in zip(*columns, strict=True)]


def _flag(matches: int, stored: bytes) -> bytes:
    return COUNTED + encode_u64(matches) + stored if matches else OPEN + stored


def _count(value: bytes | None) -> int:
    return decode_u64(value, 1) if value is not None and value[:1] == COUNTED else 0
