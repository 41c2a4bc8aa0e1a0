"""Every kind against a plain-Python reference, over any cut into commits and any bracketing of the merges.

A case is a list of commits of one job. Inside a commit rows come in position order; commits may bring
positions in any order (another partition was ahead). States meet in a tree drawn by hypothesis, with
identities strewn in.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import examples
from windrow.core import aggregations as wr
from windrow.operators.aggregations import (
    KERNELS,
    Arguments,
    Kernel,
    Parts,
    concat_parts,
    lift_where,
    make_kernel,
)
from windrow.operators.steps.groups import Groups

# -- columns ----------------------------------------------------------------------------------------------------------

SMALL = st.integers(-3, 3)
INT64 = SMALL | st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63)])
NUMBER = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e6, -1e6])
FLOAT = NUMBER | st.sampled_from([math.nan, math.inf, -math.inf])
TEXT = st.sampled_from(["", "a", "b", "ab", "ä", "zß水🍌", "\x00"]) | st.text(max_size=3)
START = dt.datetime(2013, 7, 1, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), INT64),
    "int32": (pa.int32(), SMALL | st.sampled_from([2**31 - 1, -(2**31)])),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 3) | st.just(2**64 - 1)),
    "double": (pa.float64(), FLOAT),
    "float": (pa.float32(), st.floats(width=32)),
    "half": (pa.float16(), st.floats(width=16)),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(10, 2), st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 100)),
    "text": (pa.string(), TEXT),
    "large_text": (pa.large_string(), TEXT),
    "text_view": (pa.string_view(), TEXT),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "bytes": (pa.binary(), st.binary(max_size=2)),
    "date": (pa.date32(), st.dates(dt.date(1960, 1, 1), dt.date(2040, 1, 1))),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us", "UTC"), SMALL.map(lambda n: START + dt.timedelta(hours=n))),
    "duration": (pa.duration("us"), SMALL.map(lambda n: dt.timedelta(seconds=n))),
    "null": (pa.null(), st.none()),
    "struct": (pa.struct([("a", pa.int64())]), SMALL.map(lambda n: {"a": n})),
}
ORDERED = [name for name in COLUMNS if name != "struct"]
FEW = ["int64", "double", "text", "null", "struct"]
NUMBERS = ["int64", "int32", "int8", "uint64", "double", "float", "half", "bool", "decimal", "null"]


@dataclass
class Message:
    group: int
    values: tuple[Any, ...]
    time: int = 0
    position: int | None = None
    passes: bool | None = True  # the `where` condition


@dataclass
class Case:
    """Commits, and how their states are merged: each number picks the neighbours that meet next."""

    types: list[pa.DataType]
    commits: list[list[Message]]
    bracketing: list[int] = field(default_factory=list)

    def of_group(self, group: int) -> list[Message]:
        """Messages that count, in order of arrival."""
        return [m for commit in self.commits for m in commit if m.group == group and m.passes is True]

    @property
    def groups(self) -> list[int]:
        return sorted({m.group for commit in self.commits for m in commit})


@st.composite
def cases(draw: st.DrawFn, *columns: str) -> Case:
    types = [COLUMNS[c][0] for c in columns]
    row = st.tuples(
        st.integers(0, 2),
        st.tuples(*(st.none() | COLUMNS[c][1] for c in columns)),
        st.integers(-2, 2),
        st.sampled_from([True, True, True, False, None]),
    )
    drawn = draw(st.lists(row, max_size=12))
    numbers: list[int] | list[None] = [None] * len(drawn)
    if draw(st.booleans()):
        numbers = draw(st.permutations(range(len(drawn))))
    rows = [Message(g, v, t, p, w) for (g, v, t, w), p in zip(drawn, numbers, strict=True)]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    commits = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    for commit in commits:
        commit.sort(key=lambda m: -1 if m.position is None else m.position)  # stable: arrival order without
    return Case(types, commits, draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)))


# -- running a kernel -------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Accumulators of some groups."""

    groups: list[int]
    parts: Parts


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    return pa.array(values, kind)


