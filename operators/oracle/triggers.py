"""Triggers in the oracle: firing between a window's first message and its end, or after it, for one window at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windrow.core.emit import AllOf, AnyOf, Delay, EveryBatch, EveryCount, EveryPeriod, PastEnd, Trigger, When
from windrow.operators.oracle.arrow import holds
from windrow.operators.oracle.cells import Cell


@dataclass(frozen=True)
class Moment:
    """The moment of judging a window. advancing: in an advance, which moves time; ends: whether a period has ended in it.

    values: the present values of the window; emitted: it emitted a pane in this step. over: the watermark is past its end;
    passed: since this advance.
    """

    cell: Cell
    now_us: int
    advancing: bool
    ends: Callable[[Trigger], bool]
    values: Callable[[], dict[str, Any]]
    emitted: bool = False
    over: bool = False
    passed: bool = False

    def fires(self, trigger: Trigger) -> bool:
        """True if the trigger fires. In an advance it fires only if a period or a delay of it has ended."""
        if isinstance(trigger, AnyOf):
            return any(self.fires(one) for one in trigger.triggers)
        return (not self.advancing or self._has_come(trigger)) and self._holds(trigger)

    def insists(self, trigger: Trigger) -> bool:
        """True if a period has ended that asks for a pane though nothing is new."""
        if isinstance(trigger, AnyOf):
            return any(self.insists(one) for one in trigger.triggers)
        return isinstance(trigger, EveryPeriod) and trigger.always and self.advancing and self.ends(trigger)

    def _holds(self, trigger: Trigger) -> bool:
        new = len(self.cell.pending)
        match trigger:
            case AnyOf():
                return any(self._holds(one) for one in trigger.triggers)
            case AllOf():
                return all(self._holds(one) for one in trigger.triggers)
            case EveryBatch():
                return new > 0
            case EveryCount():
                return new >= trigger.n
            case EveryPeriod():
                return (
                    self.advancing
                    and self.ends(trigger)
                    and (new > 0 or (trigger.always and not self.emitted))
                )
            case Delay():
                since = self.cell.since_us
                return (
                    self.advancing and new > 0 and (since is None or since + trigger.delay_us <= self.now_us)
                )
            case PastEnd():
                return new > 0 and self.over
            case When():
                return new > 0 and self._is_true(trigger)
        return False

    def _has_come(self, trigger: Trigger) -> bool:
        """True if a period of it has ended, or a delay is over."""
        if isinstance(trigger, (AnyOf, AllOf)):
            return any(self._has_come(one) for one in trigger.triggers)
        if isinstance(trigger, PastEnd):
            return self.passed
        return isinstance(trigger, (EveryPeriod, Delay)) and self._holds(trigger)

    def _is_true(self, trigger: When) -> bool:
        return holds(trigger.condition, self.values())
