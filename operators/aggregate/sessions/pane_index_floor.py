"""Pane index floor: the highest pane index of a key's sessions, where messages were retracted. A window that vanished may come
back, and is then emitted under a larger index.

  auxiliary  dn<number of the key u64>   panes u64, and until when a session of these may be emitted again, i64
             dm...                       the keys by that moment (`stores/marks.py`)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64, decode_u64, encode_i64, encode_u64
from windrow.core.time import START_OF_TIME_US
from windrow.operators.steps.columns import END, PANES, START
from windrow.operators.steps.groups import combine
from windrow.stores.kv import KV, Batch
from windrow.stores.marks import Marks
from windrow.stores.page_format import hashes_of

_COUNTED = b"dn"


class SessionNumbers:
    """The pane index floors of one definition. width_us: of a bucket of ends."""

    def __init__(self, aux: str, by: Sequence[str], width_us: int) -> None:
        self._aux, self._by = aux, tuple(by)
        self._until = Marks(aux, b"dm", width_us)

    def counted(self, kv: KV, sessions: pa.Table, kept_us: int) -> IntArray:
        """Return the pane count of each session's key; 0 if the last recorded session of the key ended before `kept_us`."""
        values = kv.multi_get(self._aux, [_name(number) for number in self._keys(sessions)])
        known = [0 if v is None or decode_i64(v, 8) < kept_us else decode_u64(v) for v in values]
        return np.array(known, dtype=np.int64)

    def note(self, kv: KV, sessions: pa.Table, kept_us: int, step: int) -> None:
        """Record the pane counts of these sessions, which have lost messages."""
        panes, ends = (combine(sessions.column(c)).to_pylist() for c in (PANES, END))
        before = self.counted(kv, sessions, kept_us).tolist()
        counted: dict[int, tuple[int, int]] = {}
        for number, *bounds in zip(self._keys(sessions), map(max, panes, before), ends, strict=True):
            most, until_us = counted.get(number, (0, START_OF_TIME_US))
            counted[number] = (max(most, bounds[0]), max(until_us, bounds[1]))
        batch, names = Batch(), list(map(_name, counted))
        for name, value, (number, (most, until_us)) in zip(
            names, kv.multi_get(self._aux, names), counted.items(), strict=True
        ):
            until_us = until_us if value is None else max(until_us, decode_i64(value, 8))
            counted[number] = (most, until_us)
            batch.put(self._aux, name, encode_u64(most) + encode_i64(until_us))
        kv.write(batch)
        moments = np.array([until_us for _, until_us in counted.values()], dtype=np.int64)
        self._until.add(kv, moments, np.array(list(counted), dtype=np.uint64), step)

    def forget(self, kv: KV, before_us: int) -> None:
        """Forget keys none of whose sessions ends at that moment or after it."""
        _, numbers = self._until.between(kv, START_OF_TIME_US, before_us - 1)
        if len(numbers):
            names = [_name(number) for number in np.unique(numbers).tolist()]
            pairs = zip(names, kv.multi_get(self._aux, names), strict=True)
            batch = Batch()
            batch.delete_many(
                self._aux, [n for n, v in pairs if v is not None and decode_i64(v, 8) < before_us]
            )
            kv.write(batch)
        self._until.drop(kv, before_us)

    def _keys(self, sessions: pa.Table) -> list[int]:
        keys: list[int] = hashes_of(sessions.select([START, *self._by]), self._by).tolist()
        return keys


def _name(number: int) -> bytes:
    return _COUNTED + encode_u64(number)
