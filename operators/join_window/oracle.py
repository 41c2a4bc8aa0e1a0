"""The oracle of join windows, in lists and loops. Seed 003 "Adding Message to Join Window Operator".

Windows take messages as those of an aggregate do, and early, full and late are judged in the same way. Only the first window
that takes a message emits it, and its rows are the messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windrow.core.messages import JoinedRow, Message, Position, Timing, TupleWindow, Window
from windrow.core.time import to_datetime
from windrow.operators.aggregate.oracle import AggregateOracle
from windrow.operators.aggregate.sessions.oracle import SessionOracle, TupleSessionOracle
from windrow.operators.join_window.definition import JoinWindowDefinition
from windrow.operators.oracle.cells import Cell, Key, SessionCell, Taken
from windrow.operators.oracle.times import shown


class JoinWindowOracle(AggregateOracle):
    """The expected behaviour of one `JoinWindowDefinition` over windows of time or of messages."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing._changed(agg={}))
        #: The window that emits a message.
        self._first: dict[Position, Window | TupleWindow] = {}

    def redefine(self, definition: Any) -> None:
        super().redefine(definition.windowing._changed(agg={}))

    def _windows_for(self, message: Taken, key: Key, watermark_us: int) -> list[Window | TupleWindow] | None:
        windows = super()._windows_for(message, key, watermark_us)
        if windows:
            self._first[message.position] = windows[0]
        return windows

    def _file(self, key: Key, window: Window | TupleWindow, new: list[Taken], now_us: int) -> Cell | None:
        cell = super()._file(key, window, new, now_us)
        if cell is not None:
            cell.pending = [m for m in cell.pending if self._first[m.position] == window]
        return cell

    def _emit(self, cell: Cell, timing: Timing, *args: Any, **more: Any) -> list[Any]:
        new = list(cell.pending)
        emitted = super()._emit(cell, timing, *args, **more)
        return _rows(self.definition, shown(cell.window), new, timing) if emitted else []

    def kept(self, input: str) -> list[Message] | None:
        retention = self.definition.retention
        sizes = retention.windows is not None or retention.messages is not None
        # Messages of time windows evicted by count may stay for windows of other keys.
        return None if sizes and not self.definition.tuple_window else _messages(self._cells.values())

    def forwarded(self, row: Any) -> dict[str, Any]:
        return _forwarded(row)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()


class SessionJoinWindowOracle(SessionOracle):
    """The expected behaviour of a `JoinWindowDefinition` over sessions, which emit messages that no part has emitted."""

    def __init__(self, definition: JoinWindowDefinition) -> None:
        super().__init__(definition.windowing._changed(agg={}))

    def redefine(self, definition: Any) -> None:
        super().redefine(definition.windowing._changed(agg={}))

    def _emit_session(
        self, cell: SessionCell, timing: Timing, is_last: bool, closing: bool = False, always: bool = False
    ) -> list[Any]:
        new = list(cell.pending)
        emitted = super()._emit_session(cell, timing, is_last, closing, always)
        return _rows(self.definition, self._shown(cell.window), new, timing) if emitted else []

    def kept(self, input: str) -> list[Message] | None:
        windows = [info.window for info in self.windows()]
        return _messages(cell for cell in self._sorted() if self._shown(cell.window) in windows)

    def forwarded(self, row: Any) -> dict[str, Any]:
        return _forwarded(row)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()


class TupleSessionJoinWindowOracle(SessionJoinWindowOracle, TupleSessionOracle):
    """The same over sessions by messages of others."""


def _rows(definition: Any, window: Window | TupleWindow, new: list[Taken], timing: Timing) -> list[JoinedRow]:
    """Return the messages of a window, in the order of their positions."""
    return [
        JoinedRow({"window": window, **m.payload, definition.event_time: to_datetime(m.time_us)}, timing)
        for m in sorted(new, key=lambda m: m.position)
    ]


def _messages(cells: Iterable[Cell]) -> list[Message]:
    """Return the messages of these windows, each once."""
    by_position: Mapping[Position, Message] = {
        m.position: Message(m.payload, m.position) for cell in cells for m in cell.messages
    }
    return [by_position[position] for position in sorted(by_position)]


def _forwarded(row: JoinedRow) -> dict[str, Any]:
    return {name: value for name, value in row.values.items() if name != "window"}
