"""Emission policies: when a window's result is emitted, and how a later pane relates to an earlier one.

Sources: seed 003 ("Proposed Basic Windowing Model", "Configuration of A Windowed Aggregator"), seed 001 ("Triggers",
"Accumulation Mode"); semantics "Emission", "Retractions".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.errors import BadTrigger
from windrow.core.expressions import Expr
from windrow.core.relations import Relation
from windrow.core.show import Raw, call
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
    """A pane for each (key, window) with something new, whenever `now` crosses a multiple of the period.

    always: also where nothing is new, as long as the window accepts messages. event_time: the watermark crosses it, not `now`.
    """

    period_us: int
    always: bool = False
    event_time: bool = False

    def __repr__(self) -> str:
        time = self.event_time or None
        return call("every", show_duration(self.period_us), always=self.always or None, event_time=time)


@dataclass(frozen=True, slots=True)
class Delay:
    """A pane when `now` is so much past that of the first message of a (key, window) that no pane has emitted."""

    delay_us: int

    def __repr__(self) -> str:
        return call("delay", show_duration(self.delay_us))


@dataclass(frozen=True, slots=True)
class When:
    """A pane of each (key, window) that an ingest step changed, where an expression of its values is true."""

    condition: Expr

    def __repr__(self) -> str:
        return call("when", Raw(self.condition))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A pane when one of several triggers fires; all of them begin again after any pane."""

    triggers: tuple[Trigger, ...]

    def __repr__(self) -> str:
        return call("any_of", *self.triggers)


@dataclass(frozen=True, slots=True)
class AllOf:
    """A pane at a moment at which all of several triggers fire."""

    triggers: tuple[Trigger, ...]

    def __repr__(self) -> str:
        return call("all_of", *self.triggers)


@dataclass(frozen=True, slots=True)
class PastEnd:
    """A pane of new messages once the watermark is past the end of the window: `wr.past_end`, Beam's `AfterWatermark`.

    For `late=` with others, where `on_time=False` leaves out the pane at the end. It fires as the watermark passes the end,
    and for later messages.

    >>> Emit(on_time=False, late=all_of(past_end, every(5)))
    wr.Emit(late=wr.all_of(wr.past_end, wr.every(5)), on_time=False)
    """

    def __repr__(self) -> str:
        return "wr.past_end"


Trigger: TypeAlias = Never | EveryBatch | EveryCount | EveryPeriod | Delay | When | PastEnd | AnyOf | AllOf

never = Never()
every_batch = EveryBatch()
past_end = PastEnd()


def leaves(trigger: Trigger) -> Iterator[Trigger]:
    """Yield the parts of a compound trigger, or the trigger itself."""
    if isinstance(trigger, (AnyOf, AllOf)):
        for part in trigger.triggers:
            yield from leaves(part)
    else:
        yield trigger


def by_time(trigger: Trigger) -> bool:
    """True if it may fire because time passes."""
    return any(isinstance(leaf, (EveryPeriod, Delay, PastEnd)) for leaf in leaves(trigger))


def by_step(trigger: Trigger) -> bool:
    """True if it may fire because messages come."""
    if isinstance(trigger, AnyOf):
        return any(map(by_step, trigger.triggers))
    if isinstance(trigger, AllOf):
        return all(map(by_step, trigger.triggers))
    return isinstance(trigger, (EveryBatch, EveryCount, When, PastEnd))


def by_value(trigger: Trigger) -> bool:
    """True if it may fire because of a window's content."""
    return any(isinstance(leaf, When) for leaf in leaves(trigger))


def when_messages_come(trigger: Trigger) -> Trigger:
    """Return the equivalent trigger where no time passes, with as few counts as possible.

    >>> when_messages_come(any_of(every(100), all_of(every(2), every(3)), every("10 seconds")))
    wr.every(3)
    """
    if isinstance(trigger, (AnyOf, AllOf)):
        parts = [when_messages_come(part) for part in trigger.triggers]
        every_part = isinstance(trigger, AllOf)
        if every_part and never in parts:
            return never
        counts = [part.n for part in parts if isinstance(part, EveryCount)]
        others: list[Trigger] = [part for part in parts if not isinstance(part, (EveryCount, Never))]
        if counts:
            others.append(EveryCount(max(counts) if every_part else min(counts)))
        if len(others) < 2:
            return others[0] if others else never
        return AllOf(tuple(others)) if every_part else AnyOf(tuple(others))
    if isinstance(trigger, EveryBatch):
        return EveryCount(1)
    return trigger if by_step(trigger) else never


Mode = Literal["accumulating", "discarding", "retracting"]
MODES = ("accumulating", "discarding", "retracting")


def of_event_time(trigger: Trigger) -> bool:
    """True if it may fire because the watermark moves."""
    return by_end(trigger) or any(isinstance(t, EveryPeriod) and t.event_time for t in leaves(trigger))


