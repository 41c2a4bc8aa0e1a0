"""Alerts as people write them: statuses, windows, actions, delays, the life of keys; each also as the oracle has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.core.errors import (
    BadDuration,
    BadTrigger,
    BadWindow,
    ReservedColumn,
    UnknownColumn,
)
from windrow.testing import CommitPoint, ManualClock, TestDriver

S = 1_000_000
X = wr.col("x")


def alert(**options: Any) -> wr.Alert:
    return wr.Alert(**{"by": "k", "event_time": "t", "max_ahead": wr.forever, "when": X > 75} | options)


def messages(
    values: Sequence[Any], times: Sequence[float] | None = None, key: str = "a"
) -> list[dict[str, Any]]:
    return [
        {"t": int(t * S), "k": key, "x": x} for t, x in zip(times or range(len(values)), values, strict=True)
    ]


@contextmanager
def driven(definition: Any, location: Path | None = None) -> Iterator[TestDriver]:
    """A job whose rows are compared with its oracle's when it ends."""
    with TestDriver(definition, None if location is None else str(location), clock=ManualClock(0)) as driver:
        yield driver
        driver.check(dead_letters=True)


def rows(driver: TestDriver, *names: str) -> list[Any]:
    emitted = [tuple(_plain(row[name]) for name in names) for row in driver.panes()]
    return [one[0] for one in emitted] if len(names) == 1 else emitted


def _plain(value: Any) -> Any:
    """Times as seconds."""
    return value.timestamp() if hasattr(value, "timestamp") else value


ALL = {"log": wr.Action(repeat=wr.every(1))}
WINDOW = {"agg": {"n": wr.count(), "list": wr.collect_list("x", order="event_time")}}


@pytest.mark.parametrize("together", [True, False])
def test_the_status_follows_the_table_of_transitions(together: bool) -> None:
    with driven(alert(actions=ALL)) as driver:
        sent = messages([70, 80, 90, 60, 50])
        for batch in [sent] if together else [[one] for one in sent]:
            driver.feed(batch)
        transitions = rows(driver, "before_status", "status", "count", "trigger")
    assert transitions == [
        ("CANCEL", "OPEN", 0, "on_open"),
        ("OPEN", "REPEAT", 1, "on_repeat"),
        ("REPEAT", "CANCEL", 0, "on_cancel"),
    ]


def test_one_true_evaluation_opens_and_a_second_one_repeats() -> None:
    with driven(alert(actions=ALL)) as driver:
        driver.feed(messages([80]))
        assert rows(driver, "status") == ["OPEN"]


def test_without_actions_openings_and_cancellations_are_emitted_under_one_identity() -> None:
    with driven(alert()) as driver:
        driver.feed(messages([80, 90, 60, 99]))
        actions = rows(driver, "action", "status", "alert_id")
    assert [one[:2] for one in actions] == [("alert", "OPEN"), ("alert", "CANCEL"), ("alert", "OPEN")]
    assert actions[0][2] == actions[1][2] != actions[2][2]


def test_a_counted_window_holds_the_newest_by_event_time() -> None:
    with driven(alert(frame=3, when=wr.col("n") > 0, actions=ALL, ttl="1 day", **WINDOW)) as driver:
        for one in messages([10, 30, 20, 50, 5], [1, 3, 2, 5, 0.5]):
            driver.feed([one])
        assert rows(driver, "list") == [[10], [10, 30], [10, 20, 30], [20, 30, 50]]  # 5 changes nothing


def test_a_window_of_time_holds_what_is_as_old_as_it_is_long_and_no_older() -> None:
    with driven(
        alert(frame="5 seconds", when=wr.col("n") > 0, actions=ALL, leaving=False, **WINDOW)
    ) as driver:
        driver.feed(messages([1, 2, 3], [0, 5, 10.000001]))
        assert rows(driver, "list") == [[1], [1, 2], [3]]
        driver.feed(messages([9], [5]))
        assert [letter.reason for letter in driver.dead_letters()] == ["too_late"]


