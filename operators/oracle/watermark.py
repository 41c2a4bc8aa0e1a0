"""Watermark of the oracle, tracked in the plainest way. Semantics "Watermark", seed 001 "Watermarks"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windrow.core.policy import Watermark
from windrow.core.positions import Partition
from windrow.core.time import START_OF_TIME_US


class WatermarkOracle:
    """The event time up to which input is believed complete; never goes back.

    After each ingest call `observe` with the event times that were counted (dead letters never move the
    watermark); `advance(now_us)` gives the watermark of the next step.
    """

    def __init__(self, definition: Watermark) -> None:
        self._definition = definition
        self._marks_us: dict[Partition, int] = {}
        self._active_us: dict[Partition, int] = {}
        self._first_now_us: int | None = None
        #: The time up to which the caller declared the input complete, if the watermark is explicit.
        self.advanced_us: int | None = None
        self.watermark_us = START_OF_TIME_US

    def observe(self, times: Iterable[tuple[str, int, int]], now_us: int) -> None:
        """Take (source, partition, event time) of messages that were ingested at `now_us`."""
        self._start(now_us)
        for source, partition, time_us in times:
            key = (source, partition)
            self._marks_us[key] = max(time_us, self._marks_us.get(key, time_us))
            self._active_us[key] = now_us

    def advance(self, now_us: int, explicit_us: int | None = None) -> int:
        """Return the watermark at `now_us`; `explicit_us` is the time that the caller asks for, as drain does."""
        self._start(now_us)
        for candidate in (self._candidate(now_us), explicit_us):
            if candidate is not None and candidate > self.watermark_us:
                self.watermark_us = candidate
        return self.watermark_us

    def _start(self, now_us: int) -> None:
        if self._first_now_us is None:
            self._first_now_us = now_us

    def _candidate(self, now_us: int) -> int | None:
        """Return the watermark by its kind, ignoring its former value."""
        match self._definition.kind:
            case "bounded":
                return self._bounded(now_us)
            case "fixed":
                return now_us - self._definition.delay_us
            case "custom":
                assert self._definition.function is not None
                return self._definition.function(dict(self._marks_us), now_us)
            case _:
                return self.advanced_us

    def _bounded(self, now_us: int) -> int | None:
        """Return the minimum over partitions that are not idle; none while a declared partition is awaited."""
        candidates = []
        for partition in {*self._marks_us, *self._definition.partitions}:
            if self._idle(partition, now_us):
                continue
            if partition not in self._marks_us:
                return None
            candidates.append(self._marks_us[partition] - self._definition.delay_us)
        return min(candidates, default=None)

    def is_idle(self, now_us: int) -> bool:
        """True if rows have come, and all partitions that had some are idle."""
        return bool(self._marks_us) and all(self._idle(partition, now_us) for partition in self._marks_us)

    def _idle(self, partition: Partition, now_us: int) -> bool:
        """True if no row has come for the idle time of `now`."""
        assert self._first_now_us is not None
        since_us = self._active_us.get(partition, self._first_now_us)
        return self._definition.idle_us is not None and now_us - since_us >= self._definition.idle_us


class InputsOracle:
    """The watermark of a definition: the least of its inputs, idle and static ones left out. Semantics "Joins", "Late".

    definition: has `inputs`, and the `prefix` with which the sources of each begin
    """

    def __init__(self, definition: Any) -> None:
        self._prefixes = {one.name: one.source_prefix for one in definition.inputs}
        self._static = {one.name for one in definition.inputs if one.static}
        self._inputs = {one.name: WatermarkOracle(one.watermark) for one in definition.inputs}
        self.watermark_us = START_OF_TIME_US

    def observe(self, times: Iterable[tuple[str, int, int]], now_us: int) -> None:
        """Observe counted event times, as `WatermarkOracle.observe`."""
        counted = list(times)
        for name, prefix in self._prefixes.items():
            own = [(s.removeprefix(prefix), p, t) for s, p, t in counted if s.startswith(prefix)]
            self._inputs[name].observe(own, now_us)

    def complete(self, name: str, to_us: int) -> None:
        """Declare an input complete up to a time."""
        one = self._inputs[name]
        one.advanced_us = to_us if one.advanced_us is None else max(one.advanced_us, to_us)

    def advance(self, now_us: int, explicit_us: int | None = None) -> int:
        """Return the watermark at `now_us`, or the time that the caller asks for."""
        candidates = []
        for name, one in self._inputs.items():
            one._start(now_us)
            if name not in self._static and not one.is_idle(now_us):
                # A partition that begins late may take its input back, as long as the whole is not there yet.
                mark_us = one._candidate(now_us)
                candidates.append(START_OF_TIME_US if mark_us is None else mark_us)
        for candidate in (min(candidates, default=None), explicit_us):
            if candidate is not None and candidate > self.watermark_us:
                self.watermark_us = candidate
        return self.watermark_us
