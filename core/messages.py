"""Value types that all layers share: position, message, window, pane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, show_instant, to_datetime


class Position(NamedTuple):
    """Position of a message in its source: a total order inside one partition.

    source: e.g. a topic or a file
    partition, offset: ints; offsets must not decrease
    ordinal: distinguishes rows that were made from one record

    >>> Position("flights", 0, 17)
    Position(source='flights', partition=0, offset=17, ordinal=0)
    """

    source: str
    partition: int
    offset: int
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its fields and its position.

    payload: the fields by name, among them the event time and the keys
    position: a `Position`. Without one the embedded runner numbers messages as they come, and cannot recognize a redelivery

    >>> Message({"t": "2013-07-01 05:10Z", "k": "AA"}, Position("flights", 0, 17)).position.offset
    17
    """

    payload: Mapping[str, Any]
    position: Position | None = None


class Timing(StrEnum):
    """Time of a pane relative to the watermark passing the end of its window."""

    EARLY = "EARLY"
    ON_TIME = "ON_TIME"
    LATE = "LATE"


class Kind(StrEnum):
    """Effect of a pane on the ledger: adds a row, or retracts one that was added before."""

    INSERT = "INSERT"
    RETRACT = "RETRACT"


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open range `[start_us, end_us)` of event time, in microseconds since the epoch.

    start, end: the same as aware datetimes, clipped to the years that these can hold

    >>> Window(0, 3_600_000_000)
    [1970-01-01 00:00, 01:00)Z
    """

    start_us: int
    end_us: int

    @property
    def start(self) -> datetime:
        """Aware, UTC; clipped to the years that a datetime can hold."""
        return to_datetime(self.start_us)

    @property
    def end(self) -> datetime:
        """Aware, UTC; clipped to the years that a datetime can hold."""
        return to_datetime(self.end_us)

    def __repr__(self) -> str:
        if self.start_us == START_OF_TIME_US and self.end_us == END_OF_TIME_US:
            return "[global)"
        start, end = show_instant(self.start_us), show_instant(self.end_us)
        if end.startswith(start[:11]):
            end = end[11:]
        return f"[{start}, {end})Z"

    def __contains__(self, time_us: object) -> bool:
        return isinstance(time_us, int) and self.start_us <= time_us < self.end_us


@dataclass(frozen=True, slots=True, order=True)
class TupleWindow:
    """A range of sequence numbers of one key, `first` to `last`, both included; numbers start at 1.

    >>> TupleWindow(1, 3)
    #[1, 3]
    """

    first: int
    last: int

    def __repr__(self) -> str:
        return f"#[{self.first}, {self.last}]"


@dataclass(frozen=True, slots=True)
class Token:
    """Idempotence key of a sink: `job`, an identity that survives restarts, and `commit`, a number.

    >>> str(Token("job-1", 7))
    'job-1/7'
    """

    job: str
    commit: int

    def __str__(self) -> str:
        return f"{self.job}/{self.commit}"


@dataclass(frozen=True, slots=True)
class Pane:
    """One result of one (key, window). `pane["n"]` is an aggregate or a key.

    window: a `Window`, or a `TupleWindow`
    key, values: the keys and the aggregates, by name
    timing: "EARLY", "ON_TIME" or "LATE": when it was emitted, relative to the watermark passing the window's end
    index: counts the panes of the (key, window) from 0; a retraction has the index of the pane it retracts
    is_last: True only when no later pane is possible
    kind: "INSERT", or "RETRACT" for a retraction
    commit, token: of the commit that emitted it

    >>> pane = Pane(Window(0, 60_000_000), {"k": "AA"}, {"n": 2}, Timing.ON_TIME, 0)
    >>> pane["n"], pane["k"]
    (2, 'AA')
    >>> print(pane)
    [1970-01-01 00:00, 00:01)Z  AA  ON_TIME #0  n=2
    """

    window: Window | TupleWindow
    key: dict[str, Any]
    values: dict[str, Any]
    timing: Timing
    index: int
    is_last: bool = False
    kind: Kind = Kind.INSERT
    commit: int = -1
    token: Token | None = field(default=None, compare=False)

    def __getitem__(self, name: str) -> Any:
        return _field(name, self.values, self.key)

    def __str__(self) -> str:
        key = " ".join(str(v) for v in self.key.values())
        mark = "" if self.kind is Kind.INSERT else "  RETRACT"
        last = " last" if self.is_last else ""
        return f"{self.window!r}  {key}  {self.timing.value} #{self.index}{last}{mark}  {_shown(self.values)}"

    def _repr_html_(self) -> str:
        from windrow.core.notebook import of_items

        return of_items([self], 1)


@dataclass(frozen=True, slots=True)
class JoinedRow:
    """One row of an operator that has no windows of its own, such as a join. `row["price"]` is a column.

    values: the columns by name
    timing: of a join "EARLY" or "LATE" for matches, "ON_TIME" for rows that the watermark decides
    commit, token: of the commit that emitted it
    kind: "INSERT", or "RETRACT" for a retraction of an emitted row, with the values that it had
    index: how often a row of its message was emitted before; is_last: True if nothing can change it any more

    >>> row = JoinedRow({"order": 1, "parcels": None}, Timing.ON_TIME)
    >>> print(row)
    ON_TIME  order=1 parcels=None
    """

    values: dict[str, Any]
    timing: Timing
    commit: int = -1
    token: Token | None = field(default=None, compare=False)
    kind: Kind = Kind.INSERT
    index: int = 0
    is_last: bool = True

    def __getitem__(self, name: str) -> Any:
        return _field(name, self.values)

    def __str__(self) -> str:
        mark = "" if self.kind is Kind.INSERT else "  RETRACT"
        return f"{self.timing.value}{mark}  {_shown(self.values)}"

    def _repr_html_(self) -> str:
        from windrow.core.notebook import of_items

        return of_items([self], 1)


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """Window metadata as `get_windows` answers it: one window of one key.

    `first` and `last` are the first and last position in position order; `messages` counts all messages of the window;
    `values` holds the present results; `panes` counts the panes emitted so far.
    """

    window: Window | TupleWindow
    key: dict[str, Any]
    messages: int
    first: Position | None
    last: Position | None
    values: dict[str, Any]
    panes: int
    fired: bool

    def _repr_html_(self) -> str:
        from windrow.core.notebook import of_items

        return of_items([self], 1)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as `get_messages` answers it."""

    event_time_us: int
    position: Position
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be counted. It is never dropped silently.

    reason: "malformed", "null_key", "too_late", "out_of_retention", "aggregate_failed", "integer_overflow",
        "function_failed", "obsolete_window" or "skipped"
    detail: why, in words; of an error of yours the traceback
    position, event_time_us: of the message, where they are known
    payload: its fields as JSON, cut at 4096 characters
    commit: the commit that recorded it
    input: of a join, which input it came on
    operator: the name of the operator that could not count it; each operator of a job that takes a message judges it by itself

    >>> import tempfile, windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> with tempfile.TemporaryDirectory() as folder, counts.open(folder) as op:
    ...     op.add_message({"t": "yesterday"})
    ...     op.flush()
    ...     op.dead_letters()[0].reason
    'malformed'
    """

    reason: str
    detail: str
    position: Position | None
    event_time_us: int | None
    payload: str
    commit: int = -1
    input: str | None = None
    operator: str | None = None

    def _repr_html_(self) -> str:
        from windrow.core.notebook import of_items

        return of_items([self], 1)


#: Columns of tables of panes and rows that are attributes of one.
_ATTRIBUTES = {
    "window": ": it is .window of a pane",
    "pane": ": a pane or row has .timing, .index, .is_last and .kind",
    "commit": ": it is .commit",
}


def _field(name: str, *parts: Mapping[str, Any]) -> Any:
    """Return a column of a pane or row."""
    for part in parts:
        if name in part:
            return part[name]
    hint = _ATTRIBUTES.get(name, "")
    raise KeyError(f"{name!r} is none of {[column for part in reversed(parts) for column in part]}{hint}")


def _shown(values: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