@pytest.mark.parametrize("leaving", [True, False])
def test_samples_that_leave_cause_an_evaluation(leaving: bool) -> None:
    definition = alert(
        frame="5 seconds", when=wr.col("samples") > 0, leaving=leaving, variables={"left": wr.col("leaving")}
    )
    with driven(definition) as driver:
        driver.feed([*messages([90]), *messages([1], [4], key="b")])
        driver.feed(messages([1], [20], key="b"))
        driver.feed(messages([1], [21], key="b"))
        transitions = [row for row in rows(driver, "k", "status", "time", "left", "cause") if row[0] == "a"]
    after = [("a", "CANCEL", 5.000001, True, "leaving")] if leaving else []
    assert transitions == [("a", "OPEN", 0.0, False, "sample"), *after]


PAST: dict[str, Any] = {"history": "past", "input": "live", "actions": ALL, "ttl": "2 hours"}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("frame", "n", "mean"), [("1 hour", 7, (6 * 90 + 10) / 7), (10, 10, (3 * 50 + 6 * 90 + 10) / 10)]
)
def test_history_fills_the_window_of_a_key_before_its_first_message_without_a_row(
    frame: Any, n: int, mean: float, together: bool
) -> None:
    """Load samples every ten minutes for eight hours, the last hour of them at 90; the first message comes on time."""
    options = {"agg": {"mean": wr.avg("x"), "n": wr.count()}, "when": wr.col("mean") > 40, "frame": frame}
    past = messages([50] * 42 + [90] * 6, range(0, 48 * 600, 600))
    first = messages([10], [48 * 600])
    with driven(alert(**options, **PAST)) as driver:
        if together:
            driver.feed({"past": past, "live": first})
        else:
            driver.feed(past, input="past")
            driver.crash()
            driver.restart()
            driver.feed(past, input="past")
            assert not driver.panes()
            driver.feed(first, input="live")
        [row] = driver.panes()
        assert (row["status"], row["n"], row["mean"]) == ("OPEN", n, mean)
        driver.feed(past[-1:], input="past")
        assert [letter.reason for letter in driver.dead_letters()] == ["too_late"]


def test_what_leaves_a_window_of_history_alone_causes_no_evaluation_and_what_leaves_later_does() -> None:
    options = {"frame": "10 seconds", "when": wr.col("leaving"), "evaluate": wr.every("1 second")}
    with driven(alert(**options, **PAST)) as driver:
        driver.feed(
            [*messages([1, 1, 1], [0, 2, 4]), *messages([1], [3], key="b"), *messages([1], [3], key="c")],
            input="past",
        )
        driver.feed(messages([1], [8]), input="live")
        driver.feed(messages([1], [13]), input="live")
        driver.advance_clock(5 * S)
        driver.timeout()
        driver.feed(messages([1, 1], [19, 20], key="b"), input="live")
        driver.timeout()
        transitions = rows(driver, "k", "cause", "status", "time")
    assert sorted(transitions, key=lambda one: one[3]) == [
        ("a", "leaving", "OPEN", 10.000001),
        ("a", "leaving", "REPEAT", 12.000001),
        ("a", "sample", "CANCEL", 13.0),
        ("a", "leaving", "OPEN", 14.000001),
        ("a", "leaving", "REPEAT", 18.000001),
    ]


def test_a_first_message_that_changes_no_window_of_history_begins_its_key() -> None:
    """It is older than all of a full window. (Found by the simulator: the oracle went on loading history.)"""
    definition = alert(frame=2, when=wr.col("samples") > 0, evaluate=wr.every("1 second"), **PAST)
    with driven(definition) as driver:
        driver.feed(messages([1, 1], [5, 6]), input="past")
        driver.feed(messages([1], [3]), input="live")
        driver.feed(messages([1], [7]), input="past")
        driver.advance_clock(S)
        driver.timeout()
        assert rows(driver, "cause", "status", "time") == [("evaluate", "OPEN", 6.0)]
        assert [letter.reason for letter in driver.dead_letters()] == ["too_late"]


def test_a_backtest_begins_with_history() -> None:
    definition = alert(frame="1 hour", agg={"n": wr.count()}, when=wr.col("n") > 3, **PAST)
    past, live = messages([1, 1, 1], [-3, -2, -1]), messages([1, 1])
    replayed = definition.backtest({"past": past, "live": live}, drain=False).to_pylist()
    assert [(row["n"], row["status"]) for row in replayed] == [(4, "OPEN"), (5, "REPEAT")]


