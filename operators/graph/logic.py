"""Operators in a chain: what one tells in a step, the next takes in the same step. Semantics "Chains".

A chain is an operator: its two pure steps are those of its parts, one after the other, on the same store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import InputError, UnknownColumn
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.types import as_type, concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.output import STAMP, pane_rows, pane_schema, stamps
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.graph.definition import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    ChainDefinition,
    handed_input,
    handed_side,
    join_columns,
    parts_of,
)
from windrow.operators.join.counted import join_operator
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.output import Columns, Names, joined_rows, joined_schema, letters_by_input
from windrow.operators.steps.columns import END, OFFSET, ORDINAL, PARTITION, SOURCE, START, TIMING
from windrow.operators.steps.dead import of_operator
from windrow.operators.steps.groups import combine
from windrow.operators.steps.learning import Needs
from windrow.operators.steps.progress import Progress
from windrow.operators.steps.step import StepResult, passed
from windrow.stores.kv import KV, Batch


def operator_of(definition: Any, tell: Collection[str] = ()) -> Any:
    """The logic of a definition. `tell`: operators inside a chain whose panes are wanted too."""
    if isinstance(definition, ChainDefinition):
        return ChainOperator(definition, tell)
    if isinstance(definition, JoinDefinition):
        return join_operator(definition)
    return TupleAggregator(definition) if definition.tuple_window else WindowAggregator(definition)


class ChainOperator:
    """One chain on one store. Its results are the last part's, its marks those of what comes from outside."""

    def __init__(self, definition: ChainDefinition, tell: Collection[str] = ()) -> None:
        self.definition = definition
        self.parts: tuple[Any, ...] = tuple(operator_of(p) for p in definition.logics)
        self.first = self.parts[0]
        self.aux_cf: str = self.first.aux_cf
        self._tell = frozenset(tell)

    def cfs(self) -> tuple[str, ...]:
        return tuple(cf for part in self.parts for cf in part.cfs())

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance(self, kv: KV, watermark_us: int, now_us: int) -> StepResult:
        """Each part takes what the one before it told, then advances to the watermark that that one leaves it.

        In this order: what the watermark lets the first tell, the second has before the watermark reaches it.
        """
        whole, step = StepResult(), self.first.advance(kv, watermark_us, now_us)
        for i, part in enumerate(self.parts):
            if i:
                rows = self._handed(kv, self.parts[i - 1], step.panes)
                step = StepResult() if rows is None else self._take(kv, i, rows, {}, now_us)
                watermark_us = passed(watermark_us, self.definition.behind_us(i - 1))
                step = step.then(part.advance(kv, watermark_us, now_us))
            whole = whole.then(self._says(i, step))
        return whole

    def ingest(self, kv: KV, given: Any, now_us: int) -> StepResult:
        """Each part takes what the one before it told of the step's messages, and its own from outside.

        given: a table; where an operator is a join, tables by input.
        """
        tables: Mapping[str, pa.Table] = (
            given if self.definition.by_input else {self.first.definition.name: given}
        )
        names = [i.name for i in self.definition.inputs]
        unknown = sorted(set(tables) - set(names))
        if unknown:
            raise InputError(f"{unknown[0]!r} is no input of {self.definition.name!r}, which has {names}")
        whole, step = StepResult(), StepResult()
        for i in range(len(self.parts)):
            rows = self._handed(kv, self.parts[i - 1], step.panes) if i else None
            own = {n.name: tables[n.name] for n in self.definition.inputs_of(i) if n.name in tables}
            step = self._take(kv, i, rows, own, now_us)
            whole = whole.then(self._says(i, step))
        return whole

    def _take(
        self, kv: KV, i: int, rows: pa.Table | None, own: Mapping[str, pa.Table], now_us: int
    ) -> StepResult:
        """The ingest of a part: rows of the part before it, and tables from outside."""
        part, definition = self.parts[i], self.definition.parts[i]
        if isinstance(definition, JoinDefinition):
            tables = dict(own)
            if i:
                schema = self._made(kv, i - 1) if rows is None else None
                if schema is not None:
                    rows = schema.empty_table()  # it tells what columns there are
                if rows is not None:
                    tables[handed_input(self.definition.parts[i - 1], definition).name] = rows
            step: StepResult = part.ingest(kv, tables, now_us)
            return step
        if i == 0:
            [rows] = own.values() or [None]
            if rows is not None and not len(rows) and self.definition.by_input:
                self._learn_columns(kv, rows.schema)
                return StepResult()
        return StepResult() if rows is None else part.ingest(kv, rows, now_us)

    def _learn_columns(self, kv: KV, schema: pa.Schema) -> None:
        """What columns the input of the first aggregate has, before its first message."""
        progress, batch = Progress.load(kv, self.first.aux_cf), Batch()
        self.first._learn(progress, schema)
        progress.save(lambda key, value: batch.put(self.first.aux_cf, key, value))
        kv.write(batch)

    def _says(self, i: int, step: StepResult) -> StepResult:
        """A step of a part as one of the chain."""
        definition = self.definition.parts[i]
        last = i == len(self.parts) - 1
        inner = (
            {definition.name: step.panes} if not last and definition.name in self._tell and step.panes else {}
        )
        dead, marks = step.dead, step.marks
        if dead is not None:
            if i == 0 and self.definition.by_input and not isinstance(definition, JoinDefinition):
                names = pa.array([definition.name] * len(dead), pa.string())
                dead = letters_by_input(dead.set_column(dead.column_names.index("input"), "input", names))
                assert dead is not None
            dead = of_operator(dead, definition.name)
        if i:
            prefixes = tuple(n.source_prefix for n in self.definition.inputs_of(i))
            marks = {p: t for p, t in marks.items() if p[0].startswith(prefixes)} if prefixes else {}
        elif self.definition.by_input and not isinstance(definition, JoinDefinition):
            # Rows without positions name no source: theirs is that of the input.
            marks = {(s or f"{definition.name}:", p): t for (s, p), t in marks.items()}
        return StepResult(step.panes if last else [], dead, marks, step.counts, inner=inner)

    def _made(self, kv: KV, i: int) -> pa.Schema | None:
        """The columns of what a part tells; None before all of its inputs have said theirs."""
        part = self.parts[i]
        if isinstance(part.definition, JoinDefinition):
            sides = part.inputs.known(kv)
            return None if sides is None else _joined(part.definition, sides, part.inputs.names(kv))
        schema = Progress.load(kv, part.aux_cf).schema
        return (
            None if schema is None else message_schema(part.definition, Calculation(part.definition, schema))
        )

    def _handed(self, kv: KV, part: Any, panes: list[pa.Table]) -> pa.Table | None:
        """What a part told, as messages: the nth row of its step s stands at (its name, 0, s, n)."""
        if not panes:
            return None
        rows = messages(part, panes)
        n, step = len(rows), Progress.load(kv, part.aux_cf).step
        where: dict[str, pa.Array] = {
            SOURCE: pa.array([part.definition.name] * n, pa.string()),
            PARTITION: pa.array(np.zeros(n, dtype=np.int64)),
            OFFSET: pa.array(np.full(n, step, dtype=np.int64)),
            ORDINAL: pa.array(np.arange(n, dtype=np.int64)),
        }
        for name, column in where.items():
            rows = rows.append_column(name, column)
        return rows

    def told(self, name: str, panes: list[pa.Table], commit: int) -> pa.Table:
        """What the steps of a commit told, as rows."""
        part = next(p for p in self.parts if p.definition.name == name)
        return told_rows(part, panes, commit)

    # -- what the input is asked ------------------------------------------------------------------------------------

    @property
    def calculation(self) -> Calculation:
        return self.first.calculation  # type: ignore[no-any-return]

    @property
    def _calculation(self) -> Calculation | None:
        return self.first._calculation  # type: ignore[no-any-return]

    def schema_of(self, kv: KV, name: str) -> pa.Schema | None:
        """What is known of the columns of an input from outside."""
        for i, part in enumerate(self.parts):
            if name not in [n.name for n in self.definition.inputs_of(i)]:
                continue
            if not isinstance(part.definition, JoinDefinition):
                return Progress.load(kv, part.aux_cf).schema
            known: pa.Schema = part.inputs.schemas(kv)[0 if name == part.definition.left.name else 1]
            return known
        raise InputError(f"{name!r} is no input of {self.definition.name!r}")

    @property
    def needs(self) -> Needs:
        return self.first.needs  # type: ignore[no-any-return]

    def needs_of(self, kv: KV, name: str, beside: Mapping[str, pa.Table]) -> Needs:
        """What is needed of the columns of an input from outside; `beside`: other tables of the same step."""
        for i, part in enumerate(self.parts):
            if name in [n.name for n in self.definition.inputs_of(i)]:
                needs: Needs = (
                    part.inputs.needs_of(kv, name, beside)
                    if isinstance(part.definition, JoinDefinition)
                    else part.needs
                )
                return needs
        raise InputError(f"{name!r} is no input of {self.definition.name!r}")

    def columns(self, kv: KV) -> list[str]:
        """Of a join, with which the chain begins, the columns of its rows; else those of the input."""
        if isinstance(self.first.definition, JoinDefinition):
            names: list[str] = self.first.columns(kv)
            return names
        schema = Progress.load(kv, self.aux_cf).schema
        return [] if schema is None else list(schema.names)


