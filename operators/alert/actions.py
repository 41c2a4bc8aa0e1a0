"""Actions of an alert: which transitions of its status are emitted, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.emit import EveryCount, EveryPeriod, Never, never
from windrow.core.errors import BadDuration, BadTrigger, ConfigurationError
from windrow.core.expressions import Expr
from windrow.core.show import Raw, call
from windrow.core.time import Duration, duration_us, show_duration


@dataclass(frozen=True, init=False, repr=False)
class Action:
    """A receiver of an alert: the transitions that it wants, judged apart from those of other actions.

    open, cancel: whether it gets a row when the alert opens, and when it is cancelled
    repeat: a row again while the alert is open: wr.every(10), at each tenth evaluation that holds; wr.every("5 minutes"), so
        long of `now` after its last row, with data or without; wr.never
    delay: the alert has to be open for so long of event time before the first row; one cancelled before has no row
    where: a condition of the row, over its columns: rows for which it is not true are not emitted;
        one on which it raises is a dead letter

    Raises `BadTrigger` (WR107), `BadDuration` (WR101).

    >>> Action(delay="1 minute", cancel=False)
    wr.Action(cancel=False, delay='1 minute')
    """

    open: bool
    repeat: Never | EveryCount | EveryPeriod
    cancel: bool
    delay_us: int
    where: Expr | None

    @check.suggests
    def __init__(
        self,
        *,
        open: bool = True,
        repeat: Never | EveryCount | EveryPeriod = never,
        cancel: bool = True,
        delay: Duration | None = None,
        where: pc.Expression | None = None,
    ) -> None:
        delay_us = 0 if delay is None else duration_us(delay, "delay")
        if delay_us < 0:
            raise BadDuration(f"delay {delay!r} is negative: use '0 seconds' or more")
        plain = not isinstance(repeat, EveryPeriod) or not (repeat.always or repeat.event_time)
        if not isinstance(repeat, (Never, EveryCount, EveryPeriod)) or not plain:
            raise BadTrigger(
                f"repeat={repeat!r}: use wr.every(10), wr.every('5 minutes') or wr.never, without other options"
            )
        remedy = "use an expression of columns of the row, such as wr.col('count') > 5"
        fields = {
            "open": check.flag(open, "open"),
            "repeat": repeat,
            "cancel": check.flag(cancel, "cancel"),
            "delay_us": delay_us,
            "where": None if where is None else Expr(check.of_type(where, pc.Expression, "where", remedy)),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        options = {
            "open": None if self.open else False,
            "repeat": None if self.repeat == never else self.repeat,
            "cancel": None if self.cancel else False,
            "delay": show_duration(self.delay_us) if self.delay_us else None,
            "where": None if self.where is None else Raw(self.where),
        }
        return call("Action", **options)

    @property
    def period_us(self) -> int | None:
        """The period of its repeats, where they are due by `now`."""
        return self.repeat.period_us if isinstance(self.repeat, EveryPeriod) else None


def actions_of(value: Mapping[str, Action] | None) -> dict[str, Action]:
    """Return the actions by name; without any, one that emits OPEN and CANCEL."""
    if value is None:
        return {"alert": Action()}
    if not isinstance(value, Mapping) or not value:
        raise ConfigurationError(f"actions={value!r}: use {{name: wr.Action(...)}}, with one action or more")
    for name, action in value.items():
        check.name(name, "actions")
        check.of_type(action, Action, f"actions[{name!r}]", "use wr.Action(...)")
    return dict(value)


def by_now(actions: Mapping[str, Any]) -> bool:
    """True if some action repeats by `now`."""
    return any(action.period_us is not None for action in actions.values())
