"""Queries that an open operator and a read state have in common: windows, messages, dead letters, and HTML for notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from windrow.checkpoint.truncation_summary import DeadLetterFile
from windrow.connectors.manifests import read_file
from windrow.core.logs import get_logger
from windrow.core.messages import DeadLetter, StoredMessage, TupleWindow, Window, WindowInfo
from windrow.core.notebook import MOST, cell, document, facts, notice, windows_timeline
from windrow.core.time import Instant, show_instant
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import to_letters
from windrow.operators.view import MESSAGES, WINDOWS, Query, View, stored

T = TypeVar("T")
_log = get_logger()


class Queries(ABC):
    """The queries on the windows and messages of a job."""

    @abstractmethod
    def _ask(self, table: str, operator: str | None, input: str | None, ask: Callable[[View], T]) -> T:
        """Return the answer of the view of an operator: the one named, or the one that has the input, or the table."""

    def get_windows(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        covering: bool = False,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> Sequence[WindowInfo]:
        """Return window metadata, sorted, of every retained window that overlaps the closed range `[start, end]`.

        These begin at `end` or before, and end after `start`. `covering`: only windows that hold all of the range.
        `key`: the key fields' values (one value, a tuple, or a mapping). Tuple windows take sequence numbers. `operator`: its
        name, in a job with several; by default the one that has `input`, or the last. `input`: the side of a join. Its tumbling
        and hopping windows are those that cover a kept message, a sliding one ends at a kept message, an unbounded one holds
        all, one of rows the newest.

        Raises `BadInstant` (WR116) where `start` is after `end`.
        """
        query = Query(start, end, key, input).checked(WINDOWS, covering)
        return self._ask(WINDOWS, operator, input, lambda view: view.windows(query))

    def get_messages(
        self,
        start: tuple[Instant, int] | Instant | Window | TupleWindow | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> list[StoredMessage]:
        """Kept messages from `(time, offset)` to `(time, offset)`, both inclusive, in key order; or those of a window.

        `start`: a time, a time and an offset among messages of that time, or a window of `get_windows`, without `end`.
        Joins keep messages, by `input`, and aggregates of the full-state design. `operator`: of a job with several, which; by
        default the one that has `input`, or the last that keeps messages. `key`: by that input's names. Raises
        `BadInstant` (WR116) where `start` is after `end`.
        """
        query = Query(start, end, key, input).checked(MESSAGES)
        tables = self._ask(MESSAGES, operator, input, lambda view: view.messages(query))
        return [message for rows in tables for message in stored(rows)]

    def _html(
        self,
        title: str,
        progress: Mapping[str, Any],
        watermarks: Mapping[str, int],
        definitions: Sequence[Definition],
    ) -> str:
        """Return the job for a notebook: its progress, and the newest windows of each operator that has windows of its own."""
        marks = "\n".join(f"{name}: {show_instant(us)}" for name, us in watermarks.items())
        parts = [f"<p><strong>{cell(title)}</strong></p>", facts({**progress, "watermark": marks})]
        for definition in definitions:
            if "windows" not in definition.tables or len(definition.inputs) > 1:
                continue
            infos = self.get_windows(operator=definition.name)
            newest = infos[-MOST:]
            count = f", the newest {len(newest)} of {len(infos):,}" if len(infos) > len(newest) else ""
            parts.append(f"<p>Windows of {cell(definition.name)}{count}</p>")
            parts.append(windows_timeline(newest) if newest else notice(0, 0, "window"))
        return document(*parts)


def letters_of(path: str, file: DeadLetterFile) -> list[DeadLetter]:
    """Return the dead letters of a shard in a commit."""
    table = letters_table(path, file)
    return [] if table is None else to_letters(table, file.commit)


def letters_table(path: str, file: DeadLetterFile) -> pa.Table | None:
    """Return the same as rows; none, and a warning, where nothing has the file any more."""
    try:
        return read_file(path)
    except FileNotFoundError:
        _log.warning("dead letters are gone", commit=file.commit, path=path, look="windrow verify")
        return None
