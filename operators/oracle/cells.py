"""State of the oracle: messages, and their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.core.messages import Position, TupleWindow, Window
from windrow.core.time import START_OF_TIME_US
from windrow.operators.oracle.aggregates import is_nan, same

Key = tuple[Any, ...]


@dataclass
class Taken:
    """A message that was counted."""

    time_us: int
    position: Position
    payload: dict[str, Any]
    arguments: dict[str, tuple[Any, ...] | None]
    step: int = 0  # which step took it, where that counts
    sign: int = 1  # -1: it retracts an earlier, equal one
    gap_us: int = 0  # its own, where sessions have such
    number: int = 0  # among all messages, where these are numbered


@dataclass
class Cell:
    """One window of one key."""

    key: Key
    window: Window | TupleWindow
    messages: list[Taken] = field(default_factory=list)  # in order of arrival
    pending: list[Taken] = field(default_factory=list)  # new since the last pane was judged
    panes: int = 0
    since_us: int | None = None  # `now` at the first of these, if a trigger needs it
    sent: dict[str, Any] | None = None  # values of the last pane
    emitted_in: int = 0  # the step of the last pane
    fired: bool = False  # an ON_TIME pane was judged
    ended: bool = False  # a pane marked `is_last` was sent

    @property
    def remaining(self) -> list[Taken]:
        """The messages that were not retracted, in order of arrival."""
        return remaining(self.messages)

    @property
    def first_us(self) -> int:
        return self.window.first if isinstance(self.window, TupleWindow) else self.window.start_us

    @property
    def end_us(self) -> int:
        return self.window.last if isinstance(self.window, TupleWindow) else self.window.end_us


@dataclass
class SessionCell(Cell):
    """One session of one key."""

    window: Window = field(default_factory=lambda: Window(0, 1))
    reach_us: int = START_OF_TIME_US  # where it would end if sessions had no longest length
    current: bool = True  # the watermark has not passed its end since it has that end
    emitted: list[EmittedPane] = field(default_factory=list)  # panes of it, or of parts of it, not retracted


@dataclass(frozen=True)
class EmittedPane:
    """A pane that was emitted and not retracted."""

    window: Window
    values: dict[str, Any]
    index: int


def remaining(messages: Sequence[Taken]) -> list[Taken]:
    """Return the messages that no later one retracts."""
    left: list[Taken] = []
    for message in messages:
        if message.sign > 0:
            left.append(message)
        else:
            left.pop(next(i for i, one in enumerate(left) if same(one.payload, message.payload)))
    return left


def place(cell: Cell) -> tuple[Any, ...]:
    """Return the order of panes: window start, window end, key; a null key field first, NaN last."""
    key = [(0, 0) if v is None else (2, 0) if is_nan(v) else (1, v) for v in cell.key]
    return (cell.first_us, cell.end_us, key)


_NAN = float("nan")


def key_field(value: Any) -> Any:
    """Return a key field with one NaN and one zero."""
    return _NAN if is_nan(value) else value + 0.0 if isinstance(value, float) else value
