"""Temporal algebra: relations between intervals as difference constraints, and the conclusions from their shortest paths.

An event is an interval with a start and an end; a point has both at once. Each of the thirteen operators is a conjunction of
constraints `low <= y - x <= high` between such points. The shortest paths over the constraints of a rule give its
contradictions, how long messages are kept, when a negative is decided, and which times are read. Seed 004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.relations import INFINITE_US, Relation
from windrow.core.time import show_duration, show_instant

#: The two points of an interval; any other place of a point is a time column.
START, END = "<start>", "<end>"


class Point(NamedTuple):
    """A moment of a binding: its start, its end, a time column; without a binding an instant in microseconds."""

    binding: str
    place: str

    def __str__(self) -> str:
        if not self.binding:
            return show_instant(int(self.place)) + "Z"
        return f"{self.binding}.{self.place.strip('<>')}"


class Link(NamedTuple):
    """A difference constraint: `low_us <= y - x <= high_us`, where +-`INFINITE_US` is no bound."""

    x: Point
    y: Point
    low_us: int
    high_us: int
    #: The relation of the user's, in words; "" for what an interval implies.
    words: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """The messages that a pattern takes: how long they last at most, and which of their points orders the input."""

    binding: str
    longest_us: int = 0
    ordered_by: str = START

    @property
    def start(self) -> Point:
        return Point(self.binding, START)

    @property
    def end(self) -> Point:
        return Point(self.binding, END)

    @property
    def progress(self) -> Point:
        """The point that the watermark passes."""
        return Point(self.binding, self.ordered_by)

    @property
    def own(self) -> Link:
        return Link(self.start, self.end, 0, self.longest_us)


# -- the thirteen operators -------------------------------------------------------------------------------------------

#: (x, y, low, high), where x and y are the start or the end of this message (A) or of the other one (B).
_Constraint: TypeAlias = tuple[str, str, int, int]
_SWAPPED = {"sA": "sB", "eA": "eB", "sB": "sA", "eB": "eA"}
_INVERSES = {
    "before": "after",
    "includes": "during",
    "finished_by": "finishes",
    "met_by": "meets",
    "overlapped_by": "overlaps",
    "started_by": "starts",
}


def _after(*d: int) -> list[_Constraint]:
    low, high = (1, INFINITE_US) if not d else (d[0], d[1] if len(d) > 1 else INFINITE_US)
    return [("eB", "sA", low, high)]


def _coincides(start: int = 0, end: int | None = None) -> list[_Constraint]:
    end = start if end is None else end
    return [("sB", "sA", -start, start), ("eB", "eA", -end, end)]


def _during(*d: int) -> list[_Constraint]:
    low, high = (d[0], d[1]) if len(d) > 1 else (1, d[0] if d else INFINITE_US)
    low_end, high_end = (d[2], d[3]) if len(d) > 2 else (low, high)
    return [("sB", "sA", low, high), ("eA", "eB", low_end, high_end)]


def _finishes(end: int = 0) -> list[_Constraint]:
    return [("sB", "sA", 1, INFINITE_US), ("eB", "eA", -end, end)]


def _meets(most: int = 0) -> list[_Constraint]:
    return [("eA", "sB", -most, most)]


def _overlaps(*d: int) -> list[_Constraint]:
    low, high = (max(d[0], 1), d[1]) if len(d) > 1 else (1, d[0] if d else INFINITE_US)
    return [("sA", "sB", 1, INFINITE_US), ("sB", "eA", low, high), ("eA", "eB", 1, INFINITE_US)]


def _starts(start: int = 0) -> list[_Constraint]:
    return [("sB", "sA", -start, start), ("eA", "eB", 1, INFINITE_US)]


_OPERATORS: dict[str, Callable[..., list[_Constraint]]] = {
    "after": _after,
    "coincides": _coincides,
    "during": _during,
    "finishes": _finishes,
    "meets": _meets,
    "overlaps": _overlaps,
    "starts": _starts,
}


def constraints(operator: str, distances: Sequence[int]) -> list[_Constraint]:
    """Give the constraints of an operator, between the points of this message (A) and the other one (B)."""
    inverse = _INVERSES.get(operator)
    if inverse is None:
        return _OPERATORS[operator](*distances)
    return [(_SWAPPED[x], _SWAPPED[y], low, high) for x, y, low, high in _OPERATORS[inverse](*distances)]


def links_of(binding: str, relation: Relation) -> tuple[Link, ...]:
    """Give the constraints of a relation of the pattern `binding`, as it is written, without its negation."""
    here = {"sA": Point(binding, relation.this or START), "eA": Point(binding, relation.this or END)}
    if isinstance(relation.other, int):
        there = dict.fromkeys(("sB", "eB"), Point("", str(relation.other)))
    else:
        other, column = relation.binding or "", relation.column
        there = {"sB": Point(other, column or START), "eB": Point(other, column or END)}
    points, words = here | there, in_words(binding, relation)
    made = [Link(points[x], points[y], low, high, words) for x, y, low, high in _of(relation)]
    return tuple(dict.fromkeys(made))


def _of(relation: Relation) -> list[_Constraint]:
    return constraints(relation.operator, relation.distances)


def bounds_of(binding: str, relation: Relation) -> tuple[Link, ...]:
    """Give the constraints that a relation adds to a matrix: a negation only where one constraint with one end is negated."""
    links = links_of(binding, relation)
    own = _columns_bound(binding, relation)
    if not relation.negated:
        return (*links, *own)
    if len(links) != 1:
        return own
    [(x, y, low, high, words)] = links
    if low <= -INFINITE_US and high >= INFINITE_US:
        return (Link(x, y, 1, 0, words), *own)  # the complement of all pairs is never true
    if high >= INFINITE_US:
        return (Link(x, y, -INFINITE_US, low - 1, words), *own)
    if low <= -INFINITE_US:
        return (Link(x, y, high + 1, INFINITE_US, words), *own)
    return own


def _columns_bound(binding: str, relation: Relation) -> tuple[Link, ...]:
    """Give how far time columns lie from the start of their own messages, where that is known."""
    if relation.bound is None:
        return ()
    low, high = relation.bound
    columns = [Point(binding, relation.this)] if relation.this else []
    if relation.column is not None:
        columns.append(Point(relation.binding or "", relation.column))
    return tuple(Link(Point(p.binding, START), p, low, high) for p in columns)


def in_words(binding: str, relation: Relation) -> str:
    """Write a relation as a sentence: `b after a 0 s to 10 s`."""
    other = relation.other if isinstance(relation.other, str) else show_instant(relation.other) + "Z"
    own = binding if relation.this is None else f"{binding}.{relation.this}"
    distances = " to ".join(show_distance(us) for us in relation.distances)
    verb = ("not " if relation.negated else "") + relation.operator
    return f"{own} {verb} {other} {distances}".rstrip()


def show_distance(us: int) -> str:
    """Write a distance, which may be without bound."""
    if abs(us) >= INFINITE_US:
        return "forever" if us > 0 else "-forever"
    return show_duration(us)


#: The values of a point, one for each row of candidates.
Values: TypeAlias = Callable[[Point], IntArray]


def holds(links: Iterable[Link], values: Values, rows: int, *, negated: bool = False) -> BoolArray:
    """True for the rows that keep all constraints; negated: for those that break one."""
    kept = np.ones(rows, dtype=bool)
    for x, y, low, high, _ in links:
        if low > -INFINITE_US or high < INFINITE_US:
            distance = values(y) - values(x)
            kept &= (distance >= low) & (distance <= high)
    return ~kept if negated else kept


# -- shortest paths ---------------------------------------------------------------------------------------------------


class Matrix:
    """The closure of difference constraints: `most(x, y)` is the largest `y - x` that they let be."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links = [link for link in links if link.x != link.y or link.low_us > link.high_us]
        self.points = list(dict.fromkeys(p for link in self.links for p in (link.x, link.y)))
        self._at = {point: i for i, point in enumerate(self.points)}
        self._most = self._edges()
        size = range(len(self.points))
        for k in size:
            through = self._most[k]
            for row in self._most:
                if (first := row[k]) < INFINITE_US:
                    for j in size:
                        row[j] = min(row[j], _plus(first, through[j]))

    def _edges(self) -> list[list[int]]:
        most = [[0 if i == j else INFINITE_US for j in self._at.values()] for i in self._at.values()]
        for x, y, low, high, _ in self.links:
            i, j = self._at[x], self._at[y]
            most[i][j] = min(most[i][j], high)
            most[j][i] = min(most[j][i], INFINITE_US if low <= -INFINITE_US else -low)
        return most

    def most(self, x: Point, y: Point) -> int:
        """Return the largest possible `y - x`; `INFINITE_US` without bound."""
        if x == y:
            return 0
        i, j = self._at.get(x), self._at.get(y)
        return INFINITE_US if i is None or j is None else self._most[i][j]

    @property
    def consistent(self) -> bool:
        """False where no times keep all constraints."""
        return all(self._most[i][i] >= 0 for i in self._at.values())

    @cached_property
    def contradiction(self) -> tuple[str, ...] | None:
        """The relations of the shortest cycle that cannot be, in the words of the rule; None where there is none."""
        if self.consistent:
            return None
        edges: dict[tuple[Point, Point], tuple[int, str]] = {}
        for x, y, low, high, words in self.links:
            if x == y:
                return (words,)
            for pair, us in (((x, y), high), ((y, x), -low)):
                if us < INFINITE_US and us < edges.get(pair, (INFINITE_US, ""))[0]:
                    edges[pair] = us, words
        return min((self._cycle(start, edges) for start in self.points), key=lambda c: c[:2])[2]

    def _cycle(
        self, start: Point, edges: Mapping[tuple[Point, Point], tuple[int, str]]
    ) -> tuple[int, int, tuple[str, ...]]:
        """Give the negative cycle through a point with the fewest edges: their number, its sum, its words."""
        reached: dict[Point, tuple[int, tuple[str, ...]]] = {start: (0, ())}
        for length in range(1, len(self.points) + 1):
            step: dict[Point, tuple[int, tuple[str, ...]]] = {}
            for (x, y), (us, words) in edges.items():
                if x in reached:
                    total, said = reached[x][0] + us, reached[x][1]
                    if y not in step or total < step[y][0]:
                        step[y] = total, said if words in (*said, "") else (*said, words)
            reached = step
            if start in reached and reached[start][0] < 0:
                return len(reached[start][1]), length, reached[start][1]
        return len(edges) + 1, 0, ()

    def range(self, known: Iterable[Point], wanted: Point) -> list[tuple[Point, int, int]]:
        """Give for each known point x how far `wanted - x` may reach, down and up, where one end is bounded."""
        found = []
        for x in known:
            down, up = self.most(wanted, x), self.most(x, wanted)
            if min(down, up) < INFINITE_US:
                found.append((x, -down, up))
        return found


