"""Messages that were added one by one, each a step of its own: they wait, and as many steps as can be are run as few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from windrow.checkpoint.records import Mark, Step
from windrow.core.positions import Partition
from windrow.operators.steps.micro_batching import Run, Runs
from windrow.operators.steps.poison_rows import culprits, is_of_data, marked
from windrow.runners.embedded.engine import Engine, Waiting
from windrow.runners.embedded.intake import Intake
from windrow.runners.embedded.positions import Passed, Placed, extent, reached_ordinals
from windrow.runners.embedded.step_transaction import Attempt
from windrow.stores.kv import KV


class Ones:
    """The steps of the messages that wait, of a job with one input."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self.engine, self.intake = engine, intake

    def settle(self) -> None:
        """Run them."""
        while self.engine.waiting and not self.engine.closed:
            self._settle_what_counts()

    def _settle_what_counts(self) -> None:
        """Until a message is found that cannot be counted: it is known from then on, and the rest has to be cut anew."""
        engine, staged = self.engine, self.engine.staged
        fed, placed, table, counts = self._of_one_schema(list(engine.waiting))
        runs = engine.logic.runs(
            staged.overlay, staged.largest_us(), staged.seen_us(), staged.watermark_us, staged.advanced_us
        )
        nows_us = [fed[i][1] for i in placed.indices]
        done = 0
        for run in (
            _first_alone(placed, nows_us) if runs is None else runs.cut(table, placed.positions, nows_us)
        ):
            upto = placed.indices[run.stop] if run.stop < len(placed.indices) else len(fed)
            rows = table.slice(run.start, len(run))
            known = {"replayed": upto - done - len(run)}
            passed = Passed(
                known if upto < len(fed) else {**counts, **known},
                reached_ordinals(run.positions),
                upto - done,
            )
            if run.uncertain:
                tried = partial(self._alone, rows, run)
            else:
                assert runs is not None  # it has cut the run
                tried = partial(self._run, runs, rows, run, _marks(staged.marks, runs))
            try:
                attempt = engine.attempt(run.nows_us[-1], tried)
            except Exception as error:
                if not is_of_data(error):
                    raise
                self._find_wrong(runs, rows, run, error, placed.indices[run.start : run.stop], done)
                engine.leave(Passed(self._counted(placed, run.start)))
                return
            engine.stage_steps(attempt, passed)
            done = upto
            if run.uncertain:
                engine.leave(Passed(self._counted(placed, run.stop) if upto < len(fed) else {}))
                return
        if done < len(fed):
            engine.leave(Passed({"replayed": len(fed) - done}, waited=len(fed) - done))

    def _of_one_schema(self, fed: list[Waiting]) -> tuple[list[Waiting], Placed, pa.Table, dict[str, int]]:
        """Return the messages before the next one that changes the stream's columns or their types: a single step would not
        know these yet. Also return their positions, their table and their counters.
        """
        input = self.intake.inputs[0]
        while True:
            placed = self.intake.place(input, [m for m, _, _ in fed], in_position_order=False)
            counts: dict[str, int] = {}
            table = self.intake.table_of(input, placed, counts)
            if len(fed) == 1 or not self.intake.teaches(input, table):
                wrong = {
                    ("", row): why for row, i in enumerate(placed.indices) if (why := fed[i][2]) is not None
                }
                return fed, placed, marked({"": table}, wrong)[""], counts
            fed = fed[: len(fed) // 2]

    def _counted(self, placed: Placed, upto: int) -> dict[str, int]:
        """Return the counters of the first of these messages, where the others come again."""
        counts: dict[str, int] = {}
        if upto == 0:
            return counts
        first = replace(placed, messages=placed.messages[:upto], positions=placed.positions[:upto])
        self.intake.table_of(self.intake.inputs[0], first, counts)
        return counts

    def _run(
        self, runs: Runs, table: pa.Table, run: Run, marks: Mapping[Partition, Mark], tried: Attempt
    ) -> None:
        """Run one ingest and one advance for many messages, and record a step for each message."""
        after_us = run.after_us[-1]
        first, following = extent(table)
        tried.ingest(lambda kv: runs.ingest_run(kv, table, run), first, following, len(table))
        tried.advance(lambda kv: self.engine.logic.advance(kv, after_us, tried.now_us), after_us)
        tried.ones(_steps(run), marks)

    def _alone(self, table: pa.Table, run: Run, tried: Attempt) -> None:
        """Run an ingest and an advance of one message; the ingest decides the watermark."""
        engine, [now_us] = self.engine, run.nows_us
        tables = {self.intake.inputs[0].name: table}
        first, following = extent(table)
        tried.ingest(lambda kv: engine.logic.ingest(kv, tables, now_us), first, following, len(table))
        watermark_us = engine.watermark(now_us, tried.marks)
        tried.advance(lambda kv: engine.logic.advance(kv, watermark_us, now_us), watermark_us)

    def _find_wrong(
        self, runs: Runs | None, rows: pa.Table, run: Run, error: Exception, indices: Sequence[int], done: int
    ) -> None:
        """Note which messages of a run cannot be counted."""
        engine = self.engine
        staged, waiting = engine.staged, engine.waiting

        def ingest(kv: KV, tables: Mapping[str, pa.Table]) -> None:
            tried = Attempt(kv, staged.marks, staged.watermark_us, run.nows_us[-1])
            if run.uncertain:
                self._alone(tables[""], run, tried)
            elif runs is not None:
                self._run(runs, tables[""], run, {}, tried)

        wrong = culprits(ingest, staged.overlay, {"": rows}, error, in_place=True)
        for (_, row), why in wrong.items():
            message, now_us, _ = waiting[indices[row] - done]
            waiting[indices[row] - done] = (message, now_us, why)


def _first_alone(placed: Placed, nows_us: Sequence[int]) -> list[Run]:
    """Make a run of the first message, where the next step of the operator is like no other: the rest is cut after it."""
    return [Run(0, placed.positions[:1], nows_us=[*nows_us[:1]], uncertain=True)] if placed.indices else []


def _marks(before: Mapping[Partition, Mark], runs: Runs) -> dict[Partition, Mark]:
    """Return the marks after a run."""
    marks = {p: Mark(max_time_us=t, seen_us=runs.seen_us.get(p)) for p, t in runs.largest_us.items()}
    return {**before, **marks}


def _steps(run: Run) -> list[Step]:
    """Return an ingest and an advance for each message."""
    steps = []
    for position, before, after, now in zip(
        run.positions, run.watermarks_us, run.after_us, run.nows_us, strict=True
    ):
        partition = (position.source, position.partition)
        steps.append(
            Step(
                kind="ingest",
                now_us=now,
                watermark_us=before,
                first_offsets={partition: position.offset},
                next_offsets={partition: position.offset + 1},
                rows=1,
            )
        )
        steps.append(Step(kind="advance", now_us=now, watermark_us=after))
    return steps
