"""Joins that keep no more than a number of messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import windrow as wr
from windrow.operators.join import count_retention
from windrow.testing import TestDriver

S = 1_000_000


def join(messages: int, per: str = "key", time: Any = "1 hour", **options: Any) -> wr.Join:
    made: dict[str, Any] = {
        "left": wr.Input("orders", event_time="t", watermark=wr.explicit()),
        "right": wr.Input("payments", event_time="t", watermark=wr.explicit()),
        "on": "k",
        "retention": wr.Retain(time, messages=messages, per=per),
    }
    return wr.Join(**(made | options))


def order(t: int, k: str = "a") -> dict[str, Any]:
    return {"t": t * S, "k": k, "order": t}


def payment(t: int, k: str = "a") -> dict[str, Any]:
    return {"t": t * S, "k": k, "paid": t}


def pairs(driver: TestDriver) -> list[tuple[Any, Any, str]]:
    return [(row["order"], row.values.get("paid"), row.timing.value) for row in driver.panes()]


@pytest.mark.parametrize(("per", "kept"), [("key", [3, 4, 7]), ("job", [4, 7])])
def test_the_oldest_messages_beyond_the_number_go_unmatched_ones_with_their_row(
    per: str, kept: list[int]
) -> None:
    with TestDriver(join(2, per, how="left")) as driver:
        driver.feed([order(1), order(4), order(3), order(7, "b")], "orders")
        driver.timeout()
        gone = [1] if per == "key" else [1, 3]
        assert pairs(driver) == [(t, None, "ON_TIME") for t in gone]
        assert sorted(m.payload["order"] for m in driver.messages("orders")) == kept
        driver.feed([payment(5), payment(2)], "payments")
        assert sorted(pairs(driver)) == [(t, p, "EARLY") for t in kept if t != 7 for p in (2, 5)]
        driver.feed([order(0, "a"), order(2, "b")], "orders")
        letters = [(letter.reason, letter.event_time_us // S) for letter in driver.op.dead_letters()]
        assert letters == [("out_of_retention", t) for t in ((0,) if per == "key" else (0, 2))]
        driver.check(dead_letters=True)
        driver.lose_messages()
        driver.check(dead_letters=True)
        driver.drain()
        driver.assert_state_zero()


def test_a_key_at_its_limit_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with TestDriver(join(2)) as driver:
        driver.feed([order(t) for t in range(4)], "orders")
        driver.timeout()
        with monkeypatch.context() as patched:
            patched.setattr(count_retention, "_FEW", 0)
            usual, looked = count_retention.Sizes._lying, list[Any]()
            patched.setattr(
                count_retention.Sizes,
                "_lying",
                lambda *arguments: looked.append(arguments[3]) or usual(*arguments),
            )
            driver.feed([order(4)], "orders")
            driver.timeout()
        assert looked and not any(looked)
        assert [m.payload["order"] for m in driver.messages("orders")] == [3, 4]
        driver.advance_event_time(3600 * S + 4 * S)  # one has gone by time
        driver.feed([order(5), order(6)], "orders")
        driver.timeout()
        driver.check(dead_letters=True)
        assert [m.payload["order"] for m in driver.messages("orders")] == [5, 6]


def test_messages_that_have_gone_by_time_are_not_counted_though_they_lie_there() -> None:
    with TestDriver(join(2)) as driver:
        driver.feed([order(3), order(3500)], "orders")
        driver.timeout()
        driver.advance_event_time(7204 * S)  # less lateness and reach: what is before 4 has gone
        driver.timeout()
        driver.feed([order(4000)], "orders")
        driver.timeout()
        driver.timeout()
        assert [m.payload["order"] for m in driver.messages("orders")] == [3500, 4000]
        driver.check(dead_letters=True)


def test_a_number_bounds_a_join_whose_windows_do_not() -> None:
    with TestDriver(join(1, time=None, how="asof", within=("-1 day", "0 seconds"))) as driver:
        driver.feed([payment(1), payment(2)], "payments")
        driver.feed([order(5), order(6)], "orders")
        driver.timeout()
        assert pairs(driver) == [(5, 2, "ON_TIME")]
        driver.drain()
        assert pairs(driver) == [(6, 2, "ON_TIME")]
        driver.check(dead_letters=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retention": wr.Retain("1 hour", windows=3)}, "windows=3"),
        ({"left": wr.Input("orders", event_time="t", window=wr.rows(3), watermark=wr.explicit())}, "rows"),
        ({"left": wr.Input("payments", event_time="t", watermark=wr.explicit())}, "with itself"),
    ],
)
def test_what_is_kept_by_something_else_is_not_kept_by_number(options: dict[str, Any], says: str) -> None:
    with pytest.raises(wr.ConfigurationError, match=says):
        join(2, **options)


def test_how_many_are_kept_is_part_of_the_definition_only_where_it_is_said() -> None:
    plain = join(2, retention="1 hour")
    assert plain.describe()["sizes"] is None
    assert join(2).fingerprint == join(3).fingerprint != plain.fingerprint
    assert join(2).fingerprint != join(2, "job").fingerprint


@pytest.mark.parametrize(("few", "read"), [(64, 1 << 16), (1, 7), (0, 1)])
def test_keys_are_limited_alike_however_many_are_looked_at_at_once(
    few: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_retention, "_FEW", few)
    monkeypatch.setattr(count_retention, "_READ", read)
    near = {"within": ("-5 seconds", "5 seconds"), "time": "20 seconds", "how": "left"}
    with TestDriver(join(2, **near)) as driver:
        for t in range(30, 90, 3):
            driver.feed([order(t - i % 4, f"k{i * t % 5}") for i in range(12)], "orders")
            driver.feed([payment(t - i % 3, f"k{i % 5}") for i in range(t % 7)], "payments")
            driver.advance_event_time((t - 6) * S)
            driver.timeout()
            kept = Counter(m.payload["k"] for m in driver.messages("orders"))
            assert set(kept.values()) <= {1, 2}
        driver.check(dead_letters=True)
        driver.lose_messages()
        driver.drain()
        driver.assert_state_zero()
