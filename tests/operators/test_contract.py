"""Contract of every operator, tried with the cases of its folder.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples, usually
from tests.operators.contract import PUBLISHED, Case, Drawn, Operator, S, life
from tests.operators.folders import FOLDERS
from windrow.core.messages import Timing
from windrow.testing import CommitPoint
from windrow.testing.ledger import values_equal

HERE = Path(__file__).parent
FOUND: list[str] = sorted(file.parent.name for file in HERE.glob("*/cases.py"))
OPERATORS: dict[str, Operator] = {
    name: importlib.import_module(f"tests.operators.{name}.cases").OPERATOR for name in FOUND
}
DEATHS = [None, PUBLISHED, *CommitPoint]
#: Where a commit is made, and stays.
COMMITTED = (PUBLISHED, CommitPoint.BEFORE_APPLY, CommitPoint.BEFORE_PUBLISH)


def test_no_operator_is_without_cases() -> None:
    assert set(FOUND) >= FOLDERS


def actions(case: Case) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Draw the events of a job's life, in any order."""
    feed = st.tuples(st.just("feed"), st.lists(case.messages, min_size=1, max_size=8))
    few = st.integers(1, 5)
    one = st.one_of(
        feed,
        feed,
        st.tuples(st.just("each"), st.lists(case.messages, min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["said again", "delivered again"]), few),
        st.tuples(st.just("watermark"), st.sampled_from([0, 1, 2, 3, 5, 12])),
        st.tuples(st.just("clock"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["commit", "results", "commit", "results", "drain"]), st.none()),
        st.tuples(st.just("die"), st.tuples(st.sampled_from(DEATHS), few)),
        st.tuples(st.just("lose"), few),
    )
    return st.lists(one, min_size=3, max_size=10)


@pytest.mark.parametrize("name", FOUND)
@given(data=st.data())
@examples(8, deep=5_000)
def test_an_operator_emits_what_its_oracle_says_however_it_is_fed_cut_killed_and_robbed(
    name: str, data: st.DataObject
) -> None:
    case = data.draw(OPERATORS[name].cases)
    store = data.draw(st.sampled_from(["rocksdb", "rocksdb", "memory"]))
    with life(case, with_sink=data.draw(st.booleans()), store=store) as job:
        for kind, value in data.draw(actions(case)):
            job.act(kind, value)
        job.check()
        job.driver.drain()
        job.die(data.draw(st.sampled_from(DEATHS)), 3)
        job.driver.drain()
        wanted = job.check()
        event(
            f"{name}: {'some' if wanted.rows else 'no'} rows, {'some' if wanted.dead_letters else 'no'} letters"
        )
        if case.forgets:
            job.act("clock", 3_600)
            job.driver.drain()
            job.driver.assert_state_zero()
        late = data.draw(st.lists(case.messages, max_size=2))
        if late:
            job.act("feed", late)
            job.check()


@pytest.mark.parametrize("name", FOUND)
def test_a_job_that_dies_at_every_point_of_a_commit_loses_nothing_and_repeats_nothing(name: str) -> None:
    operator = OPERATORS[name]
    case = Case(definition=operator.definition, messages=st.nothing(), schema=operator.schema)
    with life(case) as job:
        for point, one in zip([*DEATHS, *DEATHS], [*operator.messages, *operator.messages], strict=False):
            job.act("feed", [one])
            job.fall(point)
            assert len(job.lost()) == (point not in COMMITTED)
            job.redeliver(1)
            job.driver.next_offsets()
        job.driver.drain()
        assert job.check().rows


#: Each by itself, early and late.
TRIGGERS: dict[str, Any] = {
    "nothing early": (wr.never, wr.every_batch),
    "every batch": wr.every_batch,
    "by count": wr.every(2),
    "by period": wr.every("5 seconds"),
    "a sign of life": wr.every("5 seconds", always=True),
    "after a delay": wr.delay("4 seconds"),
    "by value": wr.when(wr.col("n") >= 2),
    "any of some": wr.any_of(wr.every(3), wr.delay("4 seconds")),
    "all of some": wr.all_of(wr.every(2), wr.every("5 seconds")),
}
#: Each trigger by time and in sessions.
TRIGGERED = list(product(TRIGGERS, (wr.tumbling("10 seconds"), wr.session("3 seconds"))))
EVERY_OTHER = [one for n, one in enumerate(TRIGGERED) if n % 4 in (0, 3)]


