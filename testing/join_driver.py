"""A join under the test's control, as `TestDriver` has an aggregate.

driver = JoinDriver(definition)
driver.feed({"orders": [{"t": 0, "id": 1}], "shipments": [{"t": 5_000_000, "id": 1}]})
driver.feed([{"t": 7_000_000, "id": 2}], "orders")
driver.crash(at=CommitPoint.BEFORE_APPLY)
driver.restart()
driver.check()                       # everything so far is what the oracle says
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq

from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, JoinedRow, Message, Position, StoredMessage
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.steps.progress import KEY as PROGRESS_KEY
from windrow.operators.steps.told import to_rows
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock
from windrow.testing.driver import TestDriver, _compare, _slice
from windrow.testing.ledger import values_equal
from windrow.testing.oracle_join import JoinOracle
from windrow.testing.plain_watermark import JoinWatermarkOracle

Messages = Iterable[Message | Mapping[str, Any]]


@dataclass(frozen=True)
class ExpectedJoin:
    """What the oracle makes of a job's log: all rows, all dead letters, and the messages of each input that are kept."""

    rows: list[JoinedRow]
    dead_letters: list[DeadLetter]
    messages: dict[str, list[Message]]


class JoinDriver(TestDriver):
    """Drives one join through the embedded runner, as `TestDriver` an aggregate; messages name their input.

    definition: a join
    location, clock, sink: as for `TestDriver`
    """

    definition: JoinDefinition  # type: ignore[assignment]
    op: Embedded

    def __init__(
        self,
        definition: JoinDefinition,
        location: str | os.PathLike[str] | None = None,
        *,
        clock: ManualClock | None = None,
        sink: Any = None,
    ) -> None:
        super().__init__(definition, location, clock=clock, sink=sink)  # type: ignore[arg-type]

    def _open(self) -> Embedded:
        return Embedded(self.definition, self.location, clock=self.clock, sink=self._sink)

    # -- feeding ------------------------------------------------------------------------------------------

    def feed(self, messages: Messages | Mapping[str, Messages], input: str | None = None) -> None:
        """One ingest of messages of one input, or of {input: messages}, then an advance."""
        given = messages if isinstance(messages, Mapping) else {self.op._intake.input(input).name: messages}
        made = {
            name: [m if isinstance(m, Message) else Message(m) for m in some] for name, some in given.items()
        }
        for name, some in made.items():
            self._remember(self._placed(name, some))
        self.op.add_messages(made)

    def add(self, message: Message | Mapping[str, Any], input: str | None = None) -> None:
        """`add_message`: a step of its own."""
        self.feed([message], input)

    def know(self, message: Message, input: str | None = None) -> None:
        """Tell what another process has fed to this job, so that `check` can replay it."""
        one = self.op._intake.input(input)
        super().know(message if message.position is None else self._placed(one.name, [message])[0])

    def _placed(self, name: str, messages: Iterable[Message]) -> list[Message]:
        """The messages at the positions under which the job files them."""
        prefix = self.op._intake.input(name).source_prefix
        number, placed = self._reached.get((prefix, 0), 0), []
        for message in messages:
            if message.position is None:
                position, number = Position(prefix, 0, number), number + 1
            else:
                given = Position(*message.position)
                position = given._replace(source=prefix + given.source)
            placed.append(Message(message.payload, position))
        return placed

    # -- results ------------------------------------------------------------------------------------------

    def rows(self) -> list[JoinedRow]:
        """Rows since the last call. They are acknowledged: a crash does not bring them back."""
        rows = self.op.get_result()
        self.op.flush()
        return rows

    def messages(self, input: str | None = None, **query: Any) -> list[StoredMessage]:
        """Kept messages of an input; see `get_messages`."""
        return self.op.get_messages(input=input, **query)

    def committed_rows(self) -> list[JoinedRow]:
        """The rows of all commits, published or not, as their files hold them."""
        rows: list[JoinedRow] = []
        for record in self.commits():
            for files in self.op.engine.job.pane_files(record).values():
                for file in files:
                    rows += to_rows(pq.read_table(file), self.op.job)
        return rows

    # -- the oracle ---------------------------------------------------------------------------------------

    def expected(self) -> ExpectedJoin:  # type: ignore[override]
        """The log of steps replayed through the oracle. Raises where a recorded watermark is not the oracle's."""
        oracle, marks = JoinOracle(self.definition), JoinWatermarkOracle(self.definition)
        rows: list[JoinedRow] = []
        dead: list[DeadLetter] = []
        unread = dict(sorted(self._fed.items()))
        for number, step in enumerate(self.steps()):
            watermark_us = START_OF_TIME_US if step.watermark_us is None else step.watermark_us
            if step.kind == "ingest":
                taken: dict[str, list[Message]] = {}
                for message in _slice(unread, step):
                    assert message.position is not None
                    taken.setdefault(message.position.source.partition(":")[0], []).append(message)
                done = oracle.ingest(taken, step.now_us, watermark_us)
                marks.observe(oracle.counted, step.now_us)
            else:
                due_us = marks.advance(step.now_us)
                if watermark_us > due_us and (watermark_us in self._pushed or watermark_us == END_OF_TIME_US):
                    due_us = marks.advance(step.now_us, watermark_us)
                if due_us != watermark_us:
                    raise AssertionError(f"step {number} {step}: the watermark should be {due_us}")
                done = oracle.advance(watermark_us, step.now_us)
            rows += done.rows
            dead += done.dead
        return ExpectedJoin(rows, dead, {i.name: oracle.messages(i.name) for i in self.definition.inputs})

    def check(self, rows: Sequence[JoinedRow] | None = None) -> ExpectedJoin:  # type: ignore[override]
        """Raise `AssertionError` unless all rows (default: of all commits), dead letters and kept messages are the oracle's."""
        expected = self.expected()
        _compare("row", self.committed_rows() if rows is None else rows, expected.rows, rows_equal)
        buried = [_letter(letter) for letter in expected.dead_letters]
        told = [(d.input, d.position, d.reason) for d in self.op.dead_letters()]
        _compare("dead letter", sorted(told), sorted(buried), lambda a, b: a == b)
        # What newer rows displaced from a window of rows is gone, which the oracle keeps.
        for one in () if self.definition.by_rows else self.definition.inputs:
            kept = sorted(m.position for m in self.messages(one.name))
            wanted = sorted(_given(one, m.position) for m in expected.messages[one.name])
            _compare(f"message of {one.name!r}", kept, wanted, lambda a, b: a == b)
        return expected

    def assert_state_zero(self) -> None:
        """Raise unless nothing is left of any message: what stays is the record of progress, and schemas."""
        self.next_offsets()
        left = [
            (cf, key)
            for cf in self.op.engine.logic.cfs()
            for key, _ in self.op.engine.shard.kv.scan(cf)
            if cf != self.op.engine.logic.aux_cf or (key != PROGRESS_KEY and key[:1] not in b"\0hlns")
        ]
        if left:
            raise AssertionError(f"{len(left)} keys are left, among them {left[:5]}")


def rows_equal(a: JoinedRow, b: JoinedRow) -> bool:
    """Same timing and values. Rows of one commit share their columns, so a column that one does not have is null."""
    return a.timing == b.timing and values_equal(_values(a), _values(b))


def _values(row: JoinedRow) -> dict[str, Any]:
    return {
        name: instant_us(value) if isinstance(value, datetime) else value
        for name, value in sorted(row.values.items())
        if value is not None
    }


def _given(one: Input, position: Position | None) -> Position:
    """The position as it was fed."""
    assert position is not None
    return position._replace(source=position.source.removeprefix(one.source_prefix))


def _letter(letter: DeadLetter) -> tuple[str, Position, str]:
    assert letter.position is not None
    name, _, source = letter.position.source.partition(":")
    return name, letter.position._replace(source=source), letter.reason
