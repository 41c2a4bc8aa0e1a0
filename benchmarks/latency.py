"""Duration of a commit of 100 rows, beside Spark's own stateful operator: the price of durability for a stream."""

from __future__ import annotations

from .data import stream
from .harness import Context, Row, cost, median, scratch
from .sparks import PROVIDERS, TUMBLING, WINDROW, run_query

ROWS = 100
COLD_BATCHES = 5


def latency(context: Context) -> list[Row]:
    """Median `triggerExecution` of a warm batch of 100 rows."""
    path = stream(ROWS * (15 if context.quick else 45), ROWS)
    sides = [WINDROW, *PROVIDERS]

    def run(side: str) -> float:
        with scratch() as folder:
            batches = run_query(side, TUMBLING, path, 1, folder)
        return median([float(b.trigger_ms) for b in batches[COLD_BATCHES:]])

    samples = context.interleave({s: lambda s=s: run(s) for s in sides})
    return [
        cost(
            f"latency: commit of {ROWS} rows, beside {side}",
            "ms",
            median(samples[WINDROW]),
            median(samples[side]),
            side,
            aim=1.0,
            samples={s: samples[s] for s in (WINDROW, side)},
        )
        for side in PROVIDERS
    ]
