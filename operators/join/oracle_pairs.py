"""Pairing rules of the join oracle, in plain arithmetic: pairs that fit in time, and how long a message waits for a partner.

Semantics "Joins": "Which pairs match", "Late", "When a message goes". Ranges are (first, last), both included.
"""

from __future__ import annotations

from math import inf

from windrow.core.inputs import Input
from windrow.core.windows import Hopping, JoinWindowSpec, Session, Sliding, Tumbling
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.oracle.windows import windows_of

Range = tuple[float, float]
EVER: Range = (-inf, inf)
UNBOUNDED = Sliding(None)


def time_windows(join: JoinDefinition) -> tuple[JoinWindowSpec, JoinWindowSpec] | None:
    """Return the windows of both sides, or None if they do not limit time: there are none, or of rows, or sessions."""
    left, right = join.left.window, join.right.window
    if join.by_rows or join.sessions is not None or (left is None and right is None):
        return None
    return left or UNBOUNDED, right or UNBOUNDED


def around(window: JoinWindowSpec, moment_us: int) -> Range:
    """Return the event times in the window around a moment."""
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
    """Return the moments whose window holds an event time: `around`, read backwards."""
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
    if join.sessions is None and kept is not None and abs(right_us - left_us) > kept:
        return False
    if join.within is not None and not join.within.low_us <= right_us - left_us <= join.within.high_us:
        return False
    windows = time_windows(join)
    if windows is None:
        return True
    left, right = windows
    return _in(around(left, right_us), left_us) or _in(around(right, left_us), right_us)


def latest_partner(join: JoinDefinition, side: str, time_us: int) -> float:
    """Return the latest time that a partner of a message could have: as far as the windows, `within` and the retention all
    reach.

    Where they exclude each other nothing matches, and a message waits no less.
    """
    ends = [inf]
    windows = time_windows(join)
    if windows is not None:
        own, other = windows if side == "left" else windows[::-1]
        ends.append(max(holders(own, time_us)[1], around(other, time_us)[1]))
    if join.within is not None:
        ends.append(time_us + (join.within.high_us if side == "left" else -join.within.low_us))
    if join.sessions is None and join.retention.time_us is not None:
        ends.append(time_us + join.retention.time_us)
    return min(ends)


def open_until(source: Input, time_us: float) -> float:
    """Return the time at which a message of that time closes: the end of the last window that covers it, or the next moment;
    with a session of its own, the end of that."""
    if isinstance(source.window, (Tumbling, Hopping)) and time_us != inf:
        return windows_of(source.window, int(time_us))[-1].end_us
    if isinstance(source.window, Session):
        return time_us + source.window.sure_us + 1
    return time_us + 1


def _in(span: Range, time_us: int) -> bool:
    return span[0] <= time_us <= span[1]
