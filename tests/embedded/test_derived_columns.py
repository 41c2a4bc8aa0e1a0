"""Keys and event time by expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError, UnknownColumn
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def visits(**more: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": {"name": pc.utf8_lower(wr.col("name")), "city": "place", "kind": "kind"},
        "event_time": wr.col("ms") * 1000,
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "names": wr.collect_set("name")},
        "retention": "1 minute",
    }
    return wr.Aggregate(**options | more)


def row(ms: int | None, name: str | None, place: str = "Rome", kind: int = 1) -> dict[str, Any]:
    return {"ms": ms, "name": name, "place": place, "kind": kind}


@pytest.mark.parametrize("as_table", [False, True])
def test_keys_and_time_are_what_expressions_make_of_a_message(tmp_path: Path, as_table: bool) -> None:
    rows = [
        row(1_000, "Ann"),
        row(2_000, "ANN"),
        row(3_000, "bob", "Oslo"),
        row(None, "ann"),
        row(9_000, None),
    ]
    with visits().open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages(pa.Table.from_pylist(rows) if as_table else rows)
        op.drain()
        assert sorted((str(p.key), p["n"], p["names"]) for p in op.get_result()) == [
            ("{'name': 'ann', 'city': 'Rome', 'kind': 1}", 2, ["ann"]),
            ("{'name': 'bob', 'city': 'Oslo', 'kind': 1}", 1, ["bob"]),
            ("{'name': None, 'city': 'Rome', 'kind': 1}", 1, []),
        ]
        assert [letter.reason for letter in op.dead_letters()] == ["malformed"]


@pytest.mark.parametrize("window", [wr.tumbling("10 seconds"), wr.tuples(2)])
def test_the_oracle_says_the_same_also_after_a_crash_and_where_an_expression_raises(
    tmp_path: Path, window: Any
) -> None:
    definition = visits(
        by={"share": wr.lit(12) / wr.col("kind")},
        agg={"n": wr.count(), "middle": wr.median("kind")},
        window=window,
        retention=wr.forever,
        where=wr.col("share") < 12,
    )
    with TestDriver(definition, tmp_path) as driver:
        rows = [row(t * 1000, "a", kind=t % 4) for t in (1, 2, 3, 4, 5, 11, 6, 30, 2)]
        messages = [wr.Message(r, wr.Position("s", 0, i)) for i, r in enumerate(rows)]
        driver.feed(messages[:4])
        driver.next_offsets()
        driver.feed(messages[4:6])
        driver.crash()
        driver.restart()
        driver.feed(messages[4:])
        driver.drain()
        assert {letter.reason for letter in driver.check(dead_letters=True).dead_letters} >= {"malformed"}


def test_what_is_made_is_part_of_the_fingerprint_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    assert visits().fingerprint != visits(event_time="ms").fingerprint
    assert "event_time=multiply_checked(ms, 1000)" in repr(visits()) and "'city': place" in repr(visits())
    with pytest.raises(ConfigurationError, match="'event_time'"):
        visits(by={"event_time": pc.utf8_lower(wr.col("name"))})
    with pytest.raises(ConfigurationError, match="by="):
        visits(by={"name": 3})
    with visits().open(str(tmp_path)) as op, pytest.raises(UnknownColumn, match="place"):
        op.add_messages([{"ms": 1, "name": "a", "kind": 1}])
    first = wr.Aggregate(
        name="first", by="k", event_time="t", window=wr.tumbling("1 s"), agg={"n": wr.count()}, retention="1 m",
        emit=wr.Emit.append(),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="by expressions: make these columns"):
        first.then(visits(by={"k": pc.utf8_lower(wr.col("k"))}, event_time="window_time"))
