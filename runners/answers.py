"""What a shard tells the driver of its part of a commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.records import ShardResult


@dataclass
class Answer:
    """What a shard tells the driver."""

    result: ShardResult
    marks: dict[Partition, int] = field(default_factory=dict)
    first_offsets: dict[Partition, int] = field(default_factory=dict)
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    rows: int = 0
    #: True if nothing was told and nothing has changed, but that time passed.
    still: bool = False
    #: Rows too late for all of their windows, or too far ahead of now, that came in groups, not as letters: the commit is
    #: redone with letters.
    uncounted_rows: int = 0
    #: Why the shard cannot go on before its messages are replayed.
    lost: str | None = None

    def seen(self, partition: Partition, lowest: int, highest: int) -> None:
        """Offsets of a partition are in the slice."""
        self.first_offsets[partition] = min(lowest, self.first_offsets.get(partition, lowest))
        self.next_offsets[partition] = max(highest + 1, self.next_offsets.get(partition, highest + 1))

    def mark(self, partition: Partition, largest: int) -> None:
        """A partition has come to an event time."""
        self.marks[partition] = max(largest, self.marks.get(partition, largest))
