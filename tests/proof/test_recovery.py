"""Lost or damaged files are rebuilt, and the job ends as the oracle says; damage beyond repair is refused."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint import records
from windrow.checkpoint.shard import look
from windrow.core import errors as e
from windrow.core.messages import Message, Pane, Position
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.stores import rocks
from windrow.testing import CommitPoint, ManualClock, TestDriver, all_panes_equal, damage_file, tear_file

S = 1_000_000
DEFINITIONS = {
    "incremental": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "total": wr.sum("v")},
        watermark="5 seconds",
        retention="1 hour",
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="retracting"),
    ),
    "full state": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.hopping("10 seconds", "5 seconds"),
        agg={"n": wr.count(), "middle": wr.median("v")},
        watermark="5 seconds",
        retention="1 hour",
    ),
    "tuples": wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tuples(3, step=1),
        agg={"n": wr.count(), "middle": wr.median("v")},
        retention=wr.Retain(windows=50),
        emit=wr.Emit(early=wr.every_batch),
    ),
}
BY_NAME = [pytest.param(d, id=name) for name, d in DEFINITIONS.items()]
INCREMENTAL = DEFINITIONS["incremental"]


def messages(numbers: range) -> list[Message]:
    return [Message({"t": i * S // 4, "k": "abc"[i % 3], "v": i}, Position("s", 0, i)) for i in numbers]


def fed(definition: AggregateDefinition, location: Path, upto: int = 400, size: int = 20) -> TestDriver:
    """A job of one commit for every `size` messages."""
    driver = TestDriver(definition, location)
    for i in range(0, upto, size):
        driver.feed(messages(range(i, i + size)))
        driver.timeout()
    return driver


def continues(definition: AggregateDefinition, location: Path, upto: int = 400) -> None:
    """The job comes back, takes more, and all that it ever said is what the oracle says."""
    with TestDriver(definition, location) as driver:
        for message in messages(range(upto)):
            driver.know(message)
        assert driver.next_offsets() == {("s", 0): upto}
        driver.feed(messages(range(upto - 10, upto + 40)))
        driver.timeout()
        driver.check(dead_letters=True)
        if definition.full_state:
            assert len(driver.messages()) > 40


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot every few commits."""
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 4)


#: Lays a job that was closed at a location; `often`: with a snapshot every few commits.
Laid = Callable[..., None]


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Laid:
    """Jobs as `fed` makes them: each is made once, and copied."""
    made: dict[Any, Path] = {}

    def copied(definition: AggregateDefinition, location: Path, *, often: bool = False) -> None:
        if (definition, often) not in made:
            made[definition, often] = tmp_path_factory.mktemp("laid") / "job"
            with pytest.MonkeyPatch.context() as patch:
                if often:
                    patch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 4)
                fed(definition, made[definition, often]).close()
        shutil.copytree(made[definition, often], location)

    return copied


def store_of(job: Path) -> Path:
    return job / "local" / "shard-0000"


def aside(job: Path) -> list[Path]:
    return [path for path in (job / "local").iterdir() if ".aside-" in path.name]


# -- lost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", BY_NAME)
@pytest.mark.parametrize("lost", [["local"], ["local", "snapshots"]], ids=["store", "store and snapshots"])
@pytest.mark.usefixtures("often")
def test_what_is_lost_is_built_anew(
    definition: AggregateDefinition, lost: list[str], job: Path, laid: Laid
) -> None:
    laid(definition, job, often=True)
    assert list((job / "snapshots").rglob("*")) != []
    for folder in lost:
        shutil.rmtree(job / folder)
    continues(definition, job)


