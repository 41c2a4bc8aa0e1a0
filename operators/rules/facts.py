"""Facts of rules: the current rows of a table, and their join with the events of tuples.

    <rules>.<table>.rows    <partition><key> -> row and position; without key <partition><position>

A tuple that names the whole key looks its row up; any other one is joined with the rows of its partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_u32, encode_u32
from windrow.core.inputs import Facts, Input
from windrow.core.keys import encode_equal
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, START
from windrow.operators.rules.chains import PAIRS, equal_codes, related
from windrow.operators.rules.matches import match_ids
from windrow.operators.rules.patterns import Pattern, Rule, references
from windrow.operators.rules.rule_intake import truth_of
from windrow.operators.rules.subpatterns import Failures, OfTuples
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import event_times
from windrow.operators.steps.message_rows import pack_rows, unpack_rows
from windrow.operators.steps.pairing import NO_KEY, partners
from windrow.stores.kv import KV, Batch

#: The last key of a range that holds all rows.
_AFTER_ALL = b"\xff" * 9


class Partitioned(NamedTuple):
    """The rows of a table, and the partition of each."""

    rows: pa.Table
    partitions: list[bytes]


class FactRows:
    """The rows of one table. Holds no state of its own. by: its partition columns."""

    def __init__(self, cf: str, aux_cf: str, input: Input, by: tuple[str, ...]) -> None:
        assert input.facts is not None
        self.cf, self._aux_cf, self.by = cf, aux_cf, by
        self.facts: Facts = input.facts
        self.key = self.facts.key

    def file(self, kv: KV, rows: pa.Table) -> pa.Table:
        """Replace, add or delete the rows of messages in position order; give the rows that are current because of them."""
        names = self._names(rows)
        last = np.sort(np.array([*{name: i for i, name in enumerate(names)}.values()], dtype=np.int64))
        deleted = self._deleted(rows)
        batch = Batch()
        current = last[~deleted[last]]
        batch.delete_many(self.cf, [names[i] for i in last[deleted[last]].tolist()])
        kept = rows.take(pa.array(current))
        values = pack_rows(kv, batch, self._aux_cf, kept, with_positions=True)
        heads = self.partitions(kept, self.by)
        found = [names[i] for i in current.tolist()]
        batch.put_many(self.cf, found, [encode_u32(len(h)) + v for h, v in zip(heads, values, strict=True)])
        kv.write(batch)
        return kept

    def _names(self, rows: pa.Table) -> list[bytes]:
        heads = self.partitions(rows, self.by)
        columns = POSITION_COLUMNS if self.key is None else self.key
        keys = encode_equal([combine(rows.column(name)) for name in columns])
        return [head + key for head, key in zip(heads, keys, strict=True)]

    def _deleted(self, rows: pa.Table) -> BoolArray:
        if self.facts.deleted is None:
            return np.zeros(len(rows), dtype=bool)
        truth = truth_of(rows.column(self.facts.deleted))
        assert truth is not None  # others are dead letters
        return truth

    @staticmethod
    def partitions(rows: pa.Table, by: Sequence[str]) -> list[bytes]:
        """Encode the partition of each row."""
        return encode_equal([combine(rows.column(name)) for name in by]) if by else [b""] * len(rows)

    def of_tuples(
        self, kv: KV, tuples: pa.Table, by: Sequence[str], named: Mapping[str, str], schema: pa.Schema
    ) -> Partitioned:
        """Read the rows that tuples may go with.

        by: the partition columns of tuples. named: the column of tuples that each own column equals
        """
        heads = self.partitions(tuples, by if self.by else ())
        named = dict(zip(self.by, by, strict=False)) | dict(named)
        pairs: list[tuple[bytes, bytes]] = []
        if self.key is not None and all(column in named for column in self.key):
            keys = encode_equal([combine(tuples.column(named[column])) for column in self.key])
            asked = list(dict.fromkeys(head + key for head, key in zip(heads, keys, strict=True)))
            found = zip(asked, kv.multi_get(self.cf, asked), strict=True)
            pairs = [(name, value) for name, value in found if value is not None]
        else:
            for head in dict.fromkeys(heads):
                pairs += kv.scan(self.cf, head, head + _AFTER_ALL)
        rows = unpack_rows(kv, self._aux_cf, [value[4:] for _, value in pairs], None, schema)
        return Partitioned(rows, [name[: decode_u32(value[:4])] for name, value in pairs])


def clear_all(kv: KV, cfs: Sequence[str]) -> None:
    """Drop all rows of these."""
    batch = Batch()
    for cf in cfs:
        batch.delete_range(cf, b"", _AFTER_ALL)
    kv.write(batch)


@dataclass(frozen=True)
class FactJoin:
    """The join of tuples with the rows of one pattern."""

    binding: str
    pattern: Pattern
    input: Input
    store: FactRows
    #: Pairs of an own column and a column of tuples that are equal.
    on: tuple[tuple[str, str], ...]
    #: The own columns that tuples get.
    columns: tuple[str, ...]

    def pairs(
        self, tuples: pa.Table, by: Sequence[str], facts: Partitioned
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Find which rows go with which tuples, a slice at a time. by: the partition columns of tuples."""
        heads, n = self.store.partitions(tuples, by if self.store.by else ()), len(tuples)
        numbers = {head: i for i, head in enumerate(dict.fromkeys(heads))}
        left = np.array([numbers[head] for head in heads], dtype=np.int64)
        right = np.array([numbers.get(head, NO_KEY) for head in facts.partitions], dtype=np.int64)
        sides = [(combine(tuples.column(other)), combine(facts.rows.column(own))) for own, other in self.on]
        if sides:
            left, right = equal_codes(left, right, sides)
        low, high = np.full(n, -INFINITE_US, dtype=np.int64), np.full(n, INFINITE_US, dtype=np.int64)
        found = partners(left, low, high, right, np.zeros(len(right), dtype=np.int64))
        cuts = [np.arange(n, dtype=np.int64)]
        if int(found.n.sum()) > PAIRS:
            cuts = np.split(cuts[0], np.flatnonzero(np.diff(np.cumsum(found.n) // PAIRS)) + 1)
        for cut in cuts:
            of, at = found.of(cut)
            if len(of):
                yield of, at

    def bound(self, tuples: pa.Table, rows: pa.Table, of: IntArray, at: IntArray) -> pa.Table:
        """Give pairs as tuples with the columns of this pattern."""
        table, taken = tuples.take(pa.array(of)), rows.take(pa.array(at))
        if not self.input.stamped:
            input = self.input
            times = event_times(
                taken.column(input.event_time), input.event_time, input.time_zone, input.event_time_unit
            )
            for place in (START, END):
                table = table.append_column(f"{self.binding}.{place}", times)
        for name in (*self.columns, *POSITION_COLUMNS):
            table = table.append_column(f"{self.binding}.{name}", combine(taken.column(name)))
        return table


def equal_pairs(rule: Rule, binding: str, bound: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Give the own columns of a fact that equal columns of patterns that are bound: (own, `binding.column`)."""
    own = [(column, other) for column, other in rule.when[binding].on if other.partition(".")[0] in bound]
    theirs = [
        (other.partition(".")[2], f"{name}.{column}")
        for name in bound
        for column, other in rule.when[name].on
        if other.partition(".")[0] == binding
    ]
    return tuple(dict.fromkeys([*own, *theirs]))


def named_for_facts(rule: Rule) -> Iterator[tuple[str, str]]:
    """Give the columns that joins with facts need of bindings, besides those that patterns name of each other."""
    facts = rule.facts
    for binding, pattern in rule.when.items():
        if not pattern.binds:
            continue
        for own, other in pattern.on:
            if binding in facts or other.partition(".")[0] in facts:
                yield binding, own
        for relation in pattern.time:
            if relation.this is not None and (binding in facts or relation.binding in facts):
                yield binding, relation.this


@dataclass(frozen=True)
class FactsOfRule:
    """The joins of one rule with its facts. by: the partition columns of tuples; schemas: of the tables, by input."""

    name: str
    rule: Rule
    joins: tuple[FactJoin, ...]
    by: tuple[str, ...]
    schemas: Mapping[str, pa.Schema]
    inputs: Mapping[str, Input]

    def bound(self, kv: KV, tuples: pa.Table) -> Iterator[pa.Table]:
        """Give the tuples with each combination of current rows, a slice at a time."""
        yield from self._bound(kv, tuples, 0, {}, "")

    def come_late(
        self,
        kv: KV,
        tuples: pa.Table,
        new: Mapping[str, pa.Table],
        open_until: Mapping[str, IntArray],
        done_us: int,
    ) -> Iterator[pa.Table]:
        """Give the tuples that new rows complete. new: these rows by table; open_until: of each that waits, for how long."""
        firsts = [j.binding for j in self.joins if j.pattern.input in new and j.binding in open_until]
        known: set[str] = set()
        for binding in firsts:
            waiting = tuples.filter(pa.array(open_until[binding] >= done_us))
            for bound in self._bound(kv, waiting, 0, new, binding):
                yield self._unknown(bound, known) if len(firsts) > 1 else bound

    def _unknown(self, tuples: pa.Table, known: set[str]) -> pa.Table:
        """Leave out the tuples that new rows of another pattern have completed."""
        ids = match_ids(self.name, tuples, list(self.inputs)).to_pylist()
        fresh = [i for i, name in enumerate(ids) if name not in known]
        known.update(ids)
        return tuples.take(pa.array(fresh, pa.int64()))

    def _bound(
        self, kv: KV, tuples: pa.Table, number: int, new: Mapping[str, pa.Table], first: str
    ) -> Iterator[pa.Table]:
        """Join with the pattern of that number, and those after it. first: the one that takes new rows alone."""
        if not len(tuples):
            return
        if number == len(self.joins):
            kept = self._related(tuples)
            yield tuples if kept.all() else tuples.filter(pa.array(kept))
            return
        join = self.joins[number]
        facts = self._rows(kv, join, tuples, new, first)
        for of, at in join.pairs(tuples, self.by, facts):
            yield from self._bound(kv, join.bound(tuples, facts.rows, of, at), number + 1, new, first)

    def _rows(
        self, kv: KV, join: FactJoin, tuples: pa.Table, new: Mapping[str, pa.Table], first: str
    ) -> Partitioned:
        table, store = join.pattern.input, join.store
        if join.binding == first:
            rows = new[table]
            facts = Partitioned(rows, store.partitions(rows, store.by))
        else:
            facts = store.of_tuples(kv, tuples, self.by, dict(join.on), self.schemas[table])
        kept = np.ones(len(facts.rows), dtype=bool)
        where = join.pattern.where
        if where is not None and not any(references(where)):
            kept = Failures(lambda *_: None).true(self.name, join.binding, where, facts.rows)
        if kept.all():
            return facts
        at = np.flatnonzero(kept)
        return Partitioned(facts.rows.take(pa.array(at)), [facts.partitions[i] for i in at.tolist()])

    def _related(self, tuples: pa.Table) -> BoolArray:
        """True for the tuples for which the temporal operators hold that compare with facts."""
        kept, facts = np.ones(len(tuples), dtype=bool), self.rule.facts
        moments = OfTuples(tuples, self.inputs)
        for binding, pattern in self.rule.when.items():
            for relation in pattern.time if pattern.binds else ():
                if binding in facts or relation.binding in facts:
                    kept &= related(binding, relation, moments, len(tuples))
        return kept
