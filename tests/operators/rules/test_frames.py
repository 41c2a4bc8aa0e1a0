"""Aggregations of the last messages: a row at each message, and as messages leave, where the result changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import windrow as wr
from tests.deep import usually
from tests.operators.rules.feeding import emitted, second
from windrow.core import errors as e

MEAN = {"mean": wr.avg("x"), "n": wr.count()}


def averages(frame: Any, *facts: str, **options: Any) -> wr.Rules:
    when = {name: wr.fact(name) for name in facts}
    return wr.Rules(
        by="s",
        inputs=[wr.Input("r", event_time="t"), *(wr.Table(name, key="id", by=()) for name in facts)],
        rules={"mean": wr.Rule(when={**when, "r": wr.accumulate("r", frame=frame, agg=MEAN, **options)})},
    )


def readings(*values: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"s": 1, "t": second(t), "x": x, "k": "X" if x == 100 else "R"} for t, x in values]


def means(rules: wr.Rules, messages: Sequence[dict[str, Any]], *before: Any) -> list[tuple[float, Any, int]]:
    rows = emitted(rules, [*before, *({"r": [m]} for m in messages)], "r", "t")
    return [(row["match_time"].timestamp(), row["r_mean"], row["r_n"]) for row in rows]


def test_a_message_is_out_of_a_frame_of_time_at_its_age() -> None:
    rules = averages(wr.range_between("-10 seconds", 0, closed="right"))
    assert means(rules, readings((0, 4), (5, 8))) == [(0, 4, 1), (5, 6, 2), (10, 8, 1), (15, None, 0)]


def test_a_frame_that_is_closed_on_both_sides_has_it_a_moment_longer() -> None:
    emitted = means(averages("10 seconds"), readings((0, 4), (5, 8)))
    assert emitted == [(0, 4, 1), (5, 6, 2), (10.000001, 8, 1), (15.000001, None, 0)]


def test_a_frame_of_messages_counts_those_that_pass() -> None:
    rules = averages(2, where=wr.col("k") == "R")
    assert means(rules, readings((0, 4), (1, 100), (2, 100), (3, 8), (4, 12))) == [
        (0, 4, 1),
        (3, 6, 2),
        (4, 10, 2),
    ]


def test_a_result_that_stays_is_not_emitted_again() -> None:
    rules = wr.Rules(
        by="s",
        inputs=[wr.Input("r", event_time="t")],
        rules={"m": wr.Rule(when={"r": wr.accumulate("r", frame=2, agg={"most": wr.max("x")})})},
    )
    rows = emitted(rules, [{"r": [m]} for m in readings((0, 4), (1, 3), (2, 3), (3, 5))], "r", "t")
    assert [row["r_most"] for row in rows] == [4, 3, 5]


def test_nothing_is_no_value_unless_it_is_said_which() -> None:
    frame = wr.range_between("-10 seconds", 0, closed="right")
    cold = averages(frame, having=wr.col("mean") < 1)
    assert means(cold, readings((0, 4))) == []
    said = averages(frame, having=wr.col("mean") < 1, empty={"mean": 0.0})
    assert means(said, readings((0, 4))) == [(10, 0, 0)]


@pytest.mark.parametrize("frame", [wr.range_between("-10 seconds", 0, closed="right"), 2])
def test_thresholds_are_facts(frame: Any) -> None:
    rules = averages(frame, "limits", having=wr.col("mean") > wr.col("limits.max"))
    facts = {"limits": [{"id": 1, "max": 5}, {"id": 2, "max": 7}]}
    rows = list(emitted(rules, [facts, *({"r": [m]} for m in readings((0, 4), (5, 8), (6, 12)))], "r", "t"))
    matches = [(row["match_time"].timestamp(), row["r_mean"], row["limits_id"]) for row in rows]
    leaves = [(10, 10, 1), (10, 10, 2), (15, 12, 1), (15, 12, 2)] if frame != 2 else []
    last = (6, 8, 1), (6, 8, 2)
    assert sorted(matches) == sorted(
        [(5, 6, 1), *(last if frame != 2 else ((6, 10, 1), (6, 10, 2))), *leaves]
    )
    assert len({row["match_id"] for row in rows}) == len(rows)


def by_loops(messages: Sequence[dict[str, Any]], size: int, *, by_time: bool) -> list[tuple[int, int, int]]:
    """(partition, time, sum) of each evaluation that changed the sum."""
    means_by_loop = []
    for s in sorted({m["s"] for m in messages}):
        own = [m for m in messages if m["s"] == s]
        if by_time:
            moments = sorted({m["t"] + d for m in own for d in (0, size)})
            sums = [sum(m["x"] for m in own if at - size < m["t"] <= at) for at in moments]
        else:
            moments = [m["t"] for m in own]
            sums = [sum(m["x"] for m in own[max(i - size + 1, 0) : i + 1]) for i in range(len(own))]
        before: int | None = 0 if by_time else None
        for at, now in zip(moments, sums, strict=True):
            if now != before:
                means_by_loop.append((s, at, now))
            before = now
    return sorted(means_by_loop)


@pytest.mark.parametrize("by_time", [True, False])
@pytest.mark.parametrize("seed", range(usually(6, deep=100)))
def test_any_cut_gives_the_sums_of_nested_loops(seed: int, by_time: bool) -> None:
    draw = np.random.default_rng(seed)
    times = np.sort(draw.integers(0, 30, 40)).tolist()
    messages = [{"s": int(draw.integers(2)), "t": t, "x": int(draw.integers(0, 3))} for t in times]
    size = int(draw.integers(1, 8))
    frame = wr.range_between(f"-{size} us", 0, closed="right") if by_time else size
    agg = {"sum": wr.sum("x")}
    rules = wr.Rules(
        by="s", inputs=[wr.Input("r", event_time="t", watermark="0 us")],
        rules={"sums": wr.Rule(when={"r": wr.accumulate("r", frame=frame, agg=agg, empty={"sum": 0})})},
    )  # fmt: skip
    cuts = sorted({0, 40, *draw.integers(0, 40, 6).tolist()})
    # Messages of one time come in one step: the watermark passes them with it.
    cuts = [c for c in cuts if c in (0, 40) or times[c] != times[c - 1]]
    steps = [{"r": messages[a:b]} for a, b in itertools.pairwise(cuts)]
    rows = emitted(rules, steps, "r", "t")
    sums = [(row["s"], round(row["match_time"].timestamp() * 1e6), row["r_sum"]) for row in rows]
    assert sorted(sums) == by_loops(messages, size, by_time=by_time)


ACC = wr.accumulate
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a frame ahead": ({"r": ACC("r", agg=MEAN, frame=wr.range_between("-1 s", "1 s"))}, ["its own message"]),
    "a frame before": ({"r": ACC("r", agg=MEAN, frame=wr.rows_between(-3, -1))}, ["its own message"]),
    "a running frame": ({"r": ACC("r", agg=MEAN, frame=wr.rows_between(wr.forever, 0))}, ["its own message"]),
    "a filter by facts": (
        {"f": wr.fact("f"), "r": ACC("r", agg=MEAN, frame=3, where=wr.col("x") > wr.col("f.x"))}, ["use having="],
    ),
    "a filter of an event by another": (
        {"a": wr.event("r", frame=3, where=wr.col("x") > wr.col("b.x")), "b": wr.event("r", time=wr.after("a", 0, "1 s"))},
        ["put it into the other pattern"],
    ),
    "an absence beside a frame": ({"r": ACC("r", agg=MEAN, frame=3), "no": wr.absent("r")}, ["'no'", "two rules"]),
    "a fact that is waited for": ({"f": wr.fact("f", wait="1 s"), "r": ACC("r", agg=MEAN, frame=3)}, ["'f'", "two rules"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_frames_that_nothing_could_decide_are_refused(name: str) -> None:
    when, words = REFUSED[name]
    with pytest.raises(e.BadRule) as raised:
        wr.Rules(
            inputs=[wr.Input("r", event_time="t"), wr.Table("f", key="k")], rules={"x": wr.Rule(when=when)}
        )
    assert [word for word in words if word not in str(raised.value)] == []


def test_a_pattern_over_a_frame_of_time_meets_what_ends_in_it() -> None:
    rules = wr.Rules(
        inputs=[wr.Input("a", event_time="t"), wr.Input("b", event_time="t", expires="1 hour")],
        rules={
            "r": wr.Rule(
                when={
                    "a": wr.event("a", frame=wr.range_between("-2 seconds", 0, closed="right")),
                    "b": wr.event("b", time=wr.after("a", 0)),
                },
                then={"t": wr.col("b.t")},
            )
        },
    )
    steps = [{"a": [{"t": 0}]}, {"b": [{"t": second(1.9)}]}, {"b": [{"t": second(2)}]}]
    assert [row["t"] for row in emitted(rules, steps, "b", "t")] == [second(1.9)]


def test_a_pattern_over_a_frame_of_messages_is_one_of_the_newest_as_the_last_message_comes() -> None:
    rules = wr.Rules(
        by="k",
        inputs=[wr.Input("ticks", event_time="t"), wr.Input("orders", event_time="t")],
        rules={
            "r": wr.Rule(
                when={
                    "tick": wr.event("ticks", where=wr.col("x") < 100, frame=2),
                    "order": wr.event("orders", time=wr.after("tick", 0, "1 hour")),
                },
                then={"x": wr.col("tick.x")},
            )
        },
    )
    ticks = [{"k": k, "t": t, "x": x} for t, (k, x) in enumerate([(1, 4), (2, 5), (1, 100), (1, 8), (1, 12)])]
    order = {"orders": [{"k": 1, "t": 5}]}

    def matched(*steps: Any) -> list[int]:
        return [row["x"] for row in emitted(rules, steps, "ticks", "t")]

    assert matched({"ticks": ticks}, order) == [8, 12]
    assert matched(*({"ticks": [tick]} for tick in ticks), order) == [8, 12]
    assert matched({"ticks": ticks, **order}) == [8, 12]  # in a step, ticks come before orders
    assert matched({"ticks": ticks[:3]}, order, {"ticks": ticks[3:]}) == [4, 8, 12]
