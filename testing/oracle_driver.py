"""The oracles behind the interface that transcripts drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from windrow.core.messages import DeadLetter, Message, Position, StoredMessage, WindowInfo
from windrow.core.time import END_OF_TIME_US
from windrow.operators.operator import Definition
from windrow.operators.oracle.watermark import InputsOracle
from windrow.testing.clock import ManualClock
from windrow.testing.ledger import all_panes_equal
from windrow.testing.verification import as_given, info_as_given, letters_as_given

#: Messages of one input, or of several by their names.
Fed: TypeAlias = "Sequence[Message] | Mapping[str, Sequence[Message]]"
#: Messages by input; where the caller moves the watermark, and of which input (None: of all); `now`.
_Step = tuple[dict[str, list[Message]], int | None, str | None, int]


class OracleDriver:
    """A job made of oracles; its state is its log of steps, so a restart replays the log."""

    def __init__(self, definition: Definition, start_us: int) -> None:
        self._definition = definition
        self._clock = ManualClock(start_us)
        self._log: list[_Step] = []
        self._sent: list[Any] = []
        self._panes: list[Any] = []
        self._dead: list[DeadLetter] = []
        self._forget()

    def feed(self, messages: Fed) -> None:
        """Ingest `messages` in one step, then advance."""
        inputs = self._definition.inputs
        by_input = messages if isinstance(messages, Mapping) else {inputs[0].name: messages}
        placed = {}
        for given in inputs:
            prefix = given.source_prefix
            placed[given.name] = [_placed(m, prefix) for m in by_input.get(given.name, ())]
        self._step(placed, None)

    def advance_watermark(self, to_us: int, input: str | None = None) -> None:
        self._step({}, to_us, input)

    def advance_clock(self, by_us: int) -> None:
        self._clock.advance(timedelta(microseconds=by_us))

    def timeout(self) -> None:
        self._step({}, None)

    def drain(self) -> None:
        self._step({}, END_OF_TIME_US)

    def restart(self) -> None:
        """Forget everything but the log, and replay it. Raises if the replay emits other panes than before."""
        self._forget()
        panes = [pane for step in self._log for pane in self._replay(step)[0]]
        if not all_panes_equal(panes, self._sent):
            raise AssertionError(f"the log replays to {panes}, but {self._sent} were sent")

    def panes(self) -> list[Any]:
        panes, self._panes = self._panes, []
        return panes

    def dead_letters(self) -> list[DeadLetter]:
        dead, self._dead = self._dead, []
        return letters_as_given(self._definition, dead)

    def windows(self) -> list[WindowInfo]:
        windows = self._oracle.part(self._definition.name).windows() or []
        return [info_as_given(self._definition, info) for info in windows]

    def messages(self, input: str) -> list[StoredMessage]:
        kept = self._oracle.part(self._definition.name).kept(input) or []
        placed = [(as_given(self._definition, m.position), dict(m.payload)) for m in kept if m.position]
        return [StoredMessage(0, position, payload) for position, payload in placed]

    def _forget(self) -> None:
        self._oracle = self._definition.oracle()
        self._watermark = InputsOracle(self._definition)

    def _step(
        self, messages: dict[str, list[Message]], explicit_us: int | None, input: str | None = None
    ) -> None:
        step = (messages, explicit_us, input, self._clock.now_us())
        panes, dead = self._replay(step)
        self._log.append(step)
        self._sent += panes
        self._panes += panes
        self._dead += dead

    def _replay(self, step: _Step) -> tuple[list[Any], list[DeadLetter]]:
        messages, explicit_us, input, now_us = step
        panes: list[Any] = []
        dead: list[DeadLetter] = []
        if any(messages.values()):
            panes, dead = self._oracle.ingest(messages, now_us, self._watermark.watermark_us)
            self._watermark.observe(self._oracle.counted, now_us)
        if input is not None and explicit_us is not None:
            self._watermark.complete(input, explicit_us)
            explicit_us = None
        emitted, buried = self._oracle.advance(self._watermark.advance(now_us, explicit_us), now_us)
        return panes + emitted, dead + buried


def _placed(message: Message, prefix: str) -> Message:
    position = message.position
    if position is None:
        return message
    return Message(message.payload, Position(*position)._replace(source=prefix + position.source))
