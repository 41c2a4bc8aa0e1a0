"""Pending anchors, whose rows are not emitted yet, and their promises.

Column families: `anchors`, those that the watermark has not passed, by event time; `waiting`, those whose windows are still
open, by the end of these; `lows`, for each bucket of these the first moment in a window of it; those of
`key_watermarks.py`.

    lows       <stretch i64>          i64
"""

from __future__ import annotations

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.between import Between, Ticks
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.frames import RangeBetween
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.types import concat
from windrow.operators.over.anchors.key_watermarks import Promises
from windrow.operators.over.anchors.spans import around, high_of, low_of
from windrow.operators.over.definition import OverDefinition
from windrow.operators.steps.columns import END, START
from windrow.stores.event_log import TIME, Events
from windrow.stores.kv import KV, Batch

#: The event time of an anchor.
AT = "__at"
#: The key of a clock's progress, and of the first and the last time by which it has advanced.
_CLOCK = b"clock"


class Pending:
    """The anchors of one definition on one store, which it receives."""

    def __init__(self, definition: OverDefinition, aux_cf: str, width_us: int) -> None:
        assert definition.span is not None
        self.definition, self.span, self.aux_cf, self.width_us = definition, definition.span, aux_cf, width_us
        name = definition.name
        self.anchors = Events(f"{name}.anchors", width_us)
        self.waiting = Events(f"{name}.waiting", width_us)
        self.lows_cf = f"{name}.lows"
        #: True if anchors may make promises.
        self.judges = isinstance(self.span, Between) and self.span.promises
        self.promises = Promises(name, aux_cf, definition.by, definition.back_us)
        self.cfs = (self.anchors.cf, self.waiting.cf, self.lows_cf, *self.promises.cfs)

    # -- anchors that come ------------------------------------------------------------------------------------------

    def add(self, kv: KV, anchors: pa.Table, step: int) -> None:
        """Add the anchors of a step, with `AT` and their windows."""
        self.anchors.add(kv, anchors.append_column(TIME, anchors.column(AT)), step)

    def passed(self, kv: KV, before_us: int, watermark_us: int) -> pa.Table | None:
        """Return the anchors that the watermark passes as it advances from `before_us`."""
        if not self.anchors.any_between(kv, before_us, watermark_us):
            return None
        rows = self.anchors.read(kv, before_us, watermark_us, tidy=True)
        return None if rows is None else rows.drop_columns([TIME])

    # -- a clock ----------------------------------------------------------------------------------------------------

    def hear(self, kv: KV, times: IntArray) -> None:
        """Advance the clock's times: it begins with the first message, and ends with the last."""
        if not isinstance(self.definition.anchors, Ticks):
            return
        at_us, first_us, last_us = self._clock(kv)
        now = (at_us, min(first_us, int(times.min())), max(last_us, int(times.max())))
        batch = Batch()
        batch.put(self.aux_cf, _CLOCK, msgpack.packb(now))
        kv.write(batch)

    def ticked(self, kv: KV, watermark_us: int) -> IntArray | None:
        """Return the ticks that the watermark has passed, each once."""
        clock = self.definition.anchors
        assert isinstance(clock, Ticks)
        at_us, first_us, last_us = self._clock(kv)
        if first_us > last_us:
            return None  # no time has come yet
        at_us = clock.first_at(first_us) if at_us is None else at_us
        end_us = min(watermark_us, last_us + 1) if watermark_us >= END_OF_TIME_US else watermark_us
        if at_us >= end_us:
            return None
        times = np.arange(at_us, end_us, clock.period_us, dtype=np.int64)
        batch = Batch()
        batch.put(self.aux_cf, _CLOCK, msgpack.packb((int(times[-1]) + clock.period_us, first_us, last_us)))
        kv.write(batch)
        return times

    def _clock(self, kv: KV) -> tuple[int | None, int, int]:
        packed = kv.get(self.aux_cf, _CLOCK)
        if packed is None:
            return None, END_OF_TIME_US, START_OF_TIME_US
        at_us, first_us, last_us = msgpack.unpackb(packed)
        return at_us, first_us, last_us

    # -- windows that are not over ----------------------------------------------------------------------------------

    def due(
        self, kv: KV, fresh: pa.Table | None, before_us: int, watermark_us: int
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """Return the anchors whose windows the watermark has passed now, and the fresh ones that have to wait, with `TIME`,
        until when."""
        due, later = list[pa.Table](), None
        if self.waiting.any_between(kv, before_us, watermark_us):
            waited = self.waiting.read(kv, before_us, watermark_us, tidy=True)
            due += [] if waited is None else [waited.drop_columns([TIME])]
        if fresh is not None:
            over_us = np.maximum(
                fresh.column(AT).to_numpy(), high_of(self.span, fresh.column(END).to_numpy())
            )
            done = (over_us < watermark_us) | (watermark_us >= END_OF_TIME_US)
            due.append(fresh.filter(pa.array(done)))
            later = fresh.append_column(TIME, pa.array(over_us)).filter(pa.array(~done))
        return (concat(due) if due else None), later

    def wait(self, kv: KV, anchors: pa.Table, step: int) -> None:
        """File anchors that have to wait."""
        self.waiting.add(kv, anchors, step)
        stretches = anchors.column(TIME).to_numpy() // self.width_us * self.width_us
        lows = low_of(self.span, anchors.column(START).to_numpy())
        each, of = np.unique(stretches, return_inverse=True)
        least = np.full(len(each), END_OF_TIME_US, dtype=np.int64)
        np.minimum.at(least, of, lows)
        keys = [encode_i64(us) for us in each.tolist()]
        batch = Batch()
        for key, us, known in zip(keys, least.tolist(), kv.multi_get(self.lows_cf, keys), strict=True):
            batch.put(self.lows_cf, key, encode_i64(us if known is None else min(us, decode_i64(known))))
        kv.write(batch)

    def lowest_us(self, kv: KV) -> int:
        """Return the first moment in the window of a waiting anchor, or a little before."""
        return min((decode_i64(value) for _, value in kv.scan(self.lows_cf)), default=END_OF_TIME_US)

    def forget(self, kv: KV, watermark_us: int) -> None:
        """Delete anchors that the watermark has passed, and promises that say no more than the retention."""
        self.anchors.forget(kv, watermark_us)
        self.waiting.forget(kv, watermark_us)
        ends, batch = watermark_us >= END_OF_TIME_US, Batch()
        whole = b"\xff" * 9
        passed = whole if ends else encode_i64(watermark_us // self.width_us * self.width_us)
        if next(iter(kv.scan(self.lows_cf, b"", passed)), None) is not None:
            batch.delete_range(self.lows_cf, b"", passed)
        if self.judges:
            self.promises.forget(kv, batch, watermark_us)
        if ends and kv.get(self.aux_cf, _CLOCK) is not None:
            batch.delete_many(self.aux_cf, [_CLOCK])
        kv.write(batch)

    # -- state ------------------------------------------------------------------------------------------------------

    def lowest_of_waiting_us(self, kv: KV, watermark_us: int) -> int:
        """Return the exact `lowest_us` of the anchors that still wait."""
        rows = self.waiting.read(kv, watermark_us, END_OF_TIME_US)
        return END_OF_TIME_US if rows is None else int(low_of(self.span, rows.column(START).to_numpy()).min())

    def kept(self, kv: KV, watermark_us: int) -> pa.Table | None:
        """Return all anchors whose rows are not emitted."""
        read = [events.read(kv, watermark_us, END_OF_TIME_US) for events in (self.anchors, self.waiting)]
        tables = [rows for rows in read if rows is not None]
        return concat(tables) if tables else None


def ticks(definition: OverDefinition, times: IntArray) -> pa.Table:
    """Return anchors of a clock."""
    assert isinstance(definition.span, RangeBetween)
    rows = around(definition.span, times)
    moments = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return rows.append_column(AT, pa.array(times)).append_column(definition.output_time, moments)