def rows_of(messages: list[Message], types: list[pa.DataType]) -> Arguments:
    positions = [m.position for m in messages]
    known = any(p is not None for p in positions)
    order = [None if p is None else b"source\x00\x01" + p.to_bytes(8, "big") for p in positions]
    return Arguments(
        pa.array([m.time for m in messages], pa.int64()),
        pa.array(order, pa.binary()) if known else None,
        tuple(column([m.values[i] for m in messages], kind) for i, kind in enumerate(types)),
    )


def commit_state(kernel: Kernel, messages: list[Message], types: list[pa.DataType]) -> State:
    rows = rows_of(messages, types)
    lifted = lift_where(kernel, rows, pa.array([m.passes for m in messages], pa.bool_()))
    assert all(len(part) == len(messages) for part in lifted.values())
    return merge(kernel, [State([m.group for m in messages], lifted)])


def merge(kernel: Kernel, states: list[State]) -> State:
    numbers = [g for s in states for g in s.groups]
    parts = concat_parts([(s.parts, len(s.groups)) for s in states])
    groups = Groups([pa.array(numbers, pa.int64())], len(numbers))
    failures: list[Any] = []
    merged = kernel.merge(parts, groups, failures) if parts else {}
    assert not failures
    assert all(len(part) == groups.size for part in merged.values())
    return State([numbers[i] for i in groups.first_rows], merged)


def run(kernel: Kernel, case: Case) -> dict[int, Any]:
    states = [commit_state(kernel, commit, case.types) for commit in case.commits]
    for pick in case.bracketing:
        if len(states) > 1:
            at = pick % (len(states) - 1)
            states[at : at + 2] = [merge(kernel, states[at : at + 2])]
    last = merge(kernel, states)
    values = kernel.finish(last.parts, len(last.groups))
    assert values.type == kernel.output_type()
    assert len(values) == len(last.groups)
    return dict(zip(last.groups, values.to_pylist(), strict=True))


# -- references -------------------------------------------------------------------------------------------------------


def ranked(value: Any) -> Any:
    """Sort key: NaN above all numbers."""
    return (1, 0.0) if isinstance(value, float | np.floating) and math.isnan(value) else (0, value)


def values(messages: list[Message]) -> list[Any]:
    return [m.values[0] for m in messages if m.values[0] is not None]


def by_position(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda m: -1 if m.position is None else m.position)


def by_time(messages: list[Message]) -> list[Message]:
    return sorted(by_position(messages), key=lambda m: m.time)


def exact_sum(numbers: list[Any]) -> float:
    """The sum of floats, the infinities and NaN as IEEE has them."""
    special = [float(n) for n in numbers if not math.isfinite(n)]
    return sum(special) if special else float(sum(map(Fraction, numbers)))


def reference_variance(numbers: list[Any], ddof: int) -> float | None:
    floats = [float(n) for n in numbers]
    if len(floats) <= ddof:
        return None
    if not all(map(math.isfinite, floats)):
        return math.nan
    mean = sum(map(Fraction, floats)) / len(floats)
    return float(sum((Fraction(x) - mean) ** 2 for x in floats) / (len(floats) - ddof))


def reference_percentile(numbers: list[Any], fraction: float) -> float | None:
    ordered = sorted((float(n) for n in numbers), key=ranked)
    if not ordered:
        return None
    place = fraction * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    if low == high or ordered[low] == ordered[high]:
        return ordered[low]
    return (high - place) * ordered[low] + (place - low) * ordered[high]


def nearest_rank(fraction: float) -> Callable[[list[Message]], float | None]:
    def reference(messages: list[Message]) -> float | None:
        ordered = sorted(map(float, values(messages)), key=ranked)
        return ordered[max(math.ceil(fraction * len(ordered)), 1) - 1] if ordered else None

    return reference


def choose_by(messages: list[Message], largest: bool) -> Any:
    rows = [m for m in by_position(messages) if m.values[1] is not None]
    if not rows:
        return None
    pick = max if largest else min  # both keep the first of equals
    return pick(rows, key=lambda m: ranked(m.values[1])).values[0]


def weighted(messages: list[Message]) -> float | None:
    pairs = [tuple(map(float, m.values)) for m in messages if None not in m.values]
    weight = exact_sum([w for _, w in pairs])
    if weight == 0 or not pairs:
        return None
    return exact_sum([x * w for x, w in pairs]) / weight


