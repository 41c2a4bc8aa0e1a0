"""A windowed operator under the test's control: a clock and an event time moved by hand, crashes at named points.

    driver = TestDriver(definition)
    driver.feed([{"t": 0, "k": "a"}, {"t": 12_000_000, "k": "a"}])
    driver.advance_clock("10 seconds")
    driver.timeout()
    driver.panes()                       # since the last call
    driver.crash(at=CommitPoint.BEFORE_APPLY)
    driver.restart()
    driver.check()                       # everything so far is what the oracle says

`check` replays the job's own log of steps through the oracle and compares panes, dead letters, watermarks and
windows. It holds for any input, any batching and any crash.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.records import Commit, Step
from windrow.core.errors import CorruptState
from windrow.core.messages import DeadLetter, Message, Pane, Position, StoredMessage, WindowInfo
from windrow.core.time import START_OF_TIME_US, Duration, Instant, instant_us
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.steps.ids import BUCKETS_KEY, NO_BUCKETS
from windrow.operators.steps.progress import EMISSION, KEYS_MARK, Progress
from windrow.operators.steps.progress import KEY as PROGRESS_KEY
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock
from windrow.testing.faults import CommitPoint, SimulatedCrash, die_at
from windrow.testing.ledger import panes_equal, values_equal
from windrow.testing.oracle import AggregateOracle, WatermarkOracle

Partition = tuple[str, int]


@dataclass(frozen=True)
class Expected:
    """What the oracle makes of a job's log: all panes, all dead letters, the windows at the end, and how many duplicates."""

    panes: list[Pane]
    dead_letters: list[DeadLetter]
    windows: list[WindowInfo]
    duplicates: int


