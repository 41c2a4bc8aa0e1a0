"""Checks at the end of a run: no message, pane or dead letter is lost, doubled or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windrow.checkpoint.records import Commit, Step
from windrow.connectors.pane_files import DEAD_LETTERS
from windrow.core.messages import DeadLetter, Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import to_letters
from windrow.testing.expected_output import Broken, ExpectedOutput, Judge, Letter, difference, letters_differ
from windrow.testing.interruptions.reader import Reader
from windrow.testing.scenario import ONLY
from windrow.testing.verification import check_kept


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
        how = letters_differ([self._letter(one) for some in received for one in some], due)
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
