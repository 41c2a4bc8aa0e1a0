"""Window metadata: two layouts of state rows.

Both keep *state rows*, Arrow columns with one row per (window, key): `__start`, `__end`, the key columns, counts, first and
last position, what was emitted, and the accumulators. A row is either a *delta*, to be merged with the rows before it,
or an *upsert*, which replaces them all (`__upsert`).

`BlockWindows` (`stores/delta_blocks.py`): one value per window and commit, an Arrow record batch of the rows of that commit.
`PlainWindows`: one msgpack value per (window, key) of tuple windows, which names its schema in `aux`, under `<key><start>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import taken
from windrow.core.byte_order import encode_i64
from windrow.core.keys import encode_equal
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import concat
from windrow.stores.kv import KV, Batch
from windrow.stores.row_codec import Schemas, pack_rows, put_schema, unpack_rows

START, END, UPSERT, PENDING = "__start", "__end", "__upsert", "__pending"


@dataclass(frozen=True)
class Near:
    """rows: with `__upsert`, oldest first; None where there are none. held: data for `put`, by start. merged: no
    (window, key) has several of them
    """

    rows: pa.Table | None
    held: Mapping[int, Any]
    merged: bool = False


def bound(high: int) -> bytes | None:
    return None if high >= END_OF_TIME_US else encode_i64(high)


def split_by_start(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (start, its rows) for each window of `rows`, starts ascending, row order kept."""
    starts = rows.column(START).to_numpy()
    if len(starts) == 0:
        return
    if (starts[0] == starts).all():
        yield int(starts[0]), rows
        return
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    rows = taken(rows, order)
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for low, high in zip(np.r_[0, cuts], np.r_[cuts, len(ordered)], strict=True):
        yield int(ordered[low]), rows.slice(int(low), int(high - low))


class PlainWindows:
    """One msgpack value per (window, key), under `<key><start>`. Its writer reads first: rows are merged, and replace."""

    def __init__(self, cf: str, aux: str, by: Sequence[str]) -> None:
        self.cf, self.aux, self.by = cf, aux, tuple(by)

    def _keys(self, rows: pa.Table) -> list[bytes]:
        starts = [encode_i64(s) for s in rows.column(START).to_pylist()]
        if not self.by:
            return starts
        fields = encode_equal([rows.column(b) for b in self.by])
        return [k + s for k, s in zip(fields, starts, strict=True)]

    def put(self, kv: KV, rows: pa.Table) -> None:
        """Write rows, in place of those of their (window, key)."""
        batch = Batch()
        values = pack_rows(rows, put_schema(kv, self.aux, batch, rows.schema))
        batch.put_many(self.cf, self._keys(rows), values)
        kv.write(batch)

    def read(self, kv: KV, keys: pa.Table) -> pa.Table | None:
        """Return the rows of these (window, key): a table of `__start` and the key columns."""
        return self._table(kv, [v for v in kv.multi_get(self.cf, self._keys(keys)) if v is not None])

    def read_key(self, kv: KV, prefix: bytes, low: int, high: int) -> pa.Table | None:
        """Return the rows of one encoded key with `low <= start < high`."""
        return self._table(
            kv, [v for _, v in kv.scan(self.cf, prefix + encode_i64(low), prefix + encode_i64(high))]
        )

    def read_all(self, kv: KV) -> pa.Table | None:
        """Read every row."""
        return self._table(kv, [v for _, v in kv.scan(self.cf)])

    def _table(self, kv: KV, values: Sequence[bytes]) -> pa.Table | None:
        parts = unpack_rows(values, Schemas(kv, self.aux), "a window value")
        tables = [rows.append_column(UPSERT, pa.array([True] * len(rows))) for rows, _ in parts]
        return concat(tables) if tables else None
