"""Partial aggregates of SQL: groups of (slice, key) as state rows of windows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.column_types import is_by_value, joined, noted
from windrow.core.faults import faults, may_have_faults
from windrow.core.message_keys import position_keys
from windrow.core.sql import quoted
from windrow.core.types import is_text
from windrow.core.windows import Global, Hopping, Session, Tumbling
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.state_rows import Windows
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.assigners import assigner_of
from windrow.operators.steps.columns import (
    ACCUMULATOR,
    DEAD_LETTER,
    FAULTS,
    FIRST,
    LAST,
    MESSAGES,
    OFFSET_MAX,
    OFFSET_MIN,
    PARTITION,
    REPLAYED,
    ROWS,
    SLICE,
    SOURCE,
    TIME_MAX,
    TIME_MIN,
)
from windrow.operators.steps.dead_letters import SCHEMA as DEAD_SCHEMA
from windrow.operators.steps.dead_letters import letters_by_input
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import last_times
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.operators.steps.step import StepResult, passed
from windrow.stores.kv import KV


def pushdown(definition: AggregateDefinition, schema: pa.Schema) -> Pushdown | None:
    """Return the part that SQL can do, if it can compute part of every aggregation, and no single row is needed."""
    window, retention = definition.window, definition.retention
    sizes = retention.windows is not None or retention.messages is not None
    sees = (
        definition.full_state
        or definition.ids is not None
        or definition.where is not None
        or bool(definition.makes)
    )
    if sizes or sees:
        return None
    newest: tuple[int, int] | None
    match window:
        case Tumbling(size_us=size, offset_us=offset):
            length, newest = size, (size, size)
        case Hopping(size_us=size, hop_us=hop, offset_us=offset):
            length, newest = math.gcd(size, hop), (size, hop)
        case Global():
            length, offset, newest = 0, 0, None
        case _:
            return None
    return _pushed(definition, schema, length_us=length, offset_us=offset, window=newest)


def _pushed(definition: AggregateDefinition, schema: pa.Schema, **slices: Any) -> Pushdown | None:
    """Return the part that SQL does by these slices of time; None where it cannot compute an aggregation."""
    parts = parts_of(definition, Calculation(definition, schema))
    if parts is None:
        return None
    return Pushdown(
        faults=faults_of(definition, schema),
        input=definition.inputs[0],
        by=definition.by,
        nulls_count=definition.null_keys != "dead_letter",
        parts=parts,
        retention_us=definition.retention.time_us,
        lateness_us=definition.allowed_lateness_us,
        **slices,
    )


def parts_of(definition: AggregateDefinition, calculation: Calculation) -> dict[str, str] | None:
    """Map accumulator columns to the SQL aggregates that compute them; None where an aggregation has none."""
    columns: dict[str, str] = {}
    for alias, aggregation in definition.agg.items():
        kernel = calculation.kernels[alias]
        plain = all(isinstance(a, str) for a in aggregation.args)
        if kernel is None or aggregation.condition is not None or not plain:
            return None
        if any(_is_hidden(calculation.input_schema.field(str(a)).type) for a in aggregation.args):
            return None
        parts = kernel.spark_partials([str(a) for a in aggregation.args])
        if parts is None:
            return None
        columns.update({f"{ACCUMULATOR}{alias}.{part}": sql for part, sql in parts.items()})
    return columns


def _is_hidden(kind: pa.DataType) -> bool:
    """True if only Python can check whether a value can be counted."""
    return bool(pa.types.is_nested(kind)) and may_have_faults(kind)


def faults_of(definition: AggregateDefinition, schema: pa.Schema) -> str | None:
    """Return SQL that is true of a row with a value that cannot be counted and hides in its group; None where none can be."""
    names = {column for aggregation in definition.agg.values() for column in aggregation.columns}
    cases = []
    for name in sorted(names - {*definition.by, definition.event_time}):
        kind = schema.field(name).type
        if is_text(kind):
            cases.append(f"not is_valid_utf8({quoted(name)})")
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            cases.append(f"year({quoted(name)}) not between 1 and 9999")
    return " or ".join(cases) or None


def window_groups(
    operator: Steps, kv: KV, table: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
) -> tuple[Grouped, pa.Table, pa.Schema, Windows | None]:
    """Return groups of (slice, key) as state rows of slices, and the windows that these are part of."""
    definition, windows = operator.definition, None
    taken, table, schema = counted_groups(operator, kv, table, schema)
    if len(table):
        taken.uncounted = _late_rows(definition, table, watermark_us) + rows_ahead(definition, table, now_us)
        if taken.uncounted:
            table = table.slice(0, 0)
        else:
            windows = _windows_of(definition, table, watermark_us)
            table = slices_of(definition, table)
    return taken, table, schema, windows


def counted_groups(
    operator: Steps, kv: KV, table: pa.Table, schema: pa.Schema
) -> tuple[Grouped, pa.Table, pa.Schema]:
    """Return the summary of groups, the groups that count unless they are too late, and the columns of their rows."""
    taken, definition = Grouped(StepResult()), operator.definition
    if len(table):
        taken.extent = dict(_extent(table))
        old = combine(pc.equal(pc.fill_null(table.column(DEAD_LETTER), ""), REPLAYED))
        if pc.any(old).as_py():
            taken.step.counts[REPLAYED] = int(pc.sum(table.filter(old).column(ROWS)).as_py())
            table = table.filter(pc.invert(old))
        taken.rows = int(pc.sum(table.column(ROWS)).as_py() or 0)
        taken.faulty = _faulty(operator, kv, table, schema)
        if taken.faulty:
            return taken, table.slice(0, 0), schema
        lost = combine(table.column(DEAD_LETTER)).is_valid().to_numpy(zero_copy_only=False)
        if lost.any():
            _bury(definition, table.filter(pa.array(lost)), taken.step)
            table = table.filter(pa.array(~lost))
    if len(table):
        prefix = definition.inputs[0].source_prefix
        taken.step.marks = {(source or prefix, n): us for (source, n), us in _marks(table)}
        schema = _noted(definition, table, schema)
    return taken, table, schema


def _faulty(operator: Steps, kv: KV, table: pa.Table, schema: pa.Schema) -> int:
    """Count rows in groups with a value that cannot be counted, or where each value decides by itself."""
    if FAULTS in table.column_names and (total := pc.sum(table.column(FAULTS)).as_py()):
        return int(total)
    rows = combine(table.column(ROWS)).to_numpy()
    bad = {row for name in operator.definition.by for row in faults(table.column(name))}
    if bad:
        return int(rows[sorted(bad)].sum())
    known = operator.progress(kv).schema
    for field in () if known is None else known:
        if field.name in schema.names and field.name != operator.definition.event_time:
            seen = schema.field(field.name)
            both = joined(field, seen)
            if both is not None and is_by_value(both, seen.type):
                return int(rows.sum())
    return 0


def _noted(definition: AggregateDefinition, table: pa.Table, schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows with the properties of their values that groups show."""
    for alias, aggregation in definition.agg.items():
        parts = [table.column(n) for n in table.column_names if n.startswith(f"{ACCUMULATOR}{alias}.")]
        for name in aggregation.columns:
            i = schema.get_field_index(name)
            schema = schema.set(i, noted(schema.field(i), parts))
    for name in definition.by:
        i = schema.get_field_index(name)
        schema = schema.set(i, noted(schema.field(i), [table.column(name)]))
    return schema


