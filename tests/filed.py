"""Contents of a store's families of messages."""

from __future__ import annotations

from typing import Any

from windrow.core.time import END_OF_TIME_US
from windrow.operators.steps.progress import Progress
from windrow.stores.event_log import Stretches
from windrow.stores.keyed_event_store import KeyedEvents
from windrow.stores.kv import KV


def filed(kv: KV, cf: str) -> list[Any]:
    """Byte for byte; where messages of several steps lie together, what they and their steps say, if they are in retention."""
    pairs = list(kv.scan(cf))
    if not any(key[:1] == b"i" for key, _ in pairs):
        return pairs
    floor_us = Progress.load(kv, cf.removesuffix(".messages") + ".aux").purged_us
    rows = KeyedEvents(cf, Stretches(1)).read(kv, floor_us, END_OF_TIME_US)
    return [] if rows is None else sorted(map(repr, rows.to_pylist()))
