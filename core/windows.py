"""Window definitions: values that determine a message's windows. The assigners are in `operators/`.

Sources: seed 003 ("Window advancement"), seed 001 ("Window Option"); semantics "Assignment".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import pyarrow.compute as pc

from windrow.core.errors import BadWindow
from windrow.core.expressions import Expr, Expression
from windrow.core.show import Raw, call
from windrow.core.time import DAY_US, MINUTE_US, Duration, duration_us, show_duration
from windrow.core.zones import check_zone


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other: start = floor((t - offset) / size) * size + offset."""

    size_us: int
    offset_us: int = 0

    def __repr__(self) -> str:
        return call("tumbling", show_duration(self.size_us), offset=_nonzero(self.offset_us))


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size, a new one every hop; a message belongs to every window that covers its time."""

    size_us: int
    hop_us: int
    offset_us: int = 0

    def __repr__(self) -> str:
        return call(
            "hopping",
            show_duration(self.size_us),
            show_duration(self.hop_us),
            offset=_nonzero(self.offset_us),
            gaps=True if self.hop_us > self.size_us else None,
        )


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of `n` calendar units in a named time zone, each from so long after local midnight, by the clock, on."""

    unit: str
    n: int
    time_zone: str
    week_start: str = "monday"
    offset_us: int = 0

    def __repr__(self) -> str:
        size = self.unit if self.n == 1 else f"{self.n} {self.unit}s"
        week = self.week_start if self.week_start != "monday" else None
        offset = _nonzero(self.offset_us)
        return call("calendar", size, time_zone=self.time_zone, week_start=week, offset=offset)


@dataclass(frozen=True, slots=True)
class Tuples:
    """Windows of `size` messages of one key, a new one every `step` messages; numbers start at 1."""

    size: int
    step: int

    def __repr__(self) -> str:
        return call("tuples", self.size, step=None if self.step == self.size else self.step)


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of one key between two pauses: messages at most `gap` apart are one session, `[first, last + gap)`.

    gap: microseconds, or an expression that gives each message its own
    cut: sessions end where these windows do; None: nowhere.
    max_length_us: none is longer; the next message begins another one. None: however long.
    """

    gap: int | Expr
    cut: Tumbling | Calendar | None = None
    max_length_us: int | None = None

    @property
    def own_gap(self) -> Expr | None:
        """The expression of each message's own gap; None where all messages have one gap."""
        return self.gap if isinstance(self.gap, Expr) else None

    @property
    def sure_us(self) -> int:
        """The time by which any message at least extends its session: 0 where messages have their own gaps."""
        return 0 if isinstance(self.gap, Expr) else self.gap

    @property
    def gap_us(self) -> int:
        """The gap of all messages. Raises `BadWindow` where each has its own."""
        if isinstance(self.gap, Expr):
            raise BadWindow(
                f"{self!r}: here all messages have one gap, use for example wr.session('30 minutes')"
            )
        return self.gap

    def __repr__(self) -> str:
        gap = Raw(self.gap) if isinstance(self.gap, Expr) else show_duration(self.gap)
        longest = None if self.max_length_us is None else show_duration(self.max_length_us)
        return call("session", gap, cut=self.cut, max_length=longest)


@dataclass(frozen=True, slots=True)
class TupleSession:
    """Windows of one key between two pauses: at most `messages` messages of other keys lie between two of its own."""

    messages: int

    @property
    def gap_us(self) -> int:
        """The maximum distance, by number, between two consecutive messages of a session."""
        return self.messages + 1

    def __repr__(self) -> str:
        return call("session", messages=self.messages)


@dataclass(frozen=True, slots=True)
class Global:
    """One window for all time."""

    def __repr__(self) -> str:
        return call("global_window")


@dataclass(frozen=True, slots=True)
class Inherited:
    """In a chain: the window of a row is the one that it came from."""

    def __repr__(self) -> str:
        return call("inherited")


