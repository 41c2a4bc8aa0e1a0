"""Micro-batching: steps of one message each, run as few. An operator that supports it implements `Runs`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.core.messages import Position
from windrow.core.positions import Partition
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV

#: Steps of one message: an ingest and an advance.
STEPS = 2


@dataclass
class Run:
    """Messages ingested as one, from `start` of those that were fed; `watermarks_us` has the watermark of each one's
    step, `after_us` that of the end.
    """

    start: int
    positions: list[Position] = field(default_factory=list)
    watermarks_us: list[int] = field(default_factory=list)
    after_us: list[int] = field(default_factory=list)
    nows_us: list[int] = field(default_factory=list)
    #: For messages that are known by ids: False for duplicates.
    fresh: list[bool] = field(default_factory=list)
    #: True for a single message of which only its step decides whether it counts: the messages after it are cut anew.
    uncertain: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def stop(self) -> int:
        return self.start + len(self.positions)


class Runs(ABC):
    """A splitter of messages into runs, with marks and watermark as single steps would have them."""

    #: By partition, the largest event time so far, and `now` of its newest message.
    largest_us: dict[Partition, int]
    seen_us: dict[Partition, int]

    @abstractmethod
    def cut(self, table: pa.Table, positions: Sequence[Position], nows_us: Sequence[int]) -> Iterator[Run]:
        """Yield runs of the rows of `table`, in order. A run ends where its last advance may have an effect."""

    @abstractmethod
    def ingest_run(self, kv: KV, table: pa.Table, run: Run) -> StepResult:
        """Ingest a run as one step; the advance to `run.after_us[-1]` comes after it."""