def one_of(values: list[Any], last: bool = False) -> Any:
    return None if not values else values[-1 if last else 0]


def distinct(values: list[Any]) -> list[Any]:
    return sorted({ranked(v): v for v in values}.values(), key=ranked)


def approx(tolerance: float = 0.0) -> Callable[[Any, Any], bool]:
    def close(a: Any, b: Any) -> bool:
        if isinstance(a, list):
            return isinstance(b, list) and len(a) == len(b) and all(map(close, a, b))
        if isinstance(a, dict):
            return isinstance(b, dict) and list(a) == list(b) and all(map(close, a.values(), b.values()))
        if isinstance(a, float) and isinstance(b, float):
            if math.isnan(a) or math.isnan(b):
                return math.isnan(a) and math.isnan(b)
            return a == b or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * 1e6)
        return bool(a == b) and (a is None) == (b is None)

    return close


EXACT = approx()
CLOSE = approx(1e-9)  # of numbers up to a million


class Log:
    """A user's aggregate that keeps what it was given, in order."""

    def initial(self) -> list[Any]:
        return []

    def add(self, state: list[Any], x: Any, y: Any) -> list[Any]:
        return [*state, f"{x} {y}"]

    def merge(self, older: list[Any], newer: list[Any]) -> list[Any]:
        return older + newer

    def finish(self, state: list[Any]) -> list[Any]:
        return state


log = wr.aggregate_function(name="log", returns=pa.list_(pa.string()))(Log)


@dataclass
class Kind:
    aggregation: wr.Aggregation
    reference: Callable[[list[Message]], Any]
    columns: Sequence[tuple[str, ...]]
    same: Callable[[Any, Any], bool] = EXACT

    def __repr__(self) -> str:
        return repr(self.aggregation)


def each(*names: str) -> list[tuple[str, ...]]:
    return [(n,) for n in names]


def integer_sum(messages: list[Message]) -> int | None:
    total = sum(int(v) for v in values(messages))
    return total if -(2**63) <= total < 2**63 else None


def average(messages: list[Message]) -> float | None:
    numbers = values(messages)
    return exact_sum(numbers) / len(numbers) if numbers else None


def top_by(messages: list[Message]) -> list[dict[str, Any]]:
    newest = {ranked(m.values[0]): m.values for m in by_time(messages) if None not in m.values}
    pairs = sorted((newest[k] for k in sorted(newest)), key=lambda pair: ranked(pair[1]), reverse=True)
    return [{"key": k, "value": v} for k, v in pairs[:2]]


def joined(messages: list[Message]) -> Any:
    """In order of arrival."""
    texts = values(messages)
    return texts[0][:0].join(texts) if texts else None


