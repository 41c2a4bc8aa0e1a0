"""The oracle of a process function, in dicts and lists: it looks for all due timers anew after every call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from windrow.core.messages import Message
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us, to_datetime
from windrow.operators.oracle.arrow import of_type
from windrow.operators.oracle.cells import Key
from windrow.operators.oracle.one_input import OneInputOracle
from windrow.operators.process.definition import ProcessDefinition


class PlainTimers:
    """The timers of one key during a call."""

    def __init__(
        self, oracle: ProcessOracle, key: Key, time_us: int, now_us: int, fired: tuple[str, int] | None = None
    ) -> None:
        self._key, self._time_us, self._fired = key, time_us, fired
        self._ended = oracle.watermark_us == END_OF_TIME_US
        self._fires = hasattr(oracle.function, "on_timer")
        self.set_timers = dict(oracle.timers)
        self.of = None if fired is None else fired[0]
        self.time: datetime = to_datetime(time_us)
        self.now: datetime = to_datetime(now_us)
        reached = oracle.watermark_us
        self.watermark = None if reached == START_OF_TIME_US else to_datetime(reached)

    def set(self, at: Instant, of: str = "event") -> None:
        at_us = _checked(at, of)
        if not self._fires:
            raise TypeError("the function has no on_timer")
        if self._fired is not None and self._fired[0] == of and at_us <= self._fired[1]:
            raise ValueError("a timer sets one that is not later")
        if of == "event" and self._ended:
            return
        self.set_timers[of, at_us, self._key] = self._time_us

    def cancel(self, at: Instant, of: str = "event") -> None:
        self.set_timers.pop((of, _checked(at, of), self._key), None)


class ProcessOracle(OneInputOracle):
    """The expected behaviour of one `ProcessDefinition`; keys are comparable."""

    definition: ProcessDefinition

    def __init__(self, definition: ProcessDefinition) -> None:
        super().__init__(definition)
        function = definition.function
        self.function = function() if isinstance(function, type) else function
        #: By key: its state, and the last event time at which it was used.
        self.states: dict[Key, tuple[dict[str, Any], int]] = {}
        #: (kind, time, key) -> event time of the call that set it.
        self.timers: dict[tuple[str, int, Key], int] = {}

    def accept(self, message: Message, time_us: int, now_us: int) -> bool:
        key = self.key_of(message.payload)
        timing = "LATE" if self.is_late(time_us) else "EARLY"
        timers = PlainTimers(self, key, time_us, now_us)
        done = self._call(self.function.on_message, key, dict(message.payload), timers, time_us, timing)
        if not done:
            self.bury("function_failed", message, time_us)
        return done

    def pass_time(self, before_us: int, now_us: int) -> None:
        watermark_us = self.watermark_us
        while True:
            due = [(at, 0, key) for of, at, key in self.timers if of == "event" and at <= watermark_us]
            due += [(at, 1, key) for key, at in self._ends() if at < watermark_us]
            if not due:
                break
            at_us, ends, key = min(due)
            if ends:
                del self.states[key]
            else:
                self._fire("event", at_us, key, at_us, at_us < before_us, now_us)
        while due_now := sorted((at, key) for of, at, key in self.timers if of == "now" and at <= now_us):
            at_us, key = due_now[0]
            time_us = self.timers["now", at_us, key]
            if watermark_us not in (START_OF_TIME_US, END_OF_TIME_US):
                time_us = max(time_us, watermark_us)
            self._fire("now", at_us, key, time_us, time_us < watermark_us, now_us)

    def _ends(self) -> list[tuple[Key, int]]:
        if self.definition.retention.time_us is None:
            return []
        return [(key, last_us + self.definition.late_us) for key, (_, last_us) in self.states.items()]

    def _fire(self, of: str, at_us: int, key: Key, time_us: int, late: bool, now_us: int) -> None:
        del self.timers[of, at_us, key]
        timers = PlainTimers(self, key, time_us, now_us, (of, at_us))
        timing = "LATE" if late else "ON_TIME"
        if not self._call(self.function.on_timer, key, to_datetime(at_us), timers, time_us, timing):
            self.bury("function_failed", None)

    def _call(
        self, method: Callable[..., Any], key: Key, what: Any, timers: PlainTimers, time_us: int, timing: str
    ) -> bool:
        """Call the function; False where it raised, and nothing of the call counts."""
        kept, last_us = self.states.get(key, ({}, time_us))
        state = copy.deepcopy(kept)
        try:
            emitted = method(key[0] if len(key) == 1 else key, what, state, timers)
            rows = [] if emitted is None else [emitted] if isinstance(emitted, Mapping) else list(emitted)
            rows = [self._row(row) for row in rows]
            state = {_name(name): _kept(value) for name, value in state.items()}
        except Exception:
            return False
        self.timers = timers.set_timers
        if state:
            self.states[key] = (state, max(last_us, time_us))
        else:
            self.states.pop(key, None)
        ours = {
            **dict(zip(self.definition.by, key, strict=True)),
            self.definition.event_time: to_datetime(time_us),
        }
        for row in rows:
            self.emit_row(timing, {**ours, **row})
        return True

    def _row(self, row: Any) -> dict[str, Any]:
        """Return a row with all columns of `emits`, in their types. Raises if it does not fit."""
        emits = self.definition.emits
        if not isinstance(row, Mapping) or not set(row) <= set(emits.names):
            raise ValueError("no row")
        return {field.name: of_type(row.get(field.name), field.type) for field in emits}


def _checked(at: Instant, of: str) -> int:
    """Return a timer's time; raises beyond the valid years."""
    if of not in ("event", "now"):
        raise ValueError("no such kind")
    at_us = instant_us(at)
    if instant_us(to_datetime(at_us)) != at_us:
        raise ValueError("no such year")
    return at_us


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError("values are named by text")
    return str(_kept(name))


def _kept(value: Any) -> Any:
    """Return a value as it is read back; raises if it cannot be stored."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return value.encode().decode()
        case int() if -(2**63) <= value < 2**64:
            return value
        case bytearray():
            return bytes(value)
        case list() | tuple():
            return [_kept(one) for one in value]
        case dict():
            return {_kept(name): _kept(one) for name, one in value.items()}
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
    raise TypeError(f"{value!r} is not kept")
