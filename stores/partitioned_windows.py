"""Hash-partitioned windows of many keys: rows in parts by a hash of the key, and blocks to be dealt out to these.

    <start i64><part u16><number u48>   pages (`stores/page_format.py`); part: where its range of hashes begins, 0 to 0x7fff
    <start i64><0xffff><number u48>     blocks of later rows; number 0: the directory

A window is divided without being read: its parts are empty, and its blocks wait, as all later ones do. Each commit deals out
the oldest waiting blocks, about twice what it brings, and folds parts that have doubled, of about as many bytes as it brings
and deals out, so that none pays for the whole. From the parts to the waiting blocks, the rows of a key are in the order of
arrival. The schedule depends on numbers and bytes only, so that a repeated commit does the same. Values are found by the
directory, not by a scan, which would have to pass all values deleted since RocksDB's last compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.byte_order import decode_i64, prefix_end
from windrow.core.errors import CorruptState
from windrow.core.types import concat
from windrow.stores.block_format import (
    FORMAT,
    HEAD,
    HEADER,
    MAGIC,
    NUMBER,
    SINCE,
    Block,
    Codec,
    Kind,
    Newest,
    check_head,
    key_of,
)
from windrow.stores.key_hash import NUMBERS, Hashes, numbers_of
from windrow.stores.kv import KV, Batch, Overlay
from windrow.stores.page_format import Head, hashes_of, in_order, is_page, rows_of
from windrow.stores.page_writer import Packed
from windrow.stores.row_codec import Schemas, pack_table, put_schema
from windrow.stores.window_state import UPSERT

#: Rows of one window, oldest first, to one row a key; None where they cannot be merged now.
Merge: TypeAlias = Callable[[pa.Table], pa.Table | None]

#: A window that is larger when it is folded is divided, and so is a part.
PART_BYTES = 512 << 10
#: Bytes that are gathered for each part before they are dealt out.
DEAL_BYTES = 512
#: A commit deals out so many times the bytes that it brings.
_DEALT = 2
#: Number of a window's oldest rows from which its number of keys is estimated.
_SAMPLE = 8_192


def slice_bytes(whole: int) -> int:
    """Return the bytes to fold at once of a window whose first block has so many: at least as many of the others."""
    return max(PART_BYTES, min(2 * whole, 2 * PART_BYTES))


class Part(NamedTuple):
    """A part: its pages are numbered `[first, after)`, the first has `whole` bytes, the others `since`."""

    part: int
    first: int
    after: int
    whole: int
    since: int

    @property
    def grown(self) -> float:
        """Bytes since the part was folded, relative to its size then; a small part counts as half of `PART_BYTES`."""
        return self.since / max(self.whole, PART_BYTES // 2)


class Directory(NamedTuple):
    """Directory of a divided window: its parts, ascending, and its waiting blocks. These are the blocks `[old, old_after)` from
    before it was divided, then all from `since` on.

    dealt: bytes of blocks that were dealt out, less all that came before it was divided.
    """

    old: int
    old_after: int
    since: int
    dealt: int
    parts: list[Part]

    @classmethod
    def of(cls, value: bytes | None) -> Directory | None:
        """Return the directory that a value is; None where it is none."""
        if value is None or value[2] != Kind.DIRECTORY:
            return None
        check_head(value, (Kind.DIRECTORY,), HEAD)
        *numbers, parts = msgpack.unpackb(value[HEAD.size :])
        return cls._make((*numbers, [Part(*part) for part in parts]))

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(self)
        return HEAD.pack(MAGIC, FORMAT, Kind.DIRECTORY, Codec.MSGPACK, len(self.parts)) + packed

    def waiting(self, newest: int) -> Iterator[int]:
        """Yield the numbers of waiting blocks, oldest first, except the newest, which is the commit's own."""
        return chain(range(self.old, self.old_after), range(self.since, newest))


