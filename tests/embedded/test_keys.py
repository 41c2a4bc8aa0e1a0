"""Columns as keys: which types can be one, and what becomes of the others."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import TypeClash
from windrow.testing import TestDriver

WINDOWS = {"time": wr.tumbling("10 seconds"), "tuples": wr.tuples(2)}


def define(window: Any) -> wr.Aggregate:
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count()},
        retention=wr.forever,
        emit=wr.Emit(early=wr.every_batch, closing_pane=True),
    )


def rows(keys: Any) -> pa.Table:
    return pa.table({"t": list(range(1, len(keys) + 1)), "k": keys})


NO_KEYS = {
    "struct": (pa.array([{"a": 1}]), {"a": 1}),
    "list": (pa.array([[1]]), [1]),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), None),
    "half": (pa.array(np.array([1], dtype=np.float16)), np.float16(1)),
    "interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), None),
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(("column", "value"), NO_KEYS.values(), ids=NO_KEYS)
def test_keys_that_have_no_order_are_refused_by_name(window: Any, column: pa.Array, value: Any) -> None:
    with TestDriver(define(window)) as driver:
        with pytest.raises(TypeClash, match=r"'k' is of type .*cast it"):
            driver.op.add_messages(rows(column))
        if value is not None:  # of messages one is wrong, and the next one right
            driver.op.add_message(wr.Message({"t": 1, "k": value}))
        driver.op.add_messages(rows(["a", "a"]))
        assert [(w.key, w.messages) for w in driver.windows()] == [({"k": "a"}, 2)]
        letters = driver.dead_letters()
        assert [letter.reason for letter in letters] == ["malformed"] * (value is not None)
        assert all("key 'k' is of type" in letter.detail for letter in letters)


KEYS = {
    "category": pa.array(["b", "a", "b"]).dictionary_encode(),
    "large text": pa.array(["b", "a", "b"], pa.large_string()),
    "time": pa.array([dt.time(2), dt.time(1), dt.time(2)]),
    "duration": pa.array([dt.timedelta(2), dt.timedelta(1), dt.timedelta(2)]),
    "date": pa.array([dt.date(2020, 1, 2), dt.date(2020, 1, 1), dt.date(2020, 1, 2)]),
    "bytes": pa.array([b"b", b"", b"b"]),
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_of_every_other_type_group_fire_and_close(window: Any, keys: pa.Array) -> None:
    with TestDriver(define(window)) as driver:
        driver.op.add_messages(rows(keys))
        driver.next_offsets()
        driver.restart()
        driver.drain()
        b, a = keys.to_pylist()[:2]
        last = {pane.key["k"]: pane["n"] for pane in driver.committed_panes()}
        assert last == {a: 1, b: 2}
        assert [w.key["k"] for w in driver.windows()] == [a, b]


def test_categories_inside_a_column_are_decoded() -> None:
    kind = pa.struct([("c", pa.dictionary(pa.int32(), pa.string()))])
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"last": wr.last("v"), "all": wr.collect_list("v")},
        retention="1 hour",
    )
    with TestDriver(definition) as driver:
        driver.op.add_messages(pa.table({"t": [1, 2], "v": pa.array([{"c": "a"}, {"c": "b"}], kind)}))
        driver.next_offsets()
        driver.restart()
        driver.drain()
        [pane] = driver.committed_panes()
        assert (pane["last"], pane["all"]) == ({"c": "b"}, [{"c": "a"}, {"c": "b"}])
