"""Temporal operators: Allen's thirteen relations between two messages of a rule, as values.

A relation compares the message of the pattern that has it with that of another pattern, or with a time. Seed 004, "Temporal
Operators". `core/temporal.py` computes with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from windrow.core.errors import BadRelation
from windrow.core.policy import UNBOUNDED_US, Forever, NegativeForever
from windrow.core.show import Raw, call
from windrow.core.time import Duration, duration_us, instant_us, show_duration, show_instant

#: `wr.forever` as a distance; `-wr.forever` is its negative.
INFINITE_US = UNBOUNDED_US

#: Number of distances of each operator.
_ARITY: dict[str, tuple[int, ...]] = {
    "after": (0, 1, 2),
    "before": (0, 1, 2),
    "coincides": (0, 1, 2),
    "during": (0, 1, 2, 4),
    "includes": (0, 1, 2, 4),
    "finishes": (0, 1),
    "finished_by": (0, 1),
    "meets": (0, 1),
    "met_by": (0, 1),
    "overlaps": (0, 1, 2),
    "overlapped_by": (0, 1, 2),
    "starts": (0, 1),
    "started_by": (0, 1),
}
THIRTEEN = tuple(_ARITY)
#: Operators that also compare with a time, and whose distances are one range, in either order.
OF_TIMES = ("after", "before", "coincides")
_ONE_RANGE = ("after", "before")

_DATE = re.compile(r"\d{4}-")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")


@dataclass(frozen=True, slots=True)
class Relation:
    """A temporal operator between the message of a pattern and another: `wr.after("fire", 0, "10 seconds")`.

    `~` is its complement; where a time is null neither holds.
    """

    operator: str
    #: A binding, a time column `binding.column`, or an instant in microseconds.
    other: str | int
    #: In microseconds; those of "after" and "before" in order.
    distances: tuple[int, ...] = ()
    #: A time column of the pattern itself, in place of its interval.
    this: str | None = None
    negated: bool = False
    #: Distance of a time column from the message that has it.
    bound: tuple[int, int] | None = None

    def __invert__(self) -> Relation:
        return replace(self, negated=not self.negated)

    @property
    def binding(self) -> str | None:
        """The binding of the other message; None for an instant."""
        return None if isinstance(self.other, int) else self.other.partition(".")[0]

    @property
    def column(self) -> str | None:
        """The time column of the other message; None where its interval is compared."""
        return None if isinstance(self.other, int) else self.other.partition(".")[2] or None

    def __repr__(self) -> str:
        other = show_instant(self.other) + "Z" if isinstance(self.other, int) else self.other
        bound = None if self.bound is None else tuple(show_duration(us) for us in self.bound)
        text = call(self.operator, other, *map(_shown, self.distances), this=self.this, bound=bound)
        return f"~{text}" if self.negated else text


def _shown(distance_us: int) -> Any:
    if abs(distance_us) == INFINITE_US:
        return Raw("wr.forever" if distance_us > 0 else "-wr.forever")
    return show_duration(distance_us) if distance_us else 0


def relation(
    operator: str,
    other: str | datetime,
    distances: tuple[Any, ...],
    this: str | None,
    bound: tuple[Duration | int, Duration | int] | None,
) -> Relation:
    """Check the user's definition of a temporal operator. Raises `BadRelation` (WR118)."""
    text = f"wr.{operator}({', '.join(map(repr, (other, *distances)))})"
    if isinstance(other, datetime) or (isinstance(other, str) and _DATE.match(other)):
        target: str | int = instant_us(other, "other")
    elif isinstance(other, str) and _NAME.fullmatch(other):
        target = other
    else:
        raise BadRelation(
            f"{text}: other={other!r} is no binding: name the other pattern, as in wr.{operator}('fire', ...), a time column "
            "of it, 'fire.deadline', or a datetime; a trigger that waits is wr.delay('10 seconds')"
        )
    timed = isinstance(target, int) or "." in target or this is not None
    if timed and operator not in OF_TIMES:
        raise BadRelation(
            f"{text} compares intervals, and a time column or a datetime is a point: use wr.after, wr.before or wr.coincides"
        )
    if this is not None and not (isinstance(this, str) and _NAME.fullmatch(this) and "." not in this):
        raise BadRelation(f"{text}: this={this!r}: name a time column of the pattern itself, e.g. 'deadline'")
    reach = None if bound is None else _bound(bound, text, timed)
    return Relation(operator, target, _distances(operator, distances, text), this, bound=reach)


