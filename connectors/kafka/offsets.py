"""Offsets of a Kafka reader, and the ranges that it reads next: pure arithmetic, no client.

An offset is exclusive: the first one that was not read. In Spark's checkpoint, and in its progress, `Offsets` are JSON:

    {"version": 1, "topics": {"flights": {"id": "DphUeuu6QZWzerm25N4RNA", "next": {"0": 120, "1": 98}, "lost": 0}}}

By the id a topic that was deleted and recreated is another one. `lost` counts what `failOnDataLoss=false` skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from windrow.core.envelope import check_version
from windrow.core.errors import CorruptState, SourceLost

VERSION = 1


@dataclass(frozen=True)
class Topic:
    """Offsets up to which one topic was read, by partition."""

    id: str
    next: Mapping[int, int]
    lost: int = 0


Offsets = Mapping[str, Topic]


@dataclass(frozen=True)
class Extent:
    """Bounds of one topic in the cluster, by partition: from `low`, below `high`. Readers of committed records get those
    below `stable`."""

    id: str
    low: Mapping[int, int]
    high: Mapping[int, int]
    stable: Mapping[int, int]


Extents = Mapping[str, Extent]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of one partition, to be read by one task."""

    topic: str
    id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Loss:
    """Records that can no longer be read, with the consequence."""

    topic: str
    text: str
    remedy: str
    #: Number of lost offsets, where that is known. None: continuing would not be safe, even with failOnDataLoss=false.
    lost: int | None = 0


def dump(offsets: Offsets) -> dict[str, Any]:
    """Return offsets as values for JSON; equal offsets give equal text."""
    topics = {
        name: {"id": t.id, "next": {str(p): o for p, o in sorted(t.next.items())}, "lost": t.lost}
        for name, t in sorted(offsets.items())
    }
    return {"version": VERSION, "topics": topics}


