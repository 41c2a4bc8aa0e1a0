"""Delivery policies: what is passed on, and that what is not was heard all the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from windrow.core.errors import BadAggregate, BadDuration, ConfigurationError, ReservedColumn, UnknownColumn
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def delivery(policy: Any, **options: Any) -> wr.Delivery:
    return wr.Delivery(event_time="t", policy=policy, max_ahead=wr.forever, **options)


def test_the_latest_of_each_key_is_passed_on_and_the_others_advance_time(tmp_path: Path) -> None:
    messages = [
        {"k": "a", "t": 5 * S, "x": 1},
        {"k": "a", "t": 1 * S, "x": 2},
        {"k": "b", "t": 2 * S, "x": 1},
    ]
    with TestDriver(delivery(wr.deliver.latest(), by="k"), tmp_path) as driver:
        driver.feed(messages)
        driver.next_offsets()
        assert [(row.values["k"], row.values["x"]) for row in driver.committed_panes()] == [
            ("a", 2),
            ("b", 1),
        ]
        assert driver.op.counters["skipped"] == 1
        assert driver.op.watermark == 5 * S
        driver.check(dead_letters=True)


def test_what_is_too_old_when_the_step_is_made_is_skipped_to_the_microsecond(tmp_path: Path) -> None:
    with TestDriver(delivery(wr.deliver.within("2 seconds")), tmp_path, clock=ManualClock(10 * S)) as driver:
        driver.feed([{"t": 8 * S, "x": 1}, {"t": 8 * S - 1, "x": 2}])
        driver.advance_clock("1 second")
        driver.next_offsets()
        assert [row.values["x"] for row in driver.committed_panes()] == [1]
        driver.check(dead_letters=True)


KINDS = ["alarm", "beat", "alarm", "alarm", "beat", "beat"]


@pytest.mark.parametrize(
    ("n", "wanted"), [(1, [0, 2, 3]), (3, [0, 2, 3]), (4, [0, 2, 3, 5]), (9, list(range(6)))]
)
def test_what_is_guaranteed_always_passes_and_fills_places(n: int, wanted: list[int], tmp_path: Path) -> None:
    definition = delivery(wr.deliver.newest(n), guarantee=wr.col("kind") == "alarm")
    with TestDriver(definition, tmp_path) as driver:
        driver.feed([{"t": i, "kind": kind, "x": i} for i, kind in enumerate(KINDS)])
        driver.next_offsets()
        assert [row.values["x"] for row in driver.committed_panes()] == wanted
        driver.check(dead_letters=True)


def test_a_delivery_is_before_one_input_of_a_join(tmp_path: Path) -> None:
    quotes = delivery(wr.deliver.latest(), by="k", input="everything", name="quotes")
    joined = wr.Join(
        left=wr.Input("trades", event_time="at", max_ahead=wr.forever),
        right=wr.Input("quotes", event_time="t"),
        on="k",
        within=("-5 seconds", "5 seconds"),
    )
    with TestDriver(quotes.then(joined), tmp_path) as driver:
        driver.feed([{"k": "a", "t": 1 * S, "x": 1}, {"k": "a", "t": 2 * S, "x": 2}], "everything")
        driver.feed([{"k": "a", "at": 3 * S}], "trades")
        driver.drain()
        driver.check(dead_letters=True)
        assert [row.values["x"] for row in driver.committed_panes()] == [2]


def totals(**options: Any) -> wr.Aggregate:
    what: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "x": wr.collect_list("x")},
        "retention": "1 minute",
        "max_ahead": wr.forever,
    }
    return wr.Aggregate(**{**what, **options})


marking = st.sampled_from(
    [
        wr.deliver.latest(),
        wr.deliver.newest(2, per="input"),
        wr.deliver.newest(1).guarantee(wr.col("x") == 2),
        wr.deliver.throttle("1 second"),
        wr.deliver.within("0 seconds"),
    ]
)

SOME = [
    {"k": k, "t": t * S, "x": x}
    for x, (k, t) in enumerate([("a", 5), ("a", 1), ("b", 2), ("a", 3), ("b", 14)])
]


TAKEN: list[tuple[Any, dict[str, list[int]]]] = [
    (wr.deliver.latest(), {"a": [3], "b": [4]}),
    (wr.deliver.newest(3, per="input"), {"a": [3], "b": [2, 4]}),
    (wr.deliver.newest(1, per="input").guarantee(wr.col("x") == 1), {"a": [1]}),
    (wr.deliver.newest(1).guarantee(wr.col("x") == 1).guarantee(wr.col("x") == 2), {"a": [1], "b": [2]}),
    (wr.deliver.within("15 seconds"), {"a": [0], "b": [4]}),
    (wr.deliver.throttle("1 second"), {"a": [3], "b": [4]}),
    (wr.deliver.synchronous(), {"a": [0, 1, 3], "b": [2, 4]}),
    (wr.deliver.all(), {"a": [0, 1, 3], "b": [2, 4]}),
]


def around(deliver: Any = None) -> wr.Over:
    return wr.Over(event_time="t", frame=("-1 second", 0), agg={"n": wr.count()}, deliver=deliver)


def test_all_messages_is_what_no_policy_says_and_what_needs_no_arguments_may_be_named_alone() -> None:
    plain = totals()
    for every in (wr.deliver.all(), wr.deliver.all, wr.deliver.all().guarantee(wr.col("x") == 1)):
        assert totals(deliver=every) == plain and totals(deliver=every).fingerprint == plain.fingerprint
        source = wr.Input("a", event_time="t", deliver=every)
        assert source.deliver is None and source == wr.Input("a", event_time="t")
    for job, named in (
        (around(), around(wr.deliver.all)),
        (around(wr.deliver.latest()), around(wr.deliver.latest)),
    ):
        assert job == named == eval(repr(named)) and repr(job) == repr(named)
    assert totals(deliver=wr.deliver.synchronous).deliver == wr.deliver.synchronous() != wr.deliver.all()
    assert totals(deliver=wr.deliver.latest) == totals(deliver=wr.deliver.latest())
    assert delivery(wr.deliver.all()).deliver is None and repr(wr.deliver.all()) == "wr.deliver.all()"
    with pytest.raises(ConfigurationError, match="skips some"):
        wr.deliver.all().marked()
    with pytest.raises(ConfigurationError, match=r"use wr.deliver.latest\(\)"):
        totals(deliver=wr.deliver.newest)


def test_who_counts_what_nobody_marked_is_shown_how_to_mark_it(tmp_path: Path) -> None:
    job = totals(agg={"missed": wr.skipped()}, deliver=wr.deliver.latest())
    with (
        job.open(str(tmp_path)) as op,
        pytest.raises(UnknownColumn, match=r"deliver=wr.deliver.latest\(\).marked\(\)"),
    ):
        op.add_messages(SOME)


@pytest.mark.parametrize(("policy", "wanted"), TAKEN, ids=lambda value: repr(value)[:40])
def test_an_aggregate_takes_of_a_step_what_its_policy_lets_pass(
    policy: Any, wanted: dict[str, list[int]], tmp_path: Path
) -> None:
    with TestDriver(totals(deliver=policy), tmp_path, clock=ManualClock(20 * S)) as driver:
        driver.feed(SOME)
        driver.next_offsets()
        taken = sum(map(len, wanted.values()))
        assert driver.op.counters.get("skipped", 0) == len(SOME) - taken
        assert driver.op.watermark == 14 * S  # all were heard
        driver.drain()
        driver.check(dead_letters=True)
        values: dict[str, list[int]] = {}
        for pane in driver.committed_panes():
            values[pane.key["k"]] = values.get(pane.key["k"], []) + pane.values["x"]
        assert values == wanted


@pytest.mark.parametrize(("policy", "wanted"), TAKEN, ids=lambda value: repr(value)[:40])
def test_a_window_around_each_message_is_of_those_that_its_policy_lets_pass(
    policy: Any, wanted: dict[str, list[int]], tmp_path: Path
) -> None:
    agg = {"near": wr.collect_list("x", order="event_time")}
    definition = wr.Over(
        by="k", event_time="t", frame=("-20 seconds", "20 seconds"), agg=agg, select="x", deliver=policy
    )
    with TestDriver(definition, tmp_path, clock=ManualClock(20 * S)) as driver:
        driver.feed(SOME)
        driver.drain()
        driver.check(dead_letters=True)
        values: dict[str, list[int]] = {}
        for row in driver.committed_panes():
            assert sorted(row.values["near"]) == wanted[row.values["k"]]
            values[row.values["k"]] = sorted([*values.get(row.values["k"], []), row.values["x"]])
        assert values == wanted


def test_a_throttle_remembers_when_it_took_one_until_the_interval_is_over(tmp_path: Path) -> None:
    definition = totals(
        deliver=wr.deliver.throttle("5 seconds"), window=wr.global_window(), retention=wr.forever
    )
    with TestDriver(definition, tmp_path, clock=ManualClock(0)) as driver:
        for x, (k, seconds) in enumerate([("a", 0), ("a", 4), ("b", 0), ("a", 1), ("a", 4), ("b", 2)]):
            driver.advance_clock(f"{seconds} seconds")
            driver.feed([{"k": k, "t": x * S, "x": x}])
            driver.next_offsets()
            driver.crash()
            driver.restart()
        driver.drain()
        driver.check(dead_letters=True)
        [a, b] = driver.committed_panes()[-2:]
        assert (a.values["x"], b.values["x"]) == ([0, 3], [2, 5])


def test_what_is_skipped_is_kept_with_its_reason_where_that_is_asked_for(tmp_path: Path) -> None:
    definition = totals(deliver=wr.deliver.latest(record="dead_letters"), input="readings")
    with TestDriver(definition, tmp_path) as driver:
        driver.feed(SOME, "readings")
        driver.next_offsets()
        driver.check(dead_letters=True)
        letters = driver.op.dead_letters()
        assert [(one.reason, one.input, one.event_time_us) for one in letters] == [
            ("skipped", "readings", t * S) for t in (5, 1, 2)
        ]
        assert driver.op.counters["dead.skipped"] == driver.op.counters["skipped"] == 3


def test_what_is_skipped_is_emitted_with_a_mark_and_counted_in_its_window(tmp_path: Path) -> None:
    newest = delivery(wr.deliver.newest(2), by="k", mark="skipped")
    means = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), retention="1 minute", emit=wr.Emit.append(),
        agg={"mean": wr.avg("x").where(~wr.col("skipped")), "missed": wr.skipped()},
    )  # fmt: skip
    messages = [{"k": "a", "t": t * S, "x": t} for t in (1, 2, 3, 4, 11)] + [{"k": "b", "t": 5 * S, "x": 5}]
    with TestDriver(newest, tmp_path / "rows") as driver:
        driver.feed(messages)
        driver.next_offsets()
        rows = [(row.values["k"], row.values["x"], row.values["skipped"]) for row in driver.committed_panes()]
        assert sorted(rows) == [
            ("a", 1, True), ("a", 2, True), ("a", 3, True), ("a", 4, False), ("a", 11, False), ("b", 5, False),
        ]  # fmt: skip
        assert driver.op.counters["skipped"] == 3
        driver.check(dead_letters=True)
    with TestDriver(newest.then(means), tmp_path / "windows") as driver:
        driver.feed(messages)
        driver.drain()
        driver.check(dead_letters=True)
        panes = [(p.key["k"], p.values["mean"], p.values["missed"]) for p in driver.committed_panes()]
        assert sorted(panes) == [("a", 4.0, 3), ("a", 11.0, 0), ("b", 5.0, 0)]


@pytest.mark.parametrize("window", [wr.tumbling("10 seconds"), wr.session("3 seconds")], ids=repr)
def test_an_aggregate_counts_what_it_skips_in_its_own_windows(window: Any, tmp_path: Path) -> None:
    """`a` is heard at 1, 2, 3, 4 and 11 s, of which the newest two are taken; `b` at 5 s."""
    messages = [{"k": "a", "t": t * S, "x": t} for t in (1, 2, 3, 4, 11)] + [{"k": "b", "t": 5 * S, "x": 5}]
    wanted = [("a", 1, 4.0, [4], 4, 3), ("a", 1, 11.0, [11], 11, 0), ("b", 1, 5.0, [5], 5, 0)]
    agg = {
        "n": wr.count(), "mean": wr.avg("x"), "x": wr.collect_list("x"), "big": wr.max("x").where(wr.col("x") > 2),
        "missed": wr.skipped(),
    }  # fmt: skip
    marked = totals(window=window, agg=agg, deliver=wr.deliver.newest(2).marked(), emit=wr.Emit.append())
    with TestDriver(marked, tmp_path) as driver:
        driver.feed(messages)
        assert driver.op.counters["skipped"] == 3
        driver.next_offsets()
        driver.crash()
        driver.restart()
        driver.drain()
        driver.check(dead_letters=True)
        panes = [(p.key["k"], *p.values.values()) for p in driver.committed_panes()]
        assert sorted(panes) == wanted


@given(st.data())
@examples(8, deep=300)
def test_what_an_aggregate_marks_it_emits_as_after_a_delivery_that_marks_it(data: st.DataObject) -> None:
    mark, policy = data.draw(st.sampled_from(["skipped", "left_out"])), data.draw(marking)
    said = {
        "window": data.draw(
            st.sampled_from([wr.tumbling("4 seconds"), wr.session("2 seconds"), wr.tuples(3)])
        ),
        "retention": wr.Retain(windows=9),
        "by": data.draw(st.sampled_from(["k", ()])),
    }
    taken = ~wr.col(mark)
    agg = {"n": wr.count(), "x": wr.collect_list("x"), "far": wr.median("x").where(wr.col("x") > 1)}
    alone = totals(**said, agg={**agg, "missed": wr.skipped(mark)}, deliver=policy.marked(mark))
    behind = totals(
        **said | {"max_ahead": None},
        agg={n: a.where(taken) for n, a in agg.items()} | {"missed": wr.skipped(mark)},
    )
    before = delivery(policy, by=said["by"], mark=mark)
    times = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), min_size=1, max_size=8)
    steps = data.draw(st.lists(times, min_size=1, max_size=3))
    marks = []
    for definition in (alone, before.then(behind)):
        with tempfile.TemporaryDirectory() as folder, TestDriver(definition, Path(folder)) as driver:
            for step in steps:
                driver.feed([{"k": k, "t": t * S, "x": x} for x, (k, t) in enumerate(step)])
                driver.advance_clock("700 milliseconds")
            driver.drain()
            driver.check(dead_letters=True)
            last = {(repr(p.key), repr(p.window)): repr(p.values) for p in driver.committed_panes()}
            marks.append((last, driver.op.counters.get("skipped", 0)))
    assert marks[0] == marks[1]


def test_a_mark_that_the_operator_before_emits_is_refused_where_the_chain_is_built() -> None:
    first = totals(agg={"skipped": wr.count()}, emit=wr.Emit.append(), name="first")
    marked = {"event_time": "window_time", "max_ahead": None, "agg": {"n": wr.count()}, "name": "second"}
    with pytest.raises(ReservedColumn, match=r"mark='skipped' of 'second'.* of 'first', whose panes have"):
        first.then(totals(**marked, deliver=wr.deliver.latest().marked()))
    first.then(totals(**marked, deliver=wr.deliver.latest().marked("left_out")))


def test_neither_mark_nor_record_of_a_delivery_decides_what_is_filed() -> None:
    policy = wr.deliver.latest().guarantee(wr.col("x") == 1)
    noted = {"deliver": {"": "wr.deliver.latest(record='rows').guarantee((x == 1))"}}
    assert delivery(policy, by="k", mark="skipped").filing() == noted
    assert delivery(policy, by="k").filing() == {"deliver": {"": repr(policy)}}


def test_an_aggregate_marks_in_no_column_of_its_input_and_others_mark_nothing(tmp_path: Path) -> None:
    marked = totals(deliver=wr.deliver.latest().marked())
    with pytest.raises(ReservedColumn, match="give the mark another one"):
        schema = pa.schema(
            [("t", pa.int64()), ("k", pa.string()), ("x", pa.int64()), ("skipped", pa.int64())]
        )
        marked.open(str(tmp_path / "a"), schema=schema)
    with (
        marked.open(str(tmp_path / "b")) as op,
        pytest.raises(ReservedColumn, match="give the mark another one"),
    ):
        op.add_messages(pa.table({"t": [0], "k": ["a"], "x": [1], "skipped": [True]}))
    for error, make in (
        (ReservedColumn, lambda: totals(deliver=wr.deliver.latest().marked("k"))),
        (ConfigurationError, lambda: wr.deliver.synchronous().marked()),
        (ConfigurationError, lambda: wr.deliver.latest(record="dead_letters").marked()),
        (ConfigurationError, lambda: wr.Input("a", event_time="t", deliver=wr.deliver.latest().marked())),
        (ConfigurationError, lambda: delivery(wr.deliver.latest().marked())),
        (ConfigurationError, lambda: wr.Deduplicate(by="k", event_time="t", within="1 s", deliver=marked.deliver)),
    ):  # fmt: skip
        with pytest.raises(error, match="mark"):
            make()


def test_a_mark_is_next_to_no_column_and_no_other_place_for_what_is_skipped(tmp_path: Path) -> None:
    for options, error in (
        ({"mark": "t"}, ReservedColumn),
        ({"mark": "k", "by": "k"}, ReservedColumn),
        ({"mark": "pane"}, ReservedColumn),
        ({"mark": "late", "policy": wr.deliver.latest(record="dead_letters")}, ConfigurationError),
        ({"mark": "late", "policy": wr.deliver.synchronous()}, ConfigurationError),
    ):
        with pytest.raises(error, match="mark='"):
            delivery(**{"policy": wr.deliver.latest(), **options})
    with pytest.raises(BadAggregate, match=r"wr\.Delivery"):
        wr.skipped(3)  # type: ignore[arg-type]
    marked = delivery(wr.deliver.latest(), mark="skipped")
    assert eval(repr(marked)) == marked and marked.fingerprint != delivery(wr.deliver.latest()).fingerprint
    with pytest.raises(ReservedColumn, match="give the mark another one"):
        marked.open(str(tmp_path / "a"), schema=pa.schema([("t", pa.int64()), ("skipped", pa.bool_())]))
    with marked.open(str(tmp_path / "b")) as op, pytest.raises(ReservedColumn, match="give the mark another"):
        op.add_messages(pa.table({"t": [0], "skipped": [True]}))


def test_a_synchronous_input_is_committed_and_emitted_before_the_call_returns(tmp_path: Path) -> None:
    sink = wr.sinks.memory()
    definition = totals(deliver=wr.deliver.synchronous(), emit=wr.Emit(early=wr.every_batch))
    with definition.open(str(tmp_path), sink=sink, clock=ManualClock(20 * S)) as op:
        for n, message in enumerate(SOME, 1):
            op.add_message(message)
            assert len(sink.panes) >= n


def test_both_inputs_of_windows_that_another_stream_drives_have_policies_of_their_own(tmp_path: Path) -> None:
    """The source and the window delivery policy of \\psi."""
    definition = wr.Over(
        by="k", event_time="t", input="readings", frame=("-9 seconds", 0), agg={"x": wr.collect_list("x")}, select="m",
        max_ahead=wr.forever, deliver=wr.deliver.newest(2),
        anchors=wr.Input("marks", event_time="t", max_ahead=wr.forever, deliver=wr.deliver.latest()),
    )  # fmt: skip
    with TestDriver(definition, tmp_path) as driver:
        driver.feed(SOME, "readings")
        driver.feed([{"k": "a", "t": t * S, "m": t} for t in (5, 7, 6)], "marks")
        driver.drain()
        driver.check(dead_letters=True)
        [row] = driver.committed_panes()
        assert (row.values["m"], row.values["x"]) == (6, [1, 3])
        assert driver.op.counters["skipped"] == 3


def test_messages_of_an_input_with_a_policy_come_back_by_running_all_steps_again(tmp_path: Path) -> None:
    definition = totals(agg={"middle": wr.median("x")}, deliver=wr.deliver.latest())
    assert totals(agg={"middle": wr.median("x")}).logic().refiling().every_step is False
    assert definition.logic().refiling().every_step


def test_policies_that_cannot_be_are_refused() -> None:
    for error, make in (
        (ConfigurationError, lambda: wr.deliver.newest(0)),
        (BadDuration, lambda: wr.deliver.within("-1 second")),
        (ConfigurationError, lambda: delivery("latest")),
        (ConfigurationError, lambda: totals(deliver="latest")),
        (ConfigurationError, lambda: totals(deliver=wr.deliver.latest(), ids="x")),
        (ConfigurationError, lambda: totals(deliver=wr.deliver.latest(), by={"k": wr.col("x")})),
        (ConfigurationError, lambda: wr.deliver.latest(per="partition")),
        (ConfigurationError, lambda: wr.deliver.latest(record="letters")),
        (BadDuration, lambda: wr.deliver.throttle("0 seconds")),
        (ConfigurationError, lambda: wr.Input("a", event_time="t", static=True, deliver=wr.deliver.latest())),
        (ConfigurationError, lambda: delivery(wr.deliver.latest(), guarantee="x")),
    ):
        with pytest.raises(error):
            make()


def test_a_filter_reads_event_time_as_the_operator_does_whatever_types_it_comes_in(tmp_path: Path) -> None:
    since = pc.scalar(pa.scalar(1, pa.timestamp("us", "UTC")))
    definition = totals(where=wr.col("t") > since, deliver=wr.deliver.newest(9))
    with definition.open(str(tmp_path)) as op:
        for step, kind in enumerate((pa.timestamp("us", "UTC"), pa.int64())):
            times = pa.array([5 * S, 6 * S], pa.int64()).cast(kind)
            op.add_messages(pa.table({"k": ["a", "a"], "t": times, "x": [step, step]}))
        op.drain()
        assert [pane["n"] for pane in op.get_result()] == [4]
