"""A seed of interruptions: its story, played in a folder of its own."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from random import Random
from typing import Any
from unittest.mock import patch

from windrow import operators
from windrow.checkpoint import job as jobs
from windrow.checkpoint.records import Commit, Step
from windrow.connectors.pane_files import DEAD_LETTERS
from windrow.core.messages import DeadLetter, Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import to_letters
from windrow.runners.embedded import engine
from windrow.testing.expected_output import Broken, ExpectedOutput, Judge, Letter, difference, letters_differ
from windrow.testing.generated_jobs import one_definition
from windrow.testing.interruptions.reader import Reader
from windrow.testing.scenario import ONLY, Played, feed_of, scenario_of
from windrow.testing.seeds import Report, Summary, check, quiet, shrunk
from windrow.testing.verification import check_kept

# -- checks at the end of a run: no message, pane or dead letter is lost, doubled or wrong ----------------------------


class Checks:
    """A reader's job against the oracles, by the steps of its log."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.definition = reader, reader.definition
        schemas = reader.feed.schemas if reader.declares else None
        self.judge = Judge([self.definition], schemas)
        self._left = {
            message.position: (name, message)
            for (name, _), message in sorted(self._fed(), key=lambda one: one[1].position or ())
            if message.position is not None
        }
        self.emitted = {number: self._commit(commit) for number, commit in sorted(reader.commits.items())}

    def _fed(self) -> Iterator[tuple[tuple[str, int], Message]]:
        """Yield all messages at their positions in the job's log."""
        feed = self.reader.feed
        for source, messages in self.reader.topics.items():
            for message in messages:
                assert message.position is not None
                position = message.position._replace(source=feed.source(source[0]))
                yield source, Message(self._read(source[0], message), position)

    def _read(self, name: str, message: Message) -> dict[str, Any]:
        """Return a message as the oracle takes it: the oracle knows no types, so a wrong value makes its time invalid."""
        payload = dict(message.payload)
        for wrong in self.reader.feed.wrong:
            if _says(message.payload, wrong):
                payload |= dict.fromkeys(wrong, "")  # text that conditions can evaluate
                payload[self.reader.feed.inputs[name].event_time] = None
        return payload

    def _commit(self, commit: Commit) -> ExpectedOutput:
        """Return the expected output of a commit."""
        emitted, name = ExpectedOutput(), self.definition.name
        pushed = {*self.reader.pushed, END_OF_TIME_US}
        for step in commit.steps:
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "advance":
                emitted.join(self.judge.advance({name: watermark_us}, step.now_us, pushed))
            else:
                emitted.join(self.judge.ingest(self._slice(step), {name: watermark_us}, step.now_us))
        return emitted

    def _slice(self, step: Step) -> list[tuple[str, Message]]:
        """Return the messages that an ingest took, which are not taken again."""
        taken = [
            position
            for position in self._left
            if step.first_offsets.get(position[:2], position.offset + 1) <= position.offset
            and position.offset < step.next_offsets[position[:2]]
        ]
        if len(taken) != step.rows:
            raise Broken(f"{step} took {step.rows} messages, {len(taken)} such had not been taken yet")
        return [self._left.pop(position) for position in taken]

    # -- checks -----------------------------------------------------------------------------------------------------

    def all(self) -> None:
        reader = self.reader
        if sorted(reader.commits) != list(range(1, len(reader.commits) + 1)):
            raise Broken(f"commits {sorted(reader.commits)} were seen")
        if self._left:
            raise Broken(f"{len(self._left)} messages were not taken, among them {next(iter(self._left))}")
        for name, part in self._emitting():
            self._rows(name, part)
        self._dead_letters()
        with reader.definition.open(reader.location, clock=reader.clock) as op:  # type: ignore[attr-defined]
            counted = op.counters.get("duplicates", 0)
            if counted != self.judge.duplicates:
                raise Broken(f"{counted} duplicates are counted, the oracle has {self.judge.duplicates}")
            kept = [self._letter(letter) for letter in op.dead_letters()]
        how = letters_differ(kept, self._due_letters())
        if how is not None:
            raise Broken(f"of the dead letters that are kept: {how}")

    def _emitting(self) -> Iterator[tuple[str, Definition]]:
        """Yield the operators whose output is known: without sinks, the last."""
        for part in self.definition.parts:
            if self.reader.with_sink or part.name == self.definition.name:
                yield part.name, part

    def _rows(self, name: str, part: Definition) -> None:
        for commit in sorted({*self.emitted, *self._commits_of(name)}):
            found = self._found(name, part, commit)
            wanted = self.emitted[commit].rows.get(name, []) if commit in self.emitted else []
            how = difference(found, wanted)
            if how is not None:
                raise Broken(f"{name!r}, commit {commit}: {how}")
            self.reader.counts["rows"] += len(found)

    def _commits_of(self, name: str) -> list[int]:
        if self.reader.with_sink:
            return [commit for of, commit in self.reader.outlet.tables if of == name]
        return list(self.reader.received)

    def _found(self, name: str, part: Definition, commit: int) -> list[Any]:
        """Return the output of a commit."""
        if not self.reader.with_sink:
            return self.reader.received.get(commit, [])
        table = self.reader.outlet.tables.get((name, commit))
        return [] if table is None else list(part.values(table, ""))

    def _dead_letters(self) -> None:
        """Check that the dead-letter sink has the dead letters of every commit."""
        due = self._due_letters()
        self.reader.counts["dead letters"] += len(due)
        if not self.reader.with_sink:
            return
        tables = self.reader.dead_letters.tables.items()
        received = [to_letters(table, commit) for (name, commit), table in tables if name == DEAD_LETTERS]
        how = letters_differ([self._letter(one) for letters in received for one in letters], due)
        if how is not None:
            raise Broken(f"of the dead letters that the sink has: {how}")

    def _due_letters(self) -> list[Letter]:
        return [self._placed(letter) for emitted in self.emitted.values() for letter in emitted.dead_letters]

    def _letter(self, letter: DeadLetter) -> Letter:
        position, name = letter.position, letter.input or ONLY
        if position is not None and name in self.reader.feed.inputs:
            position = position._replace(source=self.reader.feed.source(name))
        return self._placed((letter.reason, position))

    def _placed(self, letter: Letter) -> Letter:
        """Return a dead letter with its position, if that is one of the input."""
        reason, position = letter
        known = position is not None and position.source in map(
            self.reader.feed.source, self.reader.feed.inputs
        )
        return reason, Position(*position) if known and position is not None else None

    def kept(self) -> None:
        """Check that the open operator returns the windows and messages that the oracle keeps."""
        check_kept(self.definition, self.reader.op, self.judge.oracle(self.definition.name))


