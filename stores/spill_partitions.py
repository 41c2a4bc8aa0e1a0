"""Hash partitions of a large window: rows are partitioned by a hash of their key and spilled, so no step holds all of them.

Partitions are by the low bits of the hash, as pages are: a page's rows are of one partition, unless pages are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.stores.page_format import hashes_of, is_page, rows_of, size_of, unpack
from windrow.stores.spill import Spill
from windrow.stores.window_state import Schemas

#: Rows of a large window are dealt out to so many shares: 2 to this power.
BITS = 6
SHARES = 1 << BITS
#: Rows that are dealt out at a time, and bytes of pages.
_ROWS, _BYTES = 1 << 17, 4 << 20


class Chunk(NamedTuple):
    """Some windows. rows: all their rows, None for nothing; or shares: the partitions of one large window, by its keys."""

    starts: list[int]
    rows: pa.Table | None
    shares: Spill | None


def dealt(tables: Iterable[pa.Table], by: Sequence[str], spill: Spill) -> Spill:
    """Deal out rows to hash partitions of their keys, in each in the order of arrival."""
    for table in tables:
        for low in range(0, len(table), _ROWS):
            portion = table.slice(low, _ROWS)
            spill.deal(portion, (hashes_of(portion, by) & np.uint64(SHARES - 1)).astype(np.uint8))
    return spill


def tables_of(values: Iterable[bytes], schemas: Schemas) -> Iterator[pa.Table]:
    """Yield the rows of values of a window, as they come: pages, then blocks."""
    pages, size = list[bytes](), 0
    for value in values:
        if is_page(value):
            pages.append(value)
            size += size_of(value)
            if size < _BYTES:
                continue
        yield from unpack(pages, schemas)
        pages, size = [], 0
        if not is_page(value):
            yield rows_of(value, schemas)
    yield from unpack(pages, schemas)


def grouped(spill: Spill, most: int) -> Iterator[pa.Table]:
    """Yield the rows of partitions, several at once as long as they are of `most` bytes."""
    numbers, size = list[int](), 0
    for number in spill.numbers:
        if numbers and size + spill.nbytes(number) > most:
            yield spill.whole(numbers)
            numbers, size = [], 0
        numbers.append(number)
        size += spill.nbytes(number)
    if numbers:
        yield spill.whole(numbers)


def of_keys_apart(rows: pa.Table, by: Sequence[str]) -> bool:
    """True only if no two rows have the same key: those that have it have one hash."""
    hashes = np.sort(hashes_of(rows, by))
    return not bool((hashes[1:] == hashes[:-1]).any())


def of_pages(groups: Spill, pages: int) -> Iterator[tuple[pa.Table, bool]]:
    """Yield the rows of groups of partitions, as from `grouped`, for so many pages; no page gets rows twice. True at last:
    page 0 is among them.
    """
    numbers = groups.numbers
    if pages < 2 * SHARES:  # then a page may have rows of several shares
        yield groups.whole(numbers), True
        return
    for number in reversed(numbers):
        yield groups.whole([number]), number == numbers[0]