def by_end(trigger: Trigger) -> bool:
    """True if it may fire because a window ends."""
    return any(isinstance(leaf, PastEnd) for leaf in leaves(trigger))


def every(
    what: Duration | int, *, always: bool = False, event_time: bool = False
) -> EveryCount | EveryPeriod:
    """Fire repeatedly: by time, or by number of messages.

    what: a duration: whenever `now` crosses a multiple of it, a pane of each (key, window) with something new. An int: when a
        (key, window) has taken that many messages or more since its last pane, judged once per ingest step
    always: by time, a pane also where nothing is new, of each window that still accepts messages: a heartbeat. Its cost
        grows with the windows that are kept
    event_time: by time, whenever the watermark crosses a multiple of it, and not `now`: Flink's `ContinuousEventTimeTrigger`.
        Of an aggregate over windows of time

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where it is not positive, `BadDuration` (WR101).

    >>> every("10 seconds"), every(100)
    (wr.every('10 seconds'), wr.every(100))
    """
    check.flag(always, "every: always", BadTrigger)
    check.flag(event_time, "every: event_time", BadTrigger)
    if isinstance(what, bool):
        raise BadTrigger(f"wr.every({what!r}): use a duration such as '10 seconds' or a number of messages")
    if isinstance(what, int):
        if what <= 0:
            raise BadTrigger(f"wr.every({what}): use a number of messages, 1 or more")
        if always:
            raise BadTrigger(
                f"wr.every({what}, always=True): messages that have come are new; use a duration, or leave out always"
            )
        if event_time:
            raise BadTrigger(
                f"wr.every({what}, event_time=True): messages are counted, whatever their time; use a duration, or leave out "
                "event_time"
            )
        return EveryCount(what)
    period_us = duration_us(what, "trigger period")
    if period_us <= 0:
        raise BadTrigger(f"wr.every({what!r}): use a period of more than 0, e.g. wr.every('10 seconds')")
    return EveryPeriod(period_us, always, event_time)


def delay(age: Duration) -> Delay:
    """Fire by the age of new messages: so long after the first message that no pane has emitted.

    age: by how much `now` has to be past that of the step which took this message; each (key, window) has its own time,
        where `wr.every("10 seconds")` has one grid for all

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where it is not positive, `BadDuration` (WR101).

    >>> delay("10 seconds")
    wr.delay('10 seconds')
    """
    delay_us = duration_us(age, "trigger delay")
    if delay_us <= 0:
        raise BadTrigger(f"wr.delay({age!r}): use a delay of more than 0, e.g. wr.delay('10 seconds')")
    return Delay(delay_us)


def when(condition: pc.Expression) -> When:
    """Fire by the content of a window: where an expression of its values is true.

    condition: an expression of keys and aggregates, e.g. `wr.col("n") >= 3`. It is judged of each (key, window) that an ingest
        step changed, once a step; null is false, and so is an expression that fails, such as a division by zero. As long as it
        stays true each step emits a pane; with mode="discarding" a window begins again at nothing

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where it is no expression.

    >>> import windrow as wr
    >>> when(wr.col("n") >= 3)
    wr.when((n >= 3))
    """
    if not isinstance(condition, pc.Expression):
        raise BadTrigger(f"wr.when({condition!r}): use an expression of aggregates, such as wr.col('n') >= 3")
    return When(Expr(condition))


def any_of(*triggers: Trigger) -> AnyOf:
    """Fire where one of several triggers does. After any pane all of them begin again.

    triggers: two or more, e.g. `wr.every(100), wr.every("10 seconds")`

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where there are fewer, or one is `wr.never`.

    >>> any_of(every(100), every("10 seconds"))
    wr.any_of(wr.every(100), wr.every('10 seconds'))
    """
    return AnyOf(_several(triggers, "any_of"))


def all_of(*triggers: Trigger) -> AllOf:
    """Fire at a moment at which several triggers do.

    triggers: two or more. With a period among them the moments are its ends: `wr.all_of(wr.every(100), wr.every("10 seconds"))`
        fires at a multiple of 10 seconds where 100 messages or more are new; with `wr.delay` from its time on

    Gives a trigger for `wr.Emit`. Raises `BadTrigger` (WR107) where there are fewer, one is `wr.never`, or `always=True`.

    >>> all_of(every(100), every("10 seconds"))
    wr.all_of(wr.every(100), wr.every('10 seconds'))
    """
    made = AllOf(_several(triggers, "all_of"))
    if any(isinstance(leaf, EveryPeriod) and leaf.always for leaf in leaves(made)):
        raise BadTrigger(
            f"{made!r}: what fires always does not wait for others; leave out always=True, or use wr.any_of"
        )
    return made


def _several(triggers: tuple[Trigger, ...], name: str) -> tuple[Trigger, ...]:
    if len(triggers) < 2:
        raise BadTrigger(f"wr.{name}({', '.join(map(repr, triggers))}): use two triggers or more")
    for trigger in triggers:
        if isinstance(_trigger(trigger, name), Never):
            raise BadTrigger(f"wr.{name}(...) of wr.never: leave it out")
    return triggers


