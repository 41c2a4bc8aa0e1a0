"""Keys compared across inputs: equal numbers are one key whatever their types, and unequal ones never."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.errors import TypeClash

Rows = dict[str, list[Any]]
NUMBERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, 1, -128],
    pa.int64(): [0, 1, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, -(2**53) - 1, -(2**63)],
    pa.uint64(): [0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1],
    pa.float32(): [0.0, -0.0, 0.5, 1.0, 2.0**53],
    pa.float64(): [0.0, 0.5, 0.1, 1.0, 2.0**53, 2.0**53 + 2, -(2.0**53), 2.0**63, 2.0**64],
    pa.decimal128(3, 1): [Decimal("0.0"), Decimal("0.1"), Decimal("1.0"), Decimal("99.9")],
    pa.decimal128(38, 2): [Decimal(n) for n in (0, 1, "0.5", 2**53, 2**53 + 1, 2**63, 10**35)],
}
INPUTS = {name: wr.Input(name, event_time="ts", max_ahead=wr.forever) for name in ("l", "r")}
NEWEST = {n: wr.Input(n, event_time="ts", max_ahead=wr.forever, window=wr.rows(9, per="key")) for n in INPUTS}


def joined(inputs: Any = INPUTS, **other: Any) -> wr.Join:
    return wr.Join(left=inputs["l"], right=inputs["r"], on="k", **other)


def cogroup() -> wr.CoGroup:
    hour: dict[str, Any] = {"window": wr.tumbling("1 hour"), "retention": "1 day"}
    return wr.CoGroup(inputs=list(INPUTS.values()), by="k", agg={"n": wr.count()}, **hour)


def anchored() -> wr.Over:
    time: dict[str, Any] = {"event_time": "ts", "max_ahead": wr.forever, "input": "l"}
    frame = ("-1 hour", "1 hour")
    return wr.Over(by="k", agg={"n": wr.count()}, anchors=INPUTS["r"], frame=frame, **time)


HOUR: dict[str, Any] = {"within": ("-1 hour", "1 hour"), "retention": "1 day"}
OPERATORS: dict[str, Callable[[], Any]] = {
    "time": lambda: joined(**HOUR),
    "full": lambda: joined(how="full", **HOUR),
    "large": lambda: joined(how="full", scale="large", **HOUR),
    "as-of": lambda: joined(how="asof", within=("-1 hour", "0 seconds"), retention="1 day"),
    "counted": lambda: joined(NEWEST),
    "sessions": lambda: joined(window=wr.session("1 hour"), retention="1 day", how="full"),
    "cogroup": cogroup,
    "anchors": anchored,
}


def number(value: Any) -> Decimal:
    """The value of a key: of a float that of the decimal that prints as it does."""
    return Decimal(repr(value)) + 0 if isinstance(value, float) else Decimal(value)


def expected(name: str, rows: Rows) -> dict[Decimal, int]:
    """Count how often a key is emitted, or its messages in a group or a frame."""
    left, right = (collections.Counter(map(number, rows[side])) for side in ("l", "r"))
    both = {k: left[k] * right[k] for k in left.keys() & right.keys()}
    if name == "as-of":
        return dict(left)
    if name in ("full", "large", "sessions"):
        return {k: both.get(k, left[k] + right[k]) for k in left.keys() | right.keys()}
    if name == "cogroup":
        return dict(left + right)
    return {k: left[k] * n for k, n in right.items()} if name == "anchors" else both


def case(draw: random.Random, name: str, folder: Path) -> None:
    kinds = {side: draw.choice(list(NUMBERS)) for side in ("l", "r")}
    rows = {side: draw.choices(NUMBERS[kind], k=draw.randint(1, 3)) for side, kind in kinds.items()}
    sides, together = draw.sample(("l", "r"), 2), draw.random() < 0.5
    as_table = pa.uint64() in kinds.values() or draw.random() < 0.5  # no message makes a column one of uint64
    options: dict[str, Any] = {}
    for side in sides:
        columns = {"ts": pa.array([0] * len(rows[side])), "k": pa.array(rows[side], kinds[side])}
        table = pa.table(columns)
        options[side] = table if as_table else table.to_pylist()
    with OPERATORS[name]().open(str(folder), store="memory") as operator:
        for step in [options] if together else [{side: options[side]} for side in sides]:
            operator.add_messages(step)
            operator.timeout()
        operator.drain()
        outcomes = list(operator.get_result())
        letters = [(x.input, x.position.offset, x.detail) for x in operator.dead_letters()]
    for side, offset, detail in letters:
        assert detail.startswith("column 'k'") and " without loss" in detail, detail
        value = number(rows[side][offset])
        assert (value and len(value.as_tuple().digits) > 15) or any(map(pa.types.is_floating, kinds.values()))
    dead = {(side, offset) for side, offset, _ in letters}
    counted = {s: [v for i, v in enumerate(rows[s]) if (s, i) not in dead] for s in rows}
    came: collections.Counter[Decimal] = collections.Counter()
    for row in outcomes:
        key = row.key["k"] if name == "cogroup" else row.values["k"]
        assert isinstance(key, int | float | Decimal)
        if name == "cogroup":
            came[number(key)] = row.values["n"]
        else:
            came[number(key)] += row.values["n"] if name == "anchors" else 1
    wanted = {k: n for k, n in expected(name, counted).items() if n}
    assert {k: n for k, n in came.items() if n} == wanted, (came, wanted, letters)


def test_equal_numbers_are_one_key_and_unequal_ones_never(tmp_path: Path) -> None:
    draw, wrong, n = random.Random(0), [], usually(5, deep=100)
    for i, name in itertools.product(range(n), OPERATORS):
        seed = draw.randrange(2**32)
        try:
            case(random.Random(seed), name, tmp_path / f"{name}-{i}")
        except Exception as error:
            wrong.append(f"{name} {seed}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{n * len(OPERATORS)} cases")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("together", [True, False])
def test_neighbours_beyond_what_floats_hold_never_meet(tmp_path: Path, name: str, together: bool) -> None:
    long, near = [{"ts": 0, "k": 2**53 + 1}], [{"ts": 0, "k": 2.0**53}]
    for i, step in enumerate(({"l": long, "r": near}, {"r": near, "l": long})):
        with OPERATORS[name]().open(str(tmp_path / str(i)), store="memory") as operator:
            for one in [step] if together else [{side: rows} for side, rows in step.items()]:
                operator.add_messages(one)
            operator.drain()
            keys = [row.key["k"] if name == "cogroup" else row.values["k"] for row in operator.get_result()]
            letters = [letter.detail for letter in operator.dead_letters()]
        assert len(set(keys)) == len(keys) and set(keys) <= {2**53 + 1, 2**53}
        assert letters == [] if not i else ["column 'k' is 9007199254740993, which is no double without loss"]


def itself(draw: random.Random, folder: Path) -> None:
    """Join an input with itself on two columns, of which each step has types of its own."""
    side = wr.Input("l", event_time="ts", max_ahead=wr.forever)
    join = wr.Join(left=side, right=side, on={"a": "b"}, how="full", **HOUR)
    tables, rows = list[pa.Table](), list[tuple[Any, Any]]()
    for _ in range(draw.randint(1, 3)):
        kinds, n = draw.choices(list(NUMBERS), k=2), draw.randint(1, 3)
        a, b = (draw.choices(NUMBERS[kind], k=n) for kind in kinds)
        columns = dict(zip("ab", map(pa.array, (a, b), kinds), strict=True))
        places = {"ts": pa.array([0] * n), "i": pa.array(range(len(rows), len(rows) + n))}
        tables.append(pa.table(places | columns))
        rows += zip(a, b, strict=True)
    as_table = draw.random() < 0.5 or any(pa.uint64() in table.schema.types for table in tables)
    with join.open(str(folder), store="memory") as operator:
        for table in tables:
            try:
                operator.add_messages({"l": table if as_table else table.to_pylist()})
            except TypeClash:  # decimals of many digits, then floats
                assert as_table
                return
            operator.timeout()
        operator.drain()
        came = collections.Counter((r.values["left_i"], r.values["right_i"]) for r in operator.get_result())
        letters = {x.position.offset: x.detail for x in operator.dead_letters()}
    assert all(detail.startswith("column ") for detail in letters.values()), letters
    live = [i for i in range(len(rows)) if i not in letters]
    pairs = {(i, j) for i in live for j in live if number(rows[i][0]) == number(rows[j][1])}
    alone = {(i, None) for i in live if i not in {i for i, _ in pairs}}
    wanted = pairs | alone | {(None, j) for j in live if j not in {j for _, j in pairs}}
    assert came == collections.Counter(wanted), (tables, letters)


def test_an_input_meets_itself_by_equal_numbers_alone(tmp_path: Path) -> None:
    for seed in range(usually(12, deep=2_000)):
        itself(random.Random(seed), tmp_path / str(seed))
    for seed in (24,):  # fractions beside numbers of many digits
        itself(random.Random(seed), tmp_path / str(seed))