def test_repeats_by_number_count_evaluations() -> None:
    with driven(alert(actions={"log": wr.Action(repeat=wr.every(10))})) as driver:
        driver.feed(messages([80] * 21))
        assert rows(driver, "count") == [0, 10, 20]


def test_repeats_by_time_are_due_without_data_and_survive_a_restart() -> None:
    with driven(alert(actions={"log": wr.Action(repeat=wr.every("5 minutes"))})) as driver:
        driver.feed(messages([80]))
        for _ in range(3):
            driver.advance_clock(200 * S)
            driver.timeout()
            driver.next_offsets()
            driver.crash()
            driver.restart()
        driver.advance_clock(3600 * S)
        driver.timeout()
        driver.next_offsets()
        repeats = [(row["trigger"], row["cause"]) for row in driver.committed_panes()]
        assert repeats == [
            ("on_open", "sample"),
            ("on_repeat", "repeat"),
            ("on_repeat", "repeat"),
        ]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize(
    ("cancelled", "expected"), [(59, []), (61, [("OPEN", 60.0, "delay"), ("CANCEL", 61.0, "sample")])]
)
def test_a_delay_drops_what_is_cancelled_before_it_ends(
    cancelled: int, expected: list[Any], dies: bool
) -> None:
    with driven(alert(actions={"mail": wr.Action(delay="1 minute")})) as driver:
        driver.feed(messages([80, 90], [0, 30]))
        if dies:
            driver.crash(at=CommitPoint.BEFORE_PUBLISH)
            driver.restart()
            driver.next_offsets()
        driver.feed(messages([60], [cancelled]))
        assert rows(driver, "status", "time", "cause") == expected


#: Seconds of the clock, and load and second of a sample: an incident with a delay and repeats, and one within its delay.
LIFE = [
    (0, (80, 0)),
    (0, (90, 30)),
    (240, None),
    (0, (85, 70)),
    (240, None),
    (240, (99, 80)),
    (0, (60, 90)),
    (0, (95, 100)),
    (400, None),
    (0, (60, 120)),
]


def lived(point: CommitPoint | None) -> list[Any]:
    """Return the rows of a life in which the job dies at this point of every commit."""
    actions = {
        "mail": wr.Action(delay="1 minute", repeat=wr.every("5 minutes")),
        "chat": wr.Action(repeat=wr.every("3 minutes")),
        "log": wr.Action(delay="20 seconds", repeat=wr.every(2)),
    }
    sent = [message for _, one in LIFE if one is not None for message in messages([one[0]], [one[1]])]
    with driven(alert(actions=actions, variables={"value": X}, ttl="1 hour")) as driver:
        offset = 0
        for seconds, one in LIFE:
            driver.advance_clock(seconds * S)
            more = sent[offset:][: one is not None]
            if more:
                driver.feed(more)
            else:
                driver.timeout()
            if point is not None:
                driver.crash(at=point)
                driver.restart()
                if sum(driver.next_offsets().values()) < offset + len(more):
                    driver.feed(more)
                driver.timeout()
            driver.next_offsets()
            offset += len(more)
        return [dict(row.values) for row in driver.committed_panes()]


@pytest.mark.parametrize("point", CommitPoint)
def test_a_job_that_dies_inside_delays_and_between_repeats_emits_the_rows_of_an_undisturbed_one(
    point: CommitPoint,
) -> None:
    rows = lived(point)
    assert rows == lived(None)
    actions = [(row["action"], row["trigger"], row["cause"]) for row in rows]
    assert {
        ("mail", "on_repeat", "repeat"),
        ("mail", "on_open", "delay"),
        ("log", "on_repeat", "sample"),
    } <= {*actions}


def test_hysteresis_opens_at_one_threshold_and_cancels_at_the_other() -> None:
    with driven(alert(when=X >= 80, until=X < 70, actions=ALL)) as driver:
        driver.feed(messages([79, 80, 75, 71, 69, 79]))
        assert rows(driver, "status") == ["OPEN", "REPEAT", "REPEAT", "CANCEL"]


