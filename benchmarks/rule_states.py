"""Temporal rules over much state: the sliding mean of many keys, tuples that wait, a long retention, a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

from .cep import SETTINGS, run
from .flink import lacking
from .harness import Context, Row, cost, fresh, median, rate, scratch

ROWS, COMMIT, KEYS, WINDOW_MS, HIGH = 300_000, 20_000, 1_000, 10_000, 85.0
PENDING, ADVANCES, SMALL, TIMED = 1_000_000, 15, 1_000, 40
ESPER = f"Esper 9, #time, {' '.join(SETTINGS)}"
FRAME = wr.range_between("-10 seconds", 0, closed="right")
Longs = npt.NDArray[np.int64]


def rule_states(context: Context) -> list[Row]:
    """Rows of `rules`. Processor time; each sample is of a process of its own."""
    part = 10 if context.quick else 1
    return [*_means(context, ROWS // part), *_pending(context, PENDING // part), *_retention(context)]


# -- the mean ---------------------------------------------------------------------------------------------------------


def _means(context: Context, n: int) -> Iterator[Row]:
    sides = {"windrow": partial(fresh, _rule, n), "wr.Over": partial(fresh, _over, n)}
    if not lacking():
        sides[ESPER] = partial(fresh, _esper, n)
    samples = context.interleave(sides)
    what, ours = f"rules: mean of ten seconds over a threshold, {KEYS:,} keys", median(samples["windrow"])
    for side, required in (("wr.Over", 0.8), (ESPER, 2.0)):
        if side in samples:
            yield rate(
                f"{what}, beside {side}",
                "messages/s",
                ours,
                median(samples[side]),
                side,
                required=required,
                samples=samples,
            )


def _readings(n: int) -> tuple[Longs, Longs, Longs]:
    """Return keys, milliseconds and values of readings, one a millisecond."""
    random, at = np.random.default_rng(1), np.arange(n)
    values = 77 + 12 * np.sin(at / 20_000) + random.normal(0, 3, n)
    return random.integers(0, KEYS, n), at, values.astype(np.int64)


def _table(n: int) -> list[pa.Table]:
    keys, at, values = _readings(n)
    times = pa.array(1_000 * at).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"k": keys, "t": times, "x": values})
    return [table.slice(first, COMMIT) for first in range(0, n, COMMIT)]


def _above(n: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return (key, millisecond) of the evaluations with a mean above the threshold: of all, and of those that changed it."""
    keys, at, values = _readings(n)
    above, changed = set[tuple[int, int]](), set[tuple[int, int]]()
    for key in range(KEYS):
        own = keys == key
        times, sums = at[own], np.concatenate([[0], np.cumsum(values[own])])
        moments = np.unique(np.concatenate([times, times + WINDOW_MS]))

        def mean(side: Any, times: Longs = times, sums: Longs = sums, moments: Longs = moments) -> Any:
            low, high = (np.searchsorted(times, m, side) for m in (moments - WINDOW_MS, moments))
            with np.errstate(invalid="ignore", divide="ignore"):
                return (sums[high] - sums[low]) / (high - low)

        now, before = mean("right"), mean("left")
        above |= {(key, int(m)) for m in moments[now > HIGH]}
        changed |= {(key, int(m)) for m in moments[(now > HIGH) & ~(now == before)]}
    return above, changed


