"""Calls of a process function in one step: each on an overlay of its own, which counts if the call succeeds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal

import msgpack
import pyarrow as pa

from windrow.core.border import fit
from windrow.core.byte_order import decode_i64, encode_i64, encode_u32, prefix_end
from windrow.core.errors import StateError
from windrow.core.faults import FIRST_US, LAST_US
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us, to_datetime
from windrow.operators.one_input import Work
from windrow.operators.process.definition import ProcessDefinition
from windrow.operators.steps.columns import TIMING
from windrow.stores.kv import Overlay
from windrow.stores.timers import TimerIndex

# -- keyed state and timers that a process function sees during a call ------------------------------------------------
# Both read through an overlay of the call, and are written when the call succeeds: one that raises changes nothing.

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


# -- calls ------------------------------------------------------------------------------------------------------------

#: Key of the `ttl` by which keys are filed.
TTL = b"\x00ttl"


@dataclass(frozen=True)
class Families:
    """The column families of an operator of that name."""

    name: str

    @property
    def aux(self) -> str:
        return f"{self.name}.aux"

    @property
    def keys(self) -> str:
        return f"{self.name}.keys"

    @property
    def state(self) -> str:
        return f"{self.name}.state"

    @property
    def timers(self) -> str:
        return f"{self.name}.timers"

    @property
    def indices(self) -> dict[Of, TimerIndex]:
        """The timers of event time, with the ends of keys, and those of `now`."""
        return {"event": TimerIndex(self.timers, b"e"), "now": TimerIndex(self.timers, b"n")}


@dataclass(frozen=True)
class Key:
    """A key: as bytes, as filed fields, as values."""

    encoded: bytes
    row: bytes
    values: tuple[Any, ...]

    @property
    def shown(self) -> Any:
        """The key as users see it."""
        return self.values[0] if len(self.values) == 1 else self.values


class Calls:
    """The state of one step. derived: the columns of rows. watermark_us: the progress of event time in the step. fires: the
    function has an `on_timer`."""

    def __init__(
        self, definition: ProcessDefinition, work: Work, derived: pa.Schema, watermark_us: int, fires: bool
    ) -> None:
        self.definition, self.cfs = definition, Families(definition.name)
        self.indices = self.cfs.indices
        self.work, self.output_schema, self.watermark_us, self._fires = work, derived, watermark_us, fires
        self.kv = Overlay(work.kv)

    def finish(self) -> None:
        self.work.kv.write(self.kv.batch)
        panes = self.work.result.panes
        if len(panes) > 1:  # a table for each call: one is labelled and written at a fraction of the cost
            panes[:] = [pa.concat_tables(panes).combine_chunks()]

    def call(
        self,
        method: Callable[..., Any],
        key: Key,
        what: Any,
        bury: Callable[[str], None],
        *,
        time_us: int,
        timing: str,
        fired: tuple[Of, int] | None = None,
    ) -> list[tuple[int, Of]] | None:
        """Call the function; returns the timers that it set. None where it raised: nothing of the call counts."""
        own = Overlay(self.kv)
        state = State(own, self.cfs.state, key.encoded)
        late = {"time_us": time_us, "watermark_us": self.watermark_us, "now_us": self.work.now_us}
        timers = Timers(own, self.indices, key.encoded, key.row, **late, fired=fired, fires=self._fires)
        try:
            rows = self._rows(method(key.shown, what, state, timers), key, time_us)
            state.settle()
        except MemoryError:
            raise
        except Exception as error:  # the user's code may raise anything
            if _of_the_disk(error):
                raise
            bury("".join(traceback.format_exception(error)[-6:]))
            return None
        if len(rows):
            emitted = rows.append_column(TIMING, pa.array([timing] * len(rows), pa.string()))
            self.work.result.panes.append(emitted)
        self._touch(own, key, time_us, state.empty)
        self.kv.write(own.batch)
        return timers.fresh

    def _rows(self, found: Any, key: Key, time_us: int) -> pa.Table:
        """Return the function's rows with key and event time. Raises if a row does not fit `emits`."""
        emits = self.definition.emits.names
        if isinstance(found, str) or not isinstance(found, Iterable | None):
            raise TypeError(
                f"{found!r:.100} is no row: return a dict, a list of dicts, or None, or yield dicts"
            )
        rows = [] if found is None else [found] if isinstance(found, Mapping) else list(found)
        for row in rows:
            if not isinstance(row, Mapping):
                raise TypeError(f"{row!r:.100} is no row: return or yield dicts")
            unknown = [name for name in row if name not in emits]
            if unknown:
                raise ValueError(f"column {unknown[0]!r} is none of emits={emits}")
        ours = zip((*key.values, time_us), self.output_schema, strict=False)
        arrays = [pa.array([value] * len(rows), field.type) for value, field in ours]
        arrays += [_column([row.get(f.name) for row in rows], f) for f in self.definition.emits]
        return pa.table(arrays, schema=self.output_schema)

    # -- how long a key lives ---------------------------------------------------------------------------------------

    def _touch(self, kv: Overlay, key: Key, time_us: int, empty: bool) -> None:
        """Note how long the key's state is kept; a key without state is none."""
        known = kv.get(self.cfs.keys, key.encoded)
        ttl_us = self.definition.late_us
        if empty:
            if known is not None:
                kv.delete(self.cfs.keys, key.encoded)
                self.indices["event"].cancel(kv.batch, decode_i64(known, 8), key.encoded, Kind.END)
            return
        last_us = time_us if known is None else max(time_us, decode_i64(known))
        ends_us = min(last_us + ttl_us, END_OF_TIME_US) if known is None else decode_i64(known, 8)
        if known is None and ttl_us < UNBOUNDED_US:
            self.indices["event"].set(kv.batch, ends_us, key.encoded, Kind.END)
        value = encode_i64(last_us) + encode_i64(ends_us) + key.row
        if value != known:
            kv.put(self.cfs.keys, key.encoded, value)

    def follow_ttl(self) -> None:
        """File keys anew that expire earlier than they are filed, if `ttl` has changed."""
        emitted, ttl_us = encode_i64(self.definition.late_us), self.definition.late_us
        if self.kv.get(self.cfs.aux, TTL) == emitted:
            return
        self.kv.put(self.cfs.aux, TTL, emitted)
        if ttl_us >= UNBOUNDED_US:
            return
        for encoded, known in list(self.kv.scan(self.cfs.keys)):
            ends_us = decode_i64(known) + ttl_us
            if ends_us < decode_i64(known, 8):
                self.indices["event"].cancel(self.kv.batch, decode_i64(known, 8), encoded, Kind.END)
                self.indices["event"].set(self.kv.batch, ends_us, encoded, Kind.END)
                self.kv.put(self.cfs.keys, encoded, known[:8] + encode_i64(ends_us) + known[16:])

    def ends_us(self, encoded: bytes) -> int | None:
        """Return the time at which a key is checked next; None if it has no state."""
        known = self.kv.get(self.cfs.keys, encoded)
        return None if known is None else decode_i64(known, 8)

    def expire(self, at_us: int, encoded: bytes) -> None:
        """Expire a key whose time has come; one that was used since is filed anew."""
        known = self.kv.get(self.cfs.keys, encoded)
        if known is None or decode_i64(known, 8) != at_us:
            return
        self.indices["event"].cancel(self.kv.batch, at_us, encoded, Kind.END)
        later_us = decode_i64(known) + self.definition.late_us
        if later_us > at_us:
            self.indices["event"].set(self.kv.batch, later_us, encoded, Kind.END)
            self.kv.put(self.cfs.keys, encoded, known[:8] + encode_i64(later_us) + known[16:])
            return
        prefix = state_prefix(encoded)
        end = prefix_end(prefix)
        assert end is not None
        self.kv.delete_range(self.cfs.state, prefix, end)
        self.kv.delete(self.cfs.keys, encoded)


def _of_the_disk(error: Exception) -> bool:
    """True for an error of the disk, raised in this library as the function read its state; False for one of the function."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__", ""))
    return isinstance(error, StateError) or (isinstance(error, OSError) and module.startswith("windrow."))


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    fitted = fit(values, field.type)
    for why in fitted.misfits.values():
        raise ValueError(f"column {field.name!r} is to be {field.type}: {why}")
    return fitted.array
