"""Last emitted values of sessions for aggregations that are added and removed.

The accumulators of a session equal the values of its last pane as long as no message came since: of the aggregations of that
time, in windows in which these had values. A pane that is stored as a row, under a definition that lacks some of them, keeps
their accumulators until they are added again.

  auxiliary  \\0said -> JSON [[first step, {name of an aggregation: the first start of windows in which it has values}], ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.emitted_values import choose
from windrow.operators.aggregations.calculation import SEEN, Broken, Calculation, of_whole
from windrow.operators.steps.columns import ACCUMULATOR, EMIT_STEP, EMITTED, START
from windrow.operators.steps.groups import combine
from windrow.stores.kv import KV, Batch

_SAID = b"\x00said"


class Spans:
    """The history of a definition's aggregations: the steps from which each set applies."""

    def __init__(self, definition: AggregateDefinition, aux: str) -> None:
        self._aux = aux
        self._own = dict.fromkeys(definition.agg, START_OF_TIME_US) | dict(definition.since_us)
        self._noted = False
        self._spans: list[tuple[int, Mapping[str, int]]] = []

    def load(self, kv: KV) -> None:
        value = kv.get(self._aux, _SAID)
        self._spans = [] if value is None else json.loads(value)

    def note(self, kv: KV, step: int) -> None:
        """Record the aggregations of a definition in its first step."""
        if self._noted:
            return
        self.load(kv)
        self._noted = (
            bool(self._spans) and self._spans[-1][1] == self._own
        )  # not before it is stored for good
        if not self._noted:
            self._spans.append((step, self._own))
            batch = Batch()
            batch.put(self._aux, _SAID, json.dumps(self._spans).encode())
            kv.write(batch)

    @property
    def differ(self) -> bool:
        return len(self._spans) > 1

    def said(self, calculation: Calculation, emitted: pa.Table) -> dict[str, BoolArray]:
        """Return for each aggregation of the history the rows whose last pane had its value."""
        firsts = np.array([step for step, _ in self._spans])
        steps = combine(emitted.column(EMIT_STEP)).to_numpy()
        span = np.maximum(np.searchsorted(firsts, steps, side="right") - 1, 0)
        starts = combine(emitted.column(START)).to_numpy()
        known = {}
        for alias in {alias for _, since_of in self._spans for alias in since_of}:
            since = np.array([since_of.get(alias, END_OF_TIME_US) for _, since_of in self._spans])[span]
            if calculation.numbered:
                whole = calculation.saw_all(alias, {n: emitted.column(n) for n in emitted.column_names})
                known[alias] = (since == START_OF_TIME_US) | ((since < END_OF_TIME_US) & whole)
            else:
                known[alias] = starts >= since
        return known


def values_said(
    calculation: Calculation, spans: Spans, emitted: pa.Table
) -> tuple[dict[str, Any], list[Broken]]:
    """Return the columns of panes with the values of these rows' accumulators; some of them as accumulators."""
    if not spans.differ:
        values, broken = calculation.finish(
            {n: emitted.column(n) for n in emitted.column_names}, len(emitted)
        )
        return {EMITTED + a: column for a, column in values.items()}, broken
    known = spans.said(calculation, emitted)
    values, broken = calculation.finish(_accumulators(emitted), len(emitted))
    values, broken = of_whole(values, broken, {a: known[a] for a in values})
    columns: dict[str, Any] = {EMITTED + a: column for a, column in values.items()}
    for alias in known.keys() - calculation.definition.agg.keys():
        parts = calculation.parts_of(alias, _accumulators(emitted))
        if parts and known[alias].any():
            columns |= {f"{ACCUMULATOR}{alias}.{part}": column for part, column in parts.items()}
            columns[_mark(alias)] = pa.array(np.ones(len(emitted), dtype=np.int64), mask=~known[alias])
    return columns, broken


def taken_along(names: list[str]) -> list[str]:
    """Return those columns of stored rows that are accumulators of panes."""
    marks = tuple(n[: -len(SEEN)] for n in names if n.startswith(ACCUMULATOR) and n.endswith("." + SEEN))
    return [n for n in names if n.startswith(marks)] if marks else []


def come_again(calculation: Calculation, panes: pa.Table) -> pa.Table:
    """Return panes in which the accumulators of aggregations that were added again are values."""
    for alias in calculation.definition.agg:
        if _mark(alias) not in panes.column_names:
            continue
        there = combine(panes.column(_mark(alias))).is_valid().to_numpy(zero_copy_only=False)
        if there.any():
            values, _ = calculation.finish(_accumulators(panes), len(panes))
            name, value = EMITTED + alias, values[alias]
            if name in panes.column_names:
                value = choose(there, value, combine(panes.column(name)))
                panes = panes.drop_columns([name])
            else:
                value = choose(there, value, pa.nulls(len(panes), value.type))
            panes = panes.append_column(name, value)
        parts = calculation.parts_of(alias, _accumulators(panes))
        panes = panes.drop_columns([_mark(alias), *(f"{ACCUMULATOR}{alias}.{part}" for part in parts)])
    return panes


def _accumulators(rows: pa.Table) -> dict[str, Any]:
    return {n: rows.column(n) for n in rows.column_names if n.startswith(ACCUMULATOR)}


def _mark(alias: str) -> str:
    """Return the name of a mark, which is no kernel's part: the accumulators of a pane equal its values."""
    return f"{ACCUMULATOR}{alias}.{SEEN}"
