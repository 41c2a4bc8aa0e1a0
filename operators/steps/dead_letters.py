"""Dead letters of a step: every message that could not be counted, with its reason. Never silent, and bounded.

All are counted; of each step at most `limit` are kept whole, with payloads cut at `PAYLOAD_LIMIT` bytes. Messages of a run are
steps of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.inputs import UNNAMED
from windrow.core.messages import DeadLetter, Position
from windrow.core.show import json_text
from windrow.core.time import show_instant
from windrow.core.types import is_text
from windrow.operators.steps.columns import ARRIVED, OFFSET, ORDINAL, PARTITION, RAW, SOURCE

PAYLOAD_LIMIT = 4096

MALFORMED = "malformed"
NULL_KEY = "null_key"
TOO_LATE = "too_late"
OUT_OF_RETENTION = "out_of_retention"
AGGREGATE_FAILED = "aggregate_failed"
INTEGER_OVERFLOW = "integer_overflow"
FUNCTION_FAILED = "function_failed"
OBSOLETE_WINDOW = "obsolete_window"
SKIPPED = "skipped"

SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("source", pa.string()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("event_time_us", pa.int64()),
        pa.field("payload", pa.string()),
        pa.field("input", pa.string()),  # of a join
    ]
)


#: Gives the error of each of these rows, with their event times.
Detail = Callable[[pa.Table, Sequence[int | None]], Sequence[str]]


def late_details(words: str, watermark_us: int | IntArray, rows: IntArray) -> Detail:
    """Return the details of late rows, by index: why, and the watermark, which is one or that of each row."""

    def details(_: pa.Table, times: Sequence[int | None]) -> list[str]:
        watermarks = (
            [watermark_us] * len(times) if isinstance(watermark_us, int) else watermark_us[rows].tolist()
        )
        return [f"{words}; the watermark is {show_instant(us)}Z" for us in watermarks[: len(times)]]

    return details


class DeadLetters:
    """Collector of the dead letters of one step."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: The input whose messages come, if an operator has several.
        self.input: str | None = None
        #: True in a run of messages: dead letters are kept, and emitted, message by message.
        self.of_run = False
        self._rows: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self.counts.values())

    def add_rows(
        self,
        reason: str,
        detail: str | Sequence[str] | Detail,
        table: pa.Table,
        rows: IntArray,
        times: pa.Array | None,
    ) -> None:
        """Add rows of a slice, by index. detail: of all of them, or of each, or a function of those that are kept."""
        if len(rows) == 0:
            return
        room = self._room(reason, len(rows))
        if room == 0:
            return
        kept_rows = table.take(pa.array(rows[:room]))
        stamps = [None] * room if times is None else times.take(pa.array(rows[:room])).to_pylist()
        values = {name: _values(kept_rows.column(name)) for name in kept_rows.column_names}
        user = [c for c in kept_rows.column_names if not c.startswith("__")]
        if callable(detail):
            detail = detail(kept_rows, stamps)
        details = [detail] * room if isinstance(detail, str) else detail[:room]
        for i, time_us in enumerate(stamps):
            row = {name: column[i] for name, column in values.items()}
            payload = {name: row[name] for name in user}
            self._rows.append(
                {
                    "reason": reason,
                    "detail": details[i],
                    "source": row.get(SOURCE),
                    "partition": row.get(PARTITION),
                    "offset": row.get(OFFSET),
                    "ordinal": row.get(ORDINAL),
                    "event_time_us": time_us,
                    "payload": row[RAW] if row.get(RAW) is not None else show_payload(payload),
                    "input": self.input,
                    ARRIVED: row.get(ARRIVED, 0),
                }
            )

    def add(
        self,
        reason: str,
        detail: str,
        payload: Any,
        *,
        position: tuple[Any, ...] | None = None,
        count: int = 1,
        arrived: int = 0,
    ) -> None:
        """Add one dead letter that is no row of a slice: a pane that failed, or a message that never became a row.

        arrived: which message of a run it is of
        """
        if self._room(reason, count) == 0:
            return
        source, partition, offset, ordinal = position or (None, None, None, None)
        self._rows.append(
            {
                "reason": reason,
                "detail": detail,
                "source": source,
                "partition": partition,
                "offset": offset,
                "ordinal": ordinal,
                "event_time_us": None,
                "payload": show_payload(payload),
                "input": self.input,
                ARRIVED: arrived,
            }
        )

    def _room(self, reason: str, count: int) -> int:
        self.counts[reason] = self.counts.get(reason, 0) + count
        if self.of_run:
            return count  # a step has few dead letters here; the excess is cut at the end
        return max(0, min(count, self._limit - len(self._rows)))

    def table(self) -> pa.Table | None:
        """Return the dead letters in position order; those without a position, of failed panes, come last."""
        rows = sorted(self._rows, key=_place)
        if self.of_run:
            by_message = groupby(sorted(rows, key=itemgetter(ARRIVED)), key=itemgetter(ARRIVED))
            rows = [row for _, of_message in by_message for row in islice(of_message, self._limit)]
        return pa.Table.from_pylist(rows, SCHEMA) if rows else None


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return Python values; a time beyond Python's range comes as an integer."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_value(scalar) for scalar in column]
    return values


