"""The operators of a graph: rows that one emits in a step, others take in the same step. Semantics "Chains".

Rows between operators are messages: the nth row of step s of an operator has the position (its name, 0, s, n). So each operator
inside the graph files and orders them as any others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import InputError, UnknownColumn
from windrow.core.time import START_OF_TIME_US
from windrow.operators.graph.definition import ChainDefinition
from windrow.operators.operator import FileAgain, Logic, Refiling, RunAgain
from windrow.operators.steps.arrivals import check_inputs
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.dead_letters import of_operator
from windrow.operators.steps.poison_rows import sifted_into
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.schema_inference import ForwardedColumns, Needs, Together, learn
from windrow.operators.steps.step import Redone, StepResult
from windrow.operators.view import View
from windrow.stores.kv import KV


class ChainOperator(Logic):
    """A graph on a store. Its results are the last operator's, its marks those of its outside inputs."""

    def __init__(self, definition: ChainDefinition, outputs: Collection[str] = ()) -> None:
        self.definition: ChainDefinition = definition
        self.parts: tuple[Logic, ...] = tuple(part.logic() for part in definition.taking)
        self.aux_cf: str = self.parts[0].aux_cf
        self._outputs = frozenset(outputs)

    def cfs(self) -> tuple[str, ...]:
        return tuple(cf for part in self.parts for cf in part.cfs())

    def part(self, name: str) -> Logic:
        return next(p for p in self.parts if p.definition.name == name)

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Let each operator take the rows of its upstream operators, then advance it to the watermark that they leave it.

        In this order: rows that the watermark makes due reach the next operator before the watermark does.
        """
        whole, steps = StepResult(), list[StepResult]()
        for i, part in enumerate(self.parts):
            forwarded = self._forwarded_to(kv, i, steps)
            step = (
                self._ingest(kv, i, forwarded, {}, now_us)
                if any(r is not None for r in forwarded.values())
                else StepResult()
            )
            step = step.then(part.advance(kv, self.definition.watermark_at(i, watermark_us), now_us))
            steps.append(step)
            whole = whole.then(self._says(i, step))
        return whole

    def ingest(self, kv: KV, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
        """Let each operator take the rows that others emit for the step's messages, and its own messages from outside."""
        check_inputs(tables, self.definition.name, [i.name for i in self.definition.inputs])
        whole, steps = StepResult(), list[StepResult]()
        for i in range(len(self.parts)):
            own = {n.name: tables[n.name] for n in self.definition.inputs_of(i) if n.name in tables}
            step = self._ingest(kv, i, self._forwarded_to(kv, i, steps), own, now_us)
            steps.append(step)
            whole = whole.then(self._says(i, step))
        return whole

    def _forwarded_to(self, kv: KV, i: int, steps: Sequence[StepResult]) -> dict[str, pa.Table | None]:
        """Return the rows that others forward to an operator in this step, by its inputs."""
        return {
            feed.input.name: self._forwarded(kv, self.parts[feed.part], steps[feed.part].panes)
            for feed in self.definition.feeds[i]
        }

    def _ingest(
        self,
        kv: KV,
        i: int,
        forwarded: Mapping[str, pa.Table | None],
        own: Mapping[str, pa.Table],
        now_us: int,
    ) -> StepResult:
        """Ingest rows of others, and tables from outside, into an operator. A row that it cannot take is its dead letter;
        the messages of that row count where they were counted."""
        part, tables = self.parts[i], dict[str, pa.Table]()
        for feed in self.definition.feeds[i]:
            rows, name = forwarded[feed.input.name], feed.input.name
            if rows is None and part.takes_columns:
                made = self.parts[feed.part].known_schema(kv)
                rows = None if made is None else made.empty_table()  # declares the columns
            if rows is not None:
                tables[name] = rows
        for name, rows in own.items():
            if part.takes_columns or len(rows) or not self.definition.by_input:
                tables[name] = rows
            else:
                part.learn(kv, name, rows.schema)
        if not tables and not part.takes_columns:
            return StepResult()
        rows_of_others = {name: tables[name] for name in forwarded if name in tables and len(tables[name])}
        if not rows_of_others:
            return part.ingest(kv, tables, now_us)
        return sifted_into(lambda kv, some: part.ingest(kv, {**tables, **some}, now_us), kv, rows_of_others)

    def _says(self, i: int, step: StepResult) -> StepResult:
        """Return a step of an operator as one of the graph."""
        definition, whole = self.definition.parts[i], self.definition
        last = i == len(self.parts) - 1
        outside = whole.inputs_of(i)
        inner = (
            {definition.name: step.panes}
            if not last and definition.name in self._outputs and step.panes
            else {}
        )
        dead, marks = step.dead, step.marks
        if dead is not None:
            dead = of_operator(dead, definition.name)
        if not outside:
            marks = {}
        else:
            # Rows without positions name no source: theirs is that of the input.
            marks = {(s or outside[0].source_prefix, p): t for (s, p), t in marks.items()}
            prefixes = tuple(n.source_prefix for n in outside)
            marks = {p: t for p, t in marks.items() if p[0].startswith(prefixes)}
        return StepResult(step.panes if last else [], dead, marks, step.counts, inner=inner)

    def _forwarded(self, kv: KV, part: Logic, panes: list[pa.Table]) -> pa.Table | None:
        """Return the rows that an operator emitted, as messages."""
        if not panes:
            return None
        rows = part.messages(panes)
        n, step = len(rows), part.progress(kv).step
        where: dict[str, pa.Array] = {
            SOURCE: pa.array([part.definition.name] * n, pa.string()),
            PARTITION: pa.array(np.zeros(n, dtype=np.int64)),
            OFFSET: pa.array(np.full(n, step, dtype=np.int64)),
            ORDINAL: pa.array(np.arange(n, dtype=np.int64)),
        }
        for name, column in where.items():
            rows = rows.append_column(name, column)
        return rows

    # -- emitted rows -----------------------------------------------------------------------------------------------

    def emitted(self, result: StepResult, commit: int) -> dict[str, pa.Table]:
        emitted = {**result.inner, **({self.definition.name: result.panes} if result.panes else {})}
        return {name: self.part(name).rows(panes, commit) for name, panes in emitted.items()}

    def rows(self, panes: Sequence[pa.Table], commit: int) -> pa.Table:
        return self.parts[-1].rows(panes, commit)

    def schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self.parts[-1].schema(self.input_schemas(inputs)[-1])

    def messages(self, panes: Sequence[pa.Table]) -> pa.Table:
        return self.parts[-1].messages(panes)

    def message_schema(self, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        return self.parts[-1].message_schema(self.input_schemas(inputs)[-1])

    def known_schema(self, kv: KV) -> pa.Schema | None:
        return self.parts[-1].known_schema(kv)

    def input_schemas(self, inputs: Mapping[str, pa.Schema]) -> list[dict[str, pa.Schema]]:
        """Return the columns of the inputs of each operator, over such inputs from outside.

        Raises `UnknownColumn` where an operator needs a column that the rows of another lack.
        """
        found: list[dict[str, pa.Schema]] = []
        for i, part in enumerate(self.parts):
            of_part = {n.name: inputs[n.name] for n in self.definition.inputs_of(i)}
            for feed in self.definition.feeds[i]:
                before = self.parts[feed.part]
                forwarded = before.message_schema(found[feed.part])
                for column in part.definition.columns_of(feed.input):
                    if column not in forwarded.names:
                        raise UnknownColumn(
                            f"column {column!r} of input {feed.input.name!r} of {part.definition.name!r} is not in the rows of "
                            f"{before.definition.name!r}, which have {forwarded.names}"
                        )
                of_part[feed.input.name] = forwarded
            found.append(of_part)
        return found

    # -- inputs -----------------------------------------------------------------------------------------------------

    def check_schemas(self, inputs: Mapping[str, pa.Schema]) -> None:
        for i, part in enumerate(self.parts):
            part.check_schemas(
                {n.name: inputs[n.name] for n in self.definition.inputs_of(i) if n.name in inputs}
            )

    def _takers_of(self, name: str) -> list[Logic]:
        if name not in [i.name for i in self.definition.inputs]:
            raise InputError(f"{name!r} is no input of {self.definition.name!r}")
        return [
            part
            for i, part in enumerate(self.parts)
            if name in [n.name for n in self.definition.inputs_of(i)]
        ]

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        found = None
        for part in self._takers_of(name):
            known = part.schema_of(kv, name)
            found = found if known is None else learn(found, known)
        return found

    def needs_of(self, kv: KV, name: str, other_inputs: Mapping[str, pa.Table]) -> Needs:
        needs = [part.needs_of(kv, name, other_inputs) for part in self._takers_of(name)]
        for part in self._takers_of(name):
            needs += self._needs_after(kv, self.parts.index(part), name)
        return needs[0] if len(needs) == 1 else Together(needs)

    def _needs_after(self, kv: KV, part: int, name: str) -> list[Needs]:
        """Return the columns that downstream operators require of an input of this one, whose rows forward them."""
        found: list[Needs] = []
        logic = self.parts[part]
        if not logic.called(name, ""):
            return found
        for i, feeds in enumerate(self.definition.feeds):
            for taken in [feed.input.name for feed in feeds if feed.part == part]:
                further = [self.parts[i].needs_of(kv, taken, {}), *self._needs_after(kv, i, taken)]
                as_they_are = logic.called(name, "") == ("",) and not logic.adds_columns
                called = partial(logic.called, name)
                found += [ForwardedColumns(needs, called, as_they_are=as_they_are) for needs in further]
        return found

    def columns(self, kv: KV) -> list[str]:
        return self.parts[0].columns(kv)

    def key_types(
        self, name: str, inputs: Mapping[str, pa.Schema]
    ) -> list[tuple[str, tuple[pa.DataType, ...]]]:
        definition = self.definition
        schemas = self.input_schemas(inputs)
        first = definition.taken_by(name)
        reached = {first: name}
        kinds: list[list[pa.DataType]] = [[] for _ in definition.shared_keys]
        for i, part in enumerate(self.parts):
            came = [f for f in definition.feeds[i] if f.part in reached]
            if i != first and not came:
                continue
            types = part.key_types(reached.setdefault(i, came[0].input.name if came else name), schemas[i])
            for n, places in enumerate(definition.shared_keys):
                kinds[n] += types[places[i]][1]
        input = definition.input(name)
        return [(key, tuple(k)) for key, k in zip(definition.keys(input), kinds, strict=True)]

    # -- state ------------------------------------------------------------------------------------------------------

    def progress(self, kv: KV) -> Progress:
        return self.parts[0].progress(kv)

    def refiling(self) -> Refiling | None:
        return refiling_of(self)

    def view(self, stores: Sequence[KV], watermark_us: int) -> View:
        """Return the view of the last operator; each has its own."""
        return self.parts[-1].view(stores, watermark_us)


# -- message replay ---------------------------------------------------------------------------------------------------
# Message replay in a graph: lost messages from outside are filed again; otherwise all steps are run again.
# Messages from another operator can only be restored by running that one, from its first step on.


def refiling_of(graph: ChainOperator) -> Refiling | None:
    """Return the replay of lost messages; None if the graph keeps no messages, or cannot replay them."""
    keeping = {i: part.refiling() for i, part in enumerate(graph.parts) if part.message_cfs}
    if not keeping or None in keeping.values():
        return None
    filed: dict[int, FileAgain] = {}
    for i, again in keeping.items():
        assert again is not None
        why = _why_run(graph, i, again)
        if why:
            run = [a for a in keeping.values() if isinstance(a, RunAgain)]
            return _run_again(graph, run, f"{why}, which needs all steps to run again")
        assert isinstance(again, FileAgain)
        filed[i] = again
    return _file_again(graph, filed)


def _why_run(graph: ChainOperator, i: int, again: Refiling) -> str:
    """Return the reason why the messages of an operator cannot be filed as they came from outside; "" if they can."""
    definition = graph.definition
    part = definition.parts[i]
    if definition.feeds[i]:
        before = definition.parts[definition.feeds[i][0].part]
        return f"{part.name!r} keeps rows of {before.name!r}"
    if isinstance(again, RunAgain):
        return again.why
    assert isinstance(again, FileAgain)
    if part.ids is not None:
        return f"{part.name!r} took one of several messages of one id"
    if again.checks_uncounted:
        return f"{part.name!r} took the messages on which its condition did not raise"
    # The log notes the steps of the first operator alone.
    return f"{part.name!r} keeps messages under the numbers of its steps" if i and again.by_number else ""


def _file_again(graph: ChainOperator, parts: Mapping[int, FileAgain]) -> FileAgain:
    definition = graph.definition

    def file(kv: KV, tables: Mapping[str, pa.Table], redone: Redone) -> int:
        for i, again in parts.items():
            names = [n.name for n in definition.inputs_of(i)]
            own = {name: table for name, table in tables.items() if name in names}
            if own:
                again.file(kv, own, redone)
        return 0

    def drop_expired(kv: KV) -> None:
        for again in parts.values():
            again.drop_expired(kv)

    return FileAgain(
        logic=graph,
        kept_from=lambda kv: min(again.kept_from(kv) for again in parts.values()),
        begun=lambda kv: any(again.begun(kv) for again in parts.values()),
        file=file,
        drop_expired=drop_expired,
        steps_at_once=min(again.steps_at_once for again in parts.values()),
    )


def _run_again(graph: ChainOperator, numbered: list[RunAgain], why: str) -> RunAgain:
    def reached(kv: KV) -> list[Any]:
        return [part.progress(kv).step for part in graph.parts] + [again.reached(kv) for again in numbered]

    def prepare(kv: KV, scratch: KV) -> None:
        for part in graph.parts:
            if (again := part.refiling()) is not None:
                again.prepare(kv, scratch)

    return RunAgain(
        logic=graph,
        kept_from=lambda kv: START_OF_TIME_US,
        prepare=prepare,
        reached=reached,
        why=why,
    )