def test_hysteresis_by_the_status_before() -> None:
    when = (X >= 80) | ((wr.col("before_status") != "CANCEL") & (X >= 70))
    with driven(alert(when=when, actions=ALL)) as driver:
        driver.feed(messages([79, 80, 75, 71, 69, 79]))
        assert rows(driver, "status") == ["OPEN", "REPEAT", "REPEAT", "CANCEL"]


def test_until_true_together_with_when_opens_and_cancels_in_turn() -> None:
    with driven(alert(until=X > 75)) as driver:
        driver.feed(messages([80] * 4))
        assert rows(driver, "status") == ["OPEN", "CANCEL"] * 2


def test_a_timer_evaluates_at_each_moment_that_is_crossed_and_once_after_a_pause() -> None:
    fields = {"at": wr.col("now")}
    definition = alert(
        frame="1 hour",
        evaluate=wr.every("15 seconds"),
        when=wr.col("samples") > 0,
        actions=ALL,
        variables=fields,
    )
    with driven(definition) as driver:
        driver.feed(messages([1], [7]))
        for seconds in (10, 10, 3600):
            driver.advance_clock(seconds * S)
            driver.timeout()
        evaluations = rows(driver, "cause", "at")
    assert evaluations == [("sample", 0.0), ("evaluate", 15.0), ("evaluate", 3615.0)]


def test_an_alert_without_keys_hears_silence() -> None:
    definition = alert(
        by=(),
        frame="1 minute",
        evaluate=wr.every("1 minute"),
        when=wr.col("samples") == 0,
        watermark=wr.fixed("0 seconds"),
    )
    with driven(definition) as driver:
        driver.feed(messages([1], [0]))
        for _ in range(3):
            driver.advance_clock(60 * S)
            driver.timeout()
        assert rows(driver, "status", "cause", "time") == [("OPEN", "leaving", 60.000001)]


def test_under_the_clock_samples_from_the_future_belong_to_the_window() -> None:
    with driven(
        alert(frame="5 seconds", watermark=wr.fixed("0 seconds"), when=wr.col("n") > 1, **WINDOW)
    ) as driver:
        driver.advance_clock(10 * S)
        driver.feed(messages([1, 2], [8, 3600]))
        assert rows(driver, "list") == [[1, 2]]


def test_each_action_has_triggers_of_its_own_and_the_incident_is_shared() -> None:
    actions = {
        "mail": wr.Action(repeat=wr.every(2), where=wr.col("value") > 80),
        "chat": wr.Action(cancel=False, repeat=wr.every(3)),
    }
    with driven(alert(actions=actions, variables={"value": X})) as driver:
        driver.feed(messages([80, 90, 91, 92, 60]))
        shared_rows = rows(driver, "action", "trigger", "count", "alert_id")
    assert len({one[3] for one in shared_rows}) == 1
    assert [one[:3] for one in shared_rows] == [
        ("chat", "on_open", 0),
        ("mail", "on_repeat", 2),
        ("chat", "on_repeat", 3),
    ]


def test_a_ttl_evicts_quiet_keys_and_cancels_open_ones() -> None:
    with driven(alert(ttl="10 seconds", variables={"value": X})) as driver:
        driver.feed([*messages([80]), *messages([1], key="b")])
        driver.feed(messages([1], [30], key="c"))
        driver.timeout()
        driver.feed(messages([1], [31], key="c"))
        assert rows(driver, "k", "status", "cause", "time", "value")[1:] == [
            ("a", "CANCEL", "expired", 10.000001, 80)
        ]


def test_a_ttl_ends_a_window_within_a_step_as_it_does_between_two() -> None:
    definition = alert(frame=3, ttl="10 seconds", when=wr.col("n") > 1, **WINDOW)
    with driven(definition) as driver:
        driver.feed(messages([1, 2, 3, 4], [0, 1, 30, 31]))
        assert rows(driver, "status", "list", "cause") == [
            ("OPEN", [1, 2], "sample"),
            ("CANCEL", [1, 2], "expired"),
            ("OPEN", [3, 4], "sample"),
        ]


