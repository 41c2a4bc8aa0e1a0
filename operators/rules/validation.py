"""Validation of the user's rules, when they are built."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core import check
from windrow.core.emit import Emit, EveryBatch, Never
from windrow.core.errors import (
    BadDuration,
    BadRule,
    BadTrigger,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.frames import RangeBetween, RowsBetween
from windrow.core.inputs import Input
from windrow.core.policy import RESERVED_COLUMNS, Retention, letters_us
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, Point, Span, Timing, holds, links_of
from windrow.core.time import duration_us, show_duration
from windrow.core.types import widened
from windrow.operators.rules.patterns import Pattern, Rule, references
from windrow.operators.rules.timings import kept_us, timing_of
from windrow.operators.several_inputs import normalise_inputs

MODES = ("stream", "cloud")
#: The columns that every row has, besides keys.
OWN_COLUMNS = ("rule", "match_id", "match_time", "messages", *RESERVED_COLUMNS)


def normalise_rules(options: dict[str, Any]) -> dict[str, Any]:
    """Check the options and turn them into the fields of `RulesDefinition`. options: as the user wrote them."""
    check.common(options)
    by = check.keys(options["by"], "name a column, several as by=('room', 'floor'), or () for one partition")
    clash = [key for key in by if key in OWN_COLUMNS]
    if clash:
        raise ReservedColumn(
            f"key {clash[0]!r} has the name of a column of every row, {', '.join(OWN_COLUMNS)}: rename it"
        )
    inputs = _inputs(options["inputs"], by)
    check.choice(options["mode"], "mode", MODES)
    late_us = duration_us(options["allowed_lateness"], "allowed_lateness")
    if late_us < 0:
        raise BadDuration(
            f"allowed_lateness {options['allowed_lateness']!r} is negative: use '0 seconds' or more"
        )
    _check_emit(options["emit"])
    rules = _rules(options["rules"], {i.name: i for i in inputs}, options["mode"], by)
    return {
        **{name: options[name] for name in ("mode", "emit", "null_keys", "name", "dead_letter_limit")},
        "by": by,
        "user_inputs": inputs,
        "rules": rules,
        "late_us": late_us,
        "retention": _retention(rules, inputs, options["mode"], late_us),
        "dead_letter_retention_us": letters_us(options["dead_letter_retention"]),
    }


def _retention(rules: Mapping[str, Rule], inputs: Sequence[Input], mode: str, late_us: int) -> Retention:
    """Return the time that the longest kept messages are kept; no limit where some are kept for good."""
    by_name = {one.name: one for one in inputs}
    timings = {name: timing_of(rule, by_name) for name, rule in rules.items()}
    longest_us = max((kept_us(timings, rules, one) or 0 for one in inputs), default=0)
    return Retention(None if mode == "cloud" or longest_us >= INFINITE_US else max(longest_us, 0) + late_us)


def _check_emit(emit: Any) -> None:
    check.of_type(
        emit,
        Emit,
        "emit",
        "use wr.Emit.append() or wr.Emit(late=wr.every_batch, mode='retracting')",
        BadTrigger,
    )
    retracting = emit.mode == "retracting" and isinstance(emit.late, EveryBatch) and emit.on_time
    if emit != Emit.append() and not (retracting and isinstance(emit.early, Never)):
        raise BadTrigger(
            f"emit={emit!r}: a match is emitted once; use wr.Emit.append(), or wr.Emit(late=wr.every_batch, "
            "mode='retracting'), which takes rows back that a late message contradicts"
        )


def _inputs(inputs: Any, by: Sequence[str]) -> tuple[Input, ...]:
    checked = normalise_inputs(inputs, "[wr.Input('fires', event_time='at'), wr.Table('rooms', key='room')]")
    for one in checked:
        _check_input(one, by)
    return checked


def _check_input(one: Input, by: Sequence[str]) -> None:
    if one.window is not None:
        raise ConfigurationError(f"window={one.window!r} of input {one.name!r} is for joins: leave it out")
    if one.static and one.facts is None:
        raise ConfigurationError(
            f"input {one.name!r} is static=True: facts of rules are a wr.Table({one.name!r}, key=...)"
        )
    if one.by is not None and len(one.by) != len(by) and not (one.facts and one.by == ()):
        copies = ", or by=() for rows that go with every partition" if one.facts else ""
        raise ConfigurationError(
            f"by={one.by!r} of input {one.name!r} and by={tuple(by)!r}: name as many columns, in the same order{copies}"
        )


def _rules(rules: Any, inputs: Mapping[str, Input], mode: str, by: Sequence[str]) -> dict[str, Rule]:
    if not isinstance(rules, Mapping) or not rules:
        raise BadRule(f"rules={rules!r}: name at least one, e.g. rules={{'no water': wr.Rule(when=...)}}")
    for name, rule in rules.items():
        if not isinstance(name, str) or not name.strip() or "\x00" in name:
            raise BadRule(f"rule {name!r}: a name is text")
        if not isinstance(rule, Rule):
            raise BadRule(f"rule {name!r}: {rule!r} is no rule: use wr.Rule(when=..., then=...)")
        _check_rule(name, rule, inputs, mode, by)
        _check_times_of(name, rule, inputs, mode)
    _check_constants(rules)
    return dict(rules)


def _check_constants(rules: Mapping[str, Rule]) -> None:
    """Refuse rules that give one column constants of types that are not widened to one. Other types are known with messages."""
    known: dict[str, tuple[str, pa.DataType]] = {}
    for name, rule in rules.items():
        for column, value in (rule.then or {}).items():
            try:
                own = value.evaluate(pa.table({"": [0]}), "then").type
            except (pa.ArrowException, UnknownColumn):
                continue  # not a constant
            other, kind = known.setdefault(column, (name, own))
            if widened(kind, own) is None:
                raise BadRule(
                    f"rule {name!r}: then[{column!r}]={value} is {own}, and {kind} in rule {other!r}: rename one"
                )


def _check_times_of(name: str, rule: Rule, inputs: Mapping[str, Input], mode: str) -> None:
    """Refuse a rule that cannot be true, or keeps messages without end; warn of one that loses matches, or suppresses "
    "itself."""
    if rule.framed is not None:
        return
    timing = timing_of(rule, inputs)
    cycle = timing.contradiction
    if cycle is not None:
        raise BadRule(
            f"rule {name!r} cannot be true: {' and '.join(cycle)} contradict each other: widen or leave out one of them"
        )
    _warn_of_suppression(name, rule, inputs)
    if mode == "cloud":
        return
    for span in (*timing.events, *timing.subpatterns):
        _check_bound(name, span.binding, rule, inputs[rule.when[span.binding].input], timing)
    for binding in rule.subpatterns if rule.delay_us is not None else ():
        least_us = min((us for _, us in timing.deadline_of(binding)), default=0)
        if rule.delay_us is not None and rule.delay_us < least_us:
            raise BadRule(
                f"rule {name!r}: delay={show_duration(rule.delay_us)!r} is over before {binding!r} is decided, "
                f"{show_duration(least_us)} after its event: use {show_duration(least_us)!r} or more, or leave delay= out"
            )


