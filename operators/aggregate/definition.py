"""The definition of a windowed aggregate: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Windowed Aggregator": required are the aggregator function, the window's unit, size and
step, and the retention by size and time; optional the early, full-size and late policies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, Self

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
from windrow.core.errors import BadWindow
from windrow.core.expressions import Expr
from windrow.core.inputs import UNNAMED, Input
from windrow.core.messages import Pane
from windrow.core.policy import (
    UNBOUNDED_US,
    Retention,
    Watermark,
    forever,
    show_letters,
    show_max_ahead,
)
from windrow.core.positions import Ids, Positions
from windrow.core.show import Raw, call
from windrow.core.time import TimeUnit, show_duration
from windrow.core.windows import Inherited, Session, Tuples, TupleSession, WindowSpec
from windrow.operators.aggregate import chaining, evolution
from windrow.operators.aggregate.panes import to_panes
from windrow.operators.evolution import Before, Growth
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.oracle.oracle import Oracle
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
        window = (chaining.WINDOW_START,) if self.inherited else ()
        return raw((self.event_time, *self.by, *window, *ids), self.makes)

    @property
    def full_state(self) -> bool:
        """True if some aggregation needs the window's messages: the second design of seed 003. An aggregate that receives
        retractions keeps values for them; a session one keeps the messages, whose times show where a session splits.
        """
        if self.takes_back:
            return self.session
        return self.keeps_messages or evolution.needs_messages(self)

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
            "design": "full-state" if evolution.needs_messages(self) else "incremental",
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
        return evolution.growth(self, before)

    def kept_since_us(self, alias: str, since: Mapping[str, int]) -> int:
        """Return the event time from which kept messages have all columns of an aggregation. since: that of each added one."""
        return evolution.kept_since_us(self, alias, since)

    def grown(self, growth: Growth) -> Self:
        since, recomputed = (tuple(sorted(us.items())) for us in (growth.since_us, growth.recomputed_us))
        grown = {"since_us": since, "recomputed_us": recomputed, "gap_before_us": growth.gap_us}
        return self._changed(**grown, keeps_messages=growth.keeps_messages, recompute=False)

    def recomputing(self) -> Self:
        return self._changed(recompute=True)

    def emitted_until_us(self, reached_us: int) -> int:
        return chaining.emitted_until_us(self, reached_us)

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
        return in_runs(self)

    @property
    def emits_updates(self) -> bool:
        return chaining.emits_updates(self)

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
        return chaining.taker(self, before)

    def check_followed(self, taker: Taker) -> None:
        chaining.check_followed(self, taker)

    def output_delay_us(self, event_time: str) -> int:
        # A session that can never be corrected is emitted a moment after its end, not at it. One that may be retracted may be
        # retracted at the very moment at which its end is late.
        closes = chaining.emits_at_close(self) and not self.emits_updates
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
        from windrow.operators.aggregate.sessions.splitting_oracle import CutSessionOracle
        from windrow.operators.aggregate.sessions.tuple_oracle import TupleSessionOracle
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
        retention: Any = self.retention
        if retention == Retention():
            retention = forever
        elif retention == Retention(time_us=retention.time_us):
            retention = show_duration(retention.time_us)
        lateness = (
            None
            if self.allowed_lateness_us == default_lateness(self.retention, self.emit)
            else self.allowed_lateness_us
        )
        derived = dict(self.makes)
        return call(
            "Aggregate",
            by={b: Raw(derived.get(b, repr(b))) for b in self.by} if set(self.by) & set(derived) else self.by,
            event_time=Raw(derived.get(self.event_time, repr(self.event_time))),
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
            where=None if self.where is None else Raw(self.where),
            deliver=self.deliver,
        )

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
