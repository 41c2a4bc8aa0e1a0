"""The evaluations of a step: at which moments the conditions of keys are evaluated, and which samples their windows hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.frames import Frame, RangeBetween
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.over.partitions import Bounds, Lines

#: Causes, in the order in which those of one moment come.
LATE, EXPIRED, LEAVING, SAMPLE, EVALUATE, DELAY, REPEATED = range(7)
CAUSES: Final = ("late", "expired", "leaving", "sample", "evaluate", "delay", "repeat")


@dataclass(frozen=True)
class Clock:
    """The moments of keys in a step, by their numbers.

    moments: at which windows end before the step; seen: of the last sample of each key. until: up to when `advance` makes
    things due, None as samples come. watermark_us: what a clocked window ends with. loading: true for keys that have history
    alone: what leaves their windows causes no evaluation
    """

    moments: IntArray
    seen: IntArray
    until_us: int | None
    watermark_us: int
    loading: BoolArray


@dataclass(frozen=True)
class Evaluations:
    """Evaluations by key, in their order. The windows lie in lines.

    codes: numbers of keys. moments: at which windows end. ends: the place after the last sample. floors: the place before
    which samples belong to a window that has expired. places: of the sample that is added; -1: none. seen: the moment of that
    sample
    """

    codes: IntArray
    moments: IntArray
    causes: IntArray
    ends: IntArray
    floors: IntArray
    places: IntArray
    seen: IntArray

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, some: IntArray | BoolArray) -> Evaluations:
        return Evaluations(*(getattr(self, name)[some] for name in self.__dataclass_fields__))

    @property
    def heads(self) -> BoolArray:
        """True for the first of each key."""
        heads = np.ones(len(self), dtype=bool)
        heads[1:] = self.codes[1:] != self.codes[:-1]
        return heads


def of_messages(definition: AlertDefinition, codes: IntArray, times: IntArray, clock: Clock) -> Evaluations:
    """Return those of messages that are judged by themselves, as they come."""
    order = np.argsort(codes, kind="stable")
    codes, n = codes[order], len(codes)
    moments = np.maximum(times[order], clock.moments[codes])
    if definition.clocked:
        moments = clock.moments[codes]
    elif (packed := _packed(codes, moments)) is not None:  # no moment of a key is before another one
        moments = moments + np.maximum.accumulate(packed) - packed
    else:
        ranks = np.unique(moments, return_inverse=True)[1]
        furthest = np.maximum.accumulate(codes * (n + 1) + ranks) - codes * (n + 1)
        moments = np.unique(moments)[furthest]
    zeros = np.zeros(n, dtype=np.int64)
    seen = np.maximum(moments, times[order])
    made = Evaluations(codes, moments, np.full(n, SAMPLE), zeros, zeros, order, seen)
    return _with_expiries(definition, made, clock)


def of_samples(
    definition: AlertDefinition, lines: Lines, places: IntArray, late: BoolArray, clock: Clock
) -> Evaluations:
    """Return those of samples that come. places: of samples from the moment of their key on; late: true for the numbers of keys
    that have others."""
    codes = lines.codes[places]
    moments = clock.moments[codes] if definition.clocked else lines.times[places]
    added = Evaluations(
        codes,
        moments,
        np.full(len(places), SAMPLE),
        places + 1,
        lines.starts[codes],
        places,
        np.maximum(moments, lines.times[places]),
    )
    added = _with_expiries(definition, added, clock)
    of_late = np.flatnonzero(late)
    ends = _ends(lines, of_late)
    many = np.bincount(codes, minlength=lines.size)[of_late]
    once = _quiet(lines, of_late, clock.moments[of_late], LATE, ends - many)
    upto = clock.moments.copy()
    np.maximum.at(upto, codes, moments)
    first = clock.moments.copy()  # from when on samples leave with an evaluation
    loading = added.heads & (clock.loading & ~late)[added.codes]
    first[added.codes[loading]] = added.moments[loading]
    return _in_order([once, _leaving(definition, lines, first, upto), added])


def of_time(definition: AlertDefinition, lines: Lines, clock: Clock) -> Evaluations:
    """Return those of an advance: samples that leave, and keys that expire."""
    assert clock.until_us is not None
    first = np.where(clock.loading, END_OF_TIME_US, clock.moments)
    parts = [_leaving(definition, lines, first, np.full(lines.size, clock.until_us))]
    if definition.ttl_us is not None:
        ends = clock.seen + definition.ttl_us + 1
        over = np.flatnonzero((ends <= clock.until_us) & (clock.seen > START_OF_TIME_US))
        parts.append(_quiet(lines, over, ends[over], EXPIRED, _ends(lines, over)))
    return _in_order(parts)


def of_keys(lines: Lines, moments: IntArray) -> Evaluations:
    """Return one of each key."""
    every = np.arange(lines.size)
    return _quiet(lines, every, moments, EVALUATE, _ends(lines, every))


def _packed(codes: IntArray, moments: IntArray) -> IntArray | None:
    """Return a number for each key and moment, in their order, of 60 bits; None where they need more."""
    if not len(codes):
        return codes
    first = int(moments.min())
    span = int(moments.max()) - first + 1
    return codes * span + (moments - first) if span * (int(codes.max()) + 1) < 1 << 60 else None


def back(moments: IntArray, by_us: int) -> IntArray:
    """Return moments so much earlier, none before the start of time."""
    return np.maximum(moments, START_OF_TIME_US + by_us) - by_us


def _quiet(lines: Lines, codes: IntArray, moments: IntArray, cause: int, ends: IntArray) -> Evaluations:
    """Return evaluations that no sample causes."""
    n = len(codes)
    floors = lines.starts[codes]
    return Evaluations(codes, moments, np.full(n, cause), ends, floors, np.full(n, -1), moments)


def _ends(lines: Lines, codes: IntArray) -> IntArray:
    ends: IntArray = lines.starts[codes + 1]
    return ends


def _leaving(definition: AlertDefinition, lines: Lines, after: IntArray, upto: IntArray) -> Evaluations:
    """Return one for each moment at which samples leave a window of time, after a time of each key and up to another."""
    if definition.size_us is None or not definition.leaving:
        none = np.zeros(0, dtype=np.int64)
        return _quiet(lines, none, none, LEAVING, none)
    every, size_us = np.arange(lines.size), definition.size_us
    low, high = (lines.first_from(every, back(times, size_us)) for times in (after, upto))
    many = np.maximum(high - low, 0)
    places = np.arange(many.sum()) + np.repeat(low - (np.cumsum(many) - many), many)
    numbers, times = np.r_[lines.codes, -1], np.r_[lines.times, 0]
    # The last of samples that leave together.
    apart = (numbers[places] != numbers[places + 1]) | (times[places] != times[places + 1])
    places = places[apart]
    codes, moments = lines.codes[places], lines.times[places] + size_us + 1
    ends = _ends(lines, codes) if definition.clocked else lines.first_from(codes, moments)
    return _quiet(lines, codes, moments, LEAVING, ends)


def _with_expiries(definition: AlertDefinition, added: Evaluations, clock: Clock) -> Evaluations:
    """Put the end of a window before each sample that comes after its key was quiet for too long."""
    if definition.ttl_us is None or definition.clocked or not len(added):
        return added
    seen = np.r_[START_OF_TIME_US, added.moments[:-1]]
    seen[added.heads] = clock.seen[added.codes[added.heads]]
    fresh = (added.moments > seen + definition.ttl_us) & (seen > START_OF_TIME_US)
    if not fresh.any():
        return added
    begins = np.maximum.accumulate(
        np.where(fresh, added.places, -1)
    )  # places rise with keys where there are lines
    floors = added.floors if definition.frame is None else np.maximum(added.floors, begins)
    added = replace(added, floors=floors)
    over = added.take(fresh)
    n = len(over)
    ends = Evaluations(
        over.codes,
        seen[fresh] + definition.ttl_us + 1,
        np.full(n, EXPIRED),
        over.floors,
        over.floors,
        np.full(n, -1),
        seen[fresh],
    )
    both = _joined([ends, added])
    return both.take(
        np.argsort(np.r_[np.flatnonzero(fresh) * 2, np.arange(len(added)) * 2 + 1], kind="stable")
    )


def _joined(parts: list[Evaluations]) -> Evaluations:
    return Evaluations(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in Evaluations.__dataclass_fields__)
    )


def _in_order(parts: list[Evaluations]) -> Evaluations:
    """Sort by key and moment; of one moment by cause, of one cause in the given order."""
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    both = _joined(filled)
    if (packed := _packed(both.codes, both.moments)) is not None:
        return both.take(np.argsort(packed * 8 + both.causes, kind="stable"))  # merges parts in order
    return both.take(np.lexsort((both.causes, both.moments, both.codes)))


def bounds_of(definition: AlertDefinition, frame: Frame | None, lines: Lines, of: Evaluations) -> Bounds:
    """Return the windows of evaluations in the frame of an aggregation, which is no longer than that of the alert."""
    low = of.floors
    for one in {definition.frame, frame}:
        if one is None:
            continue
        if isinstance(one, RangeBetween):
            low = np.maximum(low, lines.first_from(of.codes, back(of.moments, -one.low_us)))
        else:
            assert one.low is not None
            low = np.maximum(low, of.ends + one.low - 1)
    return Bounds(np.minimum(low, of.ends), of.ends, np.ones(len(of), dtype=bool))
