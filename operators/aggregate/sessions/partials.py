"""Sessions of rows that SQL has pre-aggregated: two rows of a key in one slice of a gap are always of one session.

Groups of (slice, key) come with the first and the last time in them, and are joined as messages are. This requires that the own
window of every row is open: if others are too late depends on the rest of the input, and then single rows are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.windows import Session
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.partials import counted_groups, faults_of, parts_of, rows_ahead, slices_of
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.columns import ROWS, TIME_MAX, TIME_MIN
from windrow.operators.steps.groups import combine
from windrow.operators.steps.pushdown import Grouped, Pushdown
from windrow.stores.kv import KV

if TYPE_CHECKING:
    from windrow.operators.aggregate.sessions.logic import SessionAggregator


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
    parts = parts_of(definition, Calculation(definition, schema))
    if parts is None:
        return None
    return Pushdown(
        faults=faults_of(definition, schema),
        input=definition.inputs[0],
        by=definition.by,
        nulls_count=definition.null_keys != "dead_letter",
        parts=parts,
        length_us=window.gap_us,
        offset_us=0,
        window=None,
        retention_us=definition.retention.time_us,
        lateness_us=definition.allowed_lateness_us,
        first_times=True,
        late_rows=False,
    )


def ingest_groups_of_sessions(
    operator: SessionAggregator, kv: KV, table: pa.Table, schema: pa.Schema, watermark_us: int, now_us: int
) -> Grouped:
    """Turn groups of (slice, key) into sessions."""
    taken, table, schema = counted_groups(operator, kv, table, schema)
    first_us = last_us = np.zeros(0, dtype=np.int64)
    if len(table):
        first_us, last_us = (combine(table.column(c)).to_numpy() for c in (TIME_MIN, TIME_MAX))
        late = first_us + operator.gap_us < operator.closed_before(watermark_us)
        taken.uncounted = int(combine(table.column(ROWS)).to_numpy()[late].sum())
        taken.uncounted += rows_ahead(operator.definition, table, now_us)
        if taken.uncounted:
            table = table.slice(0, 0)
    groups = slices_of(operator.definition, table) if len(table) else table
    taken.step = taken.step.then(operator.ingest_grouped(kv, groups, first_us, last_us, now_us, schema))
    return taken
