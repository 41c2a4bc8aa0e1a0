"""Timing of panes and what is suppressed, as tables: each row is one window and one emission."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import windrow as wr
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate.emitter import Firing, suppressed
from windrow.operators.aggregate.timing import by_timing, edges_at, fires_at_end, fires_evicted, is_last

S = 1_000_000
LATE, NO_LATE = wr.Emit(late=wr.every_batch), wr.Emit(late=wr.never)
WINDOWS = {
    "window": wr.tumbling("10 seconds"),
    "session": wr.session("10 seconds"),
    "numbers": wr.session(messages=3),
}


def definition(kind: str, emit: wr.Emit, lateness: str | None = None) -> Any:
    retention = wr.forever if kind == "numbers" else "1 hour"
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=WINDOWS[kind],
        agg={"n": wr.count()},
        retention=retention,
        allowed_lateness=lateness,
        emit=emit,
    )


#: (kind, emission, allowed lateness, end less the watermark) -> the timing of a pane now, and if a LATE one would be the last.
TIMINGS = [
    ("window", LATE, "5 seconds", 1, "EARLY", False),
    ("window", LATE, "5 seconds", 0, "LATE", False),
    ("window", LATE, "5 seconds", -5 * S + 1, "LATE", False),
    ("window", LATE, "5 seconds", -5 * S, "LATE", True),
    ("window", NO_LATE, None, 1, "EARLY", False),
    ("window", NO_LATE, None, 0, "LATE", True),
    # A message at the very end touches a session: it is closed only beyond, and waits for it where no pane could correct it.
    ("session", LATE, "5 seconds", 1, "EARLY", False),
    ("session", LATE, "5 seconds", 0, "LATE", False),
    ("session", LATE, "5 seconds", -5 * S, "LATE", False),
    ("session", LATE, "5 seconds", -5 * S - 1, "LATE", True),
    ("session", NO_LATE, None, 0, "EARLY", False),
    ("session", NO_LATE, None, -1, "LATE", True),
    # The last of n + 1 other messages ends a session by number, for good.
    ("numbers", LATE, None, 1, "EARLY", False),
    ("numbers", LATE, None, 0, "LATE", True),
]


@pytest.mark.parametrize(("kind", "emit", "lateness", "after", "timing", "last"), TIMINGS)
def test_a_window_is_early_until_it_ends_and_late_until_it_closes(
    kind: str, emit: wr.Emit, lateness: str | None, after: int, timing: str, last: bool
) -> None:
    one, watermark_us = definition(kind, emit, lateness), 1000 * S
    ends, edges = np.array([watermark_us + after]), edges_at(one, watermark_us)
    assert [name for name, _, windows in by_timing(one.emit, ends, edges) if windows[0]] == [timing]
    assert not is_last(one, ends, "EARLY", edges)[0]
    assert is_last(one, ends, "LATE", edges)[0] == last


@pytest.mark.parametrize("kind", WINDOWS)
def test_an_on_time_pane_that_nothing_corrects_is_the_last_of_a_window_but_not_of_a_session(
    kind: str,
) -> None:
    one = definition(kind, NO_LATE, None if kind == "numbers" else "5 seconds")
    edges = edges_at(one, 1000 * S)
    assert is_last(one, np.array([1000 * S]), "ON_TIME", edges)[0] == (kind != "session")


@pytest.mark.parametrize("kind", WINDOWS)
def test_everything_has_ended_at_the_end_of_time_and_is_closed(kind: str) -> None:
    for emit in (LATE, NO_LATE):
        edges = edges_at(definition(kind, emit), END_OF_TIME_US)
        assert edges.ended >= END_OF_TIME_US and edges.closed >= END_OF_TIME_US


#: (on time, late panes) -> (a pending window, one without news) emits a pane when it ends.
AT_END = [
    (True, True, (True, True)),
    (True, False, (True, True)),
    (False, True, (False, False)),
    (False, False, (True, False)),
]


@pytest.mark.parametrize(("on_time", "late", "fires"), AT_END)
def test_what_no_later_pane_would_emit_is_emitted_at_the_end(
    on_time: bool, late: bool, fires: tuple[bool, bool]
) -> None:
    emit = wr.Emit(on_time=on_time, early=wr.every_batch, late=wr.every_batch if late else wr.never)
    assert tuple(fires_at_end(emit, np.array([True, False])).tolist()) == fires


@pytest.mark.parametrize(
    ("late", "closing", "pending", "open_", "fires"),
    [
        (True, False, True, True, True),
        (True, False, False, True, False),
        (False, False, True, True, False),
        (False, True, False, True, True),
        (False, True, True, False, False),
        (True, True, True, False, True),
    ],
)
def test_an_evicted_window_emits_what_is_pending_and_the_closing_pane(
    late: bool, closing: bool, pending: bool, open_: bool, fires: bool
) -> None:
    emit = wr.Emit(late=wr.every_batch if late else wr.never, closing_pane=closing)
    one = definition("window", emit)
    flags = (np.array([flag]) for flag in (pending, open_, True))
    assert fires_evicted(one, emit.late, *flags)[0] == fires


def test_a_pane_is_suppressed_only_where_it_repeats_the_last_one() -> None:
    flags = (True, False)
    for mode in ("discarding", "accumulating", "retracting"):
        for only, changed, pending, on_time, closing, always in product(flags, repeat=6):
            emit = wr.Emit(mode=mode, only_if_changed=only, closing_pane=closing)
            firing = Firing("ON_TIME" if on_time else "EARLY", np.array([closing]), closing, always)
            repeats = not pending if mode == "discarding" else not changed
            # A retraction and the same values again say nothing, unless the window has ended or a period asks for the pane.
            retracts = mode == "retracting" and not on_time and not always
            expected = repeats and (only or retracts) and not closing
            said = suppressed(emit, np.array([changed]), np.array([pending]), firing)
            assert said.tolist() == [expected], (emit, firing)


def test_what_is_suppressed_is_judged_for_each_pane_of_a_run() -> None:
    emit = wr.Emit(mode="retracting")
    firing = Firing(np.array(["EARLY", "ON_TIME"]), np.array([False, True]))
    no = np.zeros(2, dtype=bool)
    assert suppressed(emit, no, ~no, firing).tolist() == [True, False]
