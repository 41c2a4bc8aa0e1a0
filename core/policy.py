"""Policies of retention and watermark: how long state is kept, and up to which event time input is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.core.errors import (
    BadDuration,
    BadWatermark,
    ConfigurationError,
    RetentionMissing,
)
from windrow.core.show import call
from windrow.core.time import DAY_US, Duration, duration_us, show_duration

RESERVED_COLUMNS = ("window", "pane", "commit")


@dataclass(frozen=True, slots=True)
class Forever:
    """Unlimited retention, which must be requested explicitly: `wr.forever`.

    >>> forever
    wr.forever
    """

    def __repr__(self) -> str:
        return "wr.forever"

    def __neg__(self) -> NegativeForever:
        return NegativeForever()


@dataclass(frozen=True, slots=True)
class NegativeForever:
    """No bound in the past: `-wr.forever`, a distance of a temporal operator."""

    def __repr__(self) -> str:
        return "-wr.forever"


forever = Forever()


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on kept state, by time and by number. `time_us` counts from the end of a window; None is no limit by time.

    `windows` and `messages` limit the number kept, per "key" or per "job".
    """

    time_us: int | None = None
    windows: int | None = None
    messages: int | None = None
    per: str = "key"

    @property
    def counts_the_job(self) -> bool:
        """True if a limit by size is of the whole job."""
        return self.per == "job" and (self.windows is not None or self.messages is not None)

    def __repr__(self) -> str:
        time = None if self.time_us is None else show_duration(self.time_us)
        per = None if self.per == "key" else self.per
        return call("Retain", time, windows=self.windows, messages=self.messages, per=per)


