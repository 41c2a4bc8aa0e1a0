"""A batch that does not fit: its rows come in pieces, and nothing that is told depends on it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from tests.golden.jobs import ALL, FIRST, KINDS, SECOND, TWO, Kind, aggregate, join, row
from tests.operators.join import cases as joins
from windrow.checkpoint import shard as shards
from windrow.checkpoint.job import Job, Plan
from windrow.checkpoint.shard import ShardSpec
from windrow.connectors.sinks import PaneFiles
from windrow.core.messages import Token
from windrow.operators.join import logic
from windrow.runners import batch_splitting as pieces
from windrow.runners import tasks
from windrow.runners.protocol import BatchProtocol
from windrow.runners.publishing import Publisher
from windrow.runners.replay import GivenByInput, GivenTable, bring_back, inside
from windrow.runners.task_result import Answer
from windrow.runners.tasks import TaskPlan
from windrow.runners.wire import CONTROL, INPUT, SHARD, tables_of_inputs
from windrow.stores import event_log, segment, spill, spilling_overlay
from windrow.stores.event_log import Events
from windrow.testing import ManualClock

USUAL = (
    "full state",
    "ids",
    "tuples, full state",
    "limited by key",
    "join, waiting",
    "as-of",
    "graph",
    "chain, any",
)
PLACES = ("offset", "ordinal")
COLUMNS = pa.schema(
    [
        ("t", pa.int64()),
        ("k", pa.string()),
        ("x", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("id", pa.int64()),
    ]
)


class Batches:
    """A job of one shard whose batches come as Spark's tasks get them."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind, self.definition, self.clock = kind, kind.make(), ManualClock()
        self.emitted: list[Any] = []
        self.dead_letters: list[Any] = []
        self.job = Job(str(folder), [self.definition], shards=1, clock=self.clock)
        publisher = Publisher(self.job, (self.definition,), {self.definition.name: self}, self)
        self.protocol = BatchProtocol(self.job, (self.definition,), publisher)
        self.frame = frame(kind, range(0, SECOND.stop))

    def publish(self, token: Token, panes: PaneFiles) -> None:
        table = panes.table()
        said = self.dead_letters if "reason" in table.column_names else self.emitted
        # A row that one operator hands to the next stands at a place of no meaning.
        said += [repr([v for n, v in sorted(one.items()) if n not in PLACES]) for one in table.to_pylist()]

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    def batch(self, number: int, rows: range) -> dict[str, int]:
        """Take some of the rows; what the commit counts."""
        self.clock.advance("7 seconds")
        taken = self.frame.slice(rows.start, len(rows))
        record = self.protocol.batch("q", number, True, lambda plan, _: self.act(plan, taken))
        assert record is not None
        return {**record.counters, **record.shards[0].counters}

    def drain(self) -> None:
        self.protocol.drain(lambda plan: self.act(plan, self.frame.slice(0, 0)))

    def act(self, plan: Plan, taken: pa.Table) -> Sequence[Answer]:
        control = pa.table({SHARD: pa.array([0], pa.int32()), CONTROL: [True]})
        rows = taken.append_column(SHARD, pa.array([0] * len(taken), pa.int32()))
        travels = pa.concat_tables([rows, control], promote_options="default")
        task = self.task(plan)
        shard = task.open(0)
        try:
            came = tasks.tables_of_shard(travels.to_batches(max_chunksize=3), 7)
            return [tasks.run_shard(task, shard, (table for _, table in came))]
        finally:
            shard.close()

    def task(self, plan: Plan) -> TaskPlan:
        logic, job = self.definition.logic(), self.job
        return TaskPlan(
            ShardSpec(job.folders, job.job, -1, logic.metadata_cfs, logic.message_cfs),
            (self.definition,),
            plan.commit,
            plan.now_us,
            dict(plan.watermarks_us),
            (pa.schema([f for f in self.frame.schema if not f.name.startswith("__")]))
            .serialize()
            .to_pybytes(),
            None,
            tuple(job.recent),
            snapshot_every=1_000,
        )

    def lose_messages(self) -> None:
        """All copies of them, and bring them back from what was read."""
        folders = self.job.folders
        shutil.rmtree(folders.local)
        for path in Path(folders.segment("x")).parent.iterdir():
            path.unlink()

        def replay(spec: ShardSpec, kv: Any, commits: Any) -> None:
            def read(ranges: Any) -> GivenByInput:
                tables = tables_of_inputs(self.definition, self.frame)
                return GivenByInput({n: GivenTable(inside(t, ranges)) for n, t in tables.items()})

            bring_back(self.definition, spec, kv, commits, read)

        self.task(self.job.plan()).open(0, replay).close()


