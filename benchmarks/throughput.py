"""windrow beside Spark's own window aggregation, on one Parquet stream.

Each run is a new query on new state. Its first two batches are cold: plans are compiled, stores are made. The batches
after them are warm. Before the first round every side runs once unmeasured, so that none pays for a JVM that has just
started. Rows a second are by `triggerExecution` of Spark's own progress, on both sides.
"""

from __future__ import annotations

from .data import ROWS_PER_FILE, stream
from .harness import Context, Row, median, rate, scratch
from .sparks import HOPPING, PROVIDERS, TUMBLING, WINDROW, Batch, Window, run_query

COLD_BATCHES = 2
WARM_ROWS = 4_000_000
REQUIRED = {"Spark, RocksDB": 1.5}
AIM = {"Spark, in memory": 1.0}


def throughput(context: Context) -> list[Row]:
    """Rows a second for both kinds of windows and both sizes of batches, cold and warm."""
    sides = _sides(context)
    for window in (TUMBLING, HOPPING):
        for side in sides:
            context.step(f"warming up {side}")
            with scratch() as folder:
                run_query(side, window, stream(1_500_000), 2, folder)
    rows = []
    for window in (TUMBLING, HOPPING):
        for batch_rows in (500_000,) if context.quick else (500_000, 2_000_000):
            rows += _compare(context, window, batch_rows)
    return rows


def _compare(context: Context, window: Window, batch_rows: int) -> list[Row]:
    warm_rows = batch_rows * (1 if context.quick else WARM_ROWS // batch_rows)
    path = stream(COLD_BATCHES * batch_rows + warm_rows)
    sides = _sides(context)
    cold: dict[str, list[float]] = {s: [] for s in sides}

    def run(side: str) -> float:
        with scratch() as folder:
            batches = run_query(side, window, path, batch_rows // ROWS_PER_FILE, folder)
        cold[side].append(rate_of(batches[:COLD_BATCHES]))
        return rate_of(batches[COLD_BATCHES:])

    label = f"{window.name}, {batch_rows / 1e6:g} M rows a batch"
    context.bar.set_description(label)
    warm = context.interleave({s: lambda s=s: run(s) for s in sides})
    rows = []
    for temperature, samples in (("warm", warm), ("cold", cold)):
        for side in sides[1:]:
            is_warm = temperature == "warm"
            rows.append(
                rate(
                    f"throughput: {label}, {temperature}, beside {side}",
                    "rows/s",
                    median(samples[WINDROW]),
                    median(samples[side]),
                    side,
                    required=REQUIRED.get(side) if is_warm else None,
                    aim=AIM.get(side) if is_warm else None,
                    samples={s: samples[s] for s in (WINDROW, side)},
                )
            )
    return rows


def _sides(context: Context) -> list[str]:
    return [WINDROW, *(list(PROVIDERS)[:1] if context.quick else PROVIDERS)]


def rate_of(batches: list[Batch]) -> float:
    """Median over the batches."""
    return median([b.rows / (b.trigger_ms / 1000) for b in batches])
