"""Keyed history for frames that count messages, and the partitions that an advance makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.over.due_rows import Reached, Sums
from windrow.operators.over.key_state import Found, Keyed
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.groups import Groups
from windrow.operators.steps.step import limit
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV
from windrow.stores.window_state import START


@dataclass(frozen=True)
class Kept:
    """The rows of one family: of the keys of an advance, with their numbers. same_pages: of others in the same pages."""

    found: Found
    rows: pa.Table
    codes: IntArray
    same_pages: pa.Table


@dataclass(frozen=True)
class Held:
    """The messages of the keys of an advance, which are numbered by `codes` below `keys`, and the history of these keys."""

    rows: pa.Table
    codes: IntArray
    keys: int
    tails: Kept | None
    sums: Kept | None

    @property
    def reached(self) -> Sums | None:
        """Return the accumulators of running aggregations."""
        return None if self.sums is None else Sums(self.sums.rows, self.sums.codes)


class Remembered:
    """The last `tail` messages of each key, of which `waits` may wait for others; accumulators of running aggregations."""

    def __init__(
        self, name: str, by: tuple[str, ...], ttl_us: int | None, *, tail: int, waits: int, runs: bool
    ) -> None:
        self.by, self.ttl_us = by, ttl_us
        self._tail, self._waits, self._runs = tail, waits, runs
        self.tails = Keyed(f"{name}.tails", f"{name}.aux", by, ttl_us)
        self.sums = Keyed(f"{name}.sums", f"{name}.aux", by, ttl_us)

    @property
    def anything(self) -> bool:
        """True if there is any history to keep."""
        return self._tail > 0 or self._runs

    # -- reading ----------------------------------------------------------------------------------------------------

    def ended(self, kv: KV, before: Reached, after: Reached) -> pa.Table | None:
        """Return the keys whose last messages need not wait for others any more: a row of each; None if there are none."""
        if not self._waits or (self.ttl_us is None and after.watermark_us < END_OF_TIME_US):
            return None
        low, high = (self.quiet_since(at) for at in (before, after))
        rows = self.tails.last_between(kv, low, high)
        if rows is None:
            return None
        groups = Groups([rows.column(b) for b in self.by], len(rows))
        last = np.full(groups.size, START_OF_TIME_US)
        np.maximum.at(last, groups.codes, rows.column(TIME).to_numpy())
        over = np.flatnonzero((last >= low) & (last < high))
        return rows.take(pa.array(groups.first_rows[over])) if len(over) else None

    def quiet_since(self, at: Reached) -> int:
        """Return the time before which the last message of a key must be so that none can follow it any more."""
        if at.watermark_us >= END_OF_TIME_US:
            return END_OF_TIME_US
        return START_OF_TIME_US if self.ttl_us is None else limit(at.watermark_us, self.ttl_us)

    def near(
        self,
        kv: KV,
        events: pa.Table,
        named: BoolArray,
        settled: BoolArray,
        ended: pa.Table | None,
        low_us: int,
        after: Reached,
        latest: str = TIME,
    ) -> Held:
        """Return the messages of keys that some of `events` name, which are from `low_us` on, or have ended. settled: true for
        those to be added to the history. latest: the column of times since which a key is quiet."""
        new, stays = events.filter(pa.array(named)), settled[named]
        asked = new if ended is None else concat([new, ended.select(events.column_names)])
        groups = Groups([asked.column(b) for b in self.by], len(asked))
        keys = asked.take(pa.array(groups.first_rows))
        last = np.full(groups.size, START_OF_TIME_US)
        np.maximum.at(last, groups.codes[: len(new)][stays], new.column(latest).to_numpy()[stays])
        wanted = last > START_OF_TIME_US
        stretches = self.tails.stretch(np.where(wanted, last, 0))
        near = [
            keyed.near(kv, keys, stretches, wanted, after.settled_us) if used else None
            for keyed, used in ((self.tails, self._tail > 0), (self.sums, self._runs))
        ]
        stored = [None if f is None else f.rows for f in near]
        codes = self._codes([keys, *(s for s in stored if s is not None), events])
        kept: list[Kept | None] = []
        for f in near:
            of = codes.pop(1) if f is not None and f.rows is not None else None
            kept.append(None if f is None else _kept(f, of, groups.size))
        tails, sums = kept
        of_keys = codes[-1] < groups.size
        rows, numbers = events.filter(pa.array(of_keys)), codes[-1][of_keys]
        if tails is not None and len(tails.rows):
            older = tails.rows.column(TIME).to_numpy() < low_us  # the others are among the events
            before = conformed(tails.rows.filter(pa.array(older)), events.schema)
            rows, numbers = pa.concat_tables([before, rows]), np.r_[tails.codes[older], numbers]
        return Held(rows, numbers, groups.size, tails, sums)

    def _codes(self, tables: Sequence[pa.Table]) -> list[IntArray]:
        """Return numbers of the keys of the tables; those of the first, which are distinct, are its places."""
        total = sum(map(len, tables))
        keys = concat([t.select(self.by) for t in tables]) if self.by else None
        columns = [] if keys is None else [keys.column(b) for b in self.by]
        return np.split(Groups(columns, total).codes, np.cumsum([len(t) for t in tables])[:-1])

    # -- writing ----------------------------------------------------------------------------------------------------

    def put(self, kv: KV, held: Held, lines: Lines, sums: Sums | None, after: Reached) -> None:
        """Save the history for later advances. lines: of `held.rows`; sums: the accumulators of running aggregations."""
        settled = np.flatnonzero(lines.times < after.settled_us)
        codes = lines.codes[settled]
        ends = np.searchsorted(codes, np.arange(held.keys), side="right")
        there = ends > np.searchsorted(codes, np.arange(held.keys), side="left")
        last = np.where(there, settled[np.maximum(ends - 1, 0)] if len(settled) else 0, 0)
        stretches = self.tails.stretch(np.where(there, lines.times[last] if len(lines) else 0, 0))
        lasts = there & self.tails.lasting(stretches, after.settled_us)
        if held.tails is not None:
            of_line = lines.begins[settled] == lines.begins[last[codes]]
            newest = ends[codes] - np.arange(len(settled)) <= self._tail
            chosen = settled[of_line & newest & lasts[codes]]
            fresh = held.rows.take(pa.array(lines.order[chosen]))
            fresh = fresh.append_column(START, pa.array(stretches[lines.codes[chosen]]))
            self.tails.put(kv, held.tails.found, [held.tails.same_pages, fresh])
        if held.sums is not None:
            self.sums.put(
                kv,
                held.sums.found,
                self.sum_rows(held, sums, lines.order[last] if len(lines) else last, stretches, lasts, there),
            )

    def sum_rows(
        self,
        held: Held,
        sums: Sums | None,
        last: IntArray,
        stretches: IntArray,
        lasts: BoolArray,
        there: BoolArray | None = None,
    ) -> list[pa.Table]:
        """Return the accumulators of the keys of an advance, changed or not, and of keys in the same pages. last: a row
        of each key. there: false of keys that were only read: theirs stay where they are.
        """
        assert held.sums is not None
        tables = [held.sums.same_pages]
        if there is not None and len(held.sums.rows):
            tables.append(held.sums.rows.filter(pa.array(~there[held.sums.codes])))
        parts = [] if sums is None else [(sums.rows, sums.codes)]
        former = held.sums.rows
        if len(former):
            same = ~np.isin(held.sums.codes, sums.codes if sums is not None else [])
            bare = former.drop_columns([START, *self.by]).filter(pa.array(same))
            parts.append((bare, held.sums.codes[same]))
        for table, codes in parts:
            kept = lasts[codes]
            table, codes = table.filter(pa.array(kept)), codes[kept]
            keys = held.rows.take(pa.array(last[codes]))
            for b in self.by:
                table = table.append_column(keys.schema.field(b), keys.column(b))
            tables.append(table.append_column(START, pa.array(stretches[codes])))
        return tables

    def forget(self, kv: KV, after: Reached) -> None:
        """Delete keys that no message can continue any more."""
        for keyed in (self.tails, self.sums):
            keyed.forget(kv, after.settled_us)


def _kept(found: Found, codes: IntArray | None, keys: int) -> Kept:
    """Split the rows that were found by the numbers of their keys; numbers from `keys` on are of others."""
    if found.rows is None or codes is None:
        nothing = pa.table({})
        return Kept(found, nothing, np.zeros(0, dtype=np.int64), nothing)
    of_keys = codes < keys
    rows = found.rows
    return Kept(found, rows.filter(pa.array(of_keys)), codes[of_keys], rows.filter(pa.array(~of_keys)))
