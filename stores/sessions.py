"""State rows of sessions: those that may still grow in pages by key, the others in blocks by their end.

One `BlockWindows` has them all. What stands in the place of a window's start is the *home* of a row: `HOT` for a session whose
end the watermark has not passed, else the bucket of its end. So a step reads and writes the pages of the keys that it touches,
a key that never returns costs nothing, and expiry is one range. The session's own start is in the column `__session`.

A session that was told as ended is written where it lies from then on, and is left where it was until its page is written
again: who reads passes over sessions at `HOT` that end before the watermark. A page of which half is such is written at once.

    auxiliary  db<home i64>   where the sessions of a bucket begin at the earliest and end at the latest, both i64: who looks
                              for sessions that a late message reaches knows where not to look

Rows are of two kinds. A session has what every state row has; `__stands` says that its last pane stands, and that its
accumulators still say what that pane said. A row with `__pane` is a pane that stands by itself: what was told of a part of the
session that holds it, or of it before more came. It has the window that was told, the number of panes with it, and its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.stores.blocks import BlockWindows
from windrow.stores.kv import KV, Batch
from windrow.stores.paged import Pages
from windrow.stores.pages import hashes_of, page_of, rows_in
from windrow.stores.spread import Hashes
from windrow.stores.windows import END, START, UPSERT, Near

SESSION, PANE, STANDS = "__session", "__pane", "__stands"
#: Of rows that were read: where they lie.
HOME = "__home"
#: The home of sessions that may still grow.
HOT = END_OF_TIME_US - 1
_DIRECTORY = b"db"
#: So many sessions are in a page, about. A step touches most pages of a job that is busy, each of which costs the same.
SESSION_ROWS = 32
#: How columns are called in the store.
_STORED = {START: SESSION, HOME: START}
_READ = {name: own for own, name in _STORED.items()}


class Bucket(NamedTuple):
    """Sessions that end in `[home, home + width)`: none begins before `first_us`, none ends after `last_us`."""

    home: int
    first_us: int
    last_us: int


class SessionStore:
    """The state rows of one definition. width_us: of a bucket."""

    def __init__(self, cf: str, aux: str, by: Sequence[str], width_us: int) -> None:
        self._pages = Pages(cf, aux, by, SESSION_ROWS, remembers=True)
        self._rows = BlockWindows(cf, aux, by, self._pages)
        self._aux, self.width_us = aux, width_us

    def home(self, ends: IntArray) -> IntArray:
        """Where sessions lie that end there and grow no more."""
        return ends // self.width_us * self.width_us

    def buckets(self, kv: KV, from_us: int = START_OF_TIME_US) -> list[Bucket]:
        """Those with sessions that end at `from_us` or after it."""
        low = max(from_us, START_OF_TIME_US + self.width_us) // self.width_us * self.width_us
        pairs = kv.scan(self._aux, _DIRECTORY + encode_i64(low), _DIRECTORY + b"\xff" * 9)
        at = len(_DIRECTORY)
        found = [Bucket(decode_i64(key, at), decode_i64(value), decode_i64(value, 8)) for key, value in pairs]
        return [bucket for bucket in found if bucket.last_us >= from_us]

    def parts(self, kv: KV, hashes: Hashes, most: int) -> Iterator[Hashes]:
        """Numbers of keys of sessions that may still grow, about so many sessions at a time: those of a page in one part."""
        pages = self._rows.pages(kv, HOT)
        if pages * SESSION_ROWS <= most:
            yield hashes
            return
        page = page_of(hashes, pages)
        order = np.argsort(page, kind="stable")
        bounds = np.searchsorted(page[order], np.arange(0, pages, max(1, most // SESSION_ROWS)))
        for low, high in itertools.pairwise([*bounds.tolist(), len(hashes)]):
            if low < high:
                yield hashes[order[low:high]]

    def near(self, kv: KV, homes: Sequence[int], keys: pa.Table) -> Near:
        """All rows of `keys`, and of those that lie beside them, with their homes.

        keys: a table of homes (`__start`) and the key columns, or of homes and numbers of keys (`HASH`)
        """
        near = self._rows.near(kv, homes, keys)
        return Near(None if near.rows is None else _as_rows(near.rows), near.held)

    def read(self, kv: KV, homes: Sequence[int]) -> pa.Table | None:
        """All rows of these homes."""
        rows = self._rows.read(kv, homes)
        return None if rows is None else _as_rows(rows)

    def release(self) -> None:
        """A commit is about to end: what was written is not asked for any more."""
        self._pages.release()

    def whole(self, kv: KV) -> Near:
        """All sessions that may still grow."""
        near = self._rows.near_hashes(kv, HOT, None)
        return Near(None if near.rows is None else _as_rows(near.rows), near.held)

    def put(self, kv: KV, near: Near, rows: pa.Table, kept: Callable[[pa.Table], pa.Table]) -> None:
        """`rows` are from now on what there is in the place of `near`; those whose homes it does not have are added. kept: what
        is kept of rows that only move to another page.
        """
        stored = _as_stored(rows)
        homes = stored.column(START).to_numpy()
        self._note(kv, rows)
        there = np.isin(homes, np.array(list(near.held), dtype=np.int64))
        emptied = [home for home in near.held if self._is_emptied(near, home, homes)]
        held = {home: pages for home, pages in near.held.items() if home not in emptied}
        if emptied:
            self._rows.replace(kv, emptied, stored.slice(0, 0))
            batch = Batch()
            batch.delete_many(self._aux, [_DIRECTORY + encode_i64(home) for home in emptied if home != HOT])
            kv.write(batch)
        if held:
            some = stored if there.all() else stored.filter(pa.array(there))
            self._rows.put(kv, Near(near.rows, held), some, lambda table: _as_stored(kept(_as_rows(table))))
        if not there.all():  # blindly: what lies there is not read
            for home in self._rows.append(kv, stored.filter(pa.array(~there)), upsert=True, aside=True):
                self._rows.fold(kv, home, _folded)

    def clear(self, kv: KV) -> None:
        """Forget all."""
        batch = Batch()
        batch.delete_range(self._aux, _DIRECTORY, _DIRECTORY + b"\xff" * 9)
        kv.write(batch)
        self._rows.drop(kv, START_OF_TIME_US, END_OF_TIME_US)

    def drop(self, kv: KV, before_us: int) -> None:
        """Forget the buckets that end at or before a moment."""
        end = before_us // self.width_us * self.width_us
        first, last = _DIRECTORY + encode_i64(START_OF_TIME_US), _DIRECTORY + encode_i64(end)
        if next(iter(kv.scan(self._aux, first, last)), None) is not None:
            batch = Batch()
            batch.delete_range(self._aux, first, last)
            kv.write(batch)
            self._rows.drop(kv, START_OF_TIME_US, end)

    def without(self, near: Near, others: pa.Table, must: Hashes) -> tuple[Near, pa.Table]:
        """Of `near`, pages of sessions that may still grow, those to be written where only `others` are right of them, and what
        of `others` is in these: pages of which half is not right any more, and pages of keys with these hashes.
        """
        held = near.held[HOT]
        if held.head is None or not held.there:
            return near, others
        pages = np.fromiter(held.there, np.int64)
        sizes = rows_in(held.there.values())
        own = page_of(hashes_of(others, self._rows.by), held.head.pages)
        right = np.bincount(own, minlength=held.head.pages)[pages]
        writes = (2 * right <= sizes) | (pages == 0) | np.isin(pages, page_of(must, held.head.pages))
        if writes.all():
            return near, others
        chosen = np.zeros(held.head.pages, dtype=bool)
        chosen[pages[writes]] = True
        there = {page: value for page, value in held.there.items() if chosen[page]}
        return Near(near.rows, {HOT: held._replace(there=there)}), others.filter(pa.array(chosen[own]))

    def _is_emptied(self, near: Near, home: int, homes: IntArray) -> bool:
        """True if nothing is left at a home."""
        held = near.held[home]
        if (homes == home).any():
            return False
        if held.head is None:
            return True
        return bool(held.head.stored == rows_in(held.there.values()).sum())

    def _note(self, kv: KV, rows: pa.Table) -> None:
        """Note where the sessions of buckets begin and end."""
        cold = rows.column(HOME).to_numpy() != HOT
        if not cold.any():
            return
        if not cold.all():
            rows = rows.select([HOME, START, END]).filter(pa.array(cold))
        homes, codes = np.unique(rows.column(HOME).to_numpy(), return_inverse=True)
        firsts = np.full(len(homes), END_OF_TIME_US, dtype=np.int64)
        lasts = np.full(len(homes), START_OF_TIME_US, dtype=np.int64)
        np.minimum.at(firsts, codes, rows.column(START).to_numpy())
        np.maximum.at(lasts, codes, rows.column(END).to_numpy())
        batch, keys = Batch(), [_DIRECTORY + encode_i64(home) for home in homes.tolist()]
        known = kv.multi_get(self._aux, keys)
        for key, first, last, value in zip(keys, firsts.tolist(), lasts.tolist(), known, strict=True):
            if value is not None:
                first, last = min(first, decode_i64(value)), max(last, decode_i64(value, 8))
            noted = encode_i64(first) + encode_i64(last)
            if noted != value:
                batch.put(self._aux, key, noted)
        kv.write(batch)


def _folded(rows: pa.Table) -> pa.Table:
    """Every row is a whole one."""
    return rows.drop_columns([UPSERT])


def _as_stored(rows: pa.Table) -> pa.Table:
    return rows.rename_columns([_STORED.get(n, n) for n in rows.column_names])


def _as_rows(rows: pa.Table) -> pa.Table:
    """Rows as they were given."""
    rows = rows.drop_columns([UPSERT])
    return rows.rename_columns([_READ.get(n, n) for n in rows.column_names])
