"""Validation of the user's arguments of an aggregate, which become the fields of its definition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.deliver import Policy, check_mark, policy_of
from windrow.core.emit import Delay, Emit, When, by_end, of_event_time
from windrow.core.errors import (
    BadAggregate,
    BadDuration,
    BadTrigger,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    RetentionMissing,
    RetentionTooShort,
    UnknownColumn,
)
from windrow.core.expressions import names_no_column
from windrow.core.inputs import check_reading
from windrow.core.policy import (
    RESERVED_COLUMNS,
    Forever,
    Retain,
    Retention,
    Watermark,
    bounded,
    letters_us,
    max_ahead_us,
)
from windrow.core.positions import ids_of
from windrow.core.suggestions import meant_aggregation
from windrow.core.time import Duration, duration_us, show_duration
from windrow.core.windows import (
    Global,
    Inherited,
    Rows,
    Session,
    Sliding,
    Tuples,
    TupleSession,
    WindowSpec,
    span_is_small,
)
from windrow.operators.aggregate.definition import WINDOW_START, default_lateness
from windrow.operators.steps.derived_columns import Makes, keys_of, time_of
from windrow.operators.steps.input_filter import filter_of

#: Defaults of the options, for operators that have an aggregate inside.
_DEFAULTS = {
    **dict.fromkeys(
        ("time_zone", "event_time_unit", "scale", "positions", "ids", "input", "where", "deliver", "emit")
    ),
    **dict.fromkeys(("allowed_lateness", "max_ahead", "dead_letter_retention")),
    "null_keys": "group",
    "integer_overflow": "dead_letter",
}


def normalise(*, inputs: Collection[str] = (), **options: Any) -> dict[str, Any]:
    """Check the user's arguments and turn them into the fields of `AggregateDefinition`.

    options: the arguments of `wr.Aggregate`. inputs: names that `of` may have
    """
    options = {**_DEFAULTS, **options}
    check.common(options)
    window, agg, ids = options["window"], options["agg"], options["ids"]
    emit = Emit() if options["emit"] is None else options["emit"]
    keys, time, makes = _derived_columns(options["by"], options["event_time"])
    _checked(keys, window, agg, emit, options["input"])
    _check_of(agg, inputs)
    kept = _retention(options["retention"], window, emit, (*keys, *agg))
    watermark = options["watermark"]
    marked = watermark if isinstance(watermark, Watermark) else bounded(watermark)
    _check_session(window, agg, kept, emit, keys)
    check_reading(options["time_zone"], options["event_time_unit"], options["positions"])
    policy = _delivered(options["deliver"], ids, makes, (*keys, time))
    same = (
        "name",
        "null_keys",
        "time_zone",
        "event_time_unit",
        "integer_overflow",
        "positions",
        "dead_letter_limit",
    )
    return {
        **{name: options[name] for name in same},
        "by": keys,
        "event_time": time,
        "window": window,
        "agg": MappingProxyType(_of_taken(agg, policy)),
        "retention": kept,
        "watermark": marked,
        "allowed_lateness_us": _lateness(options["allowed_lateness"], kept, emit),
        "emit": emit,
        "max_ahead_us": max_ahead_us(options["max_ahead"], marked),
        "scale": options["scale"] or ("small" if span_is_small(window) else "large"),
        "ids": ids_of(ids),
        "dead_letter_retention_us": letters_us(options["dead_letter_retention"]),
        "input_name": options["input"],
        "where": filter_of(options["where"]),
        "makes": makes,
        "deliver": policy,
    }


def _delivered(deliver: Policy | None, ids: Any, makes: Makes, named: Collection[str]) -> Policy | None:
    """Return the policy of its input. named: columns of it."""
    policy = policy_of(deliver, ids_of(ids), marks=True)
    if policy is not None and makes:
        raise ConfigurationError(
            f"deliver={deliver!r} with {', '.join(name for name, _ in makes)!r} by an expression, which is made later: make it "
            "before, or name a column"
        )
    check_mark(policy, named)
    return policy


def _of_taken(agg: Mapping[str, Aggregation], policy: Policy | None) -> dict[str, Aggregation]:
    """Return aggregations without messages that are marked as skipped, unless they name the mark themselves."""
    mark = None if policy is None else policy.mark
    if mark is None:
        return dict(agg)
    taken = ~pc.field(mark)
    return {
        alias: a if mark in a.columns or any(e.mentions(mark) for e in a.expressions) else a.where(taken)
        for alias, a in agg.items()
    }


def _derived_columns(by: Any, event_time: Any) -> tuple[tuple[str, ...], str, Makes]:
    """Return (key columns, the column of event time, the derived ones of them)."""
    (keys, made_keys), (time, made_time) = keys_of(by), time_of(event_time)
    if made_time and time in keys:
        raise ConfigurationError(
            f"a key is called {time!r}, as event time by an expression is: call it otherwise"
        )
    return keys, time, made_time + made_keys


def _checked(
    keys: tuple[str, ...],
    window: WindowSpec,
    agg: Mapping[str, Aggregation],
    emit: Emit,
    input: str | None,
) -> None:
    """Refuse names, windows and aggregations that are not valid."""
    check.of_type(emit, Emit, "emit", "use wr.Emit(...), wr.Emit.append() or wr.Emit.update()", BadTrigger)
    if input is not None:
        check.name(input, "input")
    check.keys(keys)
    if not isinstance(window, WindowSpec):
        around = isinstance(window, (Sliding, Rows))
        instead = (
            "for a window around each message use wr.Over(frame=wr.range_between(...)), else "
            if around
            else "use "
        )
        raise BadWindow(
            f"window={window!r}: {instead}wr.tumbling, wr.hopping, wr.calendar, wr.session, wr.tuples, wr.global_window, or in "
            "a chain wr.inherited"
        )
    check.of_type(agg, Mapping, "agg", "name each aggregation, e.g. agg={'n': wr.count()}", BadAggregate)
    if not agg:
        raise BadAggregate("agg is empty: name at least one aggregation, e.g. agg={'n': wr.count()}")
    check.names(agg, "agg", "name each aggregation by text, e.g. agg={'n': wr.count()}")
    for alias, aggregation in agg.items():
        if not isinstance(aggregation, Aggregation):
            near = meant_aggregation(aggregation, alias)
            hint = f"did you mean {near}?" if near else "use an aggregation such as wr.count() or wr.avg('x')"
            raise BadAggregate(f"agg[{alias!r}] = {aggregation!r}: {hint}")
        if aggregation.frame is not None:
            raise BadAggregate(
                f"agg[{alias!r}] = {aggregation!r}: a frame around each message is for wr.Over; an aggregate "
                f"has window={window!r}"
            )
    for column in (*keys, *agg):
        if column in RESERVED_COLUMNS:
            raise ReservedColumn(
                f"column {column!r} would clash with the pane's own column {column!r}: rename it (a pane has the columns "
                f"{', '.join(RESERVED_COLUMNS)} beside keys and aggregates)"
            )
        if column in keys and column in agg:
            raise ReservedColumn(f"{column!r} is both a key and an aggregate: rename one of them")
    _check_triggers(emit, window, (*keys, *agg))


def _check_of(agg: Mapping[str, Aggregation], inputs: Collection[str]) -> None:
    """Refuse aggregations of a name that is no input."""
    for alias, aggregation in agg.items():
        of = (
            [aggregation.input] if aggregation.input is not None else [name for name, _ in aggregation.shares]
        )
        if not set(of) <= set(inputs):
            instead = "leave .of(...) out" if aggregation.input is not None else "use a class with `add`"
            there = f"there are {list(inputs)}" if inputs else f"several inputs are for wr.CoGroup; {instead}"
            raise BadAggregate(f"agg[{alias!r}] = {aggregation!r} is of no input that there is: {there}")


def _check_triggers(emit: Emit, window: WindowSpec, columns: Sequence[str]) -> None:
    """Refuse triggers that this window, or these columns, cannot have."""
    nothing = pa.table({c: pa.nulls(0) for c in columns})
    for leaf in emit.leaves:
        timed = isinstance(leaf, Delay) or getattr(leaf, "always", False)
        if (isinstance(window, Tuples) and timed) or (
            isinstance(window, Tuples | TupleSession) and of_event_time(leaf)
        ):
            raise BadTrigger(
                f"{leaf!r} with {window!r}: windows of messages have no time of their own; use wr.every('10 seconds')"
            )
        if by_end(leaf) and isinstance(window, Session | Inherited):
            raise BadTrigger(
                f"{leaf!r} with {window!r}: it is for windows whose ends are fixed, such as wr.tumbling; leave it out: "
                "on_time=True emits each window as the watermark passes its end"
            )
        if isinstance(leaf, When):
            try:
                leaf.condition.evaluate(nothing)
            except UnknownColumn as error:
                if names_no_column(error):
                    raise BadTrigger(
                        f"{leaf!r} names a column that no pane has: its columns are {list(columns)}"
                    ) from None


def _check_session(
    window: WindowSpec,
    agg: Mapping[str, Aggregation],
    kept: Retention,
    emit: Emit,
    keys: Sequence[str],
) -> None:
    """Refuse options that sessions do not support."""
    if isinstance(window, TupleSession):
        _check_tuple_session(window, kept, keys)
    if not isinstance(window, Session):
        return
    if window.max_length_us is not None and (
        emit.mode == "discarding" or not any(a.full_state for a in agg.values())
    ):
        raise BadWindow(
            f"max_length={show_duration(window.max_length_us)!r} with {dict(agg)!r}, mode={emit.mode!r}: a message that comes "
            "late may move every cut after it, so messages are kept for it, in a mode that takes back; use it beside wr.median "
            "or a function of tables in another mode than 'discarding', or cut=wr.tumbling(...)"
        )
    sizes = kept.windows is not None or kept.messages is not None
    if sizes and window.max_length_us is not None:
        raise BadWindow(
            f"{window!r} is kept by time, not by {kept!r}, since parts of a session that is cut lie side by side: use "
            "retention='7 days', or wr.forever"
        )


def _check_inherited(window: Inherited, columns: Sequence[str], kept: Retention) -> None:
    """Refuse options that windows of another operator cannot have."""
    if kept.windows is not None or kept.messages is not None:
        raise BadWindow(f"{window!r} is kept by time, not by {kept!r}: use retention='7 days', or wr.forever")
    if WINDOW_START in columns:
        raise ReservedColumn(
            f"{WINDOW_START!r} is a column of the window itself, with {window!r}: leave it out of by= and agg="
        )


def _check_tuple_session(window: TupleSession, kept: Retention, keys: Sequence[str]) -> None:
    if not keys:
        raise BadWindow(
            f"by=() with {window!r}: every message would be of the one key, and no session would end; name a key"
        )
    counts = kept.messages is not None and kept.per == "job" and kept.windows is None
    if kept != Retention() and not (counts and kept.time_us is None):
        raise RetentionMissing(
            f"{window!r} is kept by the messages of all keys that have come since, and retention {kept!r} does not count these "
            "alone: use retention=wr.Retain(messages=100_000, per='job'), or wr.forever"
        )


def _lateness(allowed_lateness: Duration | None, kept: Retention, emit: Emit) -> int:
    """Return how far past its end the watermark may be while a window accepts messages, in microseconds."""
    if allowed_lateness is None:
        lateness_us = default_lateness(kept, emit)
    else:
        lateness_us = duration_us(allowed_lateness, "allowed lateness")
        if emit.drop_late and lateness_us != 0:
            raise RetentionTooShort(
                f"allowed_lateness {allowed_lateness!r} with {emit!r}: Spark's output modes take nothing late; "
                "leave allowed_lateness out or use wr.Emit(...)"
            )
    if lateness_us < 0:
        raise BadDuration(f"allowed_lateness {allowed_lateness!r} is negative: use '0 seconds' or more")
    if kept.time_us is not None and kept.time_us < lateness_us:
        raise RetentionTooShort(
            f"retention {show_duration(kept.time_us)!r} is shorter than allowed_lateness {show_duration(lateness_us)!r}: "
            f"use retention={show_duration(lateness_us)!r} or more, or a shorter allowed_lateness"
        )
    return lateness_us


def _retention(
    retention: Duration | Retention | Forever | None,
    window: WindowSpec,
    emit: Emit,
    columns: Sequence[str],
) -> Retention:
    kept = _kept(retention, window, emit)
    if isinstance(window, Inherited):
        _check_inherited(window, columns, kept)
    return kept


def _kept(retention: Duration | Retention | Forever | None, window: WindowSpec, emit: Emit) -> Retention:
    if isinstance(retention, Forever):
        return Retention()
    if isinstance(retention, (str, timedelta)):
        retention = Retain(retention)
    if retention is None:
        if isinstance(window, TupleSession):
            raise RetentionMissing(
                f"{window!r} needs a retention by count: use retention=wr.Retain(messages=100_000, per='job'), or wr.forever"
            )
        if isinstance(window, Tuples):
            raise RetentionMissing(
                f"{window!r} needs a retention by count: use retention=wr.Retain(windows=100), or wr.forever"
            )
        if isinstance(window, Global):
            raise RetentionMissing(
                f"{window!r} never ends, so it is kept for good: say so, retention=wr.forever"
            )
        if emit.drop_late:
            return Retention(0)  # no message comes into a window that has fired
        raise RetentionMissing(f"{window!r} needs a retention by time: use retention='7 days', or wr.forever")
    if not isinstance(retention, Retention):
        raise RetentionMissing(
            f"retention={retention!r}: use a duration such as '7 days', wr.Retain(...) or wr.forever"
        )
    if isinstance(window, Tuples) and retention.windows is None and retention.messages is None:
        raise RetentionMissing(
            f"{window!r} counts messages, retention {retention!r} does not: use retention=wr.Retain(windows=100), or wr.forever"
        )
    if isinstance(window, Global) and retention.time_us is not None:
        raise RetentionMissing(
            f"{window!r} never ends, so it cannot expire by time, as retention={retention!r} says: use retention=wr.forever"
        )
    return retention
