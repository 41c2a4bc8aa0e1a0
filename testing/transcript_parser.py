"""Parser of transcripts: from plain values to messages, instants and expectations; unknown keys are errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from windrow.core.messages import (
    DeadLetter,
    Kind,
    Message,
    Pane,
    Position,
    Timing,
    TupleWindow,
    Window,
    WindowInfo,
)
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, duration_us, instant_us, to_datetime
from windrow.operators.operator import Definition
from windrow.testing.ledger import values_equal


class TranscriptError(AssertionError):
    """The scenario does not go as written, or is not written as it must be."""


#: A window as it may be meant: of time, or of messages.
Windows = tuple[Window | TupleWindow, ...]


@dataclass(frozen=True)
class PaneRow:
    """A pane that is expected."""

    windows: Windows
    key: dict[str, Any]
    values: dict[str, Any]
    timing: Timing
    index: int | None
    last: bool
    kind: Kind

    def differs(self, pane: Pane) -> Iterator[str]:
        if pane.window not in self.windows:
            yield f"window {pane.window!r} instead of {self.windows[0]!r}"
        if not values_equal(self.key, pane.key):
            yield f"key {pane.key!r} instead of {self.key!r}"
        if self.kind != pane.kind:
            yield f"kind {pane.kind.value} instead of {self.kind.value}"
        if self.timing != pane.timing:
            yield f"timing {pane.timing.value} instead of {self.timing.value}"
        if not values_equal(self.values, pane.values):
            yield f"values {pane.values!r} instead of {self.values!r}"
        if self.index is not None and self.index != pane.index:
            yield f"index {pane.index} instead of {self.index}"
        if self.last != pane.is_last or (pane.kind is Kind.RETRACT and pane.is_last):
            yield f"is_last {pane.is_last} instead of {self.last}"


@dataclass(frozen=True)
class ListedRow:
    """A row that is expected, as the values of some columns."""

    timing: Timing
    values: dict[str, Any]

    def differs(self, row: Any) -> Iterator[str]:
        if self.timing != row.timing:
            yield f"timing {row.timing.value} instead of {self.timing.value}"
        found = {name: row.values.get(name) for name in self.values}
        if not values_equal(self.values, found):
            yield f"values {found!r} instead of {self.values!r}"


@dataclass(frozen=True)
class DeadLetterRow:
    reason: str
    offset: int | None
    input: str | None

    def differs(self, letter: DeadLetter) -> Iterator[str]:
        if self.reason != letter.reason:
            yield f"reason {letter.reason!r} instead of {self.reason!r}"
        if self.offset is not None and (letter.position is None or self.offset != letter.position.offset):
            yield f"position {letter.position!r} instead of offset {self.offset}"
        if self.input is not None and self.input != letter.input:
            yield f"input {letter.input!r} instead of {self.input!r}"


@dataclass(frozen=True)
class WindowRow:
    windows: Windows
    key: dict[str, Any]
    messages: int | None
    values: dict[str, Any] | None
    panes: int | None
    fired: bool | None

    def differs(self, info: WindowInfo) -> Iterator[str]:
        if info.window not in self.windows:
            yield f"window {info.window!r} instead of {self.windows[0]!r}"
        if not values_equal(self.key, info.key):
            yield f"key {info.key!r} instead of {self.key!r}"
        for name in ("messages", "values", "panes", "fired"):
            wanted, got = getattr(self, name), getattr(info, name)
            if wanted is not None and not values_equal(wanted, got):
                yield f"{name} {got!r} instead of {wanted!r}"


@dataclass
class Action:
    """An action of a transcript, and its expected effects. messages: each with the name of its input."""

    kind: str
    label: str = ""
    messages: list[tuple[str, Message]] = field(default_factory=list)
    us: int = 0
    input: str | None = None
    expected: list[PaneRow | ListedRow] = field(default_factory=list)
    expected_dead: list[DeadLetterRow] = field(default_factory=list)
    windows: list[WindowRow] | None = None
    kept: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    name: str
    definition: Definition
    start_us: int
    actions: list[Action]
    depends_on_batching: str
    columns: tuple[str, ...] | None


_SCENARIO = ("name", "source", "operator", "columns", "starts", "depends_on_batching", "must_fail", "steps")
_BARE = ("timeout", "drain", "restart")


def parse(body: Mapping[str, Any], names: Mapping[str, Any]) -> Scenario:
    """Parse a scenario; raise `TranscriptError` naming what is wrong with it."""
    name = str(body.get("name"))
    try:
        _known(body, _SCENARIO, ("name", "operator", "steps"))
        made = _definition(body["operator"], names)
        start_us = _instant(body.get("starts", 0))
        columns = tuple(map(str, _list(body["columns"]))) if "columns" in body else None
        steps = _Steps(made, start_us, columns)
        for number, step in enumerate(_list(body["steps"]), 1):
            steps.add(number, step)
        reason = body.get("depends_on_batching", "")
        if not isinstance(reason, str):
            raise TranscriptError(f"depends_on_batching takes the reason, not {reason!r}")
    except TranscriptError as error:
        raise TranscriptError(f"{name}: {error}") from error
    return Scenario(name, made, start_us, steps.actions, reason, columns)


class _Steps:
    """A collector of actions; an expectation belongs to the action before it."""

    def __init__(self, definition: Definition, start_us: int, columns: tuple[str, ...] | None) -> None:
        self._definition, self._columns = definition, columns
        self._now_us = start_us
        self._offsets = {input.name: 0 for input in definition.inputs}
        self._times = {input.name: input.event_time for input in definition.inputs}
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
                self._act(Action("add", label, messages=list(self._messages(value))))
            case "watermark":
                if any(input.watermark.kind != "explicit" for input in self._definition.inputs):
                    raise TranscriptError(f"{label}: the watermark of the definition is not wr.explicit()")
                self._act(self._watermark(label, value))
            case "now":
                self._act(Action("now", label, us=self._clock(value)))
            case "expect":
                self._last(kind, label).expected = [self._row(row) for row in _list(value)]
            case "expect_dead":
                self._last(kind, label).expected_dead = [self._letter(row) for row in _list(value)]
            case "windows":
                self._last(kind, label).windows = [self._window_info(row) for row in _list(value)]
            case "kept":
                _known(value, tuple(self._offsets), ())
                self._last(kind, label).kept = {name: _list(kept) for name, kept in value.items()}
            case _:
                raise TranscriptError(f"step {number}: unknown key {kind!r}")

    def _watermark(self, label: str, value: Any) -> Action:
        if not isinstance(value, Mapping):
            return Action("watermark", label, us=_instant(value))
        _known(value, tuple(self._offsets), ())
        if len(value) != 1:
            raise TranscriptError(f"{label}: {value!r} names several inputs: move one at a time")
        ((name, at),) = value.items()
        return Action("watermark", label, us=_instant(at), input=name)

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
        """Return by how much to move the clock."""
        relative = isinstance(value, str) and value.startswith("+")
        by_us = duration_us(value[1:]) if relative else _instant(value) - self._now_us
        if by_us <= 0:
            raise TranscriptError(f"now: {value!r} does not move the clock forward")
        self._now_us += by_us
        return by_us

    # -- messages ---------------------------------------------------------------------------------------------------

    def _messages(self, value: Any) -> Iterator[tuple[str, Message]]:
        """Yield each message with its input. Offsets count up from 0 by input."""
        if self._definition.by_input:
            _known(value, tuple(self._offsets), ())
        else:
            value = {self._definition.inputs[0].name: value}
        for name, rows in value.items():
            for row in _list(rows):
                yield name, self._message(name, row)

    def _message(self, name: str, row: Any) -> Message:
        if not isinstance(row, Mapping):
            raise TranscriptError(f"a message is a mapping, not {row!r}")
        payload = {str(column): value for column, value in row.items() if column != "_at"}
        if self._times[name] in payload:
            payload[self._times[name]] = _event_time(payload[self._times[name]])
        position = Position("transcript", 0, self._offsets[name])
        if "_at" in row:
            position = Position(*row["_at"])
        else:
            self._offsets[name] += 1
        return Message(payload, position)

    # -- what is expected -------------------------------------------------------------------------------------------

    def _row(self, row: Any) -> PaneRow | ListedRow:
        if self._columns is None:
            return self._pane(row)
        timing, *values = _list(row)
        if len(values) != len(self._columns):
            raise TranscriptError(f"row {row!r} does not fit the columns {self._columns!r}")
        listed = zip(self._columns, values, strict=True)
        times = self._times.values()
        return ListedRow(_timing(timing), {c: _event_time(v) if c in times else v for c, v in listed})

    def _pane(self, row: Any) -> PaneRow:
        allowed = ("window", "key", "values", "timing", "index", "last", "kind")
        _known(row, allowed, ("window", "values", "timing", *self._key_if_any()))
        return PaneRow(
            windows=self._windows(row["window"]),
            key=self._key(row.get("key")),
            values=self._values(row["values"]),
            timing=_timing(row["timing"]),
            index=row.get("index"),
            last=bool(row.get("last", False)),
            kind=Kind(_one_of(row.get("kind", "INSERT"), [k.value for k in Kind])),
        )

    def _letter(self, row: Any) -> DeadLetterRow:
        if isinstance(row, list) and len(row) == 3:
            return DeadLetterRow(str(row[1]), row[2], str(row[0]))
        _known(row, ("reason", "offset", "input"), ("reason",))
        return DeadLetterRow(str(row["reason"]), row.get("offset"), row.get("input"))

    def _window_info(self, row: Any) -> WindowRow:
        allowed = ("window", "key", "messages", "values", "panes", "fired")
        _known(row, allowed, ("window", *self._key_if_any()))
        return WindowRow(
            windows=self._windows(row["window"]),
            key=self._key(row.get("key")),
            messages=row.get("messages"),
            values=self._values(row["values"]) if "values" in row else None,
            panes=row.get("panes"),
            fired=row.get("fired"),
        )

    def _key_if_any(self) -> tuple[str, ...]:
        return ("key",) if self._definition.by else ()

    def _key(self, value: Any) -> dict[str, Any]:
        """Parse a key: a scalar where there is one key column, a list where there are several."""
        columns = self._definition.by
        fields = [value] if len(columns) == 1 else [] if value is None else _list(value)
        if len(fields) != len(columns):
            raise TranscriptError(f"key {value!r} does not fit the key columns {columns!r}")
        return dict(zip(columns, fields, strict=True))

    def _values(self, value: Any) -> dict[str, Any]:
        """Return all emitted columns except the keys."""
        emitted = self._definition.output_columns
        if emitted is None:
            raise TranscriptError(
                f"rows of {self._definition.name!r} are no panes: name columns, and write them as lists"
            )
        names = tuple(name for name in emitted if name not in self._definition.by)
        _known(value, names, names)
        return {name: value[name] for name in names}

    def _windows(self, value: Any) -> Windows:
        if value == "global":
            return (Window(START_OF_TIME_US, END_OF_TIME_US),)
        if not isinstance(value, list) or len(value) != 2:
            raise TranscriptError(f"window {value!r}: use [start, end] or global")
        return Window(_instant(value[0]), _instant(value[1])), TupleWindow(*value)


def _timing(value: Any) -> Timing:
    return Timing(_one_of(value, [t.value for t in Timing]))


def _definition(text: Any, names: Mapping[str, Any]) -> Definition:
    if not isinstance(text, str):
        raise TranscriptError(f"operator is {text!r}: use an expression such as wr.Aggregate(...)")
    try:
        made = eval(f"({text})", {"wr": _namespace(), **names})
    except Exception as error:  # whatever the author's expression raises
        raise TranscriptError(f"operator: {error}") from error
    if not isinstance(made, Definition):
        raise TranscriptError(f"operator makes {made!r}: use wr.Aggregate(...), wr.Join(...), wr.chain(...)")
    return made


def _namespace() -> Any:
    """Return the package `wr`, which an import here would point up to."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _text_instant(value: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _instant(value: Any) -> int:
    """Parse an instant to microseconds: seconds, ISO text with a zone, or `end of time`."""
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
    """Parse an event time: a datetime, microseconds where that is too far for one, else as written."""
    if isinstance(value, str):
        return _text_instant(value) or value
    if not _is_number(value):
        return value
    time_us: int = round(value * 1_000_000)
    moment = to_datetime(time_us)
    return moment if instant_us(moment.astimezone(UTC)) == time_us else time_us