def _says(payload: Mapping[str, Any], wrong: Mapping[str, Any]) -> bool:
    """True if a message was made wrong in this way. NaN is the same NaN there."""
    return all(
        name in payload and (payload[name] is value or payload[name] == value)
        for name, value in wrong.items()
    )


# -- runner -----------------------------------------------------------------------------------------------------------

#: Modules that Arrow loads on first use.
LATE = ("pyarrow.acero", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")


def play(seed: int, *, job: Played = one_definition, faults: Collection[int] | None = None) -> Report:
    """Play a seed, with those of its hits alone (default: all)."""
    _load_everything()
    feed = feed_of(job, Random(f"job of {seed}"))
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None, ignore_cleanup_errors=True
        ) as folder,
        patch.object(engine, "SNAPSHOT_EVERY", 4),
        patch.object(engine, "TIDY_SHARE", 0.0),  # a seed runs alike on every machine
        patch.object(jobs, "KEEP_COMMITS", 6),
        quiet(),
        warnings.catch_warnings(),
    ):
        # An interrupt right after a file is opened leaves it to the garbage collector, which warns.
        warnings.simplefilter("ignore", ResourceWarning)
        reader = Reader(seed, folder, feed, faults)
        failure: BaseException | None = None
        try:
            reader.disturbed()
            reader.come_to_rest()
            Checks(reader).kept()
            reader.end()
            Checks(reader).all()
        except Exception as error:
            failure = error
        finally:
            reader.let_go()
            gc.collect()
        return Report(seed, tuple(reader.faults), reader.story, reader.counts, failure)


@cache
def _load_everything() -> None:
    """Load all parts of operators, which are otherwise loaded on use: those lines are no lines of a step, and would differ in
    another process that plays the seed.
    """
    for name in LATE:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
        importlib.import_module(module.name)


def shrink(seed: int, *, job: Played = one_definition) -> Report:
    """Return a failing seed with as few of its hits as it takes to fail."""
    again = partial(play, job=job)
    return shrunk(again, again(seed))


def interrupt(
    operators: Any,
    messages: Any = None,
    *,
    seeds: int = 100,
    first: int = 0,
    processes: int = 1,
) -> Summary:
    """Feed a job of yours in this process, and let any of its calls raise Ctrl-C, a lack of memory or an error of the disk.

    operators: a definition, a `wr.chain`, or a `Scenario`; or a function of a `random.Random` that gives one
    messages: as for `simulate`
    seeds, first: how many, from which on
    processes: in so many processes; what is played has to be picklable

    After a hit the reader calls again, reads on from `next_offsets()`, or closes and opens again; sinks refuse, and messages
    that are kept are lost and read again. In the end the output is compared with the oracle. Raises `SeedFailed` with the
    fewest hits that show the error. The same seeds run alike on every machine.

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> summary = interrupt(counts, [{"t": f"2013-07-01 05:{minute}Z"} for minute in range(10, 50)], seeds=3)
    >>> summary.failed
    0
    """
    each = partial(play, job=scenario_of(operators, messages))
    return check(each, range(first, first + seeds), processes, "interrupt(..., first={seed}, seeds=1)")
