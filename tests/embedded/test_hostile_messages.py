"""Messages as programs hand them in when nobody looks: one dict for all, values that hold themselves, null positions."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "total": wr.sum("v")},
    retention="1 day",
)
BOTH = wr.Join(
    left=wr.Input("orders", event_time="t"),
    right=wr.Input("shipments", event_time="t"),
    on="k",
    within=("0 seconds", "1 second"),
    retention="1 day",
)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def found(op: Any) -> list[tuple[Any, ...]]:
    return [(w.key["k"], w.messages, w.values["total"]) for w in op.get_windows()]


@pytest.mark.parametrize("wrapped", [False, True], ids=["dict", "Message"])
def test_one_dict_may_be_filled_anew_for_each_message(location: str, wrapped: bool) -> None:
    row: dict[str, Any] = {}

    def each() -> Any:
        for i in range(4):
            row.update(t=i * SECOND, k="ab"[i % 2], v=i)
            yield wr.Message(row, wr.Position("s", 0, i)) if wrapped else row

    for name, feed in (("/one", None), ("/many", each)):
        with COUNTS.open(location + name, clock=ManualClock()) as op:
            if feed is not None:
                op.add_messages(feed())
            for message in each() if feed is None else ():
                op.add_message(message)
            assert found(op) == [("a", 2, 2), ("b", 2, 4)]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Unshown:
    """Object that raises on every access."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise RuntimeError("no")


def itself(kind: type) -> Any:
    value = kind()
    for i in range(2):
        value.update({i: value}) if kind is dict else value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [itself(dict), itself(list), nested(100_000), Unshown()], ids=["dict", "list", "deep", "unshown"]
)
@pytest.mark.parametrize("column", ["t", "k", "v", "x"])
def test_a_value_that_arrow_cannot_hold_costs_no_more_than_its_message(
    location: str, value: Any, column: str
) -> None:
    good = {"t": SECOND, "k": "a", "v": 1}
    with COUNTS.open(location, clock=ManualClock()) as op:
        for row in (good, {**good, column: value}, good):
            op.add_message(row)
        uncounted = column != "x"
        assert found(op) == [("a", 3 - uncounted, 3 - uncounted)]
        assert [(x.reason, x.position) for x in op.dead_letters()] == [
            ("malformed", wr.Position("", 0, 1))
        ] * uncounted


@pytest.mark.parametrize(
    "value",
    [{}, [{}], {"a": {}}, nested(32), nested(33), itself(dict), uuid.UUID(int=1)],
    ids=lambda v: f"{v!r:.10}",
)
def test_what_messages_hold_can_be_written_and_read_again(location: str, value: Any) -> None:
    """JSON's empty object is nothing that Parquet holds; deep lists it writes, and does not read."""
    lists = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 hour"),
        agg={"all": wr.collect_list("x")},
        retention="1 day",
    )
    row = {"t": SECOND, "k": "a", "x": value}
    for definition, inputs in ((BOTH, ("orders", "shipments")), (lists, (None,))):
        for life in range(2):
            with definition.open(f"{location}/{definition.name}", clock=ManualClock()) as op:  # type: ignore[attr-defined]
                for name in inputs:
                    op.add_message(row, *filter(None, [name]))
                op.get_result()
                if definition is BOTH:
                    assert len(op.get_messages(input="orders")) == life + 1
                    continue
                assert len(op.get_windows()) + len(op.dead_letters()) // (life + 1) == 1


def test_a_table_that_is_nested_too_deeply_is_refused(location: str) -> None:
    table = pa.table({"t": [SECOND], "k": ["a"], "x": [nested(33)]})
    with BOTH.open(location, clock=ManualClock()) as op:
        with pytest.raises(e.TypeClash, match="column 'x' of the input has more than 32 lists"):
            op.add_messages(table, "orders")
        op.add_messages(table.drop_columns(["x"]), "orders")
        assert len(op.get_messages(input="orders")) == 1


def test_days_and_the_times_of_numpy_are_times(location: str) -> None:
    times = [
        dt.date(2024, 1, 1),
        np.datetime64("2024-01-01T00:00:01"),
        dt.datetime(2024, 1, 1),
        np.datetime64("NaT"),
    ]
    by_zone = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="1 day",
        time_zone="UTC",
    )
    with by_zone.open(location, clock=ManualClock(2_000_000_000 * SECOND)) as op:
        op.add_messages([{"t": time, "k": "a"} for time in times])
        assert [w.messages for w in op.get_windows()] == [3]
        assert [x.detail for x in op.dead_letters()] == ["event time 't' is NaT"]