def _extent(table: pa.Table) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
    """Yield first and last offsets, from groups of rows that carry positions."""
    if OFFSET_MIN in table.column_names:
        grouped = table.group_by([SOURCE, PARTITION], use_threads=False)
        for row in grouped.aggregate([(OFFSET_MIN, "min"), (OFFSET_MAX, "max")]).to_pylist():
            yield (row[SOURCE], row[PARTITION]), (row[f"{OFFSET_MIN}_min"], row[f"{OFFSET_MAX}_max"])


def _marks(table: pa.Table) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the largest event time of each partition."""
    if SOURCE not in table.column_names:
        yield ("", 0), int(pc.max(table.column(TIME_MAX)).as_py())
        return
    grouped = table.group_by([SOURCE, PARTITION], use_threads=False).aggregate([(TIME_MAX, "max")])
    for row in grouped.to_pylist():
        yield (row[SOURCE], row[PARTITION]), row[f"{TIME_MAX}_max"]


def _late_rows(definition: AggregateDefinition, table: pa.Table, watermark_us: int) -> int:
    """Count rows of slices of which every window is past its allowed lateness."""
    assigner = assigner_of(definition.window)
    slices = combine(table.column(SLICE)).to_numpy()
    row_of, _, ends = assigner.assign(slices)
    covered = np.bincount(row_of, minlength=len(slices)) > 0
    open_ = ends > passed(watermark_us, definition.allowed_lateness_us)
    taken = np.bincount(row_of[open_], minlength=len(slices)) > 0
    return int(combine(table.column(ROWS)).to_numpy()[covered & ~taken].sum())


def rows_ahead(definition: AggregateDefinition, table: pa.Table, now_us: int) -> int:
    """Count rows of groups in which one is too far ahead of now."""
    ahead = pc.greater(table.column(TIME_MAX), last_times(definition.max_ahead_us, now_us))
    return int(combine(table.column(ROWS)).to_numpy()[combine(ahead).to_numpy(zero_copy_only=False)].sum())


def _windows_of(definition: AggregateDefinition, table: pa.Table, watermark_us: int) -> Windows:
    """Return the windows that slices are part of; a window that takes no more messages is left out."""
    assigner = assigner_of(definition.window)
    row_of, starts, ends = assigner.assign(combine(table.column(SLICE)).to_numpy())
    open_ = ends > passed(watermark_us, definition.allowed_lateness_us)
    if not open_.all():
        row_of, starts, ends = row_of[open_], starts[open_], ends[open_]
    return Windows(row_of, starts, ends)


def slices_of(definition: AggregateDefinition, table: pa.Table) -> pa.Table:
    """Return Spark's groups as state rows of slices."""
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


