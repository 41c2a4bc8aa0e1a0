"""Delivery stage: wraps an operator whose inputs have delivery policies. A skipped message still advances the watermark.

The choice follows from the messages of the step, its recorded `now` and, for `wr.deliver.throttle`, the operator's progress:
`~k<input u8><key>` -> when a message of the key was accepted last, i64; and a timer under `~t<input u8>`. Both are deleted
when the interval is over.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.deliver import Policy
from windrow.core.errors import ReservedColumn
from windrow.core.inputs import Input
from windrow.core.keys import encode_equal
from windrow.core.positions import Partition
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition, Logic, Refiling, RunAgain
from windrow.operators.steps.arrivals import InputReading
from windrow.operators.steps.dead_letters import SKIPPED, DeadLetters, letters_by_input
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.input_filter import divided, further
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.poison_rows import sifted, sifted_into
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV, Batch, Overlay
from windrow.stores.timers import TimerIndex

#: A row's index in the table of its step.
_AT = "__at"
_BESIDE = "column {0!r} of the input has the name of the mark: give the mark another one"


def delivering(logic: Logic) -> Logic:
    """Wrap the logic of an operator in the policies of its inputs, if there are any."""
    return Delivering(logic) if logic.definition.policies else logic


def counted(definition: Definition, input: Input, table: pa.Table, now_us: int) -> Slice:
    """Return the messages that an operator counts, in position order."""
    return countable_rows(InputReading.of(definition, input), table, now_us, DeadLetters(0))


@dataclass
class Chosen:
    """The messages of a step that the policies accept, and the event-time marks of those that only advance the watermark."""

    tables: dict[str, pa.Table]
    dead: DeadLetters
    marks: dict[Partition, int] = field(default_factory=dict)
    skipped: int = 0
    batch: Batch = field(default_factory=Batch)


class Throttle:
    """The time at which a message of each key of an input was accepted last."""

    def __init__(self, cf: str, place: int, interval_us: int) -> None:
        self._cf, self._interval_us = cf, interval_us
        self._key, self._timers = b"~k" + bytes([place]), TimerIndex(cf, b"~t" + bytes([place]))

    def last_us(self, kv: KV, keys: Sequence[bytes]) -> IntArray:
        values = kv.multi_get(self._cf, [self._key + key for key in keys])
        return np.array([START_OF_TIME_US if v is None else decode_i64(v) for v in values], dtype=np.int64)

    def rests(self, kv: KV, keys: Sequence[bytes], now_us: int) -> BoolArray:
        """True for keys of which a message was accepted in the interval before `now_us`."""
        rests: BoolArray = self.last_us(kv, keys) > now_us - self._interval_us
        return rests

    def took(self, batch: Batch, keys: Sequence[bytes], now_us: int) -> None:
        at = encode_i64(now_us)
        batch.put_many(self._cf, [self._key + key for key in keys], [at] * len(keys))
        self._timers.set_many(batch, np.full(len(keys), now_us, dtype=np.int64), keys)

    def forget(self, kv: KV, now_us: int, *, everything: bool) -> None:
        """Delete entries whose interval is over, or all of them."""
        until_us = END_OF_TIME_US if everything else now_us - self._interval_us
        due = self._timers.pop(kv, batch := Batch(), until_us)
        if due:
            over = np.flatnonzero(self.last_us(kv, due.keys) == due.times)
            batch.delete_many(self._cf, [self._key + due.keys[i] for i in over.tolist()])
            kv.write(batch)


class Delivering(Logic):
    """Logic that applies delivery policies. logic: the operator, which receives accepted messages and owns its state."""

    def __init__(self, logic: Logic) -> None:
        self.definition, self.aux_cf, self._logic = logic.definition, logic.aux_cf, logic
        self.takes_columns, self.adds_columns = logic.takes_columns, logic.adds_columns
        self._throttles = {
            input.name: Throttle(self.aux_cf, place, policy.interval_us)
            for place, input in enumerate(self.definition.inputs)
            if (policy := self.definition.policies.get(input.name)) and policy.interval_us is not None
        }

    def cfs(self) -> tuple[str, ...]:
        return self._logic.cfs()

    def stays(self, key: bytes, value: bytes) -> bool:
        return self._logic.stays(key, value)

    # -- the two steps ----------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        for throttle in self._throttles.values():
            throttle.forget(kv, now_us, everything=watermark_us >= END_OF_TIME_US)
        return self._logic.advance(kv, watermark_us, now_us)

    def silence(self, inputs: frozenset[str]) -> None:
        self._logic.silence(inputs)

    def apart(self, before: KV) -> Delivering:
        copied = copy.copy(self)
        copied._logic = self._logic.apart(before)
        return copied

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        # The policies choose once, whatever the operator does: a message on which it raises has used its place.
        chosen = sifted(partial(self._chosen, now_us), Overlay(kv), tables)
        result = sifted_into(partial(self._ingested, now_us), kv, chosen.tables)
        kv.write(chosen.batch)
        result.marks = further(result.marks, chosen.marks)
        if chosen.skipped:
            result.counts["skipped"] = result.counts.get("skipped", 0) + chosen.skipped
        for reason, n in chosen.dead.counts.items():
            result.counts[f"dead.{reason}"] = result.counts.get(f"dead.{reason}", 0) + n
        letters = letters_by_input(chosen.dead.table())
        parts = [table for table in (result.dead, letters) if table is not None]
        result.dead = pa.concat_tables(parts) if parts else None
        return result

    def _ingested(self, now_us: int, kv: KV, tables: Mapping[str, pa.Table]) -> StepResult:
        return self._logic.ingest(kv, tables, now_us)

    def _chosen(self, now_us: int, kv: KV, tables: Mapping[str, pa.Table]) -> Chosen:
        """Apply the policies to a step. Raises where a condition cannot be computed for a message."""
        chosen = Chosen(dict(tables), DeadLetters(self.definition.dead_letter_limit))
        for input in self.definition.inputs:
            policy, table = self.definition.policies.get(input.name), tables.get(input.name)
            if policy is None or table is None:
                continue
            chosen.dead.input = input.shown
            rows = self._countable(kv, input, table, now_us)
            passes = self._passes(kv, chosen, input, policy, rows, now_us)
            if policy.mark is not None:
                self._mark(chosen, input.name, policy.mark, table, rows.take(np.flatnonzero(~passes)))
            elif not passes.all():
                self._skip(chosen, input, policy, table, rows.take(np.flatnonzero(~passes)))
        return chosen

    def _countable(self, kv: KV, input: Input, table: pa.Table, now_us: int) -> Slice:
        """Return the messages to choose from, in position order. A message that the operator does not count takes no place."""
        # In the form in which the operator reads it, before the conditions do.
        reading, known = InputReading.of(self.definition, input), self._logic.schema_of(kv, input.name)
        table = reading.in_known_times(table, known)
        table = table.append_column(_AT, pa.array(np.arange(len(table))))
        if input.where is not None:
            table, _ = divided(input.where, table)
        return countable_rows(reading, table, now_us, DeadLetters(0))

    def _passes(
        self, kv: KV, chosen: Chosen, input: Input, policy: Policy, rows: Slice, now_us: int
    ) -> BoolArray:
        """True for messages that the policy accepts."""
        sure = np.zeros(len(rows), dtype=bool)
        if policy.guaranteed is not None and len(rows):
            truth = pc.fill_null(combine(policy.guaranteed.evaluate(rows.table, "guarantee")), False)
            sure = np.asarray(truth.to_numpy(zero_copy_only=False), dtype=bool)
        if policy.within_us is not None:
            young: BoolArray = now_us - rows.times <= policy.within_us
            return young | sure
        by = self.definition.keys(input) if policy.per == "key" else ()
        groups = Groups([rows.table.column(b) for b in by], len(rows))
        if policy.newest is not None:
            return _newest(groups, sure, np.full(groups.size, policy.newest))
        throttle, first = self._throttles[input.name], pa.array(groups.first_rows)
        keys = encode_equal([combine(rows.table.column(b)).take(first) for b in by]) if by else [b""]
        passes = _newest(groups, sure, np.where(throttle.rests(kv, keys[: groups.size], now_us), 0, 1))
        took = np.unique(groups.codes[passes]).tolist()
        throttle.took(chosen.batch, [keys[code] for code in took], now_us)
        return passes

    def _skip(self, chosen: Chosen, input: Input, policy: Policy, table: pa.Table, rows: Slice) -> None:
        """Drop these rows from the step. They still advance the watermark."""
        chosen.tables[_name(chosen, table)] = table.filter(pa.array(~_places(table, rows)))
        prefix = input.source_prefix
        marks = {(source or prefix, p): us for (source, p), us in event_time_marks(rows).items()}
        chosen.marks = further(chosen.marks, marks)
        chosen.skipped += len(rows)
        if policy.record is not None:
            every = np.arange(len(rows))
            chosen.dead.add_rows(SKIPPED, f"by {policy!r}", rows.table, every, pa.array(rows.times))

    def _mark(self, chosen: Chosen, input: str, mark: str, table: pa.Table, rows: Slice) -> None:
        """Add a column to the table that is true for these rows, which the policy does not accept."""
        self._marked(input, table.schema)
        marked = table.append_column(mark, pa.array(_places(table, rows)))
        chosen.tables[_name(chosen, table)] = marked
        chosen.skipped += len(rows)

    # -- lost messages ----------------------------------------------------------------------------------------------

    def refiling(self) -> Refiling | None:
        again = self._logic.refiling()
        if again is None or (isinstance(again, RunAgain) and again.logic is self):
            return again
        name = self.definition.name
        return RunAgain(
            logic=self,
            kept_from=lambda kv: START_OF_TIME_US,
            begun=again.begun,
            prepare=again.prepare,
            reached=again.reached if isinstance(again, RunAgain) else lambda kv: self.progress(kv).step,
            why=f"{name!r} took of each step what its delivery policies let pass",
        )

    # -- as the operator --------------------------------------------------------------------------------------------

    def learn(self, kv: KV, input: str, schema: pa.Schema) -> None:
        self._logic.learn(kv, input, self._marked(input, schema))

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        self._logic.check_schemas(self._all_marked(inputs))

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        return self._logic.rows(panes, commit)

    def emitted(self, result: StepResult, commit: int) -> dict[str, pa.Table]:
        return self._logic.emitted(result, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self._logic.schema(self._all_marked(inputs))

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return self._logic.messages(panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self._logic.message_schema(self._all_marked(inputs))

    def known_schema(self, kv: KV) -> pa.Schema | None:
        return self._logic.known_schema(kv)

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        known, mark = self._logic.schema_of(kv, name), self._mark_of(name)
        return known if known is None or mark is None else pa.schema([f for f in known if f.name != mark])

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        needs, mark = self._logic.needs_of(kv, name, other_inputs), self._mark_of(name)
        return needs if mark is None else _Marked(needs, mark)

    def called(self, input: str, column: str) -> tuple[str, ...]:
        return self._logic.called(input, column)

    def columns(self, kv: KV) -> list[str]:
        return self._logic.columns(kv)

    def key_types(self, name: str, inputs: Mapping[str, pa.Schema]) -> list[tuple[str, tuple[Any, ...]]]:
        return self._logic.key_types(name, self._all_marked(inputs))

    def _mark_of(self, input: str) -> str | None:
        """Return the mark column that the policy adds to an input."""
        policy = self.definition.policies.get(input)
        return None if policy is None else policy.mark

    def _marked(self, input: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns of an input, with the mark."""
        mark = self._mark_of(input)
        if mark is None:
            return schema
        if mark in schema.names:
            raise ReservedColumn(_BESIDE.format(mark))
        return schema.append(pa.field(mark, pa.bool_()))

    def _all_marked(self, inputs: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
        return {name: self._marked(name, schema) for name, schema in inputs.items()}

    def progress(self, kv: KV) -> Progress:
        return self._logic.progress(kv)

    def set_back(self, kv: KV, progress: Progress, watermark_us: int) -> None:
        self._logic.set_back(kv, progress, watermark_us)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        return self._logic.view(stores, watermark_us)


class _Marked(Needs):
    """The columns that an operator requires of an input that gains a mark column."""

    def __init__(self, needs: Needs, mark: str) -> None:
        self._needs, self._mark, self.whole, self.times = needs, mark, needs.whole, needs.times
        self._field = pa.field(mark, pa.bool_())

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        self._needs.check(pa.schema([*(known or ()), self._field]), names)

    def named(self, names: Iterable[str]) -> set[str]:
        return self._needs.named(names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        why = {self._mark: _BESIDE.format(self._mark)} if self._mark in names else {}
        return self._needs.refused(names) | why

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return self._needs.refusal(name, kind, {**known, self._mark: self._field.type})

    def uncomputable(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        return self._needs.uncomputable(name, kind, {**known, self._mark: self._field.type})

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        return self._needs.compared_with(name)


def _name(chosen: Chosen, table: pa.Table) -> str:
    """Return the name under which a table of the step came."""
    return next(name for name, other in chosen.tables.items() if other is table)


def _places(table: pa.Table, rows: Slice) -> BoolArray:
    """True for those rows of the table of a step."""
    there: BoolArray = np.zeros(len(table), dtype=bool)
    there[combine(rows.table.column(_AT)).to_numpy()] = True
    return there


def _newest(groups: Groups, sure: BoolArray, most: IntArray) -> BoolArray:
    """True for the newest rows of each group, `most` of them; rows that are sure always pass, and fill places."""
    room = np.maximum(most - np.bincount(groups.codes[sure], minlength=groups.size), 0)
    others = np.flatnonzero(~sure)[::-1]  # the newest first
    order = np.argsort(groups.codes[others], kind="stable")
    codes = groups.codes[others][order]
    first = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]][: len(codes)])
    place = np.arange(len(codes)) - np.repeat(first, np.diff(np.r_[first, len(codes)]))
    passes = sure.copy()
    passes[others[order]] = place < room[codes]
    return passes