class TestDriver:
    """Drives one definition through the embedded runner, and holds it against the oracle.

    definition: an aggregate
    location: the job's directory; a temporary one by default, removed by `close`
    clock: default a `ManualClock`
    sink: takes panes, as in `open`; without one `panes()` hands them out
    schema: of the messages, as in `open`

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
        definition: AggregateDefinition,
        location: str | os.PathLike[str] | None = None,
        *,
        clock: ManualClock | None = None,
        sink: Any = None,
        schema: pa.Schema | None = None,
    ) -> None:
        self.definition = definition
        self.clock = clock or ManualClock()
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="windrow-", ignore_cleanup_errors=True)
            if location is None
            else None
        )
        self.location = os.fspath(location) if self._temporary is None and location else self._temporary_path
        self._sink, self._schema = sink, schema
        #: What was fed and not a replay, by position.
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

    def _open(self) -> Embedded:
        return Embedded(
            self.definition, self.location, clock=self.clock, sink=self._sink, schema=self._schema
        )

    # -- feeding ------------------------------------------------------------------------------------------

    def feed(self, messages: Iterable[Message | Mapping[str, Any]]) -> None:
        """One ingest of all messages, then an advance.

        messages: `wr.Message`s, or dicts for some without a position
        """
        listed = [m if isinstance(m, Message) else Message(m) for m in messages]
        self._remember(listed)
        self.op.add_messages(listed)

    def add(self, message: Message | Mapping[str, Any]) -> None:
        """`add_message`: one message, a step of its own.

        message: a `wr.Message`, or a dict for one without a position
        """
        listed = [message if isinstance(message, Message) else Message(message)]
        self._remember(listed)
        self.op.add_message(listed[0])

    def know(self, message: Message) -> None:
        """Tell what another process has fed to this job, so that `check` can replay it."""
        if message.position is None:
            raise ValueError(
                "a message that was fed elsewhere is known by its position, and this one has none"
            )
        self._fed[Position(*message.position)] = message

    def _remember(self, messages: Sequence[Message]) -> None:
        reached = dict(self._reached)
        for message in messages:
            position = message.position
            if position is None:
                position = Position("", 0, self._reached.get(("", 0), 0))
            partition = (position.source, position.partition)
            if position.offset >= reached.get(partition, 0):
                # A message that a crash lost may come again as another one; the newest counts.
                self._fed[Position(*position)] = message
                self._reached[partition] = max(position.offset + 1, self._reached.get(partition, 0))

    def advance_event_time(self, to: Instant) -> None:
        """Say that input is complete up to a moment; works for every kind of watermark.

        to: the moment
        """
        self._pushed.add(instant_us(to))
        self.op.advance_watermark(to)

    def advance_watermark(self, to_us: int) -> None:
        """`advance_event_time` in microseconds, as transcripts call it."""
        self.advance_event_time(to_us)

    def advance_clock(self, by: Duration | int) -> None:
        """Move `now` forward; no step.

        by: a duration, or microseconds
        """
        self.clock.advance(timedelta(microseconds=by) if isinstance(by, int) else by)

    def timeout(self) -> None:
        """Let time pass: what `now` and the watermark make due is told."""
        self.op.timeout()

    def drain(self) -> None:
        """Event time goes to its end: everything fires."""
        self.op.drain()

    # -- crashing -----------------------------------------------------------------------------------------

    def crash(self, at: CommitPoint | str | None = None) -> None:
        """The process dies: what was not committed is lost, and of the store what RocksDB had not flushed.

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

    def restart(self, definition: AggregateDefinition | None = None) -> None:
        """Come back; crashes first unless that has happened. Feed on from `next_offsets()`.

        definition: the same with another emission
        """
        if not self.op.engine.closed:
            self.crash()
        self.definition = definition or self.definition
        self.op = self._open()
        self._reached = dict(self.op.engine.staged.offsets)
        self._lives.append((len(self.steps()), self.definition))

    def next_offsets(self) -> dict[Partition, int]:
        """Where to go on feeding, by (source, partition); commits what is staged."""
        offsets: dict[Partition, int] = self.op.next_offsets()
        return offsets

    # -- results ------------------------------------------------------------------------------------------

    def panes(self) -> list[Pane]:
        """Panes since the last call. They are acknowledged: a crash does not bring them back."""
        panes = self.op.get_result()
        self.op.flush()
        return panes

    def dead_letters(self) -> list[DeadLetter]:
        """Dead letters since the last call."""
        letters = self.op.dead_letters()
        fresh, self._dead_seen = letters[self._dead_seen :], len(letters)
        return fresh

    def windows(self) -> list[WindowInfo]:
        return self.op.get_windows()

    def messages(self, **query: Any) -> list[StoredMessage]:
        """Stored messages; see `get_messages`."""
        return self.op.get_messages(**query)

    def commits(self) -> list[Commit]:
        """The job's commits so far."""
        self.next_offsets()
        return list(self.op.engine.job.commits())

    def steps(self) -> list[Step]:
        """The log of steps, oldest first."""
        return [step for record in self.commits() for step in record.steps]

    def committed_panes(self) -> list[Pane]:
        """The panes of all commits, published or not, as their files hold them."""
        panes: list[Pane] = []
        for record in self.commits():
            for files in self.op.engine.job.pane_files(record).values():
                for file in files:
                    panes += self.definition.values(pq.read_table(file), self.op.job)
        return panes

    # -- the oracle ---------------------------------------------------------------------------------------

    def expected(self) -> Expected:
        """The log of steps replayed through the oracle. Raises where a recorded watermark is not the oracle's."""
        oracle, marks = AggregateOracle(self._lives[0][1]), WatermarkOracle(self.definition.watermark)
        lives = list(self._lives)
        panes: list[Pane] = []
        dead: list[DeadLetter] = []
        unread = dict(sorted(self._fed.items()))
        for number, step in enumerate(self.steps()):
            while lives and lives[0][0] <= number:
                oracle.redefine(lives.pop(0)[1])
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "ingest":
                done = oracle.ingest(_slice(unread, step), step.now_us, watermark_us)
                marks.observe(oracle.counted, step.now_us)
            else:
                due_us = marks.advance(step.now_us)
                if watermark_us > due_us and (watermark_us in self._pushed or watermark_us == 2**63 - 1):
                    due_us = marks.advance(step.now_us, watermark_us)
                if due_us != watermark_us:
                    raise AssertionError(f"step {number} {step}: the watermark should be {due_us}")
                done = oracle.advance(watermark_us, step.now_us)
            panes += done.panes
            dead += done.dead_letters
        return Expected(panes, dead, oracle.windows(), oracle.duplicates)

    def check(self, panes: Sequence[Pane] | None = None) -> Expected:
        """Raise `AssertionError` unless all panes (default: of all commits), dead letters and windows are the oracle's."""
        expected = self.expected()
        _compare("pane", self.committed_panes() if panes is None else panes, expected.panes, panes_equal)
        letters = sorted(self.op.dead_letters(), key=_place), sorted(expected.dead_letters, key=_place)
        _compare("dead letter", *letters, _letters_equal)
        _compare("window", self.windows(), expected.windows, _infos_equal)
        counted = self.op.counters.get("duplicates", 0)
        if counted != expected.duplicates:
            raise AssertionError(f"{counted} duplicates were counted instead of {expected.duplicates}")
        return expected

    def assert_state_zero(self) -> None:
        """Raise unless nothing is left of any window: no metadata, no message, nothing that waits.

        What stays is the record of progress, schemas, and for tuple windows the number of messages of each key.
        """
        self.next_offsets()
        kv, operator = self.op.engine.shard.kv, self.op.engine.logic
        left: list[tuple[str, bytes]] = []
        for cf in operator.cfs():
            for key, value in kv.scan(cf):
                kept = cf == operator.aux_cf and (
                    key in (PROGRESS_KEY, EMISSION, KEYS_MARK) or key[:1] in b"\0hs"
                )
                kept = kept or (cf == operator.aux_cf and key == BUCKETS_KEY and value == NO_BUCKETS)
                counter = self.definition.tuple_window and cf == operator.aux_cf and key[:1] == b"c"
                if not kept and not counter:
                    left.append((cf, key))
        if left:
            raise AssertionError(f"{len(left)} keys are left, among them {left[:5]}")
        progress = Progress.load(kv, operator.aux_cf)
        if progress.dirty:
            raise AssertionError(f"windows are left that wait for a period: {sorted(progress.dirty)[:5]}")

    # -- life ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the operator, and remove the directory if it was a temporary one."""
        try:
            self.op.close()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def __enter__(self) -> TestDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self.op.abandon()
        if self._temporary is not None:
            self._temporary.cleanup()