def _trigger(value: Any, name: str) -> Trigger:
    if isinstance(value, (Never, EveryBatch, EveryCount, EveryPeriod, Delay, When, PastEnd, AnyOf, AllOf)):
        return value
    if isinstance(value, Relation):
        raise BadTrigger(
            f"Emit({name}={value!r}): wr.{value.operator} compares times in a rule; a trigger that waits is wr.delay('10 "
            "seconds')"
        )
    raise BadTrigger(
        f"Emit({name}={value!r}): use wr.every('10 seconds'), wr.every(100), wr.every_batch or wr.never"
    )


@dataclass(frozen=True, slots=True)
class Emit:
    """Emission of panes: before a window ends, when it does, and after; and the relation of a pane to the one before.

    early: before the watermark passes the end of the window: `wr.never` (default), `wr.every_batch`, `wr.every(...)`,
        `wr.delay(...)`, `wr.when(...)`, `wr.any_of(...)`, `wr.all_of(...)`
    late: the same for messages after that (default every 10 seconds of `now`); `wr.past_end` too
    on_time: one pane when the watermark passes the end, for every window that holds a message (default True)
    mode: "accumulating" (each pane is the whole result), "discarding" (the result since the last pane) or
        "retracting" (the whole result, and the former pane is retracted first)
    only_if_changed: no pane whose values equal the former pane's; discarding, no pane without new messages
    closing_pane: one more pane when the window closes, changed or not, marked `is_last`
    drop_late: messages are dropped once the window has fired (allowed lateness 0), as in Spark's output modes

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
        if by_end(self.early):
            raise BadTrigger(
                f"Emit(early={self.early!r}): before the end of a window wr.past_end is never true; use it in late=, or "
                "leave it out: on_time=True emits each window as the watermark passes its end"
            )
        for name in ("on_time", "only_if_changed", "closing_pane", "drop_late"):
            check.flag(getattr(self, name), f"Emit: {name}", BadTrigger)
        if self.mode not in MODES:
            raise BadTrigger(f"Emit(mode={self.mode!r}): use one of {', '.join(MODES)}")
        if self.only_if_changed and any(isinstance(t, EveryPeriod) and t.always for t in self.leaves):
            raise BadTrigger(
                f"Emit(only_if_changed=True) with {self.early!r}, {self.late!r}: it emits nothing that has not changed, and "
                "always=True does; leave one of them out"
            )

    @property
    def leaves(self) -> tuple[Trigger, ...]:
        """The parts of its triggers."""
        return (*leaves(self.early), *leaves(self.late))

    @property
    def periods(self) -> frozenset[int] | None:
        """The periods of `now` of its triggers, in microseconds; None where a pane may be due at any time."""
        if any(isinstance(t, Delay) for t in self.leaves):
            return None
        return frozenset(t.period_us for t in self.leaves if isinstance(t, EveryPeriod) and not t.event_time)

    @classmethod
    def append(cls) -> Emit:
        """Emit the rows of Spark's append mode: ON_TIME only, and messages are dropped once the window has fired.

        >>> Emit.append()
        wr.Emit.append()
        """
        return cls(early=never, late=never, drop_late=True)

    @classmethod
    def update(cls) -> Emit:
        """Emit the rows of Spark's update mode: every (key, window) that a batch changed, and no ON_TIME pane.

        >>> Emit.update()
        wr.Emit.update()
        """
        return cls(early=every_batch, late=every_batch, on_time=False, drop_late=True)

    @classmethod
    def final(cls, mode: Mode = "accumulating") -> Emit:
        """Emit one pane per window, as it closes (its end plus the allowed lateness): Kafka's `suppress(untilWindowCloses)`.

        mode: as of `wr.Emit`. A single pane is the same in each; operators and sinks downstream that need a mode get theirs

        Raises `BadTrigger` (WR107).

        >>> Emit.final()
        wr.Emit.final()
        >>> Emit.final(mode="retracting")
        wr.Emit.final(mode='retracting')
        """
        return cls(early=never, late=never, on_time=False, closing_pane=True, mode=mode)

    @property
    def remembers(self) -> bool:
        """True if a pane is compared with the former one, or retracts it."""
        return self.mode == "retracting" or (self.only_if_changed and self.mode == "accumulating")

    @property
    def emits_late(self) -> bool:
        """True if some pane has messages that arrive after the end of its window."""
        return self.closing_pane or not isinstance(self.late, Never)

    def __repr__(self) -> str:
        for name in ("append", "update"):
            if self == getattr(Emit, name)():
                return f"wr.Emit.{name}()"
        if self == Emit.final(self.mode):
            return call("Emit.final", mode=None if self.mode == "accumulating" else self.mode)
        default = Emit()
        changed = {n: getattr(self, n) for n in self.__slots__ if getattr(self, n) != getattr(default, n)}
        return call("Emit", **changed)