def test_what_leaves_no_state_is_forgotten_at_once(tmp_path: Path) -> None:
    definition = alert(
        frame="5 seconds",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 75,
        actions={"m": wr.Action(delay="1 s")},
    )
    with driven(definition, tmp_path) as driver:
        for second in range(0, 50, 10):
            driver.feed([m for n in range(50) for m in messages([90], [second], key=f"k{n}")])
        driver.feed(messages([1], [100], key="last"))
        driver.feed(messages([1], [100], key="last"))
        driver.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            assert state.table("alerts").column("k").to_pylist() == ["last"]


def run_of(definition: Any, location: Path, sent: Any, *names: str) -> list[Any]:
    """Return the rows that one run of a job emits."""
    with definition.open(str(location)) as op:
        commit = op.last_commit
        op.add_messages(sent)
        op.next_offsets()
        emitted = [row for row in op.get_result() if row.commit > commit]
    return [tuple(row[name] for name in names) for row in emitted]


def test_another_version_drops_windows_and_statuses_without_a_row(tmp_path: Path) -> None:
    assert run_of(alert(version="1"), tmp_path, messages([80]), "status") == [("OPEN",)]
    assert run_of(alert(version="1"), tmp_path, messages([60, 80], [1, 2]), "status") == [
        ("CANCEL",),
        ("OPEN",),
    ]
    assert run_of(alert(version="2"), tmp_path, messages([60, 80], [3, 4]), "status") == [("OPEN",)]


def test_conditions_and_actions_may_change_between_runs(tmp_path: Path) -> None:
    assert run_of(alert(), tmp_path, messages([80, 85]), "action") == [("alert",)]
    actions = {"mail": wr.Action(repeat=wr.every(2))}
    changed = alert(when=X > 95, until=X < 50, variables={"x2": X * 2}, actions=actions)
    emitted = run_of(changed, tmp_path, messages([60, 40], [3, 4]), "action", "status", "x2", "count")
    assert emitted == [("mail", "REPEAT", 120, 2), ("mail", "CANCEL", 80, 0)]
    with pytest.raises(wr.WindrowError, match="frame"):
        alert(frame=3, when=wr.col("samples") > 1, ttl="1 day").open(str(tmp_path))


@given(data=st.data())
@examples(15, deep=1_000)
def test_with_nothing_late_transitions_do_not_depend_on_the_cut(data: st.DataObject) -> None:
    """Define alerts over a window of time and a counted one, with delays, hysteresis and a ttl."""
    frame = data.draw(st.sampled_from([None, "3 seconds", 2]))
    value = X if frame is None else wr.col("newest")
    definition = alert(
        frame=frame,
        agg=None if frame is None else {"newest": wr.latest("x"), "n": wr.count()},
        when=value > 2,
        until=data.draw(st.sampled_from([None, value < 1])),
        actions={
            "mail": wr.Action(delay=data.draw(st.sampled_from([None, "2 seconds"])), repeat=wr.every(2)),
            "log": wr.Action(),
        },
        ttl=data.draw(st.sampled_from(["4 seconds", "9 seconds"])),
    )
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from([0, 0.5, 1, 3, 6]), st.integers(0, 5), st.sampled_from("ab")),
            max_size=14,
        )
    )
    times = list(itertools.accumulate((step for step, _, _ in steps), initial=0.0))[1:]
    all_of = [{"t": int(t * S), "k": k, "x": x} for t, (_, x, k) in zip(times, steps, strict=True)]
    emitted = []
    for cut in (1, data.draw(st.integers(2, 5)), len(all_of) or 1):
        with (
            definition.open(None, store="memory")
            if False
            else TestDriver(definition, clock=ManualClock(0), store="memory") as driver
        ):
            for i in range(0, len(all_of), cut):
                driver.feed(all_of[i : i + cut])
            driver.feed(messages([0], [1_000], key="z"))
            driver.feed(messages([0], [1_001], key="z"))
            transitions = [{n: _plain(v) for n, v in row.values.items()} for row in driver.panes()]
            emitted.append(
                sorted(
                    (one for one in transitions if one["k"] != "z"),
                    key=lambda r: (r["time"], r["k"], r["action"], r["trigger"]),
                )
            )
    assert emitted[0] == emitted[1] == emitted[2]


