"""The oracle behind the interface that transcripts drive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from windrow.core.messages import DeadLetter, Message, Pane, WindowInfo
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.testing.clock import ManualClock
from windrow.testing.ledger import all_panes_equal
from windrow.testing.oracle import AggregateOracle, WatermarkOracle

_Step = tuple[list[Message], int | None, int]


class OracleDriver:
    """A job made of the two oracles; its state is its log of steps, so a restart replays the log."""

    def __init__(self, definition: AggregateDefinition, start_us: int) -> None:
        self._definition = definition
        self._clock = ManualClock(start_us)
        self._log: list[_Step] = []
        self._sent: list[Pane] = []
        self._panes: list[Pane] = []
        self._dead: list[DeadLetter] = []
        self._forget()

    def feed(self, messages: Sequence[Message]) -> None:
        """Ingest `messages` in one step, then advance."""
        self._step(list(messages), None)

    def advance_watermark(self, to_us: int) -> None:
        self._step([], to_us)

    def advance_clock(self, by_us: int) -> None:
        self._clock.advance(timedelta(microseconds=by_us))

    def timeout(self) -> None:
        self._step([], None)

    def drain(self) -> None:
        self._step([], END_OF_TIME_US)

    def restart(self) -> None:
        """Forget everything but the log, and replay it. Raises if that gives other panes than before."""
        self._forget()
        panes = [pane for step in self._log for pane in self._replay(step)[0]]
        if not all_panes_equal(panes, self._sent):
            raise AssertionError(f"the log replays to {panes}, but {self._sent} were sent")

    def panes(self) -> list[Pane]:
        panes, self._panes = self._panes, []
        return panes

    def dead_letters(self) -> list[DeadLetter]:
        dead, self._dead = self._dead, []
        return dead

    def windows(self) -> list[WindowInfo]:
        return self._oracle.windows()

    def _forget(self) -> None:
        self._oracle = AggregateOracle(self._definition)
        self._watermark = WatermarkOracle(self._definition.watermark)

    def _step(self, messages: list[Message], explicit_us: int | None) -> None:
        step = (messages, explicit_us, self._clock.now_us())
        panes, dead = self._replay(step)
        self._log.append(step)
        self._sent += panes
        self._panes += panes
        self._dead += dead

    def _replay(self, step: _Step) -> tuple[list[Pane], list[DeadLetter]]:
        messages, explicit_us, now_us = step
        panes: list[Pane] = []
        dead: list[DeadLetter] = []
        if messages:
            ingested = self._oracle.ingest(messages, now_us, self._watermark.watermark_us)
            self._watermark.observe(self._oracle.counted, now_us)
            panes, dead = ingested.panes, ingested.dead_letters
        advanced = self._oracle.advance(self._watermark.advance(now_us, explicit_us), now_us)
        return panes + advanced.panes, dead + advanced.dead_letters
