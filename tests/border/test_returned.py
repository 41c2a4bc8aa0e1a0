"""Values that functions of the user's return: emitted as they are, or a dead letter that names the value, for every type."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow as wr
from tests.border.kinds import KINDS, held
from tests.border.test_functions import Gives
from tests.border.test_widening import is_same, shown
from tests.deep import usually

INPUT: dict[str, Any] = {"event_time": "ts", "max_ahead": wr.forever, "by": "n"}
WINDOW: dict[str, Any] = {"window": wr.tumbling("1 hour"), "retention": "1 day"}


def finish(values: list[Any], kind: pa.DataType) -> Any:
    """The result of a class, whose state is the number of the value."""
    first = {
        "initial": lambda s: None,
        "add": lambda s, state, x: x,
        "merge": lambda s, a, b: b if a is None else a,
    }
    own = type("Own", (Gives,), {**first, "finish": lambda s, state: values[state]})
    return wr.Aggregate(
        agg={"v": wr.aggregate_function(name="own", returns=kind)(own)("n")}, **INPUT, **WINDOW
    )


def of_messages(values: list[Any], kind: pa.DataType) -> Any:
    """The result of a function of a window's messages."""
    own = wr.aggregate_function(name="own", returns=kind)(lambda rows: values[rows.column("n")[0].as_py()])
    return wr.Aggregate(agg={"v": own()}, **INPUT, **WINDOW)


def rows_of_process(values: list[Any], kind: pa.DataType) -> Any:
    """Rows of a process function."""
    call = type(
        "Rows", (), {"on_message": lambda s, key, message, state, timers: {"v": values[message["n"]]}}
    )
    return wr.Process(function=call, emits={"v": kind}, ttl="1 hour", **INPUT)


def state_of_process(values: list[Any], kind: pa.DataType) -> Any:
    """Rows of what a process function has in its state: it is set by the first message of a key, and emitted by the second."""

    def on_message(self: Any, key: Any, message: Any, state: Any, timers: Any) -> Any:
        if "v" in state:
            return {"v": state["v"]}
        state["v"] = values[message["n"]]
        return None

    call = type("State", (), {"on_message": on_message})
    return wr.Process(function=call, emits={"v": kind}, ttl="1 hour", **INPUT)


#: Types whose values in Python are of another type, or more than Arrow reads.
OTHERS = (pa.bool8(), pa.struct([]), pa.duration("us"))
PLACES: dict[str, Callable[[list[Any], pa.DataType], Any]] = {
    "finish": finish,
    "messages": of_messages,
    "rows": rows_of_process,
    "state": state_of_process,
}


def check(place: str, given: pa.DataType, kind: pa.DataType, folder: Path) -> str:
    """Try values of a type where another one is declared: each is emitted, or is a letter."""
    values = held(given, random.Random(1)).to_pylist()
    with PLACES[place](values, kind).open(str(folder), store="memory") as operator:
        for _ in range(1 + (place == "state")):
            operator.add_messages([{"ts": 0, "n": i} for i in range(len(values))])
        operator.drain()
        rows = list(operator.get_result())
        letters = [f"{x.reason}: {x.detail}" for x in operator.dead_letters()]
    found = {(r.values if place in ("rows", "state") else r.key)["n"]: r.values["v"] for r in rows}
    pairs = [(values[n], v) for n, v in found.items()]
    changed = [(v, one) for v, one in pairs if not (_is_nearest(v, kind) or is_same(shown(v), shown(one)))]
    assert not changed, changed
    assert all(x.startswith(("aggregate_failed: ", "function_failed: ")) for x in letters), letters
    assert letters or len(found) == len(values), (found, values)
    assert given != kind or given in OTHERS or place == "state" or not letters, letters
    return "emitted" if not letters else "failed"


def _is_nearest(value: Any, kind: pa.DataType) -> bool:
    """True of floats, whose nearest value of the type is the result."""
    return isinstance(value, float) and pa.types.is_floating(kind)


def test_what_functions_return_is_emitted_as_it_is_or_fails(tmp_path: Path) -> None:
    draw = random.Random(3)
    same = [(place, kind, kind) for place, kind in itertools.product(PLACES, KINDS)]
    pairs = list(itertools.product(PLACES, KINDS, KINDS))
    some = [*draw.sample(same, usually(20, deep=len(same))), *draw.sample(pairs, usually(20, deep=4_000))]
    came: dict[str, int] = {}
    wrong: list[str] = []
    for i, cell in enumerate(some):
        try:
            what = check(*cell, tmp_path / str(i))
        except Exception as error:
            wrong.append(f"{' '.join(map(str, cell))}: {type(error).__name__}: {str(error)[:300]}")
            continue
        came[what] = came.get(what, 0) + 1
    print(f"{len(some)} of {len(same) + len(pairs)} cells: {came}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


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
