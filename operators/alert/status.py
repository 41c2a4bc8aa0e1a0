"""Statuses of many keys over a step: each evaluation is a function from the status before to the status after it.

Functions of the evaluations of a key are composed in their order by doubling, so that no evaluation is a step of Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.arrays import BoolArray, IntArray

CANCEL, OPEN, REPEAT = range(3)
NAMES: Final = ("CANCEL", "OPEN", "REPEAT")
#: The trigger of a transition to each status.
TRIGGERS: Final = ("on_cancel", "on_open", "on_repeat")

#: The status function of an evaluation that neither opens nor cancels.
_KEEPS: Final = np.array([CANCEL, REPEAT, REPEAT], dtype=np.uint8)

Statuses: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Transitions:
    """Transitions of evaluations, in the order of keys and of their evaluations.

    before, after: the status; count: repeats since the opening. opening: the evaluation that opened the current incident, or
    the one that an evaluation cancels; -1: it was open before the step, or there is none
    """

    before: Statuses
    after: Statuses
    count: IntArray
    opening: IntArray

    @property
    def triggers(self) -> BoolArray:
        """True for evaluations that have a trigger: all but those at which a cancelled alert stays so."""
        triggers: BoolArray = (self.before != CANCEL) | (self.after != CANCEL)
        return triggers


def status_functions(when: BoolArray, holds: BoolArray) -> Statuses:
    """Return for each evaluation its status after CANCEL, OPEN and REPEAT, one column each.

    when: whether the alert opens, were it cancelled; holds: a column each for OPEN and REPEAT, whether it stays open
    """
    after = np.zeros((len(when), 3), dtype=np.uint8)
    after[:, CANCEL] = np.where(when, OPEN, CANCEL)
    after[:, OPEN:] = np.where(holds, REPEAT, CANCEL)
    return after


def compose(after: Statuses, heads: BoolArray, start: Statuses) -> Statuses:
    """Return the status after each evaluation.

    after: of `status_functions`; heads: true for the first evaluation of each key; start: the status of each key before it
    """
    first = np.flatnonzero(heads)
    keeps = (after == _KEEPS).all(axis=1)
    keeps[first] = False
    if keeps.any():  # most of those with hysteresis leave it as it is: the others are composed without them
        others = ~keeps
        status: Statuses = compose(after[others], heads[others], start)[np.cumsum(others) - 1]
        status[keeps & (status == OPEN)] = REPEAT
        return status
    made = after.copy()
    made[first] = after[first, start][:, None]
    unsure = np.flatnonzero((made != made[:, :1]).any(axis=1))  # depend on the status before
    shift = 1
    while len(unsure):
        former = made[unsure - shift]
        made[unsure] = np.take_along_axis(made[unsure], former.astype(np.intp), axis=1)
        unsure = unsure[(made[unsure] != made[unsure, :1]).any(axis=1)]
        shift *= 2
    return made[:, 0]


def transitions(after: Statuses, heads: BoolArray, start: Statuses, counts: IntArray) -> Transitions:
    """Compose evaluations. start, counts: the status of each key, and how often it has repeated, before the step."""
    n, places = len(heads), np.arange(len(heads))
    status = compose(after, heads, start)
    before = np.empty(n, dtype=np.uint8)
    before[1:] = status[:-1]
    before[heads] = start
    first = np.maximum.accumulate(np.where(heads, places, 0))
    opened = np.maximum.accumulate(np.where(status == OPEN, places, -1))
    # The opening before an evaluation that cancels or repeats; none if it is of another key.
    opening = np.where(opened >= first, opened, -1)
    of_key = np.cumsum(heads) - 1
    repeats = np.where(opening >= 0, places - opening, counts[of_key] + places - first + 1)
    count = np.where(status == REPEAT, repeats, 0)
    return Transitions(before, status, count, np.where((before != CANCEL) | (status == OPEN), opening, -1))
