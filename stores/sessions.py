"""Session store: state rows of sessions that may still grow in pages by key, of the others in blocks by their end.

One `BlockWindows` has them all. In place of a window's start a row has its *home*: `HOT` (active) for a session whose end the
watermark has not passed, else the bucket of its end. A step thus reads and writes only the pages of the keys that it touches,
a key that never returns costs nothing, and expiry is one range. The session's own start is in the column `__session`.

When a session is emitted as ended, it is written to its bucket, and its old row stays until its page is next written. Readers
skip sessions at `HOT` that end before the watermark. A page of which half is such rows is written at once.

If a step touches few of many growing sessions, its rows are kept in the write buffer (`stores/write_buffer.py`), each as the
session that it would be alone. A reader merges them into the sessions that it touches.

    auxiliary  db<home i64>   the earliest start and the latest end of a bucket's sessions, both i64. A late message is looked
                              up only in buckets that it may reach
    auxiliary  ds<bucket i64> where messages are kept: the latest end, i64, that a session at `HOT` has had that begins in this
                              bucket. Eviction of messages thus need not read these sessions

Rows are of two kinds. A session has the columns of every state row; `__current` is true if its last pane is current and equals
its accumulators. A row with `__pane` is a pane that is current by itself: it was emitted for a part of the session that holds
it, or for the session before more messages came. It has the emitted window, the number of panes with it, and its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.block_format import Kind
from windrow.stores.delta_blocks import BlockWindows, OfBlocks
from windrow.stores.key_hash import Hashes
from windrow.stores.kv import KV, Batch
from windrow.stores.page_format import hashes_of, page_of, rows_in
from windrow.stores.page_store import Held, Pages
from windrow.stores.tombstones import changes, live_rows
from windrow.stores.window_state import END, START, UPSERT, Near
from windrow.stores.write_buffer import Waiting, WaitingRows, is_much

SESSION, PANE, CURRENT = "__session", "__pane", "__current"
#: The column of rows' homes, in rows that were read.
HOME = "__home"
#: The home of sessions that may still grow.
HOT = END_OF_TIME_US - 1
_DIRECTORY, _BEGINS = b"db", b"ds"
#: Sessions in a page, about. A step touches most pages of a busy job, each of which costs the same.
SESSION_ROWS = 32
#: To read and write a page of them costs as much as to read so many bytes of blocks, about.
PAGE_BYTES = 32 << 10
#: Keys of more runs of homes are sorted.
FEW_HOMES = 64
#: Names of columns in the store.
_STORED = {START: SESSION, HOME: START}
_READ = {name: own for own, name in _STORED.items()}


class Bucket(NamedTuple):
    """Sessions that end in `[home, home + width)`: none begins before `first_us`, none ends after `last_us`."""

    home: int
    first_us: int
    last_us: int


class SessionStore:
    """Session store of one definition. width_us: of a bucket; keeps: True if their messages are kept."""

    def __init__(self, cf: str, aux: str, by: Sequence[str], width_us: int, *, keeps: bool = False) -> None:
        self._pages = Pages(cf, aux, by, SESSION_ROWS, remembers=True, buffered=HOT)
        self._rows = BlockWindows(cf, aux, by, self._pages, narrow=True)
        self._waiting = WaitingRows(cf, aux, by, HOT)
        self._aux, self.width_us, self._keeps = aux, width_us, keeps

    def home(self, ends: IntArray) -> IntArray:
        """Return the bucket of sessions that end there and cannot grow."""
        return ends // self.width_us * self.width_us

    def buckets(self, kv: KV, from_us: int = START_OF_TIME_US) -> list[Bucket]:
        """Return the buckets with sessions that end at `from_us` or after it."""
        low = max(from_us, START_OF_TIME_US + self.width_us) // self.width_us * self.width_us
        pairs = kv.scan(self._aux, _DIRECTORY + encode_i64(low), _DIRECTORY + b"\xff" * 9)
        at = len(_DIRECTORY)
        buckets = [
            Bucket(decode_i64(key, at), decode_i64(value), decode_i64(value, 8)) for key, value in pairs
        ]
        return [bucket for bucket in buckets if bucket.last_us >= from_us]

    def parts(self, kv: KV, hashes: Hashes, most: int) -> Iterator[Hashes]:
        """Yield hashes of keys of growing sessions: all, or where more than so many sessions lie in their pages, those
        of half as many at a time. Those of a page are in one part.
        """
        pages = self._rows.pages(kv, HOT)
        if min(pages, len(hashes)) * SESSION_ROWS <= most:
            yield hashes
            return
        page = page_of(hashes, pages)
        order = np.argsort(page, kind="stable")
        bounds = np.searchsorted(page[order], np.arange(0, pages, max(1, most // 2 // SESSION_ROWS)))
        for low, high in itertools.pairwise([*bounds.tolist(), len(hashes)]):
            if low < high:
                yield hashes[order[low:high]]

    def near(self, kv: KV, homes: Sequence[int], keys: pa.Table) -> Near:
        """Return all rows of `keys`, and of keys in the same pages, with their homes.

        keys: a table of homes (`__start`) and the key columns, or of homes and numbers of keys (`HASH`)
        """
        asked = _by_home(keys)
        added = self._added(kv, homes, asked)
        others = [table for home, table in asked.items() if home not in added]
        near = self._rows.near(
            kv, [home for home in homes if home not in added], concat(others or [keys.slice(0, 0)])
        )
        tables = [near.rows]
        for home, blocks in added.items():
            wanted = np.unique(hashes_of(asked[home], self._rows.by))
            tables.append(self._rows.rows_of_keys(kv, blocks, wanted))
        read = [self._as_rows(table) for table in tables if table is not None]
        return Near(concat(read) if read else None, {**near.held, **added})

    def _added(self, kv: KV, homes: Sequence[int], asked: Mapping[int, pa.Table]) -> dict[int, OfBlocks]:
        """Return the homes, all of blocks, to which changes are appended: the keys read are so many that they would be in most
        of their pages, which would be written for few of them.
        """
        blocks_of = dict[int, OfBlocks]()
        for home in homes if self._rows.by else ():
            blocks = None if home == HOT or home not in asked else self._rows.of_blocks(kv, home)
            if blocks is not None and len(asked[home]) * PAGE_BYTES >= blocks.nbytes:
                blocks_of[home] = blocks
        return blocks_of

    def read(self, kv: KV, homes: Sequence[int]) -> pa.Table | None:
        """Return all rows of these homes, without the write buffer."""
        return self.all_of(kv, homes).rows

    def all_of(self, kv: KV, homes: Sequence[int]) -> Near:
        """Return all rows of these homes. `held` has the write buffer."""
        hot = self.whole(kv) if HOT in homes else Near(None, {})
        rows = self._rows.read(kv, [home for home in homes if home != HOT])
        if rows is None:
            return hot
        rows = self._as_rows(rows)
        return Near(rows if hot.rows is None else concat([hot.rows, rows]), hot.held)

    def lets_wait(self, kv: KV, rows: int) -> bool:
        """True if growing sessions are in pages, and so few rows may be buffered."""
        pages = self._rows.pages(kv, HOT)
        return pages > 0 and not is_much(rows, pages)

    def buffer_rows(self, kv: KV, rows: pa.Table) -> bool:
        """Buffer rows; returns True where all buffered rows are to be merged into sessions now."""
        return self._waiting.add(kv, rows, self._rows.pages(kv, HOT))

    def waiting(self, kv: KV) -> Hashes | None:
        """Return the keys of the buffered rows."""
        waiting = self._waiting.read(kv)
        return None if waiting is None else np.unique(waiting.hashes)

    def release(self) -> None:
        """Drop cached pages that are too large to keep, as a commit ends."""
        self._pages.release()

    def whole(self, kv: KV) -> Near:
        """Return all sessions that may still grow."""
        near = self._rows.near_hashes(kv, HOT, None)
        return Near(None if near.rows is None else self._as_rows(near.rows), near.held)

    def put(
        self,
        kv: KV,
        near: Near,
        rows: pa.Table,
        kept: Callable[[pa.Table], pa.Table],
        stay: IntArray | None = None,
    ) -> None:
        """Replace `near` by `rows`, except those of its rows that `stay`; rows whose
        homes it does not have are added. kept: what is kept of rows that only move to another page.
        """
        added = {home: blocks for home, blocks in near.held.items() if isinstance(blocks, OfBlocks)}
        near, rows, changed = self._changed(near, rows, stay, list(added))
        stored = _as_stored(rows)
        homes = stored.column(START).to_numpy()
        self._note(kv, rows)
        if self._keeps:
            self._note_begins(kv, rows)
        if (open_ := near.held.get(HOT)) is not None and open_.buffered is not None:
            left = self._remove_buffered(kv, open_)
            near = Near(near.rows, {**near.held, HOT: open_._replace(stays=left)})
            # An outdated row may still be continued by buffered rows: it stays as it is.
            kept = (lambda some: some) if left else kept
        there = np.isin(homes, np.array(list(near.held), dtype=np.int64))
        emptied = [home for home in near.held if self._is_emptied(near, home, homes)]
        held = {home: pages for home, pages in near.held.items() if home not in emptied}
        if emptied:
            self._rows.replace(kv, emptied, stored.slice(0, 0))
            batch = Batch()
            batch.delete_many(self._aux, [_DIRECTORY + encode_i64(home) for home in emptied if home != HOT])
            kv.write(batch)
        if held:
            of_held = None if there.all() else np.flatnonzero(there)
            self._rows.put(kv, Near(near.rows, held), stored, partial(self._moved, kept), of_held)
        if not there.all() or changed is not None:
            self._add(kv, taken(stored, np.flatnonzero(~there)), changed, added)

    def _changed(
        self, near: Near, rows: pa.Table, stay: IntArray | None, added: list[int]
    ) -> tuple[Near, pa.Table, pa.Table | None]:
        """Return `near` without the homes in `added`, all rows of the other homes, and the tombstones of those in `added`."""
        if near.rows is None:
            return near, rows, None
        stays = np.zeros(len(near.rows), dtype=bool)
        stays[np.zeros(0, dtype=np.int64) if stay is None else stay] = True
        in_added = np.isin(near.rows.column(HOME).to_numpy(), np.array(added, dtype=np.int64))
        others, changed = stays & ~in_added, None
        if (in_added & ~stays).any():
            changed = changes(
                _as_stored(taken(near.rows, np.flatnonzero(in_added))), stays[in_added], self._rows.by
            )
        if others.any():
            there = near.rows if others.all() else taken(near.rows, np.flatnonzero(others))
            rows = concat([there, rows])
        held = {home: it for home, it in near.held.items() if home not in added}
        return Near(near.rows, held), rows, changed

    def _add(self, kv: KV, rows: pa.Table, changed: pa.Table | None, known: Mapping[int, OfBlocks]) -> None:
        """Add rows without a read of their homes. changed: rows with tombstones; known: the blocks that were read"""
        if changed is None:
            due = self._rows.append(kv, rows, upsert=True, aside=True)
        else:
            rows = rows.append_column(UPSERT, pa.array(np.ones(len(rows), dtype=bool)))
            due = self._rows.change(kv, concat([changed, rows]), known)
        for home in due:
            blocks = self._rows.of_blocks(kv, home)
            if blocks is None or blocks.newest.block.kind != Kind.CHANGED:
                self._rows.fold(kv, home, _folded)
            elif (stored := self._rows.read(kv, [home])) is not None:
                self._rows.replace(kv, [home], _folded(live_rows(stored, self._rows.by)))

    def _remove_buffered(self, kv: KV, held: Held) -> bool:
        """Remove the buffered rows of pages that were read and are written now. True if some remain."""
        assert held.buffered is not None and held.head is not None
        of_read_pages = waits_for(held, held.buffered)
        if of_read_pages.any():
            self._waiting.replace(kv, held.buffered, held.buffered.where(~of_read_pages))
        return not of_read_pages.all()

    def clear(self, kv: KV) -> None:
        """Delete everything."""
        batch = Batch()
        for what in (_DIRECTORY, _BEGINS):
            batch.delete_range(self._aux, what, what + b"\xff" * 9)
        kv.write(batch)
        self._rows.drop(kv, START_OF_TIME_US, END_OF_TIME_US)

    def drop(self, kv: KV, before_us: int) -> None:
        """Delete the buckets that end at or before a moment."""
        end = before_us // self.width_us * self.width_us
        first, last = _DIRECTORY + encode_i64(START_OF_TIME_US), _DIRECTORY + encode_i64(end)
        if next(iter(kv.scan(self._aux, first, last)), None) is not None:
            batch = Batch()
            batch.delete_range(self._aux, first, last)
            kv.write(batch)
            self._rows.drop(kv, START_OF_TIME_US, end)

    def first_kept(self, kv: KV, passed_us: int) -> int:
        """Return a lower bound of the starts of kept sessions. passed_us: sessions at `HOT` that end before it are outdated."""
        firsts, batch = [bucket.first_us for bucket in self.buckets(kv)], Batch()
        for key, last in kv.scan(self._aux, _BEGINS, _BEGINS + b"\xff" * 9):
            if decode_i64(last) >= passed_us:
                firsts.append(decode_i64(key, len(_BEGINS)))
                break
            batch.delete(self._aux, key)
        kv.write(batch)
        return min(firsts, default=END_OF_TIME_US)

    def _note_begins(self, kv: KV, rows: pa.Table) -> None:
        """Record the latest end of growing sessions, by bucket of their start."""
        hot = rows.column(HOME).to_numpy() == HOT
        if not hot.any():
            return
        starts, ends = (rows.column(column).to_numpy()[hot] for column in (START, END))
        buckets, codes = np.unique(self.home(starts), return_inverse=True)
        lasts = np.full(len(buckets), START_OF_TIME_US, dtype=np.int64)
        np.maximum.at(lasts, codes, ends)
        keys = [_BEGINS + encode_i64(bucket) for bucket in buckets.tolist()]
        batch, known = Batch(), kv.multi_get(self._aux, keys)
        for key, last, value in zip(keys, lasts.tolist(), known, strict=True):
            if value is None or decode_i64(value) < last:
                batch.put(self._aux, key, encode_i64(last))
        kv.write(batch)

    def without(self, near: Near, stay: IntArray, must: Hashes) -> tuple[Near, IntArray]:
        """Select from `near` the pages of growing sessions to write if only the rows `stay` remain, and their rows among these.
        They are the pages of which half is out of date, and pages of keys with the hashes `must`.
        """
        held = near.held[HOT]
        if near.rows is None or held.head is None or not len(held.asked):
            return near, stay
        pages = np.sort(held.asked)
        sizes = np.zeros(held.head.pages, dtype=np.int64)
        sizes[np.fromiter(held.there, np.int64)] = rows_in(held.there.values())
        sizes = sizes[pages]
        keys = near.rows.select([START, *self._rows.by])
        keys = keys if len(stay) == len(keys) else keys.take(pa.array(stay))
        own = page_of(hashes_of(keys, self._rows.by), held.head.pages)
        right = np.bincount(own, minlength=held.head.pages)[pages]
        writes = (2 * right <= sizes) | (pages == 0) | np.isin(pages, page_of(must, held.head.pages))
        if writes.all():
            return near, stay
        chosen = np.zeros(held.head.pages, dtype=bool)
        chosen[pages[writes]] = True
        there = {page: value for page, value in held.there.items() if chosen[page]}
        held = held._replace(there=there, asked=pages[writes])
        return Near(near.rows, {HOT: held}), stay[chosen[own]]

    def _as_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows in their original form, without deleted ones."""
        rows = live_rows(rows, self._rows.by).drop_columns([UPSERT])
        return rows.rename_columns([_READ.get(n, n) for n in rows.column_names])

    def _moved(self, kept: Callable[[pa.Table], pa.Table], rows: pa.Table) -> pa.Table:
        """Return the stored rows that `kept` keeps."""
        return _as_stored(kept(self._as_rows(rows)))

    def _is_emptied(self, near: Near, home: int, homes: IntArray) -> bool:
        """True if nothing is left at a home."""
        held = near.held[home]
        if held.stays or (homes == home).any():
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


