"""Topics of the Kafka benchmark: what is on them, and whether what came out is right.

50,000 rows a second of event time, 100,000 keys, tumbling windows of 10 seconds: 500,000 rows are one window of every key, of
5 rows each. A record is JSON of about 100 bytes, its key is the key, so equal keys lie in one partition.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import windrow as wr
from windrow.connectors.kafka.offsets import Range
from windrow.connectors.kafka.source_metadata import Cluster
from windrow.connectors.kafka.stream import KafkaStream

from .data import FIRST_US

KEYS = 100_000
ROWS_PER_SECOND = 50_000
WINDOW_US = 10_000_000
#: Less than the watermark's delay, and little beside a window: a batch of 500,000 rows hardly touches the window before.
JITTER_US = 200_000
PARTITIONS = 4
PORTION = 100_000
VALUE = {"t": pa.int64(), "k": pa.string(), "v": pa.int64()}
RESULT = pa.schema(
    [
        ("window", pa.struct([("start", pa.timestamp("us", "UTC"))])),
        ("k", pa.string()),
        ("n", pa.int64()),
        ("s", pa.int64()),
        ("a", pa.float64()),
    ]
)
#: Of Quix Streams: milliseconds, and the key in the record's key alone.
QUIX_RESULT = pa.schema([("start", pa.int64()), ("n", pa.int64()), ("s", pa.int64()), ("a", pa.float64())])
BYTES_LEAST, BYTES_MOST = 80, 120


@contextmanager
def broker() -> Iterator[wr.Kafka]:
    """The broker of all sides: the one at WINDROW_KAFKA, or one in a container."""
    if running := os.environ.get("WINDROW_KAFKA"):
        yield wr.Kafka(running)
        return
    from windrow.testing import KafkaBroker

    script = Path(__file__).parents[1] / "docker" / "kafka-image.sh"
    image = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with KafkaBroker(image) as made:
        yield made.kafka


@contextmanager
def topic(kafka: wr.Kafka, partitions: int = PARTITIONS) -> Iterator[str]:
    """A topic that nobody else has, gone afterwards with those that are named after it."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name, partitions)
    try:
        yield name
    finally:
        admin = kafka.admin()
        theirs = [t for t in admin.list_topics(timeout=30).topics if name in t]
        for future in admin.delete_topics(theirs).values():
            future.result()


def rows(first: int, n: int) -> pa.Table:
    """Rows `first` to `first + n` of the topic: event time, number of the key, value."""
    rng = np.random.default_rng(first)
    at = FIRST_US + (np.arange(first, first + n) * 1_000_000) // ROWS_PER_SECOND
    times = np.maximum(at - rng.integers(0, JITTER_US, n), FIRST_US)
    return pa.table({"t": times, "k": rng.integers(0, KEYS, n), "v": rng.integers(-1_000, 1_000_000, n)})


def fill(kafka: wr.Kafka, name: str, n: int, keep: Callable[[pa.Table], pa.Table] = lambda t: t) -> int:
    """Write the first `n` rows, or those of them that are kept; how many there are now."""
    producer = kafka.producer(partitioner="murmur2_random", linger_ms=50, batch_size=1 << 20)
    written = 0
    for first in range(0, n, PORTION):
        frame = pl.DataFrame(pl.from_arrow(keep(rows(first, min(PORTION, n - first))))).with_columns(
            k=pl.format("key-{}", pl.col("k").cast(pl.String).str.zfill(6)),
            source=pl.lit("sensor"),
            note=pl.lit("x" * 20),
        )
        values = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_list()
        assert BYTES_LEAST <= len(values[0]) <= BYTES_MOST, f"a record has {len(values[0])} bytes"
        records = [{"key": k, "value": v} for k, v in zip(frame["k"].to_list(), values, strict=True)]
        while len(producer) > PORTION // 2:
            producer.poll(0.01)
        for start in range(0, len(records), PORTION // 4):
            part = records[start : start + PORTION // 4]
            assert producer.produce_batch(name, part) == len(part)
            while len(producer) > PORTION // 2:
                producer.poll(0.01)
        written += len(records)
    assert producer.flush(60) == 0, "the broker did not take all records"
    return written


def expected(n: int) -> pa.Table:
    """Compute each (window, key) by plain arithmetic: start, k, n, s."""
    whole = pa.concat_tables([rows(i, min(PORTION, n - i)) for i in range(0, n, PORTION)])
    start = whole.column("t").to_numpy() // WINDOW_US * WINDOW_US
    names = pc.binary_join_element_wise("key-", pc.utf8_lpad(whole.column("k").cast(pa.string()), 6, "0"), "")
    table = pa.table({"start": start, "k": names, "v": whole.column("v")})
    totals = table.group_by(["start", "k"], use_threads=False).aggregate([("v", "count"), ("v", "sum")])
    return totals.rename_columns(["start", "k", "n", "s"]).sort_by(
        [("start", "ascending"), ("k", "ascending")]
    )


def current(kafka: wr.Kafka, name: str, schema: pa.Schema = RESULT) -> pa.Table:
    """Return the last row of each (window, key) on a topic of results: start, k, n, s."""
    columns = {} if "k" in schema.names else {"k": "key"}
    stream = wr.sources.kafka(kafka, name, value=wr.decoders.json(schema), columns=columns)
    extent = Cluster(kafka).extents([name])[name]
    tables = [_read(stream, name, extent, p) for p in sorted(extent.high)]
    table = pa.concat_tables(tables).sort_by([("start", "ascending"), ("k", "ascending")])
    mean = table.column("s").to_numpy() / table.column("n").to_numpy()
    np.testing.assert_allclose(table.column("a").to_numpy(), mean, rtol=1e-9)
    return table.select(["start", "k", "n", "s"])


def _read(stream: KafkaStream, name: str, extent: Any, partition: int) -> pa.Table:
    """Return the last rows of one partition. All records of a key are in one."""
    wanted = Range(name, extent.id, partition, extent.low[partition], extent.high[partition])
    values = pa.concat_tables([stream.schema.empty_table(), *_values(stream, wanted)]).combine_chunks()
    if "window" in values.column_names:
        start = pc.struct_field(values.column("window"), "start").cast(pa.int64())
    else:
        start = pc.multiply(values.column("start"), 1000)
        values = values.drop_columns(["start"])
    values = values.append_column("at", start)
    keys = values.column("k").cast(pa.string())
    values = values.set_column(values.column_names.index("k"), "k", keys)
    grouped = values.group_by(["at", "k"], use_threads=False).aggregate(
        [(c, "last") for c in ("n", "s", "a")]
    )
    return grouped.rename_columns(["start", "k", "n", "s", "a"])


def _values(stream: KafkaStream, wanted: Range) -> Iterator[pa.Table]:
    return (t.select(stream.schema.names) for t in stream.read([wanted]))


def check(who: str, actual: pa.Table, wanted: pa.Table) -> None:
    """Refuse a result that is not the right one."""
    if not actual.equals(wanted.cast(actual.schema)):
        raise AssertionError(
            f"{who} came to other windows: {len(actual)} with {pc.sum(actual.column('n'))} rows, expected are "
            f"{len(wanted)} with {pc.sum(wanted.column('n'))}"
        )
