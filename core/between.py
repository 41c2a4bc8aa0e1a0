"""Windows that another stream defines: `wr.between`, and the clock, which is such a stream. Seed 002 section 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import BadDuration, BadWindow
from windrow.core.expressions import Expr
from windrow.core.frames import CLOSED, check_one_of
from windrow.core.show import Raw, call
from windrow.core.time import Duration, Instant, duration_us, instant_us, show_duration

#: Anchors to a table of as many rows: `start`, `end`, and `obsolete` where it is promised.
SpanFunction: TypeAlias = Callable[[pa.Table], pa.Table]
Moment: TypeAlias = str | Expr | None


@dataclass(frozen=True, slots=True)
class Between:
    """Window of each anchor, by its start and end: columns of it, expressions over them, or a function of whole tables."""

    start: Moment = None
    end: Moment = None
    obsolete: Moment = None
    closed: str = "both"
    function: SpanFunction | None = field(default=None, compare=False)
    name: str = ""

    @property
    def moments(self) -> dict[str, str | Expr]:
        """The columns and expressions, by parameter; none for a function."""
        named = {"start": self.start, "end": self.end, "obsolete": self.obsolete}
        return {what: moment for what, moment in named.items() if moment is not None}

    @property
    def promises(self) -> bool:
        """True if anchors may say before which time no later window begins."""
        return self.function is not None or self.obsolete is not None

    def __repr__(self) -> str:
        closed = None if self.closed == "both" else self.closed
        if self.function is not None:
            return call("between", function=Raw(self.name), name=self.name, closed=closed)
        return call(
            "between", _shown(self.start), _shown(self.end), obsolete=_shown(self.obsolete), closed=closed
        )


@dataclass(frozen=True, slots=True)
class Ticks:
    """Anchors at multiples of a period of event time. Build it with `wr.sources.clock`."""

    period_us: int
    start_us: int | None = None

    def first_at(self, time_us: int) -> int:
        """Return the first tick that is not before a time."""
        if self.start_us is None:
            return -(-time_us // self.period_us) * self.period_us
        behind = max(time_us, self.start_us) - self.start_us
        return self.start_us + -(-behind // self.period_us) * self.period_us

    def __repr__(self) -> str:
        return call("sources.clock", show_duration(self.period_us), start=self.start_us)


def between(
    start: str | pc.Expression | None = None,
    end: str | pc.Expression | None = None,
    *,
    obsolete: str | pc.Expression | None = None,
    function: SpanFunction | None = None,
    name: str = "",
    closed: str = "both",
) -> Between:
    """Define a window for each anchor from the anchor's values; a `frame=` of `wr.Over` with `anchors=`.

    start, end: columns of the anchors that hold times, or expressions over their columns that give them
    obsolete: before that time no later anchor of the key will begin a window, so that the messages there can be evicted
    function: in the place of these: takes a table of anchors, gives one of as many rows, `start` and `end`, and `obsolete`
        where it is promised, timestamps or integers as event times are. Each row must follow from its own anchor alone
    name: of the function; the fingerprint has it: give another one when the function's meaning changes
    closed: which of the two times belong to the window: "both", "left", "right" or "neither"

    Raises `BadWindow` (WR105).

    >>> between("begin", "end", obsolete="begin")
    wr.between('begin', 'end', obsolete='begin')
    """
    check_one_of(closed, CLOSED, "closed")
    if function is not None:
        if not callable(function) or not name or any(m is not None for m in (start, end, obsolete)):
            raise BadWindow(
                f"between(function={function!r}, name={name!r}): a function of anchors has a name, and gives start, end and "
                "obsolete itself; use between(function=create, name='speech')"
            )
        return Between(closed=closed, function=function, name=name)
    if start is None or end is None:
        raise BadWindow(
            f"between({start!r}, {end!r}): a window has a start and an end, e.g. between('begin', 'end')"
        )
    return Between(_moment(start), _moment(end), None if obsolete is None else _moment(obsolete), closed)


def clock(period: Duration, *, start: Instant | None = None) -> Ticks:
    """Anchors at multiples of a period, for `anchors=` of `wr.Over`: a window every half second, whatever comes.

    period: how far they are apart in event time
    start: the first of them, from which the others count; default: multiples since 1970, from the first message on

    The watermark makes them, so that they do not depend on when the process ran. At `drain()` they end with the last message.
    Raises `BadDuration` (WR101).

    >>> clock("0.5 seconds")
    wr.sources.clock('500 ms')
    """
    period_us = duration_us(period, "period")
    if period_us <= 0:
        raise BadDuration(f"a clock with a period of {period!r}: use more than 0")
    return Ticks(period_us, None if start is None else instant_us(start, "start"))


def _moment(value: Any) -> str | Expr:
    if isinstance(value, str):
        return value
    if isinstance(value, pc.Expression):
        return Expr(value)
    raise BadWindow(f"between: {value!r} is no column: use its name, or an expression such as wr.col('t')")


def _shown(moment: Moment) -> Any:
    return Raw(moment) if isinstance(moment, Expr) else moment
