"""An input of an operator: its event time, its watermark, and the window of it that another input sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windrow.core import check
from windrow.core.deliver import Policy, policy_of
from windrow.core.errors import (
    BadWindow,
    ConfigurationError,
)
from windrow.core.expressions import Expr
from windrow.core.policy import (
    Forever,
    Watermark,
    bounded,
    check_unit,
    max_ahead_us,
    show_max_ahead,
)
from windrow.core.positions import Positions
from windrow.core.show import Raw, call
from windrow.core.time import Duration, TimeUnit
from windrow.core.windows import Hopping, JoinWindowSpec
from windrow.core.zones import check_zone


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

    def __repr__(self) -> str:
        return call(
            "Input",
            self.name,
            event_time=self.event_time,
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
        )

    def _shown_ahead(self) -> Any:
        unsaid = self.static and self.max_ahead_us is None
        return None if unsaid else show_max_ahead(self.max_ahead_us, self.watermark)

    @property
    def stream(self) -> Input:
        """What of it is of the stream itself, whichever operator takes it."""
        return replace(self, window=None, by=None, where=None, deliver=None)

    @property
    def asked(self) -> tuple[Expr, ...]:
        """The conditions of messages by which it takes them."""
        guaranteed = None if self.deliver is None else self.deliver.guaranteed
        return tuple(e for e in (self.where, guaranteed) if e is not None)

    @property
    def source_prefix(self) -> str:
        """Sources of this input's positions begin with it, so that two inputs never share a partition."""
        return f"{self.name}:"


def make_input(
    name: str,
    *,
    event_time: str,
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
) -> Input:
    """Check what the user wrote of one input."""
    check.of_type(event_time, str, "event_time", "name the column that holds the time of the event")
    check.flag(static, "static")
    check_unit(event_time_unit)
    if time_zone is not None:
        check_zone(time_zone)
    if positions is not None:
        check.of_type(
            positions, Positions, "positions", "use wr.positions('offset', partition='part', source='topic')"
        )
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
    rest = (time_zone, ahead_us, positions, static, event_time_unit)
    return Input(name, event_time, window, marked, *rest, where=where, by=keys, deliver=policy)


def which(name: str | None, inputs: Sequence[Input], whose: str) -> str:
    """Why no input is meant by that name. whose: the operator that has these inputs."""
    names = [given.name for given in inputs]
    called = f"input {name!r} is none of {whose!r}" if name is not None else f"{whose!r} has several inputs"
    return f"{called}: say which, of {names}, e.g. input={names[0]!r}"
