"""Emission and retention options of OVER windows, checked."""

from __future__ import annotations

from typing import Any

from windrow.core import check
from windrow.core.emit import Emit, EveryBatch, EveryPeriod, Never
from windrow.core.errors import BadDuration, BadTrigger
from windrow.core.policy import UNBOUNDED_US, Forever
from windrow.core.time import duration_us


def late_us(allowed_lateness: Any, emit: Any) -> int:
    """Return the allowed lateness. Rejects emissions that OVER windows do not have."""
    check.of_type(emit, Emit, "emit", "use e.g. wr.Emit(late=wr.every_batch, mode='retracting')")
    for name, trigger in (("early", emit.early), ("late", emit.late)):
        other = isinstance(trigger, EveryPeriod) and (trigger.always or trigger.event_time)
        if other or not isinstance(trigger, (Never, EveryBatch, EveryPeriod)):
            raise BadTrigger(
                f"Emit({name}={trigger!r}) of rows around messages: use wr.never, wr.every_batch or wr.every('10 seconds')"
            )
    if emit.mode == "discarding" or not emit.on_time or emit.closing_pane:
        raise BadTrigger(
            f"{emit!r} of OVER windows, each of which is emitted on time, with all messages of its frames: use "
            "mode='accumulating' or 'retracting', with on_time=True and no closing pane"
        )
    allowed_us = duration_us(allowed_lateness, "allowed_lateness")
    if allowed_us < 0:
        raise BadDuration(f"allowed_lateness {allowed_lateness!r} is negative: use '0 seconds' or more")
    if allowed_us and (emit.drop_late or isinstance(emit.late, Never)):
        raise BadTrigger(
            f"allowed_lateness={allowed_lateness!r} with {emit!r}: no row would show late messages; use "
            "emit=wr.Emit(late=wr.every_batch, mode='retracting'), or leave it out"
        )
    return allowed_us


def queried_us(retention: Any) -> int:
    """Return how long messages are kept for queries."""
    if retention is None or isinstance(retention, Forever):
        return 0 if retention is None else UNBOUNDED_US
    kept_us = duration_us(retention, "retention")
    if kept_us < 0:
        raise BadDuration(f"retention {retention!r} is negative: use '0 seconds' or more, or wr.forever")
    return kept_us
