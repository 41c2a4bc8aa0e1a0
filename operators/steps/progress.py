"""Progress of an operator between steps, one small value: trigger, timer and emission progress are state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import pyarrow as pa

from windrow.core.envelope import check_version
from windrow.core.time import START_OF_TIME_US
from windrow.stores.kv import KV, Batch, Overlay

FORMAT = 1
KEY = b"\x00progress"
#: The emission of the last `advance`: under another one, other windows may wait.
EMISSION = b"\x00emission"
#: The aggregations computed from kept messages with which earlier windows have been updated.
RECOMPUTED = b"\x00recomputed"


@dataclass
class Progress:
    """step: number of the last step; now_us, watermark_us: of the last advance (an ingest must not swallow a tick).

    dirty: starts of windows with changes that no pane has emitted yet and that wait for a period. purged_us: windows that
    start before it are purged. schema: of the input.
    """

    step: int = 0
    now_us: int | None = None
    watermark_us: int = START_OF_TIME_US
    dirty: set[int] = field(default_factory=set)
    purged_us: int = START_OF_TIME_US
    schema: pa.Schema | None = None

    def begin(self, now_us: int) -> None:
        """Set the first `now_us`: periods tick from the first step on. An ingest ticks nothing, and must not move `now_us`."""
        if self.now_us is None:
            self.now_us = now_us

    def save(self, kv_put: Any) -> None:
        schema = None if self.schema is None else self.schema.serialize().to_pybytes()
        body = [
            self.step,
            self.now_us,
            self.watermark_us,
            sorted(self.dirty),
            self.purged_us,
            schema,
        ]
        kv_put(KEY, bytes((FORMAT,)) + msgpack.packb(body))

    @classmethod
    def load(cls, kv: KV, cf: str) -> Progress:
        value = kv.get(cf, KEY)
        if value is None:
            return cls()
        check_version("operator progress", value[0], FORMAT)
        step, now_us, watermark_us, dirty, purged_us, schema = msgpack.unpackb(
            value[1:], strict_map_key=False
        )
        return cls(
            step,
            now_us,
            watermark_us,
            set(dirty),
            purged_us,
            None if schema is None else pa.ipc.read_schema(pa.py_buffer(schema)),
        )


def only_time_passed(before: KV, changes: Batch) -> bool:
    """True if the changes only record that a step ran, and when: one later step can replace several such."""
    after = Overlay(before)
    after.write(changes)
    for kind, cf, key, _ in changes.ops:
        if kind != "put" or key != KEY:
            return False
        then, now = Progress.load(before, cf), Progress.load(after, cf)
        if replace(now, step=then.step, now_us=then.now_us) != then:
            return False
    return True
