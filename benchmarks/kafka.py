"""Topic to topic: windrow exactly once, beside Spark's own connector at least once and Quix Streams exactly once.

All read one topic and tell every window that changed, once a batch; Quix Streams knows no batches and tells it at every record
("current"), or once when it closes ("final"). Every run writes to a topic of its own, whose last word on every window is
compared with plain arithmetic before its time counts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import windrow as wr

from . import foreign, topics
from .harness import Context, Row, median, rate, scratch
from .sparks import PROVIDERS, SHARDS, Batch, run_to_end, session

ROWS = 4_000_000
#: Rows of a batch, and how many batches of a stream are cold.
BATCHES = {500_000: 2, 2_000_000: 1}
KEYED, UNKEYED = "windrow", "windrow, not keyed"
QUIX = "quixstreams==3.28.1"
#: Quix Streams gets all records of every so many-th key: all windows, and as many records in each.
QUIX_KEYS = 20
QUIX_SIDES = {"Quix Streams, current": "current", "Quix Streams, final": "final"}
REQUIRED = {"Spark, RocksDB": 1.5, "Quix Streams, current": 10.0}


@dataclass(frozen=True)
class Input:
    """Layout of the topics: all rows on one; those of Quix Streams' keys on as many as it has processes."""

    kafka: wr.Kafka
    topic: str
    expected: pa.Table
    slices: tuple[str, ...]
    slice_rows: tuple[int, ...]
    slice_expected: pa.Table


def kafka(context: Context) -> list[Row]:
    """Rows a second from a topic to a topic, warm and cold, by batches of 0.5 M and of 2 M rows."""
    n = ROWS // (2 if context.quick else 1)
    sides = [KEYED, UNKEYED, *(list(PROVIDERS)[:1] if context.quick else PROVIDERS)]
    measures: list[Row] = []
    with topics.broker() as cluster, _input(context, cluster, n) as source:
        for side in sides:
            context.step(f"warming up {side}")
            _run(side, source, 500_000)
        quix: dict[str, list[float]] = {}
        for batch_rows in list(BATCHES)[:1] if context.quick else BATCHES:
            measures += _compare(context, source, sides, batch_rows, quix)
    return measures


@contextmanager
def _input(context: Context, cluster: wr.Kafka, n: int) -> Iterator[Input]:
    context.step(f"writing {n:,} records")
    with ExitStack() as stack:
        whole = stack.enter_context(topics.topic(cluster))
        topics.fill(cluster, whole, n)
        parts = [stack.enter_context(topics.topic(cluster, 2)) for _ in range(SHARDS)]
        counts = [topics.fill(cluster, name, n, lambda t, i=i: _slice(t, i)) for i, name in enumerate(parts)]
        wanted = topics.expected(n)
        number = pc.utf8_slice_codeunits(wanted.column("k"), 4).cast(pa.int64()).to_numpy()
        own = wanted.filter(pa.array(number % QUIX_KEYS == 0))
        yield Input(cluster, whole, wanted, tuple(parts), tuple(counts), own)


def _slice(table: pa.Table, part: int) -> pa.Table:
    keys = table.column("k").to_numpy()
    return table.filter(pa.array(keys % (QUIX_KEYS * SHARDS) == part * QUIX_KEYS))


def _compare(
    context: Context, source: Input, sides: list[str], batch_rows: int, quix: dict[str, list[float]]
) -> list[Row]:
    """One size of batches. Quix Streams, which has none, runs beside the first."""
    label = f"kafka: {batch_rows / 1e6:g} M rows a batch"
    context.bar.set_description(label)
    cold: dict[str, list[float]] = {s: [] for s in sides}

    def run(side: str) -> float:
        batches = _run(side, source, batch_rows)
        first = BATCHES[batch_rows]
        cold[side].append(_rate(batches[:first]))
        return _rate(batches[first:])

    runs = {s: lambda s=s: run(s) for s in sides}
    if not quix:
        runs |= {s: lambda s=s: _quix(s, source) for s in QUIX_SIDES}
    warm = context.interleave(runs)
    quix.update({s: warm[s] for s in QUIX_SIDES if s in warm})
    warm |= quix
    rows = []
    for temperature, samples in (("warm", warm), ("cold", cold)):
        for side in samples:
            if side == KEYED:
                continue
            rows.append(
                rate(
                    f"{label}, {temperature}, beside {side}",
                    "rows/s",
                    median(samples[KEYED]),
                    median(samples[side]),
                    side,
                    required=REQUIRED.get(side) if temperature == "warm" else None,
                    samples={s: samples[s] for s in (KEYED, side)},
                )
            )
    return rows


