"""A chain on a directory, in this process: fed as its first operator is, or by input; its results are the last one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.core.clock import Clock
from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.graph.logic import ChainOperator
from windrow.runners.embedded.attempt import one_at_a_time
from windrow.runners.embedded.join import EmbeddedJoin
from windrow.runners.embedded.operator import EmbeddedOperator


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

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"commit {self._job.progress.commit}"
        return f"<{self.chain!r} at {self._job.folders.location}, {state}>"


class EmbeddedJoinChain(EmbeddedChain, EmbeddedJoin):
    """A chain with a join in it: messages name their input."""


def open_chain(chain: ChainDefinition, location: str, **options: Any) -> EmbeddedChain:
    """The chain on a directory."""
    kind = EmbeddedJoinChain if chain.by_input else EmbeddedChain
    return kind(chain, location, **options)
