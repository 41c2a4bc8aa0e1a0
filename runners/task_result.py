"""A shard's result of its part of a commit, for the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from windrow.checkpoint.offsets import merge
from windrow.checkpoint.records import PANES_OF, ShardResult
from windrow.checkpoint.replay import is_total
from windrow.checkpoint.truncation_summary import DEAD_FILE
from windrow.core.positions import Partition


@dataclass
class Answer:
    """A shard's result, for the driver."""

    result: ShardResult
    marks: dict[Partition, int] = field(default_factory=dict)
    first_offsets: dict[Partition, int] = field(default_factory=dict)
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    rows: int = 0
    #: Bytes a row, where rows that came together were the widest.
    width: int = 0
    #: True if nothing was emitted and nothing changed, except that time passed.
    still: bool = False
    #: Rows too late for all of their windows, or too far ahead of now, that came in groups, not as dead letters: the commit
    #: is redone with dead letters.
    uncounted_rows: int = 0
    #: Rows that came in groups and have to be looked at one by one: the commit is redone with rows.
    faulty_rows: int = 0
    #: The time of its steps, by the clock of its machine, in nanoseconds.
    began_ns: int = 0
    ended_ns: int = 0
    #: The host and folder of the store that the task used.
    place: str = ""
    #: Why the shard cannot go on before its messages are replayed.
    lost: str | None = None

    def seen(self, partition: Partition, lowest: int, highest: int) -> None:
        """Note offsets of a partition in the slice."""
        self.first_offsets[partition] = min(lowest, self.first_offsets.get(partition, lowest))
        self.next_offsets[partition] = max(highest + 1, self.next_offsets.get(partition, highest + 1))

    def mark(self, partition: Partition, largest: int) -> None:
        """Note the largest event time of a partition."""
        self.marks[partition] = max(largest, self.marks.get(partition, largest))


@dataclass
class Gathered:
    """The combined intake of the shards: marks by partition of the watermark, [first, next) offsets, counters, rows."""

    marks: dict[Partition, int] = field(default_factory=dict)
    first_offsets: dict[Partition, int] = field(default_factory=dict)
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    rows: int = 0


def gathered(answers: Iterable[Answer], watermark_partition: Callable[[Partition], Partition]) -> Gathered:
    """Combine all results of an attempt. watermark_partition: the one that a partition of the source belongs to."""
    taken = Gathered()
    marks, first, counters = taken.marks, taken.first_offsets, taken.counters
    for answer in answers:
        taken.rows += answer.rows
        for partition, largest in answer.marks.items():
            partition = watermark_partition(partition)
            marks[partition] = max(largest, marks.get(partition, largest))
        for partition, lowest in answer.first_offsets.items():
            first[partition] = min(lowest, first.get(partition, lowest))
        taken.next_offsets = merge(taken.next_offsets, answer.next_offsets)
        for name, n in answer.result.counters.items():
            if not name.startswith(PANES_OF) and name != DEAD_FILE and is_total(name):
                counters[name] = counters.get(name, 0) + n
    return taken
