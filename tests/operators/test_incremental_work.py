"""Firing in slices tells what firing at once tells, bit for bit, however small the slices are, and wherever a process dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples, usually
from tests.operators.aggregate.cases import FULL, INCREMENTAL, OPERATOR, longest
from tests.operators.contract import PUBLISHED, S, life
from tests.operators.test_contract import DEATHS, actions
from windrow.checkpoint import shard
from windrow.operators.aggregate import pane_order
from windrow.operators.steps.step import StepResult
from windrow.operators.view import Query
from windrow.stores import page_store, segment
from windrow.stores.kv import MemoryKV
from windrow.testing import CommitPoint

KEYS, WHOLE = 16, 1 << 40
SIZES = [1, 3_000]


@contextmanager
def sliced(most: int) -> Iterator[None]:
    """Firing in slices of so many bytes, and what they change is written in parts as small."""
    with (
        mock.patch.object(pane_order, "SLICE_BYTES", most),
        mock.patch.object(segment, "PART_BYTES", most),
        mock.patch.object(shard, "PART_BYTES", most),
        mock.patch.object(page_store, "RUN_BYTES", most),
    ):
        yield


# -- as at once -----------------------------------------------------------------------------------------------------


DEFINITIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "nothing is kept": {"retention": "0 seconds", "emit": wr.Emit(drop_late=True)},
    "retracting": {"emit": wr.Emit(early=wr.every(2), late=wr.every_batch, mode="retracting")},
    "discarding": {"emit": wr.Emit(early=wr.every("7 seconds"), late=wr.every_batch, mode="discarding")},
    "only what changed": {"emit": wr.Emit(early=wr.every_batch, only_if_changed=True)},
    "closing": {"emit": wr.Emit(late=wr.every(3), closing_pane=True), "retention": "20 seconds"},
    "closing, not on time": {
        "emit": wr.Emit(on_time=False, late=wr.every_batch, closing_pane=True),
        "retention": "20 seconds",
    },
    "hopping": {"window": wr.hopping("10 seconds", "5 seconds")},
    "two keys": {"by": ("k", "f")},
    "numbers, and none": {"by": "f"},
    "full": {"agg": {"median": FULL["median"], "user": longest("v")}},
    "limits": {"retention": wr.Retain("1 minute", windows=2)},
}
#: The sums of floats depend on the order in which they are made; some aggregations have nested or wide accumulators.
AGG = {n: INCREMENTAL[n] for n in ("sumx", "var", "list", "by", "last")}


def definition(changes: dict[str, Any]) -> wr.Aggregate:
    return wr.Aggregate(
        **{
            "by": "k",
            "event_time": "t",
            "window": wr.tumbling("10 seconds"),
            "agg": AGG,
            "retention": "1 minute",
            "watermark": wr.explicit(),
            **changes,
        }
    )


def some(random: np.random.Generator, low: int, high: int, n: int = 45, keys_of: int = KEYS) -> pa.Table:
    keys = random.integers(0, keys_of, n)
    return pa.table(
        {
            "t": pa.array(random.integers(low * S, high * S, n), pa.timestamp("us", "UTC")),
            "k": [None if k == 7 else f"key-{k}" * (1 + k % 3) for k in keys.tolist()],
            "f": [None if k == 3 else [0.0, -0.0, float("nan"), k / 4][k % 4] for k in keys.tolist()],
            "g": pa.array(keys),
            "x": random.normal(size=n),
            "v": pa.array(random.integers(-5, 50, n)),
        }
    )


def played(changes: dict[str, Any], most: int, seed: int) -> tuple[list[str], list[str]]:
    """Return the rows of a job, step by step, and the state between the steps."""
    random, one = np.random.default_rng(seed), definition(changes)
    logic, said, kept = one.logic(), list[str](), list[str]()
    kv = MemoryKV(logic.cfs())
    with sliced(most):
        for n, watermark in enumerate([0, 6, 21, 24, 38, 90, 200]):
            steps = []
            if n < 5:
                low = max(0, watermark - 15)
                steps.append(
                    logic.ingest(kv, {one.inputs[0].name: some(random, low, watermark + 15)}, n * 5 * S)
                )
            steps.append(logic.advance(kv, watermark * S, n * 5 * S))
            said += [line for step in steps for line in plain(logic, step, n)]
            kept += map(repr, logic.view([kv], watermark * S).windows(Query()))
    assert len(said) > KEYS and (len(kept) > KEYS or not one.retention.time_us)
    return said, kept


def plain(logic: Any, step: StepResult, commit: int) -> list[str]:
    letters = [] if step.dead is None else sorted(map(repr, step.dead.to_pylist()))
    rows = logic.rows(step.panes, commit) if step.panes else pa.table({})
    return ["step", *map(repr, rows.to_pylist()), *letters]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_job_emits_in_slices_what_it_emits_at_once(name: str) -> None:
    changes, place = DEFINITIONS[name], list(DEFINITIONS).index(name)
    wanted = played(changes, WHOLE, seed=3)
    turn = [SIZES[place % 2]]
    for most in usually(turn, deep=SIZES):
        assert played(changes, most, seed=3) == wanted


def test_a_window_of_many_keys_is_never_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = definition({"agg": {"n": wr.count()}})
    logic = one.logic()
    kv = MemoryKV(logic.cfs())
    random, fired = np.random.default_rng(1), list[int]()
    original = logic._fire

    def noted(work: Any, rows: pa.Table, *more: Any, **how: Any) -> Any:
        fired.append(len(rows))
        return original(work, rows, *more, **how)

    monkeypatch.setattr(logic, "_fire", noted)
    with sliced(500):
        for _ in range(3):
            logic.ingest(kv, {one.inputs[0].name: some(random, 0, 10, 70, 25)}, 0)
        [panes] = logic.advance(kv, 10 * S, 0).panes
    assert len(panes) == sum(fired) > 20 and max(fired) < 12, fired
    assert panes.column("k").to_pylist() == sorted(
        panes.column("k").to_pylist(), key=lambda k: (k is not None, k)
    )


# -- whatever happens to a job --------------------------------------------------------------------------------------


@given(data=st.data())
@examples(7, deep=3_000)
def test_a_job_that_fires_in_slices_emits_what_its_oracle_says_cut_killed_and_robbed(
    data: st.DataObject,
) -> None:
    case = data.draw(OPERATOR.cases)
    with sliced(data.draw(st.sampled_from([1, 300]))), life(case, with_sink=data.draw(st.booleans())) as job:
        for kind, value in data.draw(actions(case)):
            job.act(kind, value)
        job.check()
        job.driver.drain()
        job.die(data.draw(st.sampled_from(DEATHS)), 3)
        job.driver.drain()
        job.check()


# -- between the parts of a commit ----------------------------------------------------------------------------------


class Dies(Exception):
    """The process is killed."""


@contextmanager
def dying(op: Any, after: int) -> Iterator[list[int]]:
    """The process dies when its store has been written so often; what was written stays. Gives the sizes of what was."""
    kv, written = op.engine.shard.kv, list[int]()
    original = kv.write

    def write(batch: Any) -> None:
        if len(written) == after:
            raise Dies
        original(batch)
        kv.flush()
        written.append(len(batch))

    with mock.patch.object(kv, "write", write), suppress(Dies):
        yield written
    op.abandon()


def said(op: Any) -> tuple[list[str], list[str]]:
    return [repr(replace(p, token=None)) for p in op.get_result()], list(map(repr, op.get_windows()))


def test_a_job_that_dies_between_two_parts_of_a_commit_continues_as_if_it_had_not(tmp_path: Path) -> None:
    one = definition({"agg": {"n": wr.count(), "sum": wr.sum("v")}})
    rows = some(np.random.default_rng(5), 0, 10)

    def fired(place: str) -> Any:
        op = one.open(place)
        op.add_messages(rows)
        op.timeout()
        op.advance_watermark(10 * S)
        return op

    with fired(str(tmp_path / "whole")) as op:
        wanted = said(op)
    parts, died = 0, True
    while died:
        place = str(tmp_path / f"dies-{parts}")
        with sliced(1_000):
            op = fired(place)
            with dying(op, parts) as written:
                op.next_offsets()
        died = len(written) == parts
        with wr.read_state(place) as state:
            assert list(map(repr, state.get_windows())) == wanted[1]
        with wr.read_state(place, as_of=1) as state:  # not what the store holds by half
            assert {(w.fired, w.panes) for w in state.get_windows()} == {(False, 0)}
        with one.open(place) as op:
            assert said(op) == wanted
        parts += 1
    assert parts > 3


def test_every_point_of_a_commit_is_tried() -> None:
    assert {*DEATHS} == {None, PUBLISHED, *CommitPoint}
