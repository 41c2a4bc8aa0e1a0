"""Rows of joins, and what operators of a chain made of each other's rows, explained by the positions that were given."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.join.cases import JoinCase, cases
from tests.proof.test_joins_against_oracle import STEPS, Run, plain
from windrow.core.errors import ConfigurationError
from windrow.operators.aggregate.views import AggregateView
from windrow.operators.view import Query, View, stored
from windrow.stores import delta_blocks, kv, page_store, partitioned_windows
from windrow.testing import ManualClock

S = 1_000_000
#: (input, second, value) of messages of one key; the nth has the offset n.
GIVEN = (("a", 1, 1), ("b", 2, 2), ("a", 5, 3), ("b", 3, 4), ("a", 30, 5))


def join(how: str = "inner", **changed: Any) -> wr.Join:
    options: dict[str, Any] = {
        "left": wr.Input("a", event_time="t"),
        "right": wr.Input("b", event_time="u"),
        "on": "k",
        "within": ("0 seconds", "3 seconds") if how != "asof" else ("-10 seconds", "0 seconds"),
        "retention": "1 hour",
        "allowed_lateness": "20 seconds",
        "name": "joined",
    }
    return wr.Join(how=how, **(options | changed))  # type: ignore[arg-type]


def feed(op: Any, messages: tuple[tuple[str, int, int], ...] = GIVEN, until: int = 60) -> None:
    """Message n stands at ("topic", 0, n), whatever its input."""
    for n, (name, second, value) in enumerate(messages):
        time = "t" if name == "a" else "u"
        op.add_message(
            wr.Message({"k": "x", time: second * S, f"v_{name}": value}, wr.Position("topic", 0, n)), name
        )
    op.advance_watermark(until * S)
    op.timeout()


def offsets(one: Any) -> dict[str, list[int]]:
    return {name: [p.offset for p in positions] for name, positions in one.inputs.items()}


@pytest.fixture
def location(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "job")


@pytest.mark.parametrize(
    ("how", "pairs"),
    [
        ("inner", [([0], [1]), ([0], [3])]),
        ("left", [([0], [1]), ([0], [3]), ([2], []), ([4], [])]),
        ("full", [([0], [1]), ([0], [3]), ([2], []), ([4], [])]),
        ("semi", [([0], [1, 3])]),
        ("anti", [([2], []), ([4], [])]),
        ("asof", [([0], []), ([2], [3]), ([4], [])]),
    ],
)
def test_every_row_of_a_join_is_explained_by_the_messages_that_made_it(
    location: str, how: str, pairs: list[tuple[list[int], list[int]]]
) -> None:
    with join(how).open(location, clock=ManualClock(0)) as op:
        feed(op)
        rows = sorted(op.get_result(), key=repr)
        with wr.read_state(location) as state:
            reasons = [one for row in rows for one in state.explain(row)]
            assert sorted((offsets(o)["a"], offsets(o)["b"]) for o in reasons) == sorted(pairs)
            assert sorted(repr(o.row) for o in reasons) == sorted(repr(r.values) for r in rows)
            for one in reasons:
                assert one.outside == one.positions and one.complete and one.operator == "joined"
                assert sum(t.messages or 0 for t in one.commits) == len(one.positions or ())
            # By the time of a message, all rows in which it has a part.
            for second in (1, 2, 3, 5, 30):
                expected = [m for m in pairs if any(GIVEN[n][1] == second for side in m for n in side)]
                told_then = [(offsets(o)["a"], offsets(o)["b"]) for o in state.explain(second * S, key="x")]
                assert sorted(told_then) == sorted(expected)
            assert state.explain(2 * S, key="y") == []
            # And as `panes` has it.
            row = state.panes().to_pylist()[0]
            assert len(state.explain(row)) == 1


def test_of_a_message_whose_partners_are_gone_nobody_says_that_it_was_alone(location: str) -> None:
    """The left message of a pair is kept for longer than the right one."""
    definition = join("left", within=("-20 seconds", "0 seconds"), retention="25 seconds")
    with definition.open(location, clock=ManualClock(0)) as op:
        feed(op, (("b", 1, 1), ("a", 20, 2)), until=42)
        assert len(op.get_messages(input="a")) == 1 and op.get_messages(input="b") == []
        [row] = op.get_result()
        with wr.read_state(location) as state:
            assert state.explain(row) == [] and state.explain(20 * S) == []


def test_a_row_that_is_none_of_the_join_is_refused_naming_its_columns(location: str) -> None:
    with join().open(location, clock=ManualClock(0)) as op:
        feed(op)
        with wr.read_state(location) as state, pytest.raises(ConfigurationError, match=r"'z' is none.*v_b"):
            state.explain({"k": "x", "z": 1})


def test_a_window_of_joined_rows_is_explained_down_to_what_came_from_outside(location: str) -> None:
    late = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"m": wr.median("v_b")}, retention="1 hour", name="late"
    )  # fmt: skip
    with join().then(late).open(location, clock=ManualClock(0)) as op:
        feed(op)
        with wr.read_state(location) as state:
            [why] = state.explain(0, key="x")
            assert why.operator == "late" and [p.source for p in why.positions or ()] == ["joined"] * 2
            assert [(o.operator, offsets(o)) for o in why.rows] == [
                ("joined", {"a": [0], "b": [1]}),
                ("joined", {"a": [0], "b": [3]}),
            ]
            assert why.outside == tuple(wr.Position("topic", 0, n) for n in (0, 1, 3))
            [pane] = [p for p in op.get_result() if p.window.start_us == 0][-1:]
            assert state.explain(pane) == [why]


@pytest.mark.parametrize("aggregation", [wr.median("v_a"), wr.count()])
def test_a_row_of_panes_is_explained_down_to_messages_where_these_are_kept(
    location: str, aggregation: Any
) -> None:
    each = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("5 seconds"), agg={"m": aggregation}, retention="1 hour",
        emit=wr.Emit.append(), name="each",
    )  # fmt: skip
    both = wr.Join(
        left=wr.Input("each", event_time="window_time"), right=wr.Input("b", event_time="u"), on="k",
        within=("0 seconds", "10 seconds"), retention="1 hour", name="both",
    )  # fmt: skip
    keeps = each.full_state
    with each.then(both).open(location, clock=ManualClock(0)) as op:
        for n, (name, second, value) in enumerate(
            (("each", 1, 1), ("each", 3, 2), ("b", 8, 3), ("each", 7, 4))
        ):
            time = "t" if name == "each" else "u"
            message = wr.Message({"k": "x", time: second * S, "v_a": value}, wr.Position("s", 0, n))
            op.add_message(message, name)
        op.advance_watermark(60 * S)
        op.timeout()
        [row] = op.get_result()
        with wr.read_state(location) as state:
            [why] = state.explain(row)
            [pane] = why.rows
            assert (pane.operator, pane.window and pane.window.window, offsets(why)["b"]) == (
                "each",
                wr.Window(0, 5 * S),
                [2],
            )
            positions = tuple(wr.Position("s", 0, n) for n in (0, 1))
            assert pane.positions == (positions if keeps else None)
            assert why.outside == ((*positions, wr.Position("s", 0, 2)) if keeps else None)


@given(case=cases(), steps=st.lists(STEPS, min_size=2, max_size=14))
@examples(14, deep=3_000)
def test_what_messages_of_any_join_made_was_emitted_and_what_was_emitted_is_found_while_all_are_kept(
    case: JoinCase, steps: list[tuple[str, Any]]
) -> None:
    # The caller of an operator leaves out messages on which a gap raises; nobody does here.
    assume("divide" not in repr(case.definition.own_gap))
    at_once = wr.Emit(early=wr.every_batch, late=wr.every_batch)
    case = replace(case, definition=case.definition._changed(emit=at_once))
    run, filed = Run(case), 0
    for kind, value in steps:
        if kind == "ingest":
            run.ingest(value)
            filed += len(run.oracle.counted)
        else:
            units, microseconds, seconds = value
            run.advance(max(run.watermark_us, 0) + units * case.unit_us + microseconds, seconds)
    run.advance(run.watermark_us, 1)  # as after every step of a job
    view = run.operator.view([run.kv], run.watermark_us)
    emitted = [values for _, values in run.emitted]
    kept = [
        m for i in case.definition.inputs for rows in view.messages(Query(input=i.name)) for m in stored(rows)
    ]
    made = [m for at_us in {m.event_time_us for m in kept} for m in view.made_at(at_us, None)]
    known = {repr(values) for values in emitted}
    for one in made:
        assert one.row is not None
        assert repr({n: plain(v) for n, v in one.row.items()}) in known, (case.definition, one)
    event(f"{case.definition.how}: {'some' if made else 'none'} explained")
    if len(kept) == filed and not case.timestamps:
        event(f"{case.definition.how}: all kept, {'some' if emitted else 'no'} rows")
        assert all(view.made_of(emitted)), case.definition


def test_a_window_in_hash_partitions_is_explained_by_the_commits_that_can_be_distinguished(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_windows, "PART_BYTES", 256)
    monkeypatch.setattr(delta_blocks, "FOLD_LARGE_AT", 4)
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()}
    )
    with counts.open(location, clock=ManualClock()) as op:
        for commit in range(12):
            rows = [{"k": f"k{i}", "t": i * S} for i in range(100)]
            op.add_messages(
                [wr.Message(row, wr.Position("s", 0, 100 * commit + i)) for i, row in enumerate(rows)]
            )
            op.flush()
    with wr.read_state(location) as state:
        [why] = state.explain(0, key="k7")
        assert why.window is not None and why.window.messages == 12
        assert not why.complete, "nothing was divided: the test needs more rows"
        assert {t.messages for t in why.commits} <= {1, None}
        assert {t.commit for t in why.commits} < {c.commit for c in state.commits()}


KEYS = ("a", "b", None, "")
BATCHES = st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), max_size=12), max_size=9)


@given(batches=BATCHES, early=st.booleans(), parts=st.booleans())
@examples(6, deep=500)
def test_from_a_keys_part_of_the_changelog_it_is_explained_as_from_the_store(
    batches: list[list[tuple[str | None, int]]], early: bool, parts: bool
) -> None:
    """Windows in blocks, in pages and in hash partitions; `one` is what has the reader look at a part."""
    counts = wr.Aggregate(
        name="counts",
        by="k",
        event_time="t",
        window=wr.hopping("2 hours", "1 hour"),
        retention="1 day",
        watermark="1 day",
        agg={"n": wr.count(), "last": wr.max("t")},
        emit=wr.Emit(early=wr.every_batch if early else wr.never),
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as location:
        patch.setattr(kv, "VIEWED_BYTES", 1)
        patch.setattr(delta_blocks, "PARTED_BYTES", 0)
        patch.setattr(page_store, "PAGE_ROWS", 1)
        if parts:
            patch.setattr(partitioned_windows, "PART_BYTES", 256)
            patch.setattr(delta_blocks, "FOLD_LARGE_AT", 3)
        with counts.open(location, clock=ManualClock(0)) as op:
            for rows in batches:
                op.add_messages([{"k": key, "t": hour * 3_600 * S} for key, hour in rows])
                op.flush()
        asked = [(hour * 3_600 * S, {"k": key}) for hour in range(-1, 4) for key in (*KEYS, "nobody")]
        with wr.read_state(location) as state:
            answers = [state.explain(at, key=key) for at, key in asked]
            panes = [state.explain(pane) for pane in state.panes().to_pylist()]
        patch.setattr(AggregateView, "one", View.one)
        with wr.read_state(location) as state:
            assert answers == [state.explain(at, key=key) for at, key in asked]
            assert panes == [state.explain(pane) for pane in state.panes().to_pylist()]
        messages = sum(len(rows) for rows in batches)
        assert sum(e.window.messages for answer in answers for e in answer if e.window) == 2 * messages
        event(f"{'pages' if early else 'blocks'}, {sum(map(bool, answers))} windows")
