"""Offsets that a job has read, per partition, and the relation of a new slice of input to them.

Offsets are `next_offset`: exclusive, the first one that was not read. Ordinals (rows made from one
record) are kept out: a record is read whole or not at all, so that every commit ends between two records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from windrow.core.positions import Partition

Offsets = Mapping[Partition, int]


class SliceRelation(Enum):
    """Relation of the rows of one slice to the offsets that the job has already read."""

    UNKNOWN = "unknown"  # not evaluated yet: the offsets of a Spark frame are known only once it ran
    EMPTY = "empty"  # no row
    BELOW = "below"  # every row was read before
    OVERLAPS = "overlaps"  # some rows were read before, and the rest follows without a gap
    ADJACENT = "adjacent"  # begins where the job stopped, in every partition
    GAP = "gap"  # in some partition, offsets between the job's and the slice's are missing, unexplained


def merge(left: Offsets, right: Offsets) -> dict[Partition, int]:
    """Return the larger offset of the two in each partition."""
    merged = dict(left)
    for partition, offset in right.items():
        merged[partition] = max(offset, merged.get(partition, offset))
    return merged


def covers(offsets: Offsets, others: Offsets) -> bool:
    """True if all that `others` has read, `offsets` has read too."""
    return all(
        partition in offsets and offsets[partition] >= offset
        for partition, offset in others.items()
        if offset > 0
    )


def gaps(before: Offsets, first_offsets: Offsets) -> dict[Partition, tuple[int, int]]:
    """Offsets that a slice leaves out: partition -> half-open `[job's next offset, slice's first offset)`.

    A partition that the job has never read cannot have a gap: its beginning is unknown.
    """
    return {
        partition: (before[partition], first)
        for partition, first in sorted(first_offsets.items())
        if partition in before and first > before[partition]
    }


def relation(
    before: Offsets, first_offsets: Offsets, next_offsets: Offsets, explained: Collection[Partition] = ()
) -> SliceRelation:
    """Classify a slice that holds `[first_offsets[p], next_offsets[p])` of each of its partitions.

    `explained` names partitions in which a gap in the numbers is no gap in the data: because the source says
    that no record lies there (Kafka spends offsets on transaction markers and compaction), or because this
    Spark query has read the partition before, so that Spark itself accounts for what it left out.
    """
    if set(first_offsets) != set(next_offsets):
        raise ValueError(f"slice begins in {sorted(first_offsets)} and ends in {sorted(next_offsets)}")
    rows = {p for p, first in first_offsets.items() if next_offsets[p] > first}
    if not rows:
        return SliceRelation.EMPTY
    if any(p in rows and p not in explained for p in gaps(before, first_offsets)):
        return SliceRelation.GAP
    if all(p in before and next_offsets[p] <= before[p] for p in rows):
        return SliceRelation.BELOW
    if any(p in before and first_offsets[p] < before[p] for p in rows):
        return SliceRelation.OVERLAPS
    return SliceRelation.ADJACENT