def _check_bound(name: str, binding: str, rule: Rule, input: Input, timing: Timing) -> None:
    """Raise for messages that are needed without end, unless their input limits it; warn where the limit is shorter."""
    expires, kept_us = input.expires, timing.kept_us(binding)
    endless = kept_us >= INFINITE_US
    if endless and (expires is None or (expires.us is not None and expires.kind == "at_least")):
        unbounded = [
            other.binding
            for other in timing.events
            if other.binding != binding and _most(timing, binding, other) >= INFINITE_US
        ]
        partner = f"a message of {unbounded[0]!r} may come" if unbounded else "a decision may be"
        raise BadRule(
            f"rule {name!r}: messages of input {input.name!r} are kept for good as {binding!r}: nothing says how long after "
            f"one {partner}. Bound it with time=wr.before(..., 0, '1 hour') or wr.after, or say expires='1 hour' of the input"
            + ("" if expires is None else f" (it says {expires!r}: use wr.otherwise)")
            + ", or expires=wr.forever"
        )
    if expires is None or expires.kind != "exactly" or binding not in timing.expires_us:
        return
    needed_us = replace(timing, expires_us={}).kept_us(binding)
    if needed_us < INFINITE_US and rule.when[binding].binds:
        assert expires.us is not None
        warnings.warn(
            f"rule {name!r}: messages of input {input.name!r} expire {show_duration(expires.us)} after their end, and as "
            f"{binding!r} they match for {show_duration(needed_us)}: later matches are lost; use wr.at_least, or leave "
            "expires= out",
            stacklevel=7,
        )


