"""Eligibility for micro-batching: aggregates that run messages that come one by one as few columnar steps.
See `micro_batching/boundaries.py`, `micro_batching/ingest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.emit import (
    EveryBatch,
    EveryCount,
    EveryPeriod,
    Never,
    Trigger,
    by_step,
    by_value,
    of_event_time,
)
from windrow.core.windows import Session

if TYPE_CHECKING:
    from windrow.operators.aggregate.definition import AggregateDefinition


def in_runs(definition: AggregateDefinition) -> bool:
    """True if steps may be run as one. Not eligible: user code that may fail for one message; early results from kept messages;
    limits on the number of time windows, which each message may change; windows of messages with an added aggregation;
    discarding triggers by value; and periods of event time, which each message may end.
    """
    emit, retention = definition.emit, definition.retention
    limited = retention.windows is not None or retention.messages is not None
    triggers = (emit.early,) if definition.tuple_window else (emit.early, emit.late)
    return (
        (not definition.session or _sessions_in_runs(definition))
        and not (definition.tuple_window and definition.since_us)
        and definition.where is None
        and definition.deliver is None
        and not definition.makes
        and not (definition.full_state and any(map(by_step, triggers)) and not definition.session)
        and not (emit.mode == "discarding" and any(map(by_value, triggers)))
        and not any(map(of_event_time, triggers))
        and not (limited and not (definition.tuple_window and retention.per == "key"))
        and all(a.kind != "user" for a in definition.agg.values())
    )


def _sessions_in_runs(definition: AggregateDefinition) -> bool:
    """True for sessions that emit nothing early but by a period, and nothing when they close, without a maximum length."""
    emit, window = definition.emit, definition.window
    if definition.own_gap is not None or not isinstance(window, Session) or window.max_length_us is not None:
        return False
    early = isinstance(emit.early, (Never, EveryPeriod)) and _plain(emit.early)
    return early and _plain(emit.late) and emit.on_time and not emit.closing_pane


def _plain(trigger: Trigger) -> bool:
    return isinstance(trigger, (Never, EveryBatch, EveryCount, EveryPeriod)) and not getattr(
        trigger, "always", False
    )
