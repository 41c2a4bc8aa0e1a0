"""A function of the user's over keyed state: two pure steps on a store.

Column families: `keys` `<key>` -> (last event time i64, when it ends as filed i64, key fields), `state` `<key><name>` -> a
msgpack value, `timers`: those of event time (`e`) and of `now` (`n`) -> (event time of the message that set it i64, key
fields), and the ends of keys. A key that lives on is filed anew only when its former time comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import decode_i64
from windrow.core.errors import ConfigurationError
from windrow.core.keys import encode_equal
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.one_input import OneInputLogic, Work
from windrow.operators.process.calls import Calls, Families, Key, Kind, Of
from windrow.operators.process.definition import ProcessDefinition
from windrow.operators.steps.columns import EARLY, LATE, ON_TIME
from windrow.operators.steps.dead_letters import FUNCTION_FAILED
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import pack_rows, unpack_rows
from windrow.operators.view import View
from windrow.stores.kv import KV, Overlay

STAMP = pa.timestamp("us", "UTC")


class Processor(OneInputLogic):
    """The operator of one definition on one store. It is stateless: everything is in the store that it receives."""

    definition: ProcessDefinition

    def __init__(self, definition: ProcessDefinition) -> None:
        super().__init__(definition)
        function = definition.function
        self._families = Families(definition.name)
        self._function = function() if isinstance(function, type) else function
        self._has_on_timer = callable(getattr(self._function, "on_timer", None))

    def cfs(self) -> tuple[str, ...]:
        cfs = self._families
        return (self.aux_cf, cfs.keys, cfs.state, cfs.timers)

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        definition = self.definition
        keys = [pa.field(b, schema.field(b).type) for b in definition.by]
        return [*keys, pa.field(definition.event_time, STAMP), *definition.emits]

    # -- steps ------------------------------------------------------------------------------------------------------

    def accept(self, work: Work, rows: Slice) -> Slice:
        """Call the function for each message, in position order. Returns the counted messages."""
        calls = self._calls(work, work.progress.watermark_us)
        times = pa.array(rows.times)
        messages = rows.table.select(work.schema.names).to_pylist()
        keys, counted = self._keys(calls.kv, rows), list[int]()
        for i, (key, message, time_us) in enumerate(zip(keys, messages, rows.times.tolist(), strict=True)):
            done = calls.call(
                self._function.on_message,
                key,
                message,
                partial(_bury_message, work, rows.table, np.array([i]), times),
                time_us=time_us,
                timing=LATE if time_us < calls.watermark_us else EARLY,
            )
            if done is not None:
                counted.append(i)
        calls.finish()
        return rows if len(counted) == len(rows) else rows.take(np.array(counted, dtype=np.int64))

    def pass_time(self, work: Work, watermark_us: int) -> None:
        """Fire timers of event time and end keys, in order of time, then of key; then fire timers of `now`."""
        if work.progress.schema is None:
            return
        calls = self._calls(work, watermark_us)
        calls.follow_ttl()
        self._fire(calls, "event", watermark_us)
        self._fire(calls, "now", work.now_us)
        calls.finish()

    def _fire(self, calls: Calls, of: Of, upto_us: int) -> None:
        """Fire the timers due up to `upto_us`, and those that are set meanwhile and due as well."""
        kv, index = calls.kv, calls.indices[of]
        # A key ends when event time has passed its end, a timer fires as event time reaches it.
        due = [timer[:3] for timer in index.due(kv, upto_us) if timer[2] == Kind.TIMER or timer[0] < upto_us]
        heap = [(at_us, kind, encoded) for at_us, encoded, kind in due]
        heapq.heapify(heap)
        while heap:
            at_us, kind, encoded = heapq.heappop(heap)
            if kind == Kind.END:
                calls.expire(at_us, encoded)
            else:
                value = index.get(kv, at_us, encoded, Kind.TIMER)
                if value is None:
                    continue  # it was cancelled
                index.cancel(kv.batch, at_us, encoded, Kind.TIMER)
                for time_us, clock in self._fire_one(calls, of, at_us, encoded, value):
                    if clock == of and time_us <= upto_us:
                        heapq.heappush(heap, (time_us, Kind.TIMER, encoded))
            ends_us = calls.ends_us(encoded) if of == "event" else None
            if ends_us is not None and ends_us < upto_us and self.definition.retention.time_us is not None:
                heapq.heappush(heap, (ends_us, Kind.END, encoded))

    def _fire_one(
        self, calls: Calls, of: Of, at_us: int, encoded: bytes, value: bytes
    ) -> list[tuple[int, Of]]:
        """Call `on_timer`. A timer of `now` has the event time at which it was set, or the watermark if that is further."""
        work, reached_us = calls.work, calls.watermark_us
        if not self._has_on_timer:
            raise ConfigurationError(
                f"{self.definition.name!r} has a timer at {to_datetime(at_us)}, and {self.definition.function_name} has no "
                "on_timer(key, at, state, timers): give it one"
            )
        key = Key(encoded, value[8:], self._values(work, value[8:]))
        time_us, late = at_us, at_us < work.progress.watermark_us
        if of == "now":
            known = reached_us not in (START_OF_TIME_US, END_OF_TIME_US)
            time_us = max(decode_i64(value), reached_us) if known else decode_i64(value)
            late = time_us < reached_us
        at, names = to_datetime(at_us), dict(zip(self.definition.by, key.values, strict=True))
        payload = {"key": names, "timer": of, "at": at}
        fresh = calls.call(
            self._function.on_timer,
            key,
            at,
            partial(_bury_timer, work, payload),
            time_us=time_us,
            timing=LATE if late else ON_TIME,
            fired=(of, at_us),
        )
        return fresh or []

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.process.views import ProcessView

        return ProcessView(self, stores, watermark_us)

    # -- keys -------------------------------------------------------------------------------------------------------

    def _calls(self, work: Work, watermark_us: int) -> Calls:
        made = pa.schema(self.fields(work.schema))
        return Calls(self.definition, work, made, watermark_us, self._has_on_timer)

    def _keys(self, kv: Overlay, rows: Slice) -> list[Key]:
        """Return the key of each row."""
        by = self.definition.by
        if not by:
            return [Key(b"", b"", ())] * len(rows)
        columns = [combine(rows.table.column(b)) for b in by]
        filed = pack_rows(kv, kv.batch, self.aux_cf, rows.table.select(by))
        values = zip(*(c.to_pylist() for c in columns), strict=True)
        return list(map(Key, encode_equal(columns), filed, values))

    def _values(self, work: Work, row: bytes) -> tuple[object, ...]:
        """Return the fields of a filed key."""
        by = self.definition.by
        if not by:
            return ()
        schema = pa.schema([work.schema.field(b) for b in by])
        table = unpack_rows(work.kv, self.aux_cf, [row], [("", 0, 0, 0)], schema)
        return tuple(table.column(b)[0].as_py() for b in by)


def _bury_message(work: Work, table: pa.Table, at: IntArray, times: pa.Array, why: str) -> None:
    work.dead.add_rows(FUNCTION_FAILED, why, table, at, times)


def _bury_timer(work: Work, payload: Mapping[str, object], why: str) -> None:
    work.dead.add(FUNCTION_FAILED, why, payload)
