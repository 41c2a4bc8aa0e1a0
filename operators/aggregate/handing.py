"""An aggregate in a graph: what its panes are to the operator that takes them, and how it takes rows of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.emit import Never
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.policy import bounded
from windrow.core.windows import Global, Session
from windrow.operators.operator import Taker

if TYPE_CHECKING:
    from windrow.operators.aggregate.definition import AggregateDefinition

#: Columns of a pane on its way to the next operator, beside keys and aggregates: the last moment of its window, which is
#: its event time there, so that it stays inside its window; and the window itself.
WINDOW_TIME, WINDOW_START, WINDOW_END = "window_time", "window_start", "window_end"
WINDOW_COLUMNS = (WINDOW_TIME, WINDOW_START, WINDOW_END)


def taker(definition: AggregateDefinition, before: str) -> Taker:
    """How an aggregate takes the rows of the operator `before`."""
    if definition.watermark != bounded():
        raise BadWatermark(
            f"watermark={definition.watermark!r} of {definition.name!r}, which follows {before!r}: its watermark is that of "
            f"{before!r}, leave it out"
        )
    for option, value in (("positions", definition.positions), ("ids", definition.ids)):
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} of {definition.name!r}, which follows {before!r}: its messages are the rows of "
                f"{before!r}, each told once and in order; leave it out"
            )
    if definition.makes:
        raise ConfigurationError(
            f"{[name for name, _ in definition.makes]} of {definition.name!r}, which follows {before!r}, by expressions: make "
            f"these columns in by= or agg= of {before!r}"
        )
    wanted = dict.fromkeys([*definition.by, *(c for a in definition.agg.values() for c in a.columns)])
    return Taker(definition.name, definition.inputs[0], tuple(wanted))


def check_followed(first: AggregateDefinition, second: Taker) -> None:
    """Panes that are each a contribution of their own: none says again what another one said."""
    if first.tuple_window or isinstance(first.window, Global):
        raise BadWindow(
            f"{first.window!r} of {first.name!r} has no end in event time, by which {second.name!r} could file its panes: use "
            "wr.tumbling, wr.hopping, wr.calendar or wr.session"
        )
    emit = first.emit
    no_late, in_time = isinstance(emit.late, Never), first.allowed_lateness_us == 0
    # A session that was told may still grow unless nothing late is taken at all.
    settled = no_late and in_time if isinstance(first.window, Session) else no_late or in_time
    once = isinstance(emit.early, Never) and settled
    told_once = emit.mode == "discarding" or (emit.mode == "accumulating" and once)
    if not told_once or not emit.on_time or emit.closing_pane:
        raise BadTrigger(
            f"{emit!r} of {first.name!r}, before {second.name!r}: {_trouble(first)}; use emit=wr.Emit.append(), or "
            "mode='discarding' with on_time=True and no closing pane"
        )
    if second.event_time != WINDOW_TIME:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r}: a pane of {first.name!r} has the time {WINDOW_TIME!r}, the "
            f"last moment of its window; use event_time={WINDOW_TIME!r}"
        )
    made = (*first.by, *first.agg)
    clash = [c for c in made if c in WINDOW_COLUMNS]
    if clash:
        raise ReservedColumn(
            f"column {clash[0]!r} of {first.name!r} would clash with the column of that name that {second.name!r} gets (panes "
            f"bring {', '.join(WINDOW_COLUMNS)} beside keys and aggregates): rename it"
        )
    for column in second.columns:
        if column not in (*made, *WINDOW_COLUMNS):
            raise UnknownColumn(
                f"column {column!r} of {second.name!r} is none of {first.name!r}, whose panes have "
                f"{[*made, *WINDOW_COLUMNS]}: add it to by= or agg= of {first.name!r}"
            )


def _trouble(first: AggregateDefinition) -> str:
    emit = first.emit
    if emit.mode == "retracting":
        return "panes are taken back, and no operator takes a message back"
    if emit.closing_pane:
        return "a closing pane tells a window again"
    if not emit.on_time:
        return "without ON_TIME panes what is left of a window is told when it is late"
    return "early and late panes tell a window several times, and it would be counted as often"
