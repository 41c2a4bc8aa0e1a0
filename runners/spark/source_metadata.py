"""Metadata of a source's partitions: offsets that nobody has read, and offsets without a record."""

from __future__ import annotations

from collections.abc import Mapping

from windrow.checkpoint.job import Job
from windrow.checkpoint.offsets import gaps
from windrow.connectors.kafka.source import KafkaSource
from windrow.core.positions import Partition, shown_source


class Asked:
    """A source, and its last answer; None where no source can be asked."""

    def __init__(self, source: KafkaSource | None) -> None:
        self.source = source
        self._newest: dict[Partition, int] = {}

    def unread(self, job: Job) -> set[Partition]:
        """Return the partitions of which the source has unread records."""
        if self.source is None:
            return set()
        before, marks = job.progress.next_offsets, job.progress.marks
        silent = {p for p in before if p not in marks or marks[p].seen_us != job.progress.now_us}
        self._newest = self.source.newest(before, silent)
        return {p for p, offset in self._newest.items() if offset > before[p]}

    def explained(self, job: Job, first: Mapping[Partition, int], *, resumed: bool) -> set[Partition]:
        """Return the partitions whose skipped offsets hold no record, or none that the stream lets through. resumed: it began
        where the job stopped.
        """
        left_out = gaps(job.progress.next_offsets, first)
        if resumed:
            return set(left_out)
        if self.source is None:
            return set()
        return {p for p, (start, end) in left_out.items() if self.source.is_empty(p, start, end)}

    def lag(self, job: Job) -> dict[str, dict[str, int]] | None:
        """Return how many offsets are unread of those the source last reported, by source and partition."""
        if self.source is None:
            return None
        following, lag = job.progress.next_offsets, dict[str, dict[str, int]]()
        for (source, partition), offset in sorted(self._newest.items()):
            behind = max(0, offset - following.get((source, partition), offset))
            lag.setdefault(shown_source(source), {})[str(partition)] = behind
        return lag
