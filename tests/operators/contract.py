"""Interface of every operator to the contract suite: any definition, any messages for it, and the life of its job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from windrow.connectors.pane_files import PaneFiles
from windrow.connectors.sinks import MemorySink
from windrow.core.messages import Message, Position, Token
from windrow.core.time import END_OF_TIME_US
from windrow.testing import ManualClock, SimulatedCrash, TestDriver
from windrow.testing.ledger import all_panes_equal
from windrow.testing.verification import Expected

S = 1_000_000
PUBLISHED = "published, not noted"


def policies(column: str, *, counting: bool = True) -> st.SearchStrategy[Any]:
    """Policy of an input for `deliver=`, mostly none. column: of numbers; counting: some may be skipped for others."""
    allowed = [wr.deliver.within("4 seconds"), wr.deliver.within("0 seconds").guarantee(wr.col(column) == 1)]
    if counting:
        allowed += [
            wr.deliver.latest(),
            wr.deliver.newest(2, per="input", record="dead_letters"),
            wr.deliver.newest(1).guarantee(wr.lit(6) / wr.col(column) > 2),
            wr.deliver.throttle("3 seconds"),
        ]
    return st.sampled_from([*[None] * 12, *allowed])


class Drawn(NamedTuple):
    """A message before it is sent. input: None where there is but one, without a name."""

    payload: Mapping[str, Any]
    input: str | None = None
    partition: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A definition, any message for it, and what a job of it is like.

    schema: of the messages, as in `open`; unit_us: how long a moment of its event times is; start_us: where its clock begins,
    and its event times are; raises: its condition may, on pairs of messages
    """

    definition: Any
    messages: st.SearchStrategy[Drawn] = field(repr=False)
    schema: Any = None
    unit_us: int = S
    start_us: int = 10 * S
    raises: bool = False

    @property
    def keeps_messages(self) -> bool:
        """True if messages that are lost come back from their source: what ids made of them, or on which of them a condition
        raised, only running all steps says."""
        again = self.definition.logic().refiling()
        return again is not None and (again.every_step or (self.definition.ids is None and not self.raises))

    @property
    def forgets(self) -> bool:
        """True if nothing is left when event time is over."""
        return all(part.retention.time_us is not None for part in self.definition.parts)