@dataclass(frozen=True, slots=True)
class Sliding:
    """For joins: the messages from `before_us` before the moment to `after_us` after it; None is without bound."""

    before_us: int | None
    after_us: int | None = 0
    closed: str = "both"

    def __repr__(self) -> str:
        before = _forever if self.before_us is None else show_duration(self.before_us)
        after = _forever if self.after_us is None else (_nonzero(self.after_us))
        return call("sliding", before, after, closed=None if self.closed == "both" else self.closed).replace(
            ", None", ""
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """For joins: the newest `n` messages, of one key or of the whole input."""

    n: int
    per: str = "key"

    def __repr__(self) -> str:
        return call("rows", self.n, per=None if self.per == "key" else self.per)


_forever = Raw("wr.forever")
WindowSpec = Tumbling | Hopping | Calendar | Tuples | Session | TupleSession | Global | Inherited
JoinWindowSpec = Tumbling | Hopping | Sliding | Rows | Session

#: No session ends later, however long its gap: the watermark has to pass it when event time is over.
LAST_END_US = (1 << 62) - 1
#: The units of the calendar, and how many days each has at least.
_CALENDAR_UNITS = {"day": 1, "week": 7, "month": 28, "quarter": 90, "year": 365}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Seed 003's matrix asks for "small" and "large": undeclared, a window is small up to this span.
SMALL_SPAN_US = MINUTE_US
SMALL_TUPLES = 1000
#: A message may be in so many windows: each of them is state, and work of its own.
MOST_WINDOWS = 10_000


def _nonzero(us: int) -> str | None:
    return show_duration(us) if us else None


def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> Tumbling:
    """Windows of one size, side by side: `[k * size + offset, (k + 1) * size + offset)` of event time.

    size: a duration, e.g. "1 hour"
    offset: where they begin, from the epoch on; taken modulo the size

    Raises `BadWindow` (WR105) where the size is not positive, `BadDuration` (WR101).

    >>> tumbling("1 hour")
    wr.tumbling('1 hour')
    """
    size_us = duration_us(size, "window size")
    if size_us <= 0:
        raise BadWindow(f"window size {size!r} is not positive: use for example wr.tumbling('1 minute')")
    return Tumbling(size_us, duration_us(offset, "window offset") % size_us)


def hopping(size: Duration, hop: Duration, *, offset: Duration = "0 seconds", gaps: bool = False) -> Hopping:
    """Windows of one size that start every `hop`, so that a message is in several. The hop need not divide the size.

    size, hop: durations, e.g. "24 hours" and "1 hour"
    offset: where they begin, from the epoch on; taken modulo the hop
    gaps: allow a hop larger than the size, which leaves times that belong to no window

    A message may be in 10,000 windows at most. Raises `BadWindow` (WR105), `BadDuration` (WR101).

    >>> hopping("10 seconds", "2 seconds")
    wr.hopping('10 seconds', '2 seconds')
    """
    size_us, hop_us = duration_us(size, "window size"), duration_us(hop, "window hop")
    if size_us <= 0 or hop_us <= 0:
        raise BadWindow(
            f"window size {size!r} and hop {hop!r} must both be positive: use for example wr.hopping('1 hour', '10 minutes')"
        )
    if hop_us > size_us and not gaps:
        raise BadWindow(
            f"hop {hop!r} is larger than size {size!r}: messages between two windows would belong to none; "
            "make the hop smaller or ask for it with gaps=True"
        )
    _check_most(-(-size_us // hop_us), f"of size {size!r} and hop {hop!r}", "a larger hop")
    return Hopping(size_us, hop_us, duration_us(offset, "window offset") % hop_us)


def calendar(
    size: str, *, time_zone: str, week_start: str = "monday", offset: Duration = "0 seconds"
) -> Calendar:
    """Windows of the calendar of a time zone. A day with a change of clocks has 23 or 25 hours.

    A window begins at the first instant at which clocks of the zone show its local time, or one after it. So windows follow
    each other without gap or overlap, also where clocks are set back over midnight.

    size: "day", "week", "month", "quarter" or "year", or several: "2 weeks"
    time_zone: an IANA name, e.g. "Europe/Berlin"
    week_start: the day on which weeks begin
    offset: how long after local midnight windows begin, by the clock: `"6 hours"` is a business day from 06:00 to 06:00. It is
        shorter than the window, and may be negative

    Raises `BadWindow` (WR105) where one of these is not known, `BadDuration` (WR101).

    >>> calendar("day", time_zone="America/New_York")
    wr.calendar('day', time_zone='America/New_York')
    """
    count, _, unit = size.strip().lower().rpartition(" ")
    unit = unit.removesuffix("s")
    if unit not in _CALENDAR_UNITS or (count and not count.isdigit()) or not 1 <= int(count or 1) <= 9999:
        raise BadWindow(
            f"calendar window {size!r}: use a number to 9999 and one of {', '.join(_CALENDAR_UNITS)}"
        )
    check_zone(time_zone, BadWindow)
    if week_start not in _WEEKDAYS:
        raise BadWindow(f"week_start {week_start!r}: use one of {', '.join(_WEEKDAYS)}")
    offset_us, least_us = (
        duration_us(offset, "window offset"),
        int(count or 1) * _CALENDAR_UNITS[unit] * DAY_US,
    )
    if abs(offset_us) >= least_us:
        longest = show_duration(least_us)
        raise BadWindow(f"offset {offset!r} of a calendar window of {size!r}: use less than {longest!r}")
    return Calendar(unit, int(count or 1), time_zone, week_start, offset_us)


def tuples(size: int, *, step: int | None = None) -> Tuples:
    """Windows of so many messages of each key, numbered from 1: tumbling, hopping with `step`, sliding with `step=1`.

    size: how many messages
    step: how many messages later the next window begins; by default `size`, and no more than it

    A window fires when it is full; a partial one is seen by early panes and queries. A message may be in 10,000 windows at
    most. Raises `BadWindow` (WR105).

    >>> tuples(3, step=1)
    wr.tuples(3, step=1)
    """
    step = size if step is None else step
    for n in (size, step):
        if isinstance(n, bool) or not isinstance(n, int) or n <= 0:
            raise BadWindow(
                f"tuple window of size {size!r} and step {step!r}: both must be positive, whole numbers of messages, "
                "as in wr.tuples(3)"
            )
    if step > size:
        raise BadWindow(
            f"step {step} is larger than size {size}: messages between two windows would belong to none"
        )
    _check_most(-(-size // step), f"of size {size} and step {step}", "a larger step")
    return Tuples(size, step)


@overload
def session(
    gap: Duration | Expression,
    *,
    cut: Tumbling | Calendar | None = None,
    max_length: Duration | None = None,
) -> Session: ...
@overload
def session(*, messages: int) -> TupleSession: ...
def session(
    gap: Duration | Expression | None = None,
    *,
    cut: Tumbling | Calendar | None = None,
    max_length: Duration | None = None,
    messages: int | None = None,
) -> Session | TupleSession:
    """Define windows between two pauses of a key: messages at most `gap` of event time apart are one session.

    gap: a duration, e.g. "30 minutes": the window is `[first, last + gap)`; messages exactly `gap` apart are in one. Or an
        expression of each message's own gap, as a duration or as integer microseconds: `[first, the furthest t + gap)`
    cut: wr.tumbling or wr.calendar: sessions never cross a boundary of these windows, and end at it
    max_length: a duration; a session ends so long after its first message at the latest, and the next message begins another.
        For definitions that keep messages (wr.median, functions of tables), since one that comes late may move every cut
    messages: in the place of a gap: at most so many messages of other keys lie between two of a session, whose window is that
        of the numbers of its first and its last message among all

    Sessions grow, and a message between two of them merges them: a pane of a window that no longer exists is retracted.
    Raises `BadWindow` (WR105) where the gap is not positive, or `cut` is none of these, `BadDuration` (WR101).

    >>> session("30 minutes")
    wr.session('30 minutes')
    """
    if messages is not None or gap is None:
        if (gap, cut, max_length) != (None, None, None) or messages is None:
            raise BadWindow(
                f"a session of gap={gap!r}, cut={cut!r}, max_length={max_length!r}, messages={messages!r}: give it a gap, or "
                "messages alone, as in wr.session('30 minutes') or wr.session(messages=100)"
            )
        if isinstance(messages, bool) or not isinstance(messages, int) or messages < 0:
            raise BadWindow(f"messages={messages!r} of a session: use a whole number, 0 or more")
        return TupleSession(messages)
    gap_us = _gap(gap)
    if cut is not None and not isinstance(cut, Tumbling | Calendar):
        raise BadWindow(
            f"cut={cut!r}: use wr.tumbling or wr.calendar, as in cut=wr.calendar('day', time_zone='UTC')"
        )
    if max_length is None:
        return Session(gap_us, cut)
    longest_us = duration_us(max_length, "max_length of sessions")
    if longest_us <= 0:
        raise BadWindow(f"max_length={max_length!r} is not positive: use for example max_length='4 hours'")
    return Session(gap_us, cut, min(longest_us, LAST_END_US))


def _gap(gap: Any) -> int | Expr:
    if isinstance(gap, pc.Expression):
        return Expr(gap)
    gap_us = min(duration_us(gap, "session gap"), LAST_END_US)
    if gap_us <= 0:
        raise BadWindow(f"session gap {gap!r} is not positive: use for example wr.session('30 minutes')")
    return gap_us


def _check_most(windows: int, what: str, remedy: str) -> None:
    """Refuse a definition under which each message is in too many windows."""
    if windows > MOST_WINDOWS:
        raise BadWindow(
            f"a window {what} puts each message into {windows:,} windows, and at most are {MOST_WINDOWS:,}: give it {remedy}, "
            "or a smaller size"
        )


def sliding(before: Duration | Any, after: Duration | Any = "0 seconds", *, closed: str = "both") -> Sliding:
    """Define the window of a join's input around a moment `m`: `[m - before, m + after]` of event time.

    before, after: durations; `wr.forever` is no bound
    closed: which edges belong to it: "both", "left" (the old one), "right" or "neither"

    It is `RANGE before PRECEDING` of SQL. Raises `BadWindow` (WR105), `BadDuration` (WR101).

    >>> sliding("2 minutes")
    wr.sliding('2 minutes')
    """
    sides = []
    for name, value in (("before", before), ("after", after)):
        us = None if repr(value) == "wr.forever" else duration_us(value, f"sliding window's {name}")
        if us is not None and us < 0:
            raise BadWindow(f"sliding window's {name} {value!r} is negative: use '0 seconds' or more")
        sides.append(us)
    if closed not in ("both", "left", "right", "neither"):
        raise BadWindow(f"closed={closed!r}: use 'both', 'left', 'right' or 'neither'")
    return Sliding(sides[0], sides[1], closed)


def unbounded() -> Sliding:
    """Define the window of a join's input that holds all messages up to the moment: `UNBOUNDED PRECEDING` of SQL, the default.

    >>> unbounded()
    wr.sliding(wr.forever)
    """
    return Sliding(None)


def rows(n: int, *, per: str = "key") -> Rows:
    """Define the window of a join's input that holds its newest messages: `ROWS n PRECEDING` of SQL. Newest is by arrival.

    n: how many
    per: "key" counts the messages of one key (of all, where the join has no keys), "input" those of the whole input, which
        then needs one shard

    Raises `BadWindow` (WR105).

    >>> rows(3)
    wr.rows(3)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n <= 0:
        raise BadWindow(f"a window of {n!r} rows: use a whole number, 1 or more")
    if per not in ("key", "input"):
        raise BadWindow(f"rows per={per!r}: use 'key' or 'input'")
    return Rows(n, per)


def global_window() -> Global:
    """Define one window for the job's whole life. It ends when the job is drained, and needs `retention=wr.forever` or sizes.

    >>> global_window()
    wr.global_window()
    """
    return Global()


def inherited() -> Inherited:
    """Keep the window of the row that an upstream operator emitted, of any kind; rows of one window and key are
    aggregated together. For an aggregate that takes the rows of another one.

    >>> inherited()
    wr.inherited()
    """
    return Inherited()


def span_is_small(window: WindowSpec) -> bool:
    """True if seed 003's matrix counts the window as small, where nothing was declared."""
    match window:
        case Tumbling(size_us=size_us) | Hopping(size_us=size_us):
            return size_us <= SMALL_SPAN_US
        case Tuples(size=size):
            return size <= SMALL_TUPLES
        case _:
            return False
