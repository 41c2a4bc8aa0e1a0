"""Messages lost with their snapshots and segments come back from the source, as they were, and no pane is sent again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.filed import filed
from windrow.checkpoint.shard import MessagesLost
from windrow.core import errors as e
from windrow.runners.embedded import Embedded
from windrow.testing import TestDriver
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
LOST = ("local", "snapshots", "segments")
MEDIAN = {"n": wr.count(), "middle": wr.median("x"), "any": wr.any_value("x")}


def define(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": MEDIAN,
        "watermark": "5 seconds",
        "retention": "20 seconds",
        "allowed_lateness": "2 seconds",
        "emit": wr.Emit(late=wr.every("5 seconds")),
    }
    return wr.Aggregate(**{**settings, **changes})


DEFINITIONS = {
    "tumbling": define(),
    "hopping": define(window=wr.hopping("10 seconds", "4 seconds")),
    "discarding": define(emit=wr.Emit(early=wr.every("3 seconds"), mode="discarding")),
    "by count": define(emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="discarding")),
    "global": define(window=wr.global_window(), retention=wr.forever, allowed_lateness=None),
    "tuples": define(
        window=wr.tuples(3, step=2),
        retention=wr.Retain(windows=4),
        allowed_lateness=None,
        emit=wr.Emit(early=wr.every_batch),
    ),
    "tuples without key": define(
        by=(), window=wr.tuples(4), retention=wr.Retain(windows=3), allowed_lateness=None, emit=wr.Emit()
    ),
}
ALL = [pytest.param(d, id=name) for name, d in DEFINITIONS.items()]


def message(i: int) -> wr.Message:
    """Out of order, some too late, one without a value; two partitions."""
    late = {7: 9, 23: 17, 41: 60, 53: 7, 58: 12, 63: 15, 66: 7, 70: 14, 73: 18}.get(i, (i * 7) % 4)
    payload = {"k": "abc"[i % 3], "t": max(i - late, 0) * SECOND, "x": None if i % 50 == 11 else i % 13}
    return wr.Message(payload, wr.Position("s", i % 2, i))


def source(numbers: Iterable[int]) -> Callable[[Mapping[Any, Any]], list[wr.Message]]:
    """More than is asked for, in no order."""
    return lambda ranges: [message(i) for i in numbers][::-1]


def fed(op: Embedded, clock: ManualClock, numbers: range) -> None:
    """One by one and many at a time, several commits."""
    for at in range(numbers.start, numbers.stop, 10):
        batch = [message(i) for i in range(at, min(at + 10, numbers.stop))]
        clock.advance("2 seconds")
        for one in batch[:6]:
            op.add_message(one)
        op.add_messages(batch[6:])
        op.timeout()


def kept(op: Embedded) -> dict[str, list[Any]]:
    """The message store."""
    return {cf: filed(op.engine.shard.kv, cf) for cf in op.engine.spec.message_cfs}


def lose(job: Path, folders: Iterable[str] = LOST) -> None:
    for folder in folders:
        shutil.rmtree(job / folder, ignore_errors=True)


def opened(
    definition: wr.Aggregate, job: Path, clock: ManualClock, again: Any = None, **options: Any
) -> Embedded:
    return definition.open(str(job), clock=clock, replay=again, **options)


@pytest.mark.parametrize("upto", [75])
@pytest.mark.parametrize("definition", ALL)
def test_a_job_that_lost_its_messages_continues_as_if_nothing_had_happened(
    definition: wr.Aggregate, upto: int, tmp_path: Path
) -> None:
    emitted, stores = [], []
    clock = ManualClock()
    with opened(definition, tmp_path / "twin", clock) as op:
        fed(op, clock, range(upto))
        before = op.get_result()
        op.flush()
    shutil.copytree(tmp_path / "twin", tmp_path / "job")
    lose(tmp_path / "job")
    begun_us = clock.now_us()
    for job in (tmp_path / "job", tmp_path / "twin"):
        clock = ManualClock(begun_us)
        with opened(definition, job, clock, source(range(200))) as op:
            assert op.get_result() == []  # no pane is sent again
            stores.append(kept(op))
            seen = [op.get_windows(), op.get_messages()]
            fed(op, clock, range(upto, upto + 20))
            op.drain()
            emitted.append((before + op.get_result(), seen, op.counters, op.dead_letters()))
    assert sum(map(len, stores[0].values())) > 5
    assert stores[0] == stores[1]
    assert emitted[0] == emitted[1]


def test_messages_that_run_together_are_numbered_as_single_steps(tmp_path: Path) -> None:
    stores = []
    for job, together in ((tmp_path / "runs", True), (tmp_path / "ones", False)):
        clock = ManualClock()
        with opened(define(), job, clock) as op:
            assert op._in_runs
            op._in_runs = together
            for i in range(75):
                op.add_message(message(i))
            op.timeout()
            stores.append((kept(op), op.get_messages()))
    assert stores[0] == stores[1]
    assert len(stores[0][1]) > 10


def lost(definition: wr.Aggregate, job: Path, upto: int = 60) -> ManualClock:
    """Makes a job that has lost its messages, panes acknowledged."""
    clock = ManualClock()
    with opened(definition, job, clock) as op:
        fed(op, clock, range(upto))
        op.get_result()
        op.flush()
    lose(job)
    return clock


#: Lays a job that has lost its messages at a location.
Begun = Callable[[wr.Aggregate, Path], ManualClock]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """Jobs that have lost their messages: each is made once, and copied."""
    made: dict[wr.Aggregate, tuple[Path, int]] = {}

    def copied(definition: wr.Aggregate, job: Path) -> ManualClock:
        if definition not in made:
            location = tmp_path_factory.mktemp("begun") / "job"
            made[definition] = location, lost(definition, location).now_us()
        location, now_us = made[definition]
        shutil.copytree(location, job)
        return ManualClock(now_us)

    return copied


def test_without_a_source_it_is_refused_naming_the_remedy(tmp_path: Path, begun: Begun) -> None:
    clock = begun(define(), tmp_path / "job")
    with pytest.raises(MessagesLost, match=r"\[WR207\].*messages are lost.*[Gg]ive replay=") as refused:
        opened(define(), tmp_path / "job", clock)
    assert isinstance(refused.value, e.StateLost)


def test_only_what_retained_windows_need_is_read(tmp_path: Path, begun: Begun) -> None:
    asked = []
    clock = begun(define(), tmp_path / "job")

    def again(ranges: Mapping[Any, tuple[int, int]]) -> list[wr.Message]:
        asked.append(dict(ranges))
        return [message(i) for i in range(60) if ranges["s", i % 2][0] <= i < ranges["s", i % 2][1]]

    with opened(define(), tmp_path / "job", clock, again) as op:
        assert op.get_messages() != []
    [ranges] = asked
    assert {p: following for p, (_, following) in ranges.items()} == {("s", 0): 59, ("s", 1): 60}
    assert all(20 <= first <= 31 for first, _ in ranges.values())


@pytest.mark.parametrize(
    "definition", [DEFINITIONS["tumbling"], DEFINITIONS["tuples"]], ids=["time", "tuples"]
)
@pytest.mark.parametrize("missing", [[40], range(36, 60), range(60)], ids=["one", "the end", "all"])
def test_a_source_that_has_lost_messages_is_refused_naming_them(
    definition: wr.Aggregate, missing: Iterable[int], tmp_path: Path, begun: Begun
) -> None:
    clock = begun(definition, tmp_path / "job")
    with pytest.raises(
        e.StateLost, match=r"took \d+ messages of \[\d+, \d+\) of 's'/\d.*the source gives \d"
    ):
        opened(definition, tmp_path / "job", clock, source(set(range(60)) - set(missing)))
    assert list((tmp_path / "job" / "local").iterdir()) == []  # nothing half done is left
    with opened(definition, tmp_path / "job", clock, source(range(60))) as op:
        assert len(op.get_messages()) > 3


@pytest.mark.parametrize("definition", [DEFINITIONS["tuples"], define(window=wr.session("3 seconds"))])
def test_where_all_steps_run_again_another_source_is_noticed_though_it_gives_as_many(
    definition: wr.Aggregate, tmp_path: Path, begun: Begun
) -> None:
    clock = begun(definition, tmp_path / "job")

    def again(ranges: Any) -> list[wr.Message]:
        return [wr.Message({**message(i).payload, "k": "a"}, message(i).position) for i in range(60)]

    with pytest.raises(e.StateLost, match="other numbers for its keys"):
        opened(definition, tmp_path / "job", clock, again)


def test_messages_that_are_known_by_ids_are_refused(tmp_path: Path, begun: Begun) -> None:
    definition = define(ids=wr.ids("x"))
    clock = begun(definition, tmp_path / "job")
    with pytest.raises(e.StateLost, match=r"knows them by wr.ids\('x'\)"):
        opened(definition, tmp_path / "job", clock, source(range(60)))


def test_messages_without_positions_are_refused(tmp_path: Path, begun: Begun) -> None:
    clock = begun(define(), tmp_path / "job")
    with pytest.raises(e.PositionsMissing, match="without a position"):
        opened(define(), tmp_path / "job", clock, lambda ranges: [wr.Message(message(1).payload)])


def test_messages_that_were_numbered_on_arrival_come_back_by_these_numbers(tmp_path: Path) -> None:
    stores = []
    for job, loses in ((tmp_path / "job", True), (tmp_path / "twin", False)):
        clock = ManualClock()
        with opened(define(), job, clock) as op:
            for i in range(30):
                op.add_message(wr.Message(message(i).payload))
            op.get_result()
            op.flush()
        if loses:
            lose(job)
        numbered = [wr.Message(message(i).payload, wr.Position("", 0, i)) for i in range(30)]
        with opened(define(), job, clock, lambda ranges, numbers=numbered: numbers) as op:
            stores.append(kept(op))
    assert stores[0] == stores[1]


def test_a_replay_that_was_killed_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Begun
) -> None:
    job = tmp_path / "job"
    clock = begun(define(), job)
    half = tmp_path / "half"

    class Killed(BaseException):
        pass

    def killed(operator: Any, kv: Any) -> None:
        kv.flush()
        shutil.copytree(kv.path, half)  # what a kill would leave
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("windrow.operators.aggregate.logic.WindowAggregator._drop_expired", killed)
        with pytest.raises(Killed):
            opened(define(), job, clock, source(range(60)))
    shutil.copytree(half, job / "local" / "shard-0000")
    with pytest.raises(MessagesLost):  # the half is not taken for the whole
        opened(define(), job, clock)
    with opened(define(), job, clock, source(range(60))) as op:
        assert len(op.get_messages()) > 10


def test_what_came_back_is_kept_for_the_next_loss(tmp_path: Path, begun: Begun) -> None:
    clock = begun(define(), tmp_path / "job")
    with opened(define(), tmp_path / "job", clock, source(range(60))) as op:
        before = kept(op)
    lose(tmp_path / "job", ["local"])
    with opened(define(), tmp_path / "job", clock) as op:
        assert kept(op) == before


def test_a_lateness_that_was_changed_meanwhile_is_refused(tmp_path: Path, begun: Begun) -> None:
    clock = begun(define(), tmp_path / "job")
    changed = define(allowed_lateness="15 seconds")
    with pytest.raises(e.StateLost, match=r"allowed_lateness_us=2000000, now 15000000.*former value"):
        opened(changed, tmp_path / "job", clock, source(range(60)))
    opened(define(), tmp_path / "job", clock, source(range(60))).close()
    opened(changed, tmp_path / "job", clock).close()


def test_rows_of_one_record_that_two_steps_took_are_distinguished(tmp_path: Path) -> None:
    def piece(i: int) -> wr.Message:
        return wr.Message({"k": "a", "t": i * SECOND, "x": i}, wr.Position("s", 0, i // 3, i % 3))

    definition, stores = define(emit=wr.Emit(mode="discarding")), []
    for job, loses in ((tmp_path / "job", True), (tmp_path / "twin", False)):
        clock = ManualClock()
        with opened(definition, job, clock) as op:
            for first, following in ((0, 2), (2, 4), (4, 5), (5, 12)):
                op.add_messages([piece(i) for i in range(first, following)])
            op.get_result()
            op.flush()
        if loses:
            lose(job)
        with opened(definition, job, clock, lambda ranges: [piece(i) for i in range(12)]) as op:
            stores.append(kept(op))
    assert stores[0] == stores[1]


def test_a_table_with_position_columns_is_a_source_too(tmp_path: Path) -> None:
    definition = define(positions=wr.positions("o", partition="p"))
    rows = [{**message(i).payload, "o": i, "p": i % 2} for i in range(60)]
    table = pa.Table.from_pylist(rows)
    stores = []
    for job, loses in ((tmp_path / "job", True), (tmp_path / "twin", False)):
        clock = ManualClock()
        with opened(definition, job, clock) as op:
            for at in range(0, 60, 20):
                op.add_messages(table.slice(at, 20))
                op.timeout()
            op.get_result()
            op.flush()
        if loses:
            lose(job)
        with opened(definition, job, clock, lambda ranges: table) as op:
            stores.append(kept(op))
    assert stores[0] == stores[1]
    assert sum(map(len, stores[0].values())) > 5


def test_a_value_that_is_missing_comes_back_in_the_type_of_its_column(tmp_path: Path) -> None:
    def steps(i: int) -> wr.Message:
        # The third one ends a run that it is alone in.
        x = None if i in (1, 2) else i
        return wr.Message({"k": "a", "t": (5, 10, 20, 25, 26)[i] * SECOND, "x": x}, wr.Position("s", 0, i))

    definition, stores = define(watermark="0 seconds", retention="1 hour"), []
    for job, loses in ((tmp_path / "job", True), (tmp_path / "twin", False)):
        clock = ManualClock()
        with opened(definition, job, clock) as op:
            for i in range(5):
                op.add_message(steps(i))
            op.get_result()
            op.flush()
        if loses:
            lose(job)
        with opened(definition, job, clock, lambda ranges: [steps(i) for i in range(5)]) as op:
            stores.append(kept(op))
    assert stores[0] == stores[1]


@pytest.mark.parametrize(
    "definition", [DEFINITIONS["tumbling"], DEFINITIONS["tuples"]], ids=["tumbling", "tuples"]
)
def test_messages_on_which_an_expression_raised_stay_away_again(
    definition: wr.Aggregate, tmp_path: Path
) -> None:
    @wr.aggregate_function(name="spread", returns=pa.int64())
    def spread(messages: pa.Table) -> int:
        return len(messages)

    filtered = define(
        window=definition.window,
        agg={"n": wr.count(), "m": spread("x").where(wr.lit(6) / wr.col("x") > 1)},
        **({"retention": wr.Retain(windows=4), "allowed_lateness": None} if definition.tuple_window else {}),
    )
    clock = ManualClock()
    with opened(filtered, tmp_path, clock) as op:
        fed(op, clock, range(60))
        raised = [x for x in op.dead_letters() if "divide by zero" in x.detail]
        before, windows = kept(op), op.get_windows()
        assert len(raised) > 2 and len(windows) > 2
    lose(tmp_path)
    with opened(filtered, tmp_path, clock, source(range(60))) as op:
        assert (kept(op), op.get_windows()) == (before, windows)


DIVIDES = wr.lit(6) / wr.col("v") < 4


def _divides(kind: str) -> Any:
    """A definition that raises on a message whose "v" is 0."""
    times: dict[str, Any] = {"event_time": "t", "max_ahead": wr.forever}
    kept: dict[str, Any] = {
        "by": "k", "window": wr.tumbling("10 seconds"), "retention": "1 hour", "agg": {"middle": wr.median("v")}
    }  # fmt: skip
    if kind == "aggregate":
        return wr.Aggregate(**times, **kept, where=DIVIDES)
    sides = wr.Input("a", where=DIVIDES, **times), wr.Input("b", **times)
    if kind == "cogroup":
        return wr.CoGroup(inputs=sides, **kept)
    condition = wr.col("a_v") <= wr.col("b_v") if kind == "join with a condition" else None
    return wr.Join(left=sides[0], right=sides[1], on="k", within=("-5 seconds", "5 seconds"), where=condition)


@pytest.mark.parametrize("kind", ["aggregate", "cogroup", "join", "join with a condition"])
def test_a_message_on_which_a_filter_raises_stays_away_when_lost_messages_come_back(
    kind: str, tmp_path: Path
) -> None:
    definition, clock = _divides(kind), ManualClock(10 * SECOND)
    driver, sent = TestDriver(definition, str(tmp_path), clock=clock), 0
    names = [i.name if definition.by_input else None for i in definition.inputs]
    for values in ([3, 0, 2, None], [0], [4, 0, 1]):
        at = range(sent, sent := sent + len(values))
        payloads = [{"k": "x", "t": (10 + i) * SECOND, "v": v} for i, v in zip(at, values, strict=True)]
        messages = [wr.Message(one, wr.Position("s", 0, i)) for i, one in zip(at, payloads, strict=True)]
        for name in names:
            driver.feed({name: messages} if name else messages)
        driver.next_offsets()

    def kept() -> list[list[Any]]:
        return [[(m.position, dict(m.payload)) for m in driver.op.get_messages(input=name)] for name in names]

    before = kept()
    assert [payload["v"] for _, payload in before[0]] == [3, 2, 4]
    assert [letter.reason for letter in driver.op.dead_letters()] == ["malformed"] * 3
    driver.lose_messages()
    assert kept() == before
    driver.drain()
    driver.check(dead_letters=True)
    driver.close()


def test_messages_of_sessions_come_back_whatever_is_noted_of_where_these_begin(tmp_path: Path) -> None:
    """Steps that run together note less of it than each by itself."""
    definition = define(window=wr.session("10 seconds"), watermark="20 seconds", retention="1 minute")
    with TestDriver(definition, str(tmp_path)) as driver:
        for x, second in enumerate([100, 130, 126, 122, 118]):
            driver.add({"k": "a", "t": second * SECOND, "x": x})
        driver.next_offsets()
        before = driver.messages()
        driver.lose_messages()
        assert driver.messages() == before and len(before) == 5
        driver.drain()
        driver.check(dead_letters=True)