@dataclass(frozen=True)
class Operator:
    """Subject of the suite: any case, and a definition with messages that readers and Spark are shown too.

    schema: of these messages, by input where they name it
    """

    cases: st.SearchStrategy[Case]
    definition: Any
    schema: Any
    messages: Sequence[Drawn]

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The messages by input."""
        by_name = {}
        for source in self.definition.inputs:
            name = source.name if self.definition.by_input else None
            schema = self.schema if name is None else self.schema[name]
            rows = [dict(m.payload) for m in self.messages if m.input == name]
            by_name[source.name] = pa.Table.from_pylist(rows, schema)
        return by_name


class Mortal(MemorySink):
    """A sink whose process dies when it has taken what it was given, if it is told to."""

    dies = False

    def publish(self, token: Token, panes: PaneFiles) -> None:
        super().publish(token, panes)
        if self.dies:
            raise SimulatedCrash(PUBLISHED)


class Life:
    """A job, and a source that gives again what is beyond its offsets. with_sink: else results are asked for."""

    def __init__(self, case: Case, location: str, *, with_sink: bool = True, store: str = "rocksdb") -> None:
        self.case, self.definition = case, case.definition
        self.sinks = {part.name: Mortal() for part in case.definition.parts} if with_sink else {}
        self.acknowledged: list[Any] = []
        self.driver = TestDriver(
            case.definition,
            location,
            clock=ManualClock(case.start_us),
            sink=(self.sinks if len(self.sinks) > 1 else self.sinks[self.definition.name])
            if with_sink
            else None,
            schema=case.schema,
            store=store,
        )
        self.sent: list[tuple[str, Message]] = []

    # -- its source -------------------------------------------------------------------------------------------------

    def send(self, drawn: Sequence[Drawn]) -> list[tuple[str, Message]]:
        """The messages with their input, each at a place of its own."""
        made = []
        for i, one in enumerate(drawn):
            position = Position("s", one.partition, len(self.sent) + i)
            name = one.input or self.definition.inputs[0].name
            made.append((name, Message(one.payload, position)))
        self.sent += made
        return made

    def give(self, messages: Sequence[tuple[str, Message]]) -> None:
        """In one step, which takes them in position order however they come."""
        step: dict[str, list[Message]] = {}
        for name, message in reversed(messages):
            step.setdefault(name, []).append(message)
        if step:
            self.driver.feed(step)

    def lost(self) -> list[tuple[str, Message]]:
        """Return the messages beyond the offsets."""
        reached = self.driver.next_offsets()
        by_input = self.definition.by_input
        return [
            (name, m)
            for name, m in self.sent
            if m.position is not None
            and m.position.offset >= (reached[name] if by_input else reached).get(m.position[:2], 0)
        ]

    def redeliver(self, size: int) -> None:
        """Feed the messages beyond the offsets again, `size` messages a step."""
        lost = self.lost()
        for i in range(0, len(lost), size):
            self.give(lost[i : i + size])

    # -- what happens to it -----------------------------------------------------------------------------------------

    def act(self, kind: str, value: Any) -> None:
        driver = self.driver
        match kind:
            case "feed":
                self.give(self.send(value))
            case "each":
                for name, message in self.send(value):
                    driver.add(message, name)
            case "said again":  # where the source has no memory of it
                self.give(self.send([Drawn(m.payload, name, m.position[1]) for name, m in self._last(value)]))
            case "delivered again":
                self.give(self._last(value))
            case "watermark":
                reached_us = max(driver.op.watermark, self.case.start_us)
                if reached_us < END_OF_TIME_US:
                    inputs = self.case.definition.inputs
                    own = [i.name for i in inputs if i.watermark.kind == "explicit" and len(inputs) > 1]
                    driver.advance_event_time(
                        reached_us + value * self.case.unit_us, [*own, None][value % (len(own) + 1)]
                    )
            case "drain":
                driver.drain()
            case "clock":
                driver.advance_clock(value * S)
                driver.timeout()
            case "commit":
                driver.next_offsets()
            case "results":
                self.acknowledged += driver.panes()
            case "lose" if self.case.keeps_messages:
                driver.next_offsets()
                driver.lose_messages()
                self.redeliver(value)
            case "lose":
                self.die(None, value)
            case _:
                self.die(*value)

    def _last(self, n: int) -> list[Any]:
        return self.sent[-n:]

    def die(self, at: str | None, size: int) -> None:
        """Die, come back, and take again what was lost, `size` messages a step."""
        self.fall(at)
        self.redeliver(size)

    def fall(self, at: str | None) -> None:
        """Die, and come back."""
        last = self.sinks.get(self.definition.name)
        if at == PUBLISHED and last is not None:
            last.dies = True
            with suppress(SimulatedCrash):
                self.driver.next_offsets()
            last.dies = False
        self.driver.crash(None if at == PUBLISHED else at)
        self.driver.restart()

    def check(self) -> Expected:
        """All that was told, in order, buried and kept is what the oracle makes of the steps in the log."""
        self.driver.next_offsets()
        if not self.sinks:
            emitted = self.acknowledged + self.driver.op.get_result()
            assert all_panes_equal(emitted, self.driver.committed_panes())
            return self.driver.check(dead_letters=True)
        expected = self.driver.check(self.sinks[self.definition.name].panes, dead_letters=True)
        self.driver.check(dead_letters=True)  # what the files of the commits hold is the same
        return expected


@contextmanager
def life(case: Case, *, with_sink: bool = True, store: str = "rocksdb") -> Iterator[Life]:
    """A job on a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="contract-", ignore_cleanup_errors=True) as folder:
        one = Life(case, folder, with_sink=with_sink, store=store)
        try:
            yield one
        finally:
            one.driver.abandon()
