"""The definition of a windowed aggregate: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Windowed Aggregator": required are the aggregator function, the window's unit, size and
step, and the retention by size and time; optional the early, full-size and late policies.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from windrow.core.aggregation import Aggregation
from windrow.core.deliver import Policy
from windrow.core.emit import (
    Emit,
    EveryBatch,
    EveryCount,
    EveryPeriod,
    Never,
    Trigger,
    by_step,
    by_value,
    of_event_time,
)
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.expressions import Expr
from windrow.core.inputs import UNNAMED, Input
from windrow.core.messages import Pane
from windrow.core.policy import (
    UNBOUNDED_US,
    Retention,
    Watermark,
    bounded,
    forever,
    show_letters,
    show_max_ahead,
)
from windrow.core.positions import Ids, Positions
from windrow.core.show import Raw, call
from windrow.core.time import START_OF_TIME_US, TimeUnit, duration_us, show_duration
from windrow.core.windows import Global, Inherited, Session, Tuples, TupleSession, WindowSpec
from windrow.operators.aggregate.panes import to_panes
from windrow.operators.aggregations import RETRACTABLE
from windrow.operators.aggregations.required_columns import keeps_whole
from windrow.operators.evolution import ALONE, Before, Growth
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.derived_columns import Makes, raw

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
    where: Expr | None = None
    deliver: Policy | None = None
    #: Aggregations added to a state, with the first start of windows in which they have seen all messages.
    since_us: tuple[tuple[str, int], ...] = ()
    #: The first gap that sessions of a state had, where it has grown since.
    gap_before_us: int | None = None

    #: Aggregations computed from kept messages, with the first start of windows that did not need it.
    recomputed_us: tuple[tuple[str, int], ...] = ()
    #: True if added aggregations are computed from kept messages.
    recompute: bool = False
    #: True if a state goes on keeping messages, though all aggregations that need them were removed.
    keeps_messages: bool = False
    #: In a graph: it receives retractions; and it forwards the retraction of each replaced pane.
    takes_back: bool = False
    forwards_retractions: bool = False

    #: Keys and event time that are derived from columns of the input.
    makes: Makes = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the columns that make the input what it is: event time, keys, ids."""
        ids = () if self.ids is None else self.ids.columns
        window = (WINDOW_START,) if self.inherited else ()
        return raw((self.event_time, *self.by, *window, *ids), self.makes)

    @property
    def full_state(self) -> bool:
        """True if some aggregation needs the window's messages: the second design of seed 003. An aggregate that receives
        retractions keeps values for them; a session one keeps the messages, whose times show where a session splits.
        """
        if self.takes_back:
            return self.session
        return self.keeps_messages or needs_messages(self)

    @property
    def emits_evicted(self) -> bool:
        """True if a window evicted before its end emits the pane that was due at its end."""
        return False

    @property
    def tuple_window(self) -> bool:
        return isinstance(self.window, Tuples)

    @property
    def session(self) -> bool:
        return isinstance(self.window, Session | TupleSession)

    @property
    def numbered(self) -> bool:
        """True if windows are ranges of numbers of messages, and not of event time."""
        return isinstance(self.window, Tuples | TupleSession)

    @property
    def own_gap(self) -> Expr | None:
        """Return the expression of each message's gap, where sessions have a dynamic gap."""
        return self.window.own_gap if isinstance(self.window, Session) else None

    @property
    def inherited(self) -> bool:
        return isinstance(self.window, Inherited)

    def describe(self) -> dict[str, Any]:
        """Return all that shapes the state, as plain values: the text that the fingerprint is a digest of."""
        return {
            "operator": "aggregate",
            "by": list(self.by),
            "event_time": self.event_time,
            "event_time_unit": self.event_time_unit,
            "time_zone": self.time_zone,
            "null_keys": self.null_keys,
            "input": self.input_name,
            "ids": None if self.ids is None else list(self.ids.columns),
            "where": None if self.where is None else repr(self.where),
            "makes": {name: repr(e) for name, e in self.makes},
            "window": repr(self.window),
            "agg": {name: a.describe() for name, a in self.agg.items()},
            "design": "full-state" if needs_messages(self) else "incremental",
            "mode": "discarding" if self.emit.mode == "discarding" else "accumulating",
            "scale": self.scale,
        }

    def filing(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            **super().filing(),
            "allowed_lateness_us": self.allowed_lateness_us,
            "max_ahead_us": self.max_ahead_us,
        }
        if self.numbered:
            facts["retention"] = [self.retention.windows, self.retention.messages, self.retention.per]
        return facts

    def one_shard(self) -> str | None:
        if isinstance(self.window, TupleSession):
            return f"{self.window!r} counts the messages of all keys"
        return super().one_shard()

    def growth(self, before: Before) -> Growth | str:
        """Return the added and removed aggregations since the state was written; else a text that lists other changes."""
        own = json.loads(json.dumps(self.describe()))
        described = before.described
        old, new = described.get("agg", {}), own["agg"]
        former = {**before.growth.removed, **old}
        changed = [alias for alias, text in new.items() if former.get(alias, text) != text]
        fixed = self.inherited
        gap_us = _smaller_gap(self, described)
        if gap_us is not None and list(_others(own, described)) == ["window"] and old == new:
            return replace(before.growth, gap_us=before.growth.gap_us or gap_us)
        lacks = _lacks(self, described, before)
        if changed or list(_others(own, described)) or lacks or (fixed and old != new):
            changes = _changes(self, own, described, former, gap_us, lacks=lacks)
            return "".join(f"\n  - {change}" for change in changes)
        whole_us = before.reached_us + 1
        since = {alias: us for alias, us in before.growth.since_us.items() if alias in new}
        since |= dict.fromkeys((alias for alias in new if alias not in old), whole_us)
        removed = {alias: text for alias, text in former.items() if alias not in new}
        recomputed = {
            alias: us for alias, us in before.growth.recomputed_us.items() if alias in new and alias in old
        }
        keeps = not needs_messages(self) and _kept(described, before) and not self.takes_back
        of_kept = (self.full_state or keeps) and not (fixed or self.numbered)
        if self.recompute and of_kept and self.emit.mode != "discarding":
            kept = {alias: self.kept_since_us(alias, since) for alias in since}
            better = {alias: us for alias, us in kept.items() if us < since[alias]}
            recomputed |= dict.fromkeys(better, whole_us)
            since = {alias: us for alias, us in {**since, **better}.items() if us > START_OF_TIME_US}
        return Growth(since, removed, recomputed, gap_us=before.growth.gap_us, keeps_messages=keeps)

    def kept_since_us(self, alias: str, since: Mapping[str, int]) -> int:
        """Return the event time from which kept messages have all columns that an aggregation takes."""
        aggregation = self.agg[alias]
        stays = {a: since.get(a, START_OF_TIME_US) for a in self.agg if a != alias}
        never_us = since[alias]
        whole_us = min([never_us, *(us for a, us in stays.items() if keeps_whole(self.agg[a]))])
        if aggregation.kind == "table_function":
            return whole_us
        known = dict.fromkeys(self.columns_of(self.inputs[0]), START_OF_TIME_US)
        for other, us in stays.items():
            for column in self.agg[other].columns:
                known[column] = min(us, known.get(column, never_us))
        uses = aggregation.expressions
        columns = [*aggregation.columns, *(c for c in known if any(use.mentions(c) for use in uses))]
        found_us = max([START_OF_TIME_US, *(known.get(c, never_us) for c in columns)])
        if any(use.lacks(known, unsure=True) for use in uses):
            found_us = never_us
        return min(found_us, whole_us)

    def grown(self, growth: Growth) -> Self:
        since, recomputed = (tuple(sorted(us.items())) for us in (growth.since_us, growth.recomputed_us))
        grown = {"since_us": since, "recomputed_us": recomputed, "gap_before_us": growth.gap_us}
        return self._changed(**grown, keeps_messages=growth.keeps_messages, recompute=False)

    def recomputing(self) -> Self:
        return self._changed(recompute=True)

    def emitted_until_us(self, reached_us: int) -> int:
        """Return the last moment of the newest window that holds a time."""
        if reached_us <= START_OF_TIME_US or self.tuple_window or isinstance(self.window, Global):
            return reached_us
        if isinstance(self.window, Session):
            return reached_us + self.window.gap_us
        if isinstance(self.window, Inherited):
            return reached_us  # the time of a row is the last moment of its window
        _, _, ends = assigner_of(self.window).assign(np.array([reached_us], dtype=np.int64))
        return int(ends.max(initial=reached_us + 1)) - 1

    # -- as an operator ---------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return its one input."""
        return (
            Input(
                self.input_name or UNNAMED,
                self.event_time,
                None,
                self.watermark,
                self.time_zone,
                self.max_ahead_us,
                self.positions,
                event_time_unit=self.event_time_unit,
                time_made=self.event_time in dict(self.makes),
                where=self.where,
                deliver=self.deliver,
            ),
        )

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return self.needs

    def keys(self, input: Input) -> tuple[str, ...]:
        return self.by

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        [input] = self.inputs
        return self._changed(watermark=watermarks[input.name]) if input.name in watermarks else self

    @property
    def output_columns(self) -> tuple[str, ...]:
        return (*self.by, *self.agg)

    @property
    def emission_mode(self) -> str:
        return self.emit.mode

    def unsettled(self) -> str | None:
        emit = self.emit
        if self.numbered:
            return (
                f"{self.name!r} has windows of {self.window!r}, whose contents depend on the order of arrival: only windows of "
                "time can be checked"
            )
        if self.session:
            return (
                f"{self.name!r} has windows of {self.window!r}, which what came too late shapes too: only windows that are "
                "known beforehand can be checked"
            )
        if self.policies:
            return f"{self.name!r} skips messages under {self.deliver!r}: only what takes all of them can be checked"
        not_emitted = not emit.on_time or (isinstance(emit.late, Never) and not emit.drop_late)
        if emit.mode == "discarding" or not_emitted:
            return (
                f"the last pane of a window under {emit!r} need not be all of it: check a job that is accumulating or "
                "retracting, with panes on time and late"
            )
        return None

    @property
    def periods(self) -> frozenset[int] | None:
        return self.emit.periods

    @property
    def tables(self) -> tuple[str, ...]:
        return ("windows", "messages") if self.full_state else ("windows",)

    @property
    def known_by(self) -> tuple[str, ...]:
        return self.by

    def values(self, rows: pa.Table, job: str) -> Iterator[Pane]:
        return to_panes(rows, self.by, job, tuples=self.numbered)

    @property
    def in_runs(self) -> bool:
        """True if steps may be run as one. Not eligible: user code that may fail for one message; early results from kept
        messages; limits on the number of time windows, which each message may change; windows of messages with an added
        aggregation; discarding triggers by value; and periods of event time, which each message may end.
        """
        emit, retention = self.emit, self.retention
        limited = retention.windows is not None or retention.messages is not None
        triggers = (emit.early,) if self.tuple_window else (emit.early, emit.late)
        return (
            (not self.session or _sessions_in_runs(self))
            and not (self.tuple_window and self.since_us)
            and self.where is None
            and self.deliver is None
            and not self.makes
            and not (self.full_state and any(map(by_step, triggers)) and not self.session)
            and not (emit.mode == "discarding" and any(map(by_value, triggers)))
            and not any(map(of_event_time, triggers))
            and not (limited and not (self.tuple_window and retention.per == "key"))
            and all(a.kind != "user" for a in self.agg.values())
        )

    @property
    def emits_updates(self) -> bool:
        """True if panes may replace earlier panes."""
        mode = self.emit.mode
        return mode == "retracting" or (mode == "accumulating" and not _once(self))

    def with_retractions(self) -> Self:
        return self._changed(forwards_retractions=True)

    def taking_back(self) -> Self:
        return self._changed(takes_back=True)

    @property
    def takes_back_panes(self) -> bool:
        """True if a pane is retracted when another one of its window replaces it."""
        return self.emit.mode == "retracting" or self.forwards_retractions

    @property
    def remembers(self) -> bool:
        """True if the last emitted values have to be known when the next pane is emitted."""
        return self.emit.remembers or self.forwards_retractions or self.takes_back

    def check_begins(self) -> None:
        if self.inherited:
            raise BadWindow(
                f"{self.window!r} of {self.name!r}, which takes its messages from outside: they have no window yet; use it in "
                "a chain, behind an aggregate whose windows it is to keep"
            )

    def taker(self, before: str) -> Taker:
        """Return how an aggregate receives the rows of the operator `before`."""
        if self.watermark != bounded():
            raise BadWatermark(
                f"watermark={self.watermark!r} of {self.name!r}, which follows {before!r}: its watermark is that of "
                f"{before!r}, leave it out"
            )
        for option, value in (("positions", self.positions), ("ids", self.ids)):
            if value is not None:
                raise ConfigurationError(
                    f"{option}={value!r} of {self.name!r}, which follows {before!r}: its messages are the rows of "
                    f"{before!r}, each emitted once and in order; leave it out"
                )
        if self.makes:
            raise ConfigurationError(
                f"{[name for name, _ in self.makes]} of {self.name!r}, which follows {before!r}, by expressions: make "
                f"these columns in by= or agg= of {before!r}"
            )
        wanted = dict.fromkeys([*self.by, *(c for a in self.agg.values() for c in a.columns)])
        if self.inherited:
            if self.event_time != WINDOW_TIME:
                raise BadWindow(
                    f"event_time={self.event_time!r} of {self.name!r}, with {self.window!r}: what has a window "
                    f"has the time {WINDOW_TIME!r}, the last moment of it; use event_time={WINDOW_TIME!r}"
                )
            wanted[WINDOW_START] = None
        late_us = self.allowed_lateness_us
        gaps = () if self.own_gap is None else (self.own_gap,)
        uses = (*gaps, *(e for a in self.agg.values() for e in a.expressions))
        return Taker(self.name, self.inputs[0], tuple(wanted), _keeps(self), late_us, uses)

    def check_followed(self, taker: Taker) -> None:
        """Check that each pane is a contribution of its own, or retracts the pane that it replaces."""
        if self.numbered or isinstance(self.window, Global):
            raise BadWindow(
                f"{self.window!r} of {self.name!r} has no end in event time, by which {taker.name!r} could file its panes: "
                "use wr.tumbling, wr.hopping, wr.calendar or wr.session"
            )
        trouble = _trouble(self, taker)
        if trouble:
            raise BadTrigger(f"{self.emit!r} of {self.name!r}, before {taker.name!r}: {trouble}")
        if taker.event_time != WINDOW_TIME:
            raise UnknownColumn(
                f"event_time={taker.event_time!r} of {taker.name!r}: a pane of {self.name!r} has the time {WINDOW_TIME!r}, "
                f"the last moment of its window; use event_time={WINDOW_TIME!r}"
            )
        columns = (*self.by, *self.agg)
        clash = [c for c in columns if c in WINDOW_COLUMNS]
        if clash:
            raise ReservedColumn(
                f"column {clash[0]!r} of {self.name!r} would clash with the column of that name that {taker.name!r} gets "
                f"(panes bring {', '.join(WINDOW_COLUMNS)} beside keys and aggregates): rename it"
            )
        remedy = f": add it to by= or agg= of {self.name!r}"
        taker.check_columns((*columns, *WINDOW_COLUMNS), f"{self.name!r}, whose panes", remedy)

    def output_delay_us(self, event_time: str) -> int:
        # A session that can never be corrected is emitted a moment after its end, not at it. One that may be retracted may be
        # retracted at the very moment at which its end is late.
        closes = emits_at_close(self) and not self.emits_updates
        once = not self.emit.emits_late or self.emits_updates or closes
        return (1 if self.session and once else 0) + (self.allowed_lateness_us if closes else 0)

    def of_forwarded_rows(self, input: Input) -> Self:
        return self._changed(
            max_ahead_us=None, time_zone=input.time_zone, event_time_unit=input.event_time_unit
        )

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.aggregate.logic import WindowAggregator
        from windrow.operators.aggregate.propagated_windows import InheritedAggregator
        from windrow.operators.aggregate.sessions.logic import SessionAggregator
        from windrow.operators.aggregate.sessions.tuples import TupleSessionAggregator
        from windrow.operators.aggregate.tuples import TupleAggregator
        from windrow.operators.delivery_stage import delivering

        if self.inherited:
            return delivering(InheritedAggregator(self))
        if isinstance(self.window, TupleSession):
            return delivering(TupleSessionAggregator(self))
        if self.session:
            return delivering(SessionAggregator(self))
        return delivering(TupleAggregator(self) if self.tuple_window else WindowAggregator(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.aggregate.oracle import AggregateOracle
        from windrow.operators.aggregate.sessions.oracle import CutSessionOracle, TupleSessionOracle
        from windrow.operators.oracle.delivery_stage import delivering

        sessions = TupleSessionOracle if self.numbered else CutSessionOracle
        oracle = sessions(self) if self.session else AggregateOracle(self)
        return delivering(self, oracle, schemas)

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
        derived = dict(self.makes)
        return self._call(
            "Aggregate",
            by={b: Raw(derived.get(b, repr(b))) for b in self.by} if set(self.by) & set(derived) else self.by,
            event_time=Raw(derived.get(self.event_time, repr(self.event_time))),
            watermark=self.watermark,
            time_zone=self.time_zone,
            event_time_unit=self.event_time_unit,
            max_ahead=show_max_ahead(self.max_ahead_us, self.watermark),
            positions=self.positions,
            input=self.input_name,
            where=None if self.where is None else Raw(self.where),
            deliver=self.deliver,
        )

    def _call(self, kind: str, **own: Any) -> str:
        """Return the call that builds it. own: the arguments that only this kind has."""
        retention: Any = self.retention
        if retention == Retention():
            retention = forever
        elif retention == Retention(time_us=retention.time_us):
            retention = show_duration(retention.time_us)
        unsaid = self.allowed_lateness_us == default_lateness(self.retention, self.emit)
        shown = {
            "window": self.window,
            "agg": dict(self.agg),
            "retention": retention,
            "allowed_lateness": None if unsaid else show_duration(self.allowed_lateness_us),
            "emit": None if self.emit == Emit() else self.emit,
            "name": None if self.name == kind.lower() else self.name,
            "null_keys": None if self.null_keys == "group" else self.null_keys,
            "scale": self.scale,
            "integer_overflow": None if self.integer_overflow == "dead_letter" else self.integer_overflow,
            "ids": self.ids,
            "dead_letter_limit": None if self.dead_letter_limit == 10_000 else self.dead_letter_limit,
            "dead_letter_retention": show_letters(self.dead_letter_retention_us),
        }
        values = shown | own
        order = dict.fromkeys([*inspect.signature(type(self)).parameters, *values])
        return call(kind, **{name: values[name] for name in order if name in values})

    def __reduce__(self) -> tuple[Any, ...]:
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        state["agg"] = dict(state["agg"])
        return (_restore, (type(self), state))


def _restore(cls: type[Any], state: dict[str, Any]) -> Any:
    state["agg"] = MappingProxyType(state["agg"])
    restored = object.__new__(cls)
    for name, value in state.items():
        object.__setattr__(restored, name, value)
    return restored


def default_lateness(retention: Retention, emit: Emit) -> int:
    """Return the retention; 0 if late messages would never be emitted: then they are dead letters."""
    if emit.drop_late or not emit.emits_late:
        return 0
    return UNBOUNDED_US if retention.time_us is None else retention.time_us


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


#: Columns of a pane that is forwarded downstream, besides keys and aggregates: the last moment of its window, which is its
#: event time there and so stays inside its window; and the window itself.
WINDOW_TIME, WINDOW_START, WINDOW_END = "window_time", "window_start", "window_end"
WINDOW_COLUMNS = (WINDOW_TIME, WINDOW_START, WINDOW_END)


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


_GAP = re.compile(r"wr\.session\('([^']*)'")
_NONE_KEPT = "it needs every message of a window, and this state keeps none"


def needs_messages(definition: AggregateDefinition) -> bool:
    """True if some aggregation needs every message of a window."""
    return any(a.full_state for a in definition.agg.values())


def _kept(described: Mapping[str, Any], before: Before) -> bool:
    """True if the state has the messages of its windows."""
    return before.growth.keeps_messages or described.get("design") == "full-state"


def _lacks(definition: AggregateDefinition, described: Mapping[str, Any], before: Before) -> bool:
    """True if aggregations need messages that the state lacks; one that receives retractions has its own values."""
    return needs_messages(definition) and not (definition.takes_back or _kept(described, before))


def _changes(
    definition: AggregateDefinition,
    own: Mapping[str, Any],
    described: Mapping[str, Any],
    former: Mapping[str, str],
    gap_us: int | None,
    *,
    lacks: bool,
) -> Iterator[str]:
    """Yield each change, with a note that says if it alone could be opened."""
    changes = "not on such windows" if definition.inherited else ALONE
    old, new = described.get("agg", {}), own["agg"]
    for alias, text in new.items():
        if former.get(alias, text) != text:
            yield f"{alias!r} was {former[alias]}, and is {text}: give the new one a name that there was not"
        elif alias not in old:
            late = lacks and definition.agg[alias].full_state
            yield f"{alias!r} has come, {text}: {_NONE_KEPT if late else changes}"
    for alias, text in old.items():
        if alias not in new:
            yield f"{alias!r} has gone, {text}: {changes}"
    for key in _others(own, described):
        alone = ALONE if key == "window" and gap_us is not None else "not on this state"
        yield f"{key} was {described.get(key)!r}, and is {own.get(key)!r}: {alone}"


def _smaller_gap(definition: AggregateDefinition, described: Mapping[str, Any]) -> int | None:
    """Return the former gap of sessions, if only the gap differs, and it was smaller."""
    window, match = definition.window, _GAP.match(str(described.get("window")))
    whole = isinstance(window, Session) and definition.own_gap is None and window.max_length_us is None
    if not whole or match is None:
        return None
    assert isinstance(window, Session)
    before = replace(window, gap=duration_us(match[1]))
    return before.gap_us if repr(before) == described["window"] and before.gap_us < window.gap_us else None


def _others(own: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that differ, except the aggregations, and the design, which follows from them."""
    for key in sorted({*own, *described}):
        if key not in ("agg", "design") and own.get(key) != described.get(key):
            yield key
