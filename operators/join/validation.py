"""Validation of a join: checks the user's options and turns them into the fields of its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.emit import Emit, EveryBatch, EveryPeriod, every_batch
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    RetentionMissing,
    RetentionTooShort,
)
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.policy import (
    RESERVED_COLUMNS,
    UNBOUNDED_US,
    Forever,
    Retention,
    Watermark,
    letters_us,
)
from windrow.core.time import DAY_US, Duration, duration_us, show_duration
from windrow.core.windows import SMALL_SPAN_US, SMALL_TUPLES, Rows, Session, Sliding
from windrow.operators.join.definition import HOWS, How, Where
from windrow.operators.join.spans import Within, spans


def normalise_join(
    *,
    left: Input,
    right: Input,
    on: str | Sequence[str] | Mapping[str, str],
    window: Session | None,
    within: tuple[Duration, Duration] | None,
    closed: str,
    how: How,
    where: pc.Expression | Where | None,
    retention: Duration | Retention | Forever | None,
    allowed_lateness: Duration | None,
    emit: Emit | None,
    name: str,
    scale: str | None,
    dead_letter_limit: int,
    dead_letter_retention: Duration | Forever | None,
) -> dict[str, Any]:
    """Check the user's options and turn them into the fields of `JoinDefinition`."""
    check.common(locals())
    _check_given(left, right, emit, where, how)
    pairs = _keys(on)
    for side, keys in ((left, [p[0] for p in pairs]), (right, [p[1] for p in pairs])):
        clash = [k for k in keys if k in RESERVED_COLUMNS]
        if clash:
            raise ReservedColumn(f"key {clash[0]!r} of input {side.name!r} is a column of ours: rename it")
    bounds = _within(within, closed)
    _check_windows(left, right, within, bounds, how)
    check_sessions(left, right, window, on=pairs, how=how, retention=retention)
    _check_reach(left, right, bounds)
    kept_us = _kept(retention, left, right, bounds, window)
    _check_watermarks(left, right)
    emitted = Emit(early=every_batch, late=every_batch) if emit is None else emit
    _check_emit(emitted)
    kept_us, lateness_us = _lateness(allowed_lateness, kept_us, said=retention is not None)
    condition = where if where is None or isinstance(where, Where) else Where(Expr(where))
    chosen = scale or ("small" if _is_small(left, right, bounds) else "large")
    return {
        "left": left,
        "right": right,
        "on": pairs,
        "within": bounds,
        "how": how,
        "where": condition,
        "retention": Retention(kept_us, **_sizes(retention, left, right)),
        "allowed_lateness_us": lateness_us,
        "emit": emitted,
        "name": name,
        "scale": chosen,
        "dead_letter_limit": dead_letter_limit,
        "dead_letter_retention_us": letters_us(dead_letter_retention),
        "window": window,
    }


def _check_given(left: Input, right: Input, emit: Emit | None, where: Any, how: str) -> None:
    """Reject options of a wrong type, or outside the choices."""
    for which, input in (("left", left), ("right", right)):
        check.of_type(input, Input, which, f"use wr.Input({input!r}, event_time=...)")
        input.refuse_rules("wr.Join")
        if input.by is not None:
            raise ConfigurationError(
                f"by={input.by!r} of input {input.name!r}: the keys of a join are in its on=, "
                "{left name: right name} where they are called otherwise"
            )
    if emit is not None:
        check.of_type(emit, Emit, "emit", "use wr.Emit(early=..., late=...)", BadTrigger)
    if where is not None:
        kinds: Any = (Where, pc.Expression)
        check.of_type(
            where,
            kinds,
            "where",
            "use an expression, wr.col('value') > wr.col('cost'), or wr.pairs(function, name=...)",
        )
    if how not in HOWS:
        raise ConfigurationError(f"how={how!r}: use one of {', '.join(HOWS)}")
    if left.name == right.name and left != right:
        raise ConfigurationError(
            f"both inputs are named {left.name!r} and differ: give them names of their own, or join one with itself"
        )


def _check_windows(left: Input, right: Input, within: Any, bounds: Within | None, how: str) -> None:
    """Reject windows that cannot be combined with each other, or with `how`."""
    by_rows = isinstance(left.window, Rows) or isinstance(right.window, Rows)
    if by_rows:
        for side in (left, right):
            if side.window not in (None, Sliding(None)) and not isinstance(side.window, Rows):
                raise BadWindow(
                    f"{left.window!r} and {right.window!r} do not go together: one counts messages, the other looks at time; "
                    "use wr.rows or wr.unbounded, and within=... for a condition on time"
                )
    if how == "asof" and (
        by_rows or bounds is None or bounds.high_us > 0 or left.window is not None or right.window is not None
    ):
        raise BadWindow(
            f"how='asof' takes the latest right message at or before the left one; within={within!r}: say how far back, "
            "e.g. within=('-1 hour', '0 seconds'), and give no windows"
        )


