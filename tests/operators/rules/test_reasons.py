"""Rows of rules say why they are there, tuples that wait say until when, and messages say what keeps them from a match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import windrow as wr
from windrow.console.main import main
from windrow.core import errors as e

RULES = wr.Rules(
    by="id",
    inputs=[
        wr.Input("orders", event_time="at"),
        wr.Input("acks", event_time="at"),
        wr.Table("users", key="id"),
    ],
    rules={
        "pairs": wr.Rule(
            when={"bo": wr.event("orders"), "ae": wr.event("acks", time=wr.after("bo", 0, "10 seconds"))}
        ),
        "missed": wr.Rule(
            when={
                "bo": wr.event("orders", where=wr.col("n") > 0),
                "no": wr.absent("acks", time=wr.after("bo", 0, "10 seconds")),
                "user": wr.fact("users"),
            },
            then={"bo_at": wr.col("bo.at")},
        ),
        "known": wr.Rule(when={"bo": wr.event("orders"), "u": wr.fact("users", wait="1 minute")}, then={}),
    },
)


def at(second: int) -> str:
    return f"2013-07-01 05:00:{second:02}Z"


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rules")
    with RULES.open(str(folder)) as op:
        op.add_messages([{"id": i} for i in (7, 8, 9)], "users")
        op.add_message({"id": 7, "n": 1, "at": at(0)}, "orders")
        op.add_message({"id": 8, "n": 2, "at": at(1)}, "orders")
        op.add_message({"id": 7, "at": at(3)}, "acks")
        op.add_message({"id": 9, "n": 3, "at": at(5)}, "orders")
        op.add_message({"id": 9, "at": at(4)}, "acks")
        op.add_message({"id": 3, "n": 0, "at": at(12)}, "orders")
        op.add_message({"id": 3, "at": at(12)}, "acks")
    yield folder


def test_a_row_is_explained_with_its_distances_and_the_range_of_its_absence(location: Path) -> None:
    with wr.read_state(str(location), definition=RULES) as state:
        [pair] = state.explain(at(3))
        assert pair.reasons == (
            "bo  orders/0@0  2013-07-01 05:00Z",
            "ae  acks/0@0  2013-07-01 05:00:03Z  after bo: ae.start - bo.end is 3 seconds, allowed 0 seconds to 10 seconds",
        )
        assert {name: [p.offset for p in positions] for name, positions in pair.inputs.items()} == {
            "orders": [0],
            "acks": [0],
        }
        [missed] = state.explain(at(11))
        assert missed.reasons == (
            "bo  orders/0@1  2013-07-01 05:00:01Z",
            "no  acks in [2013-07-01 05:00:01Z, 2013-07-01 05:00:11Z]: 0 of 0 kept ones of the partition; "
            "decided once the watermark was past 2013-07-01 05:00:11Z",
            "user  users/0@1  a current row",
        )
        assert state.explain(at(11), key=7) == []


def test_tuples_that_wait_are_a_table(location: Path) -> None:
    with wr.read_state(str(location), definition=RULES) as state:
        rows = state.table("pending").to_pylist()
        assert [
            (row["id"], row["rule"], row["waits_for"], f"{row['deadline']:%H:%M:%S}") for row in rows
        ] == [
            (9, "missed", "deadline", "05:00:15"),
            (7, "known", "facts", "05:01:00"),
            (8, "known", "facts", "05:01:01"),
            (9, "known", "facts", "05:01:05"),
            (3, "known", "facts", "05:01:12"),
        ]
        assert state.table("pending", key=9).num_rows == 2
        assert state.table("pending", end=at(20)).num_rows == 1


def test_what_keeps_a_message_from_a_match_is_named(location: Path) -> None:
    with wr.read_state(str(location), definition=RULES) as state:
        assert state.why_not({"bo": 2})[:5] == [
            "pairs",
            "  ae: 3 messages of 'acks' are kept",
            "  ae: 3 left by its condition",
            "  ae: 1 left by the partition",
            "  ae: 0 left by wr.after('bo', 0, '10 seconds')",
        ]
        assert "  bo: its condition is not true: (n > 0)" in state.why_not({"bo": 3})
        assert "  ae: fits 0@2" in state.why_not({"bo": 3})
        assert state.why_not({"bo": 99})[1] == (
            "  bo: offset 99 of 'orders' is not kept, and no match of it waits: it is decided, or has not come"
        )
        with pytest.raises(e.ConfigurationError, match="order=17"):
            state.why_not({"order": 17})


def test_a_match_that_waits_says_until_when_and_what_suppresses_it(tmp_path: Path) -> None:
    absent = wr.Rule(
        when={"order": wr.event("orders"), "no": wr.absent("acks", time=wr.after("order", 0, "2 days"))},
        then={"since": wr.col("order.t")},
    )
    inputs = [wr.Input("orders", event_time="t"), wr.Input("acks", event_time="t")]
    with wr.Rules(by="id", inputs=inputs, rules={"missed": absent}).open(str(tmp_path)) as op:
        for offset in (0, 1):
            op.add_message(wr.Message({"id": offset, "t": at(offset)}, wr.Position("o", 0, offset)), "orders")
        op.add_message(wr.Message({"id": 1, "t": at(3)}, wr.Position("a", 0, 7)), "acks")
    with wr.read_state(str(tmp_path)) as state:
        open_, suppressed = state.why_not({"order": 0}), state.why_not({"order": 1})
        assert open_[1] == "  waits for its deadline: decided once the watermark is past 2013-07-03 05:00Z"
        assert open_[-1] == "  no: 0 left by the partition"
        assert suppressed[-1] == "  no: suppressed by 0@7"
        with pytest.raises(e.ConfigurationError, match="an absence has no message"):
            state.why_not({"no": 7})


def test_the_command_line_explains(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(location), "2013-07-01 05:00:03"]) == 0
    assert "ae.start - bo.end is 3 seconds" in capsys.readouterr().out
    assert main(["explain", str(location), "--json", "2013-07-01 05:00:03"]) == 0
    assert '"reasons": ["bo  orders/0@0' in capsys.readouterr().out
    assert main(["explain", str(location), "bo=2", "--why-not"]) == 0
    assert "0 left by wr.after('bo', 0, '10 seconds')" in capsys.readouterr().out
    assert main(["table", str(location), "pending"]) == 0
    assert "waits_for" in capsys.readouterr().out
    assert main(["explain", str(location), "bo", "--why-not"]) == 1
    assert "PATTERN=OFFSET" in capsys.readouterr().err


def test_other_operators_have_no_rules_to_ask(tmp_path: Path) -> None:
    counts = wr.Aggregate(
        event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()}
    )
    with counts.open(str(tmp_path)) as op:
        op.add_message({"t": at(0)})
    with wr.read_state(str(tmp_path)) as state, pytest.raises(e.ConfigurationError, match="no rules"):
        state.why_not({"a": 1})


def test_definitions_of_rules_are_built_from_a_log(location: Path) -> None:
    with wr.read_state(str(location)) as state:
        assert state.table("pending").num_rows == 5