PLACED = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "total": wr.sum("v")},
    retention="1 day",
    positions=wr.positions("o", partition="p"),
)


def placed(offsets: list[Any], partitions: list[Any] | None = None) -> pa.Table:
    n = len(offsets)
    return pa.table(
        {"t": [SECOND] * n, "k": ["a"] * n, "v": [1] * n, "o": offsets, "p": partitions or [0] * n}
    )


@pytest.mark.parametrize(
    ("offsets", "partitions"),
    [
        ([3, None], None),
        ([3, -1], None),
        ([3, 2**63 - 1], None),
        ([3, 4], [0, None]),
        ([3.0, 4.5], None),
        (["x"] * 2, None),
    ],
)
def test_a_row_that_has_no_place_is_refused_with_its_table(
    location: str, offsets: list[Any], partitions: list[Any] | None
) -> None:
    with PLACED.open(location, clock=ManualClock()) as op:
        for _ in range(2):
            with pytest.raises(e.InputError, match=r"column '[op]' of positions"):
                op.add_messages(placed(offsets, partitions))
            op.add_messages(placed([0]))  # in the second round it is known where the partition stands
        assert found(op) == [("a", 1, 1)]
        with pytest.raises(e.InputError, match="position"):
            op.add_message(wr.Message({"t": 1, "k": "a", "v": 1}, wr.Position("s", 0, -5)))
        with pytest.raises(e.UnknownColumn, match="'o' of positions is not in the input"):
            op.add_messages(placed([1]).drop_columns(["o"]))


def test_the_second_row_of_a_position_is_a_replay_in_a_table_as_in_a_list(location: str) -> None:
    with PLACED.open(location, clock=ManualClock()) as op:
        op.add_messages(placed([1, 2, 1, 2, 2], [0, 0, 0, 1, 1]))
        op.add_messages(placed([2, 3, 3], [0, 1, 1]))
        assert found(op) == [("a", 4, 4)]
        assert op.counters == {"rows": 4, "replayed": 4}


def test_columns_of_one_name_are_refused_and_those_that_are_called_as_ours_passed_over(location: str) -> None:
    row = {"t": SECOND, "k": "a", "v": 1}
    twice = [pa.array([x]) for x in (SECOND, "a", 1, 2)]
    with COUNTS.open(location, clock=ManualClock()) as op:
        for many in (
            pa.Table.from_arrays(twice, names=["t", "k", "v", "v"]),
            pd.DataFrame([[SECOND, "a", 1, 2]], columns=["t", "k", "v", "v"]),
        ):
            with pytest.raises(e.DuplicateColumn, match="has column 'v' twice"):
                op.add_messages(many)
        op.add_messages(
            pa.table({n: [x] for n, x in {**row, "__offset": 9, "__malformed": "x", "__start": 1}.items()})
        )
        assert found(op) == [("a", 1, 1)] and op.next_offsets() == {("", 0): 1}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "'t' is null"),
        ("noon", "'t' is 'noon', no time"),
        ("2013-07-01 05:10", "'2013-07-01 05:10', without a time zone: declare time_zone='UTC'"),
        (1372655400.5, "1372655400.5, no time: .*event_time_unit"),
        (dt.datetime(2999, 1, 1, tzinfo=dt.UTC), "2999-01-01 00:00:00.*max_ahead='1 day'"),
        (-(2**62), "outside the years 1 to 9999"),
    ],
)
def test_an_event_time_of_a_table_that_is_none_is_reported_with_what_to_do(
    value: Any, says: str, tmp_path: Path
) -> None:
    counts = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
    )
    with counts.open(str(tmp_path)) as op:
        op.add_messages(pa.table({"t": [value]}))
        op.next_offsets()
        [letter] = op.dead_letters()
        assert letter.reason == "malformed" and re.search(says, letter.detail)


def test_an_event_time_that_is_none_in_another_type_than_before_is_not_reported_as_null(
    tmp_path: Path,
) -> None:
    counts = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, retention="1 day"
    )
    with counts.open(str(tmp_path)) as op:
        op.add_messages(pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))}))
        op.add_messages(pa.table({"t": ["noon", "1970-01-01T00:00:01Z"]}))
        op.next_offsets()
        [letter] = op.dead_letters()
        assert letter.detail == "event time 't' is 'noon', no time"