def told_rows(operator: Any, panes: list[pa.Table], commit: int) -> pa.Table:
    """What the steps of a commit told of an operator, as rows."""
    definition = operator.definition
    if isinstance(definition, JoinDefinition):
        return joined_rows(panes, commit)
    return pane_rows(definition, pane_schema(definition, operator.calculation), panes, commit)


def messages(operator: Any, panes: list[pa.Table]) -> pa.Table:
    """What an operator told, with the columns that the next one sees."""
    definition = operator.definition
    if isinstance(definition, JoinDefinition):
        return concat([p.drop_columns([TIMING]) for p in panes])
    schema = message_schema(definition, operator.calculation)
    tables = []
    for table in panes:
        starts, ends = (combine(table.column(c)) for c in (START, END))
        times = [pa.array(ends.to_numpy() - 1), starts, ends]
        columns = [
            as_type(combine(table.column(f.name)), f.type) for f in schema if f.name in table.column_names
        ]
        tables.append(pa.table([*columns, *map(stamps, times)], schema=schema))
    return pa.concat_tables(tables)


def told_columns(definition: Any, *inputs: pa.Schema) -> pa.Schema:
    """The columns of what an operator tells, as the next one sees them, over such inputs (a join has two)."""
    if not isinstance(definition, JoinDefinition):
        return message_schema(definition, Calculation(definition, *inputs))
    return _joined(definition, inputs, None)


