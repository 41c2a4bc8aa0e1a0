"""From a transcript's plain values to messages, instants and expectations; what is unknown is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from windrow.core.messages import Kind, Message, Position, Timing, TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, duration_us, instant_us, to_datetime
from windrow.core.windows import Tuples
from windrow.operators.aggregate.definition import AggregateDefinition


class TranscriptError(AssertionError):
    """The scenario does not go as written, or is not written as it must be."""


@dataclass(frozen=True)
class PaneRow:
    window: Window | TupleWindow
    key: dict[str, Any]
    values: dict[str, Any]
    timing: Timing
    index: int | None
    last: bool
    kind: Kind


@dataclass(frozen=True)
class DeadLetterRow:
    reason: str
    offset: int | None


@dataclass(frozen=True)
class WindowRow:
    window: Window | TupleWindow
    key: dict[str, Any]
    messages: int | None
    values: dict[str, Any] | None
    panes: int | None
    fired: bool | None


@dataclass
class Action:
    """One thing that is done, and what must come of it."""

    kind: str
    label: str = ""
    messages: list[Message] = field(default_factory=list)
    us: int = 0
    expected: list[PaneRow] = field(default_factory=list)
    expected_dead: list[DeadLetterRow] = field(default_factory=list)
    windows: list[WindowRow] | None = None


@dataclass(frozen=True)
class Scenario:
    name: str
    definition: AggregateDefinition
    start_us: int
    actions: list[Action]
    depends_on_batching: str


_SCENARIO = ("name", "source", "aggregate", "starts", "depends_on_batching", "must_fail", "steps")
_BARE = ("timeout", "drain", "restart")


def parse(body: Mapping[str, Any], names: Mapping[str, Any]) -> Scenario:
    """The scenario, or `TranscriptError` naming what is wrong with it."""
    name = str(body.get("name"))
    try:
        _known(body, _SCENARIO, ("name", "aggregate", "steps"))
        made = _definition(body["aggregate"], names)
        start_us = _instant(body.get("starts", 0))
        steps = _Steps(made, start_us)
        for number, step in enumerate(_list(body["steps"]), 1):
            steps.add(number, step)
        reason = body.get("depends_on_batching", "")
        if not isinstance(reason, str):
            raise TranscriptError(f"depends_on_batching takes the reason, not {reason!r}")
    except TranscriptError as error:
        raise TranscriptError(f"{name}: {error}") from error
    return Scenario(name, made, start_us, steps.actions, reason)


class _Steps:
    """Collects actions; what is expected is hung on the action before it."""

    def __init__(self, made: AggregateDefinition, start_us: int) -> None:
        self._definition = made
        self._now_us = start_us
        self._offset = 0
        self._seen: set[str] = set()
        self.actions: list[Action] = []

    def add(self, number: int, step: Any) -> None:
        if isinstance(step, str) and step in _BARE:
            self._act(Action(step, f"step {number}, {step}"))
            return
        if not isinstance(step, Mapping) or len(step) != 1:
            raise TranscriptError(f"step {number} is {step!r}: use one of {_BARE} or a mapping with one key")
        ((kind, value),) = step.items()
        label = f"step {number}, {kind}"
        match kind:
            case "add":
                self._act(Action("add", label, messages=[self._message(row) for row in _list(value)]))
            case "watermark":
                if self._definition.watermark.kind != "explicit":
                    raise TranscriptError(f"{label}: the watermark of the definition is not wr.explicit()")
                self._act(Action("watermark", label, us=_instant(value)))
            case "now":
                self._act(Action("now", label, us=self._clock(value)))
            case "expect":
                self._last(kind, label).expected = [self._pane(row) for row in _list(value)]
            case "expect_dead":
                self._last(kind, label).expected_dead = [_letter(row) for row in _list(value)]
            case "windows":
                self._last(kind, label).windows = [self._window_info(row) for row in _list(value)]
            case _:
                raise TranscriptError(f"step {number}: unknown key {kind!r}")

    def _act(self, action: Action) -> None:
        self.actions.append(action)
        self._seen = set()

    def _last(self, kind: str, label: str) -> Action:
        if not self.actions:
            raise TranscriptError(f"{label}: nothing was done yet")
        if kind in self._seen:
            raise TranscriptError(f"{label}: there is one already for this action")
        self._seen.add(kind)
        return self.actions[-1]

    def _clock(self, value: Any) -> int:
        """By how much to move the clock."""
        relative = isinstance(value, str) and value.startswith("+")
        by_us = duration_us(value[1:]) if relative else _instant(value) - self._now_us
        if by_us <= 0:
            raise TranscriptError(f"now: {value!r} does not move the clock forward")
        self._now_us += by_us
        return by_us

    def _message(self, row: Any) -> Message:
        if not isinstance(row, Mapping):
            raise TranscriptError(f"a message is a mapping, not {row!r}")
        payload = {str(name): value for name, value in row.items() if name != "_at"}
        column = self._definition.event_time
        if column in payload:
            payload[column] = _event_time(payload[column])
        position = Position("transcript", 0, self._offset)
        if "_at" in row:
            position = Position(*row["_at"])
        else:
            self._offset += 1
        return Message(payload, position)

    def _pane(self, row: Any) -> PaneRow:
        allowed = ("window", "key", "values", "timing", "index", "last", "kind")
        _known(row, allowed, ("window", "values", "timing", *self._key_if_any()))
        return PaneRow(
            window=self._window(row["window"]),
            key=self._key(row.get("key")),
            values=self._values(row["values"]),
            timing=Timing(_one_of(row["timing"], [t.value for t in Timing])),
            index=row.get("index"),
            last=bool(row.get("last", False)),
            kind=Kind(_one_of(row.get("kind", "INSERT"), [k.value for k in Kind])),
        )

    def _window_info(self, row: Any) -> WindowRow:
        allowed = ("window", "key", "messages", "values", "panes", "fired")
        _known(row, allowed, ("window", *self._key_if_any()))
        return WindowRow(
            window=self._window(row["window"]),
            key=self._key(row.get("key")),
            messages=row.get("messages"),
            values=self._values(row["values"]) if "values" in row else None,
            panes=row.get("panes"),
            fired=row.get("fired"),
        )

    def _key_if_any(self) -> tuple[str, ...]:
        return ("key",) if self._definition.by else ()

    def _key(self, value: Any) -> dict[str, Any]:
        """A scalar where there is one key column, a list where there are several."""
        columns = self._definition.by
        fields = [value] if len(columns) == 1 else [] if value is None else _list(value)
        if len(fields) != len(columns):
            raise TranscriptError(f"key {value!r} does not fit the key columns {columns!r}")
        return dict(zip(columns, fields, strict=True))

    def _values(self, value: Any) -> dict[str, Any]:
        _known(value, tuple(self._definition.agg), tuple(self._definition.agg))
        return {name: value[name] for name in self._definition.agg}

    def _window(self, value: Any) -> Window | TupleWindow:
        if value == "global":
            return Window(START_OF_TIME_US, END_OF_TIME_US)
        if not isinstance(value, list) or len(value) != 2:
            raise TranscriptError(f"window {value!r}: use [start, end] or global")
        if isinstance(self._definition.window, Tuples):
            return TupleWindow(*value)
        return Window(_instant(value[0]), _instant(value[1]))


def _letter(row: Any) -> DeadLetterRow:
    _known(row, ("reason", "offset"), ("reason",))
    return DeadLetterRow(str(row["reason"]), row.get("offset"))


def _definition(text: Any, names: Mapping[str, Any]) -> AggregateDefinition:
    if not isinstance(text, str):
        raise TranscriptError(f"aggregate is {text!r}: use an expression such as wr.Aggregate(...)")
    try:
        made = eval(f"({text})", {"wr": _namespace(), **names})
    except Exception as error:  # whatever the author's expression raises
        raise TranscriptError(f"aggregate: {error}") from error
    if not isinstance(made, AggregateDefinition):
        raise TranscriptError(f"aggregate makes {made!r}: use wr.Aggregate(...)")
    return made


def _namespace() -> Any:
    """What `wr` is: the package itself, which an import here would point up to."""
    return sys.modules[__name__.partition(".")[0]]


def _known(row: Any, allowed: Sequence[str], required: Sequence[str]) -> None:
    if not isinstance(row, Mapping):
        raise TranscriptError(f"{row!r} is not a mapping with the keys {', '.join(allowed)}")
    for name in row:
        if name not in allowed:
            raise TranscriptError(f"unknown key {name!r}: use {', '.join(allowed)}")
    for name in required:
        if name not in row:
            raise TranscriptError(f"missing key {name!r} in {dict(row)!r}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TranscriptError(f"{value!r} is not a list")
    return value


def _one_of(value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise TranscriptError(f"{value!r}: use one of {', '.join(allowed)}")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text_instant(value: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _instant(value: Any) -> int:
    """Microseconds of seconds, ISO text with a zone, or `end of time`."""
    if value == "end of time":
        return END_OF_TIME_US
    if _is_number(value):
        time_us: int = round(value * 1_000_000)
        return time_us
    moment = _text_instant(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise TranscriptError(f"{value!r} is no instant: use seconds since the epoch or ISO text with a zone")
    return instant_us(moment)


def _event_time(value: Any) -> Any:
    """What a message carries: a datetime, microseconds where that is too far for one, else as written."""
    if isinstance(value, str):
        return _text_instant(value) or value
    if not _is_number(value):
        return value
    time_us: int = round(value * 1_000_000)
    moment = to_datetime(time_us)
    return moment if instant_us(moment.astimezone(UTC)) == time_us else time_us