def _bury(definition: AggregateDefinition, lost: pa.Table, step: StepResult) -> None:
    """Add dead letters of rows that SQL set apart."""
    rows: list[dict[str, Any]] = []
    for letter, n in zip(lost.column(DEAD_LETTER).to_pylist(), lost.column(ROWS).to_pylist(), strict=True):
        body = json.loads(letter)
        reason, at = body["reason"], body.get("at", {})
        step.counts[f"dead.{reason}"] = step.counts.get(f"dead.{reason}", 0) + n
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
                "input": definition.inputs[0].shown,
            }
        )
    step.dead = letters_by_input(pa.Table.from_pylist(rows, DEAD_SCHEMA))


def pushdown_sessions(definition: AggregateDefinition, schema: pa.Schema) -> Pushdown | None:
    """Return the part that SQL can do, if it can compute part of every aggregation."""
    window = definition.window
    assert isinstance(window, Session)
    if definition.own_gap is not None:  # only single rows show which gap reaches furthest
        return None
    if window.cut is not None or definition.full_state or definition.ids is not None:
        return None
    sizes = definition.retention.windows is not None or definition.retention.messages is not None
    if definition.where is not None or definition.makes or sizes:
        return None
    gap = {"length_us": window.gap_us, "offset_us": 0, "window": None}
    return _pushed(definition, schema, **gap, first_times=True, late_rows=False)


def session_groups(
    operator: Steps, kv: KV, table: pa.Table, schema: pa.Schema, open_from_us: int, now_us: int
) -> tuple[Grouped, pa.Table, pa.Schema]:
    """Return groups of (slice, key), none if some are late. open_from_us: time from which a message is not late by itself"""
    taken, table, schema = counted_groups(operator, kv, table, schema)
    if len(table):
        late = combine(table.column(TIME_MIN)).to_numpy() < open_from_us
        taken.uncounted = int(combine(table.column(ROWS)).to_numpy()[late].sum())
        taken.uncounted += rows_ahead(operator.definition, table, now_us)
        if taken.uncounted:
            table = table.slice(0, 0)
    return taken, table, schema
