"""The samples in the windows of keys: of windows of time in runs by a hash of the key, of counted ones in pages by key.

A step of many keys lays out all samples of the store, by key and event time. The process caches this layout under a digest of
the stored runs, so that the next step adds its own samples to it, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.evaluations import back
from windrow.operators.over.emitted_marks import ID
from windrow.operators.over.key_state import Found, Keyed
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.groups import combine
from windrow.operators.steps.step import limit
from windrow.stores.event_log import TIME, Stretches
from windrow.stores.keyed_event_store import HASH, KeyedEvents, hashes_of
from windrow.stores.kv import KV
from windrow.stores.run_cache import DECODED, name_of
from windrow.stores.window_state import START

#: The encoded key of a sample.
KEY = "__key"
#: The number of its key in a layout.
_CODE = "__code"
#: Samples are laid out where they are no more than so many times those that a step reads.
DENSE = 16
#: A window of time is so many stretches long; how long one is at least.
_STRETCHES, _SHORTEST_US = 4, 1_000_000


class Layout(NamedTuple):
    """All samples of a store by key, event time and arrival. name: of the stored runs. rows: `TIME`, the number of the key, and
    what aggregations read"""

    name: bytes
    keys: pa.Array
    rows: pa.Table

    def ordered(self, keys: list[bytes]) -> tuple[list[bytes], IntArray, IntArray]:
        """Return keys in the order of their numbers, in which new ones follow; these numbers; and the place of each key."""
        found = pc.index_in(pa.array(keys, pa.binary()), value_set=self.keys)
        numbers: IntArray = found.fill_null(-1).to_numpy().astype(np.int64)
        new = numbers < 0
        numbers[new] = len(self.keys) + np.arange(np.count_nonzero(new))
        order = np.argsort(numbers)
        places = np.empty(len(keys), dtype=np.int64)
        places[order] = np.arange(len(keys))
        return [keys[i] for i in order.tolist()], numbers[order], places

    def extended(
        self, keys: list[bytes], numbers: IntArray, fresh: pa.Table, codes: IntArray, low_us: int
    ) -> tuple[Layout, BoolArray]:
        """Return the layout with more samples, without those from before `low_us`; true for places of the new ones.

        numbers: of `keys`. fresh: as `rows`, but for the numbers of keys, of which `codes` are the places in `keys`
        """
        new = pa.array(keys[len(keys) - np.count_nonzero(numbers >= len(self.keys)) :], pa.binary())
        fresh = fresh.append_column(_CODE, pa.array(numbers[codes])).select(self.rows.column_names)
        times, own_us = (rows.column(TIME).to_numpy() for rows in (self.rows, fresh))
        stays = times >= low_us
        old = self.rows if stays.all() else self.rows.filter(pa.array(stays))
        owners, own = (rows.column(_CODE).to_numpy() for rows in (old, fresh))
        times, order = times[stays], np.lexsort((own_us, own))
        packed = _packed(np.r_[owners, own[order]], np.r_[times, own_us[order]])
        places = np.searchsorted(packed[: len(old)], packed[len(old) :], side="right") + np.arange(len(fresh))
        is_new = np.zeros(len(packed), dtype=bool)
        is_new[places] = True
        rows = _spliced(old, taken(fresh, order), is_new)
        return Layout(self.name, pa.concat_arrays([self.keys, new]), rows), is_new

    @property
    def codes(self) -> IntArray:
        """The number of the key of each sample."""
        codes: IntArray = self.rows.column(_CODE).to_numpy()
        return codes

    @property
    def sparse(self) -> bool:
        """True if many of the keys have no samples."""
        return bool(2 * (1 + np.count_nonzero(np.diff(self.codes))) < len(self.keys))


def _packed(codes: IntArray, times: IntArray) -> IntArray:
    """Return numbers in the order of key and time."""
    first = int(times.min(initial=END_OF_TIME_US))
    span = int(times.max(initial=first)) - first + 1
    if (int(codes.max(initial=0)) + 1) * span < 1 << 62:
        return codes * span + (times - first)
    moments, ranks = np.unique(times, return_inverse=True)
    return codes * len(moments) + ranks


def _spliced(old: pa.Table, new: pa.Table, is_new: BoolArray) -> pa.Table:
    """Return the rows of two tables of the same columns; those of the second lie where `is_new` is true."""
    columns: list[pa.Array] = []
    index: pa.Array | None = None
    for field in old.schema:
        both = [combine(rows.column(field.name)) for rows in (old, new)]
        plain = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if plain and not any(column.null_count for column in both):
            values = np.empty(len(is_new), dtype=field.type.to_pandas_dtype())
            values[~is_new], values[is_new] = (column.to_numpy() for column in both)
            columns.append(pa.array(values))
            continue
        if index is None:
            places = np.empty(len(is_new), dtype=np.int64)
            places[~is_new], places[is_new] = np.arange(len(old)), len(old) + np.arange(len(new))
            index = pa.array(places)
        columns.append(combine(pa.chunked_array(both, field.type)).take(index))
    return pa.table(columns, schema=old.schema)


@dataclass(frozen=True)
class Window:
    """The samples of some keys, in lines. new: true for places of those that the step brings.

    rows: what aggregations read, by place. fresh: the samples of the step, as they came, and the numbers of their keys. source:
    all samples, in the order of `lines.order`; None where they are laid out. near: for `put`
    """

    rows: pa.Table
    lines: Lines
    new: BoolArray
    fresh: pa.Table
    codes: IntArray
    source: pa.Table | None = None
    near: Any = None
    layout: Layout | None = None


class TimedSamples:
    """The samples of windows of time. They are forgotten by ranges of time."""

    def __init__(self, definition: AlertDefinition) -> None:
        assert definition.size_us is not None
        self._size_us = definition.size_us
        width_us = max(self._size_us // _STRETCHES, _SHORTEST_US)
        self._events = KeyedEvents(f"{definition.name}.samples", Stretches(width_us))

    @property
    def cfs(self) -> tuple[str, ...]:
        return (self._events.cf,)

    def near(
        self, kv: KV, keys: list[bytes], moments: IntArray, there: BoolArray
    ) -> tuple[pa.Table | None, Any]:
        """Return the samples of keys whose windows end at these moments."""
        low_us = np.where(there, back(moments, self._size_us), END_OF_TIME_US)
        high_us = np.where(there, END_OF_TIME_US, START_OF_TIME_US)
        return self._events.read_keys(kv, hashes_of(keys), low_us, high_us), None

    def put(self, kv: KV, rows: pa.Table, keys: list[bytes], codes: IntArray, step: int) -> None:
        """File samples of these keys, of which `codes` are the places."""
        if len(rows):
            self._events.add(kv, rows.append_column(HASH, pa.array(hashes_of(keys)[codes])), step)

    def forget(self, kv: KV, watermark_us: int, shape: bytes) -> None:
        """shape: of the layout, which stays."""
        before, _ = self._events.contents(kv)
        self._events.forget(kv, limit(watermark_us, self._size_us))
        self.keep(kv, self._cached(kv, before + shape), shape)

    def layout(self, kv: KV, shape: bytes, many: int) -> Layout | None:
        """Return the cached layout; None if so many keys are few of it. shape: names its columns"""
        layout = self._cached(kv, self._events.contents(kv)[0] + shape)
        return layout if layout is not None and len(layout.keys) <= DENSE * many else None

    def lay_out(
        self,
        kv: KV,
        schema: pa.Schema,
        many: int,
        shape: bytes,
        prepared: Callable[[pa.Table], pa.Table],
    ) -> None:
        """Cache the layout of all samples, unless so many, which a step has read, are few of them.

        schema: of samples; prepared: returns what aggregations read of them
        """
        digest, n = self._events.contents(kv)
        stored = self._events.read(kv, START_OF_TIME_US, END_OF_TIME_US) if n <= DENSE * many else None
        if stored is None:
            return
        rows = conformed(stored, schema)
        rows = taken(rows, np.argsort(rows.column(ID).to_numpy(), kind="stable"))
        coded, times = combine(rows.column(KEY)).dictionary_encode(), rows.column(TIME).to_numpy()
        codes = coded.indices.to_numpy().astype(np.int64)
        lines = Lines(None, codes, len(coded.dictionary), times, None)
        laid = prepared(taken(rows, lines.order)).append_column(_CODE, pa.array(lines.codes))
        self.keep(kv, Layout(digest + shape, coded.dictionary, laid), shape)

    def _cached(self, kv: KV, name: bytes) -> Layout | None:
        held = DECODED.of(name_of(kv))
        held.begin()
        keys, rows = held.get(b"k" + name), held.get(b"s" + name)
        return None if keys is None or rows is None else Layout(name, combine(keys.column(KEY)), rows)

    def keep(self, kv: KV, layout: Layout | None, shape: bytes) -> None:
        """Cache the layout of the samples as they are stored now."""
        if layout is None:
            return
        held, name = DECODED.of(name_of(kv)), self._events.contents(kv)[0] + shape
        for letter, table in ((b"k", pa.table({KEY: layout.keys})), (b"s", layout.rows)):
            held.forget(letter + layout.name)
            if not layout.sparse:
                held.put(letter + name, table)


class CountedSamples:
    """The newest samples of each key."""

    def __init__(self, definition: AlertDefinition) -> None:
        self._keyed = Keyed(f"{definition.name}.tails", f"{definition.name}.aux", (KEY,), None)

    @property
    def cfs(self) -> tuple[str, ...]:
        return (self._keyed.cf,)

    def near(
        self, kv: KV, keys: list[bytes], moments: IntArray, there: BoolArray
    ) -> tuple[pa.Table | None, Any]:
        asked = pa.table({KEY: pa.array(keys, pa.binary())})
        zeros, every = np.zeros(len(keys), dtype=np.int64), np.ones(len(keys), dtype=bool)
        found = self._keyed.near(kv, asked, zeros, every, START_OF_TIME_US)
        if found.rows is None:
            return None, (found, None)
        mine = pc.is_in(found.rows.column(KEY), value_set=pa.array(keys, pa.binary()))
        rows = found.rows.drop_columns([START])
        return rows.filter(mine), (found, found.rows.filter(pc.invert(mine)))

    def put(self, kv: KV, near: Any, fresh: pa.Table) -> None:
        """Store these samples of the keys that were read, and no others."""
        found, beside = near
        assert isinstance(found, Found)
        fresh = fresh.append_column(START, pa.array(np.zeros(len(fresh), dtype=np.int64)))
        self._keyed.put(kv, found, [fresh] if beside is None else [beside, fresh])


def of_keys(
    stored: pa.Table | None, schema: pa.Schema, keys: list[bytes], there: BoolArray
) -> tuple[pa.Table, IntArray, IntArray]:
    """Return stored samples without those of other keys, the numbers of their keys, and the order in which they came."""
    if stored is None:
        none = np.zeros(0, dtype=np.int64)
        return schema.empty_table(), none, none
    found = pc.index_in(combine(stored.column(KEY)), value_set=pa.array(keys, pa.binary())).fill_null(-1)
    codes = found.to_numpy().astype(np.int64)
    known = (codes >= 0) & there[codes]
    if not known.all():
        stored, codes = stored.filter(pa.array(known)), codes[known]
    arrival = np.argsort(stored.column(ID).to_numpy(), kind="stable")
    return conformed(stored, schema), codes, arrival


def filed(schema: pa.Schema) -> pa.Schema:
    """Return the columns of samples as they are stored."""
    return pa.schema([*schema, (TIME, pa.int64()), (ID, pa.int64()), (KEY, pa.binary())])