def _value(one: pa.Scalar) -> Any:
    """Return a value that Python may not hold: text with its bytes escaped, times as numbers."""
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        pass
    if pa.types.is_dictionary(one.type):
        return _value(one.dictionary[one.index.as_py()])
    if is_text(one.type):
        return (
            pa.array([one])
            .cast(pa.large_string())
            .view(pa.large_binary())[0]
            .as_py()
            .decode(errors="backslashreplace")
        )
    if pa.types.is_temporal(one.type):
        return one.value
    return f"a value of {one.type} that cannot be shown"


def payloads(table: pa.Table) -> list[str]:
    """Return the rows of a table as payloads."""
    user = [name for name in table.column_names if not name.startswith("__")]
    values = [_values(table.column(name)) for name in user]
    return [show_payload(dict(zip(user, (v[i] for v in values), strict=True))) for i in range(len(table))]


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    if row["offset"] is None:
        return (True,)
    return (False, row["source"], row["partition"], row["offset"], row["ordinal"] or 0)


def show_payload(payload: Any) -> str:
    text = json_text(payload)
    return text if len(text) <= PAYLOAD_LIMIT else text[:PAYLOAD_LIMIT] + "..."


def of_operator(dead_letters: pa.Table, name: str) -> pa.Table:
    """Return dead letters with the name of the operator that wrote them; a chain's have it already."""
    if "operator" in dead_letters.column_names:
        return dead_letters
    return dead_letters.append_column("operator", pa.array([name] * len(dead_letters), pa.string()))


def to_letters(table: pa.Table, commit: int) -> list[DeadLetter]:
    """Return the rows of `table` as values."""
    values = []
    for row in table.to_pylist():
        position = None
        if row["offset"] is not None:
            position = Position(row["source"], row["partition"], row["offset"], row["ordinal"] or 0)
        emitted = (row["reason"], row["detail"], position, row["event_time_us"], row["payload"])
        values.append(DeadLetter(*emitted, commit, row.get("input"), row.get("operator")))
    return values


def letters_by_input(dead_letters: pa.Table | None) -> pa.Table | None:
    """Return dead letters with the input's prefix removed from their sources; inputs are in a column of their own."""
    if dead_letters is None:
        return None
    sources = [
        None if source is None else source.removeprefix(f"{name or UNNAMED}:")
        for source, name in zip(
            *(dead_letters.column(c).to_pylist() for c in ("source", "input")), strict=True
        )
    ]
    where = dead_letters.column_names.index("source")
    return dead_letters.set_column(where, "source", pa.array(sources, pa.string()))
