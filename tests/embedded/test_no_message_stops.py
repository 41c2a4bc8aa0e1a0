"""No message stops a job: after any message the next commit succeeds, and the message is counted or is one dead letter."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.embedded.hostile import OPERATORS, play
from windrow.runners.rows import MOST_COLUMNS
from windrow.testing.clock import ManualClock

S = 1_000_000
NOON = 1_577_880_000 * S


def committed(definition: Any, location: str, *steps: Any, again: bool = False, **options: Any) -> Any:
    """An operator after steps of (input, messages), a commit after each. again: it is opened anew before each."""
    clock = ManualClock(NOON)
    op = definition.open(location, clock=clock, **options)
    for input, messages in steps:
        if again:
            op.close()
            op = definition.open(location, clock=clock, **options)
        op.add_messages(messages, *filter(None, [input]))
        op.next_offsets()  # a commit
    return op


@pytest.mark.parametrize("again", [False, True], ids=["", "opened anew"])
@pytest.mark.parametrize("order", ["position", "event_time"])
def test_a_new_column_is_no_change_of_windows_that_count_messages(
    tmp_path: Path, order: str, again: bool
) -> None:
    sums = wr.Over(
        by="k",
        event_time="t",
        agg={"s": wr.sum("v")},
        frame=wr.rows_between(-1, 0, order=order, partial="emit"),  # type: ignore[arg-type]
        ttl="1 hour",
    )
    row = {"t": NOON, "k": "a", "v": 1}
    steps = [
        (None, [row]),
        (None, [{**row, "z": 5}]),
        (None, [{**row, "k": "b"}]),
        (None, [{**row, "v": 1.5}]),
    ]
    with committed(sums, str(tmp_path), *steps, again=again) as op:
        op.drain()
        rows = [(r["k"], r["s"], r.values.get("z")) for r in op.get_result()]
        assert sorted(rows)[-1] == ("b", 1, None) and ("a", 2.5, None) in rows and len(op.dead_letters()) == 0


@pytest.mark.parametrize("kind", ["messages", "tables"])
def test_a_column_that_windows_around_messages_do_not_need_may_change_its_type(
    tmp_path: Path, kind: str
) -> None:
    spans = {
        "itself": {"frame": wr.rows_between(-1, 0, partial="emit"), "ttl": "1 hour"},
        "anchors": {
            "frame": wr.range_between("-1 hour", "0 seconds"),
            "retention": "1 hour",
            "input": "a",
            "anchors": wr.Input("b", event_time="t"),
        },
    }
    for name, span in spans.items():
        sums = wr.Over(by="k", event_time="t", agg={"s": wr.sum("v")}, select=("u",), **span)  # type: ignore[arg-type]
        rows = [{"t": NOON, "k": "a", "v": 1, "u": 1, "x": x} for x in (1, "one", [1])]
        many = [[r] if kind == "messages" else pa.Table.from_pylist([r]) for r in rows]
        steps = [(i, batch) for batch in many for i in (("a", "b") if "input" in span else (None,))]
        with committed(sums, str(tmp_path / name), *steps) as op:
            op.drain()
            assert len(op.get_result()) == 3 and len(op.dead_letters()) == 0


def in_zone(make: type[Any] = wr.Input, *args: Any, **options: Any) -> Any:
    return make(*args, event_time="t", time_zone="Europe/Berlin", **options)


def counting(**options: Any) -> Any:
    agg = {"n": wr.count()}
    return in_zone(
        wr.Aggregate, by="k", window=wr.tumbling("1 second"), retention="1 day", agg=agg, **options
    )


JOINED = {"on": "k", "within": ("-1 second", "1 second"), "retention": "1 day"}
#: Operators of every kind, by their inputs, whose event times are read in one zone.
READING: dict[str, tuple[Any, tuple[str, ...]]] = {
    "aggregate": (counting(input="a"), ("a",)),
    "deduplicated": (
        wr.chain(in_zone(wr.Deduplicate, by=("k", "v"), within="1 day", input="a"), counting(name="counts")),
        ("a",),
    ),
    "join after aggregate": (
        wr.chain(
            counting(input="a", name="counts"),
            wr.Join(
                left=wr.Input("counts", event_time="window_time"), right=in_zone(wr.Input, "b"), **JOINED
            ),
        ),
        ("a", "b"),
    ),
    "join": (wr.Join(left=in_zone(wr.Input, "a"), right=in_zone(wr.Input, "b"), **JOINED), ("a", "b")),
    "cogroup": (
        wr.CoGroup(
            inputs=[in_zone(wr.Input, "a"), in_zone(wr.Input, "b")],
            by="k",
            window=wr.tumbling("1 second"),
            retention="1 day",
            agg={"n": wr.count()},
        ),
        ("a", "b"),
    ),
    "anchors": (
        in_zone(
            wr.Over,
            by="k",
            agg={"n": wr.count()},
            frame=wr.range_between("-1 hour", "0 seconds"),
            retention="1 day",
            input="a",
            anchors=in_zone(wr.Input, "b"),
        ),
        ("a", "b"),
    ),
    "delivery": (in_zone(wr.Delivery, by="k", policy=wr.deliver.latest(), input="a"), ("a",)),
}
WRITTEN: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), NOON),
    (pa.uint64(), NOON),
    (pa.string(), "2020-01-01T12:00:00Z"),
    (pa.date32(), dt.date(2020, 1, 1)),
    (pa.timestamp("s"), dt.datetime(2020, 1, 1, 13)),
    (pa.timestamp("s", "Asia/Tokyo"), dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)),
    (pa.float64(), 1.5),
]


@pytest.mark.parametrize("name", READING)
def test_an_event_time_of_any_type_may_be_followed_by_one_of_any_other(tmp_path: Path, name: str) -> None:
    definition, inputs = READING[name]
    first_kind = 2 * list(READING).index(name)
    for n in range(first_kind, first_kind + usually(3, deep=14)):
        kind, value = WRITTEN[n % len(WRITTEN)]
        schema = pa.schema([("t", kind), ("k", pa.string()), ("v", pa.int64())])
        table = pa.Table.from_pylist([{"t": value, "k": "a", "v": 0}], schema)
        for how in ("declared", ("empty", "table")[n % 2]):
            first = [] if how == "declared" else [table if how == "table" else schema.empty_table()]
            later = [[{"t": t, "k": "a", "v": v}] for v, (_, t) in enumerate(WRITTEN[:3], 1)]
            steps = [(i, batch) for batch in [*first, *later, table.slice(0, 1)] for i in inputs]
            declared = dict.fromkeys(inputs, schema) if how == "declared" else None
            place = f"{tmp_path}/{n} {how}"
            with committed(definition, place, *steps, schema=declared, store="memory") as op:
                sent = sum(len(batch) for _, batch in steps)
                assert op.counters["rows"] == sent, (kind, how)
                letters = [x.detail for x in op.dead_letters() if x.reason == "malformed"]
                # A day holds no moment of it; a float is no time.
                assert kind in (pa.date32(), pa.float64()) or not letters, (kind, how, letters)
                assert all("'t' is" in letter for letter in letters)


ROW = {"t": NOON, "k": "a"}
OPTIONS: dict[str, Any] = {"by": "k", "event_time": "t"}
OVER = {"agg": {"n": wr.count()}, "frame": wr.rows_between(-1, 0, partial="emit"), "ttl": "1 hour"}
CONDITIONS = [wr.col("v") > 1, wr.col("v") == "text", wr.col("v") + 1 > wr.col("w"), wr.col("v")]


def asking(condition: Any) -> dict[str, Any]:
    """Operators that ask it of messages."""
    hours = {"window": wr.tumbling("1 hour"), "retention": "1 day", **OPTIONS}
    return {
        "filter": wr.Over(where=condition, **OVER, **OPTIONS),
        "guarantee": wr.Over(deliver=wr.deliver.latest().guarantee(condition), **OVER, **OPTIONS),
        "filter of an aggregate": wr.Aggregate(agg={"n": wr.count()}, where=condition, **hours),
        "guarantee of an aggregate": wr.Aggregate(
            agg={"n": wr.count()}, deliver=wr.deliver.latest().guarantee(condition), **hours
        ),
        "filtered aggregation": wr.Aggregate(agg={"n": wr.count().where(condition)}, **hours),
        "filter of a join": wr.Join(
            left=wr.Input("a", event_time="t", where=condition), right=wr.Input("b", event_time="t"), **JOINED
        ),
    }


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_a_message_of_which_a_condition_cannot_be_computed_is_a_dead_letter_and_decides_no_type(
    tmp_path: Path, condition: Any
) -> None:
    values = [("text", 1), ([1], None), (5, "text"), (None, None), (7, 2), ("text", None), (9, 3), (True, 4)]
    fitting = {'(v == "text")': str, "v": bool}.get(str(condition), int)
    fits = [v is None or type(v) is fitting for v, _ in values]
    if "w" in str(condition):
        fits = [fit and not isinstance(w, str) for fit, (_, w) in zip(fits, values, strict=True)]
    for name, definition in asking(condition).items():
        input = "a" if "join" in name else None
        steps = [(input, [{**ROW, "v": v, "w": w}]) for v, w in values]
        for n, batches in enumerate((steps, [(input, [m for _, batch in steps for m in batch])])):
            with committed(definition, str(tmp_path / f"{name}{n}"), *batches, store="memory") as op:
                assert op.counters["rows"] == len(values)
                wrong = {x.position.offset for x in op.dead_letters() if x.position and "'v'" in x.detail}
                wrong |= {x.position.offset for x in op.dead_letters() if x.position and "'w'" in x.detail}
                assert wrong == {i for i, fit in enumerate(fits) if not fit}, name


@pytest.mark.parametrize("how", ["inner", "left", "semi", "asof"])
def test_a_message_that_a_condition_on_pairs_cannot_compare_is_a_dead_letter(
    tmp_path: Path, how: str
) -> None:
    within = {"within": ("-1 second", "0 seconds" if how == "asof" else "1 second")}
    join = wr.Join(
        left=wr.Input("a", event_time="t"),
        right=wr.Input("b", event_time="t"),
        where=wr.col("a_v") <= wr.col("b_v"),
        how=how,
        **{**JOINED, **within},
    )
    values = [("b", None), ("a", "x"), ("b", 1), ("a", 2), ("b", "y"), ("b", [1])]
    steps = [(input, [{**ROW, "v": v}]) for input, v in values]
    with committed(join, str(tmp_path), *steps, store="memory") as op:
        assert op.counters["rows"] == len(values)
        assert [x.detail[:10] for x in op.dead_letters()] == ["column 'v'"] * 3
        op.drain()
        assert len(op.get_result()) == 1


@pytest.mark.parametrize("kind", ["messages", "tables"])
def test_an_anchor_that_says_no_time_decides_nothing_of_later_anchors(tmp_path: Path, kind: str) -> None:
    spans = wr.Over(
        agg={"s": wr.sum("v")},
        frame=wr.between("since", "until"),
        input="a",
        anchors=wr.Input("b", event_time="t"),
        retention="1 day",
        **OPTIONS,
    )
    forms = [NOON, "2020-01-01T12:00:00Z", dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)]
    wrong: dict[str, Any] = {**ROW, "since": "noon", "until": "text" if kind == "tables" else True}
    for n, order in enumerate(itertools.permutations(forms)):
        good = [{**ROW, "since": a, "until": b} for a, b in zip(order, order[1:] + order[:1], strict=True)]
        many = [[row] if kind == "messages" else pa.Table.from_pylist([row]) for row in [wrong, *good]]
        steps = [("a", [{**ROW, "v": 1}]), *(("b", batch) for batch in many)]
        if n == 0 and kind == "messages":
            steps = [steps[0], ("b", [wrong, *good])]
        with committed(
            spans, f"{tmp_path}/{n}", *steps, again=n == 1, store=("memory", "rocksdb")[n == 1]
        ) as op:
            op.drain()
            assert [row["s"] for row in op.get_result()] == [1] * len(forms), order
            [letter] = op.dead_letters()
            assert letter.reason == "malformed" and "column '" in letter.detail


@pytest.mark.parametrize("since", ["since", wr.col("since")], ids=["column", "expression"])
def test_an_anchor_whose_start_has_no_time_zone_is_a_dead_letter(tmp_path: Path, since: Any) -> None:
    spans = wr.Over(
        agg={"s": wr.sum("v")},
        frame=wr.between(since, "until"),
        input="a",
        anchors=wr.Input("b", event_time="t"),
        retention="1 day",
        **OPTIONS,
    )
    anchors = [{**ROW, "since": s, "until": NOON} for s in (dt.datetime(2020, 1, 1), NOON)]
    steps = [("a", [{**ROW, "v": 1}]), *(("b", [row]) for row in anchors)]
    with committed(spans, str(tmp_path), *steps, store="memory") as op:
        op.drain()
        assert len(op.get_result()) == 1
        [letter] = op.dead_letters()
        assert letter.reason == "malformed" and "'since'" in letter.detail


WIDE = {
    "aggregate": counting(),
    "over": in_zone(wr.Over, by="k", **OVER),
    "deduplicated": in_zone(wr.Deduplicate, by=("k", "v"), within="1 day"),
    "join": READING["join"][0],
    "join window": in_zone(wr.JoinWindow, window=wr.tumbling("1 second"), retention="1 hour", join_keys="k"),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_message_with_more_columns_than_a_stream_gets_is_one_dead_letter_unless_they_are_not_needed(
    tmp_path: Path, name: str
) -> None:
    wide = {**ROW, "v": 1, **{f"c{i}": i for i in range(MOST_COLUMNS)}}
    input = "a" if name == "join" else None
    needs = name != "aggregate"
    for first in (True, False):
        rows = [wide, {**ROW, "v": 2, "x": 1}, wide, {**ROW, "v": 3, None: 1}, {**ROW, "v": 4, "y": 1}]
        steps = [(input, [row]) for row in (rows if first else rows[1:])]
        with committed(WIDE[name], f"{tmp_path}/{first}", *steps, store="memory") as op:
            assert op.counters["rows"] == len(steps)
            details = [x.detail for x in op.dead_letters()]
            assert ["more than 1000 with the others" in x for x in details] == [True] * (
                first + 1
            ) * needs + [False]
            assert details[-1] == "None is no name of a column"
            [known] = {
                len(op.engine.logic.schema_of(op.engine.staged.overlay, i.name))
                for i in op.definition.inputs[:1]
            }
            assert known == (5 if needs else 2)


@pytest.mark.parametrize("name", ["over", "join"])
def test_the_cost_of_a_commit_is_linear_in_columns(tmp_path: Path, name: str) -> None:
    input = "a" if name == "join" else None
    seconds = []
    for columns in (240, 960):
        wide = {**ROW, "v": 1, **{f"c{i}": i for i in range(columns)}}
        with committed(WIDE[name], f"{tmp_path}/{columns}", (input, [wide]), store="memory") as op:
            each = []
            for _ in range(3):
                began = time.process_time()
                op.add_messages([{**ROW, "v": 2}], *filter(None, [input]))
                op.next_offsets()
                each.append(time.process_time() - began)
            seconds.append(min(each))
    assert seconds[1] < 8 * seconds[0]  # four times as many columns: sixteen where it was quadratic


@pytest.mark.parametrize("name", OPERATORS)
def test_any_message_is_counted_or_is_one_dead_letter_and_every_commit_succeeds(
    tmp_path: Path, name: str
) -> None:
    for seed in usually(range(6, 7), deep=range(300)):
        store = "rocksdb" if seed % 5 == 0 else "memory"
        sent, counted, letters = play(name, seed, f"{tmp_path}/{seed}", messages=8, store=store)
        assert counted + letters == sent, seed