class DividedWindows:
    """The divided windows of a column family."""

    def __init__(self, cf: str, aux: str, by: Sequence[str]) -> None:
        self.cf, self.aux, self.by = cf, aux, tuple(by)

    def directory(self, kv: KV, prefix: bytes) -> Directory | None:
        """Return the directory of a window; None where it is not divided."""
        return Directory.of(kv.get(self.cf, key_of(prefix, SINCE)))

    def values(self, kv: KV, prefix: bytes, wanted: Hashes | None = None) -> Iterator[bytes] | None:
        """Return all values of a window: a key's rows in the order of arrival, pages first; None where it is not divided.

        wanted: of parts in which no key has such a hash, nothing
        """
        directory = self.directory(kv, prefix)
        if directory is None:
            return None
        parts: Sequence[Part] = directory.parts
        if wanted is not None:
            begins = [part.part for part in parts]
            of = np.searchsorted(begins, numbers_of(wanted), side="right") - 1
            parts = [parts[i] for i in np.unique(np.maximum(of, 0)).tolist()]
        return self._each(kv, prefix, directory, parts)

    def _each(self, kv: KV, prefix: bytes, directory: Directory, parts: Sequence[Part]) -> Iterator[bytes]:
        mixed = list[bytes]()
        for part in parts:
            values = self._get(kv, prefix, range(part.first, part.after))
            if len({Head.of(value).schema if is_page(value) else b"" for value in values}) < 2:
                yield from values
            else:  # pages of different schemas are read in no order, and before blocks
                rows = concat(in_order(values, Schemas(kv, self.aux)))
                block = Block(Kind.BLOCK, Codec.STREAM, len(rows), b"", 0, 0, 0)
                mixed.append(block.before(pack_table(rows)))
        yield from mixed
        yield from self._get(kv, prefix, range(directory.old, directory.old_after))
        since = kv.scan(self.cf, key_of(prefix, directory.since), prefix_end(prefix))
        yield from (value for _, value in since)

    def parts_for(self, rows: pa.Table, newest: pa.Table, size: int, total: int) -> int:
        """Return the number of parts into which a window should be divided: 1 where it should not.

        It is expected to have so many keys that the newest rows are met among its oldest as often as they are.

        rows: the oldest, of `size` bytes of `total`
        """
        known = np.unique(hashes_of(rows.slice(0, _SAMPLE), self.by))
        met = float(np.isin(hashes_of(newest, self.by), known).mean())
        expected = total if met == 0 else min(total, int(len(known) / met * size / len(rows)))
        return min(2 * expected // PART_BYTES, NUMBERS) if expected > PART_BYTES else 1

    def divide(self, kv: KV, prefix: bytes, parts: int, newest: Newest) -> None:
        """Divide a window into so many empty parts, to which all of its blocks are to be dealt out."""
        block, batch, after = newest.block, Batch(), newest.number + 1
        numbers = [(part, part << 48 | after) for part in (i * NUMBERS // parts for i in range(parts))]
        empty = [Part(part, number, number, 0, 0) for part, number in numbers]
        directory = Directory(block.first, after, SINCE + 1, -block.whole - block.since, empty)
        batch.put(self.cf, key_of(prefix, SINCE), directory.pack())
        kv.write(batch)

    def fold(self, kv: KV, prefix: bytes, newest: Newest, merge: Merge) -> None:
        """Deal out and fold an amount in proportion to the newest block."""
        directory, work = self.directory(kv, prefix), Overlay(kv)
        assert directory is not None
        directory, dealt = self._deal(work, prefix, newest, directory)
        parts = self._fold_parts(work, prefix, directory.parts, newest.size + dealt, merge)
        if len(work.batch):
            work.put(self.cf, key_of(prefix, SINCE), directory._replace(parts=parts).pack())
            kv.write(work.batch)

    def _deal(
        self, work: Overlay, prefix: bytes, newest: Newest, directory: Directory
    ) -> tuple[Directory, int]:
        """Deal out the oldest waiting blocks to the parts, if they are enough. Returns the number of bytes, too."""
        enough = DEAL_BYTES * len(directory.parts)
        if newest.block.since - newest.size - directory.dealt < enough:
            return directory, 0
        schemas, taken, dealt = Schemas(work, self.aux), list[pa.Table](), 0
        old, old_after, since, gone, parts = directory
        for number in directory.waiting(newest.number):
            [value] = self._get(work, prefix, [number])
            taken.append(rows_of(value, schemas))
            work.delete(self.cf, key_of(prefix, number))
            old, since = (number + 1, since) if number < old_after else (old, number + 1)
            dealt += len(value) - HEADER.size
            if dealt >= max(enough, _DEALT * newest.size):
                break
        if taken:
            parts = self._put_more(work, prefix, parts, concat(taken))
        return Directory(old, old_after, since, gone + dealt, parts), dealt

    def _put_more(self, work: Overlay, prefix: bytes, parts: Sequence[Part], rows: pa.Table) -> list[Part]:
        """Append the rows as one more page to each part that has some of them. Returns the parts."""
        parts = list(parts)
        for i, page in self._split(work, rows, [part.part for part in parts]):
            part = parts[i]
            work.put(self.cf, key_of(prefix, part.after), page)
            parts[i] = part._replace(after=part.after + 1, since=part.since + len(page))
        return parts

    def _fold_parts(
        self, work: Overlay, prefix: bytes, parts: Sequence[Part], left: int, merge: Merge
    ) -> list[Part]:
        """Fold parts that have doubled, of about so many bytes. Those that have tripled are folded all the same."""
        folded, schemas = list[Part](), Schemas(work, self.aux)
        for i, part in enumerate(parts):
            if part.grown >= 2 or (part.grown >= 1 and left > 0):
                left -= part.whole + part.since
                numbers = range(part.first, part.after)
                merged = merge(concat(in_order(self._get(work, prefix, numbers), schemas)))
                if merged is not None:
                    work.batch.delete_many(self.cf, [key_of(prefix, n) for n in numbers])
                    above = parts[i + 1].part if i + 1 < len(parts) else NUMBERS
                    places = [(part.part, part.after & NUMBER)]
                    if merged.nbytes > PART_BYTES and above - part.part > 1:
                        places.append(((part.part + above) // 2, 0))
                    folded += self._put_parts(work, prefix, merged, places)
                    continue
            folded.append(part)
        return folded

    def _put_parts(
        self, work: Overlay, prefix: bytes, rows: pa.Table, places: Sequence[tuple[int, int]]
    ) -> list[Part]:
        """Merged rows as first pages of parts, at (part, number)."""
        rows, parts = rows.append_column(UPSERT, pa.array(np.ones(len(rows), dtype=bool))), list[Part]()
        for i, page in self._split(work, rows, [part for part, _ in places]):
            part, number = places[i][0], places[i][0] << 48 | places[i][1]
            work.put(self.cf, key_of(prefix, number), page)
            parts.append(Part(part, number, number + 1, len(page), 0))
        return parts

    def _split(self, work: Overlay, rows: pa.Table, parts: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (index of a part, its rows), in their order. Parts without rows are left out; what would be theirs is
        then of the part before, or of the first.
        """
        of = np.searchsorted(parts, numbers_of(hashes_of(rows, self.by)), side="right") - 1
        of = np.maximum(of, 0)
        bounds = np.r_[0, np.cumsum(np.bincount(of, minlength=len(parts)))]
        ordered = rows.combine_chunks().take(pa.array(np.argsort(of, kind="stable")))
        packed = Packed(ordered, put_schema(work, self.aux, work.batch, ordered.schema), bounds)
        return ((i, packed.page(i)) for i in range(len(parts)) if bounds[i] < bounds[i + 1])

    def _get(self, kv: KV, prefix: bytes, numbers: Sequence[int]) -> list[bytes]:
        values = kv.multi_get(self.cf, [key_of(prefix, n) for n in numbers])
        if None in values:
            raise CorruptState(f"a block of the divided window {decode_i64(prefix)} is gone")
        return values  # type: ignore[return-value]
