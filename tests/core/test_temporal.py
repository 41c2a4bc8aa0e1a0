"""The temporal algebra against formulas written out, and against brute force over small times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.deep import usually
from windrow.core.relations import INFINITE_US, THIRTEEN, Relation
from windrow.core.temporal import (
    END,
    START,
    Matrix,
    Point,
    Span,
    Timing,
    bounds_of,
    holds,
    links_of,
    reach,
)
from windrow.core.time import duration_us

Interval = tuple[int, int]


def is_so(relation: Relation, own: Interval, other: Interval) -> bool:
    """The relation by its constraints."""
    times = {("a", START): own[0], ("a", END): own[1], ("b", START): other[0], ("b", END): other[1]}
    links = links_of("a", relation)
    return bool(holds(links, lambda p: np.array([times[p]]), 1, negated=relation.negated)[0])


def formula(name: str, d: tuple[int, ...], a: Interval, b: Interval) -> bool:
    """The table of the requirements, written out."""
    (sa, ea), (sb, eb) = a, b
    n = len(d)

    def inside(inner: Interval, outer: Interval) -> bool:
        first, last = inner[0] - outer[0], outer[1] - inner[1]
        if n == 4:
            return d[0] <= first <= d[1] and d[2] <= last <= d[3]
        if n == 2:
            return d[0] <= first <= d[1] and d[0] <= last <= d[1]
        return first >= 1 and last >= 1 and (n == 0 or (first <= d[0] and last <= d[0]))

    def distance(us: int) -> bool:
        return us >= 1 if n == 0 else us >= d[0] if n == 1 else d[0] <= us <= d[1]

    def overlap(one: Interval, two: Interval) -> bool:
        chain = one[0] < two[0] < one[1] < two[1]
        return chain and (distance(one[1] - two[0]) if n != 1 else one[1] - two[0] <= d[0])

    most = d[0] if d else 0
    rules: dict[str, Callable[[], bool]] = {
        "after": lambda: distance(sa - eb),
        "before": lambda: distance(sb - ea),
        "coincides": lambda: abs(sa - sb) <= most and abs(ea - eb) <= (d[1] if n == 2 else most),
        "during": lambda: inside(a, b),
        "includes": lambda: inside(b, a),
        "finishes": lambda: sb < sa and abs(ea - eb) <= most,
        "finished_by": lambda: sa < sb and abs(ea - eb) <= most,
        "meets": lambda: abs(sb - ea) <= most,
        "met_by": lambda: abs(sa - eb) <= most,
        "overlaps": lambda: overlap(a, b),
        "overlapped_by": lambda: overlap(b, a),
        "starts": lambda: abs(sa - sb) <= most and ea < eb,
        "started_by": lambda: abs(sa - sb) <= most and eb < ea,
    }
    return rules[name]()


def random_relation(draw: random.Random, other: str, most: int = 4, bounded: bool = False) -> Relation:
    name = draw.choice(THIRTEEN)
    counts = {"during": (0, 1, 2, 4), "includes": (0, 1, 2, 4)}.get(name, (0, 1))
    if name in ("after", "before", "coincides", "overlaps", "overlapped_by"):
        counts = (0, 1, 2)
    low = -most if name in ("after", "before") else 0
    amounts = [draw.randint(low, most) for _ in range(max(counts) if bounded else draw.choice(counts))]
    if name != "coincides":
        amounts = [us for i in range(0, len(amounts), 2) for us in sorted(amounts[i : i + 2])]
    never = name in ("after", "before") and len(amounts) == 1  # at least forever later
    if amounts and not bounded and not never and draw.random() < 0.2:
        amounts[-1] = INFINITE_US
    return Relation(name, other, tuple(amounts), negated=not bounded and draw.random() < 0.2)


def test_operators_are_the_formulas_of_the_requirements() -> None:
    draw = random.Random(1)
    grid = [(s, e) for s in range(6) for e in range(s, 6)]
    for _ in range(150):
        relation = random_relation(draw, "b")
        for a, b in draw.sample(list(itertools.product(grid, grid)), 40):
            expected = formula(relation.operator, relation.distances, a, b) != relation.negated
            assert is_so(relation, a, b) == expected, (relation, a, b)


INVERSES = {"after": "before", "during": "includes", "finishes": "finished_by", "meets": "met_by"}
INVERSES |= {"overlaps": "overlapped_by", "starts": "started_by"}


def test_inverses_and_the_one_of_thirteen() -> None:
    grid = [(s, e) for s in range(6) for e in range(s, 6)]
    for a, b in itertools.product(grid, grid):
        for name, inverse in INVERSES.items():
            for d in ((), (2,)):
                assert is_so(Relation(name, "b", d), a, b) == is_so(Relation(inverse, "b", d), b, a)
        if a[0] < a[1] and b[0] < b[1]:
            assert sum(is_so(Relation(name, "b"), a, b) for name in THIRTEEN) == 1


MS = 1_000


@pytest.mark.parametrize(
    ("name", "distances", "own", "other", "expected"),
    [
        ("after", (), (0, 0), (0, 0), False),
        ("after", (), (0.001, 0), (0, 0), True),
        ("after", (5,), (4, 0), (0, 0), False),
        ("after", (5,), (5, 0), (0, 0), True),
        ("after", (2, 5), (1, 0), (0, 0), False),
        ("after", (2, 5), (5, 0), (0, 0), True),
        ("after", (2, 5), (6, 0), (0, 0), False),
        ("before", (), (0, 1), (1, 0), False),
        ("before", (), (0, 1), (2, 0), True),
        ("before", (5000,), (0, 0), (4999, 0), False),
        ("before", (5000,), (0, 0), (5000, 0), True),
        ("during", (5,), (5, 1), (0, 11), True),
        ("during", (5,), (6, 1), (0, 11), False),
        ("during", (2000, 6000, 4000, 10000), (2000, 1000), (0, 7000), True),
        ("during", (2000, 6000, 4000, 10000), (2000, 1000), (0, 6999), False),
        ("during", (2000, 6000, 4000, 10000), (6000, 1000), (0, 17000), True),
        ("during", (2000, 6000, 4000, 10000), (6000, 1000), (0, 17001), False),
        ("overlaps", (0, 5), (0, 1), (1, 9), False),
        ("overlaps", (0, 5), (0, 2), (1, 9), True),
        ("overlaps", (5,), (0, 6), (1, 9), True),
        ("overlaps", (5,), (0, 7), (1, 9), False),
        ("overlapped_by", (2, 5), (1, 9), (0, 2), False),
        ("overlapped_by", (2, 5), (1, 9), (0, 3), True),
        ("overlapped_by", (2, 5), (1, 9), (0, 6), True),
        ("overlapped_by", (2, 5), (1, 9), (0, 7), False),
        ("finishes", (1,), (1, 2), (0, 2), True),
        ("finishes", (1,), (1, 0), (0, 2), True),
        ("finishes", (1,), (1, 3), (0, 2), False),
    ],
)
def test_cases_in_milliseconds(name: str, distances: Any, own: Any, other: Any, expected: bool) -> None:
    def interval(start: float, lasts: float) -> Interval:
        return round(start * MS), round((start + lasts) * MS)

    relation = Relation(name, "b", tuple(us * MS for us in distances))
    assert is_so(relation, interval(*own), interval(*other)) is expected
    assert is_so(~relation, interval(*own), interval(*other)) is not expected


def test_points_and_durations_of_the_requirements() -> None:
    assert [duration_us(text) for text in ("-3m30s", "1h35m", "1 h")] == [
        -210_000_000,
        5_700_000_000,
        3_600_000_000,
    ]
    point, inside = (3, 3), (0, 9)
    of_points = {name for name in THIRTEEN if is_so(Relation(name, "b"), point, point)}
    assert of_points == {"coincides", "meets", "met_by"}
    assert {n for n in THIRTEEN if is_so(Relation(n, "b"), point, inside)} == {"during"}
    assert {n for n in THIRTEEN if is_so(Relation(n, "b"), (9, 9), inside)} == {"finishes", "met_by"}
    assert {n for n in THIRTEEN if is_so(Relation(n, "b"), (0, 0), inside)} == {"starts", "meets"}


def test_time_columns_and_instants_are_points() -> None:
    values = {
        Point("a", "t"): 7,
        Point("f", "deadline"): 5,
        Point("", "9"): 9,
        Point("a", START): 1,
        Point("a", END): 2,
    }

    def so(relation: Relation) -> bool:
        return bool(holds(links_of("a", relation), lambda p: np.array([values[p]]), 1)[0])

    assert so(Relation("after", "f.deadline", (0, 2), this="t"))
    assert not so(Relation("after", "f.deadline", (0, 2)))
    assert so(Relation("before", 9, (7, 7)))
    assert not so(Relation("coincides", 9, this="t")) and so(Relation("coincides", 9, (2,), this="t"))


# -- matrices ---------------------------------------------------------------------------------------------------------


def rule(draw: random.Random, bounded: bool) -> Timing:
    """Two events and one sub-pattern, of any operators."""
    spans = {
        name: Span(
            name,
            draw.choice([0, 0, 3, INFINITE_US]),
            draw.choice([START, START, END]),
        )
        for name in "abn"
    }
    relations = {
        "b": tuple(random_relation(draw, "a", bounded=bounded) for _ in range(draw.choice([1, 1, 2]))),
        "n": tuple(
            random_relation(draw, draw.choice("ab"), bounded=bounded) for _ in range(draw.choice([1, 2]))
        ),
    }
    return Timing((spans["a"], spans["b"]), relations, (spans["n"],))


def intervals(span: Span, low: int, high: int) -> list[Interval]:
    return [(s, e) for s in range(low, high) for e in range(s, min(s + span.longest_us, high - 1) + 1)]


def ordered(span: Span, interval: Interval) -> int:
    return interval[0] if span.ordered_by == START else interval[1]


def fits(timing: Timing, binding: str, times: dict[str, Interval]) -> bool:
    def values(point: Point) -> Any:
        return np.array([times[point.binding][point.place == END]])

    return all(
        holds(links_of(binding, relation), values, 1, negated=relation.negated)[0]
        for relation in timing.relations[binding]
    )


def test_nothing_is_kept_too_short_and_deadlines_are_tight() -> None:
    draw = random.Random(7)
    tuples = 0
    for _ in range(usually(36, deep=3_000)):
        timing = rule(draw, bounded=draw.random() < 0.5)
        a, b = timing.events
        [n] = timing.subpatterns
        pairs = itertools.product(intervals(a, 0, 6), intervals(b, -4, 11))
        pairs = [p for p in pairs if fits(timing, "b", dict(zip("ab", p, strict=True)))]
        assert timing.contradiction is None or timing.bound.consistent or not pairs, timing
        if pairs and not timing.matrices["n"].consistent:
            continue
        if not pairs:
            continue
        deadline, negatives = timing.deadline_of("n"), intervals(n, -9, 18)
        for one, two in draw.sample(pairs, min(len(pairs), 6)):
            tuples += 1
            times = {"a": one, "b": two}
            assert ordered(b, two) - one[1] <= timing.kept_us("a")
            assert ordered(a, one) - two[1] <= timing.kept_us("b")
            seen = [m for m in negatives if fits(timing, "n", times | {"n": m})]
            due = min((times[x.binding][x.place == END] + us for x, us in deadline), default=None)
            for m in seen:
                later = [ordered(a, one), ordered(b, two), *([due] if due is not None else [])]
                assert max(later) - m[1] <= timing.kept_us("n")
            if due is not None and seen and due < 12:
                latest = max(ordered(n, m) for m in seen)
                holes = any(relation.negated for relation in timing.relations["n"])
                assert latest <= due if holes else latest == due, (timing.relations, times)
    assert tuples > 50


def test_ranges_hold_all_partners() -> None:
    draw = random.Random(11)
    for _ in range(60):
        timing = rule(draw, bounded=True)
        a, b = timing.events
        if not timing.bound.consistent:
            continue
        for one in intervals(a, 0, 4):
            times = {a.start: np.array([one[0]]), a.end: np.array([one[1]])}
            low, high = reach(timing.bound.range(times, b.end), times.__getitem__, 1)
            for two in intervals(b, -5, 10):
                if fits(timing, "b", {"a": one, "b": two}):
                    assert low[0] <= two[1] <= high[0]


def contradiction(**relations: Any) -> tuple[str, ...] | None:
    names = sorted({"a", *relations})
    spans = tuple(Span(name, INFINITE_US) for name in names)
    return Timing(spans, {k: v if isinstance(v, tuple) else (v,) for k, v in relations.items()}).contradiction


def test_contradictions_name_the_shortest_cycle() -> None:
    s = 1_000_000
    cycle = contradiction(b=(Relation("after", "a", (10 * s,)), Relation("before", "a")))
    assert cycle is not None and set(cycle) == {"b after a 10 seconds", "b before a"}
    around = contradiction(
        b=Relation("after", "a"), c=Relation("after", "b"), d=(Relation("after", "c"), Relation("meets", "a"))
    )
    assert around is not None and set(around) == {"b after a", "c after b", "d after c", "d meets a"}
    assert contradiction(b=Relation("during", "a", (0,))) == ("b during a 0 seconds",)
    assert contradiction(b=~Relation("after", "a", (-INFINITE_US, INFINITE_US))) is not None
    assert contradiction(b=Relation("after", "a"), c=Relation("before", "a")) is None


def test_random_contradictions_are_contradictions() -> None:
    draw, refused = random.Random(5), 0
    for _ in range(usually(60, deep=1_000)):
        timing = rule(draw, bounded=True)
        a, b = timing.events
        satisfiable = any(
            fits(timing, "b", {"a": one, "b": two})
            for one in intervals(a, 0, 9)
            for two in intervals(b, -9, 18)
        )
        refused += not satisfiable
        if not timing.bound.consistent:
            assert not satisfiable and timing.bound.contradiction
    assert refused


def test_expiry_of_orders_and_of_sprinklers() -> None:
    s = 1_000_000
    ten = Relation("after", "a", (0, 10 * s))
    orders = Timing((Span("a"), Span("b")), {"b": (ten,)})
    assert orders.kept_us("a") == 10 * s and orders.kept_us("b") == 0
    fires = Timing((Span("a"),), {"n": (ten,)}, (Span("n"),))
    assert fires.kept_us("a") <= 0 and fires.kept_us("n") == 10 * s
    assert fires.deadline_of("n") in ([(Point("a", END), 10 * s)], [(Point("a", START), 10 * s)])
    lasting = Timing((Span("a", INFINITE_US),), {"n": (ten,)}, (Span("n"),))
    assert lasting.deadline_of("n") == [(Point("a", END), 10 * s)]
    both = Timing(
        (Span("a"), Span("b")),
        {"b": (ten,), "n": (Relation("after", "a", (0, 5 * s)), Relation("before", "b", (0, s)))},
        (Span("n"),),
    )
    assert both.kept_us("a") == 10 * s  # the negated message need not be there
    short = Timing(orders.events, orders.relations, expires_us={"a": 5 * s})
    assert short.kept_us("a") == 5 * s
    endless = Timing((Span("a"),), {}, (Span("n"),))
    assert endless.kept_us("n") == INFINITE_US and endless.deadline_of("n") == []
    containers = Timing((Span("a", 3_600 * s), Span("b", 0)), {"b": (Relation("during", "a"),)})
    assert (
        containers.kept_us("a") < 0
        and containers.bound.most(Point("a", START), Point("b", START)) < 3_600 * s
    )


def test_a_complement_with_one_end_is_a_bound() -> None:
    [link] = bounds_of("b", ~Relation("after", "a", (3,)))
    assert (link.low_us, link.high_us) == (-INFINITE_US, 2)
    assert bounds_of("b", ~Relation("after", "a", (3, 5))) == ()
    assert bounds_of("b", ~Relation("coincides", "a")) == ()
    assert Matrix([]).consistent
