"""Emission may change between two runs, whatever was told before: the oracle, which remembers everything, says what comes."""

import copy
import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.aggregate.cases import MIXED, TIMED, TRIGGERS, Scaled, cases, messages, trigger
from tests.operators.contract import Case, Life
from tests.operators.session.cases import sessions
from windrow.core.messages import Kind, Pane
from windrow.core.time import START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.stores.kv import MemoryKV
from windrow.testing import TestDriver
from windrow.testing.ledger import values_equal


def with_emit(definition: AggregateDefinition, emit: wr.Emit) -> AggregateDefinition:
    changed = copy.copy(definition)
    object.__setattr__(changed, "emit", emit)
    return changed


@st.composite
def emissions(draw: st.DrawFn, definition: wr.Aggregate) -> wr.Emit:
    """Any emission whose state has the same fingerprint."""
    discarding = definition.emit.mode == "discarding"
    triggers = [*TRIGGERS, *([] if definition.tuple_window else TIMED), *MIXED]
    triggers = [t for t in triggers if "n" in definition.agg or t not in ("when 2", "either 3")]
    early, late = (draw(st.sampled_from(triggers)) for _ in range(2))
    return wr.Emit(
        early=trigger(early),
        late=trigger(late),
        on_time=draw(st.sampled_from([True, True, False])),
        mode="discarding" if discarding else draw(st.sampled_from(["accumulating", "retracting"])),
        only_if_changed=not {"always 6", "event_always 6"} & {early, late} and draw(st.booleans()),
        closing_pane=draw(st.booleans()),
    )


@st.composite
def lives(draw: st.DrawFn) -> tuple[Scaled, list[wr.Emit]]:
    case = draw(draw(st.sampled_from([cases, sessions]))(unbounded=draw(st.booleans())))
    return case, draw(st.lists(emissions(case.definition), min_size=1, max_size=4))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.lists(messages(good=True), min_size=1, max_size=5)),
        st.tuples(st.just("each"), st.lists(messages(good=True), min_size=1, max_size=3)),
        st.tuples(st.just("watermark"), st.sampled_from([0, 1, 3, 8, 20])),
        st.tuples(st.just("clock"), st.integers(0, 12)),
    ),
    min_size=1,
    max_size=4,
)


def check_retractions(panes: list[Pane]) -> None:
    """A retraction takes back what stands, with its very values."""
    standing: dict[Any, Pane] = {}
    for pane in panes:
        where = (repr(pane.window), repr(sorted(pane.key.items())))
        if pane.kind is Kind.RETRACT:
            taken = standing.pop(where)
            assert taken.index == pane.index and values_equal(taken.values, pane.values), (taken, pane)
        else:
            standing[where] = pane


@pytest.mark.parametrize(
    "agg", [{"n": wr.count()}, {"n": wr.count(), "middle": wr.median("v")}], ids=["small", "full"]
)
def test_panes_emitted_before_they_were_remembered_are_taken_back_with_their_values(
    agg: dict[str, Any],
) -> None:
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg=agg,
        retention="1 hour",
        emit=wr.Emit(early=wr.every(2), late=wr.every(2)),
    )
    retracting = with_emit(definition, wr.Emit(early=wr.every_batch, mode="retracting"))
    with TestDriver(definition) as driver:
        driver.feed([{"t": 1, "v": 1.0}, {"t": 2, "v": 2.0}])  # told
        driver.feed([{"t": 3, "v": 7.0}])  # not told, and merged with what was
        driver.next_offsets()
        driver.restart(retracting)
        driver.feed([{"t": 4, "v": 9.0}])
        [first, *second] = driver.committed_panes()
        assert [pane.kind for pane in second] == [Kind.RETRACT, Kind.INSERT]
        assert (second[0].values, second[0].index) == (first.values, first.index)
        driver.check(dead_letters=True)


@given(lives=lives(), steps=st.lists(STEPS, min_size=5, max_size=5))
@examples(14, deep=10_000)
def test_emission_may_change_between_runs(lives: tuple[Scaled, list[wr.Emit]], steps: list[Any]) -> None:
    scaled, emits = lives
    case = Case(
        definition=scaled.definition, messages=st.nothing(), unit_us=scaled.unit_us, start_us=scaled.base_us
    )
    with tempfile.TemporaryDirectory(prefix="windrow-emission-") as location:
        job = Life(case, location, with_sink=False)
        for life, actions in enumerate(steps[: len(emits) + 1]):
            if life:
                job.driver.next_offsets()
                job.driver.restart(with_emit(scaled.definition, emits[life - 1]))
            for kind, value in actions:
                job.act(kind, [scaled.drawn(row) for row in value] if kind in ("feed", "each") else value)
        job.act("clock", 10)
        job.driver.drain()
        job.driver.check(dead_letters=True)
        check_retractions(job.driver.committed_panes())
        job.driver.close()


@pytest.mark.parametrize(
    "window",
    [wr.tumbling("10 seconds"), wr.session("10 seconds")],
    ids=["time", "sessions"],
)
def test_a_delay_that_becomes_shorter_is_over_sooner(window: Any) -> None:
    long, short = (
        wr.Aggregate(
            event_time="t",
            window=window,
            agg={"n": wr.count()},
            retention=wr.forever,
            emit=wr.Emit(early=early),
        )
        for early in (wr.delay("10 seconds"), wr.delay("4 seconds"))
    )
    logic, kv = long.logic(), MemoryKV(long.logic().cfs())
    logic.advance(kv, START_OF_TIME_US, 0)
    logic.ingest(kv, {long.name: pa.table({"t": [0]})}, 0)
    logic = short.logic()
    fired = [len(logic.advance(kv, START_OF_TIME_US, now * 1_000_000).panes) for now in (2, 3, 4, 5)]
    assert fired == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "window",
    [wr.tumbling("10 seconds"), wr.session("10 seconds"), wr.tuples(3)],
    ids=["time", "sessions", "tuples"],
)
def test_an_emission_that_changes_after_the_very_first_messages_is_noticed(window: Any) -> None:
    first, then = (
        wr.Aggregate(
            by="k", event_time="t", window=window, agg={"n": wr.count()}, retention=wr.forever, emit=emit
        )
        for emit in (wr.Emit.append(), wr.Emit(early=wr.every("5 seconds")))
    )
    logic, kv = first.logic(), MemoryKV(first.logic().cfs())
    logic.advance(kv, START_OF_TIME_US, 0)  # as on Spark, where a commit advances before it takes
    logic.ingest(kv, {first.name: pa.table({"t": [0], "k": ["a"]})}, 0)
    assert len(then.logic().advance(kv, START_OF_TIME_US, 6_000_000).panes) == 1
