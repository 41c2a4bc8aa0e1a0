"""Messages added one by one: how many a second of CPU time are taken, durable, under each trigger; beside Quix Streams, which
tells a result at every message, and Bytewax.

All take the same messages, and commit 1,000 at a time, on the same disk, without a broker.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow as wr

from . import foreign
from .data import rows
from .harness import Context, Row, median, rate, scratch

MESSAGES = 60_000
QUIX, BYTEWAX = "Quix Streams", "Bytewax"
PACKAGES = {QUIX: "quixstreams==3.28.1", BYTEWAX: "bytewax==0.21.1"}
SCRIPTS = {QUIX: "quix_ones.py", BYTEWAX: "bytewax_ones.py"}
#: Messages a second of CPU time that each trigger has to take.
LEAST = {
    "default": None,
    "every(50)": 20_000,
    "tuples(100)": 20_000,
    "ids": 20_000,
    "every 10 seconds": 20_000,
    "every_batch": 10_000,
    "Emit.update()": 10_000,
    "any_of": 20_000,
    "after": 20_000,
    "when": 10_000,
}


def aggregate(side: str) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 minutes"),
        "agg": {"n": wr.count(), "s": wr.sum("v")},
        "watermark": "10 seconds",
        "retention": "1 hour",
    }
    more: dict[str, dict[str, Any]] = {
        "every(50)": {"emit": wr.Emit(early=wr.every(50))},
        "tuples(100)": {"window": wr.tuples(100), "retention": wr.forever},
        "ids": {"ids": wr.ids("id")},
        "every 10 seconds": {"emit": wr.Emit(early=wr.every("10 seconds"))},
        "every_batch": {"emit": wr.Emit(early=wr.every_batch)},
        "Emit.update()": {"emit": wr.Emit.update()},
        "any_of": {"emit": wr.Emit(early=wr.any_of(wr.every(50), wr.every("10 seconds")))},
        "after": {"emit": wr.Emit(early=wr.delay("10 seconds"))},
        "when": {"emit": wr.Emit(early=wr.when(wr.col("n") >= 50))},
    }
    return wr.Aggregate(**(settings | more.get(side, {})))


def one_by_one(context: Context) -> list[Row]:
    """Messages a second of CPU time, each trigger beside the others."""
    n = MESSAGES // (6 if context.quick else 1)
    messages = _messages(n)
    sides: dict[str, Any] = {side: lambda side=side: _windrow(side, messages) for side in LEAST}
    sides |= {other: lambda other=other: _other(other, messages) for other in PACKAGES}
    samples = context.interleave(sides)
    measures = []
    for side, least in LEAST.items():
        ours = median(samples[side])
        for other in PACKAGES:
            row = rate(
                f"one by one: {side}, beside {other}",
                "messages/CPU s",
                ours,
                median(samples[other]),
                other,
                samples={s: samples[s] for s in (side, other)},
            )
            measures.append(row)
        if least is not None:
            bound, meets = f"required >= {least:,}", ours >= least
            measures.append(
                Row(
                    f"one by one: {side}",
                    "messages/CPU s",
                    ours,
                    bound=bound,
                    meets=meets,
                    samples={side: samples[side]},
                )
            )
    return measures


def _messages(n: int) -> list[dict[str, Any]]:
    table = rows(0, n)
    times = table.column("t").cast(pa.int64()).to_pylist()
    columns = zip(times, table.column("k").to_pylist(), table.column("v").to_pylist(), strict=True)
    return [{"t": t, "k": k, "v": v, "id": i} for i, (t, k, v) in enumerate(columns)]


def _windrow(side: str, messages: list[dict[str, Any]]) -> float:
    with scratch() as folder, aggregate(side).open(folder) as operator:
        begin = time.process_time()
        for message in messages:
            operator.add_message(message)
        operator.flush()
        return len(messages) / (time.process_time() - begin)


def _other(name: str, messages: list[dict[str, Any]]) -> float:
    text = json.dumps([[m["t"] // 1000, m["k"], m["v"]] for m in messages])
    script = Path(__file__).with_name(SCRIPTS[name])
    with scratch() as folder:
        run = subprocess.run(
            [foreign.python(PACKAGES[name]), str(script), folder],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(json.loads(run.stdout.splitlines()[-1])["rate"])