def load(value: Any) -> dict[str, Topic]:
    """Return the offsets that `dump` serialized."""
    try:
        check_version("offsets", value["version"], VERSION)
        return {
            name: Topic(t["id"], {int(p): int(o) for p, o in t["next"].items()}, t["lost"])
            for name, t in value["topics"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptState(
            f"offsets {value!r} in Spark's checkpoint are not of windrow-kafka ({error!r}): delete that checkpoint and begin "
            "with option resumeFrom=<the job's location>"
        ) from error


def losses(start: Offsets, extents: Extents) -> list[Loss]:
    """Return what was lost between a reader's offsets and what the cluster still holds."""
    found: list[Loss] = []
    for name, topic in sorted(start.items()):
        extent = extents.get(name)
        if extent is None:
            found.append(
                Loss(
                    name,
                    f"topic {name!r} (id {topic.id}), read up to {dict(topic.next)}, is deleted",
                    "create it and begin with a new Spark checkpoint, or take it out of the subscription",
                )
            )
        elif extent.id != topic.id:
            found.append(
                Loss(
                    name,
                    f"topic {name!r} was read under the id {topic.id} up to {dict(topic.next)} and has the id {extent.id} now: "
                    "it was deleted and made anew",
                    "begin with a new Spark checkpoint without resumeFrom, which reads it as another source",
                )
            )
        else:
            found += _partition_losses(name, topic, extent)
    return found


def _partition_losses(name: str, topic: Topic, extent: Extent) -> list[Loss]:
    found = []
    for partition, start in sorted(topic.next.items()):
        if partition not in extent.high:
            text = f"{name!r} has partitions {sorted(extent.high)}, {partition} was read up to {start}"
            found.append(Loss(name, text, "see which broker lost it, and bring it back", lost=None))
            continue
        low, high = extent.low[partition], extent.high[partition]
        if start < low:
            found.append(
                Loss(
                    name,
                    f"{name}-{partition} was read up to {start}, and the broker holds it from {low} on: {low - start} offsets "
                    "expired before they were read",
                    "raise the topic's retention.ms",
                    lost=low - start,
                )
            )
        elif start > high:
            found.append(
                Loss(
                    name,
                    f"{name}-{partition} was read up to {start}, and the broker holds it up to {high} only: it lost what it "
                    "had acknowledged, and gives these offsets to other records",
                    "set unclean.leader.election.enable=false; begin the job at another location, for what it counted is "
                    "no longer in the topic",
                    lost=None,
                )
            )
    return found


def refuse(found: list[Loss], fail: bool) -> None:
    """Raise `SourceLost` for a loss that nobody allowed."""
    for loss in found:
        if loss.lost is None:
            raise SourceLost(f"{loss.text}. {loss.remedy[0].upper()}{loss.remedy[1:]}")
        if fail:
            raise SourceLost(
                f"{loss.text}. {loss.remedy[0].upper()}{loss.remedy[1:]}; or go on without them with "
                'option("failOnDataLoss", "false"), which counts them'
            )


def beyond_losses(start: Offsets, extents: Extents) -> dict[str, Topic]:
    """Return the offsets of a reader that may lose data. Expired records are counted, and a recreated topic is read from its
    beginning. A deleted topic keeps its offsets."""
    after: dict[str, Topic] = {}
    for name, topic in start.items():
        extent = extents.get(name)
        if extent is None:
            after[name] = topic
        elif extent.id != topic.id:
            after[name] = Topic(extent.id, dict(extent.low), topic.lost)
        else:
            moved = {p: max(o, extent.low.get(p, o)) for p, o in topic.next.items()}
            lost = sum(moved[p] - o for p, o in topic.next.items())
            after[name] = replace(topic, next=moved, lost=topic.lost + lost)
    return after


def further(start: Offsets, known: Offsets) -> dict[str, Topic]:
    """Return `start`, advanced in each partition at least to `known`."""
    return {
        name: replace(topic, next={p: max(o, known[name].next.get(p, o)) for p, o in topic.next.items()})
        if name in known and known[name].id == topic.id
        else topic
        for name, topic in start.items()
    }


def newest(extents: Extents, *, committed: bool) -> dict[str, Topic]:
    """Return the end of all that can be read now."""
    return {name: Topic(e.id, dict(e.stable if committed else e.high)) for name, e in extents.items()}


def advanced(start: Offsets, target: Offsets, extents: Extents, most: int | None = None) -> dict[str, Topic]:
    """Return the end of the next batch: at most `most` offsets from `start`, shared among partitions by how much they have.

    A partition that is new begins here, at its first offset, and is read from the next batch on: so that every batch is
    described whole by its two ends. No offset decreases.
    """
    ahead = {
        (name, p): max(0, target[name].next.get(p, o) - o)
        for name, topic in start.items()
        if name in target and target[name].id == topic.id
        for p, o in topic.next.items()
    }
    taken = shared(ahead, most)
    after: dict[str, Topic] = {
        name: replace(topic, next={p: o + taken.get((name, p), 0) for p, o in topic.next.items()})
        for name, topic in start.items()
    }
    for name, topic in target.items():
        known = after.get(name, Topic(topic.id, {}))
        if known.id == topic.id and name in extents:
            first = {p: extents[name].low[p] for p in topic.next if p in extents[name].low}
            after[name] = replace(known, next={**first, **known.next})
    return after


def shared(ahead: Mapping[tuple[str, int], int], most: int | None) -> dict[tuple[str, int], int]:
    """Divide `most` in proportion to the numbers in `ahead`. Each partition that has something ahead gets a part; if there are
    more of them than `most`, each topic does, as far as it suffices.
    """
    total = sum(ahead.values())
    if most is None or total <= most:
        return dict(ahead)
    parts = {tp: n * most // total for tp, n in ahead.items()}
    busy = sorted((tp for tp, n in ahead.items() if n), key=lambda tp: (-ahead[tp], tp))
    if most < len(busy):
        longest = {topic: partition for topic, partition in reversed(busy)}.items()
        first = [tp for tp in busy if tp in longest]
        chosen = set([*first, *(tp for tp in busy if tp not in longest)][:most])
        return {tp: int(tp in chosen) for tp in ahead}
    for tp in busy:
        parts[tp] = max(parts[tp], 1)
    left = most - sum(parts.values())
    for tp in busy if left > 0 else ():  # rounding has left less than one for each
        more = min(1, left, ahead[tp] - parts[tp])
        parts[tp], left = parts[tp] + more, left - more
    largest = [(-n, tp) for tp, n in parts.items()]
    heapq.heapify(largest)
    for _ in range(-left):  # those who got their only one took it from the largest
        n, tp = largest[0]
        heapq.heapreplace(largest, (n + 1, tp))
        parts[tp] -= 1
    return parts


def distance(start: Offsets, end: Offsets) -> int:
    """Return the number of offsets between the two, in partitions that both have."""
    return sum(r.end - r.start for r in ranges(start, end))


def ranges(start: Offsets, end: Offsets, least: int | None = None) -> list[Range]:
    """Return the ranges to read between two ends; with `least`, at least that many where there are offsets enough."""
    found = [
        Range(name, topic.id, p, start[name].next[p], o)
        for name, topic in sorted(end.items())
        if name in start and start[name].id == topic.id
        for p, o in sorted(topic.next.items())
        if p in start[name].next and o > start[name].next[p]
    ]
    if least is None or len(found) >= least or not found:
        return found
    total = sum(r.end - r.start for r in found)
    return [part for r in found for part in _split(r, -(-(r.end - r.start) * least // total))]


def _split(whole: Range, parts: int) -> list[Range]:
    size = whole.end - whole.start
    parts = max(1, min(parts, size))
    cuts = [whole.start + size * i // parts for i in range(parts + 1)]
    return [replace(whole, start=a, end=b) for a, b in pairwise(cuts)]
