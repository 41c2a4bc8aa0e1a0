"""Any join, fed in any steps, killed anywhere in a commit and fed again: every row is told once, as the oracle says.

WINDROW_DEEP=1 runs many more examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.deep import examples
from tests.oracle.join_cases import JoinCase, S, cases, rows
from windrow.connectors.sinks import MemorySink, PaneFiles
from windrow.core.messages import Message, Position, Token
from windrow.testing import CommitPoint, JoinDriver, SimulatedCrash

PROFILE = examples(40, deep=2_000)
PUBLISHED = "published, not noted"
DEATHS = [None, PUBLISHED, *CommitPoint]


class Mortal(MemorySink):
    """A sink whose process dies when it has taken what it was given, if it is told to."""

    dies = False

    def publish(self, token: Token, panes: PaneFiles) -> None:
        super().publish(token, panes)
        if self.dies:
            raise SimulatedCrash(PUBLISHED)


class Life:
    """A job, and a source that gives again what is beyond its offsets."""

    def __init__(self, case: JoinCase) -> None:
        self.case, self.sink = case, Mortal()
        self.driver = JoinDriver(case.definition, sink=self.sink)
        self.sent: list[tuple[str, Message]] = []  # by everybody who ever fed

    def feed(self, drawn: Sequence[dict[str, Any]]) -> None:
        made = []
        for row in drawn:
            message = self.case.message(row, len(self.sent) + len(made))
            assert message.position is not None
            name, _, source = message.position.source.partition(":")
            made.append((name, Message(message.payload, message.position._replace(source=source))))
        self.sent += made
        self._give(made)

    def _give(self, made: Sequence[tuple[str, Message]]) -> None:
        step: dict[str, list[Message]] = {}
        for name, message in made:
            step.setdefault(name, []).append(message)
        self.driver.feed(step)

    def die(self, at: str | None, size: int) -> None:
        """Die, come back, and take again what was lost, `size` messages a step."""
        if at == PUBLISHED:
            self.sink.dies = True
            try:
                self.driver.next_offsets()
            except SimulatedCrash:
                event(f"died: {PUBLISHED}")
            self.sink.dies = False
            at = None
        self.driver.crash(at)
        self.driver.restart()
        reached = self.driver.next_offsets()
        lost = [
            (name, m)
            for name, m in self.sent
            if m.position is not None
            and m.position.offset >= reached[name].get((m.position.source, m.position.partition), 0)
        ]
        for i in range(0, len(lost), size):
            self._give(lost[i : i + size])

    def check(self) -> None:
        self.driver.next_offsets()
        expected = self.driver.check(self.sink.panes)
        self.driver.check()
        event(f"{self.case.definition.how}: {'some' if expected.rows else 'no'} rows")


ACTIONS = st.one_of(
    st.tuples(st.just("feed"), st.lists(rows(), min_size=1, max_size=6)),
    st.tuples(st.just("feed"), st.lists(rows(), min_size=1, max_size=6)),
    st.tuples(st.just("watermark"), st.sampled_from([0, 1, 2, 3, 5, 12])),
    st.tuples(st.just("clock"), st.integers(0, 6)),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("die"), st.tuples(st.sampled_from(DEATHS), st.integers(1, 4))),
)


@pytest.mark.proves("Joins: killed anywhere and fed again, every row comes once")
@given(case=cases(), actions=st.lists(ACTIONS, min_size=3, max_size=10), last=st.sampled_from(DEATHS))
@PROFILE
def test_a_join_that_is_killed_anywhere_tells_every_row_once(
    case: JoinCase, actions: list[tuple[str, Any]], last: str | None
) -> None:
    life = Life(case)
    try:
        for kind, value in actions:
            match kind:
                case "feed":
                    life.feed(value)
                case "watermark":
                    life.driver.advance_event_time(max(life.driver.op.watermark, 0) + value * case.unit_us)
                case "clock":
                    life.driver.advance_clock(value * S)
                    life.driver.timeout()
                case "commit":
                    life.driver.next_offsets()
                case _:
                    life.die(*value)
        life.check()
        life.driver.drain()
        life.die(last, 3)
        life.driver.drain()
        life.check()
        life.driver.assert_state_zero()
        assert len(life.driver.expected().dead_letters) <= len(life.sent)
    finally:
        life.driver.op.abandon()
        if life.driver._temporary is not None:
            life.driver._temporary.cleanup()


def test_the_harness_notices_a_row_that_is_missing_and_one_that_came_twice() -> None:
    import windrow as wr

    join = wr.Join(
        left=wr.Input("l", event_time="t"), right=wr.Input("r", event_time="t"), within=("0 s", "5 s")
    )
    with JoinDriver(join) as driver:
        driver.feed({"l": [Message({"t": 1}, Position("s", 0, 0))], "r": [{"t": 2}, {"t": 3}]})
        told = driver.committed_rows()
        driver.check(told)
        for wrong in (told[1:], told[::-1], [*told, told[-1]]):
            try:
                driver.check(wrong)
            except AssertionError:
                continue
            raise AssertionError(f"{wrong} passed")
