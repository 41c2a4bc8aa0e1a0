"""Base class of the oracles: the expected behaviour of one definition, in lists and loops. `Definition.oracle()` returns it.

Fed with the steps of a job, an oracle gives the rows and dead letters of each. It shares nothing with the operator but the
value types of `windrow.core`. Positions are those of the log: their sources begin with the prefix of their input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, WindowInfo
from windrow.core.time import START_OF_TIME_US


class TakenBack(Message):
    """A message that retracts an earlier, equal one."""


#: By the name of their input, or a list where there is but one.
Messages: TypeAlias = "Mapping[str, Sequence[Message]] | Sequence[Message]"


class Outcome(NamedTuple):
    """The outcome of one step: emitted rows, and dead letters."""

    rows: list[Any]
    dead: list[DeadLetter]


class Oracle(ABC):
    """The expected behaviour of one definition.

    `ingest(messages, now_us, watermark_us)` and `advance(watermark_us, now_us)` are the two kinds of step. `now` and the
    watermark never go back.
    """

    definition: Any
    #: True if a step without messages needs an `ingest`, for the columns that it declares.
    takes_columns = False

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.watermark_us = START_OF_TIME_US
        #: (source, partition, event time) of messages counted by the last ingest: only these move the watermark.
        self.counted: list[tuple[str, int, int]] = []
        #: The number of messages with known ids.
        self.duplicates = 0

    @abstractmethod
    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Take the messages of a step. watermark_us: of the advance before it."""

    @abstractmethod
    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Advance event time to `watermark_us`, and `now` to `now_us`."""

    def redefine(self, definition: Any) -> None:
        """Continue under a definition with another emission."""
        self.definition = definition

    # -- state ------------------------------------------------------------------------------------------------------

    def windows(self) -> list[WindowInfo] | None:
        """Return the expected result of `get_windows`; None if this oracle does not model it."""
        return None

    def kept(self, input: str) -> list[Message] | None:
        """Return the messages of an input that `get_messages` must return; None if this oracle does not model it."""
        return None

    # -- in a graph -------------------------------------------------------------------------------------------------

    #: Inputs that take the rows of other operators.
    fed: Collection[str] = ()

    def feed(self, inputs: Collection[str]) -> None:
        """Declare the inputs that take rows of other operators."""
        self.fed = inputs

    #: In a graph: the outcome of each operator in the last step.
    gave: Mapping[str, Outcome] | None = None

    def part(self, name: str) -> Oracle:
        """Return the oracle of the operator of that name: itself, or one of a graph's."""
        return self

    def forwarded(self, row: Any) -> dict[str, Any]:
        """Return the columns of an emitted row that it forwards downstream."""
        return dict(row.values)

    @property
    def columns(self) -> Sequence[str]:
        """The columns that the next operator sees, as far as they are known."""
        return self.definition.output_columns or ()

    def know(self, input: str, columns: Sequence[str]) -> None:
        """Declare columns of an input, before the first message has them."""
        return None


def listed(messages: Messages) -> list[Message]:
    """Return the messages of all inputs."""
    if isinstance(messages, Mapping):
        return [message for of_input in messages.values() for message in of_input]
    return list(messages)


def by_input(inputs: Sequence[Input], messages: Messages) -> dict[str, Sequence[Message]]:
    """Return messages by the name of their input."""
    return dict(messages) if isinstance(messages, Mapping) else {inputs[0].name: messages}
