"""Temporal rules beside our own joins, and beside Esper and Drools, which keep everything in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

from . import cep
from .flink import lacking
from .harness import Context, Row, fresh, median, rate, scratch
from .rule_states import rule_states

ORDERS, COMMIT, SMALL, AMOUNTS = 100_000, 20_000, 1_000, 1_000
ESPER, DROOLS, JOIN = "Esper 9.0, in memory", "Drools 10.1, in memory", "our wr.Join"
FLINK = "Flink CEP 2.2, RocksDB, checkpoints each second"
#: An order's amounts from, up to and without; and whether its acknowledgement is absent.
Rules = Sequence[tuple[int, int, bool]]


def rules(context: Context) -> list[Row]:
    """Messages a second of processor time. Each sample is of a process that has done the same before."""
    n = ORDERS // (10 if context.quick else 1)
    engines = {ESPER: 3.0, DROOLS: 5.0}
    if absent := lacking():
        context.bar.write(f"rules run without Esper and Drools: {', '.join(absent)} cannot be found")
        engines = {}
    one: dict[str, Rules] = {"pairs": [(0, AMOUNTS, False)], "absences": [(0, AMOUNTS, True)]}
    measures = []
    for name, written in one.items():
        flink = {FLINK: 10.0} if engines else {}
        measures += _compared(
            context, f"rules: one rule, {name}", written, n, {JOIN: 0.7, **engines, **flink}
        )
        samples = context.interleave({"windrow": partial(fresh, _windrow, written, n // 3, SMALL)})
        small = median(samples["windrow"])
        what = f"rules: one rule, {name}, commits of {SMALL:,}"
        measures.append(
            Row(what, "messages/s", small, bound="required >= 50,000", meets=small >= 50_000, samples=samples)
        )
    for k, least, size in ((20, 100_000, n // 4), (100, 25_000, n // 10)):
        written = [(i // 4, AMOUNTS, False) for i in range(k)]
        most = {name: 10.0 for name in engines}
        measures += _compared(context, f"rules: {k} rules over nearly all orders", written, size, most, least)
    written = [(i * 10, i * 10 + 10, False) for i in range(100)]
    most = {ESPER: 2.0} if engines else {}
    measures += _compared(context, "rules: 100 rules, each its share", written, n, most, 300_000)
    return [*measures, *rule_states(context)]


def _compared(
    context: Context, what: str, written: Rules, n: int, others: dict[str, float], least: int | None = None
) -> Iterator[Row]:
    """One workload of all sides; the matches of each are compared first."""
    runs = {"windrow": partial(fresh, _windrow, written, n, COMMIT)}
    for side in others:
        run = _join if side == JOIN else partial(_foreign, side)
        runs[side] = partial(fresh, run, written, n)
    samples = context.interleave(runs)
    ours = median(samples["windrow"])
    if least is not None:
        bound = f"required >= {least:,}"
        yield Row(what, "messages/s", ours, bound=bound, meets=ours >= least, samples=samples)
    for side, required in others.items():
        other = median(samples[side])
        yield rate(
            f"{what}, beside {side}", "messages/s", ours, other, side, required=required, samples=samples
        )


# -- events -----------------------------------------------------------------------------------------------------------


def _events(n: int) -> cep.Longs:
    """Orders, one a millisecond, and after one to nine seconds the acknowledgements of nine of ten: kind, id, at, amount."""
    rng, at = np.random.default_rng(7), np.arange(n)
    amounts, acked = rng.integers(0, AMOUNTS, n), rng.random(n) < 0.9
    acks = np.stack([np.ones(n, dtype=np.int64), at, at + rng.integers(1_000, 9_000, n), amounts])[:, acked]
    both = np.concatenate([np.stack([np.zeros(n, dtype=np.int64), at, at, amounts]), acks], axis=1)
    return both[:, np.lexsort((both[0], both[2]))].T.astype(np.int64)


def _expected(written: Rules, n: int) -> set[tuple[int, int]]:
    events = _events(n)
    orders = events[events[:, 0] == 0]
    acked = np.isin(orders[:, 1], events[events[:, 0] == 1][:, 1])
    matches = set()
    for i, (low, high, absent) in enumerate(written):
        taken = (orders[:, 3] >= low) & (orders[:, 3] < high) & (acked != absent)
        matches |= {(i, row) for row in orders[taken, 1].tolist()}
    return matches


def _tables(n: int, commit: int) -> list[dict[str, pa.Table]]:
    events = _events(n)
    return [_table(events[first : first + commit]) for first in range(0, len(events), commit)]


def _table(events: cep.Longs) -> dict[str, pa.Table]:
    tables = {}
    for kind, name in enumerate(("orders", "acks")):
        rows = events[events[:, 0] == kind]
        at = pa.array(1_000 * rows[:, 2]).cast(pa.timestamp("us", "UTC"))
        tables[name] = pa.table({"id": rows[:, 1], "at": at, "amount": rows[:, 3]})
    return tables


# -- sides ------------------------------------------------------------------------------------------------------------


def _definition(written: Rules) -> wr.Rules:
    ten = wr.after("o", 0, "10 seconds")
    made = {}
    for i, (low, high, absent) in enumerate(written):
        where = (wr.col("amount") >= low) & (wr.col("amount") < high)
        other = wr.absent("acks", time=ten) if absent else wr.event("acks", time=ten)
        made[str(i)] = wr.Rule(
            when={"o": wr.event("orders", where=where), "a": other}, then={"amount": wr.col("o.amount")}
        )
    inputs = [wr.Input(name, event_time="at") for name in ("orders", "acks")]
    return wr.Rules(by="id", inputs=inputs, rules=made)


def _windrow(written: Rules, n: int, commit: int) -> float:
    tables = _tables(n, commit)
    _seconds(_definition(written), tables)
    with scratch() as out:
        seconds = _seconds(_definition(written), tables, out)
        rows = pq.read_table(out, columns=["rule", "id"])
    _check(
        "windrow", zip(map(int, rows["rule"].to_pylist()), rows["id"].to_pylist(), strict=True), written, n
    )
    return sum(len(t) for step in tables for t in step.values()) / seconds


def _join(written: Rules, n: int) -> float:
    tables = _tables(n, COMMIT)
    left, right = (wr.Input(name, event_time="at") for name in ("orders", "acks"))
    [(_, _, absent)] = written
    join = wr.Join(
        left=left, right=right, on="id", within=("0 seconds", "10 seconds"), how="anti" if absent else "inner"
    )
    _seconds(join, tables)
    return sum(len(t) for step in tables for t in step.values()) / _seconds(join, tables)


def _seconds(definition: Any, tables: Sequence[dict[str, pa.Table]], out: str | None = None) -> float:
    """Seconds of processor time; each step is a commit, and its rows are with the sink."""
    with scratch() as folder:
        sink = wr.sinks.parquet(out or f"{folder}/out")
        with definition.open(f"{folder}/windrow", sink=sink) as operator:
            began = time.process_time()
            for step in tables:
                operator.add_messages(step)
                operator.next_offsets()
            operator.drain()
            return time.process_time() - began


def _foreign(side: str, written: Rules, n: int) -> float:
    events = _events(n)
    if side == ESPER:
        seconds, matches = cep.run("Esper", events, cep.esper(written))
    elif side == FLINK:
        seconds, matches = cep.run(cep.FLINK, events, "absences" if written[0][2] else "pairs")
    else:
        seconds, matches = cep.run("Drools", events, cep.drools(written))
    _check(side, map(tuple, matches.tolist()), written, n)
    return len(events) / seconds


def _check(side: str, matches: Any, written: Rules, n: int) -> None:
    """Raise unless a side found the right matches, each once."""
    matched = list(matches)
    wanted = _expected(written, n)
    assert len(matched) == len(wanted) and set(matched) == wanted, (
        f"{side} found {len(matched):,} matches, {len(set(matched) & wanted):,} of {len(wanted):,}"
    )