INTEGERS = each("int64", "int32", "int8", "uint64", "bool", "null")
KINDS = [
    Kind(wr.count(), len, each("int64", "struct")),
    Kind(wr.count("x"), lambda m: len(values(m)), each(*COLUMNS)),
    Kind(wr.sum("x"), integer_sum, INTEGERS),
    Kind(wr.sum("x"), lambda m: exact_sum(values(m)), each("double"), CLOSE),
    Kind(wr.sum("x"), lambda m: sum(values(m), Decimal(0)), each("decimal")),
    Kind(wr.avg("x"), average, [*INTEGERS, ("double",), ("decimal",)], CLOSE),
    Kind(wr.min("x"), lambda m: min(values(m), key=ranked, default=None), each(*ORDERED)),
    Kind(wr.max("x"), lambda m: max(values(m), key=ranked, default=None), each(*ORDERED)),
    Kind(
        wr.variance("x"),
        lambda m: reference_variance(values(m), 1),
        each("int8", "bool", "double", "null"),
        approx(1e-8),
    ),
    Kind(
        wr.variance("x", ddof=0),
        lambda m: reference_variance(values(m), 0),
        each("int8", "double", "decimal"),
        approx(1e-6),
    ),
    Kind(
        wr.stddev("x"),
        lambda m: None if (v := reference_variance(values(m), 1)) is None else math.sqrt(v),
        each("int8", "int64", "uint64"),
        CLOSE,
    ),
    Kind(wr.first("x"), lambda m: one_of(values(by_position(m))), each(*COLUMNS)),
    Kind(wr.last("x"), lambda m: one_of(values(by_position(m)), True), each(*FEW)),
    Kind(wr.earliest("x"), lambda m: one_of(values(by_time(m))), each(*FEW)),
    Kind(wr.latest("x"), lambda m: one_of(values(by_time(m)), True), each(*FEW)),
    Kind(wr.any_value("x"), lambda m: one_of(values(m)), each(*FEW)),
    Kind(wr.collect_list("x"), lambda m: values(by_position(m)), each(*COLUMNS)),
    Kind(wr.collect_list("x", order="event_time"), lambda m: values(by_time(m)), each(*FEW)),
    Kind(wr.collect_set("x"), lambda m: distinct(values(m)), each(*ORDERED)),
    Kind(wr.count_distinct("x"), lambda m: len(distinct(values(m))), each(*ORDERED)),
    Kind(wr.approx_count_distinct("x"), lambda m: len(distinct(values(m))), each(*ORDERED)),
    Kind(wr.median("x"), lambda m: reference_percentile(values(m), 0.5), each(*NUMBERS), approx(1e-15)),
    Kind(
        wr.percentile("x", 0.9), lambda m: reference_percentile(values(m), 0.9), each(*NUMBERS), approx(1e-15)
    ),
    *(
        Kind(
            wr.approx_percentile("x", fraction),
            nearest_rank(fraction),
            each(*NUMBERS),
            approx(1e-15),
        )
        for fraction in (0.0, 0.3, 1.0)
    ),
    Kind(wr.top_k_by("x", "y", 2), top_by, [(a, "int64") for a in ORDERED] + [("text", b) for b in ORDERED]),
    Kind(wr.sort_list("x"), lambda m: sorted(values(by_position(m)), key=ranked), each(*ORDERED)),
    Kind(
        wr.sort_list("x", "y", descending=True),
        lambda m: [
            m.values[0]
            for m in sorted(
                (m for m in by_position(m) if None not in m.values),
                key=lambda m: ranked(m.values[1]),
                reverse=True,
            )
        ],
        [(few, "double") for few in FEW] + [("text", "int64"), ("int64", "text")],
    ),
    Kind(wr.reduce(lambda a, b: a + b, "x", name="joined"), joined, each("text", "bytes")),
    Kind(wr.top_k("x", 3), lambda m: sorted(values(m), key=ranked, reverse=True)[:3], each(*ORDERED)),
    Kind(
        wr.max_by("x", "y"),
        lambda m: choose_by(m, True),
        [("text", by) for by in ORDERED] + [("struct", "int8")],
    ),
    Kind(
        wr.min_by("x", "y"),
        lambda m: choose_by(m, False),
        [("int64", by) for by in ORDERED] + [("null", "double")],
    ),
    Kind(
        wr.weighted_avg("x", "y"),
        weighted,
        [("int8", "bool"), ("decimal", "int8"), ("null", "double")],
        CLOSE,
    ),
    Kind(log("x", "y"), lambda m: [f"{m.values[0]} {m.values[1]}" for m in m], [("int64", "text")]),
]
EVERY = [
    pytest.param(columns, [kind for kind in KINDS if columns in kind.columns], id="-".join(columns))
    for columns in dict.fromkeys(columns for kind in KINDS for columns in kind.columns)
]


def test_every_kind_has_a_reference() -> None:
    assert {k.aggregation.kind for k in KINDS} == set(KERNELS)


@pytest.mark.parametrize(("columns", "kinds"), EVERY)
def test_any_cut_and_any_bracketing_give_the_reference(columns: tuple[str, ...], kinds: list[Kind]) -> None:
    kernels = [make_kernel(kind.aggregation, kernel_types(columns)) for kind in kinds]

    @examples(5, deep=100)
    @given(cases(*columns))
    def check(case: Case) -> None:
        for kind, kernel in zip(kinds, kernels, strict=True):
            outcome = run(kernel, case)
            assert sorted(outcome) == case.groups
            for group, value in outcome.items():
                expected = kind.reference(case.of_group(group))
                assert kind.same(expected, value), (kind, expected, value, case)

    check()


