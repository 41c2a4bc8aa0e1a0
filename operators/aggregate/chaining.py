"""Chaining of aggregates: the columns of panes forwarded downstream, and the receiving of rows of another operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windrow.core.emit import EveryBatch, Never
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.policy import UNBOUNDED_US, bounded
from windrow.core.time import START_OF_TIME_US, show_duration
from windrow.core.windows import Global, Inherited, Session
from windrow.operators.aggregations import RETRACTABLE
from windrow.operators.operator import Taker
from windrow.operators.steps.assigners import assigner_of

if TYPE_CHECKING:
    from windrow.operators.aggregate.definition import AggregateDefinition

#: Columns of a pane that is forwarded downstream, besides keys and aggregates: the last moment of its window, which is its
#: event time there and so stays inside its window; and the window itself.
WINDOW_TIME, WINDOW_START, WINDOW_END = "window_time", "window_start", "window_end"
WINDOW_COLUMNS = (WINDOW_TIME, WINDOW_START, WINDOW_END)


def taker(definition: AggregateDefinition, before: str) -> Taker:
    """Return how an aggregate receives the rows of the operator `before`."""
    if definition.watermark != bounded():
        raise BadWatermark(
            f"watermark={definition.watermark!r} of {definition.name!r}, which follows {before!r}: its watermark is that of "
            f"{before!r}, leave it out"
        )
    for option, value in (("positions", definition.positions), ("ids", definition.ids)):
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} of {definition.name!r}, which follows {before!r}: its messages are the rows of "
                f"{before!r}, each emitted once and in order; leave it out"
            )
    if definition.makes:
        raise ConfigurationError(
            f"{[name for name, _ in definition.makes]} of {definition.name!r}, which follows {before!r}, by expressions: make "
            f"these columns in by= or agg= of {before!r}"
        )
    wanted = dict.fromkeys([*definition.by, *(c for a in definition.agg.values() for c in a.columns)])
    if definition.inherited:
        if definition.event_time != WINDOW_TIME:
            raise BadWindow(
                f"event_time={definition.event_time!r} of {definition.name!r}, with {definition.window!r}: what has a window "
                f"has the time {WINDOW_TIME!r}, the last moment of it; use event_time={WINDOW_TIME!r}"
            )
        wanted[WINDOW_START] = None
    late_us = definition.allowed_lateness_us
    gaps = () if definition.own_gap is None else (definition.own_gap,)
    uses = (*gaps, *(e for a in definition.agg.values() for e in a.expressions))
    return Taker(definition.name, definition.inputs[0], tuple(wanted), _keeps(definition), late_us, uses)


def _keeps(definition: AggregateDefinition) -> str:
    """Return the reason why an aggregate cannot process a retraction; "" where it can."""
    if definition.numbered:
        return f"it has windows of {definition.window!r}, where all later messages would get other numbers: use windows of time"
    if definition.retention.windows is not None or definition.retention.messages is not None:
        return f"retention={definition.retention!r} lets go of what may still be taken back: keep windows by time"
    if definition.emit.mode == "discarding":
        return "in mode 'discarding' emitted results are no part of its state: use another mode"
    for alias, aggregation in definition.agg.items():
        if definition.session:  # messages are kept, and all is computed of those that stay
            if aggregation.kind == "user":
                return f"{alias!r} is {aggregation!r}, whose code may raise for the messages that stay: use another aggregation"
        elif aggregation.kind not in RETRACTABLE:
            return f"{alias!r} is {aggregation!r}, which takes no value back: use one of {', '.join(RETRACTABLE)}"
    return ""


def emits_updates(definition: AggregateDefinition) -> bool:
    """True if panes may replace earlier panes."""
    mode = definition.emit.mode
    return mode == "retracting" or (mode == "accumulating" and not _once(definition))


def _once(definition: AggregateDefinition) -> bool:
    """True if each window is emitted once, when it ends."""
    emit = definition.emit
    no_late, in_time = isinstance(emit.late, Never), definition.allowed_lateness_us == 0
    # An emitted session may still grow unless no late message is accepted.
    settled = no_late and in_time if definition.session else no_late or in_time
    once = isinstance(emit.early, Never) and settled and emit.on_time and not emit.closing_pane
    return once or emits_at_close(definition)


def emits_at_close(definition: AggregateDefinition) -> bool:
    """True if each window is emitted once, when it closes."""
    emit = definition.emit
    silent = isinstance(emit.early, Never) and isinstance(emit.late, Never)
    return silent and emit.closing_pane and not emit.on_time


def emitted_until_us(definition: AggregateDefinition, reached_us: int) -> int:
    """Return the last moment of the newest window that holds a time."""
    if reached_us <= START_OF_TIME_US or definition.tuple_window or isinstance(definition.window, Global):
        return reached_us
    if isinstance(definition.window, Session):
        return reached_us + definition.window.gap_us
    if isinstance(definition.window, Inherited):
        return reached_us  # the time of a row is the last moment of its window
    _, _, ends = assigner_of(definition.window).assign(np.array([reached_us], dtype=np.int64))
    return int(ends.max(initial=reached_us + 1)) - 1


def check_followed(first: AggregateDefinition, second: Taker) -> None:
    """Check that each pane is a contribution of its own, or retracts the pane that it replaces."""
    if first.numbered or isinstance(first.window, Global):
        raise BadWindow(
            f"{first.window!r} of {first.name!r} has no end in event time, by which {second.name!r} could file its panes: use "
            "wr.tumbling, wr.hopping, wr.calendar or wr.session"
        )
    trouble = _trouble(first, second)
    if trouble:
        raise BadTrigger(f"{first.emit!r} of {first.name!r}, before {second.name!r}: {trouble}")
    if second.event_time != WINDOW_TIME:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r}: a pane of {first.name!r} has the time {WINDOW_TIME!r}, the "
            f"last moment of its window; use event_time={WINDOW_TIME!r}"
        )
    columns = (*first.by, *first.agg)
    clash = [c for c in columns if c in WINDOW_COLUMNS]
    if clash:
        raise ReservedColumn(
            f"column {clash[0]!r} of {first.name!r} would clash with the column of that name that {second.name!r} gets (panes "
            f"bring {', '.join(WINDOW_COLUMNS)} beside keys and aggregates): rename it"
        )
    remedy = f": add it to by= or agg= of {first.name!r}"
    second.check_columns((*columns, *WINDOW_COLUMNS), f"{first.name!r}, whose panes", remedy)


def _trouble(first: AggregateDefinition, second: Taker) -> str:
    """Return the reason why `second` would count panes of `first` twice, or too late; "" where it would not."""
    emit = first.emit
    closes = emits_at_close(first)
    if not emit.on_time and emit.emits_late and first.allowed_lateness_us and not closes:
        return (
            "without ON_TIME panes the rest of a window is emitted when it is late; use on_time=True, or "
            "emit=wr.Emit.append()"
        )
    if first.session and first.takes_back:
        return (
            "its messages may be taken back, and what becomes of a session that falls apart may have ended long ago: let it "
            "come last"
        )
    if not first.emits_updates:
        discarding = emit.mode == "discarding" and emit.closing_pane and not closes
        return "a closing pane emits a window again; leave it out" if discarding else ""
    if second.keeps:
        return (
            f"it emits a window several times, each pane replaces the former one, and {second.name!r} cannot take "
            f"that back: {second.keeps}; or use emit=wr.Emit.append() for {first.name!r}"
        )
    if first.session and not (isinstance(emit.early, EveryBatch) and isinstance(emit.late, EveryBatch)):
        return (
            "an emitted session may go on for any time before it is emitted again, and is then retracted where nothing "
            "late is taken any more; use early=wr.every_batch, late=wr.every_batch, or emit=wr.Emit.append()"
        )
    if first.session and second.allowed_lateness_us < first.allowed_lateness_us:
        downstream, own = map(_shown, (second.allowed_lateness_us, first.allowed_lateness_us))
        return (
            f"a session may grow for {own}, and is then taken back where it was; {second.name!r} takes nothing that is later "
            f"than {downstream}, and would count it twice: allow as much"
        )
    return ""


def _shown(late_us: int) -> str:
    return "any time" if late_us >= UNBOUNDED_US else show_duration(late_us)
