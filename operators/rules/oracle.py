"""Rules in the plainest possible Python: nested loops over all messages, with the table of the thirteen operators written out.

It keeps every message that counted. A tuple is one message for each event; it is found in the step that brings its last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeAlias

import xxhash

from windrow.core.errors import WindrowError
from windrow.core.expressions import Expr
from windrow.core.frames import RangeBetween, RowsBetween
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, JoinedRow, Kind, Message, Position, Timing
from windrow.core.relations import INFINITE_US, Relation
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, to_datetime
from windrow.operators.oracle.aggregates import Row, evaluate, same
from windrow.operators.oracle.arrow import Arguments, Columns, Filter, Raised, is_true
from windrow.operators.oracle.cells import Key, key_field
from windrow.operators.oracle.oracle import Messages, Oracle, Outcome, by_input
from windrow.operators.oracle.times import event_time_us
from windrow.operators.rules.definition import MATCH_ID, MATCH_TIME, MESSAGES, RULE, RulesDefinition
from windrow.operators.rules.patterns import Pattern, Rule, references

_UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(eq=False)
class Held:
    """A message that counted. late: the watermark had passed it; fits: the patterns that take it, by rule and binding.

    is_fact: it is a row of a table, which neither orders nor delays a match
    """

    input: str
    position: Position
    payload: dict[str, Any]
    key: Key
    start_us: int
    end_us: int
    order_us: int
    late: bool
    fits: set[tuple[str, str]] = field(default_factory=set)
    is_fact: bool = False


Tuple: TypeAlias = dict[str, Held]


@dataclass(eq=False)
class Open:
    """A tuple that was decided before all late messages have come, and the row that is emitted of it."""

    deadline: float
    number: int
    tuple: Tuple
    row: JoinedRow | None


#: (moment, "<" or ">", moment, microseconds): low <= y - x <= high for moments s, e of A and S, E of B.
Difference: TypeAlias = tuple[str, str, float, float]


def differences(name: str, d: Sequence[float]) -> list[Difference]:
    """Return the table `low <= second - first <= high`; s and e are of this message, S and E of the other one."""
    d0 = d[0] if d else 0
    low, high = (1, inf) if not d else (d[0], inf) if len(d) == 1 else (d[0], d[1])
    most = d0 if len(d) == 1 else inf
    near, far = (
        ((d[0], d[1]), (d[2], d[3]))
        if len(d) == 4
        else ((low, high),) * 2
        if len(d) == 2
        else ((1, most),) * 2
    )
    lap = (max(low, 1), high) if len(d) == 2 else (1, most)
    table: dict[str, list[Difference]] = {
        "after": [("E", "s", low, high)],
        "before": [("e", "S", low, high)],
        "coincides": [("S", "s", -d0, d0), ("E", "e", -d[-1] if d else 0, d[-1] if d else 0)],
        "during": [("S", "s", *near), ("e", "E", *far)],
        "includes": [("s", "S", *near), ("E", "e", *far)],
        "finishes": [("S", "s", 1, inf), ("E", "e", -d0, d0)],
        "finished_by": [("s", "S", 1, inf), ("E", "e", -d0, d0)],
        "meets": [("e", "S", -d0, d0)],
        "met_by": [("E", "s", -d0, d0)],
        "overlaps": [("s", "S", 1, inf), ("S", "e", *lap), ("e", "E", 1, inf)],
        "overlapped_by": [("S", "s", 1, inf), ("s", "E", *lap), ("E", "e", 1, inf)],
        "starts": [("S", "s", -d0, d0), ("e", "E", 1, inf)],
        "started_by": [("S", "s", -d0, d0), ("E", "e", 1, inf)],
    }
    return table[name]


def _distances(relation: Relation) -> list[float]:
    return [inf if us >= INFINITE_US else -inf if us <= -INFINITE_US else us for us in relation.distances]


class RulesOracle(Oracle):
    """The expected behaviour of one `RulesDefinition`."""

    definition: RulesDefinition

    def __init__(self, definition: RulesDefinition, schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(definition)
        self._held: list[Held] = []
        self._columns = Columns()
        self._names: dict[str, dict[str, None]] = {input.name: {} for input in definition.inputs}
        self._filters = {input.name: Filter(input.where) for input in definition.inputs}
        self._arguments = {
            (rule, binding): Arguments(dict(pattern.agg)) for rule, binding, pattern in definition.patterns
        }
        #: Tuples that wait: deadline, number of the rule, the tuple.
        self._pending: list[tuple[float, int, Tuple]] = []
        #: Tuples that were decided, and may be again, with the row that is emitted of them.
        self._open: list[Open] = []
        #: The messages of which alone failures are reported, as tuples are decided again.
        self._reported: list[Held] | None = None
        #: The current rows of each table, and the tuples of events that wait for rows, with the number of their rule.
        self._facts: dict[str, dict[Any, Held]] = {g.name: {} for g in definition.inputs if g.facts}
        self._waiting: list[tuple[int, Tuple]] = []
        self._closed_us: int = START_OF_TIME_US
        self._dead: list[DeadLetter] = []
        for name, schema in (schemas or {}).items():
            for column in schema:
                self._names[name].setdefault(column.name)
                self._columns.declare((name, column.name), column.type)

    def know(self, input: str, columns: Sequence[str]) -> None:
        self._names[input].update(dict.fromkeys(columns))

    # -- steps ------------------------------------------------------------------------------------------------------

    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        self.counted, self._dead = [], []
        by_name = by_input(self.definition.inputs, messages)
        new = [
            held
            for source in self.definition.inputs
            for held in self._admit(source, by_name.get(source.name, ()), now_us)
        ]
        facts, new = [h for h in new if h.is_fact], [h for h in new if not h.is_fact]
        fresh = self._file(facts)
        self._held += new
        rows: list[JoinedRow] = []
        came_late = [held for held in new if held.late]
        for number, (name, rule) in enumerate(self.definition.rules.items()):
            if rule.framed is not None:
                rows += self._at_messages(name, rule, new)
                continue
            rows += self._corrected(number, name, rule, came_late)
            for one in self._with_late_facts(number, name, rule, fresh):
                if self._conditions(name, rule, one):
                    rows += self._completed(number, name, rule, one, Timing.EARLY)
            found = [t for t in self._tuples(name, rule) if any(h is n for h in t.values() for n in new)]
            found = [t for t in found if self._are_newest(name, rule, t)]
            if rule.facts:
                self._waiting += [(number, one) for one in found]
                found = [t for one in found for t in self._with_facts(name, rule, one)]
            for one in sorted(found, key=_places):
                if self._conditions(name, rule, one):
                    late = all(h.late for h in one.values() if any(h is n for n in new))
                    rows += self._completed(number, name, rule, one, Timing.LATE if late else Timing.EARLY)
        return Outcome(rows, self._dead)

    # -- facts ------------------------------------------------------------------------------------------------------

    def _file(self, facts: Sequence[Held]) -> list[Held]:
        """Replace, add and delete rows of tables; return those that are current because of these messages."""
        for held in facts:
            table = self.definition.input(held.input).facts
            assert table is not None
            key: Any = held.position
            if table.key is not None:
                key = held.key, tuple(key_field(held.payload.get(column)) for column in table.key)
            self._facts[held.input].pop(key, None)
            if table.deleted is None or not held.payload.get(table.deleted):
                self._facts[held.input][key] = held
        return [h for h in facts if any(h is other for other in self._facts[h.input].values())]

    def _with_facts(self, name: str, rule: Rule, one: Tuple) -> Iterator[Tuple]:
        """Yield a tuple of events with each combination of current rows."""
        rest = [binding for binding in rule.facts if binding not in one]
        if not rest:
            yield {binding: one[binding] for binding in rule.when if binding in one}
            return
        for held in self._facts[rule.when[rest[0]].input].values():
            made = {**one, rest[0]: held}
            if self._takes(name, rest[0], held, one) and self._fits(rule, made):
                yield from self._with_facts(name, rule, made)

    def _with_late_facts(self, number: int, name: str, rule: Rule, fresh: list[Held]) -> list[Tuple]:
        """Return the tuples of events that came before with the rows of this step, pattern by pattern."""
        found: list[Tuple] = []
        for binding, pattern in rule.facts.items():
            tuples = [
                made
                for of, one in self._waiting
                if of == number and pattern.wait_us and _end(one) + pattern.wait_us >= self._closed_us
                for made in self._with_facts(name, rule, one)
                if any(made[binding] is held for held in fresh) and made not in found
            ]
            found += sorted(tuples, key=_places)
        return found

    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        self._dead = []
        self.watermark_us = max(watermark_us, self.watermark_us)
        ends = self.watermark_us == END_OF_TIME_US
        closed = (
            END_OF_TIME_US if ends else max(self.watermark_us - self.definition.late_us, START_OF_TIME_US)
        )
        before_us, self._closed_us = self._closed_us, max(self._closed_us, closed)
        self._open = [one for one in self._open if one.deadline >= self._closed_us and not ends]
        due = [one for one in self._pending if one[0] < self._decided_us(one[1]) or ends]
        self._pending = [one for one in self._pending if one not in due]
        made: list[tuple[float, int, list[JoinedRow]]] = []
        names = list(self.definition.rules)
        for deadline, number, one in sorted(due, key=lambda d: (d[0], d[1], _places(d[2]))):
            name = names[number]
            rule = self.definition.rules[name]
            decided = self._decided(name, rule, one, deadline, Timing.ON_TIME)
            made.append((deadline, number, self._noted(number, rule, one, deadline, decided)))
        for number, (name, rule) in enumerate(self.definition.rules.items()):
            made += [(at, number, rows) for at, rows in self._at_moments(name, rule, before_us, ends)]
        ordered = sorted(made, key=lambda part: part[:2])
        return Outcome([row for _, _, rows in ordered for row in rows], self._dead)

    # -- frames -----------------------------------------------------------------------------------------------------

    def _are_newest(self, name: str, rule: Rule, one: Tuple) -> bool:
        """True if messages with a frame of messages are among the newest as the last message of the tuple comes."""
        came = {id(held): i for i, held in enumerate(self._held)}
        last = max(came[id(held)] for held in one.values())
        for binding, held in one.items():
            frame = rule.when[binding].frame
            newer = self._held[came[id(held)] + 1 : last + 1]
            taken = sum(self._takes(name, binding, other, {binding: held}) for other in newer)
            if isinstance(frame, RowsBetween) and frame.low is not None and taken > -frame.low:
                return False
        return True

    def _at_messages(self, name: str, rule: Rule, new: Sequence[Held]) -> list[JoinedRow]:
        """Return the rows of a frame of messages: one for each new message that changes its result."""
        binding, rows = rule.framed or "", list[JoinedRow]()
        frame = rule.when[binding].frame
        if not isinstance(frame, RowsBetween) or frame.low is None:
            return rows
        for held in sorted((h for h in new if (name, binding) in h.fits), key=lambda h: h.position):
            came = [h for h in self._held if self._takes(name, binding, h, {"": held})]
            at = next(i for i, h in enumerate(came) if h is held) + 1
            size, timing = 1 - frame.low, Timing.LATE if held.late else Timing.EARLY
            before = came[max(at - 1 - size, 0) : at - 1] or None
            rows += self._changed(name, rule, held, came[max(at - size, 0) : at], before, timing, held.end_us)
        return rows

    def _at_moments(
        self, name: str, rule: Rule, before_us: int, ends: bool
    ) -> Iterator[tuple[int, list[JoinedRow]]]:
        """Yield the rows of a frame of time by moment: as messages come and as they leave, where the result changes."""
        frame = None if rule.framed is None else rule.when[rule.framed].frame
        if rule.framed is None or not isinstance(frame, RangeBetween):
            return
        moments = dict[tuple[int, Key], tuple[Held, bool]]()
        own = [held for held in self._held if (name, rule.framed) in held.fits]
        for held in sorted(own, key=lambda h: h.position):
            for at, leaves in ((held.end_us, False), (held.end_us - frame.low_us + 1, True)):
                if before_us <= at and (at < self._closed_us or ends):
                    moments.setdefault((at, held.key), (held, leaves))
        for (at, _), (held, leaves) in sorted(moments.items(), key=lambda m: (m[0][0], m[1][0].position)):
            near = [h for h in own if self._takes(name, rule.framed, h, {"": held})]
            seen, before = (
                [h for h in near if moment + frame.low_us <= h.end_us <= moment] for moment in (at, at - 1)
            )
            yield at, self._changed(name, rule, held, seen, before, Timing.ON_TIME, at, leaves=leaves)

    def _changed(
        self,
        name: str,
        rule: Rule,
        held: Held,
        seen: Sequence[Held],
        before: Sequence[Held] | None,
        timing: Timing,
        at_us: int,
        *,
        leaves: bool = False,
    ) -> list[JoinedRow]:
        """Return the rows of a frame if its aggregates differ from those before. before: None if there are none"""
        assert rule.framed is not None
        binding, pattern = rule.framed, rule.when[rule.framed]
        now = self._aggregates(name, binding, pattern, seen)
        assert now is not None
        was = None if before is None else self._aggregates(name, binding, pattern, before)
        if was is not None and same(list(now.values()), list(was.values())):
            return []
        values, rows = {f"{binding}.{alias}": value for alias, value in now.items()}, list[JoinedRow]()
        ordered = rule.over({f"__{binding}": Pattern("event", pattern.input), **rule.facts})
        for one in sorted(self._with_facts(name, ordered, {f"__{binding}": held}), key=_places):
            if not self._conditions(name, ordered, one):
                continue
            if pattern.having is None or self._true(pattern.having, binding, pattern, one, {**now, **values}):
                own = f"{name}\0leaves" if leaves else name
                rows += self._rows(own, ordered, one, timing, values, at_us)
        return rows

    # -- corrections ------------------------------------------------------------------------------------------------

    def _decided_us(self, number: int) -> int:
        """Return the time before which deadlines are over: with corrections, those that the watermark has passed."""
        rule = list(self.definition.rules.values())[number]
        corrects = self.definition.retracts and rule.subpatterns
        return max(self.watermark_us, self._closed_us) if corrects else self._closed_us

    def _noted(
        self, number: int, rule: Rule, one: Tuple, deadline: float, rows: list[JoinedRow]
    ) -> list[JoinedRow]:
        """Record the decision of a tuple, while a late message may change it."""
        if not self.definition.retracts or not rule.subpatterns or deadline < self._closed_us:
            return rows
        if self.watermark_us == END_OF_TIME_US:
            return rows
        self._open.append(Open(deadline, number, one, rows[0] if rows else None))
        return [replace(row, is_last=False) for row in rows]

    def _corrected(self, number: int, name: str, rule: Rule, late: list[Held]) -> list[JoinedRow]:
        """Return the corrections that late messages cause to decided tuples."""
        relevant = [
            held
            for held in late
            if any(p.input == held.input and (name, b) in held.fits for b, p in rule.subpatterns.items())
        ]
        if not relevant:
            return []
        rows: list[JoinedRow] = []
        open_tuples = [one for one in self._open if one.number == number]
        for one in sorted(open_tuples, key=lambda o: (o.deadline, _places(o.tuple))):
            first = one.tuple[next(iter(rule.events))]
            if not any(same(list(held.key), list(first.key)) for held in relevant):
                continue
            self._reported = relevant
            now = self._decided(name, rule, one.tuple, one.deadline, Timing.LATE)
            self._reported = None
            after, before = (now[0] if now else None), one.row
            if before is not None and after is not None and same(dict(before.values), dict(after.values)):
                continue
            if before is not None:
                rows.append(replace(before, timing=Timing.LATE, kind=Kind.RETRACT, is_last=False))
            if after is not None:
                rows.append(replace(after, is_last=False))
            one.row = after
        return rows

    # -- messages ---------------------------------------------------------------------------------------------------

    def _admit(self, source: Input, messages: Sequence[Message], now_us: int) -> Iterator[Held]:
        """Yield the messages of an input that count, in position order; the others are dead letters."""
        ordered = sorted(messages, key=lambda m: m.position or ())
        self._filters[source.name].learn([dict(m.payload) for m in ordered])
        for message in ordered:
            self._names[source.name].update(dict.fromkeys(message.payload))
        for message in ordered:
            assert message.position is not None
            value = now_us if source.stamped else message.payload.get(source.event_time)
            unit = None if source.stamped else source.event_time_unit
            ahead_us = None if source.stamped else source.max_ahead_us
            time_us = event_time_us(value, source.time_zone, now_us, ahead_us, unit)
            reason = "malformed" if time_us is None else self._refusal(source, message, time_us)
            if reason is not None:
                if reason:
                    self._bury(reason, message.position, None if reason == "malformed" else time_us)
                continue
            assert time_us is not None
            ends = self._interval(source, message.payload, time_us)
            if ends is None:
                self._bury("malformed", message.position, time_us)
                continue
            yield self._taken(source, message, time_us, ends)

    def _refusal(self, source: Input, message: Message, time_us: int) -> str | None:
        """Why a message does not count, "" if its filter excludes it; None if it does."""
        assert message.position is not None
        too_late = not source.static and (time_us < self._closed_us or self.watermark_us == END_OF_TIME_US)
        try:
            passes = self._filters[source.name].passes(message.payload)
        except Raised:
            return "malformed"
        if not passes:
            if not too_late:
                self.counted.append((*message.position[:2], time_us))
            return ""
        keys = [message.payload.get(name) for name in self.definition.keys(source)]
        if self.definition.null_keys == "dead_letter" and None in keys:
            return "null_key"
        return "too_late" if too_late else None

    def _interval(self, source: Input, payload: Mapping[str, Any], time_us: int) -> tuple[int, int] | None:
        """Return both ends of a message; None where they are invalid."""
        interval = source.interval
        if interval is None:
            return time_us, time_us
        [column] = interval.columns
        value, start, end = payload.get(column), time_us, time_us
        if interval.duration is not None:
            length = 0 if value is None else value
            if isinstance(length, bool) or not isinstance(length, int | float) or length != length:
                return None
            end = time_us + round(length * _UNITS_US[interval.duration_unit or "us"])
        else:
            other = event_time_us(value, source.time_zone, 0, None, source.event_time_unit)
            if other is None:
                return None
            start, end = (other, time_us) if interval.start is not None else (time_us, other)
        longest = inf if interval.longest_us is None else interval.longest_us
        return (start, end) if 0 <= end - start <= longest else None

    def _taken(self, source: Input, message: Message, time_us: int, ends: tuple[int, int]) -> Held:
        """Return a message that counts, with the patterns that take it."""
        position = message.position
        assert position is not None
        payload = {**message.payload, source.event_time: to_datetime(time_us)}
        for column, value in payload.items():
            self._columns.learn((source.name, column), [value])
        key = tuple(key_field(payload.get(name)) for name in self.definition.keys(source))
        held = Held(source.name, position, payload, key, *ends, time_us, time_us < self.watermark_us)
        held.is_fact, held.late = source.facts is not None, source.facts is None and held.late
        self.counted.append((*position[:2], time_us))
        for name, binding, pattern in self.definition.patterns:
            if pattern.input == source.name:
                self._arguments[name, binding].learn([payload])
                alone = pattern.where is None or any(references(pattern.where))
                if alone or self._true(pattern.where, binding, pattern, {binding: held}):
                    try:
                        self._arguments[name, binding].of(payload)
                        held.fits.add((name, binding))
                    except Raised:
                        self._bury("rule_failed", position, None)
        return held

    def _bury(self, reason: str, position: Position | None, time_us: int | None) -> None:
        self._dead.append(DeadLetter(reason, "", position, time_us, ""))

    # -- tuples -----------------------------------------------------------------------------------------------------

    def _tuples(self, name: str, rule: Rule, bound: Tuple | None = None) -> Iterator[Tuple]:
        """Yield every tuple of messages that keeps the constraints of a rule, one pattern after the other."""
        bound = bound or {}
        rest = [binding for binding in rule.events if binding not in bound]
        if not rest:
            yield dict(bound)
            return
        for held in self._held:
            made = {**bound, rest[0]: held}
            if self._takes(name, rest[0], held, bound) and self._fits(rule, made):
                yield from self._tuples(name, rule, made)

    def _takes(self, name: str, binding: str, held: Held, bound: Tuple) -> bool:
        """True if a pattern takes a message, of the partition of those that are bound."""
        return (name, binding) in held.fits and all(
            len(other.key) != len(held.key) or same(list(other.key), list(held.key))
            for other in bound.values()
        )

    def _fits(self, rule: Rule, bound: Tuple) -> bool:
        """True if the messages that are bound keep all constraints between them."""
        for binding, held in bound.items():
            pattern = rule.when[binding]
            for relation in pattern.time:
                if relation.binding in (*bound, None) and not self._related(binding, relation, bound):
                    return False
            for own, dotted in pattern.on:
                other, column = dotted.split(".", 1)
                if other in bound and not _equal(held.payload.get(own), bound[other].payload.get(column)):
                    return False
            if any(other in bound and bound[other] is held for other in pattern.other_than):
                return False
            frame = pattern.frame
            if isinstance(frame, RangeBetween) and any(
                h.end_us - held.start_us > -frame.low_us
                for other, h in bound.items()
                if other in rule.events and other != binding
            ):
                return False
            expires = self._expires_us(rule, binding)
            for other, partner in bound.items():
                if other in rule.events and other != binding and partner.order_us - held.end_us > expires:
                    return False
        return True

    def _related(self, binding: str, relation: Relation, bound: Tuple) -> bool:
        moments = self._moments(binding, relation, bound)
        if None in moments.values():
            return False
        kept = all(
            low <= moments[y] - moments[x] <= high  # type: ignore[operator]
            for x, y, low, high in differences(relation.operator, _distances(relation))
        )
        return kept != relation.negated

    def _moments(self, binding: str, relation: Relation, bound: Tuple) -> dict[str, int | None]:
        """Return the ends of both messages; a time column is both ends of its own."""
        found: dict[str, int | None] = {}
        if binding in bound:
            found["s"] = found["e"] = self._time(bound[binding], relation.this)
            if relation.this is None:
                found["e"] = bound[binding].end_us
        if relation.binding is None:
            found["S"] = found["E"] = relation.other  # type: ignore[assignment]
        else:
            other = bound[relation.binding]
            found["S"] = found["E"] = self._time(other, relation.column)
            if relation.column is None:
                found["E"] = other.end_us
        return found

    def _time(self, held: Held, column: str | None) -> int | None:
        if column is None:
            return held.start_us
        source = self.definition.input(held.input)
        return event_time_us(held.payload.get(column), source.time_zone, 0, None, source.event_time_unit)

    def _expires_us(self, rule: Rule, binding: str) -> float:
        """Return how long after its end a message meets others, where its input limits it."""
        expires = self.definition.input(rule.when[binding].input).expires
        if expires is None or expires.us is None or expires.kind == "at_least":
            return inf
        return inf if expires.kind == "otherwise" and self._is_bounded(rule, binding) else expires.us

    def _is_bounded(self, rule: Rule, binding: str) -> bool:
        """True if the constraints between the events of a rule bound how much later than a message the others may come."""
        reached, edges = {(binding, "e")}, list[tuple[tuple[str, str], tuple[str, str]]]()
        for own, pattern in rule.events.items():
            edges.append(((own, "e"), (own, "s")))
            interval = self.definition.input(pattern.input).interval
            if interval is None or interval.longest_us is not None:
                edges.append(((own, "s"), (own, "e")))
            if isinstance(pattern.frame, RangeBetween):
                edges += [((own, "s"), (other, "e")) for other in rule.events if other != own]
            for relation in pattern.time:
                if relation.negated or relation.binding not in rule.events:
                    continue
                for x, y, low, high in differences(relation.operator, _distances(relation)):
                    first, second = ((own if m.islower() else relation.binding, m.lower()) for m in (x, y))
                    edges += [(first, second)] * (high < inf) + [(second, first)] * (low > -inf)
        for _ in edges:
            reached |= {y for x, y in edges if x in reached}
        return all((own, "s") in reached for own in rule.events)

    def _conditions(self, name: str, rule: Rule, one: Tuple) -> bool:
        """True if the conditions that name several patterns are true of a tuple."""
        for binding, pattern in ((b, p) for b, p in rule.when.items() if p.binds):
            asks = pattern.where is not None and any(references(pattern.where))
            if asks and not self._true(pattern.where, binding, pattern, one):
                return False
        return True

    def _true(
        self,
        condition: Expr | None,
        binding: str,
        pattern: Pattern,
        bound: Tuple,
        more: Mapping[str, Any] | None = None,
    ) -> bool:
        """True if a condition of a pattern is; where it raises it is a dead letter, and is not."""
        assert condition is not None
        cells = self._cells(bound) | {name: ((), value) for name, value in (more or {}).items()}
        if binding in bound:
            held = bound[binding]
            cells |= {c: ((held.input, c), held.payload.get(c)) for c in self._names[held.input]}
        try:
            return is_true(condition.evaluate(self._columns.row(cells))[0])
        except Exception as error:
            if isinstance(error, WindrowError):
                raise
            own = bound.get(binding)
            if self._reported is not None and own is not None and own not in self._reported:
                return False
            self._bury("rule_failed", None if own is None else own.position, None)
            return False

    def _cells(self, bound: Tuple) -> dict[str, tuple[Any, Any]]:
        """Return the values of bound messages: {binding.column: ((input, column), value)}."""
        return {
            f"{binding}.{column}": ((held.input, column), held.payload.get(column))
            for binding, held in bound.items()
            for column in self._names[held.input]
        }

    # -- decisions --------------------------------------------------------------------------------------------------

    def _completed(self, number: int, name: str, rule: Rule, one: Tuple, timing: Timing) -> list[JoinedRow]:
        """Complete a tuple: return its row, or nothing while it is pending."""
        if not rule.subpatterns and rule.delay_us is None:
            return self._rows(name, rule, one, timing, {}, _end(one))
        deadlines = [d for binding in rule.subpatterns if (d := self._deadline(rule, binding, one)) < inf]
        if rule.delay_us is not None:
            deadlines.append(_end(one) + rule.delay_us)
        if not deadlines:
            return self._decided(name, rule, one, None, timing)
        if max(deadlines) < self._decided_us(number):
            late = timing is Timing.LATE and self.definition.retracts and bool(rule.subpatterns)
            timing = Timing.LATE if late else Timing.ON_TIME
            decided = self._decided(name, rule, one, max(deadlines), timing)
            return self._noted(number, rule, one, max(deadlines), decided)
        self._pending.append((max(deadlines), number, one))
        return []

    def _deadline(self, rule: Rule, binding: str, one: Tuple) -> float:
        """Return the latest moment at which a sub-pattern's message may come: constraints push down both of its ends."""
        pattern = rule.when[binding]
        source = self.definition.input(pattern.input)
        interval = source.interval
        longest = 0 if interval is None else inf if interval.longest_us is None else interval.longest_us
        upper: dict[str, float] = {"s": inf, "e": inf}
        for relation in pattern.time:
            table = differences(relation.operator, _distances(relation))
            if relation.negated:
                table = _complement(table)
            if relation.this is not None:
                continue
            moments = self._moments(binding, relation, one)
            for _ in range(3):
                for x, y, low, high in table:
                    known = {**moments, **upper}
                    if y in upper:
                        upper[y] = min(upper[y], _sum(known[x], high))
                    if x in upper:
                        upper[x] = min(upper[x], _sum(known[y], -low))
        for _ in range(2):
            upper["s"] = min(upper["s"], upper["e"])
            upper["e"] = min(upper["e"], upper["s"] + longest)
        return upper["e" if interval is not None and interval.start is not None else "s"]

    def _decided(
        self, name: str, rule: Rule, one: Tuple, deadline: float | None, timing: Timing
    ) -> list[JoinedRow]:
        """Return the row of a tuple for which all sub-patterns hold."""
        values: dict[str, Any] = {}
        for binding, pattern in rule.subpatterns.items():
            seen = list(self._seen(name, rule, binding, pattern, one, deadline))
            if pattern.kind == "absent":
                if seen:
                    return []
                continue
            made = self._aggregates(name, binding, pattern, seen)
            if made is None:
                self._bury("rule_failed", None, None)
                return []
            values |= {f"{binding}.{alias}": value for alias, value in made.items()}
            more = {**made, **values}
            if pattern.having is not None and not self._true(pattern.having, binding, pattern, one, more):
                return []
        at_us = _end(one) if deadline is None else max(_end(one), deadline)
        return self._rows(name, rule, one, timing, values, int(at_us))

    def _seen(
        self, name: str, rule: Rule, binding: str, pattern: Pattern, one: Tuple, deadline: float | None
    ) -> Iterator[Held]:
        """Yield the messages of a sub-pattern that a tuple sees."""
        expires = self._expires_us(rule, binding)
        for held in self._held:
            made = {**one, binding: held}
            if not self._takes(name, binding, held, one) or not self._fits(rule, made):
                continue
            if deadline is not None and deadline - held.end_us > expires:
                continue
            asks = pattern.where is not None and any(references(pattern.where))
            if not asks or self._true(pattern.where, binding, pattern, made):
                yield held

    def _aggregates(
        self, name: str, binding: str, pattern: Pattern, seen: Sequence[Held]
    ) -> dict[str, Any] | None:
        """Return the aggregates of messages; None where one raises."""
        values: dict[str, Any] = {}
        ordered = sorted(seen, key=lambda h: h.position)
        for alias, aggregation in pattern.agg.items():
            rows = []
            for held in ordered:
                arguments = self._arguments[name, binding].of(held.payload)[alias]
                if arguments is not None:
                    rows.append(Row(held.end_us, held.position, held.payload, arguments))
            try:
                values[alias] = evaluate(aggregation, rows, "dead_letter")
            except Exception:
                return None
            if not seen and alias in pattern.empty:
                values[alias] = pattern.empty[alias]
        return values

    # -- rows -------------------------------------------------------------------------------------------------------

    def _rows(
        self, name: str, rule: Rule, one: Tuple, timing: Timing, values: Mapping[str, Any], at_us: int
    ) -> list[JoinedRow]:
        """Return the row of a tuple, where none of its columns raises."""
        first = one[next(iter(rule.events))]
        keys = dict(zip(self.definition.by, first.key, strict=True))
        messages = [
            {
                "binding": binding.removeprefix("__"),
                "input": held.input,
                **_place(self.definition.input(held.input), held.position),
            }
            for binding, held in one.items()
        ]
        try:
            own = self._then(rule, one, keys, values)
        except Exception as error:
            if isinstance(error, WindrowError):
                raise
            if self._reported is None or first in self._reported:
                self._bury("rule_failed", first.position, None)
            return []
        row = {
            **keys,
            RULE: name.split("\0")[0],
            MATCH_ID: match_id(name, [h.position for h in one.values()]),
        }
        row |= {MATCH_TIME: to_datetime(at_us), **own, MESSAGES: messages}
        return [JoinedRow(row, timing)]

    def _then(
        self, rule: Rule, one: Tuple, keys: Mapping[str, Any], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the own columns of a row."""
        if rule.then is None:
            found = {
                f"{binding}_{column}": held.payload.get(column)
                for binding, held in one.items()
                for column in self._names[held.input]
                if not binding.startswith("__")
            }
            return found | {dotted.replace(".", "_", 1): value for dotted, value in values.items()}
        cells = self._cells(one) | {name: ((), value) for name, value in {**keys, **values}.items()}
        table = self._columns.row(cells)
        return {name: value.evaluate(table)[0].as_py() for name, value in rule.then.items()}

    @property
    def is_empty(self) -> bool:
        """True if no tuple waits."""
        return not self._pending


def _complement(table: list[Difference]) -> list[Difference]:
    """Return the bounds of a negation: the complement of one difference with one end."""
    if len(table) != 1:
        return []
    [(x, y, low, high)] = table
    if high == inf and low > -inf:
        return [(x, y, -inf, low - 1)]
    return [(x, y, high + 1, inf)] if low == -inf and high < inf else []


def _sum(moment: float | None, us: float) -> float:
    """Return a bound; a missing moment allows nothing."""
    return -inf if moment is None else moment + us


def _end(one: Tuple) -> int:
    return max(held.end_us for held in one.values() if not held.is_fact)


def _places(one: Tuple) -> list[Position]:
    return [held.position for held in one.values()]


def _place(source: Input, position: Position) -> dict[str, Any]:
    name = position.source.removeprefix(source.source_prefix)
    rest = {"partition": position.partition, "offset": position.offset, "ordinal": position.ordinal}
    return {"source": name, **rest}


def _equal(one: Any, other: Any) -> bool:
    return one is not None and other is not None and same(key_field(one), key_field(other))


def match_id(rule: str, positions: Sequence[Position]) -> str:
    """Return the id of a tuple: two numbers of 64 bits, each mixed of the positions and the rule's name."""
    mask, halves = 2**64 - 1, []
    for seed in (0, 1):
        numbers = []
        for position in positions:
            source = xxhash.xxh64_intdigest(position.source.encode(), seed)
            numbers += [source, position.partition, position.offset, position.ordinal]
        state = seed
        for number in (*numbers, xxhash.xxh64_intdigest(rule.encode(), seed)):
            state = ((state ^ (number & mask)) + 0x9E3779B97F4A7C15) & mask
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
            state ^= state >> 31
        halves.append(f"{state:016x}")
    return "".join(halves)