def _check_watermarks(left: Input, right: Input) -> None:
    """Reject watermarks that nothing would ever move, or not as one."""
    check_watermark(left.watermark, right.watermark)
    if left.static and right.static:
        raise BadWatermark(
            f"inputs {left.name!r} and {right.name!r} are both static: nothing would ever move the watermark; leave "
            "static=True out of one of them"
        )


def _lateness(
    allowed_lateness: Duration | None, kept_us: int | None, *, said: bool
) -> tuple[int | None, int]:
    """Return (how long messages are kept, how long they are accepted), in microseconds. said: the user set a retention."""
    if allowed_lateness is None:
        lateness_us = UNBOUNDED_US if kept_us is None else kept_us
    else:
        lateness_us = duration_us(allowed_lateness, "allowed lateness")
    if lateness_us < 0:
        raise ConfigurationError(
            f"allowed_lateness {allowed_lateness!r} is negative: use '0 seconds' or more"
        )
    if kept_us is not None and not said:
        kept_us = max(kept_us, lateness_us)
    if kept_us is not None and lateness_us > kept_us:
        raise RetentionTooShort(
            f"retention {show_duration(kept_us)!r} is shorter than allowed_lateness {show_duration(lateness_us)!r}: "
            f"use retention={show_duration(lateness_us)!r} or more, or a shorter allowed_lateness"
        )
    return kept_us, lateness_us


def _keys(on: str | Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    remedy = "name a column, several as on=('id', 'site'), or {left name: right name}"
    listed = check.names(on, "on", remedy)
    if isinstance(on, Mapping) and not all(isinstance(name, str) for name in on.values()):
        raise ConfigurationError(f"on={on!r}: {remedy}")
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in listed)
    for column in (0, 1):
        names = [p[column] for p in pairs]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"on={on!r} names a column twice: name each once")
    return pairs


def _within(within: tuple[Duration, Duration] | None, closed: str) -> Within | None:
    if closed not in ("both", "left", "right", "neither"):
        raise BadWindow(f"closed={closed!r}: use 'both', 'left', 'right' or 'neither'")
    if within is None:
        return None
    if isinstance(within, str) or not isinstance(within, Sequence) or len(within) != 2:
        raise BadWindow(
            f"within={within!r}: give both bounds of the right time less the left one, e.g. within=('-1 hour', '1 hour')"
        )
    low, high = (duration_us(d, "within") for d in within)
    if low > high:
        raise BadWindow(
            f"within={within!r} is reversed: the first is the lower bound, write {within[::-1]!r}"
        )
    bounds = Within(low + (closed in ("right", "neither")), high - (closed in ("left", "neither")))
    if bounds.low_us > bounds.high_us:
        raise BadWindow(f"within={within!r} with closed={closed!r} is empty: no pair could ever match")
    return bounds


def _check_reach(left: Input, right: Input, within: Within | None) -> None:
    """Reject windows and bounds that exclude each other: they can only be a mistake."""
    before, after = spans(left, right, None)
    if within is None:
        return
    if (before is not None and within.low_us > before) or (after is not None and within.high_us < -after):
        bounds = f"({show_duration(within.low_us)!r}, {show_duration(within.high_us)!r})"
        raise BadWindow(
            f"within={bounds} lies outside {left.window!r} and {right.window!r}: no pair could ever match; "
            "widen the windows or leave them out"
        )


def _kept(
    retention: Duration | Retention | Forever | None,
    left: Input,
    right: Input,
    within: Within | None,
    window: Session | None,
) -> int | None:
    """Return how long messages are kept, in microseconds; None is for ever."""
    before, after = spans(left, right, within)
    if isinstance(retention, Forever):
        return None
    sessions = window or next((s.window for s in (left, right) if isinstance(s.window, Session)), None)
    windows = isinstance(retention, Retention) and retention.windows is not None
    sizes = windows or (isinstance(retention, Retention) and retention.messages is not None)
    if isinstance(retention, Retention):
        if (windows and sessions is None) or (retention.time_us is None and not sizes):
            raise RetentionMissing(
                f"a join keeps messages by time and by their number, not by {retention!r}: use retention='1 day', or "
                "wr.Retain('1 day', messages=1000)"
            )
        retention = None if retention.time_us is None else show_duration(retention.time_us)
    if retention is not None:
        kept_us = duration_us(retention, "retention")
        reach = max((b for b in (before, after) if b is not None), default=0)
        if kept_us < reach:
            raise RetentionTooShort(
                f"retention {retention!r} is shorter than the {show_duration(reach)!r} that two messages may lie apart: "
                f"use retention={show_duration(reach)!r} or more, or leave it out"
            )
        return kept_us
    if isinstance(left.window, Rows) and isinstance(right.window, Rows):
        return None
    if (before is None or after is None) and sizes:
        return None
    if sessions is not None:
        raise RetentionMissing(
            f"{sessions!r} sets no bound to how long sessions are: say how long they are kept when they have ended, "
            "retention='1 day'; wr.forever keeps everything"
        )
    if before is None or after is None:
        raise RetentionMissing(
            f"{left!r} and {right!r} set no bound to how far apart two messages may lie: use within=('-1 hour', '1 hour'), "
            "windows such as wr.sliding('1 hour') on both, or retention='1 day'; wr.forever keeps everything"
        )
    return max(before, after)


