"""Definition of an alert: a frozen value, checked when built, whose `repr` builds it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.deliver import Policy
from windrow.core.emit import EveryPeriod
from windrow.core.errors import (
    BadDuration,
    BadTrigger,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.expressions import Expr
from windrow.core.frames import Frame, RangeBetween, RowsBetween, make_frame
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark, bounded
from windrow.core.positions import Positions
from windrow.core.time import Duration, TimeUnit, duration_us, show_duration
from windrow.operators.alert.actions import Action, actions_of, by_now
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.input_filter import filter_of

#: The columns of rows, apart from keys, aggregates and variables.
ROW: Final = (
    "alert_id",
    "action",
    "trigger",
    "cause",
    "status",
    "before_status",
    "count",
    "time",
    "open_time",
)
#: Window fields: columns that conditions and variables see, apart from keys and aggregates.
FIELDS: Final = (
    "samples",
    "before_status",
    "count",
    "open_time",
    "change_time",
    "first_time",
    "last_time",
    "now",
    "leaving",
)
#: Fields that follow from the evaluations before: conditions over them are evaluated one evaluation of a key after the other.
CARRIED: Final = ("count", "open_time", "change_time")


@dataclass(frozen=True, repr=False, init=False)
class AlertDefinition(OneInput):
    """An alert: a condition, evaluated again and again, with a status per key: CANCEL, OPEN, REPEAT. Rows are its transitions.

    by: key columns (one name or several); () for no key: each key has its own window and status
    event_time: the column of event time
    frame: the window: "5 minutes", the samples not older than that, or 10, the newest ten by event time; without it each
        message is judged as it arrives
    agg: name -> aggregation of the window, e.g. {"mean": wr.avg("x")}; `.over(...)` gives one a shorter frame of its own
    variables: name -> expression of keys, aggregates, window fields and the variables before it; they are columns of rows
    when: the condition that opens; null is false. Without `frame=` it is over the columns of messages
    until: the condition that cancels (hysteresis); default: `when` is not true
    evaluate: wr.every("1 minute"): evaluate every key at each such moment of `now`, without data
    leaving: whether the condition is evaluated when samples leave a window of time, too
    actions: name -> wr.Action(...); default: one, which emits OPEN and CANCEL
    ttl: how long of event time after its last sample a key is evicted; an open alert is cancelled then. By default never:
        a key with an open alert, or whose samples are counted, is kept for good
    history: the name of a static input of the same columns: its messages before the first one of a key fill the window of that
        key, without an evaluation. Give it with the first commit. `input=` names the input of the messages; default: as `name`
    version: under another one windows and statuses are dropped, without a row
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where, deliver, integer_overflow: as
        for `wr.Aggregate`
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import tempfile, windrow as wr
    >>> hot = wr.Alert(by="sensor", event_time="t", frame="5 minutes", agg={"mean": wr.avg("x")}, when=wr.col("mean") > 80)
    >>> with tempfile.TemporaryDirectory() as folder, hot.open(folder) as op:
    ...     for minute, x in enumerate((70, 99, 95, 40)):
    ...         op.add_message({"t": f"2013-07-01 05:1{minute}Z", "sensor": "a", "x": x})
    ...     [(row["status"], row["mean"]) for row in op.get_result()]
    [('OPEN', 84.5), ('CANCEL', 76.0)]
    """

    frame: Frame | None
    agg: Mapping[str, Aggregation]
    variables: Mapping[str, Expr]
    when: Expr
    until: Expr | None
    evaluate_us: int | None
    leaving: bool
    actions: Mapping[str, Action]
    ttl_us: int | None
    history: str | None
    version: str
    integer_overflow: str
    retention: Retention

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        frame: Frame | int | Duration | None = None,
        agg: Mapping[str, Aggregation] | None = None,
        variables: Mapping[str, pc.Expression] | None = None,
        when: pc.Expression,
        until: pc.Expression | None = None,
        evaluate: EveryPeriod | None = None,
        leaving: bool = True,
        actions: Mapping[str, Action] | None = None,
        ttl: Duration | Forever | None = None,
        history: str | None = None,
        version: str = "1",
        where: pc.Expression | None = None,
        name: str = "alert",
        watermark: Duration | Watermark = "0 seconds",
        max_ahead: Duration | Forever | None = None,
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        integer_overflow: str = "dead_letter",
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        deliver: Policy | None = None,
    ) -> None:
        where = filter_of(where)
        input = name if history is not None and input is None else input
        arguments = check.arguments(locals())
        expressions = {n: _expression(e, f"variables[{n!r}]") for n, e in (variables or {}).items()}
        arguments |= {"when": _expression(when, "when"), "variables": expressions or None}
        arguments["until"] = None if until is None else _expression(until, "until")
        framed = None if frame is None else _frame(frame)
        ttl_us = _ttl(arguments, framed)
        self._fill(
            arguments,
            frame=framed,
            agg=_aggregations(agg or {}, framed),
            variables=expressions,
            when=arguments["when"],
            until=arguments["until"],
            evaluate_us=None if evaluate is None else _evaluate(evaluate, framed),
            leaving=check.flag(leaving, "leaving"),
            actions=actions_of(actions),
            ttl_us=ttl_us,
            history=_history(arguments, framed),
            version=check.of_type(version, str, "version", "use text, e.g. version='2'"),
            integer_overflow=integer_overflow,
            retention=Retention(None),
            late_us=-framed.low_us if isinstance(framed, RangeBetween) else UNBOUNDED_US,
        )
        self._check_columns()

    def _check_columns(self) -> None:
        """Refuse names that are taken twice, and conditions over columns that there are not."""
        for column in (*self.by, *self.agg, *self.variables):
            if column in (*ROW, *FIELDS) or [*self.by, *self.agg, *self.variables].count(column) > 1:
                raise ReservedColumn(
                    f"column {column!r} of {self.name!r} is there already: keys, aggregates, variables and the columns of rows "
                    f"({', '.join(dict.fromkeys((*ROW, *FIELDS)))}) have names of their own; rename it"
                )
        known = [*self.by, *self.agg, *FIELDS]
        for name, expression in self.variables.items():
            self._check_expression(expression, f"variables[{name!r}]", known)
            known.append(name)
        for what, condition in (("when", self.when), ("until", self.until)):
            if condition is not None:
                self._check_expression(condition, what, known)
        for name, action in self.actions.items():
            if action.where is not None:
                columns = [*self.by, *ROW, *self.agg, *self.variables]
                _check_names(action.where, f"where of actions[{name!r}]", columns)

    def _check_expression(self, expression: Expr, what: str, known: Sequence[str]) -> None:
        if self.frame is not None:  # else the columns of messages are there, too
            _check_names(expression, f"{what} of {self.name!r}", known)

    # -- what shapes it ---------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        [input] = super().inputs
        if self.history is None:
            return (input,)
        past = replace(input, name=self.history, watermark=bounded(), static=True, deliver=None)
        return input, replace(past, max_ahead_us=None, positions=None)

    @property
    def size_us(self) -> int | None:
        """The length of its window of time."""
        return -self.frame.low_us if isinstance(self.frame, RangeBetween) else None

    @property
    def rows(self) -> int | None:
        """Return the number of samples of its window; None for a window of time."""
        return 1 - (self.frame.low or 0) if isinstance(self.frame, RowsBetween) else None

    @property
    def clocked(self) -> bool:
        """True if the moment of a window is that of the clock, whatever samples say."""
        return self.watermark.kind == "fixed"

    @property
    def conditions(self) -> tuple[Expr, ...]:
        """All expressions that an evaluation takes."""
        return (*self.variables.values(), self.when, *(() if self.until is None else (self.until,)))

    def describe(self) -> dict[str, Any]:
        return self._described(
            "alert",
            frame=None if self.frame is None else repr(self.frame),
            agg={alias: a.describe() for alias, a in self.agg.items()} or None,
            ttl=None if self.ttl_us is None else show_duration(self.ttl_us),
            **({} if self.history is None else {"history": self.history}),
            integer_overflow=None if self.integer_overflow == "dead_letter" else self.integer_overflow,
        )

    @property
    def output_columns(self) -> tuple[str, ...]:
        return (*self.by, *ROW, *self.agg, *self.variables)

    @property
    def periods(self) -> frozenset[int] | None:
        if by_now(self.actions):
            return None
        return frozenset() if self.evaluate_us is None else frozenset({self.evaluate_us})

    @property
    def tables(self) -> tuple[str, ...]:
        return ("alerts",)

    def _check_output(self) -> None:
        return None  # `_check_columns` does, once all is known

    # -- in a graph -------------------------------------------------------------------------------------------------

    def taker(self, before: str) -> Taker:
        taker = super().taker(before)
        columns = (*taker.columns, *(c for a in self.agg.values() for c in a.columns))
        uses = tuple(e for a in self.agg.values() for e in a.expressions)
        keeps = "it judges each row once, as it comes: use emit=wr.Emit.append() for what is before it"
        return replace(taker, columns=tuple(dict.fromkeys(columns)), uses=uses, keeps=keeps)

    def check_followed(self, taker: Taker) -> None:
        taker.check_rows(self, "time")

    # -- what does it -----------------------------------------------------------------------------------------------

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.alert.logic import Alerting
        from windrow.operators.delivery_stage import delivering

        return delivering(Alerting(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.alert.oracle import AlertOracle
        from windrow.operators.oracle.delivery_stage import delivering

        return delivering(self, AlertOracle(self), schemas)


def _frame(value: Any) -> Frame:
    """Return the frame of an alert's window, which ends with its moment."""
    frame = make_frame(value)
    if isinstance(frame, RangeBetween):
        past = frame.start_us < 0 and frame.end_us == 0
    else:
        past = frame.low is not None and frame.order == "event_time" and frame.high == 0
    if not past:
        raise BadWindow(
            f"frame={value!r} of an alert: use a duration, '5 minutes', or a number of samples, 10; its window ends with the "
            "newest sample"
        )
    return frame


