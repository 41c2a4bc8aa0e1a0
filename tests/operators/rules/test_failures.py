"""Code that raises inside a step of rules: the user's makes a dead letter, windrow's own fails the step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.testing import TestDriver

TEN = wr.after("x", 0, "10 seconds")


def at(seconds: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def rules(other: Any) -> Any:
    """A rule of an event and a second pattern over the inputs a and b."""
    inputs = [wr.Input(name, event_time="t", max_ahead=wr.forever) for name in "ab"]
    return wr.Rules(by="k", inputs=inputs, rules={"r": wr.Rule(when={"x": wr.event("a"), "n": other})})


@pytest.mark.parametrize("error", [TypeError("bug"), ValueError("bug"), pa.ArrowInvalid("bug")])
@pytest.mark.parametrize("at_fault", ["chains.partners", "matches.messages_of", "subpatterns.reach"])
def test_an_error_of_windrow_fails_the_step_and_blames_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, at_fault: str
) -> None:
    other = wr.absent("b") if at_fault == "subpatterns.reach" else wr.event("b", time=TEN)

    def raises(*_: Any) -> None:
        raise error

    definition = wr.Rules(
        by="k",
        inputs=[wr.Input(n, event_time="t", expires="1 minute") for n in "ab"],
        rules={"r": wr.Rule(when={"x": wr.event("a"), "n": other})},
    )
    with definition.open(tmp_path / "job") as operator:
        operator.add_message({"k": 1, "t": at(0)}, "b" if "subpatterns" in at_fault else "a")
        operator.next_offsets()
        with monkeypatch.context() as patched:
            patched.setattr(f"windrow.operators.rules.{at_fault}", raises)
            with pytest.raises(RuntimeError, match=r"bug.*No message is to blame, it is a fault of windrow"):
                operator.add_message({"k": 1, "t": at(1)}, "a" if "subpatterns" in at_fault else "b")
                operator.next_offsets()


def test_a_message_that_an_aggregation_cannot_take_is_a_dead_letter_of_its_rule() -> None:
    """It is judged as it comes: at the deadline no message could be blamed."""
    six = wr.accumulate("b", agg={"s": wr.sum(wr.lit(6) / wr.col("v"))}, time=TEN)
    with TestDriver(rules(six)) as driver:
        driver.add({"k": 1, "t": at(0)}, "a")
        for v in (2, 0, 3):
            driver.add({"k": 1, "t": at(1), "v": v}, "b")
        driver.drain()
        assert [row.values["n_s"] for row in driver.committed_panes()] == [5]
        [letter] = driver.dead_letters()
        driver.check(dead_letters=True)
    assert (letter.reason, letter.input) == ("rule_failed", "b")
    assert letter.position is not None and letter.position.offset == 1
    assert "rule 'r', n: ArrowInvalid: divide by zero" in letter.detail


def test_a_row_that_may_or_may_not_be_deleted_is_malformed() -> None:
    definition = wr.Rules(
        by="k",
        inputs=[wr.Input("a", event_time="t"), wr.Table("f", key="id", deleted="gone")],
        rules={"r": wr.Rule(when={"x": wr.event("a"), "n": wr.fact("f")}, then={"id": wr.col("n.id")})},
    )
    with TestDriver(definition) as driver:
        for id, gone in enumerate(["maybe", "true", "false", None]):
            driver.add({"k": 1, "id": id, "gone": gone}, "f")
        driver.add({"k": 1, "t": at(0)}, "a")
        driver.drain()
        assert sorted(row.values["id"] for row in driver.committed_panes()) == [2, 3]
        [letter] = driver.dead_letters()
    assert (letter.reason, letter.detail) == ("malformed", "'gone' is neither true nor false")


def test_a_message_whose_type_clashes_with_the_rows_of_another_rule_is_malformed() -> None:
    inputs = [wr.Input(name, event_time="t", max_ahead=wr.forever) for name in "ab"]
    one = {name: wr.Rule(when={"x": wr.event(name)}, then={"v": wr.col("x.v")}) for name in "ab"}
    with TestDriver(wr.Rules(by="k", inputs=inputs, rules=one)) as driver:
        driver.add({"k": 1, "t": at(0), "v": 1}, "a")
        for v in ("text", 2):
            driver.add({"k": 1, "t": at(1), "v": v}, "b")
        driver.drain()
        [dead] = driver.dead_letters()
        assert dead.reason == "malformed" and "column 'v' of rule 'b' is string, and int64" in dead.detail
        assert [row.values["v"] for row in driver.committed_panes()] == [1, 2]