def waits_for(held: Held, waiting: Waiting) -> BoolArray:
    """True for buffered rows of one of the pages that were read."""
    assert held.head is not None
    asked = np.zeros(held.head.pages, dtype=bool)
    asked[held.asked] = True
    of_read_pages: BoolArray = asked[page_of(waiting.hashes, held.head.pages)]
    return of_read_pages


def _by_home(keys: pa.Table) -> dict[int, pa.Table]:
    """Keys by their home. They mostly come home after home."""
    homes = keys.column(START).to_numpy()
    if np.count_nonzero(homes[1:] != homes[:-1]) > FEW_HOMES:
        order = np.argsort(homes, kind="stable")
        keys, homes = taken(keys, order), homes[order]
    slices = dict[int, list[pa.Table]]()
    for low, high in itertools.pairwise(np.r_[0, np.flatnonzero(np.diff(homes)) + 1, len(homes)].tolist()):
        if low < high:
            slices.setdefault(int(homes[low]), []).append(keys.slice(low, high - low))
    return {home: concat(tables) for home, tables in slices.items()}


def homes_at_once(homes: IntArray, most: int) -> Iterator[IntArray]:
    """Yield the places of rows at these homes, home after home, in parts of about so many: those of a home in one part."""
    order = np.argsort(homes, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(homes[order]) > 0])
    part = begins // most
    bounds = begins[np.flatnonzero(np.r_[True, np.diff(part) > 0])]
    for low, high in itertools.pairwise([*bounds.tolist(), len(order)]):
        yield order[low:high]


def _folded(rows: pa.Table) -> pa.Table:
    """Merge nothing: every row is complete."""
    return rows.drop_columns([UPSERT])


def _as_stored(rows: pa.Table) -> pa.Table:
    return rows.rename_columns([_STORED.get(n, n) for n in rows.column_names])
