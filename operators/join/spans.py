"""Spans of a join: the largest time distances between messages that can match."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core.inputs import Input
from windrow.core.windows import Hopping, JoinWindowSpec, Rows, Session, Sliding, Tumbling


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of the right message's event time minus the left one's, in microseconds, both included."""

    low_us: int
    high_us: int


def spans(left: Input, right: Input, within: Within | None) -> tuple[int | None, int | None]:
    """Return how far a left message can be before its right partner, and after it; None is without bound."""
    before: int | None
    after: int | None
    endless = isinstance(left.window, Rows | Session) or isinstance(right.window, Rows | Session)
    if endless or (left.window is None and right.window is None):
        before = after = None
    else:
        behind = [_reach(w if w is not None else Sliding(None)) for w in (left.window, right.window)]
        before = _most(behind[0][0], behind[1][1])
        after = _most(behind[0][1], behind[1][0])
    if within is not None:
        before = max(within.high_us, 0) if before is None else min(before, max(within.high_us, 0))
        after = max(-within.low_us, 0) if after is None else min(after, max(-within.low_us, 0))
    return before, after


def _reach(window: JoinWindowSpec) -> tuple[int | None, int | None]:
    match window:
        case Tumbling(size_us=size) | Hopping(size_us=size):
            return size, size
        case Sliding(before_us=before, after_us=after):
            return before, after
        case Rows() | Session():
            return None, None


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)