def _most(timing: Timing, binding: str, other: Span) -> int:
    """Compute how long after the end of a message the other one may come at most."""
    matrix = timing.matrices.get(binding, timing.bound)
    return matrix.most(Point(binding, END), other.progress)


def _warn_of_suppression(name: str, rule: Rule, inputs: Mapping[str, Input]) -> None:
    """Warn of an absence of messages that the event itself is one of."""
    for binding, pattern in rule.subpatterns.items():
        for event, other in rule.events.items():
            own = inputs[pattern.input].interval is None and pattern.where in (None, other.where)
            compared = [r for r in pattern.time if r.binding == event and r.column is None and r.this is None]
            if (
                pattern.kind != "absent"
                or pattern.input != other.input
                or event in pattern.other_than
                or not own
                or len(compared) < len(pattern.time)
            ):
                continue
            at_once = all(
                holds(links_of(binding, r), lambda _: np.zeros(1, dtype=np.int64), 1, negated=r.negated).all()
                for r in compared
            )
            if at_once:
                warnings.warn(
                    f"rule {name!r} suppresses itself: {binding!r} is an absence on {other.input!r}, and the message of "
                    f"{event!r} is one of these: say other_than={event!r}",
                    stacklevel=6,
                )


def _check_rule(name: str, rule: Rule, inputs: Mapping[str, Input], mode: str, by: Sequence[str]) -> None:
    for binding, pattern in rule.when.items():
        _check_pattern(f"rule {name!r}, {binding!r}", binding, pattern, rule, inputs, mode)
    if not rule.events and rule.framed is None:
        raise BadRule(
            f"rule {name!r} has no event pattern, so that nothing makes it true: add wr.event(...), or give an accumulate "
            "frame="
        )
    for binding, pattern in rule.when.items():
        if pattern.frame is not None:
            _check_frame(f"rule {name!r}, {binding!r}", binding, pattern, rule)
    if rule.framed is not None and rule.events:
        raise BadRule(
            f"rule {name!r}: {rule.framed!r} has frame=, whose changes are the events of the rule, and "
            f"{next(iter(rule.events))!r} is an event, too: use time= in the accumulate, or two rules"
        )
    for column, value in (rule.then or {}).items():
        if column in (*by, *OWN_COLUMNS):
            raise ReservedColumn(
                f"rule {name!r}: then[{column!r}] has the name of a column of every row: rename it"
            )
        for other, _ in references(value):
            _check_binding(other, rule, f"rule {name!r}, then[{column!r}]={value}")
            if rule.when[other].kind == "absent":
                raise BadRule(
                    f"rule {name!r}, then[{column!r}]={value}: {other!r} is an absence, which has no columns: name a bound "
                    "pattern"
                )


