"""An input of an operator: its event time, its watermark, and the window of it that another input sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windrow.core import check
from windrow.core.deliver import Policy, policy_of
from windrow.core.errors import (
    BadDuration,
    BadWindow,
    ConfigurationError,
)
from windrow.core.expressions import Expr
from windrow.core.policy import (
    Forever,
    Watermark,
    bounded,
    max_ahead_us,
    show_max_ahead,
)
from windrow.core.positions import Positions
from windrow.core.show import Raw, call
from windrow.core.time import TIME_UNITS, Duration, TimeUnit, duration_us, show_duration
from windrow.core.windows import Hopping, JoinWindowSpec
from windrow.core.zones import check_zone

#: The name of the input of an operator that names none: those of all such operators of a job are one input.
UNNAMED = ""
#: The column of the recorded `now` of an input without event time.
STAMPED = "__time"


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends of the messages of an input: event time and a duration, an end, or a start."""

    duration: str | None = None
    duration_unit: TimeUnit | None = None
    start: str | None = None
    end: str | None = None
    longest_us: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that hold the other end, one or none."""
        return tuple(c for c in (self.duration, self.start, self.end) if c is not None)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Time for which the messages of an input are kept for rules; `us` None: `wr.forever`.

    kind: "exactly"; "at_least": the greater of this and the inferred one; "otherwise": where nothing is inferred
    """

    us: int | None
    kind: str = "exactly"

    def __repr__(self) -> str:
        shown = Raw("wr.forever") if self.us is None else show_duration(self.us)
        return repr(shown) if self.kind == "exactly" else call(self.kind, shown)


@dataclass(frozen=True, slots=True)
class Facts:
    """Keys of the rows of a table, and the column that is true for a row that deletes; without key each message is a row."""

    key: tuple[str, ...] | None
    deleted: str | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an operator that has several. Build it with `wr.Input`."""

    name: str
    event_time: str
    window: JoinWindowSpec | None = None
    watermark: Watermark = field(default_factory=bounded)
    time_zone: str | None = None
    max_ahead_us: int | None = None
    positions: Positions | None = None
    static: bool = False
    event_time_unit: TimeUnit | None = None
    #: True if the operator makes its event time of other columns.
    time_made: bool = False
    where: Expr | None = None
    #: Its key columns, where they are called otherwise than those of its operator.
    by: tuple[str, ...] | None = None
    deliver: Policy | None = None
    #: For rules; None for points.
    interval: Interval | None = None
    expires: Expiry | None = None
    #: For a `wr.Table`.
    facts: Facts | None = None

    @property
    def stamped(self) -> bool:
        """True if its messages have the recorded `now` as their event time."""
        return self.event_time == STAMPED

    def refuse_rules(self, operator: str) -> None:
        """Raise `ConfigurationError` where it has settings that only `wr.Rules` uses. operator: the one that has this input."""
        interval = self.interval or Interval()
        own = {
            "wr.Table": self.facts,
            "duration=": interval.duration,
            "start=": interval.start,
            "end=": interval.end,
            "longest=": interval.longest_us,
            "expires=": self.expires,
            "event_time=None": self.stamped or None,
        }
        for option, value in own.items():
            if value is not None:
                raise ConfigurationError(
                    f"input {self.name!r} of {operator} has {option}, which only wr.Rules takes: leave it out"
                )

    def __repr__(self) -> str:
        if self.facts is not None:
            return call(
                "Table",
                self.name,
                key=self.facts.key,
                deleted=self.facts.deleted,
                event_time=None if self.stamped else self.event_time,
                by=self.by,
                time_zone=self.time_zone,
                event_time_unit=self.event_time_unit,
                positions=self.positions,
                where=None if self.where is None else Raw(self.where),
            )
        interval = self.interval or Interval()
        longest = None if interval.longest_us is None else show_duration(interval.longest_us)
        return call(
            "Input",
            self.name,
            event_time=Raw("None") if self.stamped else self.event_time,
            by=self.by,
            window=self.window,
            watermark=None if self.watermark == bounded() else self.watermark,
            time_zone=self.time_zone,
            max_ahead=self._shown_ahead(),
            positions=self.positions,
            static=self.static or None,
            event_time_unit=self.event_time_unit,
            where=None if self.where is None else Raw(self.where),
            deliver=self.deliver,
            duration=interval.duration,
            duration_unit=interval.duration_unit,
            start=interval.start,
            end=interval.end,
            longest=longest,
            expires=self.expires,
        )

    def _shown_ahead(self) -> Any:
        unsaid = self.static and self.max_ahead_us is None
        return None if unsaid else show_max_ahead(self.max_ahead_us, self.watermark)

    @property
    def stream(self) -> Input:
        """The input without the settings of a single operator."""
        plain = replace(self, window=None, by=None, where=None, deliver=None)
        return replace(plain, interval=None, expires=None)

    @property
    def asked(self) -> tuple[Expr, ...]:
        """The conditions of messages by which it takes them."""
        guaranteed = None if self.deliver is None else self.deliver.guaranteed
        return tuple(e for e in (self.where, guaranteed) if e is not None)

    @property
    def shown(self) -> str | None:
        """Its name in dead letters; None where it has none."""
        return self.name or None

    @property
    def called(self) -> str:
        """Its name in errors."""
        return f"input {self.name!r}" if self.name else "the input"

    @property
    def source_prefix(self) -> str:
        """Sources of this input's positions begin with it, so that two inputs never share a partition."""
        return f"{self.name}:"


