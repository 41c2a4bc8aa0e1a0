"""What every operator gives the contract suite: definitions and messages, and what its oracle makes of the steps of a log."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from hypothesis import strategies as st

from windrow.connectors.sinks import MemorySink, PaneFiles
from windrow.core.messages import Message, Position, Token
from windrow.core.time import instant_us
from windrow.testing import ManualClock, SimulatedCrash, TestDriver, WatermarkOracle
from windrow.testing.driver import _slice
from windrow.testing.ledger import values_equal

S = 1_000_000
PUBLISHED = "published, not noted"


class Oracle(Protocol):
    """Takes the steps of a log one after the other, and says what has to be told and buried."""

    rows: list[tuple[str, Mapping[str, Any]]]
    letters: list[tuple[str, Position | None]]
    duplicates: int
    counted: list[tuple[str, int, int]]

    def ingest(
        self, messages: Sequence[tuple[Position, int | None, Mapping[str, Any]]], now_us: int
    ) -> None: ...

    def advance(self, watermark_us: int, now_us: int) -> None: ...


@dataclass(frozen=True)
class Case:
    """A definition of one input whose event times are in column `t`, the columns of its messages, and its oracle."""

    definition: Any
    schema: pa.Schema
    oracle: Callable[[], Oracle]

    def message(self, row: Mapping[str, Any], offset: int) -> Message:
        """The message of a drawn row, whose times are in half seconds."""
        time = row["t"] if row["t"] is None else row["t"] * S // 2
        return Message({**row, "t": time}, Position("s", row["v"] % 2, offset))


@dataclass(frozen=True)
class Operator:
    """What the suite asks of an operator: any case, any message for it, and a case that Spark is shown too."""

    cases: st.SearchStrategy[Case]
    rows: st.SearchStrategy[dict[str, Any]]
    one: Case
    messages: Sequence[dict[str, Any]]


class Mortal(MemorySink):
    """A sink whose process dies when it has taken what it was given, if it is told to."""

    dies = False

    def publish(self, token: Token, panes: PaneFiles) -> None:
        super().publish(token, panes)
        if self.dies:
            raise SimulatedCrash(PUBLISHED)


class Life:
    """A job, and a source that gives again what is beyond its offsets."""

    def __init__(self, case: Case, location: str) -> None:
        self.case, self.sink = case, Mortal()
        clock = ManualClock(10 * S)
        self.driver = TestDriver(case.definition, location, clock=clock, sink=self.sink, schema=case.schema)
        self.sent: list[Message] = []

    def feed(self, drawn: Sequence[Mapping[str, Any]]) -> None:
        made = [self.case.message(row, len(self.sent) + i) for i, row in enumerate(drawn)]
        self.sent += made
        self.driver.feed(made)

    def die(self, at: str | None, size: int) -> None:
        """Die, come back, and take again what was lost, `size` messages a step."""
        if at == PUBLISHED:
            self.sink.dies = True
            with suppress(SimulatedCrash):
                self.driver.next_offsets()
            self.sink.dies, at = False, None
        self.driver.crash(at)
        self.driver.restart()
        reached = self.driver.next_offsets()
        lost = [m for m in self.sent if m.position.offset >= reached.get(m.position[:2], 0)]  # type: ignore
        for i in range(0, len(lost), size):
            self.driver.feed(lost[i : i + size])

    def act(self, kind: str, value: Any) -> None:
        match kind:
            case "feed":
                self.feed(value)
            case "watermark":
                self.driver.advance_event_time(max(self.driver.op.watermark, 0) + value * S)
            case "clock":
                self.driver.advance_clock(value * S)
                self.driver.timeout()
            case "commit":
                self.driver.next_offsets()
            case _:
                self.die(*value)

    def expected(self) -> Oracle:
        """The steps of the log by the oracle; its watermarks are those of the log."""
        driver, oracle = self.driver, self.case.oracle()
        marks = WatermarkOracle(self.case.definition.watermark)
        unread = dict(sorted(driver._fed.items()))
        for step in driver.steps():
            if step.kind == "ingest":
                oracle.ingest([self._read(m) for m in _slice(unread, step)], step.now_us)
                marks.observe(oracle.counted, step.now_us)
                continue
            assert step.watermark_us is not None
            pushed = step.watermark_us in driver._pushed or step.watermark_us == 2**63 - 1
            due_us = marks.advance(step.now_us, step.watermark_us if pushed else None)
            assert due_us == step.watermark_us, f"{step}: the watermark should be {due_us}"
            oracle.advance(step.watermark_us, step.now_us)
        return oracle

    def _read(self, message: Message) -> tuple[Position, int | None, Mapping[str, Any]]:
        table = pa.Table.from_pylist([dict(message.payload)], self.case.schema)
        row = table.to_pylist()[0]
        time = None if row["t"] is None else instant_us(row["t"])
        assert message.position is not None
        return message.position, time, row

    def check(self) -> Oracle:
        """All that was told and buried, in order, is what the oracle says."""
        wanted = self.expected()
        same([(r.timing.value, r.values) for r in self.sink.panes], wanted.rows)
        letters = [(d.reason, d.position) for d in self.driver.op.dead_letters()]
        assert Counter(letters) == Counter(wanted.letters)
        assert self.driver.op.counters.get("duplicates", 0) == wanted.duplicates
        return wanted


def same(found: Sequence[tuple[str, Any]], wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise unless rows are these, in this order."""
    for (timing, row), (right, other) in zip(found, wanted, strict=False):
        assert timing == right and values_equal(dict(row), dict(other)), (
            f"{timing} {row}, not {right} {other}"
        )
    assert len(found) == len(wanted)


@contextmanager
def life(case: Case) -> Iterator[Life]:
    """A job on a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="contract-", ignore_cleanup_errors=True) as folder:
        one = Life(case, folder)
        try:
            yield one
        finally:
            one.driver.op.abandon()
