"""Pages of a table: some of its rows in an order that the reader chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.operators.steps.columns import END, START
from windrow.operators.view import StoredTable, View
from windrow.stores.kv import Batch

#: Orders that every table has: its own, which is by time; and by key.
START_ORDER, KEY_ORDER = "start", "key"
#: Windows that are kept in memory are read anew after more commits without a look at them, or more bytes.
MOST_FOLLOWED, FOLLOWED_BYTES = 64, 64 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a table in an order. total: rows that the page is one of, after `contains`; after: rows before the page."""

    rows: pa.Table
    total: int
    after: int


class KeptWindows:
    """Windows of operators that stay in memory between queries, and the changes since. A query then reads what changed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Any]] = {}
        self._changes: dict[int, Sequence[Batch]] = {}
        self._bytes = 0

    def __contains__(self, operator: str) -> bool:
        return operator in self._kept

    def note(self, since: int, changes: Sequence[Batch]) -> None:
        """Note the changes of each shard since a commit. After many, windows are forgotten: nobody may look at them again."""
        if not self._kept:
            return
        self._changes[since] = changes
        self._bytes += sum(batch.nbytes for batch in changes)
        if len(self._changes) > MOST_FOLLOWED or self._bytes > FOLLOWED_BYTES:
            self._kept, self._changes, self._bytes = {}, {}, 0

    def keep(self, operator: str, view: View, commit: int, staged: Sequence[Batch] = ()) -> None:
        """Give a view the windows that are kept, brought to a commit, or all to keep. staged: changes of each shard after it"""
        since, before = self._kept.get(operator, (commit, None))
        later = before is not None and (since < commit or any(map(len, staged)))
        changes = [Batch() for _ in view.stores] if later else []
        noted = [batches for number, batches in self._changes.items() if number >= since]
        for batches in (*noted, staged):
            for change, batch in zip(changes, batches, strict=False):
                change.extend(batch)
        kept = view.kept(before, changes)
        if kept is None:
            self._kept.pop(operator, None)
            return
        self._kept[operator] = commit, kept
        oldest = min(number for number, _ in self._kept.values())
        self._changes = {number: batches for number, batches in self._changes.items() if number >= oldest}
        self._bytes = sum(batch.nbytes for batches in self._changes.values() for batch in batches)


def page_of(
    stored: StoredTable,
    by: Sequence[str],
    *,
    order: str,
    descending: bool,
    after: int,
    limit: int,
    contains: str | None,
) -> Page:
    """Return `limit` rows after the first `after` of a table. Equal rows keep the table's own order."""
    rows = stored.rows
    names = [name for name in rows.column_names if name not in (START, END)]
    if order not in (START_ORDER, KEY_ORDER, *names):
        raise ConfigurationError(
            f"order={order!r} is no column: choose {START_ORDER!r}, {KEY_ORDER!r} or one of {names}"
        )
    if after < 0 or limit < 1:
        raise ConfigurationError(
            f"after={after}, limit={limit}: rows before a page are at least 0, and its rows at least 1"
        )
    kept = None if not contains else np.flatnonzero(_matches(rows, contains))
    if order == START_ORDER or (order == KEY_ORDER and not by) or order == "window":
        total = len(rows) if kept is None else len(kept)
        places = np.arange(after, min(after + limit, total)) if after < total else np.zeros(0, dtype=np.int64)
        places = total - 1 - places if descending else places
        chosen = places if kept is None else kept[places]
    else:
        matching = rows if kept is None else rows.take(pa.array(kept))
        total = len(matching)
        sorted_places = _sorted(matching, [*by] if order == KEY_ORDER else [order], descending)
        chosen = sorted_places[after : after + limit]
        chosen = chosen if kept is None else kept[chosen]
    return Page(stored.show(rows.take(pa.array(chosen))), total, after)


def _sorted(rows: pa.Table, names: Sequence[str], descending: bool) -> IntArray:
    """Return the places of rows in order. Nulls come last, and rows that are equal stay in their order."""
    columns = [rows.column(rows.column_names.index(name)) for name in names]
    nested = [name for name, c in zip(names, columns, strict=True) if pa.types.is_nested(c.type)]
    if nested:
        raise ConfigurationError(f"order={nested[0]!r}: its values are lists or structs, which have no order")
    table = pa.table(columns, [str(i) for i in range(len(columns))])
    direction = "descending" if descending else "ascending"
    order = pc.sort_indices(table, sort_keys=[(name, direction) for name in table.column_names])
    return np.asarray(order.to_numpy(), dtype=np.int64)


def _matches(rows: pa.Table, contains: str) -> np.ndarray:
    """True for rows of which some value contains a text, whatever its case. Nested and binary values do not."""
    contained = np.zeros(len(rows), dtype=bool)
    for column in rows.columns:
        kind = column.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
            continue
        text = (
            column if pa.types.is_string(kind) or pa.types.is_large_string(kind) else column.cast(pa.string())
        )
        matching = pc.fill_null(pc.match_substring(text, contains, ignore_case=True), False)
        contained |= matching.to_numpy()
    return contained
