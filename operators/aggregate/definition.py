"""The definition of a windowed aggregate: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Windowed Aggregator": required are the aggregator function, the window's unit, size and
step, and the retention by size and time; optional the early, full-size and late policies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, Self
from zoneinfo import ZoneInfo

import pyarrow as pa

from windrow.core import check
from windrow.core.aggregations import Aggregation
from windrow.core.emit import Emit, EveryPeriod, Never
from windrow.core.errors import (
    BadAggregate,
    BadDuration,
    BadTrigger,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    RetentionMissing,
    RetentionTooShort,
)
from windrow.core.inputs import Input
from windrow.core.messages import Pane
from windrow.core.policy import (
    RESERVED_COLUMNS,
    UNBOUNDED_US,
    Forever,
    Retain,
    Retention,
    Watermark,
    bounded,
    check_unit,
    forever,
    letters_us,
    max_ahead_us,
    show_letters,
    show_max_ahead,
)
from windrow.core.positions import Ids, Positions
from windrow.core.show import call
from windrow.core.time import Duration, TimeUnit, duration_us, show_duration
from windrow.core.windows import Global, Hopping, Tuples, WindowSpec, span_is_small
from windrow.operators.aggregate import handing
from windrow.operators.operator import Definition, Logic, Taker

NullKeys = Literal["group", "dead_letter"]


@dataclass(frozen=True, repr=False, eq=False)
class AggregateDefinition(Definition):
    """A windowed aggregate. See `wr.Aggregate` for the parameters."""

    by: tuple[str, ...]
    event_time: str
    window: WindowSpec
    agg: Mapping[str, Aggregation]
    retention: Retention
    watermark: Watermark
    allowed_lateness_us: int
    emit: Emit
    name: str
    null_keys: str
    time_zone: str | None
    event_time_unit: TimeUnit | None
    max_ahead_us: int | None
    scale: str
    integer_overflow: str
    positions: Positions | None
    ids: Ids | None
    dead_letter_limit: int
    dead_letter_retention_us: int | None
    input_name: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns without which the input is another one: event time, keys, ids."""
        return (self.event_time, *self.by, *(() if self.ids is None else self.ids.columns))

    @property
    def full_state(self) -> bool:
        """True if some aggregation needs the window's messages: the second design of seed 003."""
        return any(a.full_state for a in self.agg.values())

    @property
    def tuple_window(self) -> bool:
        return isinstance(self.window, Tuples)

    def describe(self) -> dict[str, Any]:
        """What shapes the state, as plain values: the text behind the fingerprint."""
        ids = {} if self.ids is None else {"ids": list(self.ids.columns)}
        unit = {} if self.event_time_unit is None else {"event_time_unit": self.event_time_unit}
        named = {} if self.input_name is None else {"input": self.input_name}
        return {
            **ids,
            **unit,
            **named,
            "operator": "aggregate",
            "by": list(self.by),
            "event_time": self.event_time,
            "window": repr(self.window),
            "agg": {name: a.describe() for name, a in self.agg.items()},
            "design": "full-state" if self.full_state else "incremental",
            "mode": "discarding" if self.emit.mode == "discarding" else "accumulating",
            "null_keys": self.null_keys,
            "time_zone": self.time_zone,
            "scale": self.scale,
        }

    def filing(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "allowed_lateness_us": self.allowed_lateness_us,
            "max_ahead_us": self.max_ahead_us,
        }
        if self.tuple_window:
            facts["retention"] = [self.retention.windows, self.retention.messages, self.retention.per]
        return facts

    # -- the seam ---------------------------------------------------------------------------------------------------

    @property
    def by_input(self) -> bool:
        return self.input_name is not None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Its one input, which has its name unless another one was given."""
        return (
            Input(
                self.input_name or self.name,
                self.event_time,
                None,
                self.watermark,
                self.time_zone,
                self.max_ahead_us,
                self.positions,
                event_time_unit=self.event_time_unit,
            ),
        )

    def part_prefix(self, name: str) -> str:
        return self.prefix(self.inputs[0])

    def columns_of(self, given: Input) -> tuple[str, ...]:
        return self.needs

    def keys(self, given: Input) -> tuple[str, ...]:
        return self.by

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        [given] = self.inputs
        return self._changed(watermark=watermarks[given.name]) if given.name in watermarks else self

    @property
    def told_columns(self) -> tuple[str, ...]:
        return (*self.by, *self.agg)

    @property
    def periods(self) -> frozenset[int]:
        return self.emit.periods

    @property
    def tables(self) -> tuple[str, ...]:
        return ("windows", "messages") if self.full_state else ("windows",)

    @property
    def known_by(self) -> tuple[str, ...]:
        return self.by

    def values(self, rows: pa.Table, job: str) -> Iterator[Pane]:
        from windrow.operators.aggregate.output import to_panes

        return to_panes(self, rows, job)

    @property
    def in_runs(self) -> bool:
        """Definitions that cannot speak inside an ingest, and hold no code that may fail for one message."""
        emit, retention, window = self.emit, self.retention, self.window
        gaps = isinstance(window, Hopping) and window.hop_us > window.size_us
        return (
            not self.tuple_window
            and not gaps
            and isinstance(emit.early, (Never, EveryPeriod))
            and isinstance(emit.late, (Never, EveryPeriod))
            and self.ids is None  # what is a duplicate must not move the watermark
            and retention.windows is None
            and retention.messages is None
            and all(a.kind != "user" for a in self.agg.values())
        )

    def taker(self, before: str) -> Taker:
        return handing.taker(self, before)

    def check_followed(self, taker: Taker) -> None:
        handing.check_followed(self, taker)

    def behind_us(self, event_time: str) -> int:
        return 0

    def of_handed_rows(self, given: Input) -> Self:
        return self._changed(max_ahead_us=None)

    def logic(self, tell: Collection[str] = ()) -> Logic:
        from windrow.operators.aggregate.logic import WindowAggregator
        from windrow.operators.aggregate.tuples import TupleAggregator

        return TupleAggregator(self) if self.tuple_window else WindowAggregator(self)

    def _changed(self, **changes: Any) -> Self:
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        restored: Self = _restore(type(self), {**state, "agg": dict(self.agg), **changes})
        return restored

    def _identity(self) -> tuple[Any, ...]:
        return tuple(
            tuple(v.items()) if isinstance(v, Mapping) else v
            for v in (getattr(self, f.name) for f in fields(self))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AggregateDefinition) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        retention: Any = self.retention
        if retention == Retention():
            retention = forever
        elif retention == Retention(time_us=retention.time_us):
            retention = show_duration(retention.time_us)
        lateness = (
            None
            if self.allowed_lateness_us == _default_lateness(self.retention, self.emit)
            else self.allowed_lateness_us
        )
        return call(
            "Aggregate",
            by=self.by,
            event_time=self.event_time,
            window=self.window,
            agg=dict(self.agg),
            retention=retention,
            watermark=self.watermark,
            allowed_lateness=None if lateness is None else show_duration(lateness),
            emit=None if self.emit == Emit() else self.emit,
            name=None if self.name == "aggregate" else self.name,
            null_keys=None if self.null_keys == "group" else self.null_keys,
            time_zone=self.time_zone,
            event_time_unit=self.event_time_unit,
            max_ahead=show_max_ahead(self.max_ahead_us, self.watermark),
            scale=self.scale,
            integer_overflow=None if self.integer_overflow == "dead_letter" else self.integer_overflow,
            positions=self.positions,
            ids=self.ids,
            dead_letter_limit=None if self.dead_letter_limit == 10_000 else self.dead_letter_limit,
            dead_letter_retention=show_letters(self.dead_letter_retention_us),
            input=self.input_name,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        state["agg"] = dict(state["agg"])
        return (_restore, (type(self), state))


def _restore(cls: type[Any], state: dict[str, Any]) -> Any:
    state["agg"] = MappingProxyType(state["agg"])
    made = object.__new__(cls)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made


def _default_lateness(retention: Retention, emit: Emit) -> int:
    """The retention; nothing where late messages would be told to nobody: then they are dead letters."""
    if emit.drop_late or not emit.tells_late:
        return 0
    return UNBOUNDED_US if retention.time_us is None else retention.time_us


def normalise(
    *,
    by: str | Sequence[str],
    event_time: str,
    window: WindowSpec,
    agg: Mapping[str, Aggregation],
    retention: Duration | Retention | Forever | None,
    watermark: Duration | Watermark,
    allowed_lateness: Duration | None,
    emit: Emit,
    name: str,
    null_keys: NullKeys,
    time_zone: str | None,
    event_time_unit: TimeUnit | None,
    max_ahead: Duration | Forever | None,
    scale: str | None,
    integer_overflow: str,
    positions: Positions | None,
    ids: Ids | None,
    dead_letter_limit: int,
    dead_letter_retention: Duration | Forever | None,
    input: str | None = None,
) -> dict[str, Any]:
    """Check what the user wrote and turn it into the fields of `AggregateDefinition`."""
    keys = _checked(by, event_time, window, agg, emit, name, input, positions, dead_letter_limit)
    kept = _retention(retention, window)
    marked = watermark if isinstance(watermark, Watermark) else bounded(watermark)
    lateness_us = _lateness(allowed_lateness, kept, emit)
    _check_choices(null_keys, integer_overflow, time_zone, event_time_unit, scale, ids)
    return {
        "by": keys,
        "event_time": event_time,
        "window": window,
        "agg": MappingProxyType(dict(agg)),
        "retention": kept,
        "watermark": marked,
        "allowed_lateness_us": lateness_us,
        "emit": emit,
        "name": name,
        "null_keys": null_keys,
        "time_zone": time_zone,
        "event_time_unit": event_time_unit,
        "max_ahead_us": max_ahead_us(max_ahead, marked),
        "scale": scale or ("small" if span_is_small(window) else "large"),
        "integer_overflow": integer_overflow,
        "positions": positions,
        "ids": ids,
        "dead_letter_limit": dead_letter_limit,
        "dead_letter_retention_us": letters_us(dead_letter_retention),
        "input_name": input,
    }


def _checked(
    by: str | Sequence[str],
    event_time: str,
    window: WindowSpec,
    agg: Mapping[str, Aggregation],
    emit: Emit,
    name: str,
    input: str | None,
    positions: Positions | None,
    dead_letter_limit: int,
) -> tuple[str, ...]:
    """The key columns; refuses names, windows and aggregations that are none."""
    keys = check.names(by, "by", "name a column, several as by=('origin', 'carrier'), or () for no key")
    check.of_type(event_time, str, "event_time", "name the column that holds the time of the event")
    check.of_type(emit, Emit, "emit", "use wr.Emit(...), wr.Emit.append() or wr.Emit.update()", BadTrigger)
    check.name(name, "name")
    if input is not None:
        check.name(input, "input")
    check.number(dead_letter_limit, "dead_letter_limit", "use a number of letters, 0 or more")
    if positions is not None:
        check.of_type(
            positions, Positions, "positions", "use wr.positions('offset', partition='part', source='topic')"
        )
    if len(set(keys)) != len(keys):
        raise ConfigurationError(f"by={keys!r} names a column twice")
    if not isinstance(window, WindowSpec):
        raise BadWindow(
            f"window={window!r}: use wr.tumbling, wr.hopping, wr.calendar, wr.tuples or wr.global_window"
        )
    check.of_type(agg, Mapping, "agg", "name each aggregation, e.g. agg={'n': wr.count()}", BadAggregate)
    if not agg:
        raise BadAggregate("agg is empty: name at least one aggregation, e.g. agg={'n': wr.count()}")
    check.names(agg, "agg", "name each aggregation by text, e.g. agg={'n': wr.count()}")
    for alias, aggregation in agg.items():
        if not isinstance(aggregation, Aggregation):
            raise BadAggregate(
                f"agg[{alias!r}] = {aggregation!r}: use an aggregation such as wr.count() or wr.avg('x')"
            )
    for column in (*keys, *agg):
        if column in RESERVED_COLUMNS:
            raise ReservedColumn(
                f"column {column!r} would clash with the pane's own column {column!r}: rename it (a pane has the columns "
                f"{', '.join(RESERVED_COLUMNS)} beside keys and aggregates)"
            )
        if column in keys and column in agg:
            raise ReservedColumn(f"{column!r} is both a key and an aggregate: rename one of them")
    return keys


def _lateness(allowed_lateness: Duration | None, kept: Retention, emit: Emit) -> int:
    """How long past the watermark a window takes messages, in microseconds."""
    if allowed_lateness is None:
        lateness_us = _default_lateness(kept, emit)
    else:
        lateness_us = duration_us(allowed_lateness, "allowed lateness")
        if emit.drop_late and lateness_us != 0:
            raise RetentionTooShort(
                f"allowed_lateness {allowed_lateness!r} with {emit!r}: Spark's output modes take nothing late; "
                "leave allowed_lateness out or use wr.Emit(...)"
            )
    if lateness_us < 0:
        raise BadDuration(f"allowed_lateness {allowed_lateness!r} is negative")
    if kept.time_us is not None and kept.time_us < lateness_us:
        raise RetentionTooShort(
            f"retention {show_duration(kept.time_us)!r} is shorter than allowed_lateness {show_duration(lateness_us)!r}: "
            f"use retention={show_duration(lateness_us)!r} or more, or a shorter allowed_lateness"
        )
    return lateness_us


def _check_choices(
    null_keys: str,
    integer_overflow: str,
    time_zone: str | None,
    event_time_unit: str | None,
    scale: str | None,
    ids: Any,
) -> None:
    """Refuse what is none of the choices of an option."""
    if null_keys not in ("group", "dead_letter"):
        raise ConfigurationError(f"null_keys={null_keys!r}: use 'group' or 'dead_letter'")
    if integer_overflow not in ("dead_letter", "decimal"):
        raise ConfigurationError(f"integer_overflow={integer_overflow!r}: use 'dead_letter' or 'decimal'")
    if time_zone is not None:
        try:
            ZoneInfo(time_zone)
        except (KeyError, ValueError, TypeError):
            raise ConfigurationError(f"time zone {time_zone!r} is not known: use an IANA name") from None
    check_unit(event_time_unit)
    if scale not in (None, "small", "large"):
        raise ConfigurationError(f"scale={scale!r}: use 'small' or 'large'")
    if ids is not None and not isinstance(ids, Ids):
        raise ConfigurationError(f"ids={ids!r}: use wr.ids('order_id'), with the names of your columns")


def _retention(retention: Duration | Retention | Forever | None, window: WindowSpec) -> Retention:
    if isinstance(retention, Forever):
        return Retention()
    if isinstance(retention, (str, timedelta)):
        retention = Retain(retention)
    if retention is None:
        if isinstance(window, Tuples):
            raise RetentionMissing(
                f"{window!r} needs a retention by count: use retention=wr.Retain(windows=100), or wr.forever"
            )
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
            f"{window!r} never ends, so it cannot expire by time: use retention=wr.forever"
        )
    return retention