def _distances(operator: str, values: tuple[Any, ...], text: str) -> tuple[int, ...]:
    counts = _ARITY[operator]
    if len(values) not in counts:
        listed = ", ".join(map(str, counts[:-1]))
        raise BadRelation(f"{text} has {len(values)} distances: use {listed} or {counts[-1]}")
    ranged = operator in _ONE_RANGE
    distances = [_distance(distance, text) for distance in values]
    if ranged:
        distances.sort()
        if distances[:1] == [INFINITE_US] or distances[1:] == [-INFINITE_US]:
            raise BadRelation(f"{text} is never true: use a range such as 0, '10 seconds'")
        return tuple(distances)
    if any(us < 0 for us in distances):
        raise BadRelation(
            f"{text} has a negative distance, which only wr.after and wr.before have: use 0 or more"
        )
    pairs = [] if operator == "coincides" else list(zip(distances[::2], distances[1::2], strict=False))
    if any(low > high for low, high in pairs):
        raise BadRelation(
            f"{text} has a least distance above the largest, and is never true: turn them round"
        )
    return tuple(distances)


def _distance(value: Any, text: str) -> int:
    if isinstance(value, Forever | NegativeForever):
        return INFINITE_US if isinstance(value, Forever) else -INFINITE_US
    if isinstance(value, str | timedelta):
        return duration_us(value, "distance")
    if value == 0 and not isinstance(value, bool):
        return 0
    raise BadRelation(
        f"{text}: {value!r} is no distance: use a duration such as '10 seconds', 0, wr.forever or -wr.forever"
    )


def _bound(value: Any, text: str, timed: bool) -> tuple[int, int]:
    if not timed or not isinstance(value, tuple) or len(value) != 2:
        raise BadRelation(
            f"{text}: bound={value!r}: say how far a time column lies from its own message, bound=('-1 hour', '1 hour')"
        )
    low_us, high_us = (_distance(end, text) for end in value)
    if low_us > high_us:
        raise BadRelation(f"{text}: bound={value!r} ends before it begins: turn it round")
    return low_us, high_us


class TemporalOperator(Protocol):
    """A function that makes a `Relation`: `other` is a binding, `binding.column`, or a datetime."""

    def __call__(
        self,
        other: str | datetime,
        *distances: Duration | int | Forever | NegativeForever,
        this: str | None = None,
        bound: tuple[Duration | int, Duration | int] | None = None,
    ) -> Relation: ...


def _operator(name: str, holds: str, distances: str, example: str) -> TemporalOperator:
    """Return the function of one temporal operator, with its help."""

    def build(
        other: str | datetime,
        *distances: Duration | int | Forever | NegativeForever,
        this: str | None = None,
        bound: tuple[Duration | int, Duration | int] | None = None,
    ) -> Relation:
        return relation(name, other, distances, this, bound)

    of_times = """, a time column of it such as "f.deadline", or a datetime
    distances: {distances}
    this: a time column of the pattern itself, in place of its interval
    bound: how far a time column lies from its own message, ("-1 hour", "1 hour"): the plan knows it from this alone"""
    plain = """
    distances: {distances}
    this, bound: not of this operator, which compares intervals"""
    more = (of_times if name in OF_TIMES else plain).format(distances=distances)
    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""A temporal operator of a rule: {holds}. A is the message of this pattern, B the other one.

    other: the binding of the other pattern{more}

    `~` is the complement. Gives a relation for `time=` of a pattern. Raises `BadRelation` (WR118), `BadDuration` (WR101).

    >>> {name}({example})
    wr.{name}({example})
    """
    return build


_RANGE = "none: at least a microsecond; one: at least so much; two: a range, negative ones too; `wr.forever` is no bound"
_EDGES = (
    "none: any; one: both ends at most so far apart; two: at least and at most; four: least and most of the starts, then of "
    "the ends"
)
_APART = "one: so far apart these may be"
_SHARED = "one: at most so much is shared; two: at least and at most"

after = _operator("after", "A starts after B has ended", _RANGE, "'b', 0, '10 seconds'")
before = _operator("before", "A ends before B starts", _RANGE, "'b', 0, '10 seconds'")
coincides = _operator(
    "coincides",
    "A and B start together and end together",
    "one: so far apart both may be; two: starts, then ends",
    "'b', '1 second'",
)
during = _operator("during", "A starts after B starts, and ends before B ends", _EDGES, "'b', '5 seconds'")
includes = _operator(
    "includes", "B starts after A starts, and ends before A ends", _EDGES, "'b', '5 seconds'"
)
finishes = _operator("finishes", "A starts after B starts, and both end together", _APART, "'b'")
finished_by = _operator("finished_by", "A starts before B starts, and both end together", _APART, "'b'")
meets = _operator("meets", "A ends as B starts", _APART, "'b'")
met_by = _operator("met_by", "A starts as B ends", _APART, "'b'")
overlaps = _operator("overlaps", "A starts before B, and ends inside B", _SHARED, "'b', '5 seconds'")
overlapped_by = _operator(
    "overlapped_by", "B starts before A, and ends inside A", _SHARED, "'b', '5 seconds'"
)
starts = _operator("starts", "A and B start together, and A ends before B", _APART, "'b'")
started_by = _operator("started_by", "A and B start together, and B ends before A", _APART, "'b'")
