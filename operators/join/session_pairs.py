"""Which messages of a session meet when it has changed: all that no part of it has brought together.

For parts A, B of a session and new messages N these are N with all, and A with B. In sessions of one input messages of the
other that lay in no part are as new ones to those of all parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.operators.aggregate.extents import Extents
from windrow.operators.join.pairing import NO_KEY, pairs
from windrow.operators.join.reach import LEFT, RIGHT, Reach
from windrow.operators.join.session_windows import Changed, holding
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.groups import combine


class Members(NamedTuple):
    """Messages of one side that changed sessions hold, new ones first.

    session: of each, NO_KEY where it meets nobody; part: of which part of that a stored one was, or NO_KEY; new: how many are
    """

    session: IntArray
    part: IntArray
    times: IntArray
    new: int


def extent(table: pa.Table) -> tuple[IntArray, IntArray]:
    """Starts and ends."""
    return combine(table.column(START)).to_numpy(), combine(table.column(END)).to_numpy()


def parts_of(changed: Changed, session: IntArray, times: IntArray) -> IntArray:
    """Which part of its session held a stored message of that time, or NO_KEY."""
    return holding(Extents(changed.owner, *extent(changed.parts)), session, times)


def several_parts(changed: Changed) -> BoolArray:
    """True for sessions that were more than one."""
    several: BoolArray = np.bincount(changed.owner, minlength=len(changed)) > 1
    return several


def meeting(changed: Changed, members: tuple[Members, Members], reach: Reach) -> tuple[IntArray, IntArray]:
    """(left row, right row) of those that meet now."""
    left, right = members
    low, high = reach.partners(LEFT, left.times)
    n, m = left.new, right.new
    found = [
        pairs(left.session[:n], low[:n], high[:n], right.session, right.times),
        _shifted(pairs(left.session[n:], low[n:], high[n:], right.session[:m], right.times[:m]), n, 0),
    ]
    lanes, rest, width = _lanes(changed, left), _lanes(changed, right), _width(changed)
    for shift in range(1, width):
        there = np.where(rest < 0, NO_KEY, rest // width * width + (rest % width - shift) % width)
        some = pairs(lanes[n:], low[n:], high[n:], there[m:], right.times[m:])
        found.append(_shifted(some, n, m))
    return np.concatenate([f[LEFT] for f in found]), np.concatenate([f[RIGHT] for f in found])


def _shifted(found: tuple[IntArray, IntArray], left: int, right: int) -> tuple[IntArray, IntArray]:
    return found[LEFT] + left, found[RIGHT] + right


def _width(changed: Changed) -> int:
    """One more than the most parts of a session: what was in no part is a lane of its own."""
    return int(np.bincount(changed.owner, minlength=1).max()) + 1


def _lanes(changed: Changed, members: Members) -> IntArray:
    """A number for the session and the part of each message; those of one part met before."""
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
