"""When panes say the same, and what a consumer of them holds."""

import math
from dataclasses import replace
from typing import Any

import pytest

from windrow.core.messages import Kind, Pane, Timing, Token, Window
from windrow.testing.ledger import (
    LedgerBroken,
    all_panes_equal,
    ledger,
    ledger_key,
    panes_equal,
    values_equal,
)

WINDOW = Window(0, 10)
NAN = float("nan")


def pane(value: Any, index: int = 0, *, kind: Kind = Kind.INSERT, last: bool = False, k: Any = "a") -> Pane:
    return Pane(WINDOW, {"k": k}, {"v": value}, Timing.EARLY, index, last, kind)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        (1e20, 1e20 * (1 + 1e-12), True),
        (0.0, 1e-13, True),
        (0.0, 1e-6, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (NAN, None, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (3, 3.0, True),
        (3, 3.1, False),
        (2**63, 2**63 + 1, False),
        (True, 1, False),
        (None, 0, False),
        ("a", "a", True),
        ([1.0, NAN], [1.0, NAN], True),
        ([1], [1, 2], False),
        ({"x": 1.0}, {"x": 1.0 + 1e-13}, True),
        ({"x": 1}, {"y": 1}, False),
    ],
)
def test_values_are_equal_up_to_rounding(a: Any, b: Any, equal: bool) -> None:
    assert values_equal(a, b) is equal
    assert values_equal(b, a) is equal


@pytest.mark.parametrize(
    "change",
    [
        {"window": Window(0, 11)},
        {"key": {"k": "b"}},
        {"values": {"v": 2}},
        {"timing": Timing.LATE},
        {"index": 1},
        {"is_last": True},
        {"kind": Kind.RETRACT},
    ],
)
def test_panes_differ_in_each_field(change: dict[str, Any]) -> None:
    assert not panes_equal(pane(1), replace(pane(1), **change))


def test_panes_of_different_commits_say_the_same() -> None:
    assert panes_equal(pane(NAN), replace(pane(NAN), commit=7, token=Token("job", 7)))


def test_runs_are_equal_pane_by_pane() -> None:
    assert all_panes_equal([pane(1), pane(2, 1)], [pane(1), pane(2, 1)])
    assert not all_panes_equal([pane(1), pane(2, 1)], [pane(1)])
    assert not all_panes_equal([pane(1), pane(2, 1)], [pane(2, 1), pane(1)])


def test_the_ledger_holds_the_current_pane_of_each_key_and_window() -> None:
    panes = [pane(1), pane(5, k="b"), pane(2, 1), pane(2, 1, kind=Kind.RETRACT), pane(3, 2, last=True)]
    assert ledger(panes) == {
        ledger_key({"k": "a"}, WINDOW): {"v": 3},
        ledger_key({"k": "b"}, WINDOW): {"v": 5},
    }


def test_a_retraction_without_what_replaces_it_leaves_nothing() -> None:
    assert ledger([pane(1), pane(1, kind=Kind.RETRACT)], retracting=True) == {}


@pytest.mark.parametrize(
    ("panes", "reason"),
    [
        ([pane(1, kind=Kind.RETRACT)], "takes back what is not there"),
        ([pane(1), pane(2, kind=Kind.RETRACT)], "takes back what is not there"),
        ([pane(1), pane(1, 1, kind=Kind.RETRACT)], "takes back what is not there"),
        ([pane(1), pane(2, 1)], "is current"),
        ([pane(1, 1)], "should have index 0"),
        ([pane(1), pane(1, kind=Kind.RETRACT), pane(2)], "should have index 1"),
        ([pane(1, last=True), pane(1, kind=Kind.RETRACT)], "after a pane marked as the last"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_broken(panes: list[Pane], reason: str) -> None:
    with pytest.raises(LedgerBroken, match=reason):
        ledger(panes, retracting=True)


def test_odd_keys_can_be_looked_up() -> None:
    assert ledger_key({"k": NAN}, WINDOW) == ledger_key({"k": float("nan")}, WINDOW)
    assert repr(ledger_key({"k": -0.0}, WINDOW)) == repr(ledger_key({"k": 0.0}, WINDOW))
