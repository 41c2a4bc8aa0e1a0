"""State of rules: the messages of each input, once for all rules, and the tuples that wait for their deadline.

    <rules>.<input>.events    by the hash of the partition, or by time where messages are kept for a short time
    <rules>.pending           by rule and deadline

The auxiliary family has under `\\x00lay <input>` how an input lies, and under `\\x00rules` the numbers of rules and patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.byte_order import encode_u32
from windrow.core.relations import INFINITE_US
from windrow.core.time import HOUR_US, SECOND_US
from windrow.stores.event_log import TIME, Events
from windrow.stores.keyed_event_store import HASH, Hashes, KeyedEvents
from windrow.stores.kv import KV, Batch

_LAYOUT, _WIDE, _NUMBERS = b"\x00lay ", b"\x00wide ", b"\x00rules"
#: A message is in reach of about so many stretches.
_STRETCHES, _SHORTEST_US = 8, 100_000
#: Messages that are kept longer lie by the hash of their partition: a small step reads those of its own partitions alone.
_SHORT_US = 10 * SECOND_US


class KeptMessages:
    """The messages of one input, by the time of their end. Holds no state of its own.

    keyed: by the hash of their partition; fixed for a state, as is the width of stretches
    """

    def __init__(self, name: str, aux_cf: str, kept_us: int | None, by: tuple[str, ...]) -> None:
        self.cf, self.aux_cf = name, aux_cf
        self._label = name.encode()
        endless = kept_us is None or kept_us >= INFINITE_US
        width_us = HOUR_US if endless else max((kept_us or 0) // _STRETCHES, _SHORTEST_US)
        self._usual = bool(by) and (endless or (kept_us or 0) > _SHORT_US), width_us

    def _layout(self, kv: KV) -> tuple[bool, int]:
        """Give (by key, width of stretches) of this state."""
        packed = kv.get(self.aux_cf, _LAYOUT + self._label)
        if packed is None:
            return self._usual
        keyed, width_us = msgpack.unpackb(packed)
        return keyed, width_us

    def _store(self, kv: KV) -> Events | KeyedEvents:
        keyed, width_us = self._layout(kv)
        return (KeyedEvents if keyed else Events)(self.cf, width_us, (self.aux_cf, _WIDE + self._label))

    def add(self, kv: KV, rows: pa.Table, hashes: Hashes, step: int) -> None:
        """File messages with a column `TIME`."""
        if not len(rows):
            return
        keyed, width_us = self._layout(kv)
        if kv.get(self.aux_cf, _LAYOUT + self._label) is None:
            batch = Batch()
            batch.put(self.aux_cf, _LAYOUT + self._label, msgpack.packb((keyed, width_us)))
            kv.write(batch)
        if keyed:
            rows = rows.append_column(HASH, pa.array(hashes))
        self._store(kv).add(kv, rows, step)

    def near(self, kv: KV, hashes: Hashes, low: IntArray, high: IntArray) -> pa.Table | None:
        """Read the messages of these partitions that end from `low` to `high`, both included; others may be among them."""
        store = self._store(kv)
        if isinstance(store, KeyedEvents):
            return store.read_keys(kv, hashes, low, high)
        return store.read_near(kv, low, high)

    def between(self, kv: KV, low_us: int, high_us: int) -> pa.Table | None:
        """Read the messages that end from `low_us` on and before `high_us`."""
        return self._store(kv).read(kv, low_us, high_us)

    def forget(self, kv: KV, below_us: int) -> None:
        """Drop the stretches that end before that."""
        self._store(kv).forget(kv, below_us)


class PendingTuples:
    """The complete tuples of one rule, by their deadline."""

    def __init__(self, cf: str, number: int, wait_us: int) -> None:
        self._events = Events(cf, width_of(wait_us), prefix=encode_u32(number))

    def add(self, kv: KV, tuples: pa.Table, deadlines: IntArray, number: int) -> None:
        """File tuples. number: of these, which no others of the rule have."""
        self._events.add(kv, tuples.append_column(TIME, pa.array(deadlines)), number)

    def due(self, kv: KV, low_us: int, until_us: int) -> pa.Table | None:
        """Read the tuples with a deadline from `low_us` on and before `until_us`, in its order."""
        if not self._events.any_between(kv, low_us, until_us):
            return None
        rows = self._events.read(kv, low_us, until_us, tidy=True)
        if rows is None:
            return None
        return rows.take(pa.array(np.argsort(rows.column(TIME).to_numpy(), kind="stable")))

    def forget(self, kv: KV, until_us: int) -> None:
        """Drop the stretches that are over."""
        self._events.forget(kv, until_us)


def width_of(wait_us: int) -> int:
    """Compute the length of time buckets for rows that are pending about so long."""
    return min(max(wait_us // _STRETCHES, _SHORTEST_US), HOUR_US) if wait_us < INFINITE_US else SECOND_US


class Numbers(NamedTuple):
    """The numbers of rules and patterns in the state; a number is used once.

    patterns: by rule and binding, the bit of a message that the pattern takes; gone: of the rules removed in this step
    """

    rules: Mapping[str, int]
    patterns: Mapping[tuple[str, str], int]
    gone: tuple[int, ...] = ()


def numbers_of(kv: KV, aux_cf: str, wanted: Sequence[tuple[str, str]]) -> Numbers:
    """Read the numbers of this state; a new rule and a new pattern get the next, and a removed one loses its own."""
    packed = kv.get(aux_cf, _NUMBERS)
    before: tuple[list[Any], list[Any]] = ([], []) if packed is None else msgpack.unpackb(packed)
    pairs = [None if pair is None else (pair[0], pair[1]) for pair in before[1]]
    rules, gone = _numbered(before[0], list(dict.fromkeys(rule for rule, _ in wanted)))
    patterns, _ = _numbered(pairs, list(wanted))
    if rules != before[0] or patterns != pairs:
        batch = Batch()
        batch.put(aux_cf, _NUMBERS, msgpack.packb((rules, patterns)))
        kv.write(batch)
    of_rules, of_patterns = (
        {name: i for i, name in enumerate(part) if name is not None} for part in (rules, patterns)
    )
    return Numbers(of_rules, of_patterns, gone)


def _numbered(known: list[Any], current: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the current numbers, None where they are used up; and the numbers that are used up in this step."""
    names = set(current)
    gone = tuple(i for i, name in enumerate(known) if name is not None and name not in names)
    kept = [name if name in names else None for name in known]
    return [*kept, *(name for name in current if name not in known)], gone


def drop_rules(kv: KV, cfs: Iterable[str], numbers: Iterable[int]) -> None:
    """Drop the pending tuples of removed rules."""
    batch = Batch()
    for number in numbers:
        for cf in cfs:
            batch.delete_range(cf, encode_u32(number), encode_u32(number + 1))
    if len(batch):
        kv.write(batch)