def test_a_condition_that_raises_or_is_null_stops_no_job() -> None:
    definition = alert(when=(wr.lit(8) / X) > 2, actions=ALL)
    with driven(definition) as driver:
        driver.feed(messages([1, 0, None, 2]))
        assert rows(driver, "status", "time") == [("OPEN", 0.0), ("CANCEL", 2.0), ("OPEN", 3.0)]
        assert [letter.reason for letter in driver.dead_letters()] == ["function_failed"]


def test_an_action_whose_condition_raises_makes_dead_letters_of_its_rows_alone() -> None:
    actions = {"mail": wr.Action(where=wr.lit(8) / wr.col("value") > 0), "log": wr.Action()}
    with driven(alert(when=X >= 0, actions=actions, variables={"value": X})) as driver:
        driver.feed([m for n, x in enumerate([1, 0, 2, 0]) for m in messages([x], [n], key=f"{n}")])
        assert rows(driver, "action", "value") == [
            ("mail", 1),
            ("log", 1),
            ("log", 0),
            ("mail", 2),
            ("log", 2),
            ("log", 0),
        ]
        buried = driver.dead_letters()
        assert [letter.reason for letter in buried] == ["function_failed"] * 2 and "divide by zero" in buried[
            0
        ].detail


def test_text_among_numbers_a_future_sample_and_one_that_comes_twice_stop_no_job() -> None:
    options = {
        "frame": "1 minute",
        "agg": {"mean": wr.avg("x"), "n": wr.count()},
        "when": wr.col("mean") > 75,
    }
    with driven(alert(**options, actions=ALL, max_ahead="1 hour")) as driver:
        driver.feed(messages([80.0, float("nan"), None]))
        driver.feed([*messages(["much"], [3]), *messages([90.0], [9_000]), *messages([90.0], [4])])
        again = [wr.Message(m, ("s", 0, 7)) for m in messages([85.0], [5], key="b")]
        driver.feed(again)
        driver.feed(again)
        assert [letter.reason for letter in driver.dead_letters()] == ["malformed"] * 2
        assert rows(driver, "k", "status", "n") == [("a", "OPEN", 1), ("a", "CANCEL", 2), ("b", "OPEN", 1)]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"frame": "1 minute", "agg": {"mean": wr.avg("x")}, "when": wr.col("maen") > 1},
            UnknownColumn,
            "did you mean 'mean'",
        ),
        (
            {"frame": "1 minute", "when": wr.col("samples") > 1, "until": wr.col("sample") < 1},
            UnknownColumn,
            "until",
        ),
        (
            {"actions": {"mail": wr.Action(where=wr.col("staus") == "OPEN")}},
            UnknownColumn,
            "did you mean 'status'",
        ),
        ({"frame": "5 minutes", "when": wr.col("samples") > 1, "ttl": "1 minute"}, BadDuration, "1 minute"),
        (
            {"frame": wr.range_between("-1 minute", "1 minute"), "when": wr.col("samples") > 1},
            BadWindow,
            "newest",
        ),
        ({"agg": {"mean": wr.avg("x")}}, BadWindow, "frame="),
        ({"evaluate": wr.every("1 minute")}, BadWindow, "frame="),
        ({"history": "past"}, BadWindow, "frame="),
        (
            {"frame": "1 hour", "when": wr.col("samples") > 1, "history": "past", "input": "past"},
            wr.ConfigurationError,
            "another one",
        ),
        (
            {"frame": "1 hour", "when": wr.col("samples") > 1, "history": "alert"},
            wr.ConfigurationError,
            "another one",
        ),
        ({"frame": "1 hour", "when": wr.col("samples") > 1, "evaluate": wr.every(3)}, BadTrigger, "1 minute"),
        ({"variables": {"count": X}}, ReservedColumn, "count"),
        ({"by": "time"}, ReservedColumn, "time"),
        ({"actions": {}}, wr.ConfigurationError, "wr.Action"),
        ({"when": "x > 1"}, wr.ConfigurationError, "expression"),
    ],
)
def test_bad_configuration_is_refused_with_the_remedy(options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        alert(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repeat": wr.every_batch}, "wr.every"),
        ({"repeat": wr.every("1 s", always=True)}, "without"),
        ({"where": 3}, "count"),
    ],
)
def test_an_action_that_cannot_be_is_refused(options: Any, says: str) -> None:
    with pytest.raises(wr.ConfigurationError, match=says):
        wr.Action(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"frame": "1 minute", "agg": {"mean": wr.avg("x")}, "when": wr.col("mean") * 2},
        {"until": X + 1},
        {"actions": {"mail": wr.Action(where=wr.col("count") + 1)}},
    ],
    ids=["when", "until", "where"],
)
def test_a_condition_that_is_none_is_refused_as_types_are_known(
    options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    definition = alert(**options)
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("x", pa.int64())])
    with pytest.raises(wr.ConfigurationError, match=f"{request.node.callspec.id}=.*comparison"):
        definition.open(str(tmp_path), schema=schema)


