"""Followed messages of a side whose window counts that have matched nobody yet, by event time: which of them leave is found
without a look at the others.

Auxiliary keys: `w<side><event time i64><key in the store>` lists one; values are empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from windrow.core.byte_order import decode_i64, encode_i64
from windrow.operators.join.join_state import OPEN
from windrow.stores.kv import KV, Batch

_WAITING = (b"w0", b"w1")


class Waiting:
    """The unmatched messages of one side."""

    def __init__(self, side: int, aux_cf: str) -> None:
        self._head, self._aux_cf = _WAITING[side], aux_cf

    def add(self, batch: Batch, followed: Iterable[tuple[bytes, bytes]]) -> None:
        """(key, flag and event time) of followed messages; those that matched are left out."""
        keys = [self._head + value[1:] + key for key, value in followed if value[:1] == OPEN]
        batch.put_many(self._aux_cf, keys, [b""] * len(keys))

    def remove(self, batch: Batch, followed: Iterable[tuple[bytes, bytes]]) -> None:
        """They match, or are pushed out of the window."""
        keys = [self._head + value[1:] + key for key, value in followed if value[:1] == OPEN]
        batch.delete_many(self._aux_cf, keys)

    def leave(self, kv: KV, batch: Batch, before_us: int) -> list[tuple[bytes, int]]:
        """(key, event time) of those from before a time; they wait no more."""
        at, end = len(self._head), self._head + encode_i64(before_us)
        found = [key for key, _ in kv.scan(self._aux_cf, self._head, end)]
        if found:
            batch.delete_range(self._aux_cf, self._head, end)
        return [(key[at + 8 :], decode_i64(key, at)) for key in found]
