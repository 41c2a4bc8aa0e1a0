"""Cost of results before and after the end of a window that holds a million keys, of which few change."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import windrow as wr
from windrow.testing import ManualClock

from .data import FIRST_US, SCHEMA
from .harness import Context, Row, cost, median, scratch

MANY, FEW, CHANGED, LATE = 1_000_000, 1_000, 100, 1_440
COMMITS, TICKS = 40, 12
DEARER_MOST = 1.3
TICK_MOST_MS = 20
DAY_US = 86_400_000_000
BEGIN_US = FIRST_US // DAY_US * DAY_US


def update(context: Context) -> list[Row]:
    """CPU milliseconds of a commit of 100 rows, of a tick that tells 100 keys, and of one that tells 1,440 late ones."""
    many = MANY // (50 if context.quick else 1)
    measures: list[Row] = []
    for name, emit in (
        ("Emit.update()", wr.Emit.update()),
        ("every(50)", wr.Emit(early=wr.every(50))),
        ("only_if_changed", wr.Emit(early=wr.every_batch, only_if_changed=True)),
    ):
        sides = {
            f"{keys:,} keys": lambda keys=keys, emit=emit: median(_commits(keys, emit))
            for keys in (many, FEW)
        }
        samples = context.interleave(sides)
        ours, other = (median(samples[side]) for side in sides)
        measures.append(
            cost(
                f"update: commit of {CHANGED} rows, {name}, {many:,} keys in the window",
                "ms CPU",
                ours,
                other,
                f"{FEW:,} keys",
                required=1 / DEARER_MOST,
                samples=samples,
            )
        )
    for name, ticks, most in (
        (f"update: a tick of {CHANGED} changed keys among {many:,}", _ticks, TICK_MOST_MS),
        (
            f"update: {LATE:,} late rows of as many keys, emitted by a tick, of a window of {many:,}",
            _late,
            None,
        ),
    ):
        measures.append(_alone(context, name, lambda ticks=ticks: median(ticks(many)), most))
    return measures


def _alone(context: Context, name: str, run: Callable[[], float], most: float | None) -> Row:
    samples = context.interleave({"windrow": run})
    ours = median(samples["windrow"])
    bound = "" if most is None else f"required <= {most} ms"
    return Row(
        name, "ms CPU", ours, bound=bound, meets=None if most is None else ours <= most, samples=samples
    )


@contextmanager
def _opened(keys: int, emit: wr.Emit) -> Iterator[tuple[Any, ManualClock]]:
    """A job with all keys in one window, all emitted."""
    aggregate = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 day"),
        agg={"n": wr.count(), "s": wr.sum("v"), "hi": wr.max("v")},
        retention="10 days",
        emit=emit,
    )
    clock = ManualClock(BEGIN_US)
    with scratch() as folder, aggregate.open(folder, clock=clock) as operator:
        _commit(operator, _rows(np.arange(keys)))
        clock.advance("10 seconds")
        operator.timeout()
        operator.flush()
        yield operator, clock


def _rows(keys: Any) -> pa.Table:
    names = pa.array([f"key-{key:07d}" for key in keys.tolist()])
    times = pa.array(np.full(len(keys), BEGIN_US)).cast(SCHEMA.field("t").type)
    return pa.table([times, names, pa.array(keys)], schema=SCHEMA)


def _chosen(keys: int, n: int) -> Iterator[pa.Table]:
    chance = np.random.default_rng(keys)
    while True:
        yield _rows(chance.choice(keys, n, replace=False))


def _measured(act: Callable[[], None]) -> float:
    begin = time.process_time()
    act()
    return 1_000 * (time.process_time() - begin)


def _commit(operator: Any, table: pa.Table) -> None:
    operator.add_messages(table)
    operator.timeout()


def _commits(keys: int, emit: wr.Emit) -> list[float]:
    with _opened(keys, emit) as (operator, _):
        gc.collect()
        tables = _chosen(keys, CHANGED)
        return [_measured(partial(_commit, operator, next(tables))) for _ in range(COMMITS)]


def _ticks(keys: int) -> list[float]:
    with _opened(keys, wr.Emit(early=wr.every("10 seconds"))) as (operator, clock):
        return _seconds_of_steps(operator, clock, _chosen(keys, CHANGED))


def _late(keys: int) -> list[float]:
    with _opened(keys, wr.Emit()) as (operator, clock):
        operator.advance_watermark(BEGIN_US + DAY_US)
        operator.timeout()
        operator.flush()
        return _seconds_of_steps(operator, clock, _chosen(keys, LATE))


def _seconds_of_steps(operator: Any, clock: ManualClock, tables: Iterator[pa.Table]) -> list[float]:
    measures = []
    gc.collect()
    for _ in range(TICKS):
        table = next(tables)
        _commit(operator, table)
        clock.advance("10 seconds")
        measures.append(_measured(operator.timeout))
        count = len(operator.result_table())
        operator.flush()
        assert count == len(table), f"{count} keys were emitted, {len(table)} changed"
    return measures
