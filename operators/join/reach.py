"""Reach of a join: event times that can match, and when a message can match nothing any more. Semantics "Joins"."""

from __future__ import annotations

import numpy as np

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.faults import FIRST_US, LAST_US
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.windows import Hopping, JoinWindowSpec, Rows, Session, Sliding, Tumbling
from windrow.operators.join.definition import JoinDefinition

LEFT, RIGHT = 0, 1
#: So many times are tried at once.
AT_ONCE = 256


class Reach:
    """The reach of one join, by event time."""

    def __init__(self, definition: JoinDefinition) -> None:
        windows = (definition.left.window, definition.right.window)
        if any(isinstance(w, Rows | Session) for w in windows) or windows == (None, None):
            self.windows: tuple[JoinWindowSpec, JoinWindowSpec] | None = None
        else:
            self.windows = tuple(w if w is not None else Sliding(None) for w in windows)  # type: ignore[assignment]
        endless = definition.retention.time_us is None or definition.sessions is not None
        far = UNBOUNDED_US if endless else definition.retention.time_us or 0
        #: Extra time, by side, for which a message is accepted while its own session may still be open.
        self._longer = tuple(w.sure_us if isinstance(w, Session) else 0 for w in windows)
        #: True if a message expires only when nothing can retract it any more.
        self._lasts = definition.takes_back
        self._low, self._high = -far, far  # of the right time less the left one
        if definition.within is not None:
            self._low = max(self._low, definition.within.low_us)
            self._high = min(self._high, definition.within.high_us)
        #: By side, the last watermark that was asked for, and the answer.
        self._expired: dict[int, tuple[int, int]] = {}

    def partners(self, side: int, times: IntArray) -> tuple[IntArray, IntArray]:
        """Return the closed interval of times of partners of messages of `side`; open edges may leave a gap in it."""
        if side == LEFT:
            low, high = _plus(times, self._low), _plus(times, self._high)
        else:
            low, high = _plus(times, -self._high), _plus(times, -self._low)
        if self.windows is not None:
            seen_low, seen_high = _around(self.windows[1 - side], times)
            sees_low, sees_high = _seen_from(self.windows[side], times)
            low = np.maximum(low, np.minimum(seen_low, sees_low))
            high = np.minimum(high, np.maximum(seen_high, sees_high))
        return low, high

    @property
    def furthest_us(self) -> int:
        """The largest time distance between two messages that match."""
        return max(abs(self._low), abs(self._high))

    @property
    def exact(self) -> bool:
        """True if `partners` is exact, so that `fits` need not be asked."""
        return self.windows is None or all(
            not isinstance(w, Sliding) or w.closed == "both" for w in self.windows
        )

    def fits(self, left: IntArray, right: IntArray) -> BoolArray:
        """True for pairs within `partners` that the windows let match."""
        assert self.windows is not None
        in_left = _inside(self.windows[LEFT], left, right)
        in_right = _inside(self.windows[RIGHT], right, left)
        return in_left | in_right

    def open_until(self, side: int, times: IntArray) -> IntArray:
        """Return the watermark (less the allowed lateness) from which on messages of these times are too late."""
        window = None if self.windows is None else self.windows[side]
        if isinstance(window, (Tumbling, Hopping)):
            return _grid(window, times)[1] + 1
        return times + 1 + self._longer[side]

    def expires(self, side: int, times: IntArray) -> IntArray:
        """Return the watermark (less the lateness) from which on messages of these times match nothing. It rises with time."""
        alone = self.open_until(1 - side, self.partners(side, times)[1])
        return np.maximum(alone, self.open_until(side, times)) if self._lasts else alone

    def expired_before(self, side: int, watermark_us: int) -> int:
        """Return the first time whose messages can still match, where `watermark_us` is the watermark less the lateness."""
        if watermark_us == END_OF_TIME_US:
            return END_OF_TIME_US
        asked, first = self._expired.get(side, (None, 0))
        if asked != watermark_us:  # a step asks more than once
            first = self._first_open(side, watermark_us)
            self._expired[side] = watermark_us, first
        return first

    def _first_open(self, side: int, watermark_us: int) -> int:
        low, high = FIRST_US, LAST_US + 1
        if self.windows is None:  # each message matches others up to so long after it
            after = (self._high if side == LEFT else -self._low) + self._longer[1 - side]
            low = high = min(max(watermark_us - (max(after, 0) if self._lasts else after), low), high)
        while low < high:
            # One time costs as much as many.
            times = np.arange(low, high, max((high - low) // AT_ONCE, 1), dtype=np.int64)
            gone = int(np.searchsorted(self.expires(side, times), watermark_us, side="right"))
            if gone < len(times):
                high = int(times[gone])
            if gone:
                low = int(times[gone - 1]) + 1
        return START_OF_TIME_US if low == FIRST_US else low


def _plus(times: IntArray, offset: int) -> IntArray:
    """Add an offset to times. Times are within 2^58, offsets within 2^62: their sum is an int64."""
    return times + np.int64(max(min(offset, UNBOUNDED_US), -UNBOUNDED_US))


def _grid(window: Tumbling | Hopping, times: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first and last moment of the windows that cover each time, taken together."""
    hop = window.size_us if isinstance(window, Tumbling) else window.hop_us
    newest = (times - window.offset_us) // hop * hop + window.offset_us
    older = (window.size_us - 1 - (times - newest)) // hop
    return newest - older * hop, newest + window.size_us - 1


def _far(us: int | None) -> int:
    return UNBOUNDED_US if us is None else us


def _around(window: JoinWindowSpec, times: IntArray) -> tuple[IntArray, IntArray]:
    """Return the range of an input's window around each moment."""
    if isinstance(window, (Tumbling, Hopping)):
        return _grid(window, times)
    assert isinstance(window, Sliding)
    oldest, newest = _open_edges(window)
    return _plus(times, oldest - _far(window.before_us)), _plus(times, _far(window.after_us) - newest)


def _open_edges(window: Sliding) -> tuple[int, int]:
    """Return 1 for the (old, new) edge that is not part of the window."""
    return int(window.closed in ("right", "neither")), int(window.closed in ("left", "neither"))


def _seen_from(window: JoinWindowSpec, times: IntArray) -> tuple[IntArray, IntArray]:
    """Return the moments around which an input's window holds a message of each time."""
    if isinstance(window, (Tumbling, Hopping)):
        return _grid(window, times)
    assert isinstance(window, Sliding)
    oldest, newest = _open_edges(window)
    return _plus(times, newest - _far(window.after_us)), _plus(times, _far(window.before_us) - oldest)


def _inside(window: JoinWindowSpec, times: IntArray, moments: IntArray) -> BoolArray:
    """True where a message of `times` is in the window around `moments`."""
    low, high = _around(window, moments)
    inside: BoolArray = (times >= low) & (times <= high)
    return inside
