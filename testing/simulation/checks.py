"""Checks at the end of every schedule."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.offsets import merge
from windrow.checkpoint.records import Commit, Intent, Step
from windrow.checkpoint.shard import Shard
from windrow.core.messages import DeadLetter, Position
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US
from windrow.runners import tasks
from windrow.stores.kv import MemoryKV, Overlay
from windrow.testing.expected_output import Broken, ExpectedOutput, Judge, Letter, difference, letters_differ
from windrow.testing.scenario import ONLY
from windrow.testing.simulation.environment import EXECUTORS, Row, Stage


class Checks:
    """The checks at the end of every schedule."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self.log = RecordLog(stage.records)
        self.log.tail()
        self.history = stage.records.history()
        self.commits = [record for record in self.history if isinstance(record, Commit)]
        #: The rows of each commit.
        self.slices: list[list[Row]] = []

    def all(self) -> None:
        self.one_history()
        self.intents_are_kept()
        emitted = self.oracles()
        self.published(emitted)
        self.dead_letters(emitted)
        self.state()
        for name, part in self.stage.feed.parts.items():
            n = sum(len(one.rows.get(name, ())) for one in emitted.values())
            self.world.counts[f"rows of {part.describe()['operator']}"] += n
        self.world.counts["dead letters"] += sum(len(one.dead_letters) for one in emitted.values())
        self.world.counts["commits"] += len(self.commits)

    def one_history(self) -> None:
        """Check that each commit was made by the driver that got its confirmation, and by no other."""
        by_number = {c.commit: c for c in self.commits}
        if sorted(by_number) != list(range(1, len(self.commits) + 1)):
            raise Broken(f"the log has the commits {sorted(by_number)}")
        makers: dict[int, str] = {}
        for driver, commit in self.stage.believed:
            if makers.setdefault(commit.commit, driver) != driver:
                raise Broken(f"commit {commit.commit} was made by {makers[commit.commit]} and by {driver}")
            if by_number.get(commit.commit) != commit:
                raise Broken(f"{driver} made {commit}, the log has {by_number.get(commit.commit)}")

    def intents_are_kept(self) -> None:
        """Check that a batch that is done again has the same `now` and watermark."""
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

    def oracles(self) -> dict[int, ExpectedOutput]:
        """Return the expected output of each commit, by the oracles over the recorded steps; every row is counted once."""
        judge = Judge(self.stage.definitions, self.stage.feed.schemas)
        reached: dict[Partition, int] = {}
        emitted: dict[int, ExpectedOutput] = {}
        for commit in self.commits:
            watermarks_us: Mapping[str, int] = commit.meta["watermarks"]
            advance, ingest = commit.steps
            rows = self._rows(commit, ingest, reached)
            self.slices.append(rows)
            done = judge.advance(watermarks_us, advance.now_us)
            done.join(judge.ingest([(row.input, row.message) for row in rows], watermarks_us, ingest.now_us))
            emitted[commit.commit] = done
            for now_us in sorted(now_us for last, now_us in self.stage.rests if last == commit.commit):
                due = judge.overdue(now_us)
                if any(due.rows.values()) or due.dead_letters:
                    raise Broken(
                        f"{due} was due at {now_us}, and no commit was made after commit {commit.commit}"
                    )
            if commit.commit in self.stage.ended_runs:
                due = judge.overdue(advance.now_us)
                if any(due.rows.values()) or due.dead_letters:
                    raise Broken(f"{due} was due when a run ended with commit {commit.commit}")
        ends = {partition: end for partition, end in self.stage.ends().items() if end}
        if reached != ends:
            raise Broken(f"rows up to {reached} are counted, there are rows up to {ends}")
        self._counters(emitted, judge.duplicates)
        return emitted

    def _counters(self, emitted: Mapping[int, ExpectedOutput], duplicates: int) -> None:
        counters = {} if not self.commits else self.commits[-1].counters
        found = {name: n for name, n in counters.items() if name.startswith("dead.") and n}
        dead = Counter(f"dead.{reason}" for one in emitted.values() for reason, _ in one.dead_letters)
        if found != dead:
            raise Broken(f"dead letters are {found}, the oracle has {dict(dead)}")
        if counters.get("duplicates", 0) != duplicates:
            raise Broken(
                f"{counters.get('duplicates', 0)} duplicates are counted, the oracle has {duplicates}"
            )

    def _rows(self, commit: Commit, step: Step, reached: dict[Partition, int]) -> list[Row]:
        rows: list[Row] = []
        for partition, first in sorted(step.first_offsets.items()):
            before, end = reached.get(partition, 0), step.next_offsets[partition]
            if first > before:
                raise Broken(
                    f"commit {commit.commit} begins at {first} of {partition}, rows from {before} on are lost"
                )
            rows += self.stage.rows[partition][before:end]
        reached.update(merge(reached, step.next_offsets))
        if dict(commit.next_offsets) != reached:
            raise Broken(f"commit {commit.commit} says {dict(commit.next_offsets)}, its steps {reached}")
        if len(rows) != step.rows:
            raise Broken(f"commit {commit.commit} counted {step.rows} rows, its slice has {len(rows)}")
        return rows

    def published(self, emitted: Mapping[int, ExpectedOutput]) -> None:
        """Check that a reader of each operator's sink sees the oracle's rows of every commit, once."""
        for name, outlet in self.stage.outlets.items():
            seen: dict[int, list[Any]] = defaultdict(list)
            for row in outlet.read():
                seen[row.commit].append(row)
            for commit in sorted({*seen, *emitted}):
                wanted = emitted[commit].rows.get(name, []) if commit in emitted else []
                how = difference(seen.get(commit, []), wanted)
                if how is not None:
                    raise Broken(f"the sink of {name!r}, commit {commit}: {how}")

    def dead_letters(self, emitted: Mapping[int, ExpectedOutput]) -> None:
        """Check the dead-letter sink: it has those of every commit, or some where a step has more than are kept whole."""
        received = self.stage.dead_letters.dead_letters
        limit = min(part.dead_letter_limit for part in self.stage.feed.parts.values())
        for commit in sorted({*received, *emitted}):
            found = [self._letter(letter) for letter in received.get(commit, [])]
            due = [self._placed(one) for one in emitted[commit].dead_letters] if commit in emitted else []
            how = letters_differ(found, due, at_least=limit)
            if how is not None:
                raise Broken(f"commit {commit}: {how}")

    def _letter(self, letter: DeadLetter) -> Letter:
        position, input = letter.position, self.stage.feed.inputs.get(letter.input or ONLY)
        if position is not None and input is not None:
            position = position._replace(source=input.source_prefix + position.source)
        return self._placed((letter.reason, position))

    def _placed(self, letter: Letter) -> Letter:
        """Return a dead letter with its position if that is of the input: rows inside a graph are numbered in each shard."""
        reason, position = letter
        outside = position is not None and position.source in self.stage.topics
        return reason, Position(*position) if outside and position is not None else None

    def state(self) -> None:
        """Check every shard, from any executor's store or from none, against an undisturbed run over the same steps."""
        stage = self.stage
        assert self.log.epoch is not None
        total = len(self.commits)
        for shard in range(stage.shards):
            wanted = self._undisturbed(shard)
            stores = [os.path.join(self.world.folder, f"executor-{n}") for n in range(EXECUTORS)]
            local = self.world.random.choice([*stores, os.path.join(self.world.folder, "nothing")])
            spec = replace(stage.spec(self.log.epoch.job, 0), shard=shard, local=local)
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
        definitions = self.stage.definitions
        kv = MemoryKV([cf for definition in definitions for cf in definition.logic().cfs()])
        for commit, rows in zip(self.commits, self.slices, strict=True):
            over, now_us = Overlay(kv), commit.steps[0].now_us
            for definition, input_rows in tasks.by_definition(definitions, self.stage.table(rows, shard)):
                watermark_us = commit.meta["watermarks"][definition.name]
                tasks.both_steps(definition.logic(), over, input_rows, watermark_us, now_us)
            kv.write(over.batch)
        return kv


def _batch(intent: Intent) -> tuple[Any, ...]:
    return intent.commit, intent.query_id, intent.batch_id
