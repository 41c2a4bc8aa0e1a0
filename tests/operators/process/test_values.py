"""Values of a function: state reads back, results fit their columns; all else is a dead letter, as the oracle says."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.testing import TestDriver

EAST = timezone(timedelta(hours=2))


class Calls:
    """Does with each message what the test says."""

    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        self.call = call

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        return self.call(state, timers)


def process(call: Callable[[Any, Any], Any], kind: pa.DataType | None = None) -> wr.Process:
    return wr.Process(
        by="k",
        event_time="t",
        function=Calls(call),
        emits={"x": kind or pa.string()},
        ttl=wr.forever,
        max_ahead=wr.forever,
    )


def lives(call: Callable[[Any, Any], Any], kind: pa.DataType | None = None) -> tuple[list[Any], list[str]]:
    """Two messages of a key, with a restart between them: the rows, and why there are dead letters; as the oracle says."""
    sink = wr.sinks.memory()
    with TestDriver(process(call, kind), sink=sink, store="memory") as driver:
        for t in (0, 1):
            driver.feed([{"t": t, "k": "a"}])
            driver.op.flush()
            driver.restart()
        driver.check(dead_letters=True)
        rows = [row["x"] for row in sink.panes]
        return rows, [letter.detail.strip().splitlines()[-1] for letter in driver.op.dead_letters()]


@pytest.mark.parametrize(
    ("value", "back"),
    [
        ((1, ("a", None)), [1, ["a", None]]),
        ({"a": (1.5, True), 2: b"x", b"y": -(2**63)}, {"a": [1.5, True], 2: b"x", b"y": -(2**63)}),
        (2**64 - 1, 2**64 - 1),
        (bytearray(b"x"), b"x"),
        (datetime(2020, 1, 1, 2, tzinfo=EAST), datetime(2020, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_value_comes_back_as_msgpack_keeps_it(value: Any, back: Any) -> None:
    def call(state: Any, timers: Any) -> dict[str, str]:
        was = state.get("v")
        state["v"] = value
        return {"x": repr(was)}

    assert lives(call) == ([repr(None), repr(back)], [])


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        2**64,
        1j,
        Decimal("1.5"),
        "\ud800",
        datetime(2020, 1, 1),
        # These are written without complaint, and could never be read: the key would be lost with all that it has.
        {(1, 2): 3},
        [{"a": {(): 1}}],
        datetime(1, 1, 1, tzinfo=EAST),
    ],
    ids=repr,
)
def test_what_could_not_be_read_back_is_not_kept(value: Any) -> None:
    def call(state: Any, timers: Any) -> dict[str, str]:
        was = state.get("v")
        state["v"] = value if was is None else 1
        return {"x": repr(was)}

    rows, why = lives(call)
    assert rows == [] and len(why) == 2
    assert all(f"state['v'], of type {type(value).__name__}, is nothing that msgpack keeps" in w for w in why)


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (5, None, "5 is no row: return a dict, a list of dicts, or None, or yield dicts"),
        ("text", None, "'text' is no row: return a dict, a list of dicts, or None, or yield dicts"),
        ([1], None, "1 is no row: return or yield dicts"),
        ({"y": 1}, None, "column 'y' is none of emits=['x']"),
        ({"x": 5}, None, "column 'x' is to be string: "),
        ({"x": "a"}, pa.timestamp("us", "UTC"), "column 'x' is to be timestamp[us, tz=UTC]: "),
        ({"x": 1.5}, pa.int64(), "column 'x' is to be int64: 1.5 is no int64 without loss"),
        ({"x": [1, 1.5]}, pa.list_(pa.int64()), "1.5 is no int64 without loss"),
        ({"x": {"a": 1, "b": 2}}, pa.struct([("a", pa.int64())]), "is no struct<a: int64> without loss"),
    ],
)
def test_a_row_that_does_not_fit_says_which_column_and_what_fits(
    value: Any, kind: pa.DataType | None, why: str
) -> None:
    def call(state: Any, timers: Any) -> Any:
        state["n"] = 1
        return value

    rows, letters = lives(call, kind)
    assert rows == [] and len(letters) == 2 and all(why in letter for letter in letters)


@pytest.mark.parametrize("of", ["event", "later"])
@pytest.mark.parametrize("at", [2**62, "2020-01-01", None, 5])
def test_a_timer_that_cannot_be_is_the_dead_letter_of_its_message(of: Any, at: Any) -> None:
    rows, why = lives(lambda state, timers: timers.cancel(at, of=of))
    assert rows == [] and len(why) == (0 if (of, at) == ("event", 5) else 2)


@pytest.mark.parametrize("of", ["event", "now"])
def test_a_timer_without_an_on_timer_is_a_dead_letter_where_it_is_set(of: Any) -> None:
    def call(state: Any, timers: Any) -> dict[str, str]:
        state["n"] = state.get("n", 0) + 1
        timers.set(timers.time, of=of)
        return {"x": "told"}

    rows, why = lives(call)
    assert rows == [] and len(why) == 2
    assert all("would call on_timer, which the function has not: give it on_timer(" in w for w in why)


def test_maps_are_shown_whatever_their_keys(tmp_path: Path) -> None:
    value = {b"y": [{None: 1, datetime(2020, 1, 1, tzinfo=UTC): 2}], 3: 4}
    definition = process(lambda state, timers: state.update(v=value))
    with definition.open(str(tmp_path)) as op:
        op.add_message({"t": 0, "k": "a"})
        op.flush()
        with wr.read_state(str(tmp_path), definition=definition) as state:
            [row] = state.table("state", key="a").to_pylist()
    assert json.loads(row["value"]) == {"b'y'": [{"null": 1, "2020-01-01 00:00:00+00:00": 2}], "3": 4}
