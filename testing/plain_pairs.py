"""Which two messages of a join fit in time, and how long a message can wait for a partner, in plain arithmetic.

Semantics "Joins": "Which pairs match", "Late", "When a message goes". Ranges are (first, last), both included.
"""

from __future__ import annotations

from math import inf

from windrow.core.join import Input, JoinDefinition
from windrow.core.windows import Hopping, JoinWindowSpec, Rows, Sliding, Tumbling
from windrow.testing.plain_windows import windows_of

Range = tuple[float, float]
EVER: Range = (-inf, inf)
UNBOUNDED = Sliding(None)


def time_windows(join: JoinDefinition) -> tuple[JoinWindowSpec | None, JoinWindowSpec | None]:
    """The window of each side as far as it speaks of time; None says nothing.

    Windows of rows say nothing; an unbounded one beside them is of all that has come, whatever its time.
    """
    left, right = join.left.window, join.right.window
    if join.by_rows:
        silent = (None, UNBOUNDED)
        return tuple(None if w in silent or isinstance(w, Rows) else w for w in (left, right))  # type: ignore[return-value]
    if left is None and right is None:
        return None, None
    return left or UNBOUNDED, right or UNBOUNDED


def around(window: JoinWindowSpec, moment_us: int) -> Range:
    """The event times in the window around a moment."""
    match window:
        case Tumbling() | Hopping():
            covering = windows_of(window, moment_us)
            return covering[0].start_us, covering[-1].end_us - 1
        case Sliding(before_us=before, after_us=after, closed=closed):
            first = -inf if before is None else moment_us - before + (closed in ("right", "neither"))
            last = inf if after is None else moment_us + after - (closed in ("left", "neither"))
            return first, last
        case _:
            return EVER


def holders(window: JoinWindowSpec, time_us: int) -> Range:
    """The moments whose window holds an event time: `around`, read backwards."""
    match window:
        case Sliding(before_us=before, after_us=after, closed=closed):
            first = -inf if after is None else time_us - after + (closed in ("left", "neither"))
            last = inf if before is None else time_us + before - (closed in ("right", "neither"))
            return first, last
        case _:
            return around(window, time_us)  # two times share an aligned window, or they do not


def fits(join: JoinDefinition, left_us: int, right_us: int) -> bool:
    """True if the times of a left and a right message let them match."""
    kept = join.retention.time_us
    if kept is not None and abs(right_us - left_us) > kept:
        return False
    if join.within is not None and not join.within.low_us <= right_us - left_us <= join.within.high_us:
        return False
    left, right = time_windows(join)
    if left is None and right is None:
        return True
    if left is not None and _in(around(left, right_us), left_us):
        return True
    return right is not None and _in(around(right, left_us), right_us)


def partner_times(join: JoinDefinition, side: str, time_us: int) -> list[Range]:
    """Where in time a message's partners can lie; none at all where windows and bounds exclude each other."""
    mine, other = time_windows(join) if side == "left" else time_windows(join)[::-1]
    found = [EVER] if mine is None and other is None else []
    if mine is not None:
        found.append(holders(mine, time_us))
    if other is not None:
        found.append(around(other, time_us))
    if join.within is not None:
        low, high = join.within.low_us, join.within.high_us
        bound = (time_us + low, time_us + high) if side == "left" else (time_us - high, time_us - low)
        found = [_both(bound, one) for one in found]
    if join.retention.time_us is not None:
        near = (time_us - join.retention.time_us, time_us + join.retention.time_us)
        found = [_both(near, one) for one in found]
    return [one for one in found if one[0] <= one[1]]


def open_until(source: Input, time_us: float) -> float:
    """When a message of that time is open no longer: the end of the last window that covers it, or the next moment."""
    if isinstance(source.window, (Tumbling, Hopping)) and time_us != inf:
        return windows_of(source.window, int(time_us))[-1].end_us
    return time_us + 1


def _in(span: Range, time_us: int) -> bool:
    return span[0] <= time_us <= span[1]


def _both(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), min(a[1], b[1])