@pytest.mark.parametrize(("name", "window"), usually(EVERY_OTHER, deep=TRIGGERED), ids=str)
def test_messages_one_by_one_are_emitted_by_any_trigger_where_the_job_dies_at_every_point(
    name: str, window: Any
) -> None:
    early, late = TRIGGERS[name] if isinstance(TRIGGERS[name], tuple) else (TRIGGERS[name],) * 2
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count(), "list": wr.collect_list("v")},
        watermark="1 second",
        retention="1 minute",
        emit=wr.Emit(early=early, late=late, mode="retracting"),
        max_ahead=wr.forever,
    )
    times = [1, 2, 2, 5, 11, 12, 3, 4, 13, 21, 22, 2, 23, 12, 24, 31, 32, 22]
    drawn = [Drawn({"t": t * S, "k": "ab"[n % 5 == 3], "v": n}) for n, t in enumerate(times)]
    with life(Case(definition=definition, messages=st.nothing(), start_us=0)) as job:
        for n, point in enumerate(DEATHS):
            job.act("each", drawn[3 * n : 3 * n + 3])
            job.act("clock", 3)
            job.fall(point)
            for input, message in job.lost():
                job.driver.add(message, input)
            job.driver.next_offsets()
        job.driver.drain()
        timings = {row.timing for row in job.check().rows}
    assert timings >= {Timing.LATE, Timing.ON_TIME} and (Timing.EARLY in timings) == (early is not wr.never)


@pytest.mark.parametrize("name", FOUND)
def test_a_reader_sees_what_the_operator_emitted_and_keeps(name: str, tmp_path: Path) -> None:
    operator = OPERATORS[name]
    definition = operator.definition
    with definition.open(str(tmp_path), schema=operator.schema) as op:
        for n, one in enumerate(operator.messages):
            op.add_messages([wr.Message(one.payload, wr.Position("s", 0, n))], one.input)
            op.next_offsets()
        kept = _kept(definition, op)
        with wr.read_state(str(tmp_path), definition=definition) as state:
            assert values_equal(_kept(definition, state), kept)
        op.drain()
        rows, letters = op.get_result(), op.dead_letters()
    with wr.read_state(str(tmp_path), definition=definition) as state:
        assert list(definition.values(state.panes(), state.job)) == rows
        assert state.dead_letters() == letters


def _kept(definition: Any, asked: Any) -> list[Any]:
    """Return the answers of each operator, of an open job or of a reader."""
    kept: list[Any] = []
    for part in definition.parts:
        for one in part.inputs:
            which = {"operator": part.name, "input": one.name if part.by_input else None}
            if "windows" in part.tables:
                kept.append(asked.get_windows(**which))
            if "messages" in part.tables:
                kept.append(asked.get_messages(**which))
    return kept


@pytest.mark.spark
@pytest.mark.parametrize("name", FOUND)
def test_spark_emits_what_the_embedded_operator_emits(name: str, tmp_path: Path, spark: Any) -> None:
    definition, tables = OPERATORS[name].definition, OPERATORS[name].tables
    # There all messages come before time moves.
    still = definition.with_watermarks({one.name: wr.explicit() for one in definition.inputs})
    with still.open(str(tmp_path)) as op:
        op.add_messages(tables if definition.by_input else next(iter(tables.values())))
        op.drain()
        rows = op.result_table()
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    emitted = (
        definition.apply(**frames) if definition.by_input else definition.apply(next(iter(frames.values())))
    )
    actual, wanted = _rows(emitted.toArrow()), _rows(rows)
    assert wanted and len(actual) == len(wanted)
    for one, other in zip(actual, wanted, strict=True):
        assert values_equal(one, other)


def _rows(table: Any) -> list[dict[str, Any]]:
    """Rows but for their commit and the positions of what they are made of, in an order that depends on them alone."""
    apart = ("commit", "match_id", "messages")
    rows = [{n: row[n] for n in sorted(row) if n not in apart} for row in table.to_pylist()]
    return sorted(rows, key=repr)
