"""Watermarks: a pure function of the event times seen of each partition, and of `now`.

Semantics "Watermark": per partition the largest event time less the delay, the minimum over partitions that are not idle;
it never goes back. A declared partition holds it until seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from windrow.core.inputs import Input
from windrow.core.policy import Watermark
from windrow.core.positions import Partition
from windrow.core.time import START_OF_TIME_US

#: A partition of no message: its mark is where `advance_watermark(to, input=)` brought the input.
_ADVANCED: Partition = ("", -1)


class Taking(Protocol):
    """A definition with inputs, each with a watermark."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...


def advanced(input: Input) -> Partition:
    """Return the partition whose mark is the time to which `advance_watermark(to, input=)` brought an input."""
    source, partition = _ADVANCED
    return input.source_prefix + source, partition


def idle_partitions(
    watermark: Watermark,
    seen_us: Mapping[Partition, int],
    now_us: int,
    unread: Collection[Partition] = (),
) -> frozenset[Partition]:
    """Return partitions without a row for the idle time of `now`, except those in `unread`: their source reports more rows."""
    if watermark.idle_us is None:
        return frozenset()
    return frozenset(
        p for p, seen in seen_us.items() if now_us - seen >= watermark.idle_us and p not in unread
    )


def watermark_us(
    watermark: Watermark,
    marks: Mapping[Partition, int],
    now_us: int,
    before_us: int,
    idle: Collection[Partition] = (),
) -> int:
    """Return the watermark, not below `before_us`; `marks` is the largest event time of each partition."""
    match watermark.kind:
        case "explicit":
            return max(before_us, marks.get(_ADVANCED, before_us))
        case "fixed":
            return max(before_us, now_us - watermark.delay_us)
        case "custom":
            assert watermark.function is not None
            value = watermark.function(dict(marks), now_us)
            return before_us if value is None else max(before_us, int(value))
    if any(p not in marks for p in watermark.partitions):
        return before_us
    active = [largest for partition, largest in marks.items() if partition not in idle]
    if not active:
        return before_us
    return max(before_us, min(active) - watermark.delay_us, START_OF_TIME_US)


def watermark_of(
    definition: Taking,
    marks: Mapping[Partition, int],
    seen_us: Mapping[Partition, int],
    now_us: int,
    before_us: int,
    unread: Collection[Partition] = (),
) -> tuple[int, frozenset[Partition]]:
    """Return (the watermark of an operator, the partitions judged idle for it). A partition in `unread` is not idle.

    It is the minimum over its inputs that are not static; one that was never seen holds it back.
    """
    least, idle = None, frozenset[Partition]()
    for input in definition.inputs:
        if input.static:
            continue
        prefix = input.source_prefix
        own = {(s.removeprefix(prefix), p): t for (s, p), t in marks.items() if s.startswith(prefix)}
        seen = {(s.removeprefix(prefix), p): t for (s, p), t in seen_us.items() if s.startswith(prefix)}
        more = {(s.removeprefix(prefix), p) for s, p in unread if s.startswith(prefix)}
        quiet = idle_partitions(input.watermark, seen, now_us, more)
        idle |= {(prefix + source, partition) for source, partition in quiet}
        if own and set(own) <= quiet:
            continue  # an idle input does not hold the watermark back
        reached_us = watermark_us(input.watermark, own, now_us, START_OF_TIME_US, quiet)
        least = reached_us if least is None else min(least, reached_us)
    # If all inputs are idle the watermark does not move.
    return (before_us if least is None else max(before_us, least)), idle


def holder_of(
    definition: Taking,
    marks: Mapping[Partition, int],
    seen_us: Mapping[Partition, int],
    now_us: int,
    unread: Collection[Partition] = (),
) -> Partition | None:
    """Return the partition that holds the watermark back: of those that are not idle, the least advanced. None if it is no
    partition, but the clock, a function or `advance_watermark`. Partition -1: an input without any message yet.
    """
    watermarks = [(i.source_prefix, i.watermark) for i in definition.inputs if not i.static]
    least: tuple[int, Partition] | None = None
    for prefix, watermark in watermarks:
        if watermark.kind != "bounded":
            continue
        idle = idle_partitions(watermark, seen_us, now_us, unread)
        own = {p: t for p, t in marks.items() if p[0].startswith(prefix)}
        missing = [p for s, n in watermark.partitions if (p := (prefix + s, n)) not in own]
        if missing or not own:
            return min(missing, default=(prefix, -1))
        for partition, largest in own.items():
            candidate = (largest - watermark.delay_us, partition)
            if partition not in idle and (least is None or candidate < least):
                least = candidate
    return None if least is None else least[1]
