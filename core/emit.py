"""Emission policies: when a window's result is sent, and what a later pane says about an earlier one.

Sources: seed 003 ("Proposed Basic Windowing Model", "Configuration of A Windowed Aggregator"), seed 001 ("Triggers",
"Accumulation Mode"); semantics "Emission", "Retractions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from windrow.core import check
from windrow.core.errors import BadTrigger
from windrow.core.show import call
from windrow.core.time import Duration, duration_us, show_duration


@dataclass(frozen=True, slots=True)
class Never:
    """No pane of this timing: `wr.never`.

    >>> Emit(late=never)
    wr.Emit(late=wr.never)
    """

    def __repr__(self) -> str:
        return "wr.never"


@dataclass(frozen=True, slots=True)
class EveryBatch:
    """A pane for each (key, window) that an ingest step changed: `wr.every_batch`.

    >>> Emit(early=every_batch)
    wr.Emit(early=wr.every_batch)
    """

    def __repr__(self) -> str:
        return "wr.every_batch"


@dataclass(frozen=True, slots=True)
class EveryCount:
    """A pane when a (key, window) has taken `n` messages or more since its last pane; judged once per ingest step."""

    n: int

    def __repr__(self) -> str:
        return call("every", self.n)


@dataclass(frozen=True, slots=True)
class EveryPeriod:
    """A pane for each (key, window) with something new, whenever `now` crosses a multiple of the period."""

    period_us: int

    def __repr__(self) -> str:
        return call("every", show_duration(self.period_us))


Trigger = Never | EveryBatch | EveryCount | EveryPeriod

never = Never()
every_batch = EveryBatch()

Mode = Literal["accumulating", "discarding", "retracting"]
MODES = ("accumulating", "discarding", "retracting")


def every(what: Duration | int) -> EveryCount | EveryPeriod:
    """A trigger that repeats: by time, or by number of messages.

    what: a duration: whenever `now` crosses a multiple of it, a pane of each (key, window) with something new. An int: when a
        (key, window) has taken that many messages or more since its last pane, judged once per ingest step

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where it is not positive, `BadDuration` (WR101).

    >>> every("10 seconds"), every(100)
    (wr.every('10 seconds'), wr.every(100))
    """
    if isinstance(what, bool):
        raise BadTrigger(f"wr.every({what!r}): use a duration such as '10 seconds' or a number of messages")
    if isinstance(what, int):
        if what <= 0:
            raise BadTrigger(f"wr.every({what}): a number of messages must be positive")
        return EveryCount(what)
    period_us = duration_us(what, "trigger period")
    if period_us <= 0:
        raise BadTrigger(f"wr.every({what!r}): a period must be positive")
    return EveryPeriod(period_us)


def _trigger(value: Any, name: str) -> Trigger:
    if isinstance(value, (Never, EveryBatch, EveryCount, EveryPeriod)):
        return value
    raise BadTrigger(
        f"Emit({name}={value!r}): use wr.every('10 seconds'), wr.every(100), wr.every_batch or wr.never"
    )


@dataclass(frozen=True, slots=True)
class Emit:
    """When results are told: before a window ends, when it does, and after; and what a pane says about the one before.

    early: before the watermark passes the end of the window: `wr.never` (default), `wr.every_batch`, `wr.every(...)`
    late: the same for messages that come after (default every 10 seconds of `now`)
    on_time: one pane when it does, for every window that holds a message (default True)
    mode: "accumulating" (each pane is the whole result), "discarding" (what came since the last pane) or
        "retracting" (the whole result, and the former pane is taken back first)
    only_if_changed: no pane whose values equal the former pane's; discarding, no pane where nothing new came
    closing_pane: one more pane when the window closes, changed or not, marked `is_last`
    drop_late: nothing is taken once the window has fired (allowed lateness 0), as in Spark's output modes

    A frozen value. Raises `BadTrigger` (WR107).

    >>> Emit(early=every("1 minute"), mode="retracting")
    wr.Emit(early=wr.every('1 minute'), mode='retracting')
    """

    early: Trigger = never
    late: Trigger = EveryPeriod(10_000_000)
    on_time: bool = True
    mode: Mode = "accumulating"
    only_if_changed: bool = False
    closing_pane: bool = False
    drop_late: bool = False

    def __post_init__(self) -> None:
        _trigger(self.early, "early")
        _trigger(self.late, "late")
        for name in ("on_time", "only_if_changed", "closing_pane", "drop_late"):
            check.flag(getattr(self, name), f"Emit: {name}", BadTrigger)
        if self.mode not in MODES:
            raise BadTrigger(f"Emit(mode={self.mode!r}): use one of {', '.join(MODES)}")

    @property
    def periods(self) -> frozenset[int]:
        """The periods of `now` that something waits for, in microseconds."""
        return frozenset(t.period_us for t in (self.early, self.late) if isinstance(t, EveryPeriod))

    @classmethod
    def append(cls) -> Emit:
        """The rows of Spark's append mode: ON_TIME only, and nothing is taken once the window has fired.

        >>> Emit.append()
        wr.Emit.append()
        """
        return cls(early=never, late=never, drop_late=True)

    @classmethod
    def update(cls) -> Emit:
        """The rows of Spark's update mode: every (key, window) that a batch changed, and no ON_TIME pane.

        >>> Emit.update()
        wr.Emit.update()
        """
        return cls(early=every_batch, late=every_batch, on_time=False, drop_late=True)

    @classmethod
    def final(cls) -> Emit:
        """One pane of each window, as it closes (its end plus the allowed lateness): Kafka's `suppress(untilWindowCloses)`.

        >>> Emit.final()
        wr.Emit.final()
        """
        return cls(early=never, late=never, on_time=False, closing_pane=True)

    @property
    def remembers(self) -> bool:
        """True if a pane is compared with the former one, or takes it back."""
        return self.mode == "retracting" or (self.only_if_changed and self.mode == "accumulating")

    @property
    def tells_late(self) -> bool:
        """True if some pane tells what comes after the end of its window."""
        return self.closing_pane or not isinstance(self.late, Never)

    def __repr__(self) -> str:
        for name in ("append", "update", "final"):
            if self == getattr(Emit, name)():
                return f"wr.Emit.{name}()"
        default = Emit()
        changed = {n: getattr(self, n) for n in self.__slots__ if getattr(self, n) != getattr(default, n)}
        return call("Emit", **changed)
