"""Cost of state: to restore, to evict, and in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import windrow as wr
from windrow.checkpoint.job_paths import JobFolders
from windrow.core.keys import encode_key
from windrow.runners.embedded import engine
from windrow.stores.kv import Batch
from windrow.stores.message_store import HOUR_US, Layout, MessageStore
from windrow.stores.rocks import RocksKV

from .data import FIRST_US, KEYS, SCHEMA, medians, rows
from .harness import Context, Row, median, scratch

STATES = 1_000_000
RESTORE_LEAST = 500_000
COMMIT = 100_000
PURGE_MOST_MS = 100
READ_MOST = 2.0
MEMORY_MOST_MIB = 1024
#: "Memory does not grow with state": ten times the state may take this much more, for what is not state.
GROWTH_MOST = 1.25
WINDOW_US = 10_000_000
#: Messages of the purge stand this far apart: a million of them cover ten hours, which is ten buckets of each key.
SPACING_US = 36_000
BEGIN_US = FIRST_US // HOUR_US * HOUR_US


def restore(context: Context) -> list[Row]:
    """The local store is gone: (key, window) states a second until the operator is open again.

    By the changelog as commits wrote it; by a snapshot, where that is all there is; and by the compact changelog alone.
    """
    states = STATES // (10 if context.quick else 1)
    aggregate = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "s": wr.sum("v"), "lo": wr.min("v"), "hi": wr.max("v")},
        watermark="365 days",
        retention="365 days",
    )
    with scratch() as folder:
        changelog, snapshot, compact = (os.path.join(folder, x) for x in ("changelog", "snapshot", "compact"))
        with aggregate.open(changelog) as operator:
            _fill(operator, states)
        with (
            mock.patch.object(engine, "SNAPSHOT_EVERY", states // COMMIT),
            aggregate.open(snapshot) as operator,
        ):
            _fill(operator, states)
            operator.add_messages(_one_a_state(0, KEYS))
        _let_go(snapshot, "0*", states // COMMIT)
        shutil.copytree(snapshot, compact)
        _let_go(snapshot, "base*")
        shutil.rmtree(JobFolders(compact).snapshots)

        def run(place: str) -> float:
            shutil.rmtree(JobFolders(place).local)
            begin = time.perf_counter()
            with aggregate.open(place) as operator:
                seconds = time.perf_counter() - begin
                count = len(operator.get_windows(key="key-0007"))
            assert count * KEYS == states, f"{count} windows of one key came back, not {states // KEYS}"
            return states / seconds

        ways = {
            "local store lost": (changelog, RESTORE_LEAST),
            "local store lost, from a snapshot": (snapshot, None),
            "local store lost, from the compact changelog": (compact, None),
        }
        samples = context.interleave(
            {way: lambda place=place: run(place) for way, (place, _) in ways.items()},
            3 if context.quick else 7,
        )
    return [
        Row(
            f"restore: {states:,} (key, window) states, {way}",
            "states/s",
            median(samples[way]),
            bound="" if least is None else f"required >= {least:,}",
            meets=None if least is None else median(samples[way]) >= least,
            samples={"windrow": samples[way]},
        )
        for way, (_, least) in ways.items()
    ]


def replay(context: Context) -> list[Row]:
    """Messages that are kept for a median are gone, with their segments: messages a second until the operator is open again
    and has had all of them from its source. That is a table, so that no broker's speed is measured.
    """
    n = STATES // (10 if context.quick else 1)
    median_of = medians(positions=wr.positions("o"))
    table = rows(0, n).append_column("o", pa.array(np.arange(n)))
    with scratch() as location:
        with median_of.open(location) as operator:
            for first in range(0, n, COMMIT):
                operator.add_messages(table.slice(first, COMMIT))
                operator.timeout()

        def run() -> float:
            folders = JobFolders(location)
            for folder in (folders.local, folders.snapshots, os.path.dirname(folders.segment("x"))):
                shutil.rmtree(folder, ignore_errors=True)
            begin = time.perf_counter()
            with median_of.open(location, replay=lambda _: table) as operator:
                seconds = time.perf_counter() - begin
                count = len(operator.get_messages(key="key-0007"))
            wanted = pc.sum(pc.equal(table.column("k"), "key-0007")).as_py()
            assert count == wanted, f"{count} messages of one key came back, not {wanted}"
            return n / seconds

        samples = context.interleave({"windrow": run}, 3 if context.quick else 7)["windrow"]
    return [
        Row(
            f"replay: {n:,} messages of a median, read from the source again",
            "messages/s",
            median(samples),
            samples={"windrow": samples},
        )
    ]


def _let_go(location: str, pattern: str, most: int | None = None) -> None:
    """Remove files of the changelog; where commits are numbered, those up to `most`."""
    for path in Path(JobFolders(location).changelog("x")).parent.glob(pattern):
        if most is None or int(path.name.split("-")[0]) <= most:
            path.unlink()


def _fill(operator: Any, states: int) -> None:
    for first in range(0, states, COMMIT):
        operator.add_messages(_one_a_state(first, COMMIT))
        operator.timeout()


def _one_a_state(first: int, n: int) -> pa.Table:
    at = np.arange(first, first + n)
    names = pa.array([f"key-{i:04d}" for i in range(KEYS)])
    times = FIRST_US + (at // KEYS) * WINDOW_US
    return pa.table(
        [pa.array(times).cast(SCHEMA.field("t").type), names.take(pa.array(at % KEYS)), pa.array(at)],
        schema=SCHEMA,
    )


def purge(context: Context) -> list[Row]:
    """Let go of 1 M messages, then read a range, beside the same read in a store that never held them.

    Where fields come first a purge walks the index of (bucket, key), so its cost goes with their number: 10,000 with buckets
    of an hour, which is the default, and 100,000 with buckets of six minutes.
    """
    messages = 100_000 if context.quick else 1_000_000
    measures: list[Row] = []
    for label, layout, bucket_us in (
        ("time first", Layout.TIME_OFFSET, HOUR_US),
        ("fields first", Layout.FIELDS_TIME_OFFSET, HOUR_US),
        ("fields first, narrow buckets", Layout.FIELDS_TIME_OFFSET, HOUR_US // 10),
    ):
        purges: list[float] = []
        reads: dict[str, list[float]] = {"after the purge": [], "fresh": []}
        for i in range(context.rounds + 2):
            context.step(f"{label}, round {i + 1}")
            with scratch() as folder:
                ms, after, fresh = _purge_once(MessageStore(layout, bucket=bucket_us), messages, folder)
            purges.append(ms)
            reads["after the purge"].append(after)
            reads["fresh"].append(fresh)
        ms, after, fresh = median(purges), median(reads["after the purge"]), median(reads["fresh"])
        measures += [
            Row(
                f"purge: {messages:,} messages, {label}",
                "ms",
                ms,
                bound=f"required < {PURGE_MOST_MS} ms",
                meets=ms < PURGE_MOST_MS,
                samples={"windrow": purges},
            ),
            Row(
                f"purge: range read after it, {label}",
                "ms",
                after,
                fresh,
                "fresh store",
                fresh / after,
                f"required >= {1 / READ_MOST:g}x",
                after <= READ_MOST * fresh,
                reads,
            ),
        ]
    return measures


def _purge_once(store: MessageStore, messages: int, folder: str) -> tuple[float, float, float]:
    """(ms of the purge, ms of a read after it, ms of that read in a fresh store)."""
    kept = 100_000
    used, fresh = (RocksKV(f"{folder}/{n}", store.cfs) for n in ("used", "fresh"))
    for first in range(0, messages, 100_000):
        used.write(_messages(store, first, 100_000))
    for kv in (used, fresh):
        kv.write(_messages(store, messages, kept))
        kv.flush()
    floor_us = BEGIN_US + messages * SPACING_US
    begin = time.perf_counter()
    batch = Batch()
    store.expire(used, batch, floor_us)
    used.write(batch)
    purged = (time.perf_counter() - begin) * 1000
    key = encode_key(("key-0007",)) if store.layout.has_fields else None
    times = []
    for kv in (used, fresh, used, fresh, used, fresh):
        begin = time.perf_counter()
        keys, _ = store.scan(kv, floor_us - HOUR_US, floor_us + HOUR_US, key)
        times.append((time.perf_counter() - begin) * 1000)
        assert keys and min(store.times(keys)) >= floor_us
    for kv in (used, fresh):
        kv.close()
    return purged, min(times[::2]), min(times[1::2])


def _messages(store: MessageStore, first: int, n: int) -> Batch:
    at = np.arange(first, first + n)
    times = BEGIN_US + at * SPACING_US
    zeros = np.zeros(n, dtype=np.int64)
    encoded = [encode_key((f"key-{i:04d}",)) for i in range(KEYS)]
    keys = [encoded[i] for i in (at % KEYS).tolist()] if store.layout.has_fields else None
    batch = Batch()
    store.put_rows(batch, times, (pa.array([""] * n), zeros, at, zeros), keys, [b"\x01" * 40] * n)
    return batch


def memory(context: Context) -> list[Row]:
    """The highest resident memory of a worker that keeps every message for a median, early on and at the end."""
    messages = 1_000_000 if context.quick else 10_000_000
    context.step(f"{messages:,} messages")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker", str(messages)], check=True, capture_output=True, text=True
    )
    peaks = json.loads(ran.stdout.splitlines()[-1])
    early, last = peaks["early_mib"], peaks["last_mib"]
    return [
        Row(
            f"memory: peak of a worker with {messages:,} messages of state",
            "MiB",
            last,
            bound=f"required < {MEMORY_MOST_MIB} MiB",
            meets=last < MEMORY_MOST_MIB,
        ),
        Row(
            "memory: that peak, beside the peak with a tenth of the messages",
            "MiB",
            last,
            early,
            "a tenth of the state",
            early / last,
            f"required >= {1 / GROWTH_MOST:.2g}x",
            last <= GROWTH_MOST * early,
        ),
    ]
