"""Pairs within a changed session: all messages that no part of it has matched before.

For parts A, B of a session and new messages N these are N with all, and A with B. In sessions of one input, messages of the
other that were in no part count as new for those of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.sessions.extents import Extents
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.operators.join.sessions.windows import Changed, holding
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import combine
from windrow.operators.steps.pairing import NO_KEY, pairs


class Members(NamedTuple):
    """Messages of one side that changed sessions hold, new ones first.

    session: of each, NO_KEY if it matches nothing; part: the part that held a stored one, or NO_KEY; new: how many are
    """

    session: IntArray
    part: IntArray
    times: IntArray
    new: int


def extent(table: pa.Table) -> tuple[IntArray, IntArray]:
    """Return starts and ends."""
    return combine(table.column(START)).to_numpy(), combine(table.column(END)).to_numpy()


def parts_of(changed: Changed, session: IntArray, times: IntArray) -> IntArray:
    """Return the part of its session that held a stored message of that time, or NO_KEY."""
    return holding(Extents(changed.owner, *extent(changed.parts)), session, times)


def several_parts(changed: Changed) -> BoolArray:
    """True for sessions that were more than one."""
    several: BoolArray = np.bincount(changed.owner, minlength=len(changed)) > 1
    return several


def reached(
    changed: Changed, sessions: Sequence[IntArray], times: Sequence[IntArray], furthest_us: int
) -> pa.Table:
    """Return changed sessions, each cut to the range in which stored messages can match now: within `furthest_us` of a new one,
    or of a moment in no part, as messages of two parts are on both sides of such a moment.

    sessions: of new messages, NO_KEY for those that match nothing; times: theirs
    """
    if furthest_us >= UNBOUNDED_US:
        return changed.sessions
    starts, ends = extent(changed.sessions)
    low, high = _uncovered(changed, starts, ends)
    for session, time in zip(sessions, times, strict=True):
        inside = session != NO_KEY
        np.minimum.at(low, session[inside], time[inside])
        np.maximum.at(high, session[inside], time[inside])
    nothing = low > high
    low = np.where(nothing, starts, np.maximum(starts, np.minimum(low, ends) - furthest_us))
    high = np.where(nothing, starts, np.minimum(ends, np.maximum(high, starts) + furthest_us + 1))
    names = changed.sessions.column_names
    cut = changed.sessions.set_column(names.index(START), START, pa.array(low))
    return cut.set_column(names.index(END), END, pa.array(high))


def _uncovered(changed: Changed, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per session, the first and last moment in no part of it; the first is after the last if there is none."""
    part_starts, part_ends = extent(changed.parts)
    first_start, last_start = _least_and_most(changed, part_starts)
    first_end, last_end = _least_and_most(changed, part_ends)
    before, between, after = starts < first_start, several_parts(changed), ends > last_end
    low = np.where(before, starts, np.where(between | after, first_end, END_OF_TIME_US))
    high = np.where(after, ends - 1, np.where(between | before, last_start - 1, START_OF_TIME_US))
    return low, high


def _least_and_most(changed: Changed, of_parts: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per session, the least and the most of its parts; without parts the end and the start of time."""
    least, most = np.full(len(changed), END_OF_TIME_US), np.full(len(changed), START_OF_TIME_US)
    np.minimum.at(least, changed.owner, of_parts)
    np.maximum.at(most, changed.owner, of_parts)
    return least, most


def overlapping(
    changed: Changed, members: tuple[Members, Members], reach: Reach
) -> tuple[IntArray, IntArray]:
    """Return (left row, right row) of messages that match now."""
    left, right = members
    low, high = reach.partners(LEFT, left.times)
    n, m = left.new, right.new
    blocks = [
        pairs(left.session[:n], low[:n], high[:n], right.session, right.times),
        _shifted(pairs(left.session[n:], low[n:], high[n:], right.session[:m], right.times[:m]), n, 0),
    ]
    lanes, rest, width = _lanes(changed, left), _lanes(changed, right), _width(changed)
    for shift in range(1, width):
        there = np.where(rest < 0, NO_KEY, rest // width * width + (rest % width - shift) % width)
        matches = pairs(lanes[n:], low[n:], high[n:], there[m:], right.times[m:])
        blocks.append(_shifted(matches, n, m))
    return np.concatenate([f[LEFT] for f in blocks]), np.concatenate([f[RIGHT] for f in blocks])


def _shifted(found: tuple[IntArray, IntArray], left: int, right: int) -> tuple[IntArray, IntArray]:
    return found[LEFT] + left, found[RIGHT] + right


def _width(changed: Changed) -> int:
    """Return one more than the most parts of a session: messages in no part have a lane of their own."""
    return int(np.bincount(changed.owner, minlength=1).max()) + 1


def _lanes(changed: Changed, members: Members) -> IntArray:
    """Return a number for the session and part of each message; messages of one part have matched before."""
    width = _width(changed)
    order = np.argsort(changed.owner, kind="stable")
    owner = changed.owner[order]
    rank = np.empty(len(order), dtype=np.int64)
    opens = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if len(owner) else owner
    sizes = np.diff(np.r_[opens, len(owner)])
    rank[order] = np.arange(len(owner)) - np.repeat(opens, sizes)
    lane = np.full(len(members.part), width - 1, dtype=np.int64)
    held = members.part != NO_KEY
    lane[held] = rank[members.part[held]]
    return np.where(members.session == NO_KEY, NO_KEY, members.session * width + lane)
