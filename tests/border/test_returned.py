"""Values that functions of the user's return: emitted as they are, or a dead letter that names the value, for every type."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.border.cells import INPUT, WINDOW, try_cells
from tests.border.kinds import KINDS, NUMBERS, TEXTS, held
from tests.border.test_functions import Gives
from tests.border.test_widening import is_same, shown
from tests.deep import usually
from windrow.core.errors import TypeClash

KEYED: dict[str, Any] = {**INPUT, "by": "n"}


def finish(values: list[Any], kind: pa.DataType) -> Any:
    """The result of a class, whose state is the number of the value."""
    first = {
        "initial": lambda s: None,
        "add": lambda s, state, x: x,
        "merge": lambda s, a, b: b if a is None else a,
    }
    own = type("Own", (Gives,), {**first, "finish": lambda s, state: values[state]})
    return wr.Aggregate(
        agg={"v": wr.aggregate_function(name="own", returns=kind)(own)("n")}, **KEYED, **WINDOW
    )


def of_messages(values: list[Any], kind: pa.DataType) -> Any:
    """The result of a function of a window's messages."""
    own = wr.aggregate_function(name="own", returns=kind)(lambda rows: values[rows.column("n")[0].as_py()])
    return wr.Aggregate(agg={"v": own()}, **KEYED, **WINDOW)


def rows_of_process(values: list[Any], kind: pa.DataType) -> Any:
    """Rows of a process function."""
    call = type(
        "Rows", (), {"on_message": lambda s, key, message, state, timers: {"v": values[message["n"]]}}
    )
    return wr.Process(function=call, emits={"v": kind}, ttl="1 hour", **KEYED)


def state_of_process(values: list[Any], kind: pa.DataType) -> Any:
    """Rows of what a process function has in its state: it is set by the first message of a key, and emitted by the second."""

    def on_message(self: Any, key: Any, message: Any, state: Any, timers: Any) -> Any:
        if "v" in state:
            return {"v": state["v"]}
        state["v"] = values[message["n"]]
        return None

    call = type("State", (), {"on_message": on_message})
    return wr.Process(function=call, emits={"v": kind}, ttl="1 hour", **KEYED)


#: The key whose messages a step has, where a function does not get it.
TURN = [0]


def reduction(values: list[Any], kind: pa.DataType) -> Any:
    """Reduce the two values that each key has."""
    own = wr.reduce(lambda older, newer: values[TURN[0]], "x", name="own")
    return wr.Aggregate(agg={"v": own}, **KEYED, **WINDOW)


#: Types whose values in Python are of another type, or more than Arrow reads.
OTHERS = (pa.bool8(), pa.struct([]), pa.duration("us"))
PLACES: dict[str, Callable[[list[Any], pa.DataType], Any]] = {
    "finish": finish,
    "messages": of_messages,
    "rows": rows_of_process,
    "state": state_of_process,
    "reduce": reduction,
}


def feed(operator: Any, place: str, kind: pa.DataType, size: int) -> None:
    """Give each key its messages, whose values in the column `x` are of the type."""
    if place != "reduce":
        for _ in range(1 + (place == "state")):
            operator.add_messages([{"ts": 0, "n": i} for i in range(size)])
        return
    values = held(kind, random.Random(1))
    column = pa.concat_arrays([values.slice(0, 1)] * 2)
    for TURN[0] in range(size):
        operator.add_messages(pa.table({"ts": [0, 0], "n": [TURN[0]] * 2, "x": column}))
        operator.timeout()


def is_reducible(kind: pa.DataType) -> bool:
    """True of numbers, booleans, text and bytes."""
    t = pa.types
    sized = t.is_decimal(kind) or t.is_fixed_size_binary(kind) or kind == pa.uuid()
    return not sized and kind in (*NUMBERS, *TEXTS)


def check(place: str, returned: pa.DataType, kind: pa.DataType, folder: Path) -> str:
    """Try values of a type where another one is declared: each is emitted, or is a letter."""
    values = held(returned, random.Random(1)).to_pylist()
    with PLACES[place](values, kind).open(str(folder), store="memory") as operator:
        try:
            feed(operator, place, kind, len(values))
        except TypeClash:
            assert place == "reduce" and not is_reducible(kind)
            return "refused"
        operator.drain()
        rows = list(operator.get_result())
        letters = [f"{x.reason}: {x.detail}" for x in operator.dead_letters()]
    emitted = {(r.values if place in ("rows", "state") else r.key)["n"]: r.values["v"] for r in rows}
    if place == "reduce" and kind in (pa.null(), pa.struct([])):  # of which no value is reduced
        assert not letters and set(emitted.values()) == {None}
        return "emitted"
    pairs = [(values[n], v) for n, v in emitted.items()]
    changed = [
        (v, one)
        for v, one in pairs
        if not (_is_nearest(v, kind) or is_same(shown(_pairs(v, kind)), shown(one)))
    ]
    assert not changed, changed
    assert all(x.startswith(("aggregate_failed: ", "function_failed: ")) for x in letters), letters
    assert letters or len(emitted) == len(values), (emitted, values)
    assert returned != kind or returned in OTHERS or place == "state" or not letters, letters
    return "emitted" if not letters else "failed"


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """Give a mapping under a map type as its pairs, which is how maps are read; numbers are compared by value."""
    return list(value.items()) if pa.types.is_map(kind) and isinstance(value, dict) else value


def _is_nearest(value: Any, kind: pa.DataType) -> bool:
    """True of floats, whose nearest value of the type is the result."""
    return isinstance(value, float) and pa.types.is_floating(kind)


@pytest.mark.timeout(1800)
def test_what_functions_return_is_emitted_as_it_is_or_fails(tmp_path: Path) -> None:
    draw = random.Random(3)
    same = [(place, kind, kind) for place, kind in itertools.product(PLACES, KINDS)]
    pairs = list(itertools.product(PLACES, KINDS, KINDS))
    sample = [
        *draw.sample(same, min(len(same), usually(20, deep=4_000))),
        *draw.sample(pairs, usually(20, deep=4_000)),
    ]
    try_cells(sample, len(same) + len(pairs), check, tmp_path)


def test_types_that_no_file_holds_are_returned_as_those_that_one_does(tmp_path: Path) -> None:
    kinds = (
        pa.string_view(),
        pa.binary_view(),
        pa.binary(0),
        pa.decimal128(3, -2),
        pa.list_(pa.string_view()),
    )
    for i, (kind, place) in enumerate(
        zip(kinds, itertools.cycle(("finish", "messages", "rows")), strict=False)
    ):
        assert check(place, kind, kind, tmp_path / str(i)) == "emitted"
