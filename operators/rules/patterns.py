"""Patterns and rules as values: the messages that must be there, or absent, for a rule to be true.

Seed 004 "Temporal Reasoning", "Entry Points", "Negative Patterns", "Sliding Windows".
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.errors import BadAggregate, BadDuration, BadRelation, BadRule
from windrow.core.expressions import Expr
from windrow.core.frames import Frame, make_frame
from windrow.core.relations import Relation
from windrow.core.show import Raw, call
from windrow.core.suggestions import meant_aggregation
from windrow.core.time import Duration, duration_us, show_duration

Columns: TypeAlias = str | Mapping[str, str] | Sequence[str]
Relations: TypeAlias = Relation | Sequence[Relation]

_NAME = re.compile(r"[^\W\d]\w*")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\{[^{}]*\}|FieldRef\.\w+')
_DOTTED = re.compile(r"(?<![\w.])([^\W\d]\w*)\.([^\W\d]\w*)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of a rule. Build it with `wr.event`, `wr.fact`, `wr.absent`, `wr.accumulate`."""

    kind: str
    input: str
    where: Expr | None = None
    #: Pairs of an own column and `binding.column`, which are equal.
    on: tuple[tuple[str, str], ...] = ()
    time: tuple[Relation, ...] = ()
    other_than: tuple[str, ...] = ()
    frame: Frame | None = None
    #: The time past a tuple's last event up to which a fact may come.
    wait_us: int = 0
    agg: Mapping[str, Aggregation] = field(default_factory=dict)
    having: Expr | None = None
    empty: Mapping[str, Any] = field(default_factory=dict)

    @property
    def binds(self) -> bool:
        """True if tuples of its rule hold a message or a row for it; else it is a sub-pattern."""
        return self.kind in ("event", "fact")

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its conditions, of its own columns and those of others."""
        return tuple(e for e in (self.where, self.having) if e is not None)

    @property
    def others(self) -> tuple[str, ...]:
        """The bindings that it names, each once."""
        named = [
            *(relation.binding for relation in self.time if relation.binding is not None),
            *(column.partition(".")[0] for _, column in self.on),
            *self.other_than,
            *(name for e in self.expressions for name, _ in references(e)),
        ]
        return tuple(dict.fromkeys(named))

    def describe(self) -> dict[str, Any]:
        """Return the options that shape the state, as plain values."""
        values = {
            "kind": self.kind,
            "input": self.input,
            "where": None if self.where is None else repr(self.where),
            "on": [list(pair) for pair in self.on],
            "time": [repr(relation) for relation in self.time],
            "other_than": list(self.other_than),
            "frame": None if self.frame is None else repr(self.frame),
            "wait": self.wait_us,
            "agg": {alias: a.describe() for alias, a in self.agg.items()},
            "having": None if self.having is None else repr(self.having),
            "empty": {alias: repr(value) for alias, value in self.empty.items()},
        }
        return {name: value for name, value in values.items() if value}

    def __repr__(self) -> str:
        return call(
            self.kind,
            self.input,
            agg=dict(self.agg) or None,
            where=shown(self.where),
            on=dict(self.on) or None,
            time=None if not self.time else self.time[0] if len(self.time) == 1 else list(self.time),
            other_than=self.other_than or None,
            frame=self.frame,
            having=shown(self.having),
            empty=dict(self.empty) or None,
            wait=show_duration(self.wait_us) if self.wait_us else None,
        )


def event(
    input: str,
    *,
    where: pc.Expression | None = None,
    on: Columns = (),
    time: Relations = (),
    other_than: str | Sequence[str] = (),
    frame: Any = None,
) -> Pattern:
    """Return a pattern of a rule: a message of an input.

    input: the name of the input
    where: a condition, e.g. `wr.col("amount") > wr.col("a.amount")`: a plain name is a column of this pattern, "a.amount" one
        of another
    on: further columns that are equal: "a.card" for the column of that name, or {"card": "a.card_id"}; null equals nothing
    time: a temporal operator, as `wr.after("a", 0, "1 hour")`, or a list of which all hold
    other_than: the bindings whose message this one is not
    frame: only messages of the last so many, 10, or of the last time, wr.range_between("-2 minutes", 0, closed="right")

    Returns a pattern for `when=` of `wr.Rule`. Raises `BadRule` (WR119).

    >>> import windrow as wr
    >>> event("acks", time=wr.after("order", 0, "10 seconds"))
    wr.event('acks', time=wr.after('order', 0, '10 seconds'))
    """
    return Pattern("event", **_common(input, where, on, time, other_than), frame=_frame(frame))


def fact(
    input: str,
    *,
    where: pc.Expression | None = None,
    on: Columns = (),
    time: Relations = (),
    wait: Duration | None = None,
) -> Pattern:
    """Return a pattern of a rule: a current row of a `wr.Table`.

    input: the name of the table
    where, on, time: as of `wr.event`
    wait: how long past the last event of a tuple the row may come, e.g. "1 minute"; by default it is there, or not

    Returns a pattern for `when=` of `wr.Rule`. Raises `BadRule` (WR119), `BadDuration` (WR101).

    >>> fact("cards", on="a.card", wait="1 minute")
    wr.fact('cards', on={'card': 'a.card'}, wait='1 minute')
    """
    wait_us = 0 if wait is None else duration_us(wait, "wait")
    if wait_us < 0:
        raise BadDuration(f"wait {wait!r} is negative: use '0 seconds' or more")
    return Pattern("fact", **_common(input, where, on, time, ()), wait_us=wait_us)


def absent(
    input: str,
    *,
    where: pc.Expression | None = None,
    on: Columns = (),
    time: Relations = (),
    other_than: str | Sequence[str] = (),
) -> Pattern:
    """Return a pattern of a rule: no message of an input. The rule waits until none can come any more.

    input: the name of the input
    where, on, time, other_than: as of `wr.event`

    Returns a pattern for `when=` of `wr.Rule`. Raises `BadRule` (WR119).

    >>> import windrow as wr
    >>> absent("sprinklers", time=wr.after("fire", 0, "10 seconds"))
    wr.absent('sprinklers', time=wr.after('fire', 0, '10 seconds'))
    """
    return Pattern("absent", **_common(input, where, on, time, other_than))


def accumulate(
    input: str,
    *,
    agg: Mapping[str, Aggregation],
    having: pc.Expression | None = None,
    where: pc.Expression | None = None,
    on: Columns = (),
    time: Relations = (),
    frame: Any = None,
    other_than: str | Sequence[str] = (),
    empty: Mapping[str, Any] | None = None,
) -> Pattern:
    """Return a pattern of a rule: aggregations of an input's messages, near the other messages (`time=`) or recent (`frame=`).

    input: the name of the input
    agg: name -> aggregation, e.g. {"mean": wr.avg("temperature")}; "r.mean" elsewhere where the pattern is called "r"
    having: a condition of these, and of columns of other patterns: null is not true
    where, on, time, other_than: as of `wr.event`
    frame: the last so many messages, 100, or those of the last time, wr.range_between("-10 minutes", 0, closed="right")
    empty: the values of no message, {"mean": 0.0}; by default those that the aggregation has, null for most

    Returns a pattern for `when=` of `wr.Rule`. Raises `BadRule` (WR119), `BadAggregate` (WR109).

    >>> import windrow as wr
    >>> accumulate("readings", frame=100, agg={"mean": wr.avg("temperature")}, having=wr.col("mean") > 30)
    wr.accumulate('readings', agg={'mean': wr.avg('temperature')}, frame=wr.rows_between(-99, 0), having=(mean > 30))
    """
    common = _common(input, where, on, time, other_than)
    framed = _frame(frame)
    if framed is not None and common["time"]:
        raise BadRule(
            f"wr.accumulate({input!r}) has time={time!r} and frame={frame!r}: messages are those near another pattern or the "
            "last ones: leave one of the two out"
        )
    aggregations = _aggregations(agg)
    unknown = [alias for alias in empty or {} if alias not in aggregations]
    if unknown:
        raise BadRule(
            f"empty={empty!r} names {unknown[0]!r}, which is none of {list(aggregations)}: name an aggregation"
        )
    return Pattern(
        "accumulate",
        **common,
        frame=framed,
        agg=aggregations,
        having=_condition(having, "having"),
        empty=dict(empty or {}),
    )


def _common(input: Any, where: Any, on: Any, time: Any, other_than: Any) -> dict[str, Any]:
    return {
        "input": check.name(input, "input"),
        "where": _condition(where, "where"),
        "on": _pairs(on),
        "time": _relations(time),
        "other_than": check.names(other_than, "other_than", "name a binding, or several"),
    }


def _condition(value: Any, option: str) -> Expr | None:
    if value is not None and not isinstance(value, pc.Expression):
        raise BadRule(f"{option}={value!r}: use an expression such as wr.col('amount') > wr.col('a.amount')")
    return None if value is None else Expr(value)


def _pairs(on: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(on, Mapping):
        pairs = tuple(on.items())
    else:
        named = check.names(on, "on", "name a column of another pattern, 'a.card', or {'card': 'a.card_id'}")
        pairs = tuple((column.rpartition(".")[2], column) for column in named)
    for own, other in pairs:
        if not isinstance(other, str) or not isinstance(own, str) or not _DOTTED.fullmatch(other):
            raise BadRule(f"on={on!r}: {other!r} is no column of another pattern: write it as 'a.card'")
    return pairs


def _relations(time: Any) -> tuple[Relation, ...]:
    listed = (time,) if isinstance(time, Relation) else time
    if not isinstance(listed, Sequence) or not all(isinstance(one, Relation) for one in listed):
        raise BadRelation(
            f"time={time!r}: use a temporal operator such as wr.after('fire', 0, '10 seconds'), or a list of them"
        )
    return tuple(listed)


def _frame(frame: Any) -> Frame | None:
    return None if frame is None else make_frame(frame)


def _aggregations(agg: Any) -> dict[str, Aggregation]:
    if not isinstance(agg, Mapping) or not agg:
        raise BadAggregate(f"agg={agg!r}: name at least one, e.g. agg={{'mean': wr.avg('x')}}")
    for alias, aggregation in agg.items():
        if not isinstance(alias, str) or not _NAME.fullmatch(alias):
            raise BadAggregate(f"agg {alias!r}: use a name of letters, digits and '_'")
        if not isinstance(aggregation, Aggregation):
            near = meant_aggregation(aggregation, alias)
            remedy = f"did you mean {near}?" if near else "use e.g. wr.avg('x')"
            raise BadAggregate(f"agg {alias!r}: {aggregation!r} is no aggregation: {remedy}")
        if aggregation.frame is not None or not aggregation.of_all:
            raise BadAggregate(
                f"agg {alias!r}: {aggregation!r} of a rule has no frame and no input of its own: leave them out"
            )
    return dict(agg)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: patterns that have to hold together, and the columns of the row that is emitted where they do.

    when: binding -> pattern, each `wr.event`, `wr.fact`, `wr.absent` or `wr.accumulate`. One at least is an event, or an
        accumulate with `frame=`. A pattern may name those before and after it
    then: column -> expression of bound columns, {"amount": wr.col("w.amount")}; by default every bound column, called
        `<binding>_<column>`
    delay: how long past its last event a tuple has to stay true until its row is emitted

    A frozen value. Raises `BadRule` (WR119), `BadDuration` (WR101).

    >>> import windrow as wr
    >>> wr.Rule(when={"w": wr.event("atm")}, then={"amount": wr.col("w.amount")})
    wr.Rule(when={'w': wr.event('atm')}, then={'amount': wr.col('w.amount')})
    """

    when: Mapping[str, Pattern]
    then: Mapping[str, Expr] | None = None
    delay_us: int | None = None

    def __init__(
        self,
        *,
        when: Mapping[str, Pattern],
        then: Mapping[str, pc.Expression] | None = None,
        delay: Duration | None = None,
    ) -> None:
        object.__setattr__(self, "when", _patterns(when))
        object.__setattr__(self, "then", None if then is None else _columns(then))
        delay_us = None if delay is None else duration_us(delay, "delay")
        if delay_us is not None and delay_us < 0:
            raise BadDuration(f"delay {delay!r} is negative: use '0 seconds' or more")
        object.__setattr__(self, "delay_us", delay_us)

    @property
    def events(self) -> dict[str, Pattern]:
        """The patterns of which a message takes part in each tuple."""
        return {name: p for name, p in self.when.items() if p.kind == "event"}

    @property
    def facts(self) -> dict[str, Pattern]:
        """The patterns of which a row of a table takes part in each tuple."""
        return {name: p for name, p in self.when.items() if p.kind == "fact"}

    @property
    def subpatterns(self) -> dict[str, Pattern]:
        """The patterns that are judged for each tuple: absences and aggregations."""
        return {name: p for name, p in self.when.items() if not p.binds}

    @property
    def framed(self) -> str | None:
        """The binding of the aggregation with a frame, whose changes are the events of the rule; None without one."""
        framed = (name for name, p in self.when.items() if p.kind == "accumulate" and p.frame is not None)
        return next(framed, None)

    def over(self, when: Mapping[str, Pattern]) -> Rule:
        """Return the same rule of other patterns, which were checked."""
        made = copy.copy(self)
        object.__setattr__(made, "when", when)
        return made

    def describe(self) -> dict[str, Any]:
        """Return the options that shape the state, as plain values."""
        return {
            "when": {name: pattern.describe() for name, pattern in self.when.items()},
            "delay": self.delay_us,
        }

    def __repr__(self) -> str:
        then = None if self.then is None else {name: shown(e) for name, e in self.then.items()}
        delay = None if self.delay_us is None else show_duration(self.delay_us)
        return call("Rule", when=dict(self.when), then=then, delay=delay)


