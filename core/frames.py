"""Frames: the messages around a message that an aggregation of `wr.Over` covers. Seed 002; SQL's ROWS and RANGE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from windrow.core.errors import BadWindow
from windrow.core.policy import Forever
from windrow.core.show import Raw, call
from windrow.core.time import Duration, duration_us, show_duration
from windrow.core.windows import Sliding, unbounded

CLOSED = ("both", "left", "right", "neither")
PARTIAL = ("skip", "emit", "null")
ORDERS = ("event_time", "position")


@dataclass(frozen=True, slots=True)
class RowsBetween:
    """The messages from `start` to `end`, counted from the message itself, which is 0; start None: from the first on.

    peers: also messages of the same event time that come after it, as SQL's `RANGE UNBOUNDED PRECEDING` has them
    """

    start: int | None
    end: int
    closed: str = "both"
    partial: str = "skip"
    order: str = "event_time"
    peers: bool = False

    @property
    def low(self) -> int | None:
        """The first that belongs to it; None is without bound."""
        return self.start if self.start is None else self.start + (self.closed in ("right", "neither"))

    @property
    def high(self) -> int:
        """The last that belongs to it."""
        return self.end - (self.closed in ("left", "neither"))

    def __repr__(self) -> str:
        if self.peers:
            return call("range_between", Raw("wr.forever"), 0)
        start = Raw("wr.forever") if self.start is None else self.start
        order = None if self.order == "event_time" else self.order
        return call("rows_between", start, self.end, **_options(self.closed, self.partial), order=order)


@dataclass(frozen=True, slots=True)
class RangeBetween:
    """The messages whose event time is from `start_us` to `end_us` later than that of the message itself."""

    start_us: int
    end_us: int
    closed: str = "both"

    @property
    def low_us(self) -> int:
        """The first microsecond that belongs to it."""
        return self.start_us + (self.closed in ("right", "neither"))

    @property
    def high_us(self) -> int:
        """The last microsecond that belongs to it."""
        return self.end_us - (self.closed in ("left", "neither"))

    def __repr__(self) -> str:
        ends = (show_duration(self.start_us), show_duration(self.end_us))
        return call("range_between", *ends, **_options(self.closed))


Frame = RowsBetween | RangeBetween
#: `wr.unbounded`, as it is named and not called, or `wr.forever`.
Unbounded: TypeAlias = Callable[[], Sliding] | Forever


def _options(closed: str, partial: str = "skip") -> dict[str, str | None]:
    return {
        "closed": None if closed == "both" else closed,
        "partial": None if partial == "skip" else partial,
    }


def rows_between(
    start: int | Unbounded,
    end: int,
    *,
    closed: str = "both",
    partial: str = "skip",
    order: str = "event_time",
) -> RowsBetween:
    """Define a frame of so many messages of a key around each message: `ROWS BETWEEN` of SQL.

    start, end: the first and the last of them, counted from the message itself: -2 is the second before it, 0 itself, 1 the
        next one. `wr.unbounded` or `wr.forever` as the start, with end 0, is a running result
    closed: which of the two belong to it: "both", "left", "right" or "neither"
    partial: of a message around which there are not so many: "skip" (no row for it), "emit" (of those there are), "null"
    order: of the messages, "event_time" (ties by position), or "position": as they come, so that no watermark is
        waited for

    A start after the end is swapped with it. Raises `BadWindow` (WR105).

    >>> rows_between(-2, 0)
    wr.rows_between(-2, 0)
    """
    check_one_of(closed, CLOSED, "closed")
    check_one_of(partial, PARTIAL, "partial")
    check_one_of(order, ORDERS, "order")
    if is_unbounded(end):
        raise BadWindow(
            f"rows_between({_name(start)}, {_name(end)}): each row would wait for the end of the input; say for how many "
            f"messages, e.g. rows_between({_name(start)}, 2)"
        )
    _whole(end)
    if is_unbounded(start):
        if end != 0 or closed != "both":
            raise BadWindow(
                f"rows_between(wr.forever, {end}, closed={closed!r}): what has no first message is a running result, up to the "
                "message itself; use rows_between(wr.forever, 0)"
            )
        return RowsBetween(None, 0, order=order)
    low, high = sorted((_whole(start), end))
    frame = RowsBetween(low, high, closed, partial, order)
    assert frame.low is not None
    if frame.low > frame.high:
        raise BadWindow(f"{frame!r} holds no message: widen it, or use closed='both'")
    return frame


def range_between(
    start: Duration | int | Unbounded, end: Duration | int = 0, *, closed: str = "both"
) -> RangeBetween | RowsBetween:
    """Define a frame of the messages of a key near each message in event time: `RANGE BETWEEN` of SQL.

    start, end: durations, negative ones before the message, e.g. "-2 seconds" and "1 second"; 0 is the message's own time.
        `wr.unbounded` as the start, with end 0, is a running result in which messages of one time all count: SQL's `RANGE
        UNBOUNDED PRECEDING`. It is kept as long as `ttl=` says
    closed: which of these two times belong to it: "both", "left", "right" or "neither"

    Messages of equal times are in each other's frames. A start after the end is swapped with it. Raises `BadWindow` (WR105),
    `BadDuration` (WR101).

    >>> range_between("-2 seconds", "1 second")
    wr.range_between('-2 seconds', '1 second')
    """
    check_one_of(closed, CLOSED, "closed")
    if is_unbounded(end):
        raise BadWindow(
            f"range_between({_name(start)}, {_name(end)}): each row would wait for the end of the input; say for how long, "
            f"e.g. range_between({_name(start)}, '1 minute')"
        )
    if is_unbounded(start):
        if _moment(end) != 0 or closed != "both":
            raise BadWindow(
                f"range_between({_name(start)}, {end!r}, closed={closed!r}): what has no first message is a running "
                "result, up to the message's own time; use range_between(wr.unbounded, 0)"
            )
        return RowsBetween(None, 0, peers=True)
    low, high = sorted((_moment(start), _moment(end)))
    frame = RangeBetween(low, high, closed)
    if frame.low_us > frame.high_us:
        raise BadWindow(f"{frame!r} holds no time: widen it, or use closed='both'")
    return frame


def is_unbounded(end: Any) -> bool:
    """True for a value that makes a frame unbounded."""
    return end is unbounded or isinstance(end, Forever)


def _name(end: Any) -> str:
    return "wr.unbounded" if end is unbounded else repr(end)


def make_frame(value: Any) -> Frame:
    """Parse a frame as users write it: a frame, a pair of its ends, or a number of messages or a time up to this one."""
    if isinstance(value, RowsBetween | RangeBetween):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        counted = [isinstance(end, int) and not isinstance(end, bool) for end in value]
        if all(counted) or (is_unbounded(value[0]) and counted[1]):
            return rows_between(*value)
        return range_between(*value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise BadWindow(f"a frame of {value!r} messages: use 1 or more, or wr.rows_between(start, end)")
        return rows_between(1 - value, 0)
    if isinstance(value, str | timedelta):
        past_us = duration_us(value, "frame")
        if past_us < 0:
            raise BadWindow(f"a frame of {value!r}: use 0 or more, or wr.range_between(start, end)")
        return RangeBetween(-past_us, 0)
    raise BadWindow(
        f"{value!r} is no frame: use wr.rows_between(-2, 0), wr.range_between('-2 seconds', '1 second'), a number of messages "
        "or a duration"
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadWindow(
            f"rows_between: {value!r} is no number of messages: use a whole one, e.g. wr.rows_between(-2, 0); times are for "
            "wr.range_between"
        )
    if abs(value) > _MOST_ROWS:
        raise BadWindow(f"rows_between: {value!r} messages are too many: use at most {_MOST_ROWS:_}")
    return value


def _moment(value: Any) -> int:
    """Microseconds from the message on; a bare 0 is its own time."""
    return 0 if value == 0 and not isinstance(value, bool | str) else duration_us(value, "range_between")


def check_one_of(value: Any, known: tuple[str, ...], what: str) -> None:
    """Raise for a value that is not one of the known words."""
    if value not in known:
        raise BadWindow(f"{what}={value!r}: use one of {', '.join(map(repr, known))}")


#: State keeps so many messages of each key.
_MOST_ROWS = 1_000_000