def _rule(n: int) -> float:
    means = wr.accumulate("readings", frame=FRAME, agg={"mean": wr.avg("x")}, having=wr.col("mean") > HIGH)
    rules = wr.Rules(
        by="k",
        inputs=[wr.Input("readings", event_time="t")],
        rules={"high": wr.Rule(when={"r": means}, then={"mean": wr.col("r.mean")})},
    )
    speed, rows = _run(rules, [{"readings": table} for table in _table(n)])
    times = rows["match_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    changes = list(zip(rows["k"].to_pylist(), times, strict=True))
    _check("windrow", changes, _above(n)[1])
    return speed


def _over(n: int) -> float:
    return _run(wr.Over(by="k", event_time="t", frame=FRAME, agg={"mean": wr.avg("x")}), _table(n))[0]


def _esper(n: int) -> float:
    keys, at, values = _readings(n)
    events = np.column_stack([np.zeros(n, dtype=np.int64), keys, at, values])
    seconds, matches = run("Means", events, f"{WINDOW_MS // 1_000} {HIGH}")
    last = {(key, moment >> 1): moment & 1 for moment, key in matches.tolist()}
    # Behind the last reading time comes in one leap.
    changes = [one for one, is_above in last.items() if is_above and one[1] < n]
    _check(ESPER, changes, {one for one in _above(n)[0] if one[1] < n})
    return n / seconds


def _check(side: str, changes: list[tuple[int, int]], wanted: set[tuple[int, int]]) -> None:
    """Raise unless a side found the right moments, each once."""
    assert len(changes) == len(wanted) and set(changes) == wanted, (
        f"{side} found {len(changes):,} moments, {len(set(changes) & wanted):,} of {len(wanted):,}"
    )


def _run(definition: Any, steps: list[Any]) -> tuple[float, pa.Table]:
    """Return messages a second, and the rows."""
    with scratch() as folder:
        with definition.open(f"{folder}/job", sink=wr.sinks.parquet(f"{folder}/out")) as operator:
            began = time.process_time()
            for step in steps:
                operator.add_messages(step)
                operator.next_offsets()
            operator.drain()
            spent = time.process_time() - began
        rows = pq.read_table(f"{folder}/out")
    count = sum(len(t) for step in steps for t in (step.values() if isinstance(step, dict) else [step]))
    return count / spent, rows


# -- what waits, and what is kept -----------------------------------------------------------------------------------


def _absence(within: str) -> wr.Rules:
    none = wr.absent("acks", time=wr.after("o", 0, within))
    return wr.Rules(
        by="id",
        inputs=[wr.Input(name, event_time="at") for name in ("orders", "acks")],
        rules={"no": wr.Rule(when={"o": wr.event("orders"), "no": none}, then={})},
    )


def _orders(first: int, n: int, step_us: int) -> pa.Table:
    ids = np.arange(first, first + n)
    return pa.table({"id": ids, "at": pa.array(ids * step_us).cast(pa.timestamp("us", "UTC"))})


def _pending(context: Context, many: int) -> Iterator[Row]:
    """Milliseconds of a commit of two messages, whose advance finds none due, and seconds of opening the job again."""
    for what, once, unit, most in (
        ("an advance, none due", _advance, "ms", 20.0),
        ("the job opened again", _restart, "s", 2.0),
    ):
        samples = context.interleave({"windrow": partial(fresh, once, many)})
        took = median(samples["windrow"])
        name, bound = f"rules: {what}, {many:,} tuples wait", f"required <= {most:g} {unit}"
        yield Row(name, unit, took, bound=bound, meets=took <= most, samples=samples)


def _fill(operator: Any, many: int) -> None:
    for first in range(0, many, 50_000):
        operator.add_messages({"orders": _orders(first, min(50_000, many - first), 1)})
        operator.next_offsets()
    operator.add_messages({"acks": _orders(many, 1, 1)})


def _advance(many: int) -> float:
    took = list[float]()
    with scratch() as folder, _absence("1 day").open(f"{folder}/job", sink=lambda *_: None) as operator:
        _fill(operator, many)
        for i in range(1, ADVANCES):
            both = {
                n: _orders(many + 1_000 * i, 1, 1) for n in ("orders", "acks")
            }  # so that the watermark moves
            began = time.process_time()
            operator.add_messages(both)
            operator.next_offsets()
            took.append(1_000 * (time.process_time() - began))
    return median(took)


def _restart(many: int) -> float:
    with scratch() as folder:
        with _absence("1 day").open(f"{folder}/job", sink=lambda *_: None) as operator:
            _fill(operator, many)
            operator.next_offsets()
        began = time.process_time()
        with _absence("1 day").open(f"{folder}/job", sink=lambda *_: None):
            return time.process_time() - began


def _retention(context: Context) -> Iterator[Row]:
    """Microseconds of a message, in commits of a thousand, with a bound of ten seconds and of a hundred."""
    sides = {within: partial(fresh, _each, within) for within in ("100 seconds", "10 seconds")}
    samples = context.interleave(sides)
    long, short = (median(samples[within]) for within in sides)
    name = "rules: a message of an absence within 100 seconds"
    yield cost(name, "us", long, short, "within 10 seconds", required=1 / 1.5, samples=samples)


def _each(within: str) -> float:
    """Return the cost of a message when as many are kept as the bound asks for: an order and its ack a millisecond."""
    took, kept = list[float](), 1_000 * int(within.split()[0])
    warm = [kept // 8] * 12
    with scratch() as folder, _absence(within).open(f"{folder}/job", sink=lambda *_: None) as operator:
        first = 0
        for i, size in enumerate([*warm, *[SMALL // 2] * TIMED]):
            step = {name: _orders(first, size, 1_000) for name in ("orders", "acks")}
            first += size
            began = time.process_time()
            operator.add_messages(step)
            operator.next_offsets()
            if i >= len(warm):
                took.append(time.process_time() - began)
    return 1e6 * median(took) / SMALL
