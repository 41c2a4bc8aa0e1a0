"""Messages of a step of rules: those that count, the patterns that take them, and the kept ones that they may meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.expressions import Expr
from windrow.core.frames import RowsBetween
from windrow.core.inputs import Input
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import START, Timing
from windrow.core.types import as_type
from windrow.operators.rules.chains import Candidates, Chain
from windrow.operators.rules.definition import RulesDefinition
from windrow.operators.rules.framed import Newest, evaluation_of
from windrow.operators.rules.patterns import Pattern, Rule, references
from windrow.operators.rules.rule_columns import RuleColumns
from windrow.operators.rules.rule_intake import Arrived, Intervals, hashes, without_doubt
from windrow.operators.rules.rule_state import KeptMessages, Numbers
from windrow.operators.rules.subpatterns import (
    Failures,
)
from windrow.operators.steps.columns import POSITION_COLUMNS
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, event_times
from windrow.operators.steps.work import Work
from windrow.stores.event_log import TIME
from windrow.stores.spill import Away

RULE_FAILED = "rule_failed"
#: So many patterns have their bit in one column of a kept message.
_BITS = 62
_FITS, _KNOWN, _BEGAN = "__fits", "__patterns", "__began"


@dataclass(frozen=True)
class Planned:
    """A rule with its times and joins."""

    name: str
    #: Its place in the order of rules.
    place: int
    rule: Rule
    timing: Timing
    chains: tuple[Chain, ...]
    #: The input of each binding, and the prefix of its sources.
    inputs: Mapping[str, tuple[str, str]]
    wait_us: int
    #: The time after its last event for which a tuple waits for facts.
    fact_wait_us: int

    @property
    def bindings(self) -> list[str]:
        """The bindings of tuples until they are decided; facts join evaluations of frames of time no sooner."""
        evaluation = evaluation_of(self.rule)
        return list(self.inputs) if evaluation is None or not self.timing.subpatterns else [evaluation]

    @cached_property
    def is_plain(self) -> bool:
        """True if its tuples are events alone, and emitted as soon as they are complete."""
        return not self.decides and not self.rule.facts and evaluation_of(self.rule) is None

    @cached_property
    def counted(self) -> tuple[str, ...]:
        """The events beside others that are among the newest of their input: those with a frame of messages."""
        events = self.rule.events
        framed = (name for name, p in events.items() if isinstance(p.frame, RowsBetween))
        return tuple(framed) if len(events) > 1 else ()

    @cached_property
    def compares(self) -> bool:
        """True if a condition of a pattern names another pattern."""
        bound = [pattern for pattern in self.rule.when.values() if pattern.binds]
        return any(p.where is not None and any(references(p.where)) for p in bound)

    @property
    def decides(self) -> bool:
        """True if its tuples have something to wait for, or to look at."""
        return bool(self.rule.subpatterns) or self.rule.delay_us is not None


@dataclass
class RuleStep(Work):
    """A step of rules, and the columns of inputs as they are once their messages have come."""

    numbers: Numbers
    columns: RuleColumns
    candidates: dict[str, Candidates] = field(default_factory=dict)
    slices: int = 0
    #: The place of the rule of each pane, and of the last one where it has rows of several.
    places: list[tuple[int, int]] = field(default_factory=list)
    #: The last messages of events with a frame of messages, by rule and binding.
    newest: dict[tuple[str, str], Newest] = field(default_factory=dict)
    #: The positions of the late messages whose tuples are decided again: failures are reported of these alone.
    reported: set[tuple[object, ...]] | None = None

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        return self.columns.schemas(self.kv)

    def order_of(self, input: str, inputs: Iterable[str]) -> int:
        """Return the number of the first new message of an input: those of inputs named before it come before."""
        before = itertools.takewhile(lambda name: name != input, inputs)
        return sum(self.candidates[name].new for name in before if name in self.candidates)

    def emit(self, rows: pa.Table, first: int, last: int | None = None) -> None:
        """Emit rows of a rule, or of those of several rules that follow each other. first, last: their places"""
        self.result.panes.append(rows)
        self.places.append((first, first if last is None else last))

    def in_order(self) -> None:
        """Order panes by the places of their rules, unless they were so many that they were moved to a file."""
        panes = self.result.panes
        if len(panes) == len(self.places):
            panes[:] = [panes[i] for i in sorted(range(len(panes)), key=self.places.__getitem__)]

    def slice(self) -> int:
        """Number a slice of tuples that is filed."""
        self.slices += 1
        return (self.progress.step << 32) + self.slices

    @cached_property
    def away(self) -> Away:
        return Away(self.result.panes)

    def failures(self) -> Failures:
        """Return the reporter of values on which a condition raises."""

        def bury(rule: str, detail: str, table: pa.Table, row: int) -> None:
            places = [n for n in POSITION_COLUMNS if n in table.column_names]
            payload = table.slice(row, 1).drop_columns(places).to_pylist()[0]
            position = tuple(table.column(n)[row].as_py() for n in places) if len(places) == 4 else None
            if self.reported is not None and position is not None and position not in self.reported:
                return
            self.dead.add(RULE_FAILED, f"rule {rule!r}, {detail}", payload, position=position)

        return Failures(bury)


class StepMessages:
    """The messages of one definition, new ones and kept ones. Holds no state of its own."""

    def __init__(
        self,
        definition: RulesDefinition,
        columns: RuleColumns,
        kept: Mapping[str, KeptMessages],
        planned: Sequence[Planned],
    ) -> None:
        self.definition, self.columns, self.kept, self.planned = definition, columns, kept, planned
        self._inputs = {input.name: input for input in definition.inputs}
        #: The patterns of each input, (rule, binding, condition on own columns).
        self._patterns: dict[str, list[tuple[str, str, Expr | None]]] = {name: [] for name in self._inputs}
        #: The patterns whose aggregations compute something of a message, which may raise.
        self._lifts: dict[tuple[str, str], Pattern] = {}
        for rule, binding, pattern in definition.patterns:
            own = pattern.where is not None and not any(references(pattern.where))
            self._patterns[pattern.input].append((rule, binding, pattern.where if own else None))
            if any(a.expressions or a.kind == "user" for a in pattern.agg.values()):
                self._lifts[rule, binding] = pattern

    def arrived(self, step: RuleStep, input: Input, rows: Slice) -> Arrived:
        """Return the messages of an input that count, in the columns that are kept."""
        step.dead.input = input.name
        arrived = Intervals(input).of(without_doubt(input, rows, step.dead), step.dead)
        kept = [*self.columns.kept(input, step.schemas[input.name]), *POSITION_COLUMNS]
        return replace(arrived, rows=Slice(arrived.rows.table.select(kept), arrived.rows.times))

    def fits(self, step: RuleStep, name: str, arrived: Arrived) -> dict[tuple[str, str], BoolArray]:
        """Judge which patterns take the messages of an input."""
        table = arrived.rows.table
        return {
            (rule, binding): self._takes(step, name, rule, binding, where, table)
            for rule, binding, where in self._patterns[name]
        }

    def _takes(
        self,
        step: RuleStep,
        name: str,
        rule: str,
        binding: str,
        where: Expr | None,
        table: pa.Table,
        *,
        bury: bool = True,
    ) -> BoolArray:
        """True for the messages for which a condition of own columns is true, and that aggregations take."""
        takes = np.ones(len(table), dtype=bool)
        step.dead.input = name
        failures = step.failures() if bury else Failures(lambda *_: None)
        if where is not None and len(table):
            takes = failures.true(rule, binding, where, table)
        pattern = self._lifts.get((rule, binding))
        if pattern is not None and takes.any():
            calculation = self.columns.calculation(pattern, step.schemas[name])

            def lifted(some: pa.Table) -> BoolArray:
                calculation.lift(Slice(some, np.zeros(len(some), dtype=np.int64)))
                return np.ones(len(some), dtype=bool)

            taken = np.flatnonzero(takes)
            takes[taken] = failures.each(rule, binding, lifted, table.take(pa.array(taken)))
        return takes

    def gather(
        self,
        step: RuleStep,
        arrived: Mapping[str, Arrived],
        fits: Mapping[str, Mapping[tuple[str, str], BoolArray]],
    ) -> None:
        """Bring together the new messages and the kept ones that these may meet, by input."""
        asked: dict[str, list[tuple[np.ndarray, IntArray, IntArray]]] = {}
        for name, rows in arrived.items():
            if not len(rows):
                continue
            own = hashes(rows.rows.table, self.definition.keys(self._inputs[name]))
            for other, low, high in self._reaches(name, rows):
                asked.setdefault(other, []).append((own, low, high))
        for name in (name for name, input in self._inputs.items() if input.facts is None):
            wanted, kept = asked.get(name), self.kept.get(name)
            found = None
            if wanted and kept is not None:
                found = kept.near(step.kv, *(np.concatenate(part) for part in zip(*wanted, strict=True)))
            if name in arrived or found is not None:
                new = arrived.get(name)
                step.candidates[name] = self._candidates(step, name, new, fits.get(name, {}), found)
        self._number(step)

    def _reaches(self, name: str, rows: Arrived) -> list[tuple[str, IntArray, IntArray]]:
        """Give for each other input where kept messages may end that the new ones of an input may meet."""
        found: dict[str, tuple[IntArray, IntArray]] = {}
        seen = set()
        for planned in self.planned:
            spans = {span.binding: span for span in planned.timing.events}
            for first in spans:
                if planned.rule.when[first].input != name:
                    continue
                for other, span in spans.items():
                    if other == first:
                        continue
                    bound = planned.timing.bound
                    ranges = [
                        (x.place, down, up)
                        for x, down, up in bound.range((spans[first].start, spans[first].end), span.end)
                    ]
                    target = planned.rule.when[other].input
                    key = (target, tuple(ranges))
                    if key in seen:
                        continue
                    seen.add(key)
                    low, high = _hull(ranges, rows)
                    if target in found:
                        low, high = np.minimum(low, found[target][0]), np.maximum(high, found[target][1])
                    found[target] = low, high
        return [(target, low, high) for target, (low, high) in found.items()]

    def _candidates(
        self,
        step: RuleStep,
        name: str,
        new: Arrived | None,
        fits: Mapping[tuple[str, str], BoolArray],
        found: pa.Table | None,
    ) -> Candidates:
        """Stack new messages and kept ones."""
        input, schema = self._inputs[name], step.schemas[name]
        fields = [schema.field(n) for n in self.columns.kept(input, schema)]
        parts: list[Candidates] = []
        times_of = partial(_times_of, input)
        if new is not None:
            late = new.rows.times < step.progress.watermark_us
            parts.append(Candidates(new.rows.table, new.starts, new.ends, len(new), None, fits, late))
        if found is not None:
            parts.append(self.kept_candidates(step, name, found))
        names = [*(f.name for f in fields), *POSITION_COLUMNS]
        table = pa.concat_tables([p.table.select(names) for p in parts]).combine_chunks()
        starts, ends = (np.concatenate([getattr(p, n) for p in parts]) for n in ("starts", "ends"))
        both = {key: np.concatenate([p.fits[key] for p in parts]) for key in parts[0].fits}
        size = 0 if new is None else len(new)
        made = Candidates(table, starts, ends, size, None, both, parts[0].late[:size])
        made.times_of = partial(times_of, table)
        return made

    def kept_candidates(self, step: RuleStep, name: str, found: pa.Table) -> Candidates:
        """Read kept messages in the types that their columns have by now, with the patterns that take them."""
        input, schema = self._inputs[name], step.schemas[name]
        fields = [schema.field(n) for n in self.columns.kept(input, schema)]
        places = [found.schema.field(n) for n in POSITION_COLUMNS]
        there, n = set(found.column_names), len(found)
        columns = [
            as_type(combine(found.column(f.name)), f.type) if f.name in there else pa.nulls(n, f.type)
            for f in (*fields, *places)
        ]
        table = pa.table(columns, schema=pa.schema([*fields, *places]))
        ends = found.column(TIME).to_numpy()
        starts = found.column(_BEGAN).to_numpy() if _BEGAN in there else ends
        known = found.column(_KNOWN).to_numpy()
        fits: dict[tuple[str, str], BoolArray] = {}
        words: dict[int, IntArray] = {}
        for rule, binding, where in self._patterns[name]:
            bit = step.numbers.patterns[rule, binding]
            word, place = divmod(bit, _BITS)
            if word not in words:
                column = f"{_FITS}{word}"
                zero = np.zeros(n, dtype=np.int64)
                words[word] = (
                    combine(found.column(column)).fill_null(0).to_numpy() if column in there else zero
                )
            takes = (words[word] >> place) & 1 == 1
            older = np.flatnonzero(known <= bit)
            if len(older):  # the pattern came to the state after them
                older_rows = table.take(pa.array(older))
                takes[older] = self._takes(step, name, rule, binding, where, older_rows, bury=False)
            fits[rule, binding] = takes
        made = Candidates(table, starts, ends, 0, None, fits)
        made.times_of = partial(_times_of, input, table)
        return made

    def _number(self, step: RuleStep) -> None:
        """Number the partitions of all candidates, alike in all inputs."""
        parts = list(step.candidates.items())
        sizes = [len(part.ends) for _, part in parts]
        fields, total = self.columns.key_fields(step.schemas), sum(sizes)
        columns = (
            [
                pa.concat_arrays(
                    [
                        as_type(
                            combine(part.table.column(self.definition.keys(self._inputs[name])[i])), f.type
                        )
                        for name, part in parts
                    ]
                )
                for i, f in enumerate(fields)
            ]
            if parts
            else []
        )
        codes = Groups(columns, total).codes if columns else np.zeros(total, dtype=np.int64)
        for (_, part), own in zip(
            parts, np.split(codes, np.cumsum(sizes)[:-1]) if parts else [], strict=True
        ):
            part.codes = own

    def file(
        self, step: RuleStep, name: str, arrived: Arrived, fits: Mapping[tuple[str, str], BoolArray]
    ) -> None:
        """Keep the new messages that some rule may need later."""
        kept = self.kept.get(name)
        if kept is None or not len(arrived):
            return
        words: dict[int, IntArray] = {}
        for pair, takes in fits.items():
            word, place = divmod(step.numbers.patterns[pair], _BITS)
            known = words.setdefault(word, np.zeros(len(arrived), dtype=np.int64))
            known |= takes.astype(np.int64) << place
        needed = np.flatnonzero(np.logical_or.reduce([*fits.values()]))
        table = arrived.rows.table
        for word, bits in words.items():
            table = table.append_column(f"{_FITS}{word}", pa.array(bits))
        known_patterns = np.full(len(arrived), max(step.numbers.patterns.values()) + 1, dtype=np.int64)
        table = table.append_column(_KNOWN, pa.array(known_patterns))
        if self._inputs[name].interval is not None:
            table = table.append_column(_BEGAN, pa.array(arrived.starts))
        table = table.append_column(TIME, pa.array(arrived.ends))
        own = hashes(table, self.definition.keys(self._inputs[name]))
        if len(needed) < len(arrived):
            table, own = table.take(pa.array(needed)), own[needed]
        kept.add(step.kv, table, own, step.progress.step)

    def kept_schema(self, step: RuleStep, name: str) -> pa.Schema:
        """Return the columns that are kept of an input, in the types that they have by now."""
        schema = step.schemas[name]
        kept = self.columns.kept(self._inputs[name], schema)
        return pa.schema([schema.field(n).remove_metadata() for n in kept])

    def read(self, step: RuleStep, name: str, own: np.ndarray, low: IntArray, high: IntArray) -> Candidates:
        """Read the kept messages that tuples look for."""
        found = self.kept[name].near(step.kv, own, low, high) if name in self.kept else None
        if found is None:
            input, schema = self._inputs[name], step.schemas[name]
            fields = [schema.field(n) for n in self.columns.kept(input, schema)]
            none = np.zeros(0, dtype=np.int64)
            takes = {(r, b): none.astype(bool) for r, b, _ in self._patterns[name]}
            return Candidates(pa.schema(fields).empty_table(), none, none, 0, None, takes)
        return self.kept_candidates(step, name, found)


def _hull(ranges: Sequence[tuple[str, int, int]], rows: Arrived) -> tuple[IntArray, IntArray]:
    """Compute where the messages may end that lie so far from the start and the end of each."""
    low = np.full(len(rows), -INFINITE_US, dtype=np.int64)
    high = np.full(len(rows), INFINITE_US, dtype=np.int64)
    for place, down, up in ranges:
        own = rows.starts if place == START else rows.ends
        if down > -INFINITE_US:
            low = np.maximum(low, own + down)
        if up < INFINITE_US:
            high = np.minimum(high, own + up)
    return low, high


def _times_of(input: Input, table: pa.Table, column: str) -> pa.Array:
    return event_times(table.column(column), column, input.time_zone, input.event_time_unit)
