"""Offsets that a reader may skip: those of records that a delivery policy would skip without reading them.

Offsets have gaps: transactions end in invisible records, compaction removes some. And what no operator counts takes no
place among the newest. So which records are the newest is seen by reading a partition's end, as much of it as holds so many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from windrow.connectors.kafka.source_metadata import Cluster
from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.deliver import Policy
from windrow.core.errors import WindrowError
from windrow.core.inputs import Input
from windrow.operators.delivery_stage import counted
from windrow.operators.operator import Definition
from windrow.operators.steps.columns import OFFSET

#: (topic, partition).
At = tuple[str, int]
#: Offsets beyond the number of records that are read first: a transaction's end takes one.
MARKERS = 2


@dataclass(frozen=True, slots=True)
class Unread:
    """Part of a backlog that every operator skips.

    newest: all but so many records at the end of each partition; within_us: what is so much older than `now`, by the timestamps
    of records. One of them is given.
    """

    newest: int | None = None
    within_us: int | None = None

    def begins(
        self,
        backlog: Mapping[At, tuple[int, int]],
        now_us: int,
        cluster: Cluster,
        offsets: Callable[[At, int, int], list[int]],
    ) -> dict[At, tuple[int, int]]:
        """Return, by partition, the span of a backlog `[from, to)` before the first record that must be read; no empty spans.

        offsets: those of the records of a partition in `[from, to)` that are counted.
        """
        if self.newest is not None:
            firsts = {at: self._newest_of(at, *span, offsets) for at, span in backlog.items()}
        else:
            assert self.within_us is not None
            oldest_ms = -(-(now_us - self.within_us) // 1_000)
            found = cluster.at_times(dict.fromkeys(backlog, max(oldest_ms, 0)))
            # If all records are older, those being written are unknown.
            firsts = {
                at: end if (o := found[at]) is None else min(o, end) for at, (_, end) in backlog.items()
            }
        return {at: (begin, firsts[at]) for at, (begin, _) in backlog.items() if firsts[at] > begin}

    def _newest_of(self, at: At, begin: int, end: int, offsets: Callable[[At, int, int], list[int]]) -> int:
        """Return the offset from which on a partition has the newest records of `[begin, end)`."""
        assert self.newest is not None
        back = self.newest + MARKERS
        while end - back > begin:
            found = offsets(at, end - back, end)
            if len(found) >= self.newest:
                return found[-self.newest]
            back *= 4
        return begin


def unread_of(definition: Definition, input: Input, stream: KafkaStream) -> Unread | None:
    """Return the part of an input that no operator has to read; None where each record must be inspected.

    Every operator that takes the input must skip by records' positions, or by their timestamps. None may skip by key, or by
    content as guarantees and filters do, and none may keep what it skips.
    """
    found = [_of(part, one, stream) for part, one in _takers(definition, input)]
    places = [one.newest for one in found if one is not None and one.newest is not None]
    ages = [one.within_us for one in found if one is not None and one.within_us is not None]
    if found and len(places) == len(found):
        return Unread(newest=max(places))
    if found and len(ages) == len(found):
        return Unread(within_us=max(ages))
    return None


def counted_offsets(definition: Definition, input: Input, rows: pa.Table, now_us: int) -> list[int]:
    """Return the offsets of one partition's rows that every operator of the input counts; none where an operator fails."""
    found: set[int] | None = None
    for part, one in _takers(definition, input):
        try:
            offsets = set(counted(part, one, rows, now_us).table.column(OFFSET).to_pylist())
        except (WindrowError, pa.ArrowException):
            return []
        found = offsets if found is None else found & offsets
    return sorted(found or ())


def _takers(definition: Definition, input: Input) -> list[tuple[Definition, Input]]:
    """Return the operators that take an input, each with its own `Input` for it."""
    if definition.by_input:
        return [(part, one) for part in definition.parts for one in part.inputs if one.name == input.name]
    return [(one.parts[0], one.parts[0].inputs[0]) for one in definition.apart]  # the one input


def _of(definition: Definition, input: Input, stream: KafkaStream) -> Unread | None:
    policy: Policy | None = input.deliver
    if policy is None or policy.guaranteed is not None:
        return None
    if policy.record is not None or policy.mark is not None:
        return None
    if policy.within_us is not None:
        stamped = dict(stream.columns).get(input.event_time) == "timestamp" and not input.time_made
        return Unread(within_us=policy.within_us) if stamped else None
    keys = definition.keys(input) if policy.per == "key" else ()
    if not policy.counts or keys or input.where is not None:
        return None
    return Unread(newest=policy.newest or 1)