def _aggregations(agg: Any, frame: Frame | None) -> dict[str, Aggregation]:
    """Return the aggregations, each with its frame."""
    if not isinstance(agg, Mapping):
        raise ConfigurationError(f"agg={agg!r}: use {{name: aggregation}}, e.g. {{'mean': wr.avg('x')}}")
    framed: dict[str, Aggregation] = {}
    for alias, aggregation in agg.items():
        check.of_type(aggregation, Aggregation, f"agg[{alias!r}]", "use an aggregation, e.g. wr.avg('x')")
        if frame is None:
            raise BadWindow(
                f"agg {alias!r}: {aggregation!r} without a window: give frame=, e.g. '5 minutes'; without it each message is "
                "judged by itself"
            )
        framed[alias] = replace(aggregation, frame=_frame(aggregation.frame or frame))
    return framed


def _expression(value: Any, what: str) -> Expr:
    remedy = "use an expression, such as wr.col('mean') > 80"
    return Expr(check.of_type(value, pc.Expression, what, remedy))


def _check_names(expression: Expr, whose: str, known: Sequence[str]) -> None:
    """Refuse an expression that names no column of these; of which types they are is not known yet."""
    try:
        expression.evaluate(pa.schema([(name, pa.null()) for name in known]).empty_table())
    except UnknownColumn as error:
        if error.column is not None and error.column not in known:
            raise UnknownColumn.lacking(error.column, whose, known) from None