def _patterns(when: Any) -> dict[str, Pattern]:
    if not isinstance(when, Mapping) or not when:
        raise BadRule(f"when={when!r}: name at least one pattern, e.g. when={{'w': wr.event('atm')}}")
    for binding, pattern in when.items():
        if not isinstance(binding, str) or not _NAME.fullmatch(binding) or binding.startswith("__"):
            raise BadRule(f"binding {binding!r}: use letters, digits and '_', e.g. 'fire'")
        if not isinstance(pattern, Pattern):
            raise BadRule(
                f"when[{binding!r}]={pattern!r} is no pattern: use wr.event, wr.fact, wr.absent or wr.accumulate"
            )
    return dict(when)


def _columns(then: Any) -> dict[str, Expr]:
    if not isinstance(then, Mapping):
        raise BadRule(
            f"then={then!r}: use {{'amount': wr.col('w.amount')}}, or leave it out for all bound columns"
        )
    for name, value in then.items():
        if not isinstance(name, str) or not name or name.startswith("__"):
            raise BadRule(
                f"then: {name!r} is no name of a column: names with two underscores first are reserved"
            )
        if not isinstance(value, pc.Expression):
            raise BadRule(
                f"then[{name!r}]={value!r}: use an expression such as wr.col('w.amount'), or wr.lit({value!r})"
            )
    return {name: Expr(value) for name, value in then.items()}


def references(expression: Expr) -> Iterator[tuple[str, str]]:
    """Yield the columns of other patterns that an expression names, as (binding, column)."""
    for match in _DOTTED.finditer(_TEXT.sub(" ", repr(expression))):
        yield match[1], match[2]


def shown(expression: Expr | None) -> Raw | None:
    """Format an expression as text: columns and literals as calls that build them."""
    if expression is None:
        return None
    text = repr(expression)
    if expression.expression.equals(pc.field(text)):
        return Raw(call("col", text))
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Raw(text)
    is_literal = isinstance(value, int | float | str) and expression.expression.equals(pc.scalar(value))
    return Raw(call("lit", value)) if is_literal else Raw(text)


def bindings(rules: Iterable[Rule]) -> Iterator[tuple[Rule, str, Pattern]]:
    """Yield every pattern of every rule with its binding."""
    for rule in rules:
        for binding, pattern in rule.when.items():
            yield rule, binding, pattern
