"""`wr.chain`: a value that prints as what builds it, and refuses what would be counted twice or too late."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow as wr
from windrow.core import errors as e


def one(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k", "event_time": "t", "window": wr.tumbling("1 second"), "agg": {"n": wr.count()},
        "retention": "1 minute", "emit": wr.Emit.append(), "name": "one",
    }  # fmt: skip
    return wr.Aggregate(**{**settings, **changes})


def two(**changes: Any) -> wr.Aggregate:
    changes = {"event_time": "window_time", "agg": {"n": wr.sum("n")}, "emit": None, "name": "two", **changes}
    return one(**changes)


def join(how: str = "inner", **changes: Any) -> wr.Join:
    settings: dict[str, Any] = {"within": ("-2 seconds", "5 seconds"), "on": "k", "name": "one", **changes}
    right = wr.Input("b", event_time="u", static=settings.pop("static", False))
    return wr.Join(left=wr.Input("a", event_time="t"), right=right, how=how, **settings)


def later(side: str = "right", **changes: Any) -> wr.Join:
    """A join that takes the rows of "one" on a side, and the input "c" on the other."""
    rows = wr.Input("one", event_time=changes.pop("event_time", "t"), **changes.pop("rows", {}))
    other = wr.Input(changes.pop("other", "c"), event_time="w", **changes.pop("outside", {}))
    left, right = (rows, other) if side == "left" else (other, rows)
    settings: dict[str, Any] = {"within": ("-2 seconds", "5 seconds"), "on": "k", "name": "two", **changes}
    return wr.Join(left=left, right=right, **settings)


def around(**changes: Any) -> wr.Over:
    options: dict[str, Any] = {"agg": {"m": wr.sum("n")}, **changes}
    return wr.Over(by="k", event_time="window_time", frame=("-1 s", 0), name="two", **options)


def driven(frame: Any) -> wr.Over:
    rows = wr.Input("one", event_time="window_time")
    agg = {"m": wr.count()}
    return wr.Over(
        event_time="t", input="c", anchors=rows, frame=frame, agg=agg, retention="1 day", name="two"
    )


def test_expressions_over_what_is_emitted_are_taken() -> None:
    parted = wr.sum(wr.col("n") * wr.col("window_start").cast("int64")).where(wr.col("k").is_valid())
    assert one().then(two(agg={"x": parted}, where=wr.col("window_end") > wr.col("window_start")))
    assert one(input="x").then(driven(wr.between("window_start", wr.col("window_end"))))


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("s", "x") > 0,
        (pc.field("s", "x") > wr.col("n")) & (pc.field("s", "y", "z") == wr.col("k")),
        pc.struct_field(wr.col("s"), ["x"]) > 0,
        pc.list_value_length(wr.col("s")) > wr.col("n"),
    ],
    ids=str,
)
def test_expressions_over_parts_of_what_is_emitted_are_taken(expression: Any) -> None:
    parts = one(agg={"n": wr.count(), "s": wr.first("s")})
    assert parts.then(two(where=expression))
    with pytest.raises(e.UnknownColumn, match="'two'"):
        parts.then(two(where=pc.field("other", "x") > 0))


def test_a_chain_is_a_value_that_prints_as_what_builds_it() -> None:
    chain = one().then(two())
    assert chain == wr.chain(one(), two()) and hash(chain) == hash(wr.chain(one(), two()))
    assert eval(repr(chain)) == chain == pickle.loads(pickle.dumps(chain))
    assert chain != one().then(two(by=())) and chain.name == "two" and chain.by == ("k",)
    third = two(name="three", emit=wr.Emit.append())
    longer = one().then(two(emit=wr.Emit.append())).then(third)
    assert longer == wr.chain(one(), two(emit=wr.Emit.append()), third) and len(longer.parts) == 3


def test_its_fingerprint_is_of_the_parts_and_their_order() -> None:
    a, b = two(name="a", emit=wr.Emit.append()), two(name="b", emit=wr.Emit.append())
    prints = {
        c.fingerprint
        for c in (one().then(two()), wr.chain(one(), a, b), wr.chain(one(), b, a), one().then(two(name="2")))
    }
    assert len(prints) == 4 and not prints & {one().fingerprint, two().fingerprint}
    assert one().then(two(retention="2 minutes")).fingerprint == one().then(two()).fingerprint


def test_what_is_taken_back_shapes_the_state_and_how_late_it_may_be() -> None:
    """Else what was counted would be taken back that was not, or the other way round."""
    again = one(emit=wr.Emit.update())
    prints = {
        chain.fingerprint
        for chain in (one().then(two()), again.then(two()), again.then(two(allowed_lateness="1 second")))
    }
    assert len(prints) == 3
    others = [one(emit=wr.Emit(mode="retracting")), one(emit=wr.Emit(early=wr.every(5)))]
    assert {o.then(two()).fingerprint for o in others} == {again.then(two()).fingerprint}


@pytest.mark.parametrize(
    ("first", "event_time", "seconds"),
    [
        (join(), "t", 5),  # the right partner comes up to five seconds of event time later
        (join(), "u", 2),
        (join("semi"), "t", 5),
        (join("left", allowed_lateness="10 seconds", retention="1 minute"), "t", 15),
        (join("anti", allowed_lateness="0 seconds"), "t", 5),
        (join("asof", within=("-2 seconds", "0 seconds"), allowed_lateness="3 seconds", retention="1 minute"), "t", 3),
        (one(), "window_time", 0),
    ],
)  # fmt: skip
def test_a_watermark_lags_by_what_rows_may_wait(first: Any, event_time: str, seconds: int) -> None:
    agg = {"n": wr.count()}
    assert first.then(two(event_time=event_time, agg=agg)).feeds[1][0].output_delay_us == seconds * 1_000_000


def test_a_later_join_takes_the_rows_on_either_side_and_has_an_input_of_its_own() -> None:
    agg = two(name="three", event_time="t", agg={"n": wr.count()})
    for chain in (join().then(later()).then(agg), join().then(later("left")).then(agg)):
        assert eval(repr(chain)) == chain == pickle.loads(pickle.dumps(chain))
        assert [i.name for i in chain.inputs] == ["a", "b", "c"] and chain.by_input and chain.name == "three"
        assert chain.feeds[1][0].output_delay_us == 5_000_000
    assert join().then(later()).then(agg).feeds[2][0].output_delay_us == 2_000_000
    assert join().then(later("left")).then(agg).feeds[2][0].output_delay_us == 5_000_000
    chain = one(watermark="3 seconds", input="x").then(later(event_time="window_time"))
    assert [(i.name, i.watermark) for i in chain.inputs] == [
        ("x", wr.bounded("3 seconds")),
        ("c", wr.bounded()),
    ]
    chain = one().then(later(event_time="window_time"))
    assert [i.name for i in chain.inputs] == ["one", "c"] and eval(repr(chain)) == chain


def test_operators_take_rows_of_any_before_them_and_inputs_may_be_shared() -> None:
    """A join of what two operators tell, of two inputs or of one."""
    a = one(input="orders", emit=wr.Emit.append())
    b = one(name="b", input="payments", emit=wr.Emit.append())
    sides = [wr.Input(n, event_time="window_time") for n in ("one", "b")]
    both = wr.Join(left=sides[0], right=sides[1], on="k", within=("0 seconds", "1 second"), name="both")
    graph = wr.chain(a, b, both)
    assert eval(repr(graph)) == graph and [i.name for i in graph.inputs] == ["orders", "payments"]
    assert [[f.part for f in feeds] for feeds in graph.feeds] == [[], [], [0, 1]]
    assert graph.by == ("k",) and [graph.keys(i) for i in graph.inputs] == [("k",), ("k",)]
    shared = wr.chain(a, one(name="b", input="orders", emit=wr.Emit.append()), both)
    assert [i.name for i in shared.inputs] == ["orders"] and shared.one_shard() is None
    finer = wr.chain(a, one(name="b", input="orders", by=("j", "k"), emit=wr.Emit.append()), both)
    assert finer.by == ("k",) and finer.one_shard() is None
    unkeyed = wr.chain(a, two(by=()))
    assert unkeyed.by == () and "share no key" in str(unkeyed.one_shard())


def test_keys_are_followed_through_the_names_that_joins_give_them() -> None:
    chain = wr.chain(
        join(on={"k": "b", "j": "l"}),
        later(on={"x": "j", "y": "k"}),
        two(name="three", by="x", event_time="t", agg={"n": wr.count()}),
    )
    assert chain.by == ("j",)
    assert [chain.keys(i) for i in chain.inputs] == [("j",), ("l",), ("x",)]
    left = join(on={"k": "b", "j": "l"}).then(later("left", on={"j": "x", "k": "y"}))
    assert left.by == ("k", "j") and left.keys(left.inputs[2]) == ("y", "x")
    assert join(on="k").then(later(on={"x": "other"})).by == ()


ROWS = wr.Input("one", event_time="t")
OWN_GAP = wr.session(wr.col("x"))
TAKES = {"by": "k", "event_time": "window_time", "retention": "1 day"}
BOTH = (wr.Input("one", event_time="window_time"), wr.Input("other", event_time="t"))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "one operator": (lambda: wr.chain(one()), e.ConfigurationError, ["1", "two or more"]),
    "one name": (lambda: one().then(two(name="one")), e.ConfigurationError, ["['one', 'one']", "name="]),
    "early panes for what takes none back": (
        lambda: one(emit=wr.Emit(early=wr.every_batch)).then(
            wr.Deduplicate(by="k", ids=wr.ids("n"), event_time="window_time", within="1 second", name="two")
        ), e.BadTrigger,
        ["'one'", "several times", "aggregates and joins over time take messages back", "append()"],
    ),
    "a value that nothing takes back": (
        lambda: one(emit=wr.Emit()).then(two(agg={"x": wr.first("n")})), e.BadTrigger,
        ["wr.Emit()", "'two'", "'x' is wr.first('n')", "one of count, sum, avg"],
    ),
    "corrections of what was discarded": (
        lambda: one(emit=wr.Emit.update()).then(two(emit=wr.Emit(mode="discarding"))), e.BadTrigger,
        ["wr.Emit.update()", "'two'", "mode 'discarding'", "another mode"],
    ),
    "corrections in sessions of messages": (
        lambda: one(emit=wr.Emit(mode="retracting")).then(
            two(window=wr.session(messages=3), retention=wr.Retain(messages=50, per="job"))
        ), e.BadTrigger,
        ["'retracting'", "wr.session(messages=3)", "other numbers", "windows of time"],
    ),
    "corrections in sessions of code that may raise": (
        lambda: one(emit=wr.Emit(mode="retracting")).then(
            two(window=wr.session("1 second"), agg={"x": wr.reduce(max, "n")})
        ), e.BadTrigger,
        ["'retracting'", "'x' is", "may raise", "another aggregation"],
    ),
    "sessions that fall apart before another": (
        lambda: wr.chain(
            one(emit=wr.Emit.update()), two(window=wr.session("1 second"), emit=wr.Emit.append()),
            two(name="three", agg={"x": wr.count()}),
        ), e.BadTrigger,
        ["'two'", "falls apart", "ended long ago", "come last"],
    ),
    "corrections of what size lets go of": (
        lambda: one(emit=wr.Emit.update()).then(two(retention=wr.Retain(windows=5))), e.BadTrigger,
        ["windows=5", "taken back", "by time"],
    ),
    "sessions that are told now and then": (
        lambda: one(window=wr.session("1 second"), emit=wr.Emit()).then(two()), e.BadTrigger,
        ["go on for any time", "early=wr.every_batch, late=wr.every_batch"],
    ),
    "sessions that are corrected later than is counted": (
        lambda: one(
            window=wr.session("1 second"), emit=wr.Emit(early=wr.every_batch, late=wr.every_batch)
        ).then(two(allowed_lateness="3 seconds")), e.BadTrigger,
        ["may grow for 1 minute", "later than 3 seconds", "allow as much"],
    ),
    "closing pane": (
        lambda: one(emit=wr.Emit(mode="discarding", closing_pane=True)).then(two()), e.BadTrigger,
        ["closing_pane=True", "again"],
    ),
    "nothing on time": (
        lambda: one(emit=wr.Emit(mode="discarding", on_time=False)).then(two()), e.BadTrigger,
        ["on_time=False", "on_time=True"],
    ),
    "tuple windows first": (
        lambda: one(window=wr.tuples(3), retention=wr.Retain(windows=5)).then(two()), e.BadWindow,
        ["wr.tuples(3)", "wr.tumbling"],
    ),
    "the global window first": (
        lambda: one(window=wr.global_window(), retention=wr.forever).then(two()), e.BadWindow, ["global_window", "wr.tumbling"],
    ),
    "a watermark of its own": (
        lambda: one().then(two(watermark="2 hours")), e.BadWatermark, ["'2 hours'", "'two'", "'one'", "leave it out"],
    ),
    "positions of its own": (
        lambda: one().then(two(positions=wr.positions("n"))), e.ConfigurationError, ["positions=", "leave it out"],
    ),
    "ids of its own": (lambda: one().then(two(ids=wr.ids("n"))), e.ConfigurationError, ["ids=", "leave it out"]),
    "a column in an expression": (
        lambda: one().then(two(agg={"x": wr.sum(wr.col("x") + wr.col("n"))})), e.UnknownColumn, ["(x, n)", "['k', 'n'"],
    ),
    "a column in the filter of an aggregation": (
        lambda: one().then(two(agg={"x": wr.sum("n").where(wr.col("x") > 0)})), e.UnknownColumn, ["(x > 0)", "'two'"],
    ),
    "a column in a filter": (lambda: one().then(two(where=wr.col("x") > 0)), e.UnknownColumn, ["(x > 0)", "'two'"]),
    "a column in a guarantee": (
        lambda: one().then(two(deliver=wr.deliver.latest().guarantee(wr.col("x")))), e.UnknownColumn, ["a column in x"],
    ),
    "a column around a row": (lambda: one().then(around(agg={"x": wr.sum("x")})), e.UnknownColumn, ["'x'", "'two'"]),
    "a selected column": (lambda: one().then(around(select="x")), e.UnknownColumn, ["'x'", "'two'"]),
    "a column that bounds windows": (
        lambda: one().then(driven(wr.between("x", "window_end"))), e.UnknownColumn, ["column 'x'", "'two'"],
    ),
    "a column in what bounds windows": (
        lambda: one().then(driven(wr.between("window_start", wr.col("x")))), e.UnknownColumn, ["in x of 'two'"],
    ),
    "a gap of an aggregate": (lambda: one().then(two(window=OWN_GAP)), e.UnknownColumn, ["'two'", "a column in", "x"]),
    "a gap of a join window": (
        lambda: one().then(wr.JoinWindow(name="two", **TAKES, window=OWN_GAP)), e.UnknownColumn, ["'two'", "a column in"],
    ),
    "a gap of a join": (
        lambda: one().then(wr.Join(left=BOTH[0], right=BOTH[1], on="k", window=OWN_GAP, retention="1 day", name="two")),
        e.UnknownColumn, ["'two'", "a column in"],
    ),
    "another event time": (lambda: one().then(two(event_time="t")), e.UnknownColumn, ["'t'", "event_time='window_time'"]),
    "a clash": (
        lambda: one(agg={"window_start": wr.count()}).then(two()), e.ReservedColumn, ["'window_start'", "'one'", "rename"],
    ),
    "a key that is not there": (lambda: one().then(two(by="g")), e.UnknownColumn, ["'g'", "'one'", "window_time"]),
    "a column that is not there": (
        lambda: one().then(two(agg={"x": wr.sum("x")})), e.UnknownColumn, ["'x'", "['k', 'n', 'window_time'", "agg="],
    ),
    "a join of others": (
        lambda: wr.chain(one(), join(name="two")), e.ConfigurationError,
        ["'two'", "['a', 'b']", "neither", "wr.Input('one', event_time=...)"],
    ),
    "a join of the rows with themselves": (
        lambda: join().then(wr.Join(left=ROWS, right=ROWS, on="k", within=("0 seconds", "1 second"), name="two")),
        e.ConfigurationError, ["'two'", "'one' with itself", "something else"],
    ),
    "an input twice": (
        lambda: join().then(later(other="b")), e.ConfigurationError,
        ["input 'b'", "event_time='u'", "event_time='w'", "names of their own"],
    ),
    "an input named as an operator": (
        lambda: wr.chain(join(), later(other="three"), two(name="three", event_time="t")),
        e.ConfigurationError, ["input 'three' of 'two'", "'one'", "another name"],
    ),
    "operators that have nothing in common": (
        lambda: wr.chain(one(), one(name="two", input="elsewhere")), e.ConfigurationError,
        ["'one' and 'two'", "wr.foreach_batch"],
    ),
    "rows that are static": (
        lambda: join().then(later(rows={"static": True})), e.ConfigurationError, ["'one'", "static=True", "leave it out"],
    ),
    "rows with a watermark": (
        lambda: join().then(later(rows={"watermark": "2 hours"})), e.BadWatermark, ["'2 hours'", "'two'", "leave it out"],
    ),
    "rows with positions": (
        lambda: join().then(later(rows={"positions": wr.positions("n")})), e.ConfigurationError, ["positions=", "leave it out"],
    ),
    "one explicit watermark": (
        lambda: join().then(later(rows={"watermark": wr.explicit()}, outside={"watermark": wr.explicit()})), e.BadWatermark,
        ["'a': wr.bounded(", "'c': wr.explicit()", "all inputs"],
    ),
    "a join by another time": (
        lambda: one().then(later(event_time="t")), e.UnknownColumn, ["'t'", "event_time='window_time'"],
    ),
    "a join on what panes lack": (
        lambda: one().then(later(on={"x": "g"}, event_time="window_time")), e.UnknownColumn, ["'g'", "'two'", "['k', 'n'"],
    ),
    "a join by a time that is null": (
        lambda: join("left").then(later(event_time="u")), e.ConfigurationError, ["'u'", "'two'", "how='inner'"],
    ),
    "a join by periods": (
        lambda: join(emit=wr.Emit(early=wr.every("1 second"), late=wr.every_batch)).then(two(event_time="t")),
        e.BadTrigger, ["early=wr.every('1 second')", "wr.every_batch"],
    ),
    "a time that is none": (lambda: join().then(two(event_time="v")), e.UnknownColumn, ["'v'", "'t' or 'u'"]),
    "a time that is null": (
        lambda: join("left").then(two(event_time="u")), e.ConfigurationError, ["'u'", "right message", "how='inner'"],
    ),
    "the time of a table": (
        lambda: join(static=True).then(two(event_time="u")), e.ConfigurationError, ["'u'", "'b'", "static", "other input"],
    ),
    "a join without bound": (
        lambda: join(within=None, retention=wr.forever).then(two(event_time="t")), e.BadWindow, ["no bound", "within="],
    ),
    "unmatched for ever": (
        lambda: join("left", retention=wr.forever).then(two(event_time="t")), e.BadWindow, ["no bound", "wr.forever"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused_with_both_values_and_the_remedy(case: str) -> None:
    make, kind, words = REFUSED[case]
    with pytest.raises(kind) as error:
        make()
    assert [w for w in words if w not in str(error.value)] == [], str(error.value)


@pytest.mark.parametrize(
    "emit", [wr.Emit.append(), wr.Emit(late=wr.never), wr.Emit(early=wr.every(9), mode="discarding")]
)
def test_what_is_emitted_once_is_accepted(emit: wr.Emit) -> None:
    assert one(emit=emit).then(two()).parts[0].emit == emit