def _rate(batches: list[Batch]) -> float:
    return median([b.rows / (b.trigger_ms / 1000) for b in batches])


# -- the sides ------------------------------------------------------------------------------------------------------------


def _run(side: str, source: Input, batch_rows: int) -> list[Batch]:
    """The whole topic through one side of Spark's, checked; its batches, without a small rest."""
    with scratch() as folder, topics.topic(source.kafka) as out:
        if side in (KEYED, UNKEYED):
            batches = _windrow(source, out, batch_rows, folder, keyed=side == KEYED)
        else:
            batches = _spark(PROVIDERS[side], source, out, batch_rows, folder)
        topics.check(side, topics.current(source.kafka, out), source.expected)
    return [b for b in batches if b.rows > batch_rows // 2]


def _windrow(stream: Input, out: str, batch_rows: int, folder: str, *, keyed: bool) -> list[Batch]:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v"), "a": wr.avg("v")},
        watermark="10 seconds",
        retention="0 seconds",
        emit=wr.Emit.update(),
    )
    session()
    source = wr.sources.kafka(
        stream.kafka,
        stream.topic,
        value=wr.decoders.json(topics.VALUE),
        keyed=keyed,
        max_offsets=batch_rows,
    )
    writer = definition.writeStream(source).sink(wr.sinks.kafka(out, stream.kafka))
    writer = writer.option("checkpointLocation", folder).option("shards", SHARDS)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()
    spent = {p["batchId"]: p["durationMs"] for p in query.query.recentProgress if p["numInputRows"]}
    batches = [
        Batch(p["numInputRows"], spent[p["batchId"]]["triggerExecution"], spent[p["batchId"]]["addBatch"])
        for p in query.recentProgress
        if p["numInputRows"]
    ]
    assert sum(b.rows for b in batches) == pc.sum(stream.expected.column("n")).as_py()
    return batches


def _spark(provider: str, source: Input, out: str, batch_rows: int, folder: str) -> list[Batch]:
    from pyspark.sql import functions as F

    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", source.kafka.servers)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
        .select(F.from_json(F.col("value").cast("string"), "t bigint, k string, v bigint").alias("r"))
        .select(F.timestamp_micros("r.t").alias("t"), "r.k", "r.v")
    )
    frame = (
        rows.withWatermark("t", "10 seconds")
        .groupBy(F.window("t", "10 seconds"), "k")
        .agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"))
        .select(F.col("k").alias("key"), F.to_json(F.struct("window", "k", "n", "s", "a")).alias("value"))
    )
    writer = frame.writeStream.outputMode("update").format("kafka").option("topic", out)
    return run_to_end(writer.option("kafka.bootstrap.servers", source.kafka.servers), None, folder)


def _quix(side: str, source: Input) -> float:
    """Rows a second of as many processes as there are cores, each with a topic of its own, from first record to last commit."""
    with scratch() as folder, ExitStack() as stack:
        out = stack.enter_context(topics.topic(source.kafka))
        started = []
        for i, (name, n) in enumerate(zip(source.slices, source.slice_rows, strict=True)):
            more = [source.kafka.servers, name, out, str(n), QUIX_SIDES[side], f"{out}-{i}", folder]
            process = subprocess.Popen(
                [foreign.python(QUIX), str(Path(__file__).with_name("quix.py")), *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(stack.enter_context(process))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", f"{side} did not start"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reports = [json.loads(p.communicate()[0]) for p in started]
        _check_quix(side, source, out)
    seconds = max(t["end"] for t in reports) - min(t["begin"] for t in reports)
    return float(sum(t["rows"] for t in reports) / seconds)


def _check_quix(side: str, source: Input, out: str) -> None:
    """All windows, or with "final" those that closed: as many as had two windows more of event time behind them."""
    current = topics.current(source.kafka, out, topics.QUIX_RESULT)
    wanted = source.slice_expected
    if QUIX_SIDES[side] == "final":
        last = pc.max(wanted.column("start")).as_py()
        assert pc.max(current.column("start")).as_py() >= last - 2 * topics.WINDOW_US
        wanted = wanted.filter(pc.is_in(wanted.column("start"), current.column("start").unique()))
    topics.check(side, current, wanted)
