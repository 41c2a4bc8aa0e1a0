"""Rows that Spark SQL has pre-aggregated: groups of (slice, key) as state rows of windows, in a task. It imports no pyspark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.keys import position_keys
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.state_rows import Windows
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.columns import ACCUMULATOR, FIRST, LAST, MESSAGES, PARTITION, SOURCE
from windrow.operators.steps.dead import SCHEMA as DEAD_SCHEMA
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import last_times
from windrow.operators.steps.step import StepResult, passed
from windrow.runners.answers import Answer
from windrow.stores.kv import KV

REPLAYED = "replayed"
SLICE, ROWS, TIME_MAX, OFFSET_MIN, OFFSET_MAX = (
    "__slice",
    "__rows",
    "__time_max",
    "__offset_min",
    "__offset_max",
)
#: Accumulators travel as `__part<i>`, in the order of `TaskPlan.parts`.
LETTER, PART = "__letter", "__part"


def ingest_partials(
    parts: Sequence[str],
    now_us: int,
    operator: WindowAggregator,
    kv: KV,
    table: pa.Table,
    schema: pa.Schema,
    watermark_us: int,
    answer: Answer,
    dead: list[pa.Table],
    counters: dict[str, int],
) -> StepResult:
    """Groups of (slice, key) to state rows of windows, and on to the operator. parts: the accumulators that travel."""
    definition = operator.definition
    if len(table) == 0:
        return operator.ingest_partials(kv, table, now_us, schema)
    replayed = combine(pc.equal(pc.fill_null(table.column(LETTER), ""), REPLAYED))
    _group_extent(table, answer)
    if pc.any(replayed).as_py():
        counters[REPLAYED] = int(pc.sum(table.filter(replayed).column(ROWS)).as_py())
        table = table.filter(pc.invert(replayed))
    answer.rows += int(pc.sum(table.column(ROWS)).as_py() or 0)
    lost = combine(table.column(LETTER)).is_valid().to_numpy(zero_copy_only=False)
    if lost.any():
        _bury(definition, table.filter(pa.array(lost)), dead, counters)
        table = table.filter(pa.array(~lost))
    if len(table) == 0:
        return operator.ingest_partials(kv, table, now_us, schema)
    _mark(table, answer)
    uncounted = _late_rows(definition, table, watermark_us) + _rows_ahead(definition, table, now_us)
    if uncounted:
        answer.uncounted_rows += uncounted
        return operator.ingest_partials(kv, table.slice(0, 0), now_us, schema)
    names = {f"{PART}{i}": name for i, name in enumerate(parts)}
    table = table.rename_columns([names.get(c, c) for c in table.column_names])
    windows = _windows_of(definition, table, watermark_us)
    return operator.ingest_partials(kv, _slices(definition, table), now_us, schema, windows)


def _group_extent(table: pa.Table, answer: Answer) -> None:
    """First and following offsets of the slice, from groups of rows that carry positions."""
    if OFFSET_MIN in table.column_names:
        for row in (
            table.group_by([SOURCE, PARTITION], use_threads=False)
            .aggregate([(OFFSET_MIN, "min"), (OFFSET_MAX, "max")])
            .to_pylist()
        ):
            answer.seen((row[SOURCE], row[PARTITION]), row[f"{OFFSET_MIN}_min"], row[f"{OFFSET_MAX}_max"])


def _mark(table: pa.Table, answer: Answer) -> None:
    if SOURCE not in table.column_names:
        largest = int(pc.max(table.column(TIME_MAX)).as_py())
        answer.mark(("", 0), largest)
        return
    for row in (
        table.group_by([SOURCE, PARTITION], use_threads=False).aggregate([(TIME_MAX, "max")]).to_pylist()
    ):
        answer.mark((row[SOURCE], row[PARTITION]), row[f"{TIME_MAX}_max"])


def _late_rows(definition: AggregateDefinition, table: pa.Table, watermark_us: int) -> int:
    """Rows of slices of which every window is past its allowed lateness."""
    assigner = assigner_of(definition.window)
    slices = combine(table.column(SLICE)).to_numpy()
    row_of, _, ends = assigner.assign(slices)
    covered = np.bincount(row_of, minlength=len(slices)) > 0
    open_ = ends > passed(watermark_us, definition.allowed_lateness_us)
    taken = np.bincount(row_of[open_], minlength=len(slices)) > 0
    return int(combine(table.column(ROWS)).to_numpy()[covered & ~taken].sum())


def _rows_ahead(definition: AggregateDefinition, table: pa.Table, now_us: int) -> int:
    """Rows of groups in which one is too far ahead of now."""
    ahead = pc.greater(table.column(TIME_MAX), last_times(definition.max_ahead_us, now_us))
    return int(combine(table.column(ROWS)).to_numpy()[combine(ahead).to_numpy(zero_copy_only=False)].sum())


def _windows_of(definition: AggregateDefinition, table: pa.Table, watermark_us: int) -> Windows:
    """The windows that slices are part of; a window that takes nothing any more is left out."""
    assigner = assigner_of(definition.window)
    row_of, starts, ends = assigner.assign(combine(table.column(SLICE)).to_numpy())
    open_ = ends > passed(watermark_us, definition.allowed_lateness_us)
    if not open_.all():
        row_of, starts, ends = row_of[open_], starts[open_], ends[open_]
    return Windows(row_of, starts, ends)


def _slices(definition: AggregateDefinition, table: pa.Table) -> pa.Table:
    """Spark's groups as state rows of slices."""
    n = len(table)
    if OFFSET_MIN in table.column_names:
        where = (table.column(SOURCE), table.column(PARTITION).to_numpy())
        first, last = (position_keys(*where, table.column(c).to_numpy(), 0) for c in (OFFSET_MIN, OFFSET_MAX))
    else:
        first = last = pa.nulls(n, pa.binary())
    columns = {
        **{b: table.column(b) for b in definition.by},
        MESSAGES: combine(table.column(ROWS)),
        FIRST: first,
        LAST: last,
        **{c: table.column(c) for c in table.column_names if c.startswith(ACCUMULATOR)},
    }
    return pa.table(columns)


def _bury(
    definition: AggregateDefinition, lost: pa.Table, dead: list[pa.Table], counters: dict[str, int]
) -> None:
    """Rows that Spark set apart, as dead letters."""
    rows: list[dict[str, Any]] = []
    for letter, n in zip(lost.column(LETTER).to_pylist(), lost.column(ROWS).to_pylist(), strict=True):
        body = json.loads(letter)
        reason, at = body["reason"], body.get("at", {})
        counters[f"dead.{reason}"] = counters.get(f"dead.{reason}", 0) + n
        if len(rows) >= definition.dead_letter_limit:
            continue
        rows.append(
            {
                "reason": reason,
                "detail": body.get("detail", f"event time {definition.event_time!r}"),
                "source": at.get("source"),
                "partition": at.get("partition"),
                "offset": at.get("offset"),
                "ordinal": None if at.get("offset") is None else 0,
                "event_time_us": body.get("event_time_us"),
                "payload": body.get("payload"),
            }
        )
    table = pa.Table.from_pylist(rows, DEAD_SCHEMA)
    dead.append(table.append_column("operator", pa.array([definition.name] * len(rows))))
