"""What every oracle is: the expected behaviour of one definition, in lists and loops. `Definition.oracle()` gives it.

Fed with the steps of a job, an oracle says what each has to tell and to bury. It shares nothing with the operator but the value
types of `windrow.core`. Positions are those of the log: their sources begin with the prefix of their input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from windrow.core.inputs import Input
from windrow.core.messages import DeadLetter, Message, WindowInfo
from windrow.core.time import START_OF_TIME_US


class TakenBack(Message):
    """A message that takes back one of before, which was as it is."""


#: By the name of their input, or a list where there is but one.
Messages: TypeAlias = "Mapping[str, Sequence[Message]] | Sequence[Message]"


class Outcome(NamedTuple):
    """What one step gives: what is told, and what is buried."""

    rows: list[Any]
    dead: list[DeadLetter]


class Oracle(ABC):
    """The expected behaviour of one definition.

    `ingest(messages, now_us, watermark_us)` and `advance(watermark_us, now_us)` are the two kinds of step. `now` and the
    watermark never go back.
    """

    definition: Any
    #: True if a step without messages is worth an `ingest`, for the columns that it tells.
    takes_columns = False

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.watermark_us = START_OF_TIME_US
        #: (source, partition, event time) of what the last ingest counted: only these move the watermark.
        self.counted: list[tuple[str, int, int]] = []
        #: How many messages had ids that were known.
        self.duplicates = 0

    @abstractmethod
    def ingest(self, messages: Messages, now_us: int, watermark_us: int) -> Outcome:
        """Take the messages of a step. watermark_us: of the advance before it."""

    @abstractmethod
    def advance(self, watermark_us: int, now_us: int) -> Outcome:
        """Event time comes to `watermark_us`, and time to `now_us`."""

    def redefine(self, definition: Any) -> None:
        """Go on under a definition with another emission."""
        self.definition = definition

    # -- what is kept -----------------------------------------------------------------------------------------------

    def windows(self) -> list[WindowInfo] | None:
        """What `get_windows` must answer; None where this oracle does not say."""
        return None

    def kept(self, input: str) -> list[Message] | None:
        """The messages of an input that `get_messages` must answer; None where this oracle does not say."""
        return None

    # -- in a graph -------------------------------------------------------------------------------------------------

    #: Inputs that take the rows of other operators.
    fed: Collection[str] = ()

    def feed(self, inputs: Collection[str]) -> None:
        """Rows of other operators come to these inputs."""
        self.fed = inputs

    #: Of a graph: what each operator gave in the last step.
    gave: Mapping[str, Outcome] | None = None

    def part(self, name: str) -> Oracle:
        """The oracle of the operator of that name: itself, or one of a graph's."""
        return self

    def forwarded(self, row: Any) -> dict[str, Any]:
        """What the next operator sees of a row that it told."""
        return dict(row.values)

    @property
    def columns(self) -> Sequence[str]:
        """The columns that the next operator sees, as far as they are known."""
        return self.definition.output_columns or ()

    def know(self, input: str, columns: Sequence[str]) -> None:
        """Columns of an input, before the first message has them."""
        return None


def listed(messages: Messages) -> list[Message]:
    """The messages of all inputs."""
    if isinstance(messages, Mapping):
        return [message for some in messages.values() for message in some]
    return list(messages)


def by_input(inputs: Sequence[Input], messages: Messages) -> dict[str, Sequence[Message]]:
    """Messages by the name of their input."""
    return dict(messages) if isinstance(messages, Mapping) else {inputs[0].name: messages}
