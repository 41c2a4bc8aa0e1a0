"""Delivery policies, as \\psi has them: they select the messages of a step where there are more than are wanted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.errors import BadDuration, ConfigurationError, ReservedColumn
from windrow.core.expressions import Expr
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.positions import Ids
from windrow.core.show import call
from windrow.core.time import Duration, duration_us, show_duration

_REMEDY = (
    "use wr.deliver.latest(), wr.deliver.newest(1000), wr.deliver.within('2 seconds'), "
    "wr.deliver.throttle('1 second'), wr.deliver.synchronous() or wr.deliver.all()"
)


#: The default name of the column that marks skipped messages.
MARK = "skipped"


@dataclass(frozen=True, slots=True)
class Policy:
    """Delivery policy: selects the messages of a step that are processed. Build it with `wr.deliver`.

    newest: so many of a step; within_us: maximum age; interval_us: one in so long of `now`; per: key or input; record: where
    skipped ones are kept; guaranteed: condition of messages that are never skipped; mark: the column that is true for those
    skipped but not left out; sync: True if `add_message` waits for its commit
    """

    newest: int | None = None
    within_us: int | None = None
    interval_us: int | None = None
    per: str = "key"
    record: str | None = None
    guaranteed: Expr | None = None
    mark: str | None = None
    sync: bool = False

    def guarantee(self, condition: pc.Expression) -> Policy:
        """Return the same policy, which never skips a message for which the condition is true; several are combined by "or".

        >>> import windrow as wr
        >>> wr.deliver.newest(10).guarantee(wr.col("alarm"))
        wr.deliver.newest(10).guarantee(alarm)
        """
        remedy = "use an expression of columns of the input, such as wr.col('kind') == 'alarm'"
        own = check.of_type(condition, pc.Expression, "guarantee", remedy)
        return replace(
            self, guaranteed=Expr(own if self.guaranteed is None else self.guaranteed.expression | own)
        )

    def marked(self, mark: str = MARK) -> Policy:
        """Return the same policy for a `wr.Aggregate` whose windows count what it skips, by `wr.skipped()`.

        mark: an additional column of the input that is true for a skipped message

        Aggregations that do not name that column leave such messages out. Raises `ConfigurationError` (WR100) where nothing is
        skipped, or what is skipped is recorded elsewhere.

        >>> import windrow as wr
        >>> wr.deliver.latest().marked()
        wr.deliver.latest().marked('skipped')
        """
        check.name(mark, "mark")
        if self.record is not None or not self.skips:
            raise ConfigurationError(
                f"mark={mark!r} of {self.plain}: the skipped messages stay, and the mark distinguishes them; use a policy that "
                "skips some, and without record="
            )
        return replace(self, mark=mark)

    @property
    def skips(self) -> bool:
        """True if it may skip messages; otherwise it only sets when `add_message` returns."""
        return self.counts or self.within_us is not None

    @property
    def counts(self) -> bool:
        """True if a message may be skipped because of others."""
        return self.newest is not None or self.interval_us is not None

    @property
    def plain(self) -> str:
        """The policy without its guarantee, as text."""
        rest = {"per": None if self.per == "key" else self.per, "record": self.record}
        if self.within_us is not None:
            return call("deliver.within", show_duration(self.within_us), record=self.record)
        if self.interval_us is not None:
            return call("deliver.throttle", show_duration(self.interval_us), **rest)
        if self.newest is None:
            return call("deliver.synchronous" if self.sync else "deliver.all")
        return (
            call("deliver.latest", **rest)
            if self.newest == 1
            else call("deliver.newest", self.newest, **rest)
        )

    def __repr__(self) -> str:
        sure = "" if self.guaranteed is None else f".guarantee({self.guaranteed!r})"
        return self.plain + sure + ("" if self.mark is None else f".marked({self.mark!r})")


def latest(*, per: str = "key", record: str | None = None) -> Policy:
    """Deliver the newest message of a step alone.

    per: "key", of each key, or "input", of all messages of a step
    record: "dead_letters" keeps those that are skipped, with the reason `skipped`; they are counted in any case

    >>> latest()
    wr.deliver.latest()
    """
    return newest(1, per=per, record=record)


def newest(n: int, *, per: str = "key", record: str | None = None) -> Policy:
    """Deliver the newest messages of a step, as of a queue of bounded size, which drops the oldest.

    n: at most so many
    per, record: as for `latest`

    >>> newest(1_000, per="input")
    wr.deliver.newest(1000, per='input')
    """
    check.number(n, "newest", "use a number of messages, 1 or more", least=1)
    return _checked(Policy(newest=n, per=per, record=record))


def within(latency: Duration, *, record: str | None = None) -> Policy:
    """Deliver the messages that are not older than that, by event time, when the step is made.

    latency: how much older than `now` an event time may be
    record: as for `latest`

    >>> within("2 seconds")
    wr.deliver.within('2 seconds')
    """
    within_us = duration_us(latency, "latency")
    if within_us < 0:
        raise BadDuration(f"within({latency!r}) is negative: use '0 seconds' or more")
    return _checked(Policy(within_us=within_us, record=record))


def throttle(interval: Duration, *, per: str = "key", record: str | None = None) -> Policy:
    """Deliver the newest message of a step, where none was delivered in the interval before it.

    interval: of `now`, as steps record it
    per, record: as for `latest`

    >>> throttle("1 second")
    wr.deliver.throttle('1 second')
    """
    interval_us = duration_us(interval, "interval")
    if interval_us <= 0:
        raise BadDuration(
            f"throttle({interval!r}) throttles nothing: use '1 second', or more than '0 seconds'"
        )
    return _checked(Policy(interval_us=interval_us, per=per, record=record))


def synchronous() -> Policy:
    """Deliver every message; `add_message` returns when its commit exists and a sink has received the panes it emitted.

    >>> synchronous()
    wr.deliver.synchronous()
    """
    return Policy(sync=True)


def all() -> Policy:
    """Deliver every message, as without a policy.

    >>> all()
    wr.deliver.all()
    """
    return Policy()


def policy_of(deliver: Any, ids: Ids | None = None, *, marks: bool = False) -> Policy | None:
    """Return an input's policy from the user's value. ids: by which its messages are known; marks: if it may have a mark."""
    if deliver is None:
        return None
    if any(deliver is plain for plain in (all, latest, synchronous)):
        deliver = deliver()  # written without parentheses
    policy: Policy = check.of_type(deliver, Policy, "deliver", _REMEDY)
    if not policy.skips and not policy.sync:
        return None
    if policy.counts and ids is not None:
        raise ConfigurationError(
            f"deliver={policy!r} with ids={ids!r}: a duplicate would be taken in the place of a message that is none; drop "
            "duplicates before, with wr.Deduplicate(...).then(...)"
        )
    if policy.mark is not None and not marks:
        raise ConfigurationError(
            f"deliver={policy!r}: only a wr.Aggregate counts what is skipped; leave .marked(...) out, or mark it by "
            f"wr.Delivery(policy={policy.plain}, mark={policy.mark!r})"
        )
    return policy


def check_mark(policy: Policy | None, named: Collection[str]) -> None:
    """Refuse a mark that is a column which the operator names, or one of ours."""
    if policy is not None and (policy.mark in named or policy.mark in RESERVED_COLUMNS):
        raise ReservedColumn(f"mark={policy.mark!r} has the name of a column: give it another one")


def _checked(policy: Policy) -> Policy:
    if policy.per not in ("key", "input"):
        raise ConfigurationError(f"per={policy.per!r}: use 'key' or 'input'")
    if policy.record not in (None, "dead_letters"):
        raise ConfigurationError(f"record={policy.record!r}: use 'dead_letters', or leave it out")
    return policy


__all__ = ["Policy", "all", "latest", "newest", "synchronous", "throttle", "within"]
