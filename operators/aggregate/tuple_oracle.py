"""Oracle of messages on which user code raises, where a message is in all of its windows or in none."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from windrow.core.messages import TupleWindow, Window
from windrow.core.time import START_OF_TIME_US
from windrow.core.windows import Tuples
from windrow.operators.oracle.aggregates import added
from windrow.operators.oracle.cells import Cell, Key, Taken

if TYPE_CHECKING:
    from windrow.operators.aggregate.oracle import AggregateOracle

#: New messages of each window of each key.
Touched = dict[tuple[Key, Window | TupleWindow], list[Taken]]


def without_failed(
    oracle: AggregateOracle, touched: Touched, filed: list[tuple[Key, Taken]], numbers: dict[Key, int]
) -> Touched:
    """Remove a message on which code raises, with others of its step in one of its windows; it is in none and gets no number.

    filed: the messages of the step, in order. numbers: how many there were of each key before it
    """
    while failed := _failed(oracle, touched):
        left = {one: [m for m in new if not any(m is f for f in failed)] for one, new in touched.items()}
        if not isinstance(oracle.definition.window, Tuples):
            touched = {one: new for one, new in left.items() if new}
            continue
        filed = [(key, m) for key, m in filed if not any(m is other for other in failed)]
        oracle._numbers, touched = dict(numbers), {}
        for key, message in filed:
            for window in oracle._windows_for(message, key, START_OF_TIME_US) or []:
                touched.setdefault((key, window), []).append(message)
    return touched


def _failed(oracle: AggregateOracle, touched: Touched) -> list[Taken]:
    """Return the messages of windows in which code raises; they are dead letters."""
    failed = list[Taken]()
    for (key, window), new in touched.items():
        former = oracle._cells.get((key, window), Cell(key, window))
        cell = Cell(key, window, former.messages + new, former.pending + new)
        try:
            for alias in oracle.definition.agg:
                oracle._value(alias, cell, added)
        except Exception:
            for m in new:
                if not any(m is other for other in failed):
                    detail = traceback.format_exc()
                    oracle._bury("aggregate_failed", detail, m.position, m.time_us, m.payload)
                    failed.append(m)
    return failed
