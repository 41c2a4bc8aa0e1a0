"""Rows of a join that wait for a period of `now`.

Key: E or L, for early or late, and the step (u64); value: a table of rows, with their place among those of the step.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.byte_order import encode_u64
from windrow.core.emit import Emit, EveryPeriod
from windrow.core.types import concat
from windrow.operators.steps.columns import EARLY, LATE
from windrow.stores.kv import KV, Batch
from windrow.stores.windows import pack_table, unpack_table

_ORDER = "__order"


def put_off(kv: KV, cf: str, timing: str, step: int, rows: pa.Table, which: BoolArray) -> None:
    """Let some of the rows of a step wait."""
    batch = Batch()
    waiting = rows.filter(pa.array(which)).append_column(_ORDER, pa.array(np.flatnonzero(which)))
    batch.put(cf, timing[:1].encode() + encode_u64(step), pack_table(waiting))
    kv.write(batch)


def released(
    kv: KV, cf: str, emit: Emit, before_us: int | None, now_us: int, *, everything: bool
) -> list[pa.Table]:
    """What waited for a period that `now` has crossed, step by step; it waits no more."""
    batch, waiting = Batch(), []
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
        waiting += [(key[1:], unpack_table(value)) for key, value in kv.scan(cf, low, high)]
        batch.delete_range(cf, low, high)
    kv.write(batch)
    steps: dict[bytes, list[pa.Table]] = {}
    for step, table in waiting:
        steps.setdefault(step, []).append(table)
    return [concat(steps[step]).sort_by(_ORDER).drop_columns([_ORDER]) for step in sorted(steps)]
