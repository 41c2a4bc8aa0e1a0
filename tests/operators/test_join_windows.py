"""The windows of one input of a join, as `get_windows` answers them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.messages import Position, TupleWindow, Window
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.reach import Reach
from windrow.operators.join.windows import windows_of_input
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.intake import Slice

S = 1_000_000


def kept(*seconds: int) -> Slice:
    """Messages of these event times, arrived in this order."""
    n = len(seconds)
    zeros = pa.array([0] * n, pa.int64())
    table = pa.table(
        {
            "t": [s * S for s in seconds],
            SOURCE: ["topic"] * n,
            PARTITION: zeros,
            OFFSET: range(n),
            ORDINAL: zeros,
        }
    )
    return Slice(table, np.array([s * S for s in seconds], dtype=np.int64))


def seen(window: Any, rows: Slice, low: int = START_OF_TIME_US, high: int = END_OF_TIME_US) -> list[Any]:
    def short(bound: int) -> float:
        return bound / S if abs(bound) < 2**60 else float("inf") * np.sign(bound)

    return [
        (
            (short(i.window.start_us), short(i.window.end_us)) if isinstance(i.window, Window) else i.window,
            i.messages,
            i.first.offset,
            i.last.offset,
        )
        for i in windows_of_input(window, rows, low, high, 10 * S)
    ]


@pytest.mark.parametrize("within", [(-7, 3), (2, 9), (-9, -2), (0, 0)])
@pytest.mark.parametrize("window", [None, wr.tumbling("5 seconds")])
def test_the_first_message_that_can_still_meet_somebody_is_known(within: Any, window: Any) -> None:
    left, right = (wr.Input(name, event_time="t", window=window) for name in "lr")
    bounds = (f"{within[0]} seconds", f"{within[1]} seconds")
    reach = Reach(wr.Join(left=left, right=right, on="k", within=bounds))
    for side, watermark_us in itertools.product((0, 1), (0, 1, 7 * S - 1, 100 * S)):
        first = reach.expired_before(side, watermark_us)
        gone, stays = reach.expires(side, np.array([first - 1, first]))
        assert gone <= watermark_us < stays
    ever = [START_OF_TIME_US, END_OF_TIME_US]
    assert [reach.expired_before(0, us) for us in ever] == ever


def test_tumbling_windows_are_those_that_cover_a_message() -> None:
    assert seen(wr.tumbling("10 seconds"), kept(12, 3, 11)) == [((0, 10), 1, 1, 1), ((10, 20), 2, 0, 2)]


def test_a_hopping_message_is_in_every_window_that_covers_it() -> None:
    assert seen(wr.hopping("10 seconds", "5 seconds"), kept(7)) == [((0, 10), 1, 0, 0), ((5, 15), 1, 0, 0)]


def test_a_sliding_window_ends_where_a_message_is() -> None:
    us = 1e-6
    assert seen(wr.sliding("5 seconds"), kept(1, 4, 9)) == [
        ((-4, 1 + us), 1, 0, 0),
        ((-1, 4 + us), 2, 0, 1),
        ((4, 9 + us), 2, 1, 2),
    ]
    # Without its newer edge the window around a message does not hold it.
    assert seen(wr.sliding("5 seconds", closed="neither"), kept(1, 4)) == [((-1 + us, 4), 1, 0, 0)]


@pytest.mark.parametrize("window", [None, wr.unbounded()])
def test_without_bound_there_is_one_window_of_all_messages(window: Any) -> None:
    assert seen(window, kept(4, 1)) == [((float("-inf"), 4 + 1e-6), 2, 0, 1)]


def test_a_window_of_rows_is_the_newest_by_arrival() -> None:
    assert seen(wr.rows(2), kept(9, 1, 4)) == [(TupleWindow(2, 3), 2, 1, 2)]


def test_only_windows_that_overlap_the_closed_range_are_emitted() -> None:
    rows = kept(3, 13, 23)
    assert [w for w, *_ in seen(wr.tumbling("10 seconds"), rows, 10 * S, 20 * S)] == [(10, 20), (20, 30)]


def test_nothing_kept_is_no_window() -> None:
    assert seen(wr.tumbling("10 seconds"), kept()) == []


def test_a_window_has_fired_when_the_watermark_has_passed_its_end() -> None:
    windows = windows_of_input(
        wr.tumbling("10 seconds"), kept(3, 13), START_OF_TIME_US, END_OF_TIME_US, 10 * S
    )
    assert [i.fired for i in windows] == [True, False]
    assert windows[0].first == Position("topic", 0, 0)
