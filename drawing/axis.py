"""Axis of time, or of sequence numbers, with ticks at round values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from windrow.drawing.svg import tag, text

SECOND_US, MINUTE_US, HOUR_US, DAY_US = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Times beyond these are the ends of time: they have no place on an axis.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000
_STEPS = (
    *(n * 10**power for power in range(6) for n in (1, 2, 5)),
    *(n * SECOND_US for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE_US for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR_US for n in (1, 2, 3, 6, 12)),
    *(n * DAY_US for n in (1, 2, 7, 14, 30, 91, 182, 365, 730, 1_825, 3_650, 36_500, 365_000)),
)
#: Pixels between two ticks, at least.
_APART = 90


@dataclass(frozen=True)
class Axis:
    """A horizontal axis from `start` to `end`, drawn between two places. numbers: of sequence numbers, not of time."""

    start: int
    end: int
    left: float
    right: float
    numbers: bool = False

    def x(self, value: int) -> float:
        """Return the place of a value; one beyond the axis has the place of its end."""
        inside = min(max(value, self.start), self.end)
        return self.left + (self.right - self.left) * (inside - self.start) / (self.end - self.start)

    def has(self, value: int) -> bool:
        """True for a value within the axis."""
        return self.start <= value <= self.end

    def ticks(self) -> tuple[int, list[int]]:
        """Return the step between ticks, and their values."""
        least = (self.end - self.start) * _APART / max(self.right - self.left, _APART)
        steps = [n * 10**power for power in range(18) for n in (1, 2, 5)] if self.numbers else _STEPS
        step = next((one for one in steps if one >= least), steps[-1])
        first = -(-self.start // step) * step
        return step, list(range(first, self.end + 1, step))

    def drawn(self, top: float, bottom: float) -> Iterator[str]:
        """Yield the axis at `bottom`, its ticks, and the lines up to `top`."""
        step, values = self.ticks()
        day = ""
        for value in values:
            x = self.x(value)
            yield tag("path", class_="grid", d=f"M{x:.1f} {top:.1f}V{bottom:.1f}")
            label = str(value) if self.numbers else time_label(value, step)
            yield text(label, x, bottom + 16, anchor="middle")
            if not self.numbers and step < DAY_US and time_label(value, DAY_US) != day:
                day = time_label(value, DAY_US)
                yield text(day, x, bottom + 31, class_="soft", anchor="middle")
        yield tag("path", class_="axis", d=f"M{self.left:.1f} {bottom:.1f}H{self.right:.1f}")


def axis_over(values: Iterable[int], left: float, right: float, *, numbers: bool = False) -> Axis:
    """Return an axis on which all these values have a place; the ends of time do not count."""
    known = [v for v in values if numbers or _FIRST_US < v < _LAST_US]
    low, high = (min(known), max(known)) if known else (0, HOUR_US)
    room = max((high - low) // 25, 1)
    return Axis(low - room, high + room, left, right, numbers)


def time_label(time_us: int, step_us: int = 1) -> str:
    """Return a time as text, as exact as ticks of that step need, in UTC."""
    time = _EPOCH + timedelta(microseconds=min(max(time_us, _FIRST_US), _LAST_US))
    if step_us >= DAY_US:
        return f"{time.year:04}-{time.month:02}-{time.day:02}"
    clock = f"{time.hour:02}:{time.minute:02}"
    if step_us >= MINUTE_US:
        return clock
    clock += f":{time.second:02}"
    if step_us >= SECOND_US:
        return clock
    return clock + (f".{time.microsecond // 1000:03}" if step_us >= 1000 else f".{time.microsecond:06}")