def _joined(definition: JoinDefinition, inputs: Sequence[pa.Schema], given: Names | None) -> pa.Schema:
    left, right = inputs
    rows = joined_schema(Columns.of(definition, left, right, given), left, right)
    return pa.schema([f for f in rows if f.name not in RESERVED_COLUMNS])


def told_schema(definition: Any, inputs: Mapping[str, pa.Schema] | pa.Schema) -> pa.Schema:
    """The schema of an operator's panes, or rows; of a chain's last operator. inputs: one, or by name if there are several."""
    last = parts_of(definition)[-1]
    schemas = input_schemas(definition, inputs)[-1]
    if isinstance(last, JoinDefinition):
        return joined_schema(Columns.of(last, *schemas), *schemas)
    return pane_schema(last, Calculation(last, *schemas))


def input_schemas(
    definition: Any, inputs: Mapping[str, pa.Schema] | pa.Schema
) -> list[tuple[pa.Schema, ...]]:
    """The columns of the inputs of each operator of a chain: one of an aggregate, those of the left and right of a join.

    Raises `UnknownColumn` where an operator needs a column that the rows of the one before it lack.
    """
    parts, found = parts_of(definition), list[tuple[pa.Schema, ...]]()
    for i, part in enumerate(parts):
        handed = told_columns(parts[i - 1], *found[-1]) if i else None
        if not isinstance(part, JoinDefinition):
            if handed is None:
                handed = inputs if isinstance(inputs, pa.Schema) else inputs[part.name]
            found.append((handed,))
            continue
        assert not isinstance(inputs, pa.Schema)
        if handed is None:
            found.append((inputs[part.left.name], inputs[part.right.name]))
            continue
        given = handed_input(parts[i - 1], part)
        for column in join_columns(part, given):
            if column not in handed.names:
                raise UnknownColumn(
                    f"column {column!r} of input {given.name!r} of {part.name!r} is not in the rows of {given.name!r}, which "
                    f"have {handed.names}"
                )
        left = handed_side(parts[i - 1], part) == "left"
        found.append((handed, inputs[part.right.name]) if left else (inputs[part.left.name], handed))
    return found


def message_schema(definition: AggregateDefinition, calculation: Calculation) -> pa.Schema:
    """The columns of panes as the next operator sees them."""
    panes = pane_schema(definition, calculation)
    names = (*definition.by, *definition.agg)
    return pa.schema(
        [
            *(panes.field(n).remove_metadata() for n in names),
            *(pa.field(n, STAMP) for n in (WINDOW_TIME, WINDOW_START, WINDOW_END)),
        ]
    )
