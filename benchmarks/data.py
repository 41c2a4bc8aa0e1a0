"""The input of the benchmarks: made once, the same everywhere, kept in the temporary folder.

1,000 rows a second of event time, so that 500,000 rows cover 50 tumbling windows of 10 seconds and each (window, key)
takes 10 rows. Rows are out of order by up to 2 seconds, which is less than the watermark's delay: none is late.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow as wr

KEYS = 1_000
ROWS_PER_SECOND = 1_000
#: Every batch is of whole files, and every batch of at least two: one for each core.
ROWS_PER_FILE = 250_000
JITTER_US = 2_000_000
FIRST_US = 1_700_000_000_000_000
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
JOIN_KEYS = 100_000
JOIN_ROWS_PER_SECOND = 5_000
_VERSION = 2


def medians(**more: Any) -> wr.Aggregate:
    """The operator that keeps every message."""
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"m": wr.median("v")},
        "watermark": "10 seconds",
        "retention": "365 days",
    }
    return wr.Aggregate(**(settings | more))


def cache() -> str:
    """The folder of generated inputs."""
    path = os.path.join(tempfile.gettempdir(), f"windrow-benchmarks-{os.getuid()}-v{_VERSION}")
    os.makedirs(path, exist_ok=True)
    return path


def rows(first: int, n: int) -> pa.Table:
    """Rows `first` to `first + n` of the stream."""
    rng = np.random.default_rng(first)
    at = FIRST_US + (np.arange(first, first + n) * 1_000_000) // ROWS_PER_SECOND
    times = at - rng.integers(0, JITTER_US, n)
    names = pa.array([f"key-{i:04d}" for i in range(KEYS)])
    keys = names.take(pa.array(rng.integers(0, KEYS, n)))
    values = pa.array(rng.integers(-1_000, 1_000_000, n))
    return pa.table([pa.array(times).cast(SCHEMA.field("t").type), keys, values], schema=SCHEMA)


def join_rows(side: int, first: int, n: int) -> pa.Table:
    """Rows `first` to `first + n` of one side of a join: 5,000 a second of event time, 100,000 keys."""
    rng = np.random.default_rng([side, first])
    at = FIRST_US + (np.arange(first, first + n) * 1_000_000) // JOIN_ROWS_PER_SECOND
    times = at - rng.integers(0, JITTER_US, n)
    names = pa.array([f"key-{i:06d}" for i in range(JOIN_KEYS)])
    keys = names.take(pa.array(rng.integers(0, JOIN_KEYS, n)))
    values = pa.array(rng.integers(-1_000, 1_000_000, n))
    return pa.table([pa.array(times).cast(SCHEMA.field("t").type), keys, values], schema=SCHEMA)


def join_stream(side: int, n: int, rows_per_file: int) -> str:
    """One side of a join as a directory of Parquet files."""
    return files(f"join-{side}-{n}-{rows_per_file}", lambda i, m: join_rows(side, i, m), n, rows_per_file)


def stream(n: int, rows_per_file: int = ROWS_PER_FILE) -> str:
    """A directory of Parquet files with `n` rows in all, their modification times in order."""
    return files(f"stream-{n}-{rows_per_file}", rows, n, rows_per_file)


def files(name: str, make: Callable[[int, int], pa.Table], n: int, rows_per_file: int) -> str:
    """A directory of Parquet files of what `made(first, n)` gives, made once."""
    path = os.path.join(cache(), name)
    if os.path.isdir(path):
        return path
    draft = f"{path}.{os.getpid()}"
    os.makedirs(draft)
    for i, first in enumerate(range(0, n, rows_per_file)):
        file = os.path.join(draft, f"{i:05d}.parquet")
        pq.write_table(make(first, min(rows_per_file, n - first)), file)
        os.utime(file, (1_600_000_000 + i, 1_600_000_000 + i))
    try:
        os.rename(draft, path)
    except OSError:  # somebody else made it meanwhile
        shutil.rmtree(draft)
    return path
