"""Steps fed to the logic of rules, without a job around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.rules.definition import RulesDefinition
from windrow.stores.kv import MemoryKV, Overlay

#: The messages of each step, by input.
Steps: TypeAlias = Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]


def second(n: float) -> int:
    return int(n * 1_000_000)


def emitted(rules: RulesDefinition, steps: Steps, input: str, time: str) -> Iterator[dict[str, Any]]:
    """Give the rows of steps, each followed by an advance to the largest time of an input, and of the end of event time."""
    logic = rules.logic()
    kv = MemoryKV(logic.cfs())
    watermark, offsets = START_OF_TIME_US, dict.fromkeys([source.name for source in rules.inputs], 0)
    for step in [*steps, None]:
        results, overlay = [], Overlay(kv)
        if step:
            tables = {name: _placed(name, messages, offsets) for name, messages in step.items()}
            results.append(logic.ingest(overlay, tables, 0))
            watermark = max([watermark, *(m[time] for m in step.get(input, ()))])
        results.append(logic.advance(overlay, END_OF_TIME_US if step is None else watermark, 0))
        kv.write(overlay.batch)
        for one in results:
            for pane in one.panes:
                yield from pane.to_pylist()
    left = {cf: n for cf in logic.cfs() if cf != logic.aux_cf and (n := len(list(kv.scan(cf))))}
    assert left == {}, left


def _placed(name: str, messages: Sequence[Mapping[str, Any]], offsets: dict[str, int]) -> pa.Table:
    first = offsets[name]
    offsets[name] += len(messages)
    return placed(name, pa.Table.from_pylist([dict(m) for m in messages]), first)


def placed(name: str, table: pa.Table, first: int) -> pa.Table:
    """Add the positions of messages. first: the offset of the first one"""
    n = len(table)
    columns: dict[str, list[Any]] = {
        "__source": [f"{name}:"] * n,
        "__partition": [0] * n,
        "__ordinal": [0] * n,
    }
    columns["__offset"] = list(range(first, first + n))
    for column, values in columns.items():
        table = table.append_column(column, pa.array(values))
    return table
