"""Timing of panes: EARLY until the watermark passes a window's end, ON_TIME then, LATE until the window closes.

All of it is a pure function of ends, a watermark and the emission. Semantics "Emission".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.emit import Emit, Never, Trigger
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.steps.columns import EARLY, LATE, ON_TIME
from windrow.operators.steps.step import passed


class Edges(NamedTuple):
    """The edges of windows at a watermark: those that end before `ended` have ended, those before `closed` take no message."""

    ended: int
    closed: int


def edges_at(definition: AggregateDefinition, watermark_us: int) -> Edges:
    """Return the edges at a watermark W; of sessions delimited by another input, at the number of the last message.

    | | ended: fires ON_TIME | closed: takes no message |
    |---|---|---|
    | a window | end <= W | end <= W - allowed lateness |
    | a session | end <= W | end < W - allowed lateness |
    | a session that emits no late pane | end < W | end < W - allowed lateness |

    A message at the very end of a session touches it. So a session closes when the watermark is beyond its end, and one that is
    never corrected ends only then.
    """
    if definition.session and definition.numbered:
        return Edges(watermark_us + 1, watermark_us + 1)
    closed = passed(watermark_us, definition.allowed_lateness_us)
    if definition.session:
        return Edges(watermark_us + definition.emit.emits_late, closed)
    return Edges(watermark_us + 1, closed + 1)


def by_timing(emit: Emit, ends: IntArray, edges: Edges) -> Iterator[tuple[str, Trigger, BoolArray]]:
    """Yield (timing, trigger, windows) of windows that emit early panes, and of those that emit late ones."""
    ended = ends < edges.ended
    for timing, trigger, windows in ((EARLY, emit.early, ~ended), (LATE, emit.late, ended)):
        if windows.any():
            yield timing, trigger, windows


def is_last(definition: AggregateDefinition, ends: IntArray, timing: str, edges: Edges) -> BoolArray:
    """True for windows that emit no pane after one of this timing. A session may still grow until it closes."""
    if timing == EARLY:
        return np.zeros(len(ends), dtype=bool)
    settled = timing == ON_TIME and not definition.emit.emits_late and not definition.session
    return np.asarray((ends < edges.closed) | settled, dtype=bool)


def fires_at_end(emit: Emit, pending: BoolArray) -> BoolArray:
    """True for windows that emit an ON_TIME pane when they end: all, or pending ones that no later pane would emit."""
    return np.asarray(emit.on_time | (pending & (not emit.emits_late)), dtype=bool)


def fires_evicted(
    definition: AggregateDefinition, trigger: Trigger, pending: BoolArray, open_: BoolArray, ended: BoolArray
) -> BoolArray:
    """True for evicted windows that emit a last pane: pending ones that a pane would emit, and open ones for a closing pane.

    trigger: of their timing; open_: they still take messages; ended: they have emitted their ON_TIME pane
    """
    emits = (not isinstance(trigger, Never)) | (~ended & definition.emits_evicted)
    return np.asarray(pending & emits | open_ & definition.emit.closing_pane, dtype=bool)
