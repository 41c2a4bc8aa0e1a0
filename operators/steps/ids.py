"""Seen ids: messages that are known by ids and not by position; the second of a (key, ids) is a duplicate.

An id is remembered from the first message that can be counted, in position order, until every window that could hold that
message's event time is out of retention. So a redelivered message is a duplicate, or out of retention, and never counted
twice. By a retention without time (`wr.forever`, tuple windows) ids are remembered for good.

Keys are `<end of time bucket i64><key fields><ids>`, values the event time, i64. A bucket is dropped as a whole by one
`delete_range`; that only frees space, the event time decides. Auxiliary key `i` -> msgpack [end of bucket, ...]: those in use.
"""

from __future__ import annotations

from typing import Protocol

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.keys import encode_equal
from windrow.core.positions import Ids
from windrow.core.time import END_OF_TIME_US
from windrow.operators.steps.intake import Slice
from windrow.stores.kv import KV, Batch

#: A retention is so many buckets long: each id costs as many lookups, and is kept up to that part of it too long.
BUCKETS = 8
BUCKETS_KEY, NO_BUCKETS = b"i", msgpack.packb([])


class Known(Protocol):
    """A definition whose messages are known by ids: those of a key."""

    @property
    def name(self) -> str: ...
    @property
    def by(self) -> tuple[str, ...]: ...
    @property
    def ids(self) -> Ids | None: ...


class SeenIds:
    """The ids of one definition. `span_us`: how long an id is kept after its event time; None: for good.

    `within_us`: a message is a duplicate only of one that is at most so much earlier or later; None: however far it is.
    """

    def __init__(
        self, definition: Known, aux_cf: str, span_us: int | None, within_us: int | None = None
    ) -> None:
        ids = () if definition.ids is None else definition.ids.columns
        self._fields = (*definition.by, *ids)
        self._width_us = None if span_us is None else max(span_us // BUCKETS, 1)
        self._within_us = within_us
        self._aux_cf = aux_cf
        self.cf = f"{definition.name}.ids"

    def first_seen(self, kv: KV, rows: Slice, floor_us: int) -> IntArray:
        """Return the rows that are no duplicates, and remember their ids, unless their event times are below the floor."""
        names, times = self.names(rows.table), rows.times.tolist()
        within_us = END_OF_TIME_US if self._within_us is None else self._within_us
        known = self.known(kv, names, rows.times, floor_us)
        fresh: list[int] = []
        for i, (name, time_us) in enumerate(zip(names, times, strict=True)):
            if name in known and any(abs(time_us - seen_us) <= within_us for seen_us in known[name]):
                continue
            fresh.append(i)
            if time_us >= floor_us:
                known.setdefault(name, []).append(time_us)
        self.remember(kv, [names[i] for i in fresh], [times[i] for i in fresh], floor_us)
        return np.array(fresh, dtype=np.int64)

    def names(self, table: pa.Table) -> list[bytes]:
        """Return the names by which rows are known."""
        columns = [encode_equal([table.column(name)]) for name in self._fields]
        return list(map(b"".join, zip(*columns, strict=True)))

    def known(self, kv: KV, names: list[bytes], times: IntArray, floor_us: int) -> dict[bytes, list[int]]:
        """Return the event times, from the floor on, at which names were seen that rows of these times have."""
        buckets = self._near(self._buckets(kv), times)
        return self._known(kv, list(dict.fromkeys(names)), buckets, floor_us)

    def remember(self, kv: KV, names: list[bytes], times: list[int], floor_us: int) -> None:
        """Remember these names: later messages with them are duplicates."""
        emitted = {
            encode_i64(self._bucket_end(time_us)) + name: time_us
            for name, time_us in zip(names, times, strict=True)
            if time_us >= floor_us
        }
        if not emitted:
            return
        buckets, batch = self._buckets(kv), Batch()
        batch.put_many(self.cf, emitted.keys(), [encode_i64(t) for t in emitted.values()])
        used = {decode_i64(key) for key in emitted}.union(buckets)
        if len(used) > len(buckets):
            batch.put(self._aux_cf, BUCKETS_KEY, msgpack.packb(sorted(used)))
        kv.write(batch)

    def forget(self, kv: KV, floor_us: int) -> None:
        """Drop the buckets that end at or below the floor."""
        buckets = self._buckets(kv)
        kept = [end for end in buckets if end > floor_us]
        if len(kept) == len(buckets):
            return
        batch = Batch()
        batch.delete_range(self.cf, encode_i64(buckets[0]), encode_i64(min(floor_us + 1, END_OF_TIME_US)))
        batch.put(self._aux_cf, BUCKETS_KEY, msgpack.packb(kept))
        kv.write(batch)

    def _buckets(self, kv: KV) -> list[int]:
        value = kv.get(self._aux_cf, BUCKETS_KEY)
        return [] if value is None else list(msgpack.unpackb(value))

    def _bucket_end(self, time_us: int) -> int:
        # Named by its end, so that buckets of another width, of a retention before, are dropped in time too.
        return END_OF_TIME_US if self._width_us is None else (time_us // self._width_us + 1) * self._width_us

    def _near(self, buckets: list[int], times: IntArray) -> list[int]:
        """Return the buckets with times that may make one of these a duplicate."""
        if self._within_us is None or not len(times):
            return buckets
        # The start of a bucket is unknown: it may be as wide as an earlier `within` made it.
        low = int(times.min()) - self._within_us
        return [end for end in buckets if low < end]

    def _known(self, kv: KV, names: list[bytes], buckets: list[int], floor_us: int) -> dict[bytes, list[int]]:
        """Return the event times at which names were seen, without names that were not."""
        known: dict[bytes, list[int]] = {}
        for end in buckets:
            if end <= floor_us:
                continue
            prefix = encode_i64(end)
            values = kv.multi_get(self.cf, [prefix + name for name in names])
            for name, value in zip(names, values, strict=True):
                if value is not None and (seen_us := decode_i64(value)) >= floor_us:
                    known.setdefault(name, []).append(seen_us)
        return known
