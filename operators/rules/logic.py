"""Logic of rules on one store: two pure steps. Seed 004; design "State and evaluation".

`ingest` files the messages of all inputs once, and joins the new ones with kept ones, rule by rule (`chains.py`). A tuple
with nothing to wait for is emitted, any other one is pending until its deadline. `advance` decides due tuples
(`subpatterns.py`), and drops messages that no rule needs any more. No partial match is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.frames import RowsBetween
from windrow.core.inputs import Input
from windrow.core.keys import encode_equal
from windrow.core.positions import Partition
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, Timing
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import as_type, concat
from windrow.operators.rules.chains import PAIRS, Candidates, Joined, Tuples, chains_of, flat
from windrow.operators.rules.definition import RulesDefinition
from windrow.operators.rules.facts import (
    FactJoin,
    FactRows,
    FactsOfRule,
    clear_all,
    equal_pairs,
    named_for_facts,
)
from windrow.operators.rules.framed import (
    DUE,
    LEAVES,
    FrameOfRows,
    Newest,
    Tails,
    evaluated,
    evaluation_of,
    first_of_each,
    leaving_ids,
    over_evaluations,
    shifted,
)
from windrow.operators.rules.matches import (
    AT,
    ID,
    ThenRaised,
    Words,
    ids_of,
    in_order,
    match_ids,
    match_times,
    places_of,
    rows_and_numbers,
    rows_of,
)
from windrow.operators.rules.patterns import Pattern, Rule, references
from windrow.operators.rules.rule_columns import RuleColumns
from windrow.operators.rules.rule_corrections import EmittedRows, corrected, late_partitions
from windrow.operators.rules.rule_groups import Group, groups_of
from windrow.operators.rules.rule_intake import Arrived, hashes
from windrow.operators.rules.rule_state import KeptMessages, PendingTuples, drop_rules, numbers_of
from windrow.operators.rules.step_messages import Planned, RuleStep, StepMessages
from windrow.operators.rules.subpatterns import (
    PARTITION_HASH,
    Decision,
    OfTuples,
    accumulated,
    deadlines,
    without_any,
)
from windrow.operators.rules.timings import kept_us, timing_of
from windrow.operators.several_inputs import SeveralInputsLogic
from windrow.operators.steps.arrivals import InputReading
from windrow.operators.steps.columns import (
    EARLY,
    INSERT,
    IS_LAST,
    KIND,
    LATE,
    OFFSET,
    ON_TIME,
    POSITION_COLUMNS,
    TIMING,
)
from windrow.operators.steps.dead_letters import DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_rows import signed, without_labels
from windrow.operators.steps.poison_rows import own_code
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import Needs
from windrow.operators.steps.step import limit, passed
from windrow.operators.steps.work import Work
from windrow.operators.view import View
from windrow.stores.event_log import TIME
from windrow.stores.kv import KV, Overlay

#: True for a tuple of which each new event is late.
_LATE = "__late"


class RulesOperator(SeveralInputsLogic):
    """The logic of rules: one definition on one store. It holds no state of its own."""

    def __init__(self, definition: RulesDefinition) -> None:
        definition = definition.of_rules({name: evaluated(rule) for name, rule in definition.rules.items()})
        super().__init__(definition)
        self.definition: RulesDefinition = definition
        self.pending_cf = f"{definition.name}.pending"
        self.columns_of_rules = RuleColumns(definition, self.schemas)
        self._inputs = {input.name: input for input in definition.inputs}
        self.is_cloud = definition.mode == "cloud"
        timings = {name: timing_of(rule, self._inputs) for name, rule in definition.rules.items()}
        self.planned = [self._plan(name, rule, timings[name]) for name, rule in definition.rules.items()]
        self.groups = groups_of(self.planned)
        #: Retention of messages, by input; only of inputs whose messages a rule needs.
        self.kept_us: dict[str, int] = {}
        for input in definition.inputs:
            us = kept_us(timings, definition.rules, input)
            if us is not None and input.facts is None:
                self.kept_us[input.name] = INFINITE_US if self.is_cloud else us
        for rule in definition.rules.values():
            for pattern in rule.subpatterns.values() if evaluation_of(rule) else ():
                for relation in pattern.time:  # a message is read until it has left the frame
                    self.kept_us[pattern.input] = max(
                        self.kept_us.get(pattern.input, 0), relation.distances[1] + 1
                    )
        self.tails_cf, self.emitted_cf = f"{definition.name}.tails", f"{definition.name}.emitted"
        self.facts = {
            input.name: FactRows(
                f"{definition.name}.{input.name}.rows", self.aux_cf, input, definition.keys(input)
            )
            for input in definition.inputs
            if input.facts is not None
        }
        self.waiting_cf = f"{definition.name}.waiting"
        self.kept = {
            name: KeptMessages(
                f"{definition.name}.{name}.events", self.aux_cf, us, definition.keys(self._inputs[name])
            )
            for name, us in self.kept_us.items()
        }
        self.intake = StepMessages(definition, self.columns_of_rules, self.kept, self.planned)

    def _plan(self, name: str, rule: Rule, timing: Timing) -> Planned:
        prefixes = {
            binding: (pattern.input, self._inputs[pattern.input].source_prefix)
            for binding, pattern in rule.when.items()
            if pattern.binds
        }
        waits = [us for span in timing.subpatterns for _, us in timing.deadline_of(span.binding)]
        wait_us = max([rule.delay_us or 0, *waits], default=0)
        fact_wait_us = max(map(self._fact_wait_us, rule.facts.values()), default=0)
        place = list(self.definition.rules).index(name)
        return Planned(name, place, rule, timing, chains_of(rule, timing), prefixes, wait_us, fact_wait_us)

    def cfs(self) -> tuple[str, ...]:
        of_inputs = [*(kept.cf for kept in self.kept.values()), *(facts.cf for facts in self.facts.values())]
        emitted = (self.emitted_cf,) if self.definition.retracts else ()
        return (self.aux_cf, self.pending_cf, self.waiting_cf, self.tails_cf, *emitted, *of_inputs)

    # -- steps ------------------------------------------------------------------------------------------------------

    def _arrivals(
        self, work: Work, reading: InputReading, table: pa.Table
    ) -> tuple[Slice, Mapping[Partition, int]]:
        return super()._arrivals(self._reported(work, reading.input.name), reading, table)

    def _reported(self, work: Any, input: str) -> Any:
        """Return a step whose dead letters of an input are dropped where another shard reports them."""
        return replace(work, dead=DeadLetters(0)) if input in self.silent else work

    def closed_us(self, progress: Progress) -> int:
        return progress.purged_us

    def accept(self, step: RuleStep, rows: Mapping[str, Slice]) -> Mapping[str, Slice]:
        with own_code(self.definition.name):
            return self._accept(step, rows)

    def _accept(self, step: RuleStep, rows: Mapping[str, Slice]) -> Mapping[str, Slice]:
        arrived = {
            name: self.intake.arrived(self._reported(step, name), self._inputs[name], messages)
            for name, messages in rows.items()
        }
        fits = {
            name: self.intake.fits(self._reported(step, name), name, came) for name, came in arrived.items()
        }
        self.intake.gather(step, arrived, fits)
        for name, came in arrived.items():
            self.intake.file(step, name, came, fits[name])
        new = {
            name: self.facts[name].file(step.kv, came.rows.table)
            for name, came in arrived.items()
            if name in self.facts
        }
        for planned in self.planned:
            self._count(step, planned, arrived)
            self._correct(step, planned, arrived, fits)
            self._join_late_facts(step, planned, new)
        for group in self.groups:
            self._join(step, group)
        step.in_order()
        return {name: came.rows for name, came in arrived.items()}

    def pass_time(self, step: RuleStep, watermark_us: int) -> None:
        kv = step.kv
        before_us, done_us = step.progress.purged_us, self._done_us(step.progress, watermark_us)
        self._decide_due(step, watermark_us, done_us)
        if done_us > before_us:
            for planned in self.planned:
                if planned.fact_wait_us:
                    self._waiting(step, planned).forget(kv, done_us)
            for name, kept in self.kept.items():
                end = done_us >= END_OF_TIME_US
                kept.forget(kv, END_OF_TIME_US if end else limit(done_us, self.kept_us[name]))
            if done_us >= END_OF_TIME_US:
                clear_all(kv, [self.tails_cf, *(facts.cf for facts in self.facts.values())])
        step.progress.purged_us = done_us

    def _done_us(self, progress: Progress, watermark_us: int) -> int:
        """Return the watermark less the allowed lateness: earlier tuples are decided for good. In cloud mode no time passes."""
        if self.is_cloud and watermark_us < END_OF_TIME_US:
            return progress.purged_us
        return max(progress.purged_us, passed(watermark_us, self.definition.late_us))

    def begin(self, kv: KV, now_us: int) -> RuleStep:
        work = super().begin(kv, now_us)
        numbers = numbers_of(
            kv, self.aux_cf, [(name, binding) for name, binding, _ in self.definition.patterns]
        )
        waiting = (self.pending_cf, self.waiting_cf, self.tails_cf)
        drop_rules(kv, (*waiting, self.emitted_cf) if self.definition.retracts else waiting, numbers.gone)
        return RuleStep(**vars(work), numbers=numbers, columns=self.columns_of_rules)

    # -- tuples -----------------------------------------------------------------------------------------------------

    def _join(self, step: RuleStep, group: Group) -> None:
        """Find the tuples of a group of rules that the new messages complete."""
        if any(name not in step.candidates for name in group.events.values()):
            return
        candidates = {binding: step.candidates[name] for binding, name in group.events.items()}
        joined, gathered = Joined(candidates, group.takes(candidates)), list[Tuples]()
        for chain in group.chains:
            for tuples in joined.tuples(chain):
                gathered.append(tuples)
                if sum(len(next(iter(part.values()))) for part in gathered) > PAIRS:
                    self._divide(step, group, joined, gathered)
        self._divide(step, group, joined, gathered)

    def _divide(self, step: RuleStep, group: Group, joined: Joined, gathered: list[Tuples]) -> None:
        """Divide the tuples of a group among its rules."""
        if not gathered:
            return
        tuples = {binding: np.concatenate([part[binding] for part in gathered]) for binding in group.events}
        gathered.clear()
        order = in_order(flat(joined, tuples, {}), list(tuples))
        tuples = {binding: rows[order] for binding, rows in tuples.items()}
        table, late = self._flat(step, group, joined, tuples)
        places = places_of(table, list(tuples))
        plain = list[tuple[Planned, IntArray]]()
        for planned, rows in group.of_rules(joined, tuples):
            rows = rows[self._are_newest(step, planned, joined, tuples, rows)] if planned.counted else rows
            if not planned.is_plain and len(rows):
                self._with_facts(step, planned, table.take(pa.array(rows)), late[rows])
            if not planned.is_plain:
                continue
            if planned.compares:
                rows = rows[self._conditions(step, planned, table.take(pa.array(rows)))]
            plain.append((planned, rows))
            if sum(len(rows) for _, rows in plain) > PAIRS:
                self._emit_all(step, plain, table, late, places)
        self._emit_all(step, plain, table, late, places)
        step.away.gathered()

    def _count(self, step: RuleStep, planned: Planned, arrived: Mapping[str, Arrived]) -> None:
        """Add new messages to the last ones of events with a frame of messages."""
        names = {p.input for p in planned.rule.events.values()} & arrived.keys() if planned.counted else ()
        others = {
            partition
            for name in names
            for partition in FactRows.partitions(
                arrived[name].rows.table, self.definition.keys(self._inputs[name])
            )
        }
        for binding in planned.counted if names else ():
            pattern = planned.rule.when[binding]
            assert isinstance(pattern.frame, RowsBetween)
            messages = step.candidates.get(pattern.input)
            if messages is None:
                continue
            rows = np.flatnonzero(messages.fits[planned.name, binding][: messages.new])
            new = messages.table.take(pa.array(rows))
            partitions = FactRows.partitions(new, self.definition.keys(self._inputs[pattern.input]))
            number = step.numbers.rules[planned.name]
            tails = Tails(self.tails_cf, self.aux_cf, number, pattern.frame, binding)
            extended = tails.extended(
                step.kv, new.select(POSITION_COLUMNS), partitions, pa.schema([]), sorted(others)
            )
            first = step.order_of(pattern.input, self._inputs)
            step.newest[planned.name, binding] = Newest.of(binding, tails.size, extended, messages, first)

    def _are_newest(
        self, step: RuleStep, planned: Planned, joined: Joined, tuples: Tuples, rows: IntArray
    ) -> BoolArray:
        """True for the tuples whose messages are in their frames as the last of them comes."""
        latest, kept = np.full(len(rows), -1, dtype=np.int64), np.ones(len(rows), dtype=bool)
        for binding, pattern in planned.rule.events.items():
            at = tuples[binding][rows]
            order = step.order_of(pattern.input, self._inputs) + at
            latest = np.maximum(latest, np.where(at < joined.inputs[binding].new, order, -1))
        for binding in planned.counted:
            kept &= step.newest[planned.name, binding].takes(tuples[binding][rows], latest)
        return kept

    def _flat(
        self, step: RuleStep, group: Group, joined: Joined, tuples: Tuples
    ) -> tuple[pa.Table, BoolArray]:
        """Give tuples as a table, with their largest ends, and which of them only late messages have completed."""
        named: dict[str, list[str]] = {}
        for planned in group.rules:
            for binding, columns in self._named(step, planned).items():
                named[binding] = list(dict.fromkeys([*named.get(binding, ()), *columns]))
        table = self._with_keys(step, group, flat(joined, tuples, named), joined, tuples)
        table = table.append_column(AT, pa.array(match_times(table, list(tuples))))
        late = np.ones(len(table), dtype=bool)
        for binding, rows in tuples.items():
            messages = joined.inputs[binding]
            is_new = rows < messages.new
            late[is_new] &= messages.late[rows[is_new]]
        return table, late

    def _emit_all(
        self,
        step: RuleStep,
        rules: list[tuple[Planned, IntArray]],
        tuples: pa.Table,
        late: BoolArray,
        places: Words,
    ) -> None:
        """Emit rows of rules that have nothing to wait for, over the same tuples."""
        parts = [(planned, rows) for planned, rows in rules if len(rows)]
        rules.clear()
        if not parts:
            return
        of = [(planned.name, planned.rule, rows) for planned, rows in parts]
        at, numbers = rows_and_numbers(of)
        ids = ids_of([name for name, _, _ in of], places[:, at], numbers)
        try:
            rows = rows_of(of, tuples, ids, self.columns_of_rules.output(step.schemas), parts[0][0].inputs)
        except ThenRaised:
            for planned, own in parts:
                rule_tuples = tuples.take(pa.array(own)).append_column(ID, ids.filter(pa.array(numbers == 0)))
                numbers = numbers - 1
                self._emit(step, planned, rule_tuples, np.where(late[own], LATE, EARLY))
            return
        timing = pa.array([EARLY, LATE]).take(pa.array(late[at].astype(np.int8)))
        rows = self._noted(step, parts[0][0], rows.append_column(TIMING, timing), step.progress.purged_us)
        first, last = parts[0][0].place, parts[-1][0].place
        if last - first < len(parts):
            step.emit(rows, first, last)
            return
        ends = np.cumsum([len(own) for _, own in parts])
        for (planned, own), end in zip(parts, ends.tolist(), strict=True):
            step.emit(rows.slice(end - len(own), len(own)), planned.place)

    def _with_facts(self, step: RuleStep, planned: Planned, table: pa.Table, late: BoolArray) -> None:
        """Join tuples of events with facts, and complete those for which all are there; others may wait for theirs."""
        evaluation = evaluation_of(planned.rule)
        if evaluation is not None:
            table, late = self._evaluations(step, planned, evaluation, table, late)
        if evaluation is not None and planned.timing.subpatterns:  # their moments are yet to come
            due = combine(table.column(f"{evaluation}.{END}")).to_numpy()
            self._pending(step, planned).add(step.kv, table, due, step.slice())
            return
        if not planned.rule.facts:
            self._complete(step, planned, table, late)
            return
        table = table.append_column(_LATE, pa.array(late))
        if planned.fact_wait_us:
            ends = match_times(table, list(planned.rule.events))
            until = ends + np.minimum(planned.fact_wait_us, END_OF_TIME_US - 1 - ends)
            self._waiting(step, planned).add(step.kv, table, until, step.slice())
        for bound in self._facts_of(step, planned).bound(step.kv, table):
            self._complete(step, planned, bound.drop_columns([_LATE]), _flags(bound, _LATE))

    def _evaluations(
        self, step: RuleStep, planned: Planned, evaluation: str, table: pa.Table, late: BoolArray
    ) -> tuple[pa.Table, BoolArray]:
        """Give the evaluations of a frame: of time as messages come and as they leave it, of messages where they change it."""
        [(binding, pattern)] = planned.rule.subpatterns.items()
        if not isinstance(pattern.frame, RowsBetween):
            by_us = pattern.time[0].distances[1] + 1
            leaves = np.zeros(len(table), dtype=bool), np.ones(len(table), dtype=bool)
            parts = [shifted(table, evaluation, us) for us in (0, by_us)]
            parts = [p.append_column(LEAVES, pa.array(f)) for p, f in zip(parts, leaves, strict=True)]
            return pa.concat_tables(parts).combine_chunks(), np.concatenate([late, late])
        input, messages = self._inputs[pattern.input], step.candidates[pattern.input]
        rows = np.flatnonzero(messages.fits[planned.name, evaluation][: messages.new])
        new, keys = messages.table.take(pa.array(rows)), self.definition.keys(input)
        partitions = encode_equal([combine(new.column(k)) for k in keys]) if keys else [b""] * len(new)
        tails = Tails(self.tails_cf, self.aux_cf, step.numbers.rules[planned.name], pattern.frame)
        extended = tails.extended(step.kv, new, partitions, self.intake.kept_schema(step, input.name))
        calculation = self.columns_of_rules.calculation(pattern, step.schemas[input.name])
        step.dead.input = pattern.input
        frame = FrameOfRows(planned.name, binding, pattern, input, calculation)
        table, kept = frame.evaluate(table, extended, tails.size, step.failures())
        return table.filter(pa.array(kept)), late[kept]

    def _of_frames(
        self, step: RuleStep, planned: Planned, evaluation: str, tuples: pa.Table, due: IntArray
    ) -> tuple[pa.Table, IntArray]:
        """Give the evaluations that are due, one for each partition and moment, with the facts that are current."""
        first = first_of_each(tuples, self.definition.by, evaluation)
        tuples, due = tuples.take(pa.array(first)).append_column(DUE, pa.array(due[first])), due[first]
        if planned.rule.facts:
            parts = list(self._facts_of(step, planned).bound(step.kv, tuples))
            parts = [part.filter(pa.array(self._conditions(step, planned, part))) for part in parts]
            tuples = concat(parts) if parts else tuples.slice(0, 0)
            if len(tuples):
                order = _by_deadline(tuples, tuples.column(DUE).to_numpy(), list(planned.inputs))
                tuples = tuples.take(pa.array(order))
            due = tuples.column(DUE).to_numpy()
        if len(tuples):
            tuples = tuples.append_column(ID, leaving_ids(planned.name, tuples, list(planned.inputs)))
        return tuples.drop_columns([DUE]), due

    def _join_late_facts(self, step: RuleStep, planned: Planned, new: Mapping[str, pa.Table]) -> None:
        """Find the tuples that new facts complete which came after the events."""
        if not planned.fact_wait_us or not any(p.input in new for p in planned.rule.facts.values()):
            return
        done_us = step.progress.purged_us
        tuples = self._waiting(step, planned).due(step.kv, done_us, END_OF_TIME_US)
        if tuples is None or not len(tuples):
            return
        tuples = tuples.drop_columns([TIME])
        ends = match_times(tuples, list(planned.rule.events))
        room = END_OF_TIME_US - 1 - ends
        waits = {b: us for b, p in planned.rule.facts.items() if (us := self._fact_wait_us(p))}
        until = {b: ends + np.minimum(us, room) for b, us in waits.items()}
        for bound in self._facts_of(step, planned).come_late(step.kv, tuples, new, until, done_us):
            table = bound.drop_columns([_LATE])
            self._complete(step, planned, table, np.zeros(len(table), dtype=bool))

    def _fact_wait_us(self, pattern: Pattern) -> int:
        return INFINITE_US if self.is_cloud else pattern.wait_us

    def _waiting(self, step: RuleStep, planned: Planned) -> PendingTuples:
        """Return the tuples of events that wait for facts."""
        return PendingTuples(self.waiting_cf, step.numbers.rules[planned.name], planned.fact_wait_us)

    def _facts_of(self, step: RuleStep, planned: Planned) -> FactsOfRule:
        named, bound, joins = self._named(step, planned), list(planned.rule.events), []
        for binding, pattern in planned.rule.facts.items():
            store, input = self.facts[pattern.input], self._inputs[pattern.input]
            on = equal_pairs(planned.rule, binding, bound)
            joins.append(FactJoin(binding, pattern, input, store, on, tuple(named[binding])))
            bound.append(binding)
        schemas = {name: self.intake.kept_schema(step, name) for name in self.facts}
        return FactsOfRule(
            planned.name, planned.rule, tuple(joins), self.definition.by, schemas, self._inputs_of(planned)
        )

    def _complete(self, step: RuleStep, planned: Planned, table: pa.Table, late: BoolArray) -> None:
        """Emit complete tuples, decide them, or let them wait."""
        bindings = planned.bindings
        order = in_order(table, bindings)
        table, late = table.take(pa.array(order)), late[order]
        kept = self._conditions(step, planned, table)
        if not kept.all():
            table, late = table.filter(pa.array(kept)), late[kept]
        if not len(table):
            return
        at_us = match_times(table, list(planned.rule.events))
        at = table.column_names.index(AT)
        table = table.set_column(at, AT, pa.array(at_us))
        table = table.append_column(ID, match_ids(planned.name, table, bindings))
        timings = np.where(late, LATE, EARLY)
        if not planned.decides:
            self._emit(step, planned, table, timings)
            return
        due = None
        if not self.is_cloud:
            due = deadlines(planned.timing, OfTuples(table, self._inputs_of(planned)), at_us)
        if due is None:
            self._emit(step, planned, *self._decided(step, planned, table, None, timings))
            return
        corrects = self._corrects(planned)
        done_us = step.progress.purged_us
        ready = due < (step.progress.watermark_us if corrects else done_us)
        if ready.any():
            due_tuples = table.filter(pa.array(ready)).append_column(TIME, pa.array(due[ready]))
            on_time = np.where(late[ready], LATE, ON_TIME) if corrects else np.full(len(due_tuples), ON_TIME)
            self._emit(step, planned, *self._decided(step, planned, due_tuples, due[ready], on_time))
        waits = due >= done_us if corrects else ~ready
        if waits.any():
            rest = table.filter(pa.array(waits))
            self._pending(step, planned).add(step.kv, rest, due[waits], step.slice())

    def _inputs_of(self, planned: Planned) -> dict[str, Input]:
        return {binding: self._inputs[name] for binding, (name, _) in planned.inputs.items()}

    def _pending(self, step: RuleStep, planned: Planned) -> PendingTuples:
        return PendingTuples(self.pending_cf, step.numbers.rules[planned.name], planned.wait_us)

    def _named(self, step: RuleStep, planned: Planned) -> dict[str, list[str]]:
        """Return the columns of each binding that are bound."""
        found: dict[str, list[str]] = {binding: [] for binding in planned.inputs}
        for f in self.columns_of_rules.bound(planned.rule, step.schemas):
            binding, column = f.name.split(".", 1)
            if binding in found:
                found[binding].append(column)
        for binding, column in named_for_facts(planned.rule):
            found[binding] += [column]
        for binding, (name, _) in planned.inputs.items():
            pattern = planned.rule.when[binding]
            if pattern.where is not None and any(references(pattern.where)):
                found[binding] += [n for n in step.schemas[name].names if pattern.where.mentions(n)]
        return {binding: list(dict.fromkeys(names)) for binding, names in found.items()}

    def _with_keys(
        self, step: RuleStep, group: Group, table: pa.Table, joined: Joined, tuples: Tuples
    ) -> pa.Table:
        """Add the partition, and its hash where tuples look for messages."""
        binding, name = next(iter(group.events.items()))
        rows, messages = pa.array(tuples[binding]), joined.inputs[binding].table
        own = self.definition.keys(self._inputs[name])
        fields = self.columns_of_rules.key_fields(step.schemas)
        for f, column in zip(fields, own, strict=True):
            table = table.append_column(f.name, as_type(combine(messages.column(column)).take(rows), f.type))
        if any(planned.rule.subpatterns for planned in group.rules):
            table = table.append_column(PARTITION_HASH, pa.array(hashes(table, self.definition.by)))
        return table

    def _conditions(self, step: RuleStep, planned: Planned, table: pa.Table) -> BoolArray:
        """True for the tuples for which the conditions that name several patterns are true."""
        kept = np.ones(len(table), dtype=bool)
        for binding in planned.inputs:
            pattern = planned.rule.when[binding]
            there = f"{binding}.{OFFSET}" in table.column_names
            if not there or pattern.where is None or not any(references(pattern.where)) or not kept.any():
                continue
            columns = {
                n: table.column(n) for n in table.column_names if pattern.where.mentions(n) and "." in n
            }
            own = f"{binding}."
            for n in table.column_names:
                if n.startswith(own) and (
                    pattern.where.mentions(n.removeprefix(own)) or n.endswith(POSITION_COLUMNS)
                ):
                    columns[n.removeprefix(own)] = table.column(n)
            asked = np.flatnonzero(kept)
            asked_rows = pa.table(columns).take(pa.array(asked))
            step.dead.input = pattern.input
            kept[asked] = step.failures().true(planned.name, binding, pattern.where, asked_rows)
        return kept

    # -- decisions --------------------------------------------------------------------------------------------------

    def _corrects(self, planned: Planned) -> bool:
        """True if rows of a rule are emitted at the watermark, and taken back where a late message contradicts them."""
        bounded = bool(planned.rule.subpatterns) and not self.is_cloud
        return self.definition.retracts and bounded and evaluation_of(planned.rule) is None

    def _decide_due(self, step: RuleStep, watermark_us: int, done_us: int) -> None:
        """Decide the tuples whose deadline is over, and emit them in its order."""
        made: list[pa.Table] = []
        for planned in self.planned:
            if not planned.decides:
                continue
            before_us, until_us = step.progress.purged_us, done_us
            if self._corrects(planned):
                before_us, until_us = step.progress.watermark_us, watermark_us
            pending = self._pending(step, planned)
            tuples = pending.due(step.kv, before_us, until_us) if until_us > before_us else None
            if tuples is not None and len(tuples):
                due = tuples.column(TIME).to_numpy()
                order = _by_deadline(tuples, due, planned.bindings)
                tuples, due = tuples.take(pa.array(order)), due[order]
                on_time = np.full(len(tuples), ON_TIME)
                held, timings = self._decided(step, planned, tuples, due, on_time)
                if len(held):
                    made.append(self._noted(step, planned, self._rows(step, planned, held, timings), done_us))
            if done_us > step.progress.purged_us:
                pending.forget(step.kv, done_us)
                if self._corrects(planned):
                    self._emitted(step, planned).forget(step.kv, done_us)
        if made:
            rows = concat(made)
            order = np.argsort(rows.column(TIME).to_numpy(), kind="stable")
            if len(rows):
                step.result.panes.append(rows.drop_columns([TIME]).take(pa.array(order)))

    def _emitted(self, step: RuleStep, planned: Planned) -> EmittedRows:
        return EmittedRows(self.emitted_cf, step.numbers.rules[planned.name], planned.wait_us)

    def _noted(self, step: RuleStep, planned: Planned, rows: pa.Table, done_us: int) -> pa.Table:
        """Note rows that may be taken back, and say of each whether it is the last of its tuple."""
        if not self.definition.retracts:
            return rows
        due = rows.column(TIME).to_numpy() if TIME in rows.column_names else None
        last = np.ones(len(rows), dtype=bool) if due is None or not self._corrects(planned) else due < done_us
        if not last.all():
            self._emitted(step, planned).add(step.kv, rows.filter(pa.array(~last)), step.slice())
        kinds = pa.repeat(pa.scalar(INSERT), len(rows))
        return rows.append_column(KIND, kinds).append_column(IS_LAST, pa.array(last))

    def _correct(
        self,
        step: RuleStep,
        planned: Planned,
        arrived: Mapping[str, Arrived],
        fits: Mapping[str, Mapping[tuple[str, str], BoolArray]],
    ) -> None:
        """Decide tuples again that late messages may contradict, and emit the changes."""
        low_us, high_us = step.progress.purged_us, step.progress.watermark_us
        if not self._corrects(planned) or low_us >= high_us:
            return
        late, places = late_partitions(planned, arrived, fits, high_us, self.definition)
        tuples = self._pending(step, planned).due(step.kv, low_us, high_us) if len(late) else None
        if tuples is None:
            return
        tuples = tuples.filter(pa.array(np.isin(tuples.column(PARTITION_HASH).to_numpy(), late)))
        if not len(tuples):
            return
        due = tuples.column(TIME).to_numpy()
        order = _by_deadline(tuples, due, planned.bindings)
        tuples, due = tuples.take(pa.array(order)), due[order]
        step.reported = places
        held, timings = self._decided(step, planned, tuples, due, np.full(len(tuples), LATE))
        rows = self._rows(step, planned, held, timings) if len(held) else None
        step.reported = None
        emitted = self._emitted(step, planned)
        fields = pa.schema(self.columns_of_rules.output(step.schemas))
        changes, gone, fresh = corrected(
            combine(tuples.column(ID)), emitted.read(step.kv, low_us, fields), rows
        )
        emitted.drop(step.kv, gone)
        if fresh is not None:
            emitted.add(step.kv, fresh, step.slice())
        if changes is not None:
            step.emit(changes, planned.place)

    def _decided(
        self,
        step: RuleStep,
        planned: Planned,
        tuples: pa.Table,
        due: IntArray | None,
        timings: np.ndarray,
    ) -> tuple[pa.Table, np.ndarray]:
        """Keep the tuples for which all sub-patterns hold, with their aggregates. due: their deadlines, None without bound."""
        evaluation = evaluation_of(planned.rule)
        if evaluation is not None and due is not None:
            tuples, due = self._of_frames(step, planned, evaluation, tuples, due)
            timings = np.full(len(tuples), ON_TIME)
        for binding, pattern in planned.rule.subpatterns.items():
            if not len(tuples):
                break
            if pattern.frame is not None:
                kept = step.failures().having(planned.name, binding, pattern, tuples)
                return tuples.filter(pa.array(kept)), timings[kept]
            decision = Decision(
                planned.name,
                binding,
                pattern,
                planned.timing,
                tuple(
                    zip(self.definition.by, self.definition.keys(self._inputs[pattern.input]), strict=True)
                ),
                partial(self.intake.read, step, pattern.input),
            )
            moments = OfTuples(tuples, self._inputs_of(planned))
            step.dead.input = pattern.input
            failures = step.failures()
            calculation = self.columns_of_rules.calculation(pattern, step.schemas[pattern.input])
            if evaluation is not None:
                tuples, kept = over_evaluations(decision, calculation, tuples, evaluation, failures)
            else:
                found = decision.pairs(tuples, moments, due, failures)
                if pattern.kind == "absent":
                    kept = without_any(found, len(tuples))
                else:
                    tuples, kept = accumulated(decision, calculation, found, tuples, failures)
            tuples, timings = tuples.filter(pa.array(kept)), timings[kept]
            due = None if due is None else due[kept]
        if due is not None and len(tuples):
            later = np.maximum(tuples.column(AT).to_numpy(), due)
            tuples = tuples.set_column(tuples.column_names.index(AT), AT, pa.array(later))
        return tuples, timings

    # -- rows -------------------------------------------------------------------------------------------------------

    def _emit(self, step: RuleStep, planned: Planned, tuples: pa.Table, timings: np.ndarray) -> None:
        if len(tuples) and len(rows := self._rows(step, planned, tuples, timings)):
            rows = self._noted(step, planned, rows, step.progress.purged_us)
            rows = rows.drop_columns([TIME]) if TIME in rows.column_names else rows
            step.emit(rows, planned.place)

    def _rows(self, step: RuleStep, planned: Planned, tuples: pa.Table, timings: np.ndarray) -> pa.Table:
        """Make the rows of tuples, with their deadlines where they waited; one whose columns raise is a dead letter."""
        fields = self.columns_of_rules.output(step.schemas)
        try:
            of, ids = [(planned.name, planned.rule, np.arange(len(tuples)))], combine(tuples.column(ID))
            rows = rows_of(of, tuples, ids, fields, planned.inputs)
            rows = rows.append_column(TIMING, pa.array(timings.tolist(), pa.string()))
            return rows.append_column(TIME, tuples.column(TIME)) if TIME in tuples.column_names else rows
        except ThenRaised as error:
            if len(tuples) == 1:
                self._bury_row(step, planned, tuples, str(error))
                return self._rows(step, planned, tuples.slice(0, 0), timings[:0])
        half = len(tuples) // 2
        parts = ((tuples.slice(0, half), timings[:half]), (tuples.slice(half), timings[half:]))
        return pa.concat_tables([self._rows(step, planned, *part) for part in parts])

    def _bury_row(self, step: RuleStep, planned: Planned, tuples: pa.Table, why: str) -> None:
        binding = next(iter(planned.rule.events))
        step.dead.input = planned.rule.events[binding].input
        own = [f"{binding}.{name}" for name in POSITION_COLUMNS]
        table = tuples.select(own).rename_columns(list(POSITION_COLUMNS))
        step.failures().report(planned.name, f"then: {why}", table, 0)

    # -- the seam ---------------------------------------------------------------------------------------------------

    def needs(self, input: Input) -> Needs:
        return self.columns_of_rules.needs(input)

    def fields(self, schemas: Mapping[str, pa.Schema]) -> list[pa.Field]:
        return self.columns_of_rules.output(schemas)

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return signed(panes) if self.definition.retracts else without_labels(panes)

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        return self.columns_of_rules.needs_with(kv, self._inputs[name], other_inputs)

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        fields = self.columns_of_rules.key_fields({**inputs, name: inputs[name]})
        own = self.definition.keys(self._inputs[name])
        return [(column, (f.type,)) for column, f in zip(own, fields, strict=False)]

    def kept_messages(self, kv: KV, name: str) -> tuple[pa.Table, IntArray] | None:
        """Read the messages of an input that are kept, with their event times; of facts the current rows."""
        messages = self.kept_events(kv, name)
        if messages is None:
            return None
        interval = self._inputs[name].interval
        ends = interval is not None and interval.start is not None
        return messages.table, messages.ends if ends else messages.starts

    def kept_events(self, kv: KV, name: str) -> Candidates | None:
        """Read the messages of an input that are kept, with both ends of each and the patterns that take it."""
        kept = self.kept.get(name)
        done_us = self.progress(kv).purged_us
        if kept is None or done_us >= END_OF_TIME_US:
            return None
        found = kept.between(kv, limit(done_us, self.kept_us[name]), END_OF_TIME_US)
        return None if found is None else self.intake.kept_candidates(self.begin(Overlay(kv), 0), name, found)

    def pending_tuples(self, kv: KV) -> Iterator[tuple[str, str, pa.Table]]:
        """Read the tuples that wait: (rule, for a "deadline" or for "facts", tuples with their deadlines in `TIME`)."""
        overlay = Overlay(kv)  # nothing of it is written
        step = self.begin(overlay, 0)
        for planned in self.planned:
            waiting = {"deadline": self._pending(step, planned)} if planned.decides else {}
            if planned.fact_wait_us:
                waiting["facts"] = self._waiting(step, planned)
            for what, tuples in waiting.items():
                found = tuples.due(overlay, step.progress.purged_us, END_OF_TIME_US)
                if found is not None and len(found):
                    yield planned.name, what, found

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        from windrow.operators.rules.views import RulesView

        return RulesView(self, stores, watermark_us)


def _by_deadline(tuples: pa.Table, due: IntArray, bindings: Sequence[str]) -> IntArray:
    """Order tuples by deadline, then by the positions of their messages."""
    order = in_order(tuples, bindings)
    return order[np.argsort(due[order], kind="stable")]


def _flags(table: pa.Table, name: str) -> BoolArray:
    flags: BoolArray = combine(table.column(name)).to_numpy(zero_copy_only=False)
    return flags
