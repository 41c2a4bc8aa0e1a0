"""Deferred rows of a join: rows held until a period of `now` ends.

Key: E or L, for early or late, the step (u64), and of a slice of it that is not the first its number (u32); value: a table of
rows, with their place among those of the slice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.byte_order import encode_u32, encode_u64
from windrow.core.emit import Emit, EveryPeriod
from windrow.core.types import concat
from windrow.operators.steps.columns import EARLY, LATE
from windrow.stores.kv import KV, Batch, Pair
from windrow.stores.row_codec import pack_table, unpack_table

_ORDER = "__order"


def put_off(kv: KV, cf: str, timing: str, step: int, part: int, rows: pa.Table, which: BoolArray) -> None:
    """Defer rows of a slice of a step. part: the number of the slice."""
    batch = Batch()
    waiting = rows.filter(pa.array(which)).append_column(_ORDER, pa.array(np.flatnonzero(which)))
    name = encode_u64(step) + (encode_u32(part) if part else b"")
    batch.put(cf, timing[:1].encode() + name, pack_table(waiting))
    kv.write(batch)


def released(
    kv: KV, cf: str, emit: Emit, before_us: int | None, now_us: int, *, everything: bool
) -> Iterator[pa.Table]:
    """Yield the deferred rows whose period `now` has crossed, slice by slice, and delete them."""
    batch, waiting = Batch(), list[Iterator[Pair]]()
    for timing, trigger in ((EARLY, emit.early), (LATE, emit.late)):
        due = everything or (
            isinstance(trigger, EveryPeriod)
            and before_us is not None
            and now_us // trigger.period_us > before_us // trigger.period_us
        )
        if not due:
            continue
        low = timing[:1].encode()
        high = bytes((low[0] + 1,))
        waiting.append(kv.scan(cf, low, high))
        batch.delete_range(cf, low, high)
    kv.write(batch)
    for _, same in groupby(heapq.merge(*waiting, key=_slice_of), _slice_of):
        yield concat([unpack_table(value) for _, value in same]).sort_by(_ORDER).drop_columns([_ORDER])


def _slice_of(pair: Pair) -> bytes:
    return pair[0][1:]