def frame(kind: Kind, numbers: range) -> pa.Table:
    """Messages as they travel: of one input, or of several, each with its name."""
    rows, n = pa.Table.from_pylist([row(i) for i in numbers], COLUMNS), len(numbers)
    sources = [":topic"] * n
    if kind.inputs:
        names = [kind.inputs[i * 5 // 3 % len(kind.inputs)] for i in numbers]
        sources, whole = [f"{name}:topic" for name in names], rows.to_struct_array().combine_chunks()
        columns = {
            name: pa.array(
                [v if n == name else None for v, n in zip(whole.to_pylist(), names, strict=True)], whole.type
            )
            for name in dict.fromkeys(kind.inputs)
        }
        rows = pa.table({INPUT: names, **columns})
    where = {
        "__source": pa.array(sources),
        "__partition": pa.array([0] * n, pa.int64()),
        "__offset": pa.array(list(numbers), pa.int64()),
        "__ordinal": pa.array([0] * n, pa.int64()),
    }
    for name, column in where.items():
        rows = rows.append_column(name, column)
    return rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input that fits is small."""
    monkeypatch.setattr(pieces, "WHOLE_ROWS", 5)
    monkeypatch.setattr(pieces, "WHOLE_KEPT", 5)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 1)


@pytest.fixture
def tiny(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes do not fit either."""
    monkeypatch.setattr(spilling_overlay, "SPILL_BYTES", 100)
    monkeypatch.setattr(segment, "PART_BYTES", 300)
    monkeypatch.setattr(shards, "PART_BYTES", 500)


def run(folder: Path, kind: Kind) -> tuple[Any, ...]:
    job = Batches(folder, kind)
    counted = job.batch(0, FIRST), job.batch(1, SECOND)
    job.drain()
    totals = [
        {n: c for n, c in counts.items() if "." not in n or n.startswith("dead.")} for counts in counted
    ]
    return sorted(job.emitted), sorted(job.dead_letters), totals


@pytest.mark.parametrize("name", usually(USUAL, deep=tuple(KINDS)))
def test_every_operator_says_the_same_of_rows_in_pieces(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = run(tmp_path / "whole", KINDS[name])
    request.getfixturevalue("small")
    assert run(tmp_path / "pieces", KINDS[name]) == whole
    assert whole[0]


@pytest.mark.parametrize("name", ["full state", "incremental", "join", "deduplicate"])
def test_changes_that_do_not_fit_are_read_back_and_written_all_the_same(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = run(tmp_path / "whole", KINDS[name])
    request.getfixturevalue("tiny")
    assert run(tmp_path / "pieces", KINDS[name]) == whole
    assert not [path for path in (tmp_path / "pieces" / "local").iterdir() if "spill" in path.name]


@pytest.fixture
def sliced(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a join that reads, pairs, emits and evicts a lot is large."""
    for place, name, least in (
        (event_log, "PORTION", 2),
        (logic, "PAIRS", 2),
        (logic, "LEAVING", 2),
        (spill, "SLICE_BYTES", 300),
        (spill, "SLICE_ROWS", 2),
    ):
        monkeypatch.setattr(place, name, least)


def of_one(how: str, scale: str, deliver: bool = False, **more: Any) -> Kind:
    within = ("-20 seconds", "0 seconds") if how == "asof" else ("-5 seconds", "10 seconds")
    left = {"deliver": wr.deliver.latest(per="key")} if deliver else {}
    return Kind(lambda: join(left, within=within, how=how, scale=scale, **more), TWO)


WAITING = wr.Emit(early=wr.every("7 seconds"), late=wr.every("7 seconds"))
JOINED = {
    **{f"{how}, {scale}": of_one(how, scale) for how in joins.ALL for scale in ("small", "large")},
    "waiting": of_one("full", "small", emit=WAITING),
    "delivered": of_one("left", "small", deliver=True),
}


#: Each kind of join in one of the scales, its neighbours in the other.
TURNS = [*list(JOINED)[:-2:4], *list(JOINED)[3:-2:4], *list(JOINED)[-2:]]


@pytest.mark.parametrize("name", usually(TURNS, deep=list(JOINED)))
def test_joins_in_slices_emit_the_same_rows_in_the_same_order(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = run(tmp_path / "whole", JOINED[name])
    request.getfixturevalue("small")
    pieces = in_order(tmp_path / "pieces", JOINED[name])
    assert sorted(pieces) == whole[0]
    request.getfixturevalue("sliced")
    assert in_order(tmp_path / "slices", JOINED[name]) == pieces


def in_order(folder: Path, kind: Kind) -> list[Any]:
    job = Batches(folder, kind)
    for number, rows in enumerate((FIRST, SECOND)):
        job.batch(number, rows)
    job.drain()
    return job.emitted


def test_a_piece_of_a_join_does_not_look_at_what_the_others_have_brought(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, reads = Events.read_near, list[int]()

    def looked(*args: Any, **more: Any) -> Any:
        rows = usual(*args, **more)
        reads.append(0 if rows is None else len(rows))
        return rows

    monkeypatch.setattr(Events, "read_near", looked)
    job = Batches(tmp_path, JOINED["full, small"])
    job.batch(0, FIRST)
    assert len(reads) > 4 and not any(reads)  # before the first batch there is nothing
    job.batch(1, SECOND)
    assert any(reads)


DISCARDING = Kind(lambda: aggregate(agg=ALL, emit=wr.Emit(early=wr.every_batch, mode="discarding")))


@pytest.mark.parametrize("kind", [DISCARDING, KINDS["tuples, full state"], KINDS["join"]])
def test_messages_that_came_in_pieces_are_brought_back(
    kind: Kind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = run(tmp_path / "whole", kind)[0]
    request.getfixturevalue("small")
    job = Batches(tmp_path / "lost", kind)
    assert job.batch(0, FIRST)[f"pieces.{job.definition.name}"] > 1
    job.lose_messages()
    job.batch(1, SECOND)
    job.drain()
    assert sorted(job.emitted) == whole


def test_rows_that_no_key_divides_stay_together(tmp_path: Path, small: None) -> None:
    keyless = Kind(lambda: aggregate(by=()))
    assert "pieces.aggregate" not in Batches(tmp_path, keyless).batch(0, FIRST)