DELAYS: dict[str, Any] = {
    "by": "k",
    "event_time": "t",
    "window": wr.tumbling("10 seconds"),
    "agg": {"delay": wr.avg("x")},
    "name": "delays",
    "retention": "1 minute",
}


@pytest.mark.parametrize(
    ("emit", "lateness"),
    [
        (wr.Emit.append(), None),
        (wr.Emit.final(), "0 seconds"),
        (wr.Emit.final(), "10 seconds"),
        (wr.Emit.final(mode="discarding"), "10 seconds"),
    ],
)
def test_an_alert_judges_the_rows_of_what_emits_each_once(
    emit: Any, lateness: str | None, tmp_path: Path
) -> None:
    late = alert(
        name="late",
        event_time="window_time",
        when=wr.col("delay") > 60,
        until=wr.col("delay") < 30,
        variables={"mean": wr.col("delay") + 0},
        actions=ALL,
        max_ahead=None,
    )
    delays = wr.Aggregate(**DELAYS, emit=emit, allowed_lateness=lateness)
    with driven(delays.then(late), tmp_path) as driver:
        for values, times in (
            ([50, 70, 40], [1, 11, 21]),
            ([20], [31]),
            ([90], [22]),
            ([0], [300]),
            ([0], [301]),
        ):
            driver.feed(messages(values, times))
        # A window that stays open for late messages is emitted with them, and the alert's time waits for it.
        kept = lateness == "10 seconds"
        assert rows(driver, "status", "time", "mean") == [
            ("OPEN", 19.999999, 70.0),
            ("REPEAT", 29.999999, 65.0 if kept else 40.0),
            ("CANCEL", 39.999999, 20.0),
        ]
        assert len(driver.dead_letters()) == (0 if kept else 1)


INPUTS = [wr.Input(name, event_time="t", max_ahead=wr.forever) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("before", "time", "column", "expected"),
    [
        (
            wr.Join(left=INPUTS[0], right=INPUTS[1], on="k", within=("0 seconds", "4 seconds"), name="both"),
            "one_t",
            "one_x",
            [("OPEN", 4), ("REPEAT", 8), ("CANCEL", 12), ("OPEN", 16), ("CANCEL", 20)],
        ),
        (
            wr.Over(
                by="k",
                event_time="t",
                frame=wr.range_between("-5 seconds", 0),
                agg={"mean": wr.avg("x")},
                max_ahead=wr.forever,
                name="around",
            ),
            "t",
            "mean",
            [("OPEN", 8), ("CANCEL", 12)],
        ),
        (
            wr.Rules(
                by="k",
                inputs=INPUTS,
                rules={
                    "pair": wr.Rule(
                        when={"a": wr.event("one"), "b": wr.event("two", time=wr.after("a", 0, "3 seconds"))},
                        then={"x": wr.col("a.x")},
                    )
                },
                name="pairs",
            ),
            "match_time",
            "x",
            [("OPEN", 5), ("REPEAT", 9), ("CANCEL", 13), ("OPEN", 17), ("CANCEL", 21)],
        ),
        (
            alert(name="first", when=X > 15, actions=ALL, variables={"load": X}),
            "time",
            "load",
            [("OPEN", 4), ("REPEAT", 8), ("CANCEL", 12), ("OPEN", 16), ("CANCEL", 20)],
        ),
    ],
    ids=["join", "over", "rules", "alert"],
)
def test_an_alert_judges_rows_of_joins_windows_rules_and_alerts(
    before: Any, time: str, column: str, expected: list[Any]
) -> None:
    """Give a sample each four seconds to input one, and a partner a second later to input two."""
    load = wr.col(column)
    until = (load <= 60) | (wr.col("count") > 5)  # its own count, where rows have one, too
    late = alert(name="late", event_time=time, when=load > 60, until=until, actions=ALL, max_ahead=None)
    with driven(before.then(late)) as driver:
        for place, x in enumerate([50, 70, 90, 10, 80, 20, 0]):
            one, two = messages([x], [4 * place]), messages([1], [4 * place + 1])
            driver.feed({"one": one, "two": two} if before.by_input else one)
        driver.timeout()
        assert rows(driver, "status", "time")[: len(expected)] == expected


