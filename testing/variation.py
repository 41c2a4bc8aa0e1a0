"""Rare options of operators, drawn after the others and from a `Random` of their own: jobs without them stay as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.core.windows import Calendar
from windrow.operators.operator import Definition

D = TypeVar("D", bound=Definition)
#: The probability of an option that an operator takes.
SHARE = 0.15


def _seconds(n: int) -> timedelta:
    return timedelta(seconds=n)


class Variation:
    """Choices that do not change those of another `Random`. units: multiples of the time between two messages, about."""

    def __init__(self, chance: Random, units: Callable[[int], timedelta] = _seconds) -> None:
        self.chance, self._units = Random(repr(chance.getstate())), units

    def of(self, make: Callable[..., D], options: Mapping[str, Any], fixed: Mapping[str, Any]) -> D:
        """Make a definition, then change options that are not fixed where the definition allows it."""
        made, current = make(**options), dict(options)
        for change in (self._window, self._emission, self._frame):
            changed = {name: value for name, value in change(current).items() if name not in fixed}
            if changed:
                with contextlib.suppress(ConfigurationError):
                    made = make(**{**current, **changed})
                    current |= changed
        return made

    def triggers(self, emit: wr.Emit) -> wr.Emit:
        """Replace triggers by some of event time, where the others of the emission allow it. Rows of Spark's modes stay."""
        if emit.drop_late:
            return emit
        for name, draw in (("early", self._early), ("late", self._late)):
            if self.chance.random() < SHARE:
                with contextlib.suppress(ConfigurationError):
                    emit = replace(emit, **{name: draw()})
        return emit

    def watermarks(self, definition: D) -> D:
        """Make the watermarks of all inputs explicit."""
        moving = [one.name for one in definition.inputs if not one.static]
        if self.chance.random() < SHARE:
            with contextlib.suppress(ConfigurationError):
                return definition.with_watermarks(dict.fromkeys(moving, wr.explicit()))
        return definition

    def _window(self, options: Mapping[str, Any]) -> dict[str, Any]:
        window = options.get("window")
        if not isinstance(window, Calendar) or self.chance.random() > 0.5:
            return {}
        hours = self.chance.choice([-7, -1, 2, 6, 17])
        return {"window": replace(window, offset_us=hours * 3_600_000_000)}

    def _emission(self, options: Mapping[str, Any]) -> dict[str, Any]:
        emit = options.get("emit")
        if "window" not in options or emit is None:
            return {}
        if self.chance.random() < SHARE / 2:
            return {"emit": wr.Emit.final(self.chance.choice(["accumulating", "discarding", "retracting"]))}
        return {"emit": self.triggers(emit)}

    def _frame(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if "frame" not in options or options.get("anchors") is not None or self.chance.random() > SHARE:
            return {}
        ttl = self.chance.choice([self._units(3), self._units(10), wr.forever])
        return {"frame": wr.range_between(wr.unbounded, 0), "ttl": ttl}

    def _early(self) -> Any:
        period = wr.every(self._units(self.chance.choice([2, 5])), event_time=True)
        return self.chance.choice(
            [
                period,
                period,
                wr.every(self._units(3), always=True, event_time=True),
                wr.any_of(period, wr.every(3)),
                wr.all_of(period, wr.every(2)),
                wr.any_of(wr.every(self._units(4)), wr.all_of(period, wr.when(wr.col("n") >= 2))),
            ]
        )

    def _late(self) -> Any:
        seconds = wr.every(self._units(4))
        return self.chance.choice(
            [
                self._early(),
                wr.past_end,
                wr.all_of(wr.past_end, wr.every(2)),
                wr.any_of(wr.all_of(wr.past_end, seconds), wr.every(3)),
                wr.any_of(wr.past_end, self._early()),
            ]
        )
