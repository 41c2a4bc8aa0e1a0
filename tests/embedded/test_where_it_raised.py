"""A dead letter of an expression says which one raised, as the definition writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.testing import ManualClock, TestDriver

S = 1_000_000
SIXTH = wr.lit(6) / wr.col("v")


def aggregate(**more: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count()},
        "retention": "1 hour",
    }
    return wr.Aggregate(**options | more)


def over(**more: Any) -> wr.Over:
    return wr.Over(
        by="k", event_time="t", frame=wr.rows_between(-3, 0), ttl="1 hour",
        **{"agg": {"n": wr.count()}} | more,
    )  # fmt: skip


def joined(**more: Any) -> wr.Join:
    left, right = wr.Input("l", event_time="t"), wr.Input("r", event_time="t")
    return wr.Join(
        left=left, right=right, on="k", within=("-1 minute", "1 minute"), retention="1 hour", **more
    )


def unlike(left: pa.Table, right: pa.Table) -> Any:
    return [6 // (a - b) > 0 for a, b in zip(left["v"].to_pylist(), right["v"].to_pylist(), strict=True)]


CASES: dict[str, tuple[Any, str]] = {
    "a key": (aggregate(by={"k": "k", "share": SIXTH}), "share=divide_checked(6, v)"),
    "event time": (aggregate(event_time=wr.col("t") + SIXTH), "event_time=add_checked(t, divide_checked(6, v))"),
    "a filter": (aggregate(where=SIXTH > 1), "where=(divide_checked(6, v) > 1)"),
    "an argument": (
        aggregate(agg={"n": wr.count(), "mean": wr.avg(SIXTH)}),
        "mean=wr.avg(divide_checked(6, v))",
    ),
    "a median": (aggregate(agg={"mid": wr.median(SIXTH)}), "mid=wr.median(divide_checked(6, v))"),
    "a condition": (
        aggregate(agg={"n": wr.count(), "some": wr.count().where(SIXTH > 1)}),
        "some=wr.count().where((divide_checked(6, v) > 1))",
    ),
    "a gap": (aggregate(window=wr.session((SIXTH * S).cast("int64"))), "gap="),
    "over": (over(agg={"mean": wr.avg(SIXTH)}), "mean=wr.avg(divide_checked(6, v))"),
    "over, a filter": (over(where=SIXTH > 1), "where=(divide_checked(6, v) > 1)"),
    "deduplicated": (
        wr.Deduplicate(by="k", event_time="t", within="1 hour", where=SIXTH > 1),
        "where=(divide_checked(6, v) > 1)",
    ),
    "delivery": (
        aggregate(deliver=wr.deliver.newest(1).guarantee(SIXTH > 1)),
        "guarantee=(divide_checked(6, v) > 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_letter_of_a_message_names_the_expression_that_raised_on_it(tmp_path: Path, case: str) -> None:
    definition, place = CASES[case]
    with TestDriver(definition, tmp_path) as driver:
        rows = [{"t": i * S, "k": "a", "v": v} for i, v in enumerate([1, 0, 2])]
        driver.feed([wr.Message(row, wr.Position("s", 0, i)) for i, row in enumerate(rows)])
        driver.drain()
        driver.check(dead_letters=True)
        [letter] = driver.dead_letters()
    assert letter.reason == "malformed" and letter.position == wr.Position("s", 0, 1)
    assert letter.detail.startswith(f"ArrowInvalid: divide by zero, in {place}")


@pytest.mark.parametrize(
    ("where", "detail"),
    [
        (
            wr.lit(6) / (wr.col("l_v") - wr.col("r_v")) > 0,
            "ArrowInvalid: divide by zero, in where=(divide_checked(6, subtract_checked(l_v, r_v)) > 0)",
        ),
        (wr.pairs(unlike, name="unlike"), "ZeroDivisionError: integer division or modulo by zero, in where=unlike"),
    ],
)  # fmt: skip
def test_the_letter_of_a_pair_names_the_condition(tmp_path: Path, where: Any, detail: str) -> None:
    with joined(where=where).open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_messages({"l": [{"t": 0, "k": "a", "v": 1}], "r": [{"t": 0, "k": "a", "v": 1}]})
        op.flush()
        assert [letter.detail for letter in op.dead_letters()] == [detail]