def Retain(
    time: Duration | Forever | None = None,
    *,
    windows: int | None = None,
    messages: int | None = None,
    per: str = "key",
) -> Retention:
    """Limit kept state by time, by number, or by both. A plain duration for `retention=` is the time alone.

    time: a duration past the end of a window; `wr.forever`, or None with a number, is no limit by time
    windows, messages: at most so many; the oldest windows, by end, are evicted first
    per: these numbers are of each "key", or of the whole "job", which then needs one shard

    Raises `ConfigurationError` (WR100), `BadDuration` (WR101) where time is negative, `RetentionMissing` (WR103) where nothing
    is limited.

    >>> Retain("7 days", windows=100)
    wr.Retain('7 days', windows=100)
    """
    for name, n in (("windows", windows), ("messages", messages)):
        if n is not None and (not isinstance(n, int) or n <= 0):
            raise ConfigurationError(
                f"retention of {n!r} {name}: use a whole number, 1 or more, or leave it out"
            )
    if per not in ("key", "job"):
        raise ConfigurationError(f"retention per={per!r}: use 'key' or 'job'")
    time_us = None if time is None or isinstance(time, Forever) else duration_us(time, "retention")
    if time_us is not None and time_us < 0:
        raise BadDuration(f"retention {time!r} is negative: use '0 seconds' or more, or wr.forever")
    if time is None and windows is None and messages is None:
        raise RetentionMissing(
            "wr.Retain() limits nothing: use a time, wr.Retain('7 days'), a number, wr.Retain(windows=100), or wr.forever"
        )
    return Retention(time_us, windows, messages, per)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event time up to which input is complete. Build it with `wr.bounded`, `wr.fixed`, `wr.explicit`, `wr.custom`.

    kind "bounded": per partition the largest event time less `delay_us`, minimum over partitions that are not idle;
    "fixed": now less `delay_us`; "explicit": only what the caller advances it to;
    "custom": `function(marks, now_us) -> us`, marks being {(source, partition): largest event time}.
    """

    kind: str
    delay_us: int = 0
    idle_us: int | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    function: Callable[[dict[tuple[str, int], int], int], int | None] | None = field(
        default=None, compare=False
    )
    name: str = ""

    def __repr__(self) -> str:
        idle = None if self.idle_us is None else show_duration(self.idle_us)
        match self.kind:
            case "bounded":
                return call(
                    "bounded", show_duration(self.delay_us), idle=idle, partitions=self.partitions or None
                )
            case "fixed":
                return call("fixed", show_duration(self.delay_us))
            case "explicit":
                return call("explicit")
            case _:
                return call("custom", name=self.name)


def bounded(
    delay: Duration = "0 seconds",
    *,
    idle: Duration | None = None,
    partitions: Sequence[tuple[str, int]] = (),
) -> Watermark:
    """Bound a stream's disorder: the watermark trails the largest event time. A plain duration for `watermark=` means this.

    delay: by how much the watermark trails the largest event time, of each partition by itself
    idle: a partition without messages for so long (of `now`) does not hold the watermark back; without it all do
    partitions: (source, partition) that hold the watermark until they are seen; others that were never seen do not

    The minimum over partitions counts. Raises `BadWatermark` (WR110) where `delay` is negative or `idle` not positive,
    `BadDuration` (WR101).

    >>> bounded("2 hours", idle="5 minutes")
    wr.bounded('2 hours', idle='5 minutes')
    """
    delay_us = _delay_us(delay)
    idle_us = None if idle is None else duration_us(idle, "idle time")
    if idle_us is not None and idle_us <= 0:
        raise BadWatermark(
            f"wr.bounded({delay!r}, idle={idle!r}): all partitions would be idle at once, and the watermark never move: use "
            "more than lies between two messages, as '5 minutes', or leave it out"
        )
    return Watermark("bounded", delay_us, idle_us, tuple((str(s), int(p)) for s, p in partitions))


def fixed(delay: Duration) -> Watermark:
    """Set the watermark to `now` less a delay, whatever the messages' times.

    delay: a duration

    Raises `BadWatermark` (WR110) where it is negative, `BadDuration` (WR101).

    >>> fixed("10 minutes")
    wr.fixed('10 minutes')
    """
    return Watermark("fixed", _delay_us(delay))


def _delay_us(delay: Duration) -> int:
    delay_us = duration_us(delay, "watermark delay")
    if delay_us < 0:
        raise BadWatermark(f"watermark delay {delay!r} is negative: use '0 seconds' or more")
    return delay_us


def explicit() -> Watermark:
    """Leave the watermark to the caller, who alone advances it: `op.advance_watermark(to)`, of one input with `input=`.

    >>> explicit()
    wr.explicit()
    """
    return Watermark("explicit")


def custom(function: Callable[[dict[tuple[str, int], int], int], int | None], *, name: str) -> Watermark:
    """Compute the watermark by a function of your own.

    function: a pure function of {(source, partition): largest event time} and `now`, both int microseconds, to the event
        time up to which input is complete, in microseconds, or None. Its result may decrease; the watermark does not
    name: by which it is known in the fingerprint and when a definition is printed

    Raises `BadWatermark` (WR110) where it is no function.

    >>> custom(lambda marks, now_us: min(marks.values(), default=None), name="slowest")
    wr.custom(name='slowest')
    """
    if not callable(function):
        raise BadWatermark(
            f"wr.custom({function!r}): use a function of {{(source, partition): largest event time}} and now"
        )
    return Watermark("custom", function=function, name=name)


def max_ahead_us(duration: Duration | Forever | None, watermark: Watermark) -> int | None:
    """Return the limit by which an event time may exceed `now`, None for any. The default is a day where messages move the
    watermark: otherwise one message with a wrong date would make all others late, permanently.
    """
    if isinstance(duration, Forever):
        return None
    if duration is None:
        return DAY_US if watermark.kind == "bounded" else None
    ahead_us = duration_us(duration, "max_ahead")
    if ahead_us < 0:
        raise BadDuration(
            f"max_ahead {duration!r} is negative: use '0 seconds' or more, or wr.forever for no limit"
        )
    return ahead_us


def show_max_ahead(ahead_us: int | None, watermark: Watermark) -> Any:
    """Return the value that `max_ahead_us` parses to `ahead_us`; None for the default."""
    if ahead_us == max_ahead_us(None, watermark):
        return None
    return forever if ahead_us is None else show_duration(ahead_us)


def letters_us(duration: Duration | Forever | None) -> int | None:
    """Parse the retention of dead letters; None where none was declared."""
    if duration is None or isinstance(duration, Forever):
        return None if duration is None else UNBOUNDED_US
    kept_us = duration_us(duration, "dead_letter_retention")
    if kept_us < 0:
        raise BadDuration(
            f"dead_letter_retention {duration!r} is negative: use '0 seconds' or more, or wr.forever for no limit"
        )
    return kept_us


def show_letters(kept_us: int | None) -> Any:
    """Return the value that `letters_us` parses to `kept_us`."""
    if kept_us is None:
        return None
    return forever if kept_us == UNBOUNDED_US else show_duration(kept_us)


#: Lateness without end: the window takes messages as long as the state lives.
UNBOUNDED_US = 2**62
