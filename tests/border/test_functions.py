"""Return values of the user's functions: emitted as they are, or the pane, row or call fails and names the value."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.border import fit


class Gives:
    """An aggregate whose result is a given value."""

    value: Any = None

    def initial(self) -> int:
        return 0

    def add(self, state: int, x: Any) -> int:
        return state + 1

    def merge(self, state: int, other: int) -> int:
        return state + other

    def finish(self, state: int) -> Any:
        return self.value


def panes(
    tmp_path: Any, aggregation: wr.Aggregation, *messages: dict[str, Any]
) -> tuple[list[Any], list[str]]:
    letters: list[wr.DeadLetter] = []
    definition = wr.Aggregate(
        agg={"s": aggregation}, by=(), event_time="ts", window=wr.tumbling("1 minute"), retention=wr.forever
    )
    with definition.open(
        str(tmp_path), store="memory", dead_letters=lambda dead, token: letters.extend(dead)
    ) as operator:
        operator.add_messages([{"ts": 0, **m} for m in messages])
        operator.flush()
        operator.drain()
        sums = [pane.values["s"] for pane in operator.get_result()]
    return sums, [f"{letter.reason}: {letter.detail}" for letter in letters]


@pytest.mark.parametrize(
    ("value", "kind", "held"),
    [
        (2.0, pa.int64(), 2),
        (np.float16(0.5), pa.float64(), 0.5),
        (3, pa.float64(), 3.0),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
    ],
)
def test_what_finish_gives_is_emitted(tmp_path: Any, value: Any, kind: pa.DataType, held: Any) -> None:
    own = type("Own", (Gives,), {"value": value})
    emitted, letters = panes(tmp_path, wr.aggregate_function(name="own", returns=kind)(own)("x"), {"x": 1})
    assert emitted[-1] == held and letters == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.5, pa.int64()), (-1, pa.uint8()), (2**53 + 1, pa.float64()), (True, pa.int64()), ("a", pa.binary())],
)
def test_what_finish_gives_and_does_not_fit_fails_the_pane(
    tmp_path: Any, value: Any, kind: pa.DataType
) -> None:
    own = type("Own", (Gives,), {"value": value})
    emitted, letters = panes(tmp_path, wr.aggregate_function(name="own", returns=kind)(own)("x"), {"x": 1})
    assert emitted == [] and letters
    assert all(x.startswith("aggregate_failed: s: ") and f"{value!r} is no {kind}" in x for x in letters)


def test_an_overflow_in_the_users_code_is_no_overflow_of_a_sum(tmp_path: Any) -> None:
    def overflows(self: Any, state: int) -> Any:
        raise OverflowError("math range error")

    own = type("Own", (Gives,), {"finish": overflows})
    _, letters = panes(tmp_path, wr.aggregate_function(name="own", returns=pa.float64())(own)("x"), {"x": 1})
    assert letters and all(letter.startswith("aggregate_failed: ") for letter in letters)


def test_a_reduction_to_a_fraction_of_whole_numbers_fails_the_pane(tmp_path: Any) -> None:
    mean = wr.reduce(lambda a, b: (a + b) / 2, "x", name="mean")
    emitted, letters = panes(tmp_path, mean, {"x": 1}, {"x": 2})
    assert emitted == [] and letters and all("1.5 is no int64" in letter for letter in letters)


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([None], MAP),
        ([("a", 1), None], MAP),
        ([[None]], pa.list_(MAP)),
        ({"m": [None]}, pa.struct([("m", MAP)])),
        ([("x", [None])], pa.map_(pa.string(), MAP)),
        ([("m", [None])], pa.struct([("m", MAP)])),
    ],
)
def test_a_null_in_place_of_a_pair_is_no_map(value: Any, kind: pa.DataType) -> None:
    """Arrow ends the process on it."""
    made = fit([value, None], kind)
    assert made.array.null_count == 2 and list(made.misfits) == [0]
    decoder, record = wr.decoders.msgpack({"v": kind}), msgpack.packb({"v": value})
    assert decoder.decode([record], "topic").column("v").null_count == 1
