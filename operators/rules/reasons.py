"""Reasons of matches: the messages of a row, each constraint with its numbers, the range of an absence; and why there is no
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from itertools import islice
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import ConfigurationError
from windrow.core.messages import Position, StoredMessage
from windrow.core.relations import INFINITE_US, Relation
from windrow.core.temporal import END, START, Point, Timing, links_of, show_distance
from windrow.core.time import instant_us, show_duration, show_instant
from windrow.operators.rules.chains import Candidates
from windrow.operators.rules.definition import MESSAGES, RULE, RulesDefinition
from windrow.operators.rules.patterns import Pattern, Rule
from windrow.operators.rules.timings import timing_of
from windrow.operators.steps.columns import OFFSET, POSITION_COLUMNS
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV


class Keeping(Protocol):
    """The logic of rules, as far as it reads kept messages."""

    definition: RulesDefinition

    def kept_events(self, kv: KV, name: str) -> Candidates | None: ...

    def pending_tuples(self, kv: KV) -> Iterator[tuple[str, str, pa.Table]]: ...


class Event(NamedTuple):
    """A message that is kept: its columns, both ends, and the patterns that take it."""

    payload: dict[str, Any]
    position: Position
    start_us: int
    end_us: int
    takes: frozenset[tuple[str, str]]


class Pending(NamedTuple):
    """A tuple that waits, for a "deadline" or for "facts": its messages by binding, and its partition."""

    waits_for: str
    deadline_us: int
    bound: dict[str, Event]
    key: list[Any]


class Reasons:
    """Explanations of a job's rows, from the kept messages of its shards. value: the definition as the user wrote it"""

    def __init__(self, logic: Keeping, value: RulesDefinition, stores: Sequence[KV]) -> None:
        self._logic, self._definition, self._stores = logic, value, stores
        self._inputs = {one.name: one for one in value.inputs}
        self._kept: dict[str, list[Event]] = {}

    def kept(self, name: str) -> list[Event]:
        """Read the messages of an input that are kept."""
        if name not in self._kept:
            parts = [self._logic.kept_events(kv, name) for kv in self._stores]
            self._kept[name] = [
                event for part in parts if part is not None for event in self._events(name, part)
            ]
        return self._kept[name]

    def _events(self, name: str, part: Candidates) -> Iterator[Event]:
        prefix = self._inputs[name].source_prefix
        columns = [n for n in part.table.column_names if n not in POSITION_COLUMNS]
        places = zip(*(part.table.column(n).to_pylist() for n in POSITION_COLUMNS), strict=True)
        rows = zip(
            part.table.select(columns).to_pylist(),
            places,
            part.starts.tolist(),
            part.ends.tolist(),
            strict=True,
        )
        for i, (payload, (source, *rest), start_us, end_us) in enumerate(rows):
            takes = frozenset(pair for pair, fits in part.fits.items() if fits[i])
            yield Event(payload, Position(source.removeprefix(prefix), *rest), start_us, end_us, takes)

    # -- of a row ---------------------------------------------------------------------------------------------------

    def messages(self, row: Mapping[str, Any]) -> dict[str, list[StoredMessage]]:
        """Give the messages of a row by input, with their columns where they are kept."""
        found: dict[str, list[StoredMessage]] = {}
        for one in row[MESSAGES]:
            event = self._event(one, row)
            position = _place(one)
            stored = (
                StoredMessage(0, position, {})
                if event is None
                else StoredMessage(event.start_us, position, event.payload)
            )
            found.setdefault(one["input"], []).append(stored)
        return found

    def of_row(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Write a line for each pattern of the rule of a row."""
        rule = self._definition.rules.get(row[RULE])
        if rule is None:
            return ()
        timing, known = timing_of(rule, self._inputs), {one["binding"]: one for one in row[MESSAGES]}
        bound = {name: event for name, one in known.items() if (event := self._event(one, row)) is not None}
        lines = []
        for binding, pattern in rule.when.items():
            if binding in known:
                place = known[binding]
                where = f"{place['input']}/{place['partition']}@{place['offset']}"
                lines.append(f"{binding}  {where}  {self._bound(binding, pattern, bound)}")
            elif pattern.frame is None and not binding.startswith("__"):
                lines.append(f"{binding}  {self._judged(row, binding, pattern, timing, bound)}")
        return tuple(lines)

    def _event(self, one: Mapping[str, Any], row: Mapping[str, Any]) -> Event | None:
        """Find a message of a row: among those that are kept, else in the columns of the row."""
        place, input = _place(one), self._inputs.get(one["input"])
        if input is None or input.facts is not None:
            return None
        kept = next((event for event in self.kept(one["input"]) if event.position == place), None)
        time = row.get(f"{one['binding']}_{input.event_time}")
        if kept is not None or input.interval is not None or not isinstance(time, datetime):
            return kept
        head, at_us = f"{one['binding']}_", instant_us(time)
        payload = {name.removeprefix(head): value for name, value in row.items() if name.startswith(head)}
        return Event(payload, place, at_us, at_us, frozenset())

    def _bound(self, binding: str, pattern: Pattern, bound: Mapping[str, Event]) -> str:
        if pattern.kind == "fact":
            return "a current row"
        if binding not in bound:
            return "no longer kept"
        event = bound[binding]
        ends = f" to {show_instant(event.end_us)}Z" if event.end_us > event.start_us else ""
        parts = [f"{show_instant(event.start_us)}Z{ends}"]
        parts += [text for relation in pattern.time for text in _measured(binding, relation, bound)]
        parts += [f"{own}={event.payload.get(own)!r} as {other}" for own, other in pattern.on]
        return "  ".join(parts)

    def _judged(
        self,
        row: Mapping[str, Any],
        binding: str,
        pattern: Pattern,
        timing: Timing,
        bound: Mapping[str, Event],
    ) -> str:
        """Write the range in which messages of a sub-pattern would have been, and how many are there."""
        low, high, unknown = _range(binding, timing, bound)
        if unknown:
            return f"{pattern.input}: the range is not known, {' and '.join(unknown)} no longer kept"
        input = self._inputs[pattern.input]
        keys = dict(zip(self._definition.keys(input), (row[key] for key in self._definition.by), strict=True))
        own = [e for e in self.kept(pattern.input) if all(e.payload.get(k) == v for k, v in keys.items())]
        inside = [e for e in own if low <= e.end_us <= high and (row[RULE], binding) in e.takes]
        text = f"{pattern.input} in [{_moment(low)}, {_moment(high)}]: {len(inside)} of {len(own)} kept ones of the partition"
        due = [_value(x, bound) for x, _ in timing.deadline_of(binding)]
        if not due or None in due:
            return text
        deadline = min(
            v + us for v, (_, us) in zip(due, timing.deadline_of(binding), strict=True) if v is not None
        )
        return f"{text}; decided once the watermark was past {_moment(deadline)}"

    # -- of no row --------------------------------------------------------------------------------------------------

    def why_not(self, offsets: Mapping[str, int]) -> list[str]:
        """Write, for every rule that has these bindings, how many messages are left after each constraint.

        offsets: of each binding that is given the offset of its message
        """
        rules = {n: r for n, r in self._definition.rules.items() if set(offsets) <= set(r.events)}
        if not rules or not offsets:
            names = sorted({b for r in self._definition.rules.values() for b in r.events})
            raise ConfigurationError(
                f"no rule has the event patterns {sorted(offsets)}: name some of {names}, as order=17; an absence has no "
                "message of its own"
            )
        return [line for name, rule in rules.items() for line in self._why_not(name, rule, offsets)]

    def _why_not(self, name: str, rule: Rule, offsets: Mapping[str, int]) -> Iterator[str]:
        yield name
        waiting = list(islice(self._pending(name, rule, offsets), 5))
        for one in waiting:
            yield f"  waits for its {one.waits_for}: decided once the watermark is past {_moment(one.deadline_us)}"
            yield from self._others(name, rule, one.bound, one.key)
        if waiting:
            return
        bound: dict[str, Event] = {}
        for binding, offset in offsets.items():
            pattern = rule.when[binding]
            found = [e for e in self.kept(pattern.input) if e.position.offset == offset]
            if not found:
                yield (
                    f"  {binding}: offset {offset} of {pattern.input!r} is not kept, and no match of it waits: it is decided, "
                    "or has not come"
                )
                return
            if (name, binding) not in found[0].takes:
                yield f"  {binding}: its condition is not true: {pattern.where}"
                return
            bound[binding] = found[0]
        binding, event = next(iter(bound.items()))
        keys = self._definition.keys(self._inputs[rule.when[binding].input])
        yield from self._others(name, rule, bound, [event.payload.get(k) for k in keys])

    def _pending(self, name: str, rule: Rule, offsets: Mapping[str, int]) -> Iterator[Pending]:
        """Yield the tuples of a rule that wait, and have these messages."""
        for kv in self._stores:
            for of_rule, waits_for, tuples in self._logic.pending_tuples(kv):
                if of_rule != name:
                    continue
                bindings = [b for b in rule.events if f"{b}.{OFFSET}" in tuples.column_names]
                if not set(offsets) <= set(bindings):
                    continue
                wanted = [pc.equal(tuples.column(f"{b}.{OFFSET}"), offset) for b, offset in offsets.items()]
                for row in tuples.filter(reduce(pc.and_, wanted)).to_pylist():
                    bound = {b: self._of_tuple(row, b, rule.when[b].input) for b in bindings}
                    key = [row[k] for k in self._definition.by]
                    yield Pending(waits_for, row[TIME], bound, key)

    def _of_tuple(self, row: Mapping[str, Any], binding: str, input: str) -> Event:
        """Give a message of a tuple, with the columns that the tuple has."""
        head = f"{binding}."
        own = {name.removeprefix(head): value for name, value in row.items() if name.startswith(head)}
        source, *rest = (own.pop(n) for n in POSITION_COLUMNS)
        position = Position(source.removeprefix(self._inputs[input].source_prefix), *rest)
        return Event(own, position, own.pop(START), own.pop(END), frozenset())

    def _others(self, name: str, rule: Rule, bound: Mapping[str, Event], key: list[Any]) -> Iterator[str]:
        for binding, pattern in rule.when.items():
            if binding not in bound and pattern.kind in ("event", "absent"):
                yield from self._stages(name, binding, pattern, bound, key)

    def _stages(
        self, name: str, binding: str, pattern: Pattern, bound: Mapping[str, Event], key: list[Any]
    ) -> Iterator[str]:
        """Write how many messages of a pattern are left after each constraint, up to the first that leaves none."""
        left = self.kept(pattern.input)
        yield f"  {binding}: {len(left)} messages of {pattern.input!r} are kept"
        for label, test in self._tests(name, binding, pattern, bound, key):
            left = [event for event in left if test(event)]
            yield f"  {binding}: {len(left)} left by {label}"
            if not left:
                return
        places = ", ".join(f"{e.position.partition}@{e.position.offset}" for e in left[:5])
        yield f"  {binding}: {'suppressed by' if pattern.kind == 'absent' else 'fits'} {places}"

    def _tests(
        self, name: str, binding: str, pattern: Pattern, bound: Mapping[str, Event], key: list[Any]
    ) -> Iterator[tuple[str, Callable[[Event], bool]]]:
        """Give the conditions of a pattern that messages keep by themselves, or with those that are bound."""
        own = self._definition.keys(self._inputs[pattern.input])
        yield "its condition", lambda event: (name, binding) in event.takes
        yield "the partition", lambda event: [event.payload.get(k) for k in own] == key
        for relation in pattern.time:
            if relation.binding in bound and relation.column is None and relation.this is None:
                yield repr(relation), partial(_related, binding, relation, bound)
        for column, dotted in pattern.on:
            partner, other = dotted.split(".", 1)
            if partner in bound:
                yield f"{column} = {dotted}", partial(_equal, column, bound[partner].payload.get(other))


def _related(binding: str, relation: Relation, bound: Mapping[str, Event], event: Event) -> bool:
    return _holds(binding, relation, {**bound, binding: event})


def _equal(column: str, value: Any, event: Event) -> bool:
    return value is not None and bool(event.payload.get(column) == value)


def _place(one: Mapping[str, Any]) -> Position:
    return Position(one["source"], one["partition"], one["offset"], one["ordinal"])


def _value(point: Point, bound: Mapping[str, Event]) -> int | None:
    """Return the moment of a point; None where it is of no kept message, or a column."""
    if not point.binding:
        return int(point.place)
    event = bound.get(point.binding)
    if event is None or point.place not in (START, END):
        return None
    return event.start_us if point.place == START else event.end_us


def _measured(binding: str, relation: Relation, bound: Mapping[str, Event]) -> Iterator[str]:
    """Write the distances that a relation constrains."""
    for x, y, low, high, _ in links_of(binding, relation):
        first, second = _value(x, bound), _value(y, bound)
        if first is not None and second is not None:
            allowed = (
                f"{'not ' if relation.negated else ''}allowed {show_distance(low)} to {show_distance(high)}"
            )
            yield f"{relation.operator} {relation.other}: {y} - {x} is {show_duration(second - first)}, {allowed}"


def _holds(binding: str, relation: Relation, bound: Mapping[str, Event]) -> bool:
    kept = True
    for x, y, low, high, _ in links_of(binding, relation):
        first, second = _value(x, bound), _value(y, bound)
        if first is not None and second is not None:
            kept = kept and low <= second - first <= high
    return kept != relation.negated


def _range(binding: str, timing: Timing, bound: Mapping[str, Event]) -> tuple[int, int, list[str]]:
    """Compute where the messages of a sub-pattern may end: (first, last, the bindings whose message it needs and has not)."""
    matrix = timing.matrices[binding]
    low, high, unknown = -INFINITE_US, INFINITE_US, dict[str, None]()
    for x, down, up in matrix.range([p for p in matrix.points if p.binding != binding], Point(binding, END)):
        value = _value(x, bound)
        if value is not None:
            low = max(low, value + down) if down > -INFINITE_US else low
            high = min(high, value + up) if up < INFINITE_US else high
        elif x.binding and x.binding not in bound and (down > -INFINITE_US or up < INFINITE_US):
            unknown[x.binding] = None
    return low, high, list(unknown)


def _moment(us: int) -> str:
    if abs(us) >= INFINITE_US:
        return "end of time" if us > 0 else "start of time"
    return f"{show_instant(us)}Z"