def _slice(unread: dict[Position, Message], step: Step) -> list[Message]:
    """The messages that an ingest took, which are not taken again."""
    taken = []
    for position, message in list(unread.items()):
        partition = (position.source, position.partition)
        if partition not in step.first_offsets:
            continue
        if step.first_offsets[partition] <= position.offset < step.next_offsets[partition]:
            taken.append(Message(message.payload, position))
            del unread[position]
    if len(taken) != step.rows:
        raise CorruptState(f"{step} took {step.rows} rows, {len(taken)} such were fed")
    return taken


def _compare(what: str, found: Sequence[Any], wanted: Sequence[Any], equal: Any) -> None:
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if not equal(a, b):
            raise AssertionError(f"{what} {number} is\n  {a!r}\ninstead of\n  {b!r}")
    if len(found) > len(wanted):
        raise AssertionError(
            f"{len(found) - len(wanted)} unexpected {what}s, the first\n  {found[len(wanted)]!r}"
        )
    if len(found) < len(wanted):
        raise AssertionError(
            f"{len(wanted) - len(found)} missing {what}s, the first\n  {wanted[len(found)]!r}"
        )


def _place(letter: DeadLetter) -> tuple[Any, ...]:
    return (letter.position is None, letter.position or (), letter.reason)


def _letters_equal(a: DeadLetter, b: DeadLetter) -> bool:
    """Reason and place; the words are free. The oracle knows no event time for what is malformed."""
    return (a.reason, a.position) == (b.reason, b.position) and (
        b.event_time_us is None or a.event_time_us == b.event_time_us
    )


def _infos_equal(a: WindowInfo, b: WindowInfo) -> bool:
    return (
        (a.window, a.messages, a.first, a.last, a.panes) == (b.window, b.messages, b.first, b.last, b.panes)
        and values_equal(a.key, b.key)
        and values_equal(a.values, b.values)
    )
