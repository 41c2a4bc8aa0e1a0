"""Unmatched rows of a followed side, in columns: the position of each message, and whether it has matched, until it expires.

A row records that a message was filed or, later, that it matched. Messages expire by event time. Expired rows stay until
their bucket is purged; their time and step mark them as expired.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, decode_u64, encode_i64, encode_u64
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.steps.columns import POSITION_COLUMNS, STEP
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice
from windrow.stores.event_log import TIME, Events
from windrow.stores.kv import KV, Batch

MATCHED = "__matched"
#: Numbers of places are below that.
_MOST = 1 << 62


def followed_rows(rows: Slice, matched: BoolArray, step: int) -> pa.Table:
    """Return the rows to file for new messages, or for messages that have matched since."""
    table = rows.table.select(POSITION_COLUMNS).append_column(TIME, pa.array(rows.times))
    table = table.append_column(STEP, pa.array(np.full(len(rows), step, dtype=np.int64)))
    return table.append_column(MATCHED, pa.array(matched))


def places(rows: pa.Table, others: pa.Table) -> tuple[IntArray, IntArray]:
    """Return numbers for the messages of two tables: equal numbers for equal positions."""
    both = []
    for own, other in ((rows.column(c), others.column(c)) for c in POSITION_COLUMNS):
        both.append(combine(pa.chunked_array([*own.chunks, *other.chunks], own.type)))
    source, partition, offset, ordinal = both
    numbers, size = np.zeros(len(source), dtype=np.int64), 1
    for column in (source.dictionary_encode().indices, partition, ordinal, offset) if len(source) else ():
        values = column.to_numpy().astype(np.int64)
        low, high = int(values.min()), int(values.max())
        size *= high - low + 1
        if size > _MOST:
            numbers = Groups(both, len(source)).codes
            break
        numbers = numbers * (high - low + 1) + (values - low)
    return numbers[: len(rows)], numbers[len(rows) :]


class Followed:
    """The followed messages of a side. aux_key: holds, in `aux_cf`, the time and step up to which messages have expired."""

    def __init__(self, events: Events, aux_cf: str, aux_key: bytes) -> None:
        self._events, self._aux_cf, self._aux_key = events, aux_cf, aux_key

    def matched(self, kv: KV, tidy: bool, rows: Slice) -> BoolArray:
        """True for messages that have matched before. tidy: small values may be merged."""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        stored = self._events.read_near(kv, rows.times, rows.times, tidy=tidy)
        if stored is None:
            return np.zeros(len(rows), dtype=bool)
        return np.isin(*places(rows.table, stored.filter(stored.column(MATCHED))))

    def leave(self, kv: KV, before_us: int, step: int) -> Iterator[pa.Table]:
        """Expire messages before a time and yield the positions of those that never matched, in portions in the order of their
        times.
        """
        batch = Batch()
        for rows in self._events.portions(kv, before_us):
            here = ~self._gone(kv, rows)
            if here.any():
                batch.put(self._aux_cf, self._aux_key, encode_i64(before_us) + encode_u64(step))
            rows = rows.filter(pa.array(here))
            matched = rows.column(MATCHED)
            open_ = rows.filter(pc.invert(matched))
            yield open_.filter(pa.array(~np.isin(*places(open_, rows.filter(matched)))))
        kv.write(batch)
        self._events.forget(kv, before_us)

    def settle(self, kv: KV) -> pa.Table | None:
        """Delete expired rows, as the watermark is set back. Return the rows that remain."""
        packed = kv.get(self._aux_cf, self._aux_key)
        if packed is not None:
            self._events.drop(kv, decode_i64(packed), lambda rows: self._gone(kv, rows))
            batch = Batch()
            batch.delete(self._aux_cf, self._aux_key)
            kv.write(batch)
        return self._events.read(kv, START_OF_TIME_US, END_OF_TIME_US)

    def _gone(self, kv: KV, rows: pa.Table) -> BoolArray:
        packed = kv.get(self._aux_cf, self._aux_key)
        if packed is None:
            return np.zeros(len(rows), dtype=bool)
        early = rows.column(TIME).to_numpy() < decode_i64(packed)
        return np.asarray(early & (rows.column(STEP).to_numpy() <= decode_u64(packed, 8)))
