"""Aggregations of the last messages of a partition: `wr.accumulate(frame=)`.

A frame of time is evaluated at each message and as each leaves the frame, once the watermark has passed that moment. Such a
rule is one of an event, the evaluation, and an accumulate near it, so it is run as any other. A frame of messages is evaluated
at each message as it comes. A row is emitted where an evaluation changes the result.

An event with a frame of messages, `wr.event(frame=10)`, is one of the newest of its partition as the tuple is complete. The
messages of a step are in the order of the inputs of the definition, and in position order within each.

    <rules>.tails    <number of the rule><binding of an event><partition> -> the last messages of the partition
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import encode_u32
from windrow.core.frames import RangeBetween, RowsBetween
from windrow.core.inputs import Input
from windrow.core.relations import Relation
from windrow.core.temporal import END, START
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import as_type
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.over.frame_values import over_frame
from windrow.operators.over.partitions import Bounds
from windrow.operators.rules.chains import PAIRS, Candidates
from windrow.operators.rules.matches import match_ids
from windrow.operators.rules.patterns import Pattern, Rule
from windrow.operators.rules.subpatterns import PARTITION_HASH, Decision, Failures, aggregates
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.message_rows import pack_rows, unpack_rows
from windrow.operators.steps.pairing import partners
from windrow.stores.kv import KV, Batch

#: True for the evaluation as a message leaves; the deadline of an evaluation.
LEAVES, DUE = "__leaves", "__due"
#: The binding of an evaluation begins with this; the rest is that of the accumulate.
EVALUATION = "__"
#: Messages of a step are numbered in so many bits.
_ORDER_BITS = 40


def evaluation_of(rule: Rule) -> str | None:
    """Return the binding of the evaluations of a rule that is run; None where it has no frame."""
    return next((binding for binding in rule.when if binding.startswith(EVALUATION)), None)


def evaluated(rule: Rule) -> Rule:
    """Give the rule that is run: an accumulate with a frame has an event for its evaluations."""
    if rule.framed is None:
        return rule
    pattern, binding = rule.when[rule.framed], EVALUATION + rule.framed
    near = pattern
    if isinstance(pattern.frame, RangeBetween):
        near = replace(pattern, frame=None, time=(Relation("before", binding, (0, -pattern.frame.low_us)),))
    event = Pattern("event", pattern.input, pattern.where)
    return rule.over({binding: event, **rule.facts, rule.framed: near})


def shifted(tuples: pa.Table, binding: str, by_us: int) -> pa.Table:
    """Give evaluations so long after the ends of their messages; a message is in a frame from its end on."""
    moved = pa.array(combine(tuples.column(f"{binding}.{END}")).to_numpy() + by_us)
    for place in (START, END):
        name = f"{binding}.{place}"
        tuples = tuples.set_column(tuples.column_names.index(name), name, moved)
    return tuples


def first_of_each(tuples: pa.Table, by: tuple[str, ...], binding: str) -> IntArray:
    """Give the first of the evaluations of a partition at one moment."""
    columns = [combine(tuples.column(name)) for name in (*by, f"{binding}.{END}")]
    codes = Groups(columns, len(tuples)).codes
    return np.sort(np.unique(codes, return_index=True)[1])


def leaving_ids(rule: str, tuples: pa.Table, bindings: list[str]) -> pa.Array:
    """Compute the ids of evaluations: one as a message leaves has another id than the one at the message."""
    comes, leaves = (match_ids(name, tuples, bindings) for name in (rule, f"{rule}\0leaves"))
    return pc.if_else(combine(tuples.column(LEAVES)), leaves, comes)


def changed(before: pa.Table, after: pa.Table, names: list[str]) -> BoolArray:
    """True for the rows in which a value differs."""
    differs = np.zeros(len(after), dtype=bool)
    for name in names:
        one, other = combine(before.column(name)), combine(after.column(name))
        null = pc.not_equal(one.is_null(), other.is_null())
        try:
            unequal = pc.fill_null(pc.not_equal(one, other), False)
            if pa.types.is_floating(one.type):
                both_nan = pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False)
                unequal = pc.and_(unequal, pc.invert(both_nan))
        except pa.ArrowNotImplementedError:  # lists and structs
            unequal = pa.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)])
        differs |= pc.or_(null, unequal).to_numpy(zero_copy_only=False)
    return differs


def over_evaluations(
    decision: Decision, calculation: Calculation, tuples: pa.Table, evaluation: str, failures: Failures
) -> tuple[pa.Table, BoolArray]:
    """Add the aggregates of the frame of time that ends at each evaluation; say where a moment before they were others, and
    `having` is true."""
    pattern, rule, binding = decision.pattern, decision.rule, decision.binding
    size_us = min(pattern.time[0].distances[1], decision.timing.expires_us.get(binding, END_OF_TIME_US))
    at = combine(tuples.column(f"{evaluation}.{END}")).to_numpy()
    partition_hashes = combine(tuples.column(PARTITION_HASH)).to_numpy()
    messages = decision.read(partition_hashes, at - size_us - 1, at)
    rows = np.flatnonzero(messages.fits[rule, binding])
    left, right = decision.codes(tuples, messages.table.take(pa.array(rows)))
    found = [partners(left, at - size_us - us, at - us, right, messages.ends[rows]) for us in (0, 1)]
    rows = rows[found[0].order]
    taken = Slice(messages.table.take(pa.array(rows)), messages.ends[rows])
    lifted, whole = calculation.lift(taken), np.ones(len(tuples), dtype=bool)
    now, before = (
        over_frame(calculation, taken, lifted, Bounds(part.first, part.first + part.n, whole), "emit")
        for part in found
    )
    kept = whole.copy()
    for one in now.broken:
        kept[one.group] = False
        failures.report(rule, f"{binding}: {one.alias}: {one.error}", tuples, one.group)
    none, made = [pa.array(part.n == 0) for part in found], dict[str, list[pa.Array]]()
    for f in calculation.output:
        columns = [as_type(combine(values.columns[f.name]), f.type) for values in (now, before)]
        if f.name in pattern.empty:
            fill = pa.scalar(pattern.empty[f.name], f.type)
            columns = [pc.if_else(n, fill, column) for n, column in zip(none, columns, strict=True)]
        made[f.name] = columns
        tuples = tuples.append_column(f"{binding}.{f.name}", columns[0])
    after, former = (pa.table({name: columns[i] for name, columns in made.items()}) for i in (0, 1))
    kept &= changed(former, after, list(made))
    asked = np.flatnonzero(kept)
    kept[asked] = failures.having(rule, binding, pattern, tuples.take(pa.array(asked)))
    return tuples, kept


class Tails:
    """The last messages of each partition, for a frame of messages. Holds no state of its own. number: of the rule"""

    def __init__(self, cf: str, aux_cf: str, number: int, frame: RowsBetween, binding: str = "") -> None:
        self._cf, self._aux_cf, self._head = cf, aux_cf, encode_u32(number) + binding.encode()
        if binding:
            self._head += b"\0"
        assert frame.low is not None
        self.size = 1 - frame.low

    def extended(
        self, kv: KV, new: pa.Table, partitions: list[bytes], schema: pa.Schema, others: Iterable[bytes] = ()
    ) -> Extended:
        """Read the last messages of the partitions of new ones, put these after them, and keep the last ones of all.

        others: partitions of which the last messages are read, too
        """
        names = list(dict.fromkeys([*partitions, *others]))
        numbers = {name: i for i, name in enumerate(names)}
        kept = kv.multi_get(self._cf, [self._head + name for name in names])
        values = [[] if value is None else msgpack.unpackb(value) for value in kept]
        old = unpack_rows(kv, self._aux_cf, [v for tail in values for v in tail], None, schema)
        of_old = np.repeat(np.arange(len(names)), [len(tail) for tail in values])
        of_new = np.array([numbers[name] for name in partitions], dtype=np.int64)
        rows = pa.concat_tables([old, new.select(old.column_names)]).combine_chunks()
        codes = np.concatenate([of_old, of_new]).astype(np.int64)
        order = np.argsort(codes, kind="stable")
        batch = Batch()
        packed = pack_rows(kv, batch, self._aux_cf, new, with_positions=True)
        for value, at in zip(packed, of_new.tolist(), strict=True):
            values[at].append(value)
        touched = names[: len(set(partitions))]
        lasts = [msgpack.packb(values[i][-self.size :]) for i in range(len(touched))]
        batch.put_many(self._cf, [self._head + name for name in touched], lasts)
        kv.write(batch)
        return Extended(
            rows.take(pa.array(order)), codes[order], (order >= len(old)), np.argsort(order)[len(old) :]
        )


class Extended:
    """Messages by partition, old ones before new ones.

    places: of the new ones, in their order
    """

    def __init__(self, rows: pa.Table, codes: IntArray, new: BoolArray, places: IntArray) -> None:
        self.rows, self.codes, self.new, self.places = rows, codes, new, places
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        self._begin = begins[np.searchsorted(begins, np.arange(len(codes)), side="right") - 1]

    def windows(self, at: IntArray, size: int) -> tuple[IntArray, IntArray]:
        """Give the messages of the frame that ends at each of these places: (number of the frame, place of the message)."""
        low = np.maximum(at - size + 1, self._begin[at])
        counts = at - low + 1
        frames = np.repeat(np.arange(len(at)), counts)
        offsets = np.arange(len(frames)) - np.repeat(np.cumsum(counts) - counts, counts)
        return frames, np.repeat(low, counts) + offsets

    def before(self, at: IntArray) -> tuple[IntArray, BoolArray]:
        """Give the place before each of these, and which of them have one in their partition."""
        there = at > self._begin[at]
        return np.where(there, at - 1, at), there


@dataclass(frozen=True)
class Newest:
    """The newest messages of an event with a frame of messages, at each moment of a step.

    places: of each candidate in the list of last messages, -1 for others. keys: of that list, by partition and order of coming
    """

    binding: str
    size: int
    places: IntArray
    codes: IntArray
    keys: IntArray

    @classmethod
    def of(cls, binding: str, size: int, extended: Extended, messages: Candidates, first: int) -> Newest:
        """Find the candidates of a step among the last messages. first: the order of the first new message of their input"""
        both = [
            pa.concat_arrays([combine(t.column(n)).cast(kind) for t in (extended.rows, messages.table)])
            for n, kind in zip(POSITION_COLUMNS, (pa.string(), *[pa.int64()] * 3), strict=True)
        ]
        n = len(extended.rows)
        codes = Groups(both, n + len(messages.table)).codes
        place_of = np.full(int(codes.max(initial=-1)) + 1, -1, dtype=np.int64)
        place_of[codes[:n]] = np.arange(n)
        places = place_of[codes[n:]]
        orders = np.full(n, -1, dtype=np.int64)
        rows = np.flatnonzero(places[: messages.new] >= 0)
        orders[places[rows]] = first + rows
        return cls(binding, size, places, extended.codes, (extended.codes << _ORDER_BITS) + orders + 1)

    def takes(self, rows: IntArray, latest: IntArray) -> BoolArray:
        """True for the tuples whose message is one of the newest as they are complete, at `latest`. rows: candidates"""
        places = self.places[rows]
        there = places >= 0
        ends = np.searchsorted(self.keys, (self.codes[places] << _ORDER_BITS) + latest + 1, side="right")
        return there & (ends - places <= self.size)


@dataclass(frozen=True)
class FrameOfRows:
    """The evaluations of a frame of messages of one pattern."""

    rule: str
    binding: str
    pattern: Pattern
    input: Input
    calculation: Calculation

    def evaluate(
        self, tuples: pa.Table, extended: Extended, size: int, failures: Failures
    ) -> tuple[pa.Table, BoolArray]:
        """Add the aggregates of the frame that ends at each new message; say where they differ from those before it."""
        now = self._values(extended, extended.places, size, failures)
        at, there = extended.before(extended.places)
        before = self._values(extended, at, size, Failures(lambda *_: None))
        names = list(now.table.column_names)
        kept = (~there | changed(before.table, now.table, names)) & now.right
        for name in names:
            tuples = tuples.append_column(f"{self.binding}.{name}", combine(now.table.column(name)))
        return tuples, kept

    def _values(self, extended: Extended, at: IntArray, size: int, failures: Failures) -> Evaluated:
        right, parts = np.ones(len(at), dtype=bool), []
        step = max(PAIRS // size, 1)
        for start in range(0, max(len(at), 1), step):
            chunk = at[start : start + step]
            frames, places = extended.windows(chunk, size)
            rows = extended.rows.take(pa.array(places))
            values, broken = aggregates(self.calculation, Slice(rows, self._times(rows)), frames, len(chunk))
            for one in broken:
                right[start + one.group] = False
                last = extended.rows.slice(int(chunk[one.group]), 1)
                failures.report(self.rule, f"{self.binding}: {one.alias}: {one.error}", last, 0)
            parts.append(pa.table({f.name: as_type(values[f.name], f.type) for f in self.calculation.output}))
        return Evaluated(pa.concat_tables(parts).combine_chunks(), right)

    def _times(self, rows: pa.Table) -> IntArray:
        input = self.input
        if input.stamped:
            return np.zeros(len(rows), dtype=np.int64)
        times = event_times(
            rows.column(input.event_time), input.event_time, input.time_zone, input.event_time_unit
        )
        found: IntArray = times.fill_null(0).to_numpy(zero_copy_only=False)
        return found


class Evaluated(NamedTuple):
    """Aggregates of frames, and True for those that did not raise."""

    table: pa.Table
    right: BoolArray
