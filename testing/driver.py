"""Test driver of an operator or a graph: it controls the clock and event time, and crashes the job at named points.

    driver = TestDriver(definition)
    driver.feed([{"t": 0, "k": "a"}, {"t": 12_000_000, "k": "a"}])
    driver.feed({"orders": [{"t": 0, "id": 1}], "shipments": [{"t": 5_000_000, "id": 1}]})    # of several inputs
    driver.advance_clock("10 seconds")
    driver.timeout()
    driver.panes()                       # since the last call
    driver.crash(at=CommitPoint.BEFORE_APPLY)
    driver.restart()
    driver.check()                       # everything so far is what the oracle says

`check` replays the job's own log of steps through the definition's oracle and compares emitted rows, dead letters,
watermarks and kept messages. It holds for any input, any batching and any crash.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeAlias

import pyarrow as pa

from windrow.checkpoint.records import Commit, Step
from windrow.connectors.manifests import read_file
from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, Position, StoredMessage, WindowInfo
from windrow.core.time import Duration, Instant, instant_us
from windrow.operators.operator import Definition
from windrow.operators.steps.progress import Progress
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock
from windrow.testing.faults import CommitPoint, SimulatedCrash, die_at
from windrow.testing.ledger import same_output
from windrow.testing.verification import Expected, as_given, check_kept, check_letters, compare, expect

#: Details of dead letters whose values do not fit their columns.
_OF_TYPE = re.compile(r"column '|wr\..*: (the )?column of type")

MessageLike: TypeAlias = Message | Mapping[str, Any]
#: Messages of one input, or of several by their names.
Fed: TypeAlias = Iterable[MessageLike] | Mapping[str, Iterable[MessageLike]]


class TestDriver:
    """A test driver: it runs one definition through the embedded runner, and compares it with the oracle.

    definition: an operator, or a chain of them
    location: the job's directory; a temporary one by default, removed by `close`
    clock: default a `ManualClock`, which begins in 2100: dates of today are not ahead of it, and no message moves it
    sink: receives panes or rows, as in `open`; without one `panes()` returns them
    schema: of the messages, as in `open`
    store: as in `open`

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("10 seconds"), retention="1 minute", agg={"n": wr.count()})
    >>> with TestDriver(counts) as driver:
    ...     driver.feed([{"t": 0}, {"t": 12_000_000}])
    ...     driver.crash(at="before apply")
    ...     driver.restart()
    ...     driver.check().panes[0]["n"]
    1
    """

    __test__ = False  # not a test, whatever pytest makes of its name

    def __init__(
        self,
        definition: Definition,
        location: str | os.PathLike[str] | None = None,
        *,
        clock: ManualClock | None = None,
        sink: Any = None,
        schema: pa.Schema | Mapping[str, pa.Schema] | None = None,
        store: str = "rocksdb",
    ) -> None:
        self.definition = definition
        self.clock = clock or ManualClock()
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="windrow-", ignore_cleanup_errors=True)
            if location is None
            else None
        )
        self.location = os.fspath(location) if self._temporary is None and location else self._temporary_path
        self._sink, self._schema, self._store = sink, schema, store
        #: Messages that were fed and are no replays, by position in the log.
        self._fed: dict[Position, Message] = {}
        self._pushed: set[int] = set()
        self._dead_seen = 0
        self.op = self._open()
        self._reached = dict(self.op.engine.staged.offsets)
        #: The number of steps at each restart, and the definition from there on.
        self._lives = [(0, definition)]

    @property
    def _temporary_path(self) -> str:
        assert self._temporary is not None
        return self._temporary.name

    def _open(self, **options: Any) -> Embedded:
        return Embedded(
            self.definition,
            self.location,
            clock=self.clock,
            sink=self._sink,
            schema=self._schema,
            store=self._store,
            **options,
        )

    # -- feeding ----------------------------------------------------------------------------------------------------

    def feed(self, messages: Fed, input: str | None = None) -> None:
        """Run one ingest of all messages, then an advance.

        messages: `wr.Message`s, or dicts for some without a position; {input: messages} where there are several inputs
        input: the input of the messages, where there are several
        """
        by_input = messages if isinstance(messages, Mapping) else {self._input(input).name: messages}
        made = {name: [_message(one) for one in rows] for name, rows in by_input.items()}
        for name, rows in made.items():
            self._remember(name, rows)
        if self.definition.by_input:
            self.op.add_messages(made)
        else:
            [listed] = made.values()
            self.op.add_messages(listed)

    def add(self, message: MessageLike, input: str | None = None) -> None:
        """Call `add_message`: one message, a step of its own.

        message: a `wr.Message`, or a dict for one without a position
        input: the input of the message, where there are several
        """
        one = _message(message)
        self._remember(self._input(input).name, [one])
        self.op.add_message(one, input)

    def know(self, message: Message, input: str | None = None) -> None:
        """Record a message that another process has fed to this job, so that `check` can replay it."""
        if message.position is None:
            raise ValueError(
                "a message that was fed elsewhere is known by its position, and this one has none"
            )
        self._fed[self._place(self._input(input), message.position)] = message

    def _input(self, name: str | None) -> Input:
        return self.op._intake.input(name)

    def _place(self, input: Input, position: Position) -> Position:
        """Return a message's position in the log: its source begins with the name of the input, where messages name theirs."""
        placed = Position(*position)
        return placed._replace(source=input.source_prefix + placed.source)

    def _remember(self, name: str, messages: Sequence[Message]) -> None:
        input, reached = self._input(name), dict(self._reached)
        unnamed = (input.source_prefix, 0)
        for message in messages:
            if message.position is None:
                position = Position(*unnamed, self._reached.get(unnamed, 0))
            else:
                position = self._place(input, message.position)
            partition = (position.source, position.partition)
            if position.offset >= reached.get(partition, 0):
                # A message that a crash lost may come again as another one; the newest counts.
                self._fed[position] = message
                self._reached[partition] = max(position.offset + 1, self._reached.get(partition, 0))

    def advance_event_time(self, to: Instant, input: str | None = None) -> None:
        """Declare input complete up to a moment; works for every kind of watermark.

        to: the moment
        input: of this input alone, whose watermark is `wr.explicit()`
        """
        self._pushed.add(instant_us(to))
        self.op.advance_watermark(to, input)

    def advance_watermark(self, to_us: int, input: str | None = None) -> None:
        """Call `advance_event_time` with microseconds, as transcripts do."""
        self.advance_event_time(to_us, input)

    def advance_clock(self, by: Duration | int) -> None:
        """Move `now` forward; no step.

        by: a duration, or microseconds
        """
        self.clock.advance(timedelta(microseconds=by) if isinstance(by, int) else by)

    def timeout(self) -> None:
        """Let time pass: rows that `now` and the watermark make due are emitted."""
        self.op.timeout()

    def drain(self) -> None:
        """Advance event time to its end: every window fires."""
        self.op.drain()

    # -- crashing ---------------------------------------------------------------------------------------------------

    def crash(self, at: CommitPoint | str | None = None) -> None:
        """Kill the process: uncommitted steps are lost, and the part of the store that RocksDB had not flushed.

        at: a `CommitPoint`, to die in the middle of committing what is staged
        """
        if at is not None:
            try:
                with die_at(self.op, CommitPoint(at)):
                    self.op.next_offsets()  # which commits what is staged
            except SimulatedCrash:
                pass
        store = self.op.engine.shard.kv.path
        left = store + ".left"
        if os.path.isdir(store):
            shutil.copytree(store, left)
        self.op.abandon()
        if os.path.isdir(left):
            shutil.rmtree(store)
            os.rename(left, store)

    def restart(self, definition: Definition | None = None) -> None:
        """Come back; crashes first unless that has happened. Feed on from `next_offsets()`.

        definition: the same with another emission
        """
        if not self.op.engine.closed:
            self.crash()
        self.definition = definition or self.definition
        self._come_back(self._open())

    def lose_messages(self) -> None:
        """Lose the machine with every kept message; they come back from the source, which is all that was fed.

        Only an operator whose messages can come back does: `open(replay=)`.
        """
        if not self.op.engine.closed:
            self.crash()
        for folder in ("local", "snapshots", "segments"):
            shutil.rmtree(os.path.join(self.location, folder), ignore_errors=True)
        self._come_back(self._open(replay=self._read_again))

    def _read_again(self, asked: Any) -> Any:
        """Return everything, in no particular order."""
        inputs = self.definition.inputs
        fed = {
            input.name: [
                Message(m.payload, as_given(self.definition, position))
                for position, m in sorted(self._fed.items(), reverse=True)
                if position.source.startswith(input.source_prefix)
            ]
            for input in inputs
        }
        return fed if self.definition.by_input else fed[inputs[0].name]

    def _come_back(self, op: Embedded) -> None:
        self.op = op
        self._reached = dict(self.op.engine.staged.offsets)
        self._lives.append((len(self.steps()), op.definition))

    def next_offsets(self) -> Any:
        """Return the next offsets to feed, by (source, partition), or that by input; commits what is staged."""
        return self.op.next_offsets()

    # -- results ----------------------------------------------------------------------------------------------------

    def panes(self) -> list[Any]:
        """Panes, or rows, since the last call. They are acknowledged: a crash does not bring them back."""
        panes = list(self.op.get_result())
        self.op.flush()
        return panes

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters since the last call."""
        letters = self.op.dead_letters()
        fresh, self._dead_seen = letters[self._dead_seen :], len(letters)
        return fresh

    def windows(self, **query: Any) -> list[WindowInfo]:
        """Return the windows that are kept.

        query: as for `get_windows`
        """
        return list(self.op.get_windows(**query))

    def messages(self, input: str | None = None, **query: Any) -> list[StoredMessage]:
        """Stored messages; see `get_messages`."""
        return self.op.get_messages(input=input, **query)

    def commits(self) -> list[Commit]:
        """Return the job's commits so far."""
        self.next_offsets()
        return list(self.op.engine.job.commits())

    def steps(self) -> list[Step]:
        """Return the log of steps, oldest first."""
        return [step for record in self.commits() for step in record.steps]

    def committed_panes(self, operator: str | None = None) -> list[Any]:
        """Return the panes, or rows, of all commits, published or not, as their files hold them.

        operator: of a chain, which; default: the last
        """
        [part] = [p for p in self.definition.parts if p.name == (operator or self.definition.name)]
        panes: list[Any] = []
        for record in self.commits():
            for file in self.op.engine.job.pane_files(record).get(part.name, ()):
                panes += part.values(read_file(file), self.op.job)
        return panes

    # -- the oracle -------------------------------------------------------------------------------------------------

    def expected(self) -> Expected:
        """Play the log of steps through the oracle. Raises where a recorded watermark is not the oracle's.

        The oracle knows no types of columns: a message whose value does not fit its column has no event time for it.
        """
        fed = dict(self._fed)
        for letter in self.op.dead_letters() if len(self.definition.parts) == 1 else ():
            if letter.position is not None and _OF_TYPE.match(letter.detail):
                input = self._input(letter.input)
                place = self._place(input, letter.position)
                if place in fed:
                    fed[place] = Message({**fed[place].payload, input.event_time: None}, fed[place].position)
        return expect(self._lives, self.steps(), fed, self._pushed, self._schema)

    def check(self, panes: Sequence[Any] | None = None, *, dead_letters: bool = False) -> Expected:
        """Raise `AssertionError` unless all panes or rows (default: of all commits), dead letters, and kept messages are the
        oracle's, and the test knows of each dead letter.

        dead_letters: True where there may be some that `dead_letters()` has not returned
        """
        expected = self.expected()
        letters = self.op.dead_letters()
        compare("pane", self.committed_panes() if panes is None else panes, expected.panes, same_output)
        for name in self._inner_outputs():
            compare(f"row of {name!r}", self.committed_panes(name), expected.emitted[name], same_output)
        check_letters(self.definition, letters, expected.dead_letters)
        check_kept(self.definition, self.op, expected.oracle)
        counted = self.op.counters.get("duplicates", 0)
        if counted != expected.duplicates:
            raise AssertionError(f"{counted} duplicates were counted instead of {expected.duplicates}")
        if not dead_letters and len(letters) > self._dead_seen:
            unseen = letters[self._dead_seen :]
            reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(x.reason for x in unseen).items())
            raise AssertionError(
                f"messages could not be counted ({reasons}), the first\n  {unseen[0]!r}\nLook at them with dead_letters(), "
                "or allow them: check(dead_letters=True)"
            )
        return expected

    def _inner_outputs(self) -> Iterator[str]:
        """Yield the operators inside a graph whose rows have a sink."""
        for part in self.definition.parts[:-1]:
            if isinstance(self._sink, Mapping) and part.name in self._sink:
                yield part.name

    def assert_state_zero(self) -> None:
        """Raise unless no state of any window or message is left, and nothing is pending.

        The record of progress, schemas, and for tuple windows the number of messages of each key stay.
        """
        self.next_offsets()
        kv = self.op.engine.shard.kv
        for part in self.definition.parts:
            logic = self.op.engine.logic.part(part.name)
            left = [
                (cf, key)
                for cf in logic.cfs()
                for key, value in kv.scan(cf)
                if not (cf.endswith(".aux") and logic.stays(key, value))
            ]
            if left:
                raise AssertionError(f"{len(left)} keys are left, among them {left[:5]}")
            progress = Progress.load(kv, logic.aux_cf)
            if progress.dirty:
                raise AssertionError(f"windows are left that wait for a period: {sorted(progress.dirty)[:5]}")

    # -- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the operator, and remove the directory if it was a temporary one."""
        try:
            self.op.close()
        finally:
            self._clean()

    def abandon(self) -> None:
        """Release the operator as it is: staged steps are lost."""
        self.op.abandon()
        self._clean()

    def _clean(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _message(message: MessageLike) -> Message:
    return message if isinstance(message, Message) else Message(message)
