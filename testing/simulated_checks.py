"""What must hold at the end of every schedule."""

from __future__ import annotations

import copy
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.offsets import merge
from windrow.checkpoint.records import Commit, Intent
from windrow.checkpoint.shard import Shard
from windrow.core.messages import Message, Pane, Position
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.plain.watermark import WatermarkOracle
from windrow.stores.kv import MemoryKV, Overlay
from windrow.testing.ledger import panes_equal
from windrow.testing.simulated_job import (
    EXECUTORS,
    INPUT,
    Broken,
    table_of,
)

if TYPE_CHECKING:
    from windrow.testing.simulation import Simulation


class Checks:
    """What holds at the end of every schedule."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.log = RecordLog(self.world.records)
        self.log.tail()
        self.history = self.world.records.history()
        self.commits = [record for record in self.history if isinstance(record, Commit)]

    def all(self) -> None:
        self.one_history()
        self.intents_are_kept()
        panes = self.oracle()
        self.published(panes)
        self.state()
        self.world.counts["panes checked"] += sum(map(len, panes.values()))
        self.world.counts["commits"] += len(self.commits)

    def one_history(self) -> None:
        """Whoever was told that it made a commit made it, and nobody else made it too."""
        by_number = {c.commit: c for c in self.commits}
        if sorted(by_number) != list(range(1, len(self.commits) + 1)):
            raise Broken(f"the log has the commits {sorted(by_number)}")
        makers: dict[int, str] = {}
        for driver, commit in self.simulation.believed:
            if makers.setdefault(commit.commit, driver) != driver:
                raise Broken(f"commit {commit.commit} was made by {makers[commit.commit]} and by {driver}")
            if by_number.get(commit.commit) != commit:
                raise Broken(f"{driver} made {commit}, the log has {by_number.get(commit.commit)}")

    def intents_are_kept(self) -> None:
        """A batch that is done again is done with the same `now` and watermark."""
        last: Intent | None = None
        for record in self.history:
            if isinstance(record, Intent):
                again = last is not None and _batch(last) == _batch(record)
                drained = END_OF_TIME_US in (record.watermark_us, last.watermark_us if last else None)
                if again and not drained:
                    raise Broken(f"the intent {record} follows {last}, which should have been kept")
                last = record
            elif isinstance(record, Commit):
                kept = last is not None and last.commit == record.commit
                due = None if last is None else (last.now_us, last.watermark_us)
                kept = kept and all((step.now_us, step.watermark_us) == due for step in record.steps)
                if not kept:
                    raise Broken(f"commit {record} was not computed from its intent {last}")

    def oracle(self) -> dict[int, list[Pane]]:
        """The panes of each commit, as the oracle makes them of the recorded steps; every row is counted once."""
        simulation = self.simulation
        oracle = simulation.definition.oracle()
        marks = WatermarkOracle(simulation.definition.watermark)
        reached: dict[Partition, int] = {}
        panes: dict[int, list[Pane]] = defaultdict(list)
        dead: Counter[str] = Counter()
        self.slices: list[list[tuple[int, int, tuple[str, int, int]]]] = []
        for commit in self.commits:
            for step in commit.steps:
                watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
                if step.kind == "advance":
                    explicit = END_OF_TIME_US if watermark_us == END_OF_TIME_US else None
                    due = marks.advance(step.now_us, explicit)
                    if due != watermark_us:
                        raise Broken(f"commit {commit.commit}: the watermark is {watermark_us}, due is {due}")
                    done = oracle.advance(watermark_us, step.now_us)
                else:
                    rows = self._rows(commit, step, reached)
                    self.slices.append(rows)
                    messages = [
                        Message({"k": k, "t": t, "v": v}, Position(INPUT, p, o)) for p, o, (k, t, v) in rows
                    ]
                    done = oracle.ingest(messages, step.now_us, watermark_us)
                    marks.observe(oracle.counted, step.now_us)
                panes[commit.commit] += done.rows
                dead.update(f"dead.{letter.reason}" for letter in done.dead)
            for now_us in sorted(now_us for last, now_us in simulation.rests if last == commit.commit):
                after = copy.deepcopy(oracle)
                if after.advance(copy.deepcopy(marks).advance(now_us), now_us).rows:
                    raise Broken(
                        f"panes were due at {now_us}, and no commit was made after commit {commit.commit}"
                    )
        ends = {(INPUT, n): len(rows) for n, rows in enumerate(simulation.rows) if rows}
        if reached != ends:
            raise Broken(f"rows up to {reached} are counted, there are rows up to {ends}")
        counters = {} if not self.commits else self.commits[-1].counters
        told = {name: n for name, n in counters.items() if name.startswith("dead.") and n}
        if told != dead:
            raise Broken(f"dead letters are {told}, the oracle has {dict(dead)}")
        return panes

    def _rows(
        self, commit: Commit, step: Any, reached: dict[Partition, int]
    ) -> list[tuple[int, int, tuple[str, int, int]]]:
        rows = []
        for partition, first in sorted(step.first_offsets.items()):
            before, end = reached.get(partition, 0), step.next_offsets[partition]
            if first > before:
                raise Broken(
                    f"commit {commit.commit} begins at {first} of {partition}, rows from {before} on are lost"
                )
            number = partition[1]
            rows += [(number, o, self.simulation.rows[number][o]) for o in range(before, end)]
        reached.update(merge(reached, step.next_offsets))
        if dict(commit.next_offsets) != reached:
            raise Broken(f"commit {commit.commit} says {dict(commit.next_offsets)}, its steps {reached}")
        if len(rows) != step.rows:
            raise Broken(f"commit {commit.commit} counted {step.rows} rows, its slice has {len(rows)}")
        return rows

    def published(self, panes: Mapping[int, Sequence[Pane]]) -> None:
        """A reader of the sink sees the oracle's panes of every commit, once."""
        seen: dict[int, list[Pane]] = defaultdict(list)
        for pane in self.simulation.outlet.read():
            assert pane.commit is not None
            seen[pane.commit].append(pane)
        for commit in sorted({*seen, *panes}):
            found, wanted = (sorted(some.get(commit, ()), key=_place) for some in (seen, panes))
            for a, b in zip(found, wanted, strict=False):
                if not panes_equal(a, b):
                    raise Broken(f"a published pane of commit {commit} is {a}, the oracle has {b}")
            if len(found) != len(wanted):
                raise Broken(
                    f"commit {commit} has {len(found)} panes in the sink, the oracle has {len(wanted)}"
                )

    def state(self) -> None:
        """Every shard, from any executor's store or from none, is what an undisturbed run over the same steps gives."""
        simulation = self.simulation
        assert self.log.epoch is not None
        total = len(self.commits)
        for shard in range(simulation.shards):
            wanted = self._undisturbed(shard)
            stores = [os.path.join(self.world.folder, f"executor-{n}") for n in range(EXECUTORS)]
            local = self.world.random.choice([*stores, os.path.join(self.world.folder, "nothing")])
            spec = replace(simulation.spec(self.log.epoch.job, 0), shard=shard, local=local)
            opened = Shard.open(spec, total, self.log.commits, lock_wait_s=0.0)
            for cf in wanted.cfs:
                found, due = dict(opened.kv.scan(cf)), dict(wanted.scan(cf))
                if found != due:
                    odd = sorted(k for k in {*found, *due} if found.get(k) != due.get(k))
                    raise Broken(
                        f"{len(odd)} keys of {cf} of shard {shard} are not as undisturbed: {odd[:3]}"
                    )
            opened.close()

    def _undisturbed(self, shard: int) -> MemoryKV:
        simulation, operator = self.simulation, self.simulation.operator
        kv = MemoryKV(operator.cfs())
        for commit, rows in zip(self.commits, self.slices, strict=True):
            advance, ingest = commit.steps
            over = Overlay(kv)
            watermark_us = START_OF_TIME_US if advance.watermark_us is None else advance.watermark_us
            operator.advance(over, watermark_us, advance.now_us)
            mine = [row for row in rows if simulation.shard_of(row[2][0]) == shard]
            if mine:
                operator.ingest(over, {INPUT: table_of(mine)}, ingest.now_us)
            kv.write(over.batch)
        return kv


def _place(pane: Pane) -> tuple[Any, ...]:
    window = tuple(vars(pane.window).values()) if hasattr(pane.window, "__dict__") else repr(pane.window)
    return (repr(pane.key), window)


def _batch(intent: Intent) -> tuple[Any, ...]:
    return intent.commit, intent.query_id, intent.batch_id