def _evaluate(value: Any, frame: Frame | None) -> int:
    if not isinstance(value, EveryPeriod) or value.always or value.event_time:
        raise BadTrigger(f"evaluate={value!r}: use wr.every('1 minute'), without other options")
    if frame is None:
        raise BadWindow(f"evaluate={value!r} without a window: give frame=, e.g. '5 minutes'")
    return value.period_us


def _history(options: Mapping[str, Any], frame: Frame | None) -> str | None:
    """Return the name of the input of history."""
    history: str | None = options["history"]
    if history is None:
        return None
    check.name(history, "history")
    if frame is None:
        raise BadWindow(
            f"history={history!r} without a window, which it would fill: give frame=, e.g. '5 minutes'"
        )
    if history == options["input"]:
        raise ConfigurationError(f"history={history!r} is the name of the input, too: give it another one")
    return history


def _ttl(options: Mapping[str, Any], frame: Frame | None) -> int | None:
    """Return the time after its last sample at which a key is evicted; None: not by time."""
    ttl = options["ttl"]
    if ttl is None or isinstance(ttl, Forever):
        return None
    ttl_us = duration_us(ttl, "ttl")
    if ttl_us <= 0 or (isinstance(frame, RangeBetween) and ttl_us < -frame.low_us):
        raise BadDuration(
            f"ttl={ttl!r} with frame={options['frame']!r}: a key is evicted when its window is empty; use a ttl of that length "
            "or more"
        )
    return ttl_us