def check_reading(time_zone: Any, unit: Any, positions: Any) -> None:
    """Check how times and positions of an input are read."""
    if unit is not None:
        check.choice(unit, "event_time_unit", TIME_UNITS)
    if time_zone is not None:
        check_zone(time_zone)
    if positions is not None:
        named = "use wr.positions('offset', partition='part', source='topic')"
        check.of_type(positions, Positions, "positions", named)


def make_input(
    name: str,
    *,
    event_time: str | None,
    window: JoinWindowSpec | None,
    watermark: Duration | Watermark,
    time_zone: str | None,
    max_ahead: Duration | Forever | None,
    positions: Positions | None,
    static: bool,
    event_time_unit: TimeUnit | None,
    where: Expr | None,
    by: str | Sequence[str] | None,
    deliver: Policy | None,
    interval: Interval | None = None,
    expires: Duration | Expiry | Forever | None = None,
) -> Input:
    """Check the user's definition of one input."""
    if event_time is not None:
        check.of_type(event_time, str, "event_time", "name the column that holds the time of the event")
    check.flag(static, "static")
    check_reading(time_zone, event_time_unit, positions)
    check.name(name, "name")
    if window is not None and not isinstance(window, JoinWindowSpec):
        raise BadWindow(
            f"window={window!r} of input {name!r}: use wr.sliding, wr.unbounded, wr.tumbling, wr.hopping, wr.rows or "
            "wr.session('10 minutes'); a join window, wr.JoinWindow(window=...), takes other kinds"
        )
    if isinstance(window, Hopping) and window.hop_us > window.size_us:
        raise BadWindow(f"{window!r} leaves gaps, in which messages of {name!r} could not be joined")
    marked = watermark if isinstance(watermark, Watermark) else bounded(watermark)
    # A table does not hold the watermark, and may well speak of the future.
    ahead_us = None if static and max_ahead is None else max_ahead_us(max_ahead, marked)
    keys = None if by is None else check.names(by, "by", "name a column, or several as by=('id', 'site')")
    policy = policy_of(deliver)
    if static and policy is not None:
        raise ConfigurationError(
            f"deliver={policy!r} of input {name!r}, which is static=True: a table is taken whole"
        )
    rest = (time_zone, ahead_us, positions, static, event_time_unit, event_time is None)
    return Input(
        name,
        STAMPED if event_time is None else event_time,
        window,
        marked,
        *rest,
        where=where,
        by=keys,
        deliver=policy,
        interval=interval,
        expires=_expiry(expires),
    )