def _plus(a: int, b: int) -> int:
    return INFINITE_US if a >= INFINITE_US or b >= INFINITE_US else a + b


def reach(ranges: Sequence[tuple[Point, int, int]], values: Values, rows: int) -> tuple[IntArray, IntArray]:
    """Compute the first and the last moment that ranges of known points leave, for each row."""
    low = np.full(rows, -INFINITE_US, dtype=np.int64)
    high = np.full(rows, INFINITE_US, dtype=np.int64)
    for x, down, up in ranges:
        if down > -INFINITE_US:
            low = np.maximum(low, values(x) + down)
        if up < INFINITE_US:
            high = np.minimum(high, values(x) + up)
    return low, high


# -- a rule -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """The times of one rule: one matrix over its events, and one for each sub-pattern, over the events and that.

    A negated message need not exist, so its constraints do not tighten what holds between the events.
    """

    events: tuple[Span, ...]
    relations: Mapping[str, tuple[Relation, ...]]
    subpatterns: tuple[Span, ...] = ()
    #: An explicit expiry that is shorter than the inferred one, by binding.
    expires_us: Mapping[str, int] = field(default_factory=dict)
    delay_us: int | None = None
    #: Constraints that no relation says, as those of `frame=`.
    more: tuple[Link, ...] = ()

    @cached_property
    def bound(self) -> Matrix:
        """The matrix over the events."""
        return Matrix(self._links({span.binding for span in self.events}))

    @cached_property
    def matrices(self) -> dict[str, Matrix]:
        """The matrices of sub-patterns."""
        events = {span.binding for span in self.events}
        return {span.binding: Matrix(self._links({*events, span.binding})) for span in self.subpatterns}

    def _links(self, bindings: set[str]) -> list[Link]:
        spans = [span for span in (*self.events, *self.subpatterns) if span.binding in bindings]
        links = [span.own for span in spans]
        subpatterns = {span.binding for span in self.subpatterns}
        for binding, relations in self.relations.items():
            if binding in bindings or binding not in subpatterns:  # facts are among the events
                links += [link for relation in relations for link in bounds_of(binding, relation)]
        links += [link for link in self.more if {link.x.binding, link.y.binding} <= bindings]
        return links + self._expiries(spans)

    def _expiries(self, spans: Sequence[Span]) -> list[Link]:
        """Give the constraints of explicit expiries: the other events come before a message expires."""
        return [
            Link(span.end, other.progress, -INFINITE_US, self.expires_us[span.binding])
            for span in spans
            if span.binding in self.expires_us
            for other in self.events
            if other.binding != span.binding
        ]

    def more_of(self, binding: str) -> list[Link]:
        """Give the constraints of a binding that are from no relation: of frames, and of explicit expiries."""
        spans = [span for span in (*self.events, *self.subpatterns) if span.binding in self.expires_us]
        return [
            link
            for link in (*self.more, *self._expiries(spans))
            if binding in (link.x.binding, link.y.binding)
        ]

    @property
    def contradiction(self) -> tuple[str, ...] | None:
        """The relations that contradict each other, so that the rule is never true, or a sub-pattern never has a message."""
        return next((c for m in (self.bound, *self.matrices.values()) if (c := m.contradiction)), None)

    def kept_us(self, binding: str) -> int:
        """Return how long after its end a message is needed as that pattern; below 0: it is not needed after it came alone."""
        for span in self.events:
            if span.binding == binding:
                others = [self.bound.most(span.end, q.progress) for q in self.events if q is not span]
                return max(others, default=-INFINITE_US)
        return min(self._subpattern_kept_us(binding), self.expires_us.get(binding, INFINITE_US))

    def _subpattern_kept_us(self, binding: str) -> int:
        span = next(s for s in self.subpatterns if s.binding == binding)
        matrix = self.matrices[binding]
        ends = [matrix.most(span.end, q.progress) for q in self.events]
        ends += [self._decided_us(matrix, span, other) for other in self.subpatterns]
        if self.delay_us is not None:
            ends += [_plus(matrix.most(span.end, q.end), self.delay_us) for q in self.events]
        return max(ends)

    def _decided_us(self, matrix: Matrix, span: Span, decider: Span) -> int:
        """Compute how long after the end of a sub-pattern's message the deadline of another one is."""
        deadlines = self.deadline_of(decider.binding)
        if not deadlines and self.delay_us is not None:
            return -INFINITE_US
        return min((_plus(matrix.most(span.end, x), us) for x, us in deadlines), default=INFINITE_US)

    def deadline_of(self, binding: str) -> list[tuple[Point, int]]:
        """Give the candidates of a sub-pattern's deadline, which is the least: (point of an event, microseconds after it).

        Empty without bound: the sub-pattern is decided in the step that completes the tuple.
        """
        matrix = self.matrices[binding]
        span = next(s for s in self.subpatterns if s.binding == binding)
        known = [p for p in matrix.points if p.binding != binding]
        found = [(x, us) for x in known if (us := matrix.most(x, span.progress)) < INFINITE_US]
        # One of two points of one message that coincide is enough.
        return [(x, us) for x, us in found if not self._implied(x, us, found, matrix)]

    @staticmethod
    def _implied(x: Point, us: int, found: Sequence[tuple[Point, int]], matrix: Matrix) -> bool:
        """True if another point gives a deadline that is never later."""
        for i, (y, other_us) in enumerate(found):
            if y != x and (ahead := matrix.most(x, y)) < INFINITE_US and ahead + other_us <= us:
                mutual = matrix.most(y, x) < INFINITE_US and matrix.most(y, x) + us <= other_us
                if not mutual or i < found.index((x, us)):
                    return True
        return False
