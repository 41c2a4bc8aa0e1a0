"""Page store of windows whose triggers inspect single keys: merged rows in pages by a hash of the key, later rows in blocks.

    <start i64><0xfffd><page u48>     a page (`stores/page_format.py`); page 0 says how many there are
    <start i64><0xffff><number u48>   a block of later rows, from number 1 on

A trigger that inspects single keys reads their pages and the later blocks, and writes those pages: its cost follows the keys it
inspects. The later blocks wait for a period. If they had to be folded meanwhile, or a trigger by count left
something, page 0 records it, and all pages are inspected once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress, pairwise, repeat
from operator import ne
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.core.arrays import IntArray, taken
from windrow.core.byte_order import encode_i64, prefix_end
from windrow.core.types import concat
from windrow.stores.block_format import END_OF_CF, PAGES, SINCE, key_of, page_keys
from windrow.stores.kv import KV, Batch
from windrow.stores.mapped_run import Pairs
from windrow.stores.page_cache import FEW_VALUES, Written
from windrow.stores.page_format import (
    HASH,
    PAGE_ROWS,
    Head,
    hashes_of,
    in_order,
    page_of,
    rows_in,
    rows_of,
    split_from,
    unpack,
)
from windrow.stores.page_writer import Packed
from windrow.stores.row_codec import Schemas, put_schema
from windrow.stores.spill import Spill, of_pages
from windrow.stores.window_state import PENDING, START, UPSERT, Near
from windrow.stores.write_buffer import Waiting

#: Pages of more bytes that are written together are buffered in a file until they are committed.
RUN_BYTES = 4 << 20
#: The limit for pages that are likely to be read again in the same commit.
REMEMBERED_BYTES = 64 << 20
NO_PAGES: IntArray = np.zeros(0, dtype=np.int64)


class Held(NamedTuple):
    """Result of `near` for a window: the head of page 0, pages, keys of the blocks since; True if only these wait
    to be emitted. A window without pages has no head, and its prefix where it has blocks.

    asked: the pages that were asked for, present or not. buffered: rows in the write buffer, for a window that has one. stays:
    it has pages though no row may be in them.
    """

    head: Head | None
    there: dict[int, bytes]
    since: list[bytes]
    all_waiting: bool
    asked: IntArray = NO_PAGES
    buffered: Waiting | None = None
    stays: bool = False


class Plan(NamedTuple):
    """Planned pages of a window: their number, rows in them all, whether some wait; those that exist already. stays: even if
    no row is in them.
    """

    pages: int
    stored: int
    waits: bool
    there: Mapping[int, bytes]
    stays: bool = False

    @classmethod
    def anew(cls, rows: int, each: int) -> Plan:
        """Plan a window's pages from its rows alone. each: rows of a page, about."""
        return cls(max(1, -(-rows // each)), rows, False, {})


def rows_alone(rows: pa.Table) -> pa.Table:
    """Return the rows without the column `UPSERT`."""
    return rows.drop_columns([UPSERT])


class Pages:
    """Page store of the windows of a column family."""

    def __init__(
        self,
        cf: str,
        aux: str,
        by: Sequence[str],
        page_rows: int | None = None,
        remembers: bool = False,
        buffered: int | None = None,
    ) -> None:
        """page_rows: so many are in a page, about, if not as usual. remembers: the pages written last may be read next.
        buffered: the start of a window that has a write buffer (`stores/write_buffer.py`)
        """
        self.cf, self.aux, self.by, self._page_rows = cf, aux, tuple(by), page_rows
        self._buffered = buffered
        self._remembers, self._run_bytes = remembers, REMEMBERED_BYTES if remembers else RUN_BYTES
        self._written = Written()

    @property
    def page_rows(self) -> int:
        """The approximate number of rows in a page."""
        return PAGE_ROWS if self._page_rows is None else self._page_rows

    def release(self) -> None:
        """Drop cached pages that are too large to keep, as a commit ends. The next one may read the rest."""
        self._written.release()

    def near(
        self,
        kv: KV,
        starts: Sequence[int],
        keys: pa.Table | None,
        blocks_of: Callable[[KV, bytes], Sequence[bytes]],
    ) -> Near:
        """Read `keys` and the blocks since; of a window without pages all blocks, as `blocks_of` returns them."""
        starts = sorted(set(starts))
        heads = self._heads(kv, starts)
        asked = _hashes_by_start(starts, keys, self.by, [head.pages if head else 0 for _, head in heads])
        return self._near(kv, starts, heads, asked, keys is None, blocks_of)

    def near_hashes(
        self,
        kv: KV,
        start: int,
        wanted: npt.NDArray[np.uint64] | None,
        blocks_of: Callable[[KV, bytes], Sequence[bytes]],
    ) -> Near:
        """Read as `near` does, of one window and of the keys that have such hashes; None: of all."""
        return self._near(kv, [start], self._heads(kv, [start]), [wanted], False, blocks_of)

    def _heads(self, kv: KV, starts: Sequence[int]) -> list[tuple[bytes, Head] | tuple[None, None]]:
        """Page 0 of each window, and its head; none of a window that is not of pages."""
        first = kv.multi_get(self.cf, [key_of(encode_i64(start), PAGES) for start in starts])
        return [(None, None) if value is None else (value, Head.of(value)) for value in first]

    def _near(
        self,
        kv: KV,
        starts: Sequence[int],
        heads: Sequence[tuple[bytes, Head] | tuple[None, None]],
        asked: Sequence[npt.NDArray[np.uint64] | None],
        waiting: bool,
        blocks_of: Callable[[KV, bytes], Sequence[bytes]],
    ) -> Near:
        """asked: hashes of keys by window, None for all. waiting: all rows that wait to be emitted, too."""
        schemas = Schemas(kv, self.aux)
        pages, tables, held = list[bytes](), list[pa.Table](), dict[int, Held]()
        for start, (value, head), hashes in zip(starts, heads, asked, strict=True):
            prefix = encode_i64(start)
            if value is None or head is None:
                values = blocks_of(kv, prefix)
                tables += in_order(values, schemas)
                held[start] = Held(None, {}, [prefix] if values else [], True)
                continue
            since = list(kv.scan(self.cf, key_of(prefix, SINCE), prefix_end(prefix)))
            buffered = None
            if start == self._buffered and since:
                buffered, since = Waiting.of(since, schemas, self.by), []
            blocks = [rows_of(block, schemas) for _, block in since]
            wanted: Collection[int] = range(head.pages)
            if hashes is not None and not (waiting and head.waits):
                hashes = np.concatenate([hashes, *(hashes_of(block, self.by) for block in blocks)])
                wanted = _pages_of(hashes, head.pages)
            if wanted:
                there = self._get(kv, prefix, wanted, head.pages, value)
                pages_asked = (
                    NO_PAGES if start != self._buffered else np.fromiter(wanted, np.int64, len(wanted))
                )
                held[start] = Held(head, there, [key for key, _ in since], waiting, pages_asked, buffered)
                pages += there.values()
                tables += blocks
        tables = [*self._written.rows(pages, schemas), *tables]
        merged = all(window.head is not None and not window.since for window in held.values())
        return Near(concat(tables) if tables else None, held, merged)

    def _get(
        self, kv: KV, prefix: bytes, wanted: Collection[int], pages: int, first: bytes
    ) -> dict[int, bytes]:
        """Return the wanted pages that exist; `first` is page 0."""
        if pages == 1:
            return {0: first}
        if 4 * len(wanted) < pages or self._written.has(first):
            numbers = sorted(wanted)
            values = kv.multi_get(self.cf, page_keys(repeat(prefix), numbers))
            return {page: value for page, value in zip(numbers, values, strict=True) if value is not None}
        scan = kv.scan(self.cf, key_of(prefix, PAGES), key_of(prefix, SINCE))
        stored, chosen = ((int.from_bytes(key[10:], "big"), value) for key, value in scan), set(wanted)
        return {page: value for page, value in stored if page in chosen}

    def of_hashes(self, kv: KV, prefix: bytes, wanted: npt.NDArray[np.uint64]) -> list[bytes] | None:
        """Return the pages of a window that keys with such hashes are in; None where it is not of pages."""
        first = kv.get(self.cf, key_of(prefix, PAGES))
        if first is None:
            return None
        pages = Head.of(first).pages
        return list(self._get(kv, prefix, set(page_of(wanted, pages).tolist()), pages, first).values())

    def put(
        self,
        kv: KV,
        near: Near,
        rows: pa.Table,
        kept: Callable[[pa.Table], pa.Table] = rows_alone,
        which: IntArray | None = None,
    ) -> None:
        """Put rows into pages. A window without pages gets them, and an empty one is deleted. kept: what is kept of rows that
        only move to another page. which: of the rows, those that are of these windows; None if all are
        """
        starts, batch, schemas, moved = sorted(near.held), Batch(), Schemas(kv, self.aux), list[pa.Table]()
        counts = np.bincount(_places(starts, rows, which), minlength=len(starts)).tolist()
        plans: list[Plan] = []
        for start, count in zip(starts, counts, strict=True):
            prefix, held = encode_i64(start), near.held[start]
            if held.head is None:
                if held.since:
                    batch.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
                plans.append(Plan.anew(count, self.page_rows))
                continue
            stored = held.head.stored + count - int(rows_in(held.there.values()).sum())
            if not stored and not held.stays:
                batch.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
                held = held._replace(there={}, since=[])
            pages = max(held.head.pages, -(-stored // self.page_rows))
            missing = split_from(held.head.pages, pages) - held.there.keys()
            there = dict(held.there)
            if missing:
                more = self._get(kv, prefix, missing, held.head.pages, b"")
                moves = [kept(table) for table in unpack(more.values(), schemas)]
                stored += sum(map(len, moves)) - int(rows_in(more.values()).sum())
                moved += moves
                there.update(more)
            batch.delete_many(self.cf, held.since)
            plans.append(Plan(pages, stored, held.head.waits and not held.all_waiting, there, held.stays))
        if moved:
            n, rows = len(rows), concat([rows, *moved])
            which = None if which is None else np.r_[which, np.arange(n, len(rows))]
        changed = [
            (start, plan) for start, plan in zip(starts, plans, strict=True) if plan.stored or plan.stays
        ]
        if changed:
            self._put_pages(
                kv, batch, [start for start, _ in changed], [plan for _, plan in changed], rows, which
            )
        else:
            kv.write(batch)

    def replace(self, kv: KV, starts: Sequence[int], rows: pa.Table) -> None:
        starts, batch = sorted(set(starts)), Batch()
        for start in starts:
            prefix = encode_i64(start)
            batch.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
        counts = np.bincount(_places(starts, rows), minlength=len(starts)).tolist()
        kept = [start for start, count in zip(starts, counts, strict=True) if count]
        if kept:
            self._put_pages(
                kv, batch, kept, [Plan.anew(count, self.page_rows) for count in counts if count], rows
            )
        else:
            kv.write(batch)

    def replace_by_shares(self, kv: KV, start: int, groups: Spill) -> None:
        """Replace one window, as `replace` does, by groups of partitions of its keys, those from `spill.grouped`,
        numbered in their order."""
        prefix, batch = encode_i64(start), Batch()
        batch.delete_range(self.cf, prefix, prefix_end(prefix) or END_OF_CF)
        kv.write(batch)
        plan, pairs = Plan.anew(sum(map(groups.rows, groups.numbers)), self.page_rows), Pairs()
        for rows, last in of_pages(groups, plan.pages) if plan.stored else ():
            batch, waits = Batch(), False
            if PENDING in rows.column_names:
                waits = bool((rows.column(PENDING).to_numpy() > 0).any())
            plan = plan._replace(waits=plan.waits or waits)
            pairs.add(*self._pages(kv, batch, [start], [plan], rows, first=last))
            kv.write(batch)
        _put_run(kv, self.cf, pairs)

    def count(self, kv: KV, start: int) -> int:
        """Return the number of pages of a window; 0 where it has none."""
        [(_, head)] = self._heads(kv, [start])
        return head.pages if head else 0

    def _put_pages(
        self,
        kv: KV,
        batch: Batch,
        starts: Sequence[int],
        plans: list[Plan],
        rows: pa.Table,
        which: IntArray | None = None,
    ) -> None:
        """Write the pages that differ from the stored ones."""
        pairs = self._pages(kv, batch, starts, plans, rows, which=which)
        put_pairs(kv, batch, self.cf, *pairs, self._run_bytes)

    def _pages(
        self,
        kv: KV,
        batch: Batch,
        starts: Sequence[int],
        plans: list[Plan],
        rows: pa.Table,
        first: bool = True,
        which: IntArray | None = None,
    ) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of pages that differ from the stored ones; surplus ones are deleted in `batch`. first: page 0
        is among them, which describes the window. which: as in `put`
        """
        of, hashes = _places(starts, rows, which), hashes_of(rows, self.by)
        hashes = hashes if which is None else hashes[which]
        if PENDING in rows.column_names:
            pending = rows.column(PENDING).to_numpy()
            pending = pending if which is None else pending[which]
            waiting = np.bincount(of[pending > 0], minlength=len(plans))
            for i in np.flatnonzero(waiting).tolist():
                plans[i] = plans[i]._replace(waits=True)
        counts = np.array([plan.pages for plan in plans], dtype=np.int64)
        base = np.r_[0, np.cumsum(counts)]
        codes = base[of] + page_of(hashes, counts[of])
        order = np.argsort(codes.astype(np.uint16) if base[-1] <= 1 << 16 else codes, kind="stable")
        codes = codes[order]
        own = codes[np.flatnonzero(np.r_[len(codes) > 0, codes[1:] != codes[:-1]])]
        # Page 0 is there even where no row is in it.
        written = np.union1d(own, base[:-1]) if first else own
        rows = taken(rows, order if which is None else which[order])
        bounds = np.r_[np.searchsorted(codes, written), len(codes)]
        packed = Packed(
            rows,
            put_schema(kv, self.aux, batch, rows.schema),
            bounds,
        )
        window = np.searchsorted(base, written, side="right") - 1
        windows, numbers = window.tolist(), written - base[window]
        prefixes, pages, values = [encode_i64(start) for start in starts], numbers.tolist(), packed.pages()
        for i in np.flatnonzero(numbers == 0).tolist():
            plan = plans[windows[i]]
            values[i] = packed.page(i, plan.waits, plan.pages, plan.stored)
        before = [plans[w].there.get(page) for w, page in zip(windows, pages, strict=True)]
        ends = np.searchsorted(window, np.arange(len(plans) + 1)).tolist()
        for plan, prefix, (low, high) in zip(plans, prefixes, pairwise(ends), strict=True):
            left = plan.there.keys() - {0, *pages[low:high]}
            batch.delete_many(self.cf, page_keys(repeat(prefix), list(left)))
        differ = list(map(ne, before, values))
        if self._remembers and all(differ):
            self._written.add(values, rows, bounds)
        keys = page_keys([prefixes[w] for w in windows], numbers)
        return list(compress(keys, differ)), list(compress(values, differ))


def put_pairs(kv: KV, batch: Batch, cf: str, keys: list[bytes], values: list[bytes], most: int) -> None:
    """Write the batch, then pairs of one length of key; above `most` bytes they are buffered in a file until the commit."""
    if sum(map(len, values)) <= most:
        batch.put_many(cf, keys, values)
        kv.write(batch)
        return
    kv.write(batch)
    pairs = Pairs()
    pairs.add(keys, values)
    _put_run(kv, cf, pairs)


def _put_run(kv: KV, cf: str, pairs: Pairs) -> None:
    run, batch = pairs.run(), Batch()
    # Few large values of windows lie between those that come next, of the same windows.
    for part in [] if run is None else run.each() if len(run) <= FEW_VALUES else [run]:
        batch.put_run(cf, part)
    kv.write(batch)


def _pages_of(hashes: npt.NDArray[np.uint64], pages: int) -> list[int]:
    """Return the pages of keys with such hashes, in order, and page 0, which describes the window; none of no keys."""
    if len(hashes) == 0:
        return []
    wanted = np.zeros(pages, dtype=bool)
    wanted[0] = wanted[page_of(hashes, pages)] = True
    return np.flatnonzero(wanted).tolist()


def _places(starts: Sequence[int], rows: pa.Table, which: IntArray | None = None) -> IntArray:
    """Return for each row, or for some, the index of its window in `starts`, which are sorted."""
    sought: IntArray = np.array(starts, dtype=np.int64)
    own = rows.column(START).to_numpy()
    return np.asarray(np.searchsorted(sought, own if which is None else own[which]), dtype=np.int64)


def _hashes_by_start(
    starts: Sequence[int], keys: pa.Table | None, by: Sequence[str], pages: Sequence[int]
) -> list[npt.NDArray[np.uint64] | None]:
    """Return the hashes by window; None where so many keys are read that they are in nearly all of its pages."""
    if keys is None or len(keys) == 0:
        return [np.zeros(0, dtype=np.uint64)] * len(starts)
    of = _places(starts, keys)
    few = np.bincount(of, minlength=len(starts)) < 2 * np.array(pages, dtype=np.int64)
    if HASH in keys.column_names:  # which cost nothing, and may have been chosen by their pages
        few[:] = True
    if not few.all():
        chosen = few[of]
        keys, of = keys.filter(pa.array(chosen)), of[chosen]
    order = np.argsort(of, kind="stable")
    by_start = np.split(hashes_of(keys, by)[order], np.searchsorted(of[order], np.arange(1, len(starts))))
    return [hashes if is_few else None for hashes, is_few in zip(by_start, few.tolist(), strict=True)]
