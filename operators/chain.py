"""Operators in a chain: what one tells in a step, the next takes in the same step. Semantics "Chains".

A chain is an operator: its two pure steps are those of its parts, one after the other, on the same store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.chain import WINDOW_END, WINDOW_START, WINDOW_TIME, ChainDefinition, parts_of
from windrow.core.definition import RESERVED_COLUMNS, AggregateDefinition
from windrow.core.join import JoinDefinition
from windrow.core.time import END_OF_TIME_US
from windrow.operators.aggregate import WindowAggregator
from windrow.operators.calculation import Calculation
from windrow.operators.columns import END, OFFSET, ORDINAL, PARTITION, SOURCE, START, TIMING
from windrow.operators.dead import of_operator
from windrow.operators.groups import combine
from windrow.operators.join_output import Columns, joined_rows, joined_schema
from windrow.operators.join_rows import join_operator
from windrow.operators.output import STAMP, pane_rows, pane_schema, stamps
from windrow.operators.progress import Progress
from windrow.operators.step import StepResult, limit
from windrow.operators.tuples import TupleAggregator
from windrow.stores.kv import KV


def operator_of(definition: Any, tell: Collection[str] = ()) -> Any:
    """The logic of a definition. `tell`: operators inside a chain whose panes are wanted too."""
    if isinstance(definition, ChainDefinition):
        return ChainOperator(definition, tell)
    if isinstance(definition, JoinDefinition):
        return join_operator(definition)
    return TupleAggregator(definition) if definition.tuple_window else WindowAggregator(definition)


class ChainOperator:
    """One chain on one store. Its results are the last part's, its marks the first one's."""

    def __init__(self, definition: ChainDefinition, tell: Collection[str] = ()) -> None:
        self.definition = definition
        self.parts: tuple[Any, ...] = tuple(operator_of(p) for p in definition.parts)
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
        return self._down(kv, self.first.advance(kv, watermark_us, now_us), now_us, watermark_us)

    def ingest(self, kv: KV, table: Any, now_us: int) -> StepResult:
        """Each part takes what the one before it told of the step's messages."""
        return self._down(kv, self.first.ingest(kv, table, now_us), now_us, None)

    def _down(self, kv: KV, step: StepResult, now_us: int, watermark_us: int | None) -> StepResult:
        whole = StepResult(marks=step.marks)
        for i, part in enumerate(self.parts):
            if i:
                rows = self._handed(kv, self.parts[i - 1], step.panes)
                step = StepResult() if rows is None else part.ingest(kv, rows, now_us)
                if watermark_us is not None:
                    watermark_us = _behind(watermark_us, self.definition.behind_us(i - 1))
                    step = step.then(part.advance(kv, watermark_us, now_us))
            name = part.definition.name
            last = i == len(self.parts) - 1
            inner = {name: step.panes} if not last and name in self._tell and step.panes else {}
            dead = None if step.dead is None else of_operator(step.dead, name)
            told = StepResult(step.panes if last else [], dead, {}, step.counts, inner=inner)
            whole = whole.then(told)
        return whole

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

    def schemas(self, kv: KV) -> list[pa.Schema]:
        return self.first.schemas(kv)  # type: ignore[no-any-return]

    def columns(self, kv: KV) -> list[str]:
        return self.first.columns(kv)  # type: ignore[no-any-return]


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
        return pa.concat_tables([p.drop_columns([TIMING]) for p in panes], promote_options="permissive")
    schema = message_schema(definition, operator.calculation)
    tables = []
    for table in panes:
        starts, ends = (combine(table.column(c)) for c in (START, END))
        times = [pa.array(ends.to_numpy() - 1), starts, ends]
        columns = [combine(table.column(f.name)).cast(f.type) for f in schema if f.name in table.column_names]
        tables.append(pa.table([*columns, *map(stamps, times)], schema=schema))
    return pa.concat_tables(tables)


def told_schema(definition: Any, *inputs: pa.Schema) -> pa.Schema:
    """The schema of an operator's panes, or rows, over such inputs (a join has two); of a chain's last operator."""
    if isinstance(definition, JoinDefinition):
        return joined_schema(Columns.of(definition, *inputs), *inputs)
    for part in parts_of(definition)[:-1]:
        if isinstance(part, JoinDefinition):
            rows = told_schema(part, *inputs)
            inputs = (pa.schema([f for f in rows if f.name not in RESERVED_COLUMNS]),)
        else:
            inputs = (message_schema(part, Calculation(part, *inputs)),)
    last = definition.last if isinstance(definition, ChainDefinition) else definition
    return pane_schema(last, Calculation(last, *inputs))


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


def _behind(watermark_us: int, by_us: int) -> int:
    return END_OF_TIME_US if watermark_us == END_OF_TIME_US else limit(watermark_us, by_us)
