"""The simulator finds what is wrong in emission: in timing, in the ledger of emitted values, and in timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windrow as wr
from tests.deep import DEEP
from tests.simulation.test_mutants import found_by
from tests.simulation.test_operator_mutants import SEEDS, of
from windrow.operators.aggregate import emitter, logic, prefix_firing
from windrow.operators.aggregate.emitter import Back, Emitter
from windrow.operators.aggregate.sessions import logic as session_logic
from windrow.operators.aggregate.sessions import panes as session_panes
from windrow.operators.aggregate.sessions.timers import SessionTimers
from windrow.operators.aggregate.timing import Edges
from windrow.operators.aggregate.triggers import Due
from windrow.testing.simulation import play

Patch = pytest.MonkeyPatch
BACK = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
CHANGED = wr.Emit(early=wr.every_batch, late=wr.every_batch, only_if_changed=True)
DELAYED = wr.Emit(early=wr.delay("2 seconds"), late=wr.delay("3 seconds"))
CLOSING = wr.Emit(early=wr.every(2), late=wr.every(2), closing_pane=True)


def windows(emit: wr.Emit, window: Any = None, **more: Any) -> Any:
    """An aggregate of few values, so that many panes repeat the last one."""
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("4 seconds") if window is None else window,
        agg={"most": wr.max("v"), "n": wr.count().where(wr.col("v") > 2)},
        retention="1 minute",
        allowed_lateness="10 seconds",
        watermark="2 seconds",
        emit=emit,
        name="many",
        **more,
    )


def sessions(emit: wr.Emit) -> Any:
    return windows(emit, wr.session("2 seconds"))


def everywhere(patch: Patch, name: str, mutant: Any) -> None:
    for module in (emitter, logic, prefix_firing, session_panes, session_logic):
        if hasattr(module, name):
            patch.setattr(module, name, mutant)


# -- emission ---------------------------------------------------------------------------------------------------------


def no_pane_is_suppressed(patch: Patch) -> None:
    everywhere(patch, "suppressed", lambda emit, changed, pending, firing: np.zeros(len(changed), dtype=bool))


def every_pane_without_a_change_is_suppressed(patch: Patch) -> None:
    everywhere(patch, "suppressed", lambda emit, changed, pending, firing: ~changed)


def no_pane_is_counted(patch: Patch) -> None:
    after = Emitter.after
    patch.setattr(Emitter, "after", lambda self, rows, fires: after(self, rows, np.zeros_like(fires)))


def retractions_have_the_new_values(patch: Patch) -> None:
    panes = Emitter.panes

    def mutant(self: Any, rows: Any, columns: Any, index: Any, fires: Any, back: Back, *more: Any) -> Any:
        return panes(self, rows, columns, index, fires, back._replace(emitted=columns), *more)

    patch.setattr(Emitter, "panes", mutant)


def nothing_is_retracted(patch: Patch) -> None:
    panes = Emitter.panes

    def mutant(self: Any, rows: Any, columns: Any, index: Any, fires: Any, back: Back, *more: Any) -> Any:
        none = np.zeros(len(fires), dtype=bool)
        return panes(self, rows, columns, index, fires, back._replace(retracts=none), *more)

    patch.setattr(Emitter, "panes", mutant)


# -- timing -----------------------------------------------------------------------------------------------------------


def edges(ended: int, closed: int) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        right = session_logic.edges_at

        def mutant(definition: Any, watermark_us: int) -> Edges:
            there = right(definition, watermark_us)
            return Edges(there.ended + ended, there.closed + closed)

        everywhere(patch, "edges_at", mutant)

    mutate.__name__ = f"windows end {ended} and close {closed} seconds off"
    return mutate


def no_pane_is_the_last(patch: Patch) -> None:
    everywhere(patch, "is_last", lambda definition, ends, timing, edges: np.zeros(len(ends), dtype=bool))


def only_what_is_pending_is_emitted_at_the_end(patch: Patch) -> None:
    everywhere(patch, "fires_at_end", lambda emit, pending: pending)


# -- timers -----------------------------------------------------------------------------------------------------------


def no_delay_is_over(patch: Patch) -> None:
    patch.setattr(Due, "passed", lambda self, kv, now_us: set())


def no_session_ends(patch: Patch) -> None:
    patch.setattr(SessionTimers, "set_ends", lambda self, *what: None)


def no_delay_of_a_session_is_over(patch: Patch) -> None:
    patch.setattr(SessionTimers, "overdue", lambda self, kv, moment: np.zeros(0, dtype=np.uint64))


def no_session_waits(patch: Patch) -> None:
    patch.setattr(SessionTimers, "set_pending", lambda self, *what, **more: None)


def no_session_fires_as_it_closes(patch: Patch) -> None:
    fires = SessionTimers.set_fires

    def mutant(self: Any, kv: Any, rows: Any, homes: Any, closed_us: int, *more: Any, **options: Any) -> None:
        fires(self, kv, rows, homes, 1 << 62, *more, **options)

    patch.setattr(SessionTimers, "set_fires", mutant)


S = 1_000_000
#: Each with a job, and the first seed that found it when that was last looked up: the search begins there.
MUTANTS: list[tuple[Callable[[Patch], None], Any, int]] = [
    (no_pane_is_suppressed, windows(CHANGED), 0),
    (retractions_have_the_new_values, windows(BACK), 1),
    (edges(S, S), windows(BACK), 2),
    (no_session_ends, sessions(BACK), 0),
    (no_delay_is_over, windows(DELAYED), 0),
]
#: More of them: the same parts in other windows.
OTHERS: list[tuple[Callable[[Patch], None], Any, int]] = [
    (no_pane_is_suppressed, sessions(CHANGED), 0),
    (no_pane_is_suppressed, windows(BACK), 6),
    (every_pane_without_a_change_is_suppressed, windows(BACK), 0),
    (no_pane_is_counted, windows(BACK), 0),
    (no_pane_is_counted, sessions(BACK), 0),
    (nothing_is_retracted, windows(BACK), 0),
    (edges(-S, 0), sessions(CLOSING), 0),
    (edges(0, -S), sessions(CLOSING), 5),
    (edges(0, S), windows(CLOSING), 5),
    (no_pane_is_the_last, windows(CLOSING), 0),
    (no_pane_is_the_last, sessions(CLOSING), 0),
    (only_what_is_pending_is_emitted_at_the_end, sessions(BACK), 0),
    (no_delay_of_a_session_is_over, sessions(DELAYED), 0),
    (no_session_waits, sessions(DELAYED), 0),
    (no_session_fires_as_it_closes, sessions(CLOSING), 0),
]
CHOSEN = MUTANTS + OTHERS * DEEP


@pytest.mark.parametrize(
    ("mutate", "definition", "first"),
    CHOSEN,
    ids=[f"{mutate.__name__} {definition.window}".replace("_", " ") for mutate, definition, _ in CHOSEN],
)
def test_broken_emission_is_found(
    mutate: Callable[[Patch], None], definition: Any, first: int, monkeypatch: Patch
) -> None:
    assert play(0, job=of(definition), outlet=None, faults=()).failure is None
    mutate(monkeypatch)
    found_by(play(seed, job=of(definition)) for seed in range(first, first + SEEDS))
