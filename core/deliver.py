"""Which messages of a step are passed on where there are more than are wanted: delivery policies, as \\psi has them."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core import check
from windrow.core.errors import BadDuration
from windrow.core.show import call
from windrow.core.time import Duration, duration_us, show_duration


@dataclass(frozen=True, slots=True)
class Policy:
    """At most so many of the newest messages, or those of so many microseconds before `now`. Build it with `wr.deliver`."""

    newest: int | None = None
    within_us: int | None = None

    def __repr__(self) -> str:
        if self.within_us is not None:
            return call("deliver.within", show_duration(self.within_us))
        return call("deliver.latest") if self.newest == 1 else call("deliver.newest", self.newest)


def latest() -> Policy:
    """The newest message alone.

    >>> latest()
    wr.deliver.latest()
    """
    return Policy(newest=1)


def newest(n: int) -> Policy:
    """The newest messages, of a queue of bounded size, which drops the oldest.

    n: at most so many

    >>> newest(1_000)
    wr.deliver.newest(1000)
    """
    check.number(n, "newest", "use a number of messages, 1 or more", least=1)
    return Policy(newest=n)


def within(latency: Duration) -> Policy:
    """The messages that are not older than that, by event time, when the step is made.

    latency: how far event time may lie behind `now`

    >>> within("2 seconds")
    wr.deliver.within('2 seconds')
    """
    within_us = duration_us(latency, "latency")
    if within_us < 0:
        raise BadDuration(f"within({latency!r}) is negative: use '0 seconds' or more")
    return Policy(within_us=within_us)


__all__ = ["Policy", "latest", "newest", "within"]