@pytest.mark.usefixtures("often")
def test_window_metadata_comes_back_from_its_changelog(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    with fed(INCREMENTAL, job) as driver:
        driver.panes()  # acknowledged, so that they may be swept
        for i in range(400, 600, 20):
            driver.feed(messages(range(i, i + 20)))
            driver.panes()
        windows = driver.windows()
    assert list((job / "changelog").glob("000000000001-*")) == []
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(job / folder)
    with TestDriver(INCREMENTAL, job) as driver:
        assert driver.windows() == windows


# -- damaged ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(DEFINITIONS))
def larger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A definition, and a job that was closed."""
    definition, location = DEFINITIONS[request.param], tmp_path_factory.mktemp("larger") / "job"
    fed(definition, location, 400, 40).close()
    return definition, location


@pytest.mark.parametrize("part", range(8))
def test_a_store_with_a_flipped_bit_is_moved_aside_and_built_anew(
    larger: tuple[Any, Path], part: int, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the bit is: noticed when the store is opened, or when the damaged block is read."""
    monkeypatch.setattr(rocks, "_SHARED", {})  # in its cache are whole blocks, of the copies of tests before
    definition, location = larger
    shutil.copytree(location, job)
    largest = max(store_of(job).glob("*.sst"), key=os.path.getsize)
    damage_file(largest, os.path.getsize(largest) * part // 8 + 5)
    continues(definition, job)
    if part == 0:
        assert aside(job) != []


@pytest.mark.usefixtures("often")
def test_a_store_that_came_from_a_snapshot_can_be_damaged_without_it(job: Path, laid: Laid) -> None:
    laid(INCREMENTAL, job, often=True)
    shutil.rmtree(job / "local")
    with TestDriver(INCREMENTAL, job):
        pass  # restored
    newest = max(int(path.name.split("-")[1]) for path in (job / "snapshots").rglob("*-*") if path.is_file())
    for file in (job / "changelog").glob("0*.seg"):
        if int(file.name.split("-")[0]) <= newest:
            file.unlink()  # only the newest snapshot leads on
    for base in (job / "changelog").glob("base-*"):
        base.unlink()
    for file in store_of(job).glob("*.sst"):
        damage_file(file, 5)
    continues(INCREMENTAL, job)


@pytest.mark.usefixtures("often")
def test_a_damaged_snapshot_is_passed_over(job: Path, laid: Laid) -> None:
    laid(INCREMENTAL, job, often=True)
    shutil.rmtree(job / "local")
    blobs = [path for path in (job / "snapshots").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    assert blobs != []
    for blob in blobs:
        damage_file(blob, 20)
    continues(INCREMENTAL, job)


@pytest.mark.parametrize("harm", ["torn", "flipped", "of another job"])
def test_a_damaged_segment_in_the_middle_is_refused_by_name(
    harm: str, job: Path, tmp_path: Path, laid: Laid
) -> None:
    laid(INCREMENTAL, job)
    shutil.rmtree(job / "local")
    segment = sorted((job / "changelog").glob("*.seg"))[4]
    if harm == "torn":
        tear_file(segment, 40)
    elif harm == "flipped":
        damage_file(segment, -10)
    else:
        fed(INCREMENTAL, tmp_path / "other", 100, 10).close()
        shutil.copyfile(sorted((tmp_path / "other" / "changelog").glob("*.seg"))[4], segment)
    with pytest.raises(e.CorruptState, match=segment.name):
        TestDriver(INCREMENTAL, job)


# -- of another time --------------------------------------------------------------------------------------------


def test_a_log_of_a_newer_windrow_is_refused(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(records, "VERSION", records.VERSION + 1)
        fed(INCREMENTAL, job, 40).close()
    with pytest.raises(e.NewerFormat, match="upgrade windrow"):
        TestDriver(INCREMENTAL, job)


def test_state_of_a_newer_windrow_is_refused(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("windrow.operators.steps.progress.FORMAT", 2)
        fed(INCREMENTAL, job, 40).close()
    with pytest.raises(e.NewerFormat, match="upgrade windrow"):
        TestDriver(INCREMENTAL, job)


def changed(**fields: Any) -> AggregateDefinition:
    made = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("v")},
        "watermark": "5 seconds",
        "retention": "1 hour",
        "emit": INCREMENTAL.emit,
    }
    return wr.Aggregate(**{**made, **fields})


def test_a_changed_definition_is_refused_showing_both(job: Path) -> None:
    fed(INCREMENTAL, job, 40).close()
    other = changed(window=wr.tumbling("20 seconds"))
    with pytest.raises(e.DefinitionChanged) as refused:
        TestDriver(other, job)
    assert repr(INCREMENTAL) in str(refused.value)
    assert repr(other) in str(refused.value)
    continues(INCREMENTAL, job, 40)


def test_emission_and_retention_may_change_and_a_column_may_come(job: Path) -> None:
    fed(INCREMENTAL, job, 40).close()
    other = changed(retention="2 hours", emit=wr.Emit(early=wr.never, late=wr.every("5 seconds")))
    with TestDriver(other, job) as driver:
        before = driver.windows()
        assert sum(window.messages for window in before) == 40
        more = [replace(m, payload={**m.payload, "new": "x"}) for m in messages(range(40, 80))]
        driver.feed(more)
        driver.panes()
        assert sum(window.messages for window in driver.windows()) == 80
        driver.feed(messages(range(80, 100)))  # the column may stay away again
        assert sum(window.messages for window in driver.windows()) == 100


# -- two at once ------------------------------------------------------------------------------------------------


def test_of_two_operators_on_one_directory_the_older_is_fenced(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.checkpoint.shard.look", lambda spec, path, wait: look(spec, path, 0.0))
    older = fed(INCREMENTAL, job, 40)
    newer = TestDriver(INCREMENTAL, job)  # on a private copy: the store is locked
    newer.feed(messages(range(40, 60)))
    newer.timeout()
    older.feed(messages(range(40, 50)))
    with pytest.raises(e.Fenced, match="stop one of the two"):
        older.timeout()
    older.op.abandon()
    for message in messages(range(40)):
        newer.know(message)
    newer.check(dead_letters=True)
    newer.close()
    continues(INCREMENTAL, job, 60)


# -- panes ------------------------------------------------------------------------------------------------------


def test_panes_come_again_with_their_token_until_they_are_flushed(job: Path) -> None:
    driver = fed(INCREMENTAL, job, 40)
    panes = driver.op.get_result()
    assert panes != []
    driver.crash()
    driver.restart()
    again = driver.op.get_result()
    assert again == panes
    assert [pane.token for pane in again] == [pane.token for pane in panes]
    driver.op.flush()
    driver.crash()
    driver.restart()
    assert driver.op.get_result() == []
    driver.close()


class Refusing:
    """A sink that refuses as often as it is told, and after that takes every token once."""

    def __init__(self) -> None:
        self.refuses = 0
        self.taken: dict[Any, list[Pane]] = {}

    def publish(self, token: Any, panes: Any) -> None:
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("try later")
        self.taken.setdefault(token, list(panes.panes()))

    def last_commit(self, job: str, operator: str) -> int | None:
        return max((token.commit for token in self.taken), default=None)

    @property
    def panes(self) -> Iterator[Pane]:
        return (pane for token in sorted(self.taken, key=lambda t: t.commit) for pane in self.taken[token])


@pytest.mark.parametrize("at", [None, *CommitPoint])
def test_a_sink_that_refuses_has_every_pane_once_in_the_end(at: CommitPoint | None) -> None:
    sink = Refusing()
    driver = TestDriver(INCREMENTAL, sink=sink)
    for i in range(0, 120, 20):
        sink.refuses = 2 if i % 40 == 0 else 0
        driver.feed(messages(range(i, i + 20)))
        driver.timeout()
        while sink.refuses:
            with pytest.raises(e.OperatorPaused, match="call timeout"):
                driver.feed(messages(range(i + 20, i + 21)))
            if sink.refuses > 1:
                with pytest.raises(e.OperatorPaused):
                    driver.timeout()
            else:
                driver.crash()
                sink.refuses = 0
                driver.restart()
        driver.timeout()
        driver.crash(at)
        driver.restart()
    expected = driver.check(dead_letters=True)
    assert all_panes_equal(list(sink.panes), expected.panes)
    driver.close()


# -- nothing is left --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "window",
    [
        wr.tumbling("10 seconds"),
        wr.hopping("10 seconds", "4 seconds"),
        wr.hopping("3 seconds", "7 seconds", gaps=True),
        wr.calendar("day", time_zone="Europe/Berlin"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("agg", [wr.sum("v"), wr.median("v")], ids=repr)
@pytest.mark.parametrize("limits", [{}, {"windows": 3}, {"messages": 9, "per": "job"}], ids=repr)
@pytest.mark.parametrize(
    "emit", [wr.Emit(), wr.Emit(early=wr.every(2), mode="retracting"), wr.Emit.append()], ids=repr
)
def test_what_has_expired_leaves_nothing(
    window: Any, agg: Any, limits: dict[str, Any], emit: wr.Emit
) -> None:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"x": agg},
        retention=wr.Retain("20 seconds", **limits),
        emit=emit,
    )
    with TestDriver(definition, clock=ManualClock()) as driver:
        driver.feed(messages(range(40)))
        with pytest.raises(AssertionError, match="keys are left"):
            driver.assert_state_zero()
        driver.feed(messages(range(40, 80)))
        driver.advance_clock("1 minute")
        driver.drain()
        driver.assert_state_zero()
        driver.check(dead_letters=True)
