"""Windows around messages among other operators, in readers, and of a definition that is changed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import BadTrigger, ConfigurationError, DefinitionChanged
from windrow.runners.state.definition_parser import evaluate
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def near(**options: Any) -> wr.Over:
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "frame": wr.range_between("-2 seconds", "1 second"),
        "agg": {"near": wr.sum("x")},
        "name": "near",
        "max_ahead": wr.forever,
    }
    return wr.Over(**{**what, **options})


def counts(**options: Any) -> wr.Aggregate:
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("5 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("x")},
        "retention": "1 minute",
        "emit": wr.Emit.append(),
        "name": "counts",
    }
    return wr.Aggregate(**{**what, **options})


def messages(n: int = 30) -> list[dict[str, Any]]:
    return [{"k": "ab"[i % 3 == 0], "t": (i + (0, 0, -1)[i % 3]) * S, "x": i * 7 % 11} for i in range(n)]


CHAINS: dict[str, Any] = {
    "smoothed, then summed up": lambda: near().then(counts(agg={"m": wr.max("near"), "n": wr.count()})),
    "summed up, then smoothed": lambda: counts(max_ahead=wr.forever).then(
        near(event_time="window_time", agg={"three": wr.avg("total").over(3)}, ttl="1 minute", frame=None)
    ),
    "waiting for messages, then summed up": lambda: near(
        frame=(0, 2), ttl="3 seconds", agg={"near": wr.sum("x")}
    ).then(counts(agg={"m": wr.max("near")})),
    "twice": lambda: near().then(near(name="again", agg={"nearer": wr.sum("near")}, frame=("-1 second", 0))),
}


@pytest.mark.parametrize("name", CHAINS)
def test_windows_around_messages_before_and_after_others(name: str, tmp_path: Path) -> None:
    with TestDriver(CHAINS[name](), tmp_path, clock=ManualClock()) as driver:
        for n, message in enumerate(messages()):
            driver.add(wr.Message(message, wr.Position("s", 0, n)))
            if n % 8 == 5:
                driver.next_offsets()
        driver.drain()
        expected = driver.check(dead_letters=True)
        assert expected.rows
        assert {letter.reason for letter in expected.dead_letters} <= {"too_late"}


def test_an_aggregate_after_windows_that_are_corrected_comes_to_what_messages_in_order_give(
    tmp_path: Path,
) -> None:
    corrects = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
    job = near(emit=corrects, allowed_lateness="1 minute").then(
        counts(
            agg={"n": wr.count(), "near": wr.sum("near"), "most": wr.max("near")},
            emit=wr.Emit(late=wr.every_batch),
        )
    )
    one_after_another = messages(40)
    mixed = sorted(one_after_another, key=lambda m: (m["t"] // (9 * S), -m["t"]))
    outcomes = []
    for name, rows in (("in order", one_after_another), ("mixed", mixed)):
        with TestDriver(job, tmp_path / name, clock=ManualClock()) as driver:
            for n, message in enumerate(rows):
                driver.add(wr.Message(message, wr.Position("s", 0, n)))
                if n == 17:
                    driver.restart()
            driver.drain()
            assert not driver.check(dead_letters=True).dead_letters
            last = {(pane.window, pane.key["k"]): pane.values for pane in driver.committed_panes()}
            outcomes.append(last)
    assert outcomes[0] == outcomes[1]


def test_rows_that_are_updated_are_not_followed_by_what_cannot_take_them_back() -> None:
    retracting = wr.Emit(late=wr.every_batch, mode="retracting")
    for emit, second, remedy in (
        (wr.Emit(late=wr.every_batch), counts(), "mode='retracting'"),
        (retracting, counts(agg={"m": wr.first("near")}), "takes no value back"),
        (
            retracting,
            wr.Deduplicate(by="k", event_time="t", within="1 hour"),
            "it does not",
        ),
        (retracting, counts(deliver=wr.deliver.latest()), "was skipped"),
    ):
        with pytest.raises(BadTrigger, match=remedy):
            near(emit=emit, allowed_lateness="1 second").then(second)


def test_what_waits_for_messages_for_ever_is_not_followed() -> None:
    with pytest.raises(ConfigurationError, match="ttl such as '1 hour'"):
        near(frame=(0, 2), ttl=wr.forever).then(counts())


def test_the_next_operator_is_late_by_as_much_as_the_frames_reach_ahead(tmp_path: Path) -> None:
    """None of its rows is too late there."""
    with near().then(counts()).open(str(tmp_path), clock=ManualClock()) as op:
        for n in range(20):
            op.add_message({"k": "a", "t": n * S, "x": 1})
        op.drain()
        assert sum(pane["n"] for pane in op.get_result()) == 20
        assert op.dead_letters() == []


def test_kept_messages_are_answered_and_go_when_no_window_can_hold_them(tmp_path: Path) -> None:
    definition = near(agg={"near": wr.sum("x"), "two": wr.count().over(2)}, ttl="1 hour", by="k")
    with definition.open(str(tmp_path / "job"), clock=ManualClock()) as op:
        for k, t in (("b", 1), ("a", 1), ("a", 3), ("a", 6), ("a", 7)):
            op.add_message({"k": k, "t": t * S, "x": t})
        # Settled is what is before 6; windows of what is not reach back to 4, and by count to the last of each key.
        kept = [(m.payload["k"], m.event_time_us // S) for m in op.get_messages()]
        assert kept == [("b", 1), ("a", 3), ("a", 6), ("a", 7)]
        assert [m.event_time_us // S for m in op.get_messages(start=2 * S, key="a")] == [3, 6, 7]
        op.next_offsets()
        with wr.read_state(str(tmp_path / "job")) as state:
            assert [(m.payload["k"], m.event_time_us // S) for m in state.get_messages()] == kept


def test_messages_are_kept_for_queries_as_long_as_is_said_and_no_shorter_than_windows_need(
    tmp_path: Path,
) -> None:
    for retention, kept in (
        (None, [5, 6, 7, 8]),
        ("1 second", [5, 6, 7, 8]),
        ("5 seconds", [3, 4, 5, 6, 7, 8]),
    ):
        with near(retention=retention).open(str(tmp_path / str(retention)), clock=ManualClock()) as op:
            for t in range(9):
                op.add_message({"k": "a", "t": t * S, "x": t})
            assert [m.event_time_us // S for m in op.get_messages()] == kept
    with near(retention=wr.forever).open(str(tmp_path / "forever"), clock=ManualClock()) as op:
        op.add_message({"k": "a", "t": 0, "x": 0})
        op.drain()
        assert len(op.get_messages()) == 1
    with pytest.raises(ConfigurationError, match="retention '-1 s' is negative"):
        near(retention="-1 s")


def test_a_row_is_explained_by_the_messages_in_its_windows(tmp_path: Path) -> None:
    two = wr.collect_list("x").over(wr.rows_between(-3, -2, partial="emit"))
    definition = near(agg={"near": wr.collect_list("x"), "two": two}, ttl="1 hour", retention="2 hours")
    job = definition.then(counts(agg={"m": wr.median("x")}, retention="1 hour"))
    rows = {}
    for name, what in (("alone", definition), ("chain", job)):
        with what.open(str(tmp_path / name), clock=ManualClock()) as op:
            for n in range(30):
                message = {"k": "ab"[n % 2], "t": n * S // 2, "x": n}
                op.add_message(wr.Message(message, wr.Position("s", 0, n)))
            rows[name] = op.get_result()
    with wr.read_state(str(tmp_path / "alone")) as state:
        assert len(rows["alone"]) > 20
        for row in rows["alone"]:
            [reason] = state.explain(row)
            assert [p.offset for p in reason.positions or ()] == sorted({*row["near"], *row["two"]})
            assert reason.complete and reason.outside == reason.positions
        [at] = state.explain(2 * S, key="a")
        assert [p.offset for p in at.positions or ()] == [0, 2, 4, 6]
    with wr.read_state(str(tmp_path / "chain")) as state:
        [why] = state.explain(rows["chain"][0])
        # Five seconds of one key, and the two seconds before and the one after that are in windows of theirs.
        assert [p.offset for p in why.outside or ()] == [0, 2, 4, 6, 8, 10]


def test_a_row_whose_messages_are_forgotten_is_not_explained_by_what_is_left(tmp_path: Path) -> None:
    definition = near(agg={"near": wr.sum("x").over("2 seconds"), "all": wr.sum("x").over()}, ttl="1 hour")
    with definition.open(str(tmp_path), clock=ManualClock()) as op:
        for t in range(9):
            op.add_message({"k": "a", "t": t * S, "x": t})
        row = op.get_result()[-1]
        op.next_offsets()
        with wr.read_state(str(tmp_path)) as state:
            [why] = state.explain(row)
            assert why.positions is None and why.row == row.values


def test_a_definition_is_the_value_that_its_text_says() -> None:
    definition = near(
        agg={
            "n": wr.count().over(),
            "two": wr.stddev("x", ddof=0).over(wr.rows_between(-1, 0, partial="null")),
        },
        ttl="1 hour",
        select=("x",),
    )
    assert evaluate(repr(definition)) == definition == pickle.loads(pickle.dumps(definition))
    assert "wr.count().over(wr.rows_between(wr.forever, 0))" in repr(definition)


@pytest.mark.parametrize(
    "change",
    [{"frame": ("-3 seconds", "1 second")}, {"agg": {"near": wr.avg("x")}}, {"select": ("x",)}, {"by": ()}],
)
def test_another_frame_does_not_read_the_state(change: dict[str, Any], tmp_path: Path) -> None:
    with near().open(str(tmp_path), clock=ManualClock()) as op:
        op.add_message({"k": "a", "t": 0, "x": 1})
    with pytest.raises(DefinitionChanged):
        near(**change).open(str(tmp_path))
