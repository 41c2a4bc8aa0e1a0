"""The samples in the windows of keys: of windows of time in runs by a hash of the key, of counted ones in pages by key.

A step of many keys lays out all samples of the store, by key and event time. The process caches this layout under a digest of
the stored runs, so that the next step adds its own samples to it, and reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from windrow.core.arrays import BoolArray, IntArray, taken
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.alert.definition import AlertDefinition
from windrow.operators.alert.evaluations import back
from windrow.operators.alert.states import States
from windrow.operators.one_input import Work
from windrow.operators.over.emitted_marks import ID, STEP_BITS
from windrow.operators.over.frame_values import Part, parts_of, read_by
from windrow.operators.over.key_state import Keyed
from windrow.operators.over.partitions import Lines
from windrow.operators.over.required_columns import conformed
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.message_rows import POSITION_TYPES, with_positions
from windrow.operators.steps.step import limit
from windrow.stores.event_log import TIME
from windrow.stores.keyed_event_store import HASH, KeyedEvents, hashes_of
from windrow.stores.kv import KV
from windrow.stores.run_cache import DECODED, name_of
from windrow.stores.window_state import START

#: The encoded key of a sample.
KEY: Final = "__key"
#: The number of its key in a layout.
_CODE = "__code"
#: Samples are laid out where they are no more than so many times those that a step reads.
DENSE = 16
#: A window of time is so many stretches long; how long one is at least.
_STRETCHES, _SHORTEST_US = 4, 1_000_000


class Layout(NamedTuple):
    """All samples of a store by key, event time and arrival.

    name: of the stored runs. rows: `TIME`, the number of the key, and what aggregations read. numbers: of the keys of a step
    """

    name: bytes
    keys: pa.Array
    rows: pa.Table
    numbers: IntArray = np.zeros(0, dtype=np.int64)

    def ordered(self, keys: list[bytes]) -> tuple[Layout, list[bytes], IntArray]:
        """Return the layout for a step of these keys; the keys in the order of their numbers; and the place there of each."""
        found = pc.index_in(pa.array(keys, pa.binary()), value_set=self.keys)
        numbers: IntArray = found.fill_null(-1).to_numpy().astype(np.int64)
        new = numbers < 0
        numbers[new] = len(self.keys) + np.arange(np.count_nonzero(new))
        order = np.argsort(numbers)
        places = np.empty(len(keys), dtype=np.int64)
        places[order] = np.arange(len(keys))
        return self._replace(numbers=numbers[order]), [keys[i] for i in order.tolist()], places

    def extended(
        self, keys: list[bytes], fresh: pa.Table, codes: IntArray, low_us: int
    ) -> tuple[Layout, BoolArray]:
        """Return the layout with more samples, without those from before `low_us`; true for places of the new ones.

        fresh: as `rows`, but for the numbers of keys, of which `codes` are the places in `keys`
        """
        new = pa.array(keys[len(keys) - np.count_nonzero(self.numbers >= len(self.keys)) :], pa.binary())
        fresh = fresh.append_column(_CODE, pa.array(self.numbers[codes])).select(self.rows.column_names)
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
        return self._replace(keys=pa.concat_arrays([self.keys, new]), rows=rows), is_new

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


def distinct(keys: pa.Array) -> tuple[pa.Array, IntArray]:
    """Return each key once, sorted, as stores read and write sorted keys faster; and the place there of each."""
    coded = keys.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return coded.dictionary.take(pa.array(order)), places[coded.indices.to_numpy()]


class Samples:
    """The samples of the windows of one definition, and what aggregations read of them. Without windows it is empty."""

    def __init__(self, definition: AlertDefinition) -> None:
        self.definition, self._size_us = definition, definition.size_us
        self._parts = parts_of(definition) if definition.agg else []
        self._agg = repr(sorted(definition.agg.items())).encode()
        self._calculated: tuple[pa.Schema, list[tuple[Part, Calculation]]] | None = None
        width_us = max((self._size_us or 0) // _STRETCHES, _SHORTEST_US)
        self._events = KeyedEvents(f"{definition.name}.samples", width_us)
        self._counted = Keyed(f"{definition.name}.tails", f"{definition.name}.aux", (KEY,), None)

    @property
    def cfs(self) -> tuple[str, ...]:
        if self._size_us is not None:
            return (self._events.cf,)
        return () if self.definition.frame is None else (self._counted.cf,)

    # -- columns ----------------------------------------------------------------------------------------------------

    def calculations(self, schema: pa.Schema) -> list[tuple[Part, Calculation]]:
        if self._calculated is None or not self._calculated[0].equals(schema):
            kept = pa.schema([schema.field(n) for n in self._kept(schema)])
            self._calculated = (schema, [(part, Calculation(part, kept)) for part in self._parts])
        return self._calculated[1]

    def _kept(self, schema: pa.Schema) -> list[str]:
        """Return the columns of samples that aggregations take."""
        if any(a.kind == "table_function" or a.expressions for a in self.definition.agg.values()):
            return list(schema.names)
        named = [c for a in self.definition.agg.values() for c in a.columns]
        return [n for n in dict.fromkeys(named) if n in schema.names]

    def _filed(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of samples as they are stored."""
        positions = [pa.field(n, t) for n, t in zip(POSITION_COLUMNS, POSITION_TYPES, strict=True)]
        own = [(TIME, pa.int64()), (ID, pa.int64()), (KEY, pa.binary())]
        return pa.schema([*(schema.field(n) for n in self._kept(schema)), *positions, *own])

    def lifts(self, schema: pa.Schema) -> bool:
        """True if the accumulators of a sample do not depend on others, and values are made of them."""
        return all(
            not calculation.ordered and None not in calculation.kernels.values()
            for _, calculation in self.calculations(schema)
        )

    def _read(self, schema: pa.Schema, rows: pa.Table) -> pa.Table:
        """Return what aggregations read of samples: their accumulators, or their columns."""
        times, columns = rows.column(TIME), dict[str, Any]()
        for _, calculation in self.calculations(schema):
            read = rows.select(read_by(calculation))
            if self.lifts(schema):
                columns |= calculation.lift(Slice(read, times.to_numpy()))
            else:
                columns |= dict(zip(read.column_names, read.columns, strict=True))
        return pa.table({TIME: times, **columns})

    # -- layouts ----------------------------------------------------------------------------------------------------

    def _shape(self, schema: pa.Schema) -> bytes:
        """Return a digest of what `_read` depends on."""
        return xxhash.xxh3_64_digest(self._agg + schema.serialize().to_pybytes())

    def layout(self, work: Work, many: int) -> Layout | None:
        """Return the cached layout; None if so many keys are few of it."""
        if self._size_us is None:
            return None
        layout = self._cached(work.kv, self._events.contents(work.kv)[0] + self._shape(work.schema))
        return layout if layout is not None and len(layout.keys) <= DENSE * many else None

    def _cached(self, kv: KV, name: bytes) -> Layout | None:
        held = DECODED.of(name_of(kv))
        held.begin()
        keys, rows = held.get(b"k" + name), held.get(b"s" + name)
        return None if keys is None or rows is None else Layout(name, combine(keys.column(KEY)), rows)

    def _keep(self, work: Work, layout: Layout) -> None:
        """Cache the layout of the samples as they are stored now."""
        held = DECODED.of(name_of(work.kv))
        name = self._events.contents(work.kv)[0] + self._shape(work.schema)
        for letter, table in ((b"k", pa.table({KEY: layout.keys})), (b"s", layout.rows)):
            held.forget(letter + layout.name)
            if not layout.sparse:
                held.put(letter + name, table)

    def _lay_out(self, work: Work, many: int) -> None:
        """Cache the layout of all samples, unless so many, which a step has read, are few of them."""
        name, n = self._events.contents(work.kv)
        stored = self._events.read(work.kv, START_OF_TIME_US, END_OF_TIME_US) if n <= DENSE * many else None
        if stored is None:
            return
        rows = conformed(stored, self._filed(work.schema))
        rows = taken(rows, np.argsort(rows.column(ID).to_numpy(), kind="stable"))
        keys, codes = distinct(combine(rows.column(KEY)))
        lines = Lines(None, codes, len(keys), rows.column(TIME).to_numpy(), None)
        laid = self._read(work.schema, taken(rows, lines.order))
        laid = laid.append_column(_CODE, pa.array(lines.codes))
        self._keep(work, Layout(name, keys, laid))

    # -- windows ----------------------------------------------------------------------------------------------------

    def window(
        self,
        work: Work,
        states: States,
        moments: IntArray,
        rows: Slice | None = None,
        codes: IntArray | None = None,
        layout: Layout | None = None,
    ) -> Window:
        """Return the samples of keys whose windows end at these moments or later, with those of the step.

        layout: of these keys, which are in its order
        """
        schema, step = self._filed(work.schema), work.progress.step
        fresh = schema.empty_table()
        if rows is None or codes is None:
            codes = np.zeros(0, dtype=np.int64)
        else:
            new = with_positions(rows.table, step).select([*self._kept(work.schema), *POSITION_COLUMNS])
            new = new.append_column(TIME, pa.array(rows.times))
            new = new.append_column(ID, pa.array((step << STEP_BITS) + np.arange(len(rows))))
            keys = pa.array(states.keys, pa.binary()).take(pa.array(codes))
            fresh = conformed(new.append_column(KEY, keys), schema)
        if layout is not None:
            return self._laid_out(work, layout, states.keys, fresh, codes)
        stored, near = self._near(work.kv, states, moments)
        table, numbers, arrival = _of_keys(stored, schema, states)
        many = len(table)
        table = pa.concat_tables([table, fresh])
        arrival, numbers = np.r_[arrival, many + np.arange(len(fresh))], np.r_[numbers, codes]
        times = table.column(TIME).to_numpy()[arrival]
        lines = Lines(None, numbers[arrival], len(states), times, None)
        lines.order = arrival[lines.order]
        read = self._read(work.schema, taken(table, lines.order))
        return Window(read, lines, lines.order >= many, fresh, codes, table, near)

    def _laid_out(
        self, work: Work, layout: Layout, keys: list[bytes], fresh: pa.Table, codes: IntArray
    ) -> Window:
        new: BoolArray = np.zeros(len(layout.rows), dtype=bool)
        if len(fresh):
            low_us = limit(work.progress.watermark_us, self._size_us or 0)
            layout, new = layout.extended(keys, self._read(work.schema, fresh), codes, low_us)
        places = np.full(len(layout.keys) + len(keys), -1)
        places[layout.numbers] = np.arange(len(keys))
        rows, own = layout.rows, places[layout.codes]
        asked = own >= 0
        if not asked.all():
            rows, own, new = taken(rows, np.flatnonzero(asked)), own[asked], new[asked]
        lines = Lines(None, own, len(keys), rows.column(TIME).to_numpy(), None, in_order=True)
        return Window(rows, lines, new, fresh, codes, layout=layout)

    def _near(self, kv: KV, states: States, moments: IntArray) -> tuple[pa.Table | None, Any]:
        """Return stored samples, those of these keys among them, and what `count` needs."""
        n, keys = len(states), states.keys
        if self._size_us is not None:
            low_us = np.where(states.there, back(moments, self._size_us), END_OF_TIME_US)
            high_us = np.where(states.there, END_OF_TIME_US, START_OF_TIME_US)
            return self._events.read_keys(kv, hashes_of(keys), low_us, high_us), None
        if self.definition.frame is None:
            return None, None
        asked = pa.table({KEY: pa.array(keys, pa.binary())})
        zeros, every = np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
        found = self._counted.near(kv, asked, zeros, every, START_OF_TIME_US)
        if found.rows is None:
            return None, (found, [])
        own = pc.is_in(found.rows.column(KEY), value_set=asked.column(KEY).chunk(0))
        beside = found.rows.filter(pc.invert(own))
        return found.rows.drop_columns([START]).filter(own), (found, [beside])

    # -- writing ----------------------------------------------------------------------------------------------------

    def file(self, work: Work, states: States, window: Window, moments: IntArray) -> None:
        """File the samples of a window of time that are new, but for those that have left it by these moments."""
        stays = window.fresh.column(TIME).to_numpy() + (self._size_us or 0) >= moments[window.codes]
        fresh = window.fresh if stays.all() else window.fresh.filter(pa.array(stays))
        if len(fresh):
            hashes = hashes_of(states.keys)[window.codes[stays]]
            self._events.add(work.kv, fresh.append_column(HASH, pa.array(hashes)), work.progress.step)
        if window.layout is None:
            self._lay_out(work, len(window.lines))
        else:
            self._keep(work, window.layout)

    def count(self, work: Work, window: Window, floors: IntArray, open_: BoolArray) -> BoolArray:
        """Store counted samples of the keys that were read, from these places on. Returns true for the keys that have such."""
        lines, rows = window.lines, self.definition.rows
        assert rows is not None and window.source is not None
        inside = np.arange(len(lines)) >= floors[lines.codes]
        inside &= lines.ends - np.arange(len(lines)) <= rows
        filled: BoolArray = np.bincount(lines.codes[inside], minlength=lines.size) > 0
        kept = np.empty(len(lines), dtype=bool)
        kept[lines.order] = inside & (filled | open_)[lines.codes]
        fresh, (found, beside) = window.source.filter(pa.array(kept)), window.near
        fresh = fresh.append_column(START, pa.array(np.zeros(len(fresh), dtype=np.int64)))
        self._counted.put(work.kv, found, [*beside, fresh])
        return filled

    def forget(self, work: Work, watermark_us: int) -> None:
        """Forget samples that no window of time holds; the layout stays."""
        if self._size_us is None:
            return
        layout = self.layout(work, END_OF_TIME_US)
        self._events.forget(work.kv, limit(watermark_us, self._size_us))
        if layout is not None:
            self._keep(work, layout)


def _of_keys(
    stored: pa.Table | None, schema: pa.Schema, states: States
) -> tuple[pa.Table, IntArray, IntArray]:
    """Return stored samples without those of other keys, the numbers of their keys, and the order in which they came."""
    if stored is None:
        none = np.zeros(0, dtype=np.int64)
        return schema.empty_table(), none, none
    found = pc.index_in(combine(stored.column(KEY)), value_set=pa.array(states.keys, pa.binary()))
    codes = found.fill_null(-1).to_numpy().astype(np.int64)
    known = (codes >= 0) & states.there[codes]
    if not known.all():
        stored, codes = stored.filter(pa.array(known)), codes[known]
    arrival = np.argsort(stored.column(ID).to_numpy(), kind="stable")
    return conformed(stored, schema), codes, arrival