def make_interval(
    name: str,
    duration: str | None,
    duration_unit: TimeUnit | None,
    start: str | None,
    end: str | None,
    longest: Duration | None,
) -> Interval | None:
    """Check the user's definition of both ends of an input's messages; None for points."""
    ends = {
        option: column
        for option, column in (("duration", duration), ("start", start), ("end", end))
        if column is not None
    }
    for option, column in ends.items():
        check.of_type(column, str, option, "name a column")
    if len(ends) > 1:
        shown = ", ".join(f"{option}={column!r}" for option, column in ends.items())
        raise ConfigurationError(
            f"input {name!r} has {shown}: event_time is one end, say the other in one way"
        )
    if duration is None and duration_unit is not None:
        raise ConfigurationError(
            f"duration_unit={duration_unit!r} of input {name!r} without duration=: leave it out"
        )
    if duration_unit is not None and duration_unit not in TIME_UNITS:
        raise ConfigurationError(
            f"duration_unit={duration_unit!r} of input {name!r}: use one of {', '.join(map(repr, TIME_UNITS))}"
        )
    longest_us = None if longest is None else duration_us(longest, "longest")
    if longest_us is not None and not ends:
        raise ConfigurationError(
            f"longest={longest!r} of input {name!r}, whose messages are points: say duration=, start= or end=, or leave it out"
        )
    if longest_us is not None and longest_us <= 0:
        raise BadDuration(f"longest={longest!r} of input {name!r}: use more than 0, e.g. '1 day'")
    return Interval(duration, duration_unit, start, end, longest_us) if ends else None


def at_least(expires: Duration) -> Expiry:
    """Return an expiry for `wr.Input(expires=)`: the greater of this and what rules need.

    expires: a duration, from the end of a message in event time

    Raises `BadDuration` (WR101).

    >>> at_least("30 minutes")
    wr.at_least('30 minutes')
    """
    return Expiry(_expires_us(expires), "at_least")


def otherwise(expires: Duration) -> Expiry:
    """Return an expiry for `wr.Input(expires=)` where rules need messages without bound, and not else.

    expires: a duration, from the end of a message in event time

    Raises `BadDuration` (WR101).

    >>> otherwise("30 minutes")
    wr.otherwise('30 minutes')
    """
    return Expiry(_expires_us(expires), "otherwise")


def _expiry(duration: Duration | Expiry | Forever | None) -> Expiry | None:
    if duration is None or isinstance(duration, Expiry):
        return duration
    return Expiry(None) if isinstance(duration, Forever) else Expiry(_expires_us(duration))


def _expires_us(duration: Duration) -> int:
    us = duration_us(duration, "expires")
    if us < 0:
        raise BadDuration(f"expires {duration!r} is negative: use '0 seconds' or more, or wr.forever")
    return us


def make_table(
    name: str,
    *,
    key: str | Sequence[str] | None,
    deleted: str | None,
    event_time: str | None,
    by: str | Sequence[str] | None,
    time_zone: str | None,
    event_time_unit: TimeUnit | None,
    positions: Positions | None,
    where: Expr | None,
) -> Input:
    """Check the user's definition of a table of facts."""
    keys = None if key is None else check.names(key, "key", "name a column, or several as key=('id', 'site')")
    if deleted is not None:
        check.of_type(
            deleted, str, "deleted", "name a column that is true where a message deletes the row of its key"
        )
        if keys is None:
            raise ConfigurationError(
                f"deleted={deleted!r} of table {name!r} without key=: say whose row is deleted"
            )
    made = make_input(
        name,
        event_time=event_time,
        window=None,
        watermark="0 seconds",
        time_zone=time_zone,
        max_ahead=None,
        positions=positions,
        static=True,
        event_time_unit=event_time_unit,
        where=where,
        by=by,
        deliver=None,
    )
    return replace(made, facts=Facts(keys, deleted))


def which(name: str | None, inputs: Sequence[Input], whose: str) -> str:
    """Why no input is meant by that name. whose: the operator that has these inputs."""
    names = [input.name for input in inputs]
    called = f"input {name!r} is none of {whose!r}" if name is not None else f"{whose!r} has several inputs"
    if names == [UNNAMED]:
        return f"{called}, whose one input has no name: leave input= out"
    return f"{called}: say which, of {names}, e.g. input={names[0]!r}"
