"""Stores of kept messages side by side: rows by key and time, the log by time, runs by the hash of a key (ADR 0026).

Each store holds the same messages, of 10,000 keys, and does the same work: a step files messages, reads those of their keys
that are near in time, and evicts as many single ones, as windows that count messages do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.keys import encode_key
from windrow.operators.steps.columns import OFFSET
from windrow.operators.steps.message_rows import pack_rows, unpack_rows
from windrow.stores import column_codec
from windrow.stores.column_codec import TIME
from windrow.stores.event_log import Events
from windrow.stores.keyed_event_store import HASH, KeyedEvents, hashes_of
from windrow.stores.kv import KV, Batch, MemoryKV
from windrow.stores.message_store import HOUR_US, Layout, MessageStore
from windrow.stores.page_format import unpack
from windrow.stores.page_writer import narrow_rows
from windrow.stores.rocks import RocksKV
from windrow.stores.row_codec import Schemas, put_schema

from .harness import Context, Row, median, scratch

KEYS, HELD = 10_000, 100_000
SPACING_US, NEAR_US = 1_000, 10_000_000
NAMES = [encode_key((f"key-{i:05d}",)) for i in range(KEYS)]
HASHES = hashes_of(NAMES)


class Store(NamedTuple):
    """Work of a step on a store: to file messages, to read those of their keys, to evict the oldest ones."""

    add: Callable[[KV, pa.Table, int], None]
    near: Callable[[KV, pa.Table], Any]
    evict: Callable[[KV, pa.Table], None]


def _messages(first: int, n: int) -> pa.Table:
    at = np.arange(first, first + n)
    zeros, times = np.zeros(n, dtype=np.int64), at * SPACING_US
    columns = {"k": pa.array([f"key-{i % KEYS:05d}" for i in at.tolist()]), "v": pa.array(at * 0.5)}
    places = {"__source": pa.array([""] * n), "__partition": zeros, OFFSET: at, "__ordinal": zeros}
    return pa.table({**columns, **places, TIME: times, HASH: HASHES[at % KEYS]})


def _keys(rows: pa.Table) -> list[bytes]:
    return [NAMES[i] for i in (rows.column(OFFSET).to_numpy() % KEYS).tolist()]


def _rows() -> Store:
    store = MessageStore(Layout.FIELDS_TIME_OFFSET, "m", "i", HOUR_US)

    def place(rows: pa.Table) -> tuple[Any, ...]:
        columns = (rows.column(n).to_numpy() for n in ("__partition", OFFSET, "__ordinal"))
        return rows.column(TIME).to_numpy(), (rows.column("__source"), *columns), _keys(rows)

    def add(kv: KV, rows: pa.Table, step: int) -> None:
        batch = Batch()
        store.put_rows(batch, *place(rows), pack_rows(kv, batch, "aux", rows.drop_columns([TIME, HASH])))
        kv.write(batch)

    def near(kv: KV, rows: pa.Table) -> pa.Table:
        times = rows.column(TIME).to_numpy()
        ranges = dict(
            zip(_keys(rows), zip((times - NEAR_US).tolist(), times.tolist(), strict=True), strict=True)
        )
        keys, values = store.scan_keys(kv, ranges)
        return unpack_rows(kv, "aux", values, [store.split(key).position for key in keys], rows.schema)

    def evict(kv: KV, rows: pa.Table) -> None:
        batch = Batch()
        batch.delete_many("m", store.row_keys(*place(rows)))
        kv.write(batch)

    return Store(add, near, evict)


def _columns(log: Events | KeyedEvents) -> Store:
    def near(kv: KV, rows: pa.Table) -> Any:
        times = rows.column(TIME).to_numpy()
        if isinstance(log, KeyedEvents):
            return log.read_keys(kv, rows.column(HASH).to_numpy(), times - NEAR_US, times)
        return log.read_near(kv, times - NEAR_US, times)

    def evict(kv: KV, rows: pa.Table) -> None:
        offsets = rows.column(OFFSET).to_numpy()
        last_us = int(rows.column(TIME).to_numpy().max()) + 1
        log.drop(kv, last_us, lambda held: np.isin(held.column(OFFSET).to_numpy(), offsets))

    return Store(log.add, near, evict)


STORES: dict[str, Callable[[], Store]] = {
    "rows": _rows,
    "log by time": lambda: _columns(Events("m", NEAR_US)),
    "runs by hash": lambda: _columns(KeyedEvents("m", NEAR_US)),
}


def _measured(store: Store, n: int, steps: int, folder: str) -> tuple[float, float, float]:
    """Return the median milliseconds of processor time to file, to read, and to evict."""
    kv: KV = RocksKV(folder, ["m", "i", "aux"])
    for step in range(10):
        store.add(kv, _messages(step * HELD // 10, HELD // 10), step)
    taken: list[list[float]] = [[], [], []]
    for i in range(steps):
        new, old = _messages(HELD + i * n, n), _messages(i * n, n)
        work = (
            partial(store.near, kv, new),
            partial(store.add, kv, new, 100 + i),
            partial(store.evict, kv, old),
        )
        for samples, do in zip(taken, work, strict=True):
            begin = time.process_time()
            do()
            samples.append((time.process_time() - begin) * 1e3)
    kv.close()
    return median(taken[0]), median(taken[1]), median(taken[2])


def _codecs(n: int) -> dict[str, float]:
    """Return microseconds of processor time to write and to read `n` messages, as a value of a log and as a page, and bytes."""
    rows, kv, batch = _messages(0, n).combine_chunks(), MemoryKV(["aux"]), Batch()
    schema, schemas = put_schema(kv, "aux", batch, rows.schema), Schemas(kv, "aux")
    kv.write(batch)
    value, page = column_codec.packed(rows), narrow_rows(rows, schema)
    work: dict[str, Callable[[], Any]] = {
        "write, column codec": lambda: column_codec.packed(rows),
        "write, page": lambda: narrow_rows(rows, schema),
        "read, column codec": lambda: column_codec.together([column_codec.opened(value)]),
        "read two columns, column codec": lambda: column_codec.together(
            [column_codec.opened(value)], ["v", TIME]
        ),
        "read, page": lambda: unpack([page], schemas),
    }
    taken = {"bytes, column codec": float(len(value)), "bytes, page": float(len(page))}
    for name, do in work.items():
        samples = []
        for _ in range(31):
            begin = time.process_time()
            do()
            samples.append((time.process_time() - begin) * 1e6)
        taken[name] = median(samples)
    return taken


def kept(context: Context) -> list[Row]:
    """A step of 1,000 messages, and of one, with 100,000 kept, in each store; and the codecs of their columns."""
    rows = []
    for n, steps in ((1_000, 9), (1, 41)):
        for name, store in STORES.items():
            context.step(f"{name}, {n:,} messages")
            with scratch() as folder:
                taken = _measured(store(), n, steps, f"{folder}/kv")
            for what, ms in zip(("read", "file", "evict"), taken, strict=True):
                rows.append(Row(f"kept messages: {what} {n:,}, {name}", "ms", ms))
    for n in (100, 1_000, 10_000):
        rows += [
            Row(f"codec: {name}, {n:,} rows", "bytes" if name.startswith("bytes") else "us", figure)
            for name, figure in _codecs(n).items()
        ]
    return rows
