"""The simulator finds what is wrong in operators, too: what forgets, doubles or overlooks something fails in a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.simulation.test_mutants import found_by
from windrow.checkpoint import job as jobs
from windrow.operators.alert.logic import Alerting
from windrow.operators.alert.states import States
from windrow.operators.delivery_stage import Throttle
from windrow.operators.join.sessions import logic as sessions
from windrow.operators.join_window import windows
from windrow.operators.over.anchors.corrections import CorrectedAnchors
from windrow.operators.over.emitted_marks import MarkStore
from windrow.testing.generators import BASE_US, SCHEMA, Draw
from windrow.testing.scenario import ONLY, Feed
from windrow.testing.simulation import play

PAIRS = wr.Join(
    left=wr.Input("orders", event_time="t", watermark="2 seconds"),
    right=wr.Input("parcels", event_time="t", watermark="2 seconds"),
    on="k",
    window=wr.session("2 seconds"),
    how="full",
    retention="30 seconds",
    name="pairs",
)
BOTH = wr.CoGroup(
    inputs=[wr.Input("orders", event_time="t"), wr.Input("parcels", event_time="t")],
    by="k",
    window=wr.tumbling("5 seconds"),
    agg={"n": wr.count(), "orders": wr.sum("v").of("orders")},
    retention="20 seconds",
    name="both",
)
MARKED = wr.Over(
    by="k",
    event_time="t",
    input="orders",
    anchors=wr.Input("parcels", event_time="t"),
    frame=wr.range_between("-5 seconds", "1 second"),
    agg={"near": wr.count(), "total": wr.sum("v")},
    allowed_lateness="20 seconds",
    emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
    name="marked",
)
LISTED = wr.JoinWindow(
    by="k", event_time="t", window=wr.hopping("4 seconds", "2 seconds"), retention="30 seconds", name="listed"
)
HOT = wr.Alert(
    by="k",
    event_time="t",
    input="orders",
    history="parcels",
    frame=4,
    agg={"total": wr.sum("v"), "n": wr.count()},
    when=wr.col("total") > 20,
    until=wr.col("n") > 3,
    actions={"log": wr.Action(repeat=wr.every(1))},
    ttl="20 seconds",
    name="hot",
)
FRESH = wr.Delivery(by="k", event_time="t", policy=wr.deliver.throttle("5 seconds"), name="fresh")


def no_old_pairs(patch: pytest.MonkeyPatch) -> None:
    """A message that joins two sessions brings nobody together but itself."""
    patch.setattr(sessions, "several_parts", lambda changed: np.zeros(len(changed), dtype=bool))


def the_first_input_alone_moves_the_watermark(patch: pytest.MonkeyPatch) -> None:
    due = jobs.watermark_of

    class First:
        def __init__(self, definition: Any) -> None:
            self.inputs = definition.inputs[:1]

    patch.setattr(jobs, "watermark_of", lambda definition, *more: due(First(definition), *more))


def late_messages_correct_no_anchor(patch: pytest.MonkeyPatch) -> None:
    def hold(self: Any, anchors: pa.Table, rows: Any) -> Any:
        return np.zeros(len(anchors), dtype=bool)

    patch.setattr(CorrectedAnchors, "_hold", hold)


def what_was_said_of_anchors_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MarkStore, "put", lambda self, *what: None)


def every_window_emits_its_messages(patch: pytest.MonkeyPatch) -> None:
    """And not the first that takes them alone."""
    patch.setattr(windows, "_first", lambda row_of, starts: np.ones(len(row_of), dtype=bool))


def history_is_not_loaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Alerting, "_load", lambda self, work, rows: rows)


def history_begins_a_key(patch: pytest.MonkeyPatch) -> None:
    """Later history of it is a dead letter."""
    patch.setattr(States, "loading", property(lambda self: np.zeros(len(self), dtype=bool)))


def a_throttle_forgets_what_it_took(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Throttle, "took", lambda self, *what: None)


def a_throttle_never_ends(patch: pytest.MonkeyPatch) -> None:
    """The state has the messages when the interval is over."""
    patch.setattr(Throttle, "forget", lambda self, kv, now_us, *, everything: None)
    patch.setattr(Throttle, "rests", lambda self, kv, keys, now_us: self.last_us(kv, keys) > 0)


Mutate = Callable[[pytest.MonkeyPatch], None]
#: Each with a job whose seeds find it at once.
#: Each with the first seed that found it when that was last looked up: the search begins there.
MUTANTS: list[tuple[Mutate, Any, int]] = [
    (no_old_pairs, PAIRS, 15),
    (the_first_input_alone_moves_the_watermark, BOTH, 1),
    (late_messages_correct_no_anchor, MARKED, 1),
    (what_was_said_of_anchors_is_forgotten, MARKED, 0),
    (every_window_emits_its_messages, LISTED, 0),
    (history_is_not_loaded, HOT, 0),
    (history_begins_a_key, HOT, 1),
    (a_throttle_forgets_what_it_took, FRESH, 1),
    (a_throttle_never_ends, FRESH, 0),
]
SEEDS = 40


def of(definition: Any) -> Callable[[Random], Feed]:
    """Draws messages for this job."""

    def drawn(chance: Random) -> Feed:
        names = [i.name for i in definition.inputs] if definition.by_input else [ONLY]
        arrivals = Draw(chance).messages(names, chance.randint(14, 36))
        return Feed((definition,), dict.fromkeys(names, SCHEMA), arrivals, BASE_US, 1_000_000)

    return drawn


@pytest.mark.parametrize(
    ("mutate", "definition", "first"),
    MUTANTS,
    ids=[mutate.__name__.replace("_", " ") for mutate, *_ in MUTANTS],
)
def test_a_broken_operator_is_found(
    mutate: Mutate, definition: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play(0, job=of(definition), outlet=None, faults=()).failure is None
    mutate(monkeypatch)
    found_by(play(seed, job=of(definition)) for seed in range(first, first + SEEDS))