@pytest.mark.parametrize(("kind", "columns"), [(k, k.columns[-1]) for k in KINDS], ids=str)
def test_null_and_missing_parts_are_the_identity(kind: Kind, columns: tuple[str, ...]) -> None:
    kernel = make_kernel(kind.aggregation, [COLUMNS[c][0] for c in columns])

    @examples(3, deep=15)
    @given(cases(*columns))
    def check(case: Case) -> None:
        state = merge(kernel, [commit_state(kernel, c, case.types) for c in case.commits])
        groups = state.groups
        null = State(groups, {n: pa.nulls(len(groups), p.type) for n, p in state.parts.items()})
        expected = kernel.finish(state.parts, len(groups)).to_pylist()
        for states in ([null, state], [state, null], [State(groups, {}), state], [state, State(groups, {})]):
            merged = merge(kernel, states)
            assert merged.groups == groups
            assert approx()(expected, kernel.finish(merged.parts, len(groups)).to_pylist())

    check()


@pytest.mark.parametrize(("columns", "kinds"), EVERY)
def test_the_identity_finishes_as_no_rows_at_all(columns: tuple[str, ...], kinds: list[Kind]) -> None:
    none_pass = Case(kernel_types(columns), [[Message(0, (None,) * len(columns), passes=False)]])
    for kind in kinds:
        kernel = make_kernel(kind.aggregation, kernel_types(columns))
        nothing = kind.reference([])
        assert kernel.finish({}, 2).to_pylist() == [nothing, nothing], kind
        assert run(kernel, none_pass) == {0: nothing}, kind
        assert run(kernel, Case(kernel_types(columns), [[]])) == {}, kind


def kernel_types(columns: tuple[str, ...]) -> list[pa.DataType]:
    return [COLUMNS[c][0] for c in columns]


def widened(name: str, narrow: pa.DataType, wide: pa.DataType) -> Any:
    return pytest.param(narrow, wide, id=name)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        widened("int to float", pa.int64(), pa.float64()),
        widened("int to decimal", pa.int64(), pa.decimal128(38, 2)),
        widened("nothing to int", pa.null(), pa.int64()),
        widened("float to double", pa.float32(), pa.float64()),
    ],
)
@pytest.mark.parametrize(
    "kind", {repr(k): k for k in KINDS if k.aggregation.kind != "user"}.values(), ids=repr
)
def test_states_of_before_and_after_a_column_widened_meet(
    kind: Kind, narrow: pa.DataType, wide: pa.DataType
) -> None:
    old = make_kernel(kind.aggregation, [narrow] * len(kind.columns[0]))
    new = make_kernel(kind.aggregation, [wide] * len(kind.columns[0]))
    arity = len(kind.columns[0])
    before: list[Any] = [None, None] if pa.types.is_null(narrow) else [2, 1]
    after: list[Any] = [1.5, 1.0]
    if pa.types.is_decimal(wide):
        after = [Decimal("1.50"), Decimal("1.00")]
    elif pa.types.is_integer(wide):
        after = [5, 1]
    commits = [
        [Message(0, (v,) * arity, 3 * c, 2 * c + i) for i, v in enumerate(vs)]
        for c, vs in enumerate((before, after))
    ]
    states = [
        commit_state(k, c, [t] * arity) for k, c, t in zip((old, new), commits, (narrow, wide), strict=True)
    ]
    if kind.aggregation.kind == "sum":
        kind = replace(kind, reference=lambda messages: exact_sum(values(messages)))
    expected = kind.reference(commits[0] + commits[1])
    merged = merge(new, states)
    (value,) = new.finish(merged.parts, 1).to_pylist()
    assert CLOSE(as_floats(expected), as_floats(value))
    (alone,) = new.finish(merge(new, states[:1]).parts, 1).to_pylist()
    assert CLOSE(as_floats(kind.reference(commits[0])), as_floats(alone))


def as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [as_floats(v) for v in value]
    if isinstance(value, dict):
        return {name: as_floats(v) for name, v in value.items()}
    return value if value is None else float(value)
