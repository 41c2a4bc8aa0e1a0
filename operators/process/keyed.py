"""Keyed state and timers that a process function sees during a call.

Both read through an overlay of the call, and are written when the call succeeds: one that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal

import msgpack

from windrow.core.byte_order import encode_i64, encode_u32, prefix_end
from windrow.core.faults import FIRST_US, LAST_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us, to_datetime
from windrow.stores.kv import Overlay
from windrow.stores.timers import TimerIndex

Of = Literal["event", "now"]


class Kind(IntEnum):
    """The kinds of timers. At one moment timers fire before keys end."""

    TIMER = 0
    END = 1


def state_prefix(key: bytes) -> bytes:
    """Return the prefix of a key's state: no key's is the prefix of another's."""
    return encode_u32(len(key)) + key


def unpacked(value: bytes) -> Any:
    """Return a stored value, unpacked."""
    return msgpack.unpackb(value, strict_map_key=False, timestamp=3)


def _packed(name: str, value: Any, kept: bytes | None) -> bytes:
    """Pack a value to be stored; `kept`: the stored one. Rejects values that could be written but not read back (a list as the
    key of a map, a time before the year 1 in UTC): else no call could read the state ever again."""
    try:
        packed = bytes(msgpack.packb(value, use_bin_type=True, datetime=True))
        if packed != kept:
            unpacked(packed)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"state[{name!r}], of type {type(value).__name__}, is nothing that msgpack keeps ({error}): use numbers of 64 "
            "bits, text, bytes, lists, maps, None, booleans and aware times"
        ) from error
    return packed


class State(MutableMapping[str, Any]):
    """The values of one key, by name. msgpack must take them: numbers, text, bytes, lists, maps, None, booleans,
    aware times."""

    def __init__(self, kv: Overlay, cf: str, key: bytes) -> None:
        self._kv, self._cf, self._prefix = kv, cf, state_prefix(key)
        #: Values that were read: a list among them may have been appended to.
        self._held: dict[str, Any] = {}
        self._gone: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name in self._held:
            return self._held[name]
        value = None if name in self._gone else self._kv.get(self._cf, self._key(name))
        if value is None:
            raise KeyError(name)
        self._held[name] = unpacked(value)
        return self._held[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._key(name)
        self._held[name] = value
        self._gone.discard(name)

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._held[name]
        self._gone.add(name)

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        stored = self._kv.scan(self._cf, self._prefix, prefix_end(self._prefix))
        names = {key[start:].decode() for key, _ in stored}
        return iter(sorted((names | set(self._held)) - self._gone))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _key(self, name: str) -> bytes:
        if not isinstance(name, str):
            raise TypeError(f"state[{name!r}]: values are named by text")
        return self._prefix + name.encode()

    def settle(self) -> None:
        """Write values that were set, or changed in place. Raises if msgpack cannot hold a value."""
        for name in self._gone:
            self._kv.delete(self._cf, self._key(name))
        for name, value in self._held.items():
            kept = self._kv.get(self._cf, self._key(name))
            packed = _packed(name, value, kept)
            if packed != kept:
                self._kv.put(self._cf, self._key(name), packed)

    @property
    def empty(self) -> bool:
        """True if nothing is stored of the key."""
        return next(self._kv.scan(self._cf, self._prefix, prefix_end(self._prefix)), None) is None


class Timers:
    """The timers of one key, and the present times. A timer is a time: setting it twice is setting it once.

    of: what fired, "event" or "now"; None while a message is processed. fires: there is an `on_timer` to call.
    """

    def __init__(
        self,
        kv: Overlay,
        indices: dict[Of, TimerIndex],
        key: bytes,
        row: bytes,
        *,
        time_us: int,
        watermark_us: int,
        now_us: int,
        fired: tuple[Of, int] | None = None,
        fires: bool = True,
    ) -> None:
        self._kv, self._indices, self._key, self._row = kv, indices, key, row
        self._time_us, self._watermark_us, self._now_us = time_us, watermark_us, now_us
        self._fired, self._fires = fired, fires
        self.of: Of | None = None if fired is None else fired[0]
        #: Timers that were set, (time, kind).
        self.fresh: list[tuple[int, Of]] = []

    @property
    def time(self) -> datetime:
        """Return the event time of the message, or of the timer; emitted rows have it."""
        return to_datetime(self._time_us)

    @property
    def now(self) -> datetime:
        """The time of the job: recorded, so that it is the same whenever the step is done again."""
        return to_datetime(self._now_us)

    @property
    def watermark(self) -> datetime | None:
        """Return the watermark; None before the first message."""
        return None if self._watermark_us == START_OF_TIME_US else to_datetime(self._watermark_us)

    def set(self, at: Instant, of: Of = "event") -> None:
        """Call `on_timer` when the watermark, or `now`, reaches `at`. Past times fire at the next advance."""
        at_us = self._checked(at, of)
        if not self._fires:
            raise TypeError(
                f"a timer at {at} would call on_timer, which the function has not: give it on_timer(key, at, state, timers)"
            )
        if self._fired is not None and of == self._fired[0] and at_us <= self._fired[1]:
            raise ValueError(
                f"a timer that fires at {to_datetime(self._fired[1])} sets one at {at}: set a later one"
            )
        if of == "event" and self._watermark_us == END_OF_TIME_US:
            return  # event time has ended
        value = encode_i64(self._time_us) + self._row
        self._indices[of].set(self._kv.batch, at_us, self._key, Kind.TIMER, value)
        self.fresh.append((at_us, of))

    def cancel(self, at: Instant, of: Of = "event") -> None:
        """Take a timer back; one that is not set is none."""
        at_us = self._checked(at, of)
        self._indices[of].cancel(self._kv.batch, at_us, self._key, Kind.TIMER)

    def _checked(self, at: Instant, of: Of) -> int:
        if of not in self._indices:
            raise ValueError(f"of={of!r}: use 'event' or 'now'")
        at_us = instant_us(at, "timer")
        if not FIRST_US <= at_us <= LAST_US:
            raise ValueError(f"a timer at {at!r} is outside the years 1 to 9999")
        return at_us