def test_what_emits_rows_again_is_refused_before_an_alert_with_the_remedy() -> None:
    for emit in (wr.Emit(), wr.Emit(mode="retracting")):
        with pytest.raises(wr.ConfigurationError, match=r"Emit\.append\(\)"):
            wr.Aggregate(**DELAYS, emit=emit).then(
                alert(event_time="window_time", when=wr.col("delay") > 60, max_ahead=None)
            )


def test_alerts_are_input_of_the_next_operator(tmp_path: Path) -> None:
    counts = wr.Aggregate(
        by="k",
        event_time="time",
        window=wr.tumbling("1 minute"),
        agg={"n": wr.count()},
        emit=wr.Emit.append(),
        name="counts",
    )
    with alert(actions=ALL).then(counts).open(str(tmp_path)) as op:
        op.add_messages(messages([80, 90, 60, 90, 1, 1], [0, 1, 2, 3, 4, 500]))
        op.add_messages(messages([1], [501]))
        assert [row["n"] for row in op.get_result()] == [5]


def test_the_table_of_alerts_says_what_is_open_and_what_is_due(tmp_path: Path) -> None:
    definition = alert(
        frame="1 minute",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 75,
        actions={"mail": wr.Action(repeat=wr.every("1 hour"))},
    )
    clock = ManualClock(0)
    with definition.open(str(tmp_path), clock=clock) as op:
        op.add_messages([*messages([80, 90]), *messages([7], key="b")])
        op.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            table = state.table("alerts").drop_columns(["alert_id"]).to_pylist()
            [row] = op.get_result()
            [why] = state.explain({"k": "a", "time": row["time"]})
    alerts = [[_plain(v) for v in one.values()] for one in table]
    assert alerts == [
        ["a", "REPEAT", 1, 0.0, 2, 85.0, "mail repeat 1970-01-01 01:00:00"],
        ["b", "CANCEL", 0, None, 1, 7.0, None],
    ]
    assert why.positions is None or len(why.positions) == 1


def test_a_backtest_emits_what_the_job_emitted(tmp_path: Path) -> None:
    """Run an alert with a window, a delay and hysteresis; a sample a second, a commit a second."""
    definition = alert(
        frame="3 seconds",
        agg={"mean": wr.avg("x")},
        when=wr.col("mean") > 75,
        until=wr.col("mean") < 50,
        actions={"mail": wr.Action(delay="1 second"), "log": wr.Action(repeat=wr.every(2))},
    )
    past = messages([70, 90, 95, 99, 60, 10, 10, 90, 99, 99])
    names = ["alert_id", "action", "status", "time", "mean"]
    emitted = definition.backtest(past, drain=False).select(names).to_pylist()
    clock, live = ManualClock(0), list[Any]()
    with definition.open(str(tmp_path), clock=clock) as op:
        for one in past:
            op.add_message(one)
            op.next_offsets()
            clock.advance("1 second")
            op.timeout()
        live = [{n: row[n] for n in names} for row in op.get_result()]
    assert len(live) > 6 and [{**r, "time": _plain(r["time"])} for r in emitted] == [
        {**r, "time": _plain(r["time"])} for r in live
    ]
