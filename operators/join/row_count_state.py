"""State of a join whose window counts messages: by number, per key or per input, and not by time.

Followed messages are under the same keys with (flag, event time). The other side is kept as in a join over time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import encode_u64
from windrow.core.errors import CorruptState
from windrow.core.keys import FIELDS_END
from windrow.core.message_keys import message_keys, position_prefix
from windrow.core.time import END_OF_TIME_US
from windrow.core.windows import Rows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.operator import RunAgain, numbers_of
from windrow.operators.steps.columns import OFFSET
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.message_rows import unpack_rows
from windrow.operators.steps.progress import Progress
from windrow.stores.kv import KV, Batch
from windrow.stores.message_store import Bound, Layout, MessageStore
from windrow.stores.timers import TimerIndex

#: Auxiliary keys: the last number of a key, or of the input.
COUNT = (b"c0", b"c1")
UNMATCHED = (b"w0", b"w1")
#: The bytes after the fields in a key of the store, with the number 0 in them.
PLACE = position_prefix(("", 0, 0, 0))


class NumberedSides(JoinOperator):
    """The state of a join in which the window of a side counts messages."""

    def __init__(self, definition: JoinDefinition) -> None:
        super().__init__(definition)
        #: The unmatched messages of followed sides, by event time; a key as in its store.
        self._unmatched = {
            side: TimerIndex(self.aux_cf, UNMATCHED[side])
            for side in self.followed
            if self._rows(side) is not None
        }

    def _rows(self, side: int) -> Rows | None:
        """Return the window of a side, if it counts."""
        window = (self.definition.left.window, self.definition.right.window)[side]
        return window if isinstance(window, Rows) else None

    @property
    def _is_small(self) -> bool:
        return self.definition.scale == "small"

    def _stores(self) -> tuple[MessageStore, ...]:
        made = list(super()._stores())
        for side, store in enumerate(made):
            if self._rows(side) is not None and store.layout.has_fields and self._is_small:
                # By key they are listed in the index, under the numbers of their key.
                made[side] = MessageStore(store.layout, store.index_cf, store.cf)
        return tuple(made)

    def _layout(self, side: int) -> Layout:
        window = self._rows(side)
        if window is None:
            return super()._layout(side)
        keyed = window.per == "key" or not self._is_small
        return Layout.FIELDS_OFFSET if self.definition.on and keyed else Layout.OFFSET

    def _spread(self, side: int) -> bool:
        """True if messages with numbers of the whole input are filed by key: the index has the key of each number."""
        window = self._rows(side)
        return window is not None and window.per == "input" and self.stores[side].layout.has_fields

    def _listed(self, side: int) -> bool:
        """True if messages are filed under numbers of the whole input, and `stores` lists these numbers by key."""
        return self.stores[side].cf.endswith(".message_index")

    def cfs(self) -> tuple[str, ...]:
        unused = {
            store.index_cf
            for side, store in enumerate(self.stores)
            if (window := self._rows(side)) is not None
            and window.per == "key"
            and store.index_cf.endswith(".message_index")
        }
        return tuple(cf for cf in super().cfs() if cf not in unused)

    def refiling(self) -> RunAgain:
        return RunAgain(
            logic=self,
            kept_from=self.kept_from,
            prepare=self.prepare,
            reached=numbers_of(self, b"c0", b"c2"),
            why=f"{self.definition.name!r} numbers messages by all that came before them",
        )

    def _counter_keys(self, side: int, keys: list[bytes] | None, n: int) -> list[bytes]:
        """Return the counter key of each of `n` messages."""
        window = self._rows(side)
        assert window is not None
        if keys is None or window.per == "input":
            return [b""] * n
        return keys

    def _counts(self, kv: KV, side: int, keys: Sequence[bytes]) -> dict[bytes, int]:
        distinct = list(dict.fromkeys(keys))
        found = kv.multi_get(self.aux_cf, [COUNT[side] + k for k in distinct])
        return {k: 0 if v is None else int.from_bytes(v, "big") for k, v in zip(distinct, found, strict=True)}

    def _messages(self, kv: KV, side: int, values: Sequence[bytes]) -> list[bytes]:
        """Return the messages that a side's store holds or lists."""
        if not self._listed(side):
            return list(values)
        found = [m for m in kv.multi_get(self.stores[side].index_cf, values) if m is not None]
        if len(found) < len(values):
            raise CorruptState(f"{len(values) - len(found)} messages are listed that are not there")
        return found

    def _decode_numbered(self, kv: KV, side: int, values: Sequence[bytes], schema: pa.Schema) -> Slice:
        table = unpack_rows(kv, self.aux_cf, values, None, schema)
        if not len(table):
            return Slice(table, np.zeros(0, dtype=np.int64))
        reading = self.readings[side]
        times = event_times(
            table.column(reading.event_time), reading.event_time, reading.time_zone, reading.event_time_unit
        )
        return Slice(table, np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64))

    def _by_number(self, kv: KV, side: int, low: bytes, high: bytes | None) -> list[tuple[bytes, bytes]]:
        """Return stored keys of messages that are filed by key under numbers of the whole input, and these numbers' own."""
        pairs = kv.scan(self.stores[side].index_cf, low, high)
        return [(fields + FIELDS_END + number, number) for number, fields in pairs]

    def kept(self, kv: KV, side: int, start: Bound, end: Bound, key: bytes | None) -> Slice:
        if self._rows(side) is None:
            return super().kept(kv, side, start, end, key)
        progress = Progress.load(kv, self.aux_cf)
        store = self.stores[side]
        floor_us = self._floor(side, progress.watermark_us, self.done(progress.watermark_us))
        of_key = key if store.layout.has_fields else None
        _, values = store.scan_between(kv, (0, None), (0, None), of_key)
        values = self._messages(kv, side, values)
        rows = self._decode_numbered(kv, side, values, self.inputs.schemas(kv)[side])
        offsets = rows.table.column(OFFSET).to_numpy()
        mask = (rows.times >= max(start[0], floor_us)) & (rows.times <= end[0])
        if isinstance(start[1], int):
            mask &= (rows.times > start[0]) | (offsets >= start[1])
        if isinstance(end[1], int):
            mask &= (rows.times < end[0]) | (offsets <= end[1])
        return rows.take(np.flatnonzero(mask))

    def _file_by_offset(
        self, kv: KV, batch: Batch, side: int, values: Sequence[bytes], at: IntArray, n: int
    ) -> list[bytes]:
        """File messages under numbers of the whole input; returns these keys. at: their indices among `n` new ones."""
        before = self._counts(kv, side, [b""])[b""]
        zeros = np.zeros(len(values), dtype=np.int64)
        keys = message_keys(None, pa.array([""] * len(values)), zeros, before + 1 + at, zeros)
        batch.put_many(self.stores[side].index_cf, keys, values)
        batch.put(self.aux_cf, COUNT[side], encode_u64(before + n))
        return keys

    def _drop_pushed(self, kv: KV, batch: Batch, side: int, stored: Sequence[bytes]) -> None:
        """Delete the messages under these keys in the store."""
        store = self.stores[side]
        if self._listed(side):
            there = [value for value in kv.multi_get(store.cf, stored) if value is not None]
            batch.delete_many(store.index_cf, there)
        elif self._spread(side) and stored:
            numbers = [key[-len(PLACE) :] for key in stored]
            batch.delete_range(store.index_cf, min(numbers), max(numbers) + b"\x00")
        batch.delete_many(store.cf, stored)
        if side in self.followed:
            batch.delete_many(self.open_cfs[side], stored)

    def _drop(self, kv: KV, batch: Batch, side: int, low: bytes, high: bytes) -> None:
        """Delete the messages of one counter with numbers in that range."""
        store = self.stores[side]
        if self._listed(side):
            batch.delete_many(store.index_cf, [key for _, key in kv.scan(store.cf, low, high)])
        if self._spread(side):
            gone = [key for key, _ in self._by_number(kv, side, low, high)]
            batch.delete_many(store.cf, gone)
            if side in self.followed:
                batch.delete_many(self.open_cfs[side], gone)
            batch.delete_range(store.index_cf, low, high)
            return
        batch.delete_range(store.cf, low, high)
        if side in self.followed:
            batch.delete_range(self.open_cfs[side], low, high)

    def _forget(self, kv: KV, before_us: int, watermark_us: int, done_us: int) -> None:
        for side in (LEFT, RIGHT):
            batch = Batch()
            if self._rows(side) is None:
                self.stores[side].expire(kv, batch, self._floor(side, watermark_us, done_us))
            elif done_us == END_OF_TIME_US:
                self._drop(kv, batch, side, b"", b"\xff")
                batch.delete_range(self.aux_cf, COUNT[side], COUNT[side] + b"\xff")
            else:
                self._sweep(
                    kv, batch, side, before_us, self._floor(side, watermark_us, done_us), watermark_us
                )
            kv.write(batch)

    def _sweep(
        self, kv: KV, batch: Batch, side: int, before_us: int, floor_us: int, watermark_us: int
    ) -> None:
        """Free the messages of keys that never return, from the oldest number on, eight times in a retention."""
        kept_us = self.definition.retention.time_us
        if kept_us is None:
            return
        period_us = max(kept_us // 8, 1)
        if watermark_us // period_us <= before_us // period_us:
            return
        store, schema = self.stores[side], self.inputs.schemas(kv)[side]
        if self._spread(side):
            entries = self._by_number(kv, side, b"", None)
            values = [v for v in kv.multi_get(store.cf, [key for key, _ in entries]) if v is not None]
        else:
            pairs = list(kv.scan(store.cf))
            entries = [(key, key) for key, _ in pairs]
            values = self._messages(kv, side, [value for _, value in pairs])
        rows = self._decode_numbered(kv, side, values, schema)
        #: By counter: its fields and the last evicted number; the counters with remaining messages.
        gone: dict[bytes, tuple[bytes, bytes]] = {}
        stays: set[bytes] = set()
        for (key, number), time_us in zip(entries, rows.times.tolist(), strict=True):
            fields = b"" if self._spread(side) else store.split(key).fields
            head = b"" if not fields else fields + FIELDS_END
            if time_us >= floor_us:
                stays.add(head)
            elif head not in stays:
                gone[head] = (fields or b"", number)
        for head, (_, last) in gone.items():
            self._drop(kv, batch, side, head + position_prefix(("", 0)), last + b"\x00")
        # A key without any messages left may restart its count.
        ended = [fields for head, (fields, _) in gone.items() if head not in stays]
        batch.delete_many(self.aux_cf, [COUNT[side] + fields for fields in ended])
