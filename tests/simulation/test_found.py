"""Faults found by the simulator, or while it was written: each story once more, without it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.checkpoint.files import write_parquet
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import MemoryLog
from windrow.checkpoint.marker import MARKER, MARKER_CF, Marker
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.checkpoint.storage import FolderRecords, MemoryRecords
from windrow.checkpoint.truncation_summary import DEAD_FILE
from windrow.connectors.kafka.start_offsets import job_offsets
from windrow.connectors.manifests import Manifest
from windrow.connectors.pane_files import PaneFiles
from windrow.core.errors import Fenced, OffsetGap, SinkFailed, StateLost
from windrow.core.messages import Token
from windrow.core.time import END_OF_TIME_US
from windrow.runners.protocol import PUBLISH_ATTEMPTS, BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.task_result import Answer
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV
from windrow.stores.snapshots import SnapshotStore
from windrow.testing import ManualClock
from windrow.testing.simulation.disk import Disk

DEFINITION = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count()},
    retention="1 hour",
    name="n",
)
P0, P1 = (":topic", 0), (":topic", 1)


class RecordedSink:
    """A sink that says which commit it has."""

    def __init__(self, has: int) -> None:
        self.has = has

    def publish(self, token: Token, panes: PaneFiles) -> None:
        self.has = token.commit

    def last_commit(self, job: str, operator: str) -> int | None:
        return self.has


class Drivers:
    """Drivers of one job at `location`."""

    def __init__(self, location: Path) -> None:
        self.location, self.records = str(location), MemoryRecords()

    def open(self, sink: Any = None, dead_letters: Any = None) -> BatchProtocol:
        log = MemoryLog(self.records)
        job = Job(self.location, [DEFINITION], shards=1, clock=ManualClock(), log=log)
        sinks = {} if sink is None else {DEFINITION.name: sink}
        publisher = Publisher(job, (DEFINITION,), sinks, dead_letters)
        return BatchProtocol(job, (DEFINITION,), publisher, sleep=lambda seconds: None)


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    return Drivers(tmp_path)


def reading(ranges: dict[tuple[str, int], tuple[int, int]]) -> Callable[..., Sequence[Answer]]:
    """An action that has read these offsets."""

    def act(plan: Plan, decision: Any) -> Sequence[Answer]:
        first, following = ({p: r[i] for p, r in ranges.items()} for i in (0, 1))
        return [Answer(ShardResult(shard=0), {}, first, following)]

    return act


# -- drivers ----------------------------------------------------------------------------------------------------------


def test_a_new_query_that_begins_above_our_offsets_is_refused_in_whichever_batch_it_shows(
    drivers: Drivers,
) -> None:
    """Its first batch had no row of that partition, and the others were not looked at: the rows between were lost."""
    protocol = drivers.open()
    protocol.batch("first", 0, True, reading({P0: (0, 5), P1: (0, 5)}))
    protocol.batch("second", 0, True, reading({P0: (5, 7)}))
    with pytest.raises(OffsetGap, match="are missing"):
        protocol.batch("second", 1, True, reading({P1: (6, 8)}))
    assert protocol.job.progress.commit == 2
    again = drivers.open()
    with pytest.raises(OffsetGap, match="are missing"):
        again.batch("second", 1, True, reading({P1: (6, 8)}))


def test_what_a_query_has_read_before_it_may_go_on_reading_with_holes(drivers: Drivers) -> None:
    """Kafka spends offsets on markers."""
    drivers.open().batch("q", 0, True, reading({P0: (0, 5)}))
    protocol = drivers.open()
    protocol.batch("q", 1, True, reading({P0: (6, 8)}))
    protocol.batch("q", 2, True, reading({P0: (9, 10)}))
    assert protocol.job.progress.next_offsets == {P0: 10}


def test_a_batch_that_spark_plans_again_with_more_in_it_brings_its_new_rows(drivers: Drivers) -> None:
    """Its file of offsets was not synced when the power went. The batch was skipped by its number, and the next one went on
    behind it."""
    drivers.open().batch("q", 0, True, reading({P0: (0, 5), P1: (0, 5)}))
    drivers.open().batch("q", 1, True, reading({P0: (5, 6)}))
    protocol = drivers.open()
    again = protocol.batch("q", 0, True, reading({P0: (0, 5), P1: (0, 8)}))
    assert again is not None
    assert (again.commit, again.batch_id, protocol.job.progress.next_offsets) == (3, 0, {P0: 6, P1: 8})
    assert protocol.batch("q", 1, True, reading({P0: (5, 9)})) is not None
    assert drivers.open().job.progress.next_offsets == {P0: 9, P1: 8}


def test_a_batch_that_comes_again_as_it_was_makes_no_commit(drivers: Drivers) -> None:
    drivers.open().batch("q", 0, True, reading({P0: (0, 5), P1: (0, 5)}))
    for _ in range(2):
        protocol = drivers.open()
        assert protocol.batch("q", 0, True, reading({P0: (0, 5), P1: (0, 5)})) is None
    assert protocol.batch("q", 1, True, reading({P0: (5, 6)})) is not None
    assert protocol.job.progress.commit == 2


def test_a_batch_that_comes_after_an_interrupted_drain_is_not_computed_at_the_end_of_time(
    drivers: Drivers,
) -> None:
    """The intent to drain has the number of the last batch."""
    drivers.open().batch("q", 0, True, reading({P0: (0, 5)}))

    def dies(plan: Plan) -> Sequence[Answer]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drivers.open().drain(dies)
    again = drivers.open().batch("q", 0, True, reading({P0: (0, 8)}))
    assert again is not None and again.watermark_us != END_OF_TIME_US


def test_the_end_of_a_run_is_one_commit_whatever_it_died_of(drivers: Drivers) -> None:
    """Its intent keeps `now`, and no batch redoes it; the next batch follows the last one."""

    def five(first: int) -> Callable[..., Sequence[Answer]]:
        moved = [Answer(ShardResult(shard=0), {P0: first * 1_000_000}, {P0: first}, {P0: first + 5})]
        return lambda *_: moved

    drivers.open().batch("q", 0, True, five(0))
    for die in (True, False):

        def alone(plan: Plan, *_: Any, die: bool = die) -> Sequence[Answer]:
            if die:
                raise KeyboardInterrupt
            return [Answer(ShardResult(shard=0), {}, {}, {})]

        protocol = drivers.open()
        intents = protocol.job.log.last_intent
        if die:
            with pytest.raises(KeyboardInterrupt):
                protocol.advance(alone)
        else:
            record = protocol.advance(alone)
            assert intents is not None and (intents.query_id, intents.batch_id) == (None, None)
            assert record is not None and record.now_us == intents.now_us
            assert (record.commit, record.query_id, record.batch_id) == (2, "q", 0)
    assert protocol.advance(alone) is None  # nothing is left
    following = drivers.open().batch("q", 1, True, five(5))
    assert following is not None and following.commit == 3


def test_a_driver_that_slept_learns_that_it_is_over_and_not_to_restore_its_log(drivers: Drivers) -> None:
    """It was about to publish; the sink had the commits of the next driver."""
    sink = RecordedSink(0)
    old = drivers.open(sink)
    old.batch("q", 0, True, reading({P0: (0, 5)}))
    old.job.progress.published = 0
    old = replace(old, publisher=Publisher(old.job, (DEFINITION,), {DEFINITION.name: sink}))
    new = drivers.open(sink)
    new.batch("q", 1, True, reading({P0: (5, 6)}))
    sink.has = 2
    with pytest.raises(Fenced, match="stop one of the two"):
        old.publish()


def test_a_driver_whose_tasks_miss_what_the_next_one_has_swept_learns_that_it_is_over(
    drivers: Drivers,
) -> None:
    old = drivers.open()

    def act(plan: Plan, decision: Any) -> Sequence[Answer]:
        drivers.open()
        raise StateLost("windows and messages are lost: restore the folders")

    with pytest.raises(Fenced, match="stop one of the two"):
        old.batch("q", 0, True, act)


def test_letters_of_a_query_are_retried_and_left_to_the_next_driver_as_panes_are(drivers: Drivers) -> None:
    """Panes were out, so that nobody asked for the letters of that commit again."""

    class RecordedDeadLetters(RecordedSink):
        refuses = 1

        def publish(self, token: Token, panes: PaneFiles) -> None:
            self.refuses -= 1
            if self.refuses >= 0:
                raise ConnectionError("full")
            delivered.append((token.commit, panes.operator, panes.rows))
            super().publish(token, panes)

    def act(plan: Plan, decision: Any) -> Sequence[Answer]:
        folders = JobFolders(str(drivers.location))
        letters = pa.table({"reason": ["malformed"]})
        write_parquet(letters, folders.dead(f"{plan.commit:012d}-0000-a"))
        shard = ShardResult(
            shard=0, segment=f"{plan.commit:012d}-0000-a", counters={DEAD_FILE: 1, "dead.malformed": 1}
        )
        return [Answer(shard, {}, {P0: plan.commit - 1}, {P0: plan.commit})]

    delivered: list[tuple[int, str, int]] = []
    panes, letters = RecordedSink(0), RecordedDeadLetters(0)
    drivers.open(panes, letters).batch("q", 0, True, act)
    assert delivered == [(1, "dead_letters", 1)]
    letters.refuses = PUBLISH_ATTEMPTS
    with pytest.raises(SinkFailed, match="the dead letters of commit 2"):
        drivers.open(panes, letters).batch("q", 1, True, act)
    panes.has = 2
    drivers.open(panes, letters).publish()
    assert delivered == [(1, "dead_letters", 1), (2, "dead_letters", 1)]


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path) -> ShardSpec:
    folders = JobFolders(str(tmp_path))
    folders.make()
    return ShardSpec(folders, "job", 0, ("w",))


def none() -> Iterator[Commit]:
    return iter(())


def test_what_a_killed_writer_has_left_does_not_stop_the_next_compacted_changelog(spec: ShardSpec) -> None:
    """Its temporary file was read as a commit's number, at every attempt from then on."""
    left = Path(spec.folders.changelog("base-0000-000000000003"))
    left.with_name(left.name + ".41-5f5f5f5f.tmp").write_bytes(b"half")
    with_part = Path(spec.folders.changelog("base_part-0000-000000000003-0a0a0a0a"))
    with_part.with_name(with_part.name + ".41-5f5f5f5f.tmp").write_bytes(b"half")
    shard = Shard.open(spec, 0, none)
    shard.snapshot(compacts=True)
    shard.close()
    assert left.with_name("base-0000-000000000000.seg").exists()