def _sizes(retention: Any, left: Input, right: Input) -> dict[str, Any]:
    """Return the limit on the number of kept messages, or sessions, if there is one."""
    if not isinstance(retention, Retention) or (retention.messages, retention.windows) == (None, None):
        return {}
    if left.name == right.name:
        raise BadWindow(
            f"{retention!r} of a join of {left.name!r} with itself, which keeps messages by time: use retention='1 day', or "
            "give the stream to the join twice, under two names"
        )
    if isinstance(left.window, Rows) or isinstance(right.window, Rows):
        raise BadWindow(
            f"{retention!r} beside {left.window!r} and {right.window!r}: windows of rows are a number of messages already, "
            "leave one of them out"
        )
    return {"windows": retention.windows, "messages": retention.messages, "per": retention.per}


def _is_small(left: Input, right: Input, within: Within | None) -> bool:
    """True if seed 003's matrix counts the window as small, where nothing was declared."""
    if isinstance(left.window, Rows) or isinstance(right.window, Rows):
        return all(not isinstance(s.window, Rows) or s.window.n <= SMALL_TUPLES for s in (left, right))
    before, after = spans(left, right, within)
    return before is not None and after is not None and before + after <= SMALL_SPAN_US


def _check_emit(emit: Emit) -> None:
    for timing, trigger in (("early", emit.early), ("late", emit.late)):
        period = isinstance(trigger, EveryPeriod) and not (trigger.always or trigger.event_time)
        if not isinstance(trigger, EveryBatch) and not period:
            raise BadTrigger(
                f"Emit({timing}={trigger!r}) of a join: use wr.every_batch (at once) or a period such as wr.every('10 seconds')"
            )
    plain = Emit(early=emit.early, late=emit.late)
    if emit != plain:
        raise BadTrigger(
            f"{emit!r} of a join: rows of a join are sent once and never taken back, use {plain!r}"
        )


def check_watermark(left: Watermark, right: Watermark) -> None:
    """Check that both sides are explicit, or neither is."""
    if (left.kind == "explicit") != (right.kind == "explicit"):
        raise BadWatermark(
            f"{left!r} and {right!r}: an explicit watermark is the whole join's, use it on both inputs"
        )


def check_sessions(
    left: Input, right: Input, window: Any, *, on: Sequence[tuple[str, str]], how: str, retention: Any
) -> None:
    """Reject sessions that are impossible. window: of both inputs together."""
    own = [input.window for input in (left, right)]
    if window is None and not any(isinstance(w, Session) for w in own):
        return
    if window is not None and not isinstance(window, Session):
        raise BadWindow(
            f"window={window!r} of a join: both inputs make sessions together, wr.session('10 minutes'); give windows of other "
            "kinds to the inputs, wr.Input(..., window=...), or to a join window for each, wr.JoinWindow(window=...)"
        )
    sessions = [w for w in (window, *own) if w is not None]
    if len(sessions) > 1:
        raise BadWindow(
            f"{sessions[0]!r} and {sessions[1]!r} do not go together: use window=wr.session(...) of the join for sessions of "
            "both inputs, or that of one input for sessions of its messages, and leave the other out"
        )
    [session] = sessions
    assert isinstance(session, Session)
    if session.max_length_us is not None:
        raise BadWindow(
            f"{session!r} of a join: a message that comes late would move every cut after it, and rows of a join are not taken "
            "back; use cut=wr.tumbling(...) or cut=wr.calendar(...)"
        )
    if not on:
        raise BadWindow(
            f"{session!r} of a join without keys: sessions are of a key, name it, on='user'; without one, use wr.sliding"
        )
    if how == "asof":
        raise BadWindow(
            f"how='asof' with {session!r}: it looks back from each message, use within=... without sessions"
        )
    if left.name == right.name:
        raise BadWindow(
            f"{session!r} of a join of {left.name!r} with itself: give the stream to the join twice, under two names"
        )
    for input in (left, right):
        if input.static:
            raise BadWindow(
                f"input {input.name!r} is static, and {session!r} ends with the watermark, which it does not hold: leave "
                "static=True out"
            )
    sized = isinstance(retention, Retention) and (retention.windows, retention.messages) != (None, None)
    if sized and retention.time_us is None and window is None:
        raise RetentionMissing(
            f"{retention!r} counts the sessions of {session!r}, and not the messages of the other input that are in none: say "
            f"how long these are kept, {replace(retention, time_us=DAY_US)!r}"
        )
