"""Chains of interval joins: the tuples that the messages of a step complete, each found once.

For each pattern of a rule the new messages that it takes are joined with new and kept ones of the patterns before it, and with
kept ones of those after it. A join of two patterns is one sort and two binary searches; of many pairs a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.relations import INFINITE_US, Relation
from windrow.core.temporal import END, START, Link, Point, Timing, holds, links_of, reach
from windrow.core.types import as_type, widened
from windrow.operators.rules.patterns import Rule
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.pairing import NO_KEY, partners

#: About so many candidates are in memory at once.
PAIRS = 1 << 17

#: The rows of each binding, one for each tuple.
Tuples: TypeAlias = Mapping[str, IntArray]


@dataclass
class Candidates:
    """The messages of one input that a step looks at: `new` ones first, then kept ones.

    codes: of their partitions, alike in all inputs of a step; fits: by rule and binding; late: of the new ones
    """

    table: pa.Table
    starts: IntArray
    ends: IntArray
    new: int
    times_of: Callable[[str], pa.Array] | None
    fits: Mapping[tuple[str, str], BoolArray] = field(default_factory=dict)
    late: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    codes: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: dict[str, tuple[IntArray, BoolArray]] = field(default_factory=dict)

    def times(self, column: str) -> tuple[IntArray, BoolArray]:
        """Give (microseconds, which are there) of a time column."""
        if column not in self.columns:
            assert self.times_of is not None
            values = self.times_of(column)
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            self.columns[column] = values.fill_null(0).to_numpy(zero_copy_only=False), valid
        return self.columns[column]


@dataclass(frozen=True)
class Hop:
    """The next pattern of a chain: the end of its messages, its equal columns, the conditions on it and those before."""

    binding: str
    ranges: tuple[tuple[Point, int, int], ...]
    #: (own column, other binding, its column)
    on: tuple[tuple[str, str, str], ...]
    relations: tuple[tuple[str, Relation], ...]
    links: tuple[Link, ...]
    others: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Chain:
    """The order in which patterns are joined to the new messages of the first one.

    own: the relations of the first pattern with an instant, which no hop has
    """

    first: str
    hops: tuple[Hop, ...]
    own: tuple[Relation, ...] = ()


def chains_of(rule: Rule, timing: Timing) -> tuple[Chain, ...]:
    """Plan the joins of a rule, one chain for each of its events."""
    return tuple(_chain(first, rule, timing) for first in rule.events)


def _chain(first: str, rule: Rule, timing: Timing) -> Chain:
    bound, rest, hops = [first], [name for name in rule.events if name != first], []
    while rest:
        hop = min((_hop(name, bound, rule, timing) for name in rest), key=_width)
        hops.append(hop)
        bound.append(hop.binding)
        rest.remove(hop.binding)
    return Chain(first, tuple(hops), tuple(r for r in timing.relations[first] if r.binding is None))


def _width(hop: Hop) -> tuple[bool, int]:
    """Order hops: those with equal columns first, then the narrowest."""
    return not hop.on, width(hop)


def width(hop: Hop) -> int:
    """Return the length of the range in which a hop finds its messages."""
    return min((up - down for _, down, up in hop.ranges), default=2 * INFINITE_US)


def _hop(binding: str, bound: Sequence[str], rule: Rule, timing: Timing) -> Hop:
    """Give the join of a pattern to those that are bound."""
    spans = {span.binding: span for span in timing.events}
    points = [p for name in bound for p in (spans[name].start, spans[name].end)]
    ranges = tuple(timing.bound.range(points, Point(binding, END)))
    known = {*bound, binding}
    on = [(own, *other.split(".", 1)) for own, other in rule.when[binding].on]
    on += [
        (column, name, own)
        for name in bound
        for own, other in rule.when[name].on
        for of, column in [other.split(".", 1)]
        if of == binding
    ]
    relations = [
        (name, relation)
        for name in known
        for relation in timing.relations[name]
        if binding in (name, relation.binding) and (relation.binding or binding) in known
    ]
    others = [(name, other) for name in known for other in rule.when[name].other_than]
    return Hop(
        binding,
        ranges,
        tuple((own, other, column) for own, other, column in on if other in bound),
        tuple(relations),
        tuple(link for link in timing.more_of(binding) if {link.x.binding, link.y.binding} <= known),
        tuple((a, b) for a, b in others if binding in (a, b) and {a, b} <= known),
    )


class Joined:
    """The joins of one rule in one step.

    inputs: of each binding the candidates of its input; takes: which of these the binding takes, new and kept
    """

    def __init__(self, inputs: Mapping[str, Candidates], takes: Mapping[str, BoolArray]) -> None:
        self.inputs, self._takes = inputs, takes

    def tuples(self, chain: Chain) -> Iterator[Tuples]:
        """Find the tuples that the new messages of a chain's first pattern complete, a slice at a time."""
        first = self._takes[chain.first]
        rows = np.flatnonzero(first[: self.inputs[chain.first].new])
        rows = rows[self.fit_alone(chain, OfCandidates(self.inputs, {chain.first: rows}), len(rows))]
        if len(rows):
            yield from self._joined({chain.first: rows}, chain.hops, chain.first)

    def _joined(self, tuples: dict[str, IntArray], hops: Sequence[Hop], first: str) -> Iterator[Tuples]:
        if not hops:
            yield tuples
            return
        hop, n = hops[0], len(next(iter(tuples.values())))
        rows = self._side(hop.binding, first)
        left, right = self._codes(hop, tuples, rows)
        low, high = reach(hop.ranges, OfCandidates(self.inputs, tuples).values, n)
        found = partners(left, low, high, right, self.inputs[hop.binding].ends[rows])
        cuts = [np.arange(n, dtype=np.int64)]
        if int(found.n.sum()) > PAIRS:
            cuts = np.split(cuts[0], np.flatnonzero(np.diff(np.cumsum(found.n) // PAIRS)) + 1)
        for cut in cuts:
            of, at = found.of(cut)
            if len(of):
                made = {name: where[of] for name, where in tuples.items()} | {hop.binding: rows[at]}
                kept = self.fits(hop, made, OfCandidates(self.inputs, made), len(of))
                if kept.any():
                    made = made if kept.all() else {name: where[kept] for name, where in made.items()}
                    yield from self._joined(made, hops[1:], first)

    def _side(self, binding: str, first: str) -> IntArray:
        """Give the rows of a pattern that are joined to new ones of the first one: all if it is before that, else kept ones."""
        order = list(self.inputs)
        takes, new = self._takes[binding], self.inputs[binding].new
        if order.index(binding) < order.index(first):
            return np.flatnonzero(takes)
        return np.flatnonzero(takes[new:]) + new

    def _codes(self, hop: Hop, tuples: Tuples, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Number the partitions, and the further columns that are equal, of tuples and of candidates."""
        binding = next(iter(tuples))
        left = self.inputs[binding].codes[tuples[binding]]
        right = self.inputs[hop.binding].codes[rows]
        if not hop.on:
            return left, right
        pairs = [
            (self._column(other, column, tuples[other]), self._column(hop.binding, own, rows))
            for own, other, column in hop.on
        ]
        return equal_codes(left, right, pairs)

    def _column(self, binding: str, name: str, rows: IntArray) -> pa.Array:
        return combine(self.inputs[binding].table.column(name)).take(pa.array(rows))

    @staticmethod
    def fit_alone(chain: Chain, moments: Moments, n: int) -> BoolArray:
        """True for the messages of a chain's first pattern that fulfil the relations with no other pattern."""
        kept = np.ones(n, dtype=bool)
        for relation in chain.own:
            kept &= related(chain.first, relation, moments, n)
        return kept

    def fits(self, hop: Hop, tuples: Tuples, moments: Moments, n: int) -> BoolArray:
        """True for the tuples that fulfil all conditions of a hop."""
        kept = holds(hop.links, moments.values, n)
        for binding, relation in hop.relations:
            kept &= related(binding, relation, moments, n)
        for one, other in hop.others:
            kept &= ~self._same(one, other, tuples)
        return kept

    def _same(self, one: str, other: str, tuples: Tuples) -> BoolArray:
        """True for the tuples of which both bindings are one message."""
        if self.inputs[one] is self.inputs[other]:
            same: BoolArray = tuples[one] == tuples[other]
            return same
        return np.zeros(len(tuples[one]), dtype=bool)


class Moments(Protocol):
    """The moments of points, one for each joined row."""

    def values(self, point: Point) -> IntArray: ...

    def valid(self, point: Point) -> BoolArray: ...


@dataclass(frozen=True)
class OfCandidates:
    """The moments of tuples of candidates; each is read once."""

    inputs: Mapping[str, Candidates]
    rows: Tuples
    _read: dict[Point, IntArray] = field(default_factory=dict)

    def values(self, point: Point) -> IntArray:
        if point not in self._read:
            self._read[point] = self._values(point)
        return self._read[point]

    def _values(self, point: Point) -> IntArray:
        if not point.binding:
            return np.full(1, int(point.place), dtype=np.int64)
        messages, rows = self.inputs[point.binding], self.rows[point.binding]
        if point.place in (START, END):
            return (messages.starts if point.place == START else messages.ends)[rows]
        return messages.times(point.place)[0][rows]

    def valid(self, point: Point) -> BoolArray:
        return self.inputs[point.binding].times(point.place)[1][self.rows[point.binding]]


def related(binding: str, relation: Relation, moments: Moments, n: int) -> BoolArray:
    """True for the rows for which a relation holds; where a time is null it does not, nor does its complement."""
    links = links_of(binding, relation)
    kept = holds(links, moments.values, n, negated=relation.negated)
    for point in {p for link in links for p in (link.x, link.y)}:
        if point.binding and point.place not in (START, END):
            kept &= moments.valid(point)
    return kept


def equal_codes(
    left: IntArray, right: IntArray, pairs: Sequence[tuple[pa.Array, pa.Array]]
) -> tuple[IntArray, IntArray]:
    """Number rows of both sides alike where codes and columns are equal; a null equals nothing."""
    n = len(left)
    columns, null = [pa.array(np.r_[left, right])], np.zeros(n + len(right), dtype=bool)
    for one, other in pairs:
        kind = widened(one.type, other.type) or one.type
        both = pa.concat_arrays([as_type(one, kind), as_type(other, kind)])
        null |= both.is_null().to_numpy(zero_copy_only=False)
        columns.append(both)
    codes = np.where(null, NO_KEY, Groups(columns, n + len(right)).codes)
    return codes[:n], codes[n:]


def flat(
    joined: Joined, tuples: Tuples, columns: Mapping[str, Sequence[str]], *, places: bool = True
) -> pa.Table:
    """Give tuples as a table with columns `<binding>.<column>`: both ends and the position of each, and these columns."""
    made: dict[str, pa.Array] = {}
    for binding, rows in tuples.items():
        messages, at = joined.inputs[binding], pa.array(rows)
        if places:
            made[f"{binding}.{START}"] = pa.array(messages.starts[rows])
            made[f"{binding}.{END}"] = pa.array(messages.ends[rows])
        for name in (*columns.get(binding, ()), *(POSITION_COLUMNS if places else ())):
            made[f"{binding}.{name}"] = combine(messages.table.column(name)).take(at)
    return pa.table(made)