def test_a_store_that_is_refused_is_left_closed(spec: ShardSpec) -> None:
    """A task of an old driver kept it locked, as long as its process lived."""
    kv = RocksKV(spec.path, spec.cfs)
    batch = Batch()
    batch.put(MARKER_CF, MARKER, Marker.of(spec.job, spec.shard, 5).pack())
    kv.write(batch)
    kv.close()
    with pytest.raises(Fenced) as refused:
        Shard.open(spec, 1, none)
    RocksKV(spec.path, spec.cfs, lock_wait_s=0.0).close()
    assert refused.value.code == "WR205"


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that are synced, in order."""
    paths: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    return paths


def test_the_names_of_a_jobs_folders_survive_a_power_cut(tmp_path: Path, synced: list[str]) -> None:
    """All segments were gone, each of them synced, with the name of their folder."""
    JobFolders(str(tmp_path / "a" / "job")).make()
    assert set(synced) >= {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "job")}


class Died(BaseException):
    """The driver did, before it synced a folder."""


@pytest.mark.parametrize(
    "make",
    [
        lambda path: JobFolders(path).make(),
        lambda path: FolderRecords(path).prepare(),
        lambda path: Manifest(path, "job", "n").open(),
    ],
    ids=["job", "log", "sink"],
)
def test_a_driver_that_died_before_it_synced_leaves_no_name_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], object]
) -> None:
    """Folders that the next driver finds had been made, and not synced: a power cut took the whole log (seed 770107)."""
    fsync, left, durable = os.fsync, 0, set[str]()

    def sync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            durable.update(os.path.join(path, name) for name in os.listdir(descriptor))

    monkeypatch.setattr(os, "fsync", sync)
    at, done = 0, False
    while not done:
        at, left = at + 1, at + 1
        durable.clear()
        path = tmp_path / str(at) / "a" / "b"
        try:
            make(str(path))
            done = True
        except Died:
            make(str(path))
        made = [path.parent.parent, *path.parent.parent.rglob("*")]
        assert {str(p) for p in made if p.is_dir()} <= durable
    assert at > 3


def test_the_names_of_a_snapshots_folders_are_synced_before_its_manifest(
    spec: ShardSpec, tmp_path: Path, synced: list[str]
) -> None:
    shard = Shard.open(spec, 0, none)
    synced.clear()
    SnapshotStore(tmp_path / "snapshots").create(shard.kv, 0, 0, tmp_path / "work")
    shard.close()
    folder, manifests = str(tmp_path / "snapshots"), str(tmp_path / "snapshots" / "manifests")
    assert synced.index(folder) < synced.index(manifests)


def test_a_manifest_that_is_there_is_synced_before_it_is_believed(tmp_path: Path, synced: list[str]) -> None:
    """Who made it died before that. The next commit said that it was out, and the power cut took it."""
    sink = wr.sinks.parquet(str(tmp_path / "out"))
    file = tmp_path / "p.parquet"
    write_parquet(pa.table({"x": [1]}), str(file))
    panes = PaneFiles((str(file),), 1, "n", DEFINITION, "job")
    sink.publish(Token("job", 1), panes)
    synced.clear()
    wr.sinks.parquet(sink.path).publish(Token("job", 1), panes)
    assert synced[-1] == str(tmp_path / "out" / "_manifests" / "job~n")


def test_a_driver_that_finds_the_job_begun_by_another_is_no_driver_of_it(tmp_path: Path) -> None:
    """Both were started on an empty location; the slower one would have claimed it under a name of its own (seed 5439)."""
    records = MemoryRecords()

    class Slow(MemoryLog):
        """Between the look at the log and the claim, another driver begins the job and commits."""

        def open_epoch(self, **options: Any) -> Any:
            first = Job(str(tmp_path), [DEFINITION], shards=1, clock=ManualClock(0), log=MemoryLog(records))
            first.close()
            return super().open_epoch(**options)

    with pytest.raises(Fenced, match=r"has begun the job at .* open it again"):
        Job(str(tmp_path), [DEFINITION], shards=1, clock=ManualClock(0), log=Slow(records))
    again = Job(str(tmp_path), [DEFINITION], shards=1, clock=ManualClock(0), log=MemoryLog(records))
    assert again.epoch.epoch == 2


def test_a_parquet_sink_says_nothing_that_a_power_cut_can_take_back(
    tmp_path: Path, synced: list[str]
) -> None:
    """Who made the manifest died before its name was synced; whoever is told of it never publishes that commit again
    (seed 5086)."""
    sink, file = wr.sinks.parquet(str(tmp_path / "out")), tmp_path / "p.parquet"
    write_parquet(pa.table({"x": [1]}), str(file))
    sink.publish(Token("job", 2), PaneFiles((str(file),), 1, "n", DEFINITION, "job"))
    synced.clear()
    assert wr.sinks.parquet(sink.path).last_commit("job", "n") == 2
    records = tmp_path / "out" / "_manifests" / "job~n"
    assert set(synced) >= {str(records), *map(str, list(records.parents)[:3])}


def test_a_query_that_begins_at_a_jobs_offsets_does_not_outlive_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark kept them, the power took the commit that said so, and what lay between was never to come (seed 4225)."""
    with DEFINITION.open(str(tmp_path), clock=ManualClock(0)) as op:
        op.add_message(wr.Message({"k": "a", "t": 0, "x": 1}, wr.Position("s", 0, 7)))
    synced: list[str] = []
    monkeypatch.setattr("windrow.connectors.kafka.start_offsets.sync_directory", synced.append)
    assert job_offsets(str(tmp_path)) == {(":s", 0): 8}
    assert synced == [str(tmp_path / "log")]


def test_a_name_that_was_given_to_another_file_is_one_of_the_two_after_a_power_cut(tmp_path: Path) -> None:
    """The simulated disk lost both (seed 4602)."""
    names = set()
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world: Any = SimpleNamespace(
            folder=str(folder), random=Random(seed), counts=Counter(), point=lambda *_: None
        )
        disk = Disk(world)
        for text in ("old", "new"):
            (folder / "temporary").write_text(text)
            for sync, path in ((True, folder / "temporary"), (text == "old", folder)):
                if path == folder:
                    disk.rename(str(folder / "temporary"), str(folder / "name"))
                if sync:
                    descriptor = os.open(path, os.O_RDONLY)
                    disk.fsync(descriptor)
                    os.close(descriptor)
        disk.lose()
        names.add((folder / "name").read_text())
    assert names == {"old", "new"}
