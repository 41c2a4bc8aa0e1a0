"""Store of the statuses of keys, loaded and saved by columns.

    <name>.status      <key> -> u8 format, u8 status, 16 bytes identity of the incident, i64 repeats, i64 moment of the opening,
                       i64 moment of the last change of status, i64 moment of the last sample, i64 its event timer, i64 its
                       timer of `now`; a key is `encode_equal` of the key columns
    <name>.incidents   <key> -> msgpack [{action: [i64 end of its delay or nil, i64 `now` of its next repeat or nil]}, the
                       values of the opening or nil, those of the last evaluation or nil], rows as of `pack_rows`; of open keys
    <name>.timers      `e<time i64><key><0>` event time, `n<time i64><key><0>` of `now`: at most one each for a key, which may
                       be too early

A time that no longer applies is written as the end of time. It is the moment of the last change of a key that has history
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.envelope import check_version
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.alert.conditions import Carried
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.status import CANCEL
from windrow.stores.kv import KV, Batch
from windrow.stores.timers import TimerIndex

FORMAT = 1
_RECORD = np.dtype(
    [
        ("format", "u1"),
        ("status", "u1"),
        ("id", "V16"),
        *((name, "<i8") for name in ("count", "open", "change", "seen", "wake", "wake_now")),
    ]
)
NEVER = END_OF_TIME_US


@dataclass
class States:
    """The state of some keys. there: true for keys that are stored.

    pending, repeats: by action, `NEVER` where nothing is due. openings, lasts: rows by number of key
    """

    keys: list[bytes]
    there: BoolArray
    records: npt.NDArray[Any]
    pending: dict[str, IntArray]
    repeats: dict[str, IntArray]
    openings: dict[int, bytes]
    lasts: dict[int, bytes]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def seen(self) -> IntArray:
        return np.array(self.records["seen"], dtype=np.int64)

    @property
    def loading(self) -> BoolArray:
        """True for keys that have history alone: no message of theirs has come."""
        quiet: BoolArray = (self.records["status"] == CANCEL) & (self.records["change"] == NEVER)
        return quiet

    def begin(self, numbers: IntArray) -> None:
        """Record that messages of these keys have come."""
        change = self.records["change"]
        change[numbers] = np.where(change[numbers] == NEVER, 0, change[numbers])

    def carried(self, some: IntArray) -> Carried:
        part = self.records[some]
        columns = (part[name].astype(np.int64) for name in ("count", "open", "change"))
        return Carried(part["status"].copy(), *columns)

    def due_us(self, numbers: dict[str, IntArray]) -> IntArray:
        """Return the first time at which a row of each key is due."""
        nothing = np.full(len(self), NEVER)
        due_us: IntArray = np.minimum.reduce([nothing, *numbers.values()])
        return due_us


class StateStore:
    """The statuses of one definition. Holds no state of its own."""

    def __init__(self, definition: AlertDefinition) -> None:
        name = definition.name
        self.cf, self.incidents_cf, self.timers_cf = f"{name}.status", f"{name}.incidents", f"{name}.timers"
        self.event_timers, self.now_timers = (
            TimerIndex(self.timers_cf, b"e"),
            TimerIndex(self.timers_cf, b"n"),
        )
        self._delayed = [n for n, action in definition.actions.items() if action.delay_us]
        self._periodic = [n for n, action in definition.actions.items() if action.period_us is not None]
        #: True if rows of earlier evaluations are emitted: at the end of a delay; by `now`, or when a key expires.
        valued = bool(definition.agg) or bool(definition.variables)
        self.keeps_openings = valued and bool(self._delayed)
        self.keeps_lasts = valued and (bool(self._periodic) or definition.ttl_us is not None)
        self._has_incidents = bool(self._delayed) or bool(self._periodic) or self.keeps_lasts

    @property
    def keeps_rows(self) -> bool:
        """True if values of evaluations are kept."""
        return self.keeps_openings or self.keeps_lasts

    @property
    def cfs(self) -> tuple[str, ...]:
        return self.cf, self.incidents_cf, self.timers_cf

    def all_keys(self, kv: KV) -> list[bytes]:
        return [key for key, _ in kv.scan(self.cf, b"", None)]

    def load(self, kv: KV, keys: list[bytes]) -> States:
        values = kv.multi_get(self.cf, keys)
        n = len(keys)
        records = np.zeros(n, dtype=_RECORD)
        records["format"] = FORMAT
        records["seen"], records["wake"], records["wake_now"] = START_OF_TIME_US, NEVER, NEVER
        there = np.array([value is not None for value in values], dtype=bool)
        if there.any():
            stored = np.frombuffer(b"".join([value for value in values if value is not None]), dtype=_RECORD)
            for version in np.unique(stored["format"]).tolist():
                check_version(f"a status in {self.cf!r}", version, FORMAT)
            records[there] = stored
        none = {name: np.full(n, NEVER) for name in (*self._delayed, *self._periodic)}
        pending = {name: none[name].copy() for name in self._delayed}
        repeats = {name: none[name].copy() for name in self._periodic}
        states = States(keys, there, records, pending, repeats, {}, {})
        if self._has_incidents:
            self._load_incidents(kv, states)
        return states

    def _load_incidents(self, kv: KV, states: States) -> None:
        open_ = np.flatnonzero(states.records["status"] != CANCEL).tolist()
        values = kv.multi_get(self.incidents_cf, [states.keys[i] for i in open_]) if open_ else []
        for i, value in zip(open_, values, strict=True):
            if value is None:
                continue
            actions, opening, last = msgpack.unpackb(value)
            for name, (pending, repeat) in actions.items():
                if pending is not None and name in states.pending:
                    states.pending[name][i] = pending
                if repeat is not None and name in states.repeats:
                    states.repeats[name][i] = repeat
            if opening is not None:
                states.openings[i] = opening
            if last is not None:
                states.lasts[i] = last

    def save(self, kv: KV, states: States, kept: BoolArray, wake_us: IntArray) -> None:
        """Write the keys that are kept, and delete the others. wake_us: when event time next makes something of them due."""
        batch, records = Batch(), states.records
        wake_now = np.where(kept, states.due_us(states.repeats), NEVER)
        self._set(batch, self.event_timers, states, "wake", np.where(kept, wake_us, NEVER))
        self._set(batch, self.now_timers, states, "wake_now", wake_now)
        size, raw = _RECORD.itemsize, records.tobytes()
        places = np.flatnonzero(kept).tolist()
        batch.put_many(
            self.cf,
            [states.keys[i] for i in places],
            [raw[i * size : (i + 1) * size] for i in places],
        )
        gone = [states.keys[i] for i in np.flatnonzero(~kept & states.there).tolist()]
        batch.delete_many(self.cf, gone)
        if self._has_incidents:
            self._save_incidents(batch, states, kept)
        kv.write(batch)

    def _set(self, batch: Batch, timers: TimerIndex, states: States, name: str, due_us: IntArray) -> None:
        """Move the timers of keys that are due earlier than they say, and cancel those of keys that are never due."""
        known = states.records[name].astype(np.int64)
        moved = (due_us < known) | ((due_us == NEVER) & (known != NEVER))
        if not moved.any():
            return
        for of, times in ((known, moved & (known != NEVER)), (due_us, moved & (due_us != NEVER))):
            moved_codes = np.flatnonzero(times)
            keys = [states.keys[i] for i in moved_codes.tolist()]
            if keys and of is known:
                timers.cancel_many(batch, of[moved_codes], keys)
            elif keys:
                timers.set_many(batch, of[moved_codes], keys)
        states.records[name][moved] = due_us[moved]

    def _save_incidents(self, batch: Batch, states: States, kept: BoolArray) -> None:
        open_ = kept & (states.records["status"] != CANCEL)
        places = np.flatnonzero(open_).tolist()
        columns = {
            name: (_of(states.pending, name, places), _of(states.repeats, name, places))
            for name in dict.fromkeys((*self._delayed, *self._periodic))
        }
        values = [
            msgpack.packb(
                [
                    {name: (pending[n], repeats[n]) for name, (pending, repeats) in columns.items()},
                    states.openings.get(i),
                    states.lasts.get(i),
                ]
            )
            for n, i in enumerate(places)
        ]
        batch.put_many(self.incidents_cf, [states.keys[i] for i in places], values)
        closed = np.flatnonzero(~open_ & states.there).tolist()
        batch.delete_many(self.incidents_cf, [states.keys[i] for i in closed])

    def drop(self, kv: KV) -> None:
        """Forget all keys."""
        batch = Batch()
        for cf in self.cfs:
            batch.delete_range(cf, b"", b"\xff" * 32)
        kv.write(batch)


def _of(numbers: dict[str, IntArray], name: str, places: Sequence[int]) -> list[int | None]:
    if name not in numbers:
        return [None] * len(places)
    return [None if us == NEVER else us for us in numbers[name][places].tolist()]