def _check_pattern(
    where: str, binding: str, pattern: Pattern, rule: Rule, inputs: Mapping[str, Input], mode: str
) -> None:
    input = inputs.get(pattern.input)
    if input is None:
        raise BadRule(
            f"{where}: input {pattern.input!r} is none of {list(inputs)}: name one of these, or add it to inputs="
        )
    if (pattern.kind == "fact") != (input.facts is not None):
        kind, right = ("a wr.Table", "wr.fact") if input.facts else ("a wr.Input", "wr.event")
        raise BadRule(
            f"{where}: {pattern.input!r} is {kind}, and wr.{pattern.kind} does not take it: use {right}(...)"
        )
    if mode == "cloud" and rule.delay_us is not None:
        raise BadRule(f"{where}: delay= in mode='cloud', where no time passes: use mode='stream'")
    if mode == "cloud" and input.expires is not None:
        raise BadRule(
            f"{where}: expires={input.expires!r} of input {input.name!r} in mode='cloud', where nothing expires: leave it out"
        )
    if mode == "cloud" and pattern.frame is not None:
        raise BadRule(
            f"{where}: frame={pattern.frame!r} in mode='cloud', where no time passes: use mode='stream'"
        )
    for other in pattern.others:
        _check_binding(other, rule, where)
        if other != binding and not rule.when[other].binds and rule.when[other].kind == "absent":
            raise BadRule(f"{where} names {other!r}, an absence, which has no message: name a bound pattern")
    if binding in (*pattern.other_than, *(r.binding for r in pattern.time)):
        raise BadRule(f"{where} compares with itself: name another pattern in time= and other_than=")
    for relation in pattern.time:
        timed = pattern.kind != "fact" or not input.stamped or relation.this is not None
        if not timed:
            raise BadRule(
                f"{where}: {relation!r} compares the time of table {pattern.input!r}, which has none: give the table "
                "event_time=, or name a column, this='since'"
            )
        _check_times(where, relation.binding, relation.column, relation, rule, inputs)


def _check_frame(where: str, binding: str, pattern: Pattern, rule: Rule) -> None:
    """Refuse a frame that does not end at its message, or that something else in the rule would have to wait for."""
    frame = pattern.frame
    ends_here = (
        frame.high_us == 0 if isinstance(frame, RangeBetween) else frame is not None and frame.high == 0
    )
    if not ends_here or (isinstance(frame, RowsBetween) and frame.low is None):
        raise BadRule(
            f"{where}: frame={frame!r} does not end at its own message: use 100, or wr.range_between('-10 minutes', 0, "
            "closed='right')"
        )
    if pattern.where is not None and any(references(pattern.where)):
        raise BadRule(
            f"{where}: where={pattern.where} names another pattern, and a frame is of own columns: "
            + ("use having=" if pattern.agg else "put it into the other pattern")
        )
    others = [name for name, p in rule.when.items() if name != binding and p.kind != "fact"]
    if pattern.kind == "accumulate":
        waited = [name for name, p in rule.facts.items() if p.wait_us]
        subpatterns = [name for name in others if not rule.when[name].binds]
        if subpatterns or waited or pattern.other_than or rule.delay_us is not None:
            named = (subpatterns or waited or [binding])[0]
            raise BadRule(
                f"{where}: a rule with frame={frame!r} has facts alone beside it, without wait=, other_than= and delay=, and "
                f"here is {named!r}: use two rules"
            )


def _check_times(
    where: str, other: str | None, column: str | None, relation: Any, rule: Rule, inputs: Mapping[str, Input]
) -> None:
    if other is None or column is not None:
        return
    compared = rule.when[other]
    if not compared.binds or (compared.kind == "fact" and inputs[compared.input].stamped):
        raise BadRule(
            f"{where}: {relation!r} compares with {other!r}, which has no time: name an event, or a time column of it"
        )


def _check_binding(other: str, rule: Rule, where: str) -> None:
    if other not in rule.when:
        raise BadRule(
            f"{where} names the binding {other!r}, which is none of {list(rule.when)}: name one of these"
        )
