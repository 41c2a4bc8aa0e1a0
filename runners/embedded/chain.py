"""A chain on a directory, in this process: fed as its first operator is, or by input; its results are the last one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.core.clock import Clock
from windrow.core.errors import ConfigurationError
from windrow.core.messages import StoredMessage, WindowInfo
from windrow.core.time import Instant
from windrow.operators.aggregate.output import to_infos
from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.graph.logic import ChainOperator
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.steps.progress import Progress
from windrow.runners.embedded.attempt import one_at_a_time
from windrow.runners.embedded.join import EmbeddedJoin
from windrow.runners.embedded.operator import EmbeddedOperator
from windrow.runners.embedded.queries import (
    joined_messages,
    joined_windows,
    messages_between,
    windows_between,
    without_prefix,
)


def wanted(chain: ChainDefinition, sink: Any) -> tuple[str, ...]:
    """The operators inside the chain whose panes a `sink` by operator asks for."""
    if not isinstance(sink, Mapping):
        return ()
    return tuple(p.name for p in chain.parts[:-1] if p.name in sink)


class EmbeddedChain(EmbeddedOperator):
    """A chain of aggregates. Use it as a context manager; threads that share it take turns."""

    def __init__(
        self,
        chain: ChainDefinition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        **options: Any,
    ) -> None:
        self.chain = chain
        self._tell = wanted(chain, sink)
        first: Any = chain.first
        super().__init__(first, location, clock=clock, sink=sink, **options)
        self._in_runs = False  # a step of the first is one of all

    # -- the machinery ----------------------------------------------------------------------------------------------

    @property
    def _whole(self) -> ChainDefinition:
        return self.chain

    def _logic(self) -> ChainOperator:
        return ChainOperator(self.chain, self._tell)

    @property
    def _replayable(self) -> bool:
        return False

    # -- results ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_result(self) -> Any:
        """The last operator's panes, or rows, of committed steps since the last `flush`. Commits what is staged first."""
        self._ready()
        self._commit()
        return [v for table in self._outputs for v in self.chain.values(table, self._job.job)]

    @one_at_a_time
    def get_windows(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        input: str | None = None,
        operator: str | None = None,
    ) -> list[WindowInfo]:
        """As of a single operator; `operator`: which of the chain's, by default the join with that `input`, or the last."""
        self._ready()
        part = self._part(operator or self._joining(input) or self.chain.name)
        if isinstance(part.definition, JoinDefinition):
            side = _side(part.definition, input)
            return self._read(lambda: joined_windows(part, self._overlay, side, start, end, key))
        rows, values = self._read(lambda: windows_between(part, self._overlay, start, end, key))
        watermark_us = Progress.load(self._overlay, part.aux_cf).watermark_us
        infos = to_infos(part.definition, rows, values, watermark_us)
        return without_prefix(infos, self.chain.part_prefix(part.definition.name))

    @one_at_a_time
    def get_messages(
        self,
        start: tuple[Instant, int] | Instant | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        input: str | None = None,
        key: Any = None,
        operator: str | None = None,
    ) -> list[StoredMessage]:
        """As of a single operator; `operator`: which of the chain's, by default the join with that `input`, or the first."""
        self._ready()
        part = self._part(operator or self._joining(input) or self.chain.first.name)
        definition = part.definition
        if isinstance(definition, JoinDefinition):
            side = _side(definition, input)
            return self._read(lambda: joined_messages(part, self._overlay, side, start, end, key))
        prefix = self.chain.part_prefix(definition.name)
        return self._read(lambda: messages_between(part, self._overlay, start, end, key, prefix))

    def _joining(self, input: str | None) -> str | None:
        """The join that has an input of that name, be it from outside or of the rows of the operator before it."""
        joins = [p for p in self.chain.parts if isinstance(p, JoinDefinition)]
        return next((p.name for p in joins if input in (p.left.name, p.right.name)), None)

    def _part(self, name: str) -> Any:
        if name in [p.name for p in self.chain.parts]:
            return self._operator.part(name)
        raise ConfigurationError(
            f"operator={name!r}: the operators of the chain are {[p.name for p in self.chain.parts]}, name one of these"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"commit {self._job.progress.commit}"
        return f"<{self.chain!r} at {self._job.folders.location}, {state}>"


def _side(definition: JoinDefinition, input: str | None) -> int:
    names = [definition.left.name, definition.right.name]
    if input not in names:
        raise ConfigurationError(f"input {input!r} of {definition.name!r}: say which, of {names}")
    return names.index(input)


class EmbeddedJoinChain(EmbeddedChain, EmbeddedJoin):
    """A chain with a join in it: messages name their input."""


def open_chain(chain: ChainDefinition, location: str, **options: Any) -> EmbeddedChain:
    """The chain on a directory."""
    kind = EmbeddedJoinChain if chain.by_input else EmbeddedChain
    return kind(chain, location, **options)
