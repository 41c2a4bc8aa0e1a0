"""Keys whose column widens are the keys that they were, in whatever page they lie."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.testing import TestDriver

S = 1_000_000
#: Six digits after the point, where there were three, and nine.
WIDER = (Decimal("0.000001"), Decimal("0.000000002"))


def prices(n: int) -> list[Decimal]:
    """Arrow rounds many of these texts to other doubles if they have more digits after the point."""
    chance = Random(2)
    return [Decimal(chance.randrange(10**6, 10**9)).scaleb(-3) for _ in range(n)]


def counted(**options: Any) -> wr.Aggregate:
    arguments: dict[str, Any] = {
        "by": "price",
        "event_time": "t",
        "window": wr.tumbling("1 hour"),
        "agg": {"n": wr.count()},
        "retention": "1 hour",
        "watermark": wr.explicit(),
        "emit": wr.Emit(early=wr.every_batch),
        **options,
    }
    return wr.Aggregate(**arguments)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"window": wr.session("1 hour")},
    {"window": wr.session("1 hour", max_length="3 hours"), "agg": {"n": wr.count(), "m": wr.median("t2")}},
    {"emit": wr.Emit(early=wr.delay("1 second"))},
    {"window": wr.session("1 hour"), "emit": wr.Emit(early=wr.delay("1 second"))},
    {"retention": wr.Retain("1 hour", windows=3, per="key")},
]
#: Of each, by many messages at once and by single ones.
OPENED = list(product(OPTIONS, (False, True)))
EVERY_OTHER = [one for n, one in enumerate(OPENED) if n % 4 in (1, 2)]


@pytest.mark.parametrize(("options", "single"), usually(EVERY_OTHER, deep=OPENED))
def test_decimals_as_keys_are_found_when_they_have_more_digits(options: dict[str, Any], single: bool) -> None:
    keys = prices(150)
    with TestDriver(counted(**options)) as driver:

        def feed(batch: list[Any], at: int, single: bool = single) -> None:
            rows = [{"price": key, "p": key, "t": at * S, "t2": at} for key in batch]
            if single:
                for row in rows:
                    driver.add(row)
            else:
                driver.feed(rows)
            driver.advance_clock(2 * S)
            driver.timeout()
            driver.next_offsets()

        feed(keys, 1, single=False)
        for at, wider in enumerate(WIDER, 2):
            feed(keys[:3], at)  # in pages
            feed([wider], at)
            feed(keys[3:40], at)
        driver.drain()
        last = [pane for pane in driver.panes() if pane.is_last]
        assert sorted(pane["n"] for pane in last) == [1] * 112 + [3] * 40
        driver.check(dead_letters=True)


def test_nothing_is_lost_of_decimals_as_keys_that_become_floats() -> None:
    keys = prices(150)
    with TestDriver(counted()) as driver:
        for batch in (keys, keys[:3], [WIDER[0]], keys[3:40], [0.5], keys[:40], keys):
            driver.feed([{"price": key, "t": S} for key in batch])
            driver.next_offsets()
        driver.drain()
        last = [pane for pane in driver.panes() if pane.is_last]
        assert sum(pane["n"] for pane in last) == 150 + 3 + 1 + 37 + 1 + 40 + 150


@pytest.mark.parametrize("function", [wr.count().over(), wr.sum("v").over(wr.rows_between(-2, 0))])
def test_rows_around_messages_go_on_where_the_keys_have_more_digits(function: Any) -> None:
    running = wr.Over(
        by="price", event_time="t", agg={"x": function}, watermark=wr.explicit(), ttl=wr.forever
    )
    keys = prices(150)
    with TestDriver(running) as driver:
        for at, batch in enumerate((keys, keys[:3], [WIDER[0]], keys[3:40], [WIDER[1]], keys[:40], keys), 1):
            driver.feed([{"price": key, "t": at * S, "v": at} for key in batch])
            driver.advance_event_time(at * S + 1)
            driver.next_offsets()
        driver.drain()
        driver.check(dead_letters=True)


@pytest.mark.parametrize("window", [wr.tumbling("1 hour"), wr.session("1 hour")])
@pytest.mark.parametrize("wide", [pa.binary(), pa.large_binary()])
def test_binaries_of_one_size_as_keys_are_found_when_others_come(
    window: Any, wide: pa.DataType, tmp_path: Path
) -> None:
    keys, narrow = [i.to_bytes(4, "big") for i in range(150)], pa.binary(4)
    steps = [(keys, narrow), (keys[:3], narrow), ([b"longer"], wide), (keys[3:40], narrow), (keys, wide)]
    with counted(window=window).open(tmp_path / "job") as op:
        for batch, kind in steps:
            times = pa.array([S] * len(batch), pa.timestamp("us", "UTC"))
            op.add_messages(pa.table({"price": pa.array(batch, kind), "t": times}))
            op.flush()
        op.drain()
        last = [pane for pane in op.get_result() if pane.is_last]
    assert sorted(pane["n"] for pane in last) == [1] + [2] * 110 + [3] * 40


def test_rows_around_messages_go_on_where_binaries_of_one_size_become_others(tmp_path: Path) -> None:
    running = wr.Over(
        by="k", event_time="t", agg={"n": wr.count().over()}, watermark=wr.explicit(), ttl=wr.forever
    )
    keys, narrow = [i.to_bytes(4, "big") for i in range(150)], pa.binary(4)
    parts, counts = (keys, keys[:3], [b"longer"], keys[3:40], keys[:40], keys), Counter[bytes]()
    with running.open(tmp_path / "job") as op:
        for at, batch in enumerate(parts, 1):
            times = pa.array([at * S] * len(batch), pa.timestamp("us", "UTC"))
            kind = pa.binary() if b"longer" in batch else narrow
            op.add_messages(pa.table({"k": pa.array(batch, kind), "t": times}))
            op.advance_watermark(at * S + 1)
            counts.update(batch)
            assert {row["k"]: row["n"] for row in op.get_result()} == {key: counts[key] for key in batch}
            op.flush()


@pytest.mark.parametrize(
    ("derived", "keys"),
    [
        (wr.col("price") * Decimal("2"), {"2.2": 2, "5": 2, "5.0002": 1}),
        (wr.col("price") + Decimal("0.5"), {"1.6": 2, "3": 2, "3.0001": 1}),
        # Arrow divides to more digits where there are more: then one value is another.
        (wr.col("price") / Decimal("3"), {"0.3666": 1, "0.366666": 1, "0.8333": 1, "0.833333": 1, "0.833366": 1}),
    ],
    ids=repr,
)  # fmt: skip
def test_keys_that_are_made_of_decimals_are_those_of_the_digits_that_are_known(
    derived: Any, keys: dict[str, int]
) -> None:
    with TestDriver(counted(by={"price": derived}, emit=wr.Emit())) as driver:
        for batch in (["1.10", "2.50"], ["1.1000", "2.5001", "2.5"]):
            driver.feed([{"t": 0, "price": Decimal(price)} for price in batch])
            driver.next_offsets()
            driver.restart()
        driver.drain()
        panes = driver.check(dead_letters=True).panes
        assert {Decimal(key): n for key, n in keys.items()} == {p.key["price"]: p["n"] for p in panes}
