"""Window assignment: the windows that accept the rows of a slice. Rows that no window accepts are dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.time import START_OF_TIME_US, show_duration
from windrow.operators.aggregate.base import Steps
from windrow.operators.aggregate.count_retention import SizeLimits
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregations.calculation import Broken
from windrow.operators.steps.assigners import WindowAssigner
from windrow.operators.steps.columns import END, START, STEP
from windrow.operators.steps.dead_letters import (
    AGGREGATE_FAILED,
    OUT_OF_RETENTION,
    TOO_LATE,
    DeadLetters,
    late_details,
)
from windrow.operators.steps.derived_columns import with_derived
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, countable_rows, event_time_marks
from windrow.operators.steps.poison_rows import OF_STEPS, sifted_into
from windrow.operators.steps.step import Redone, passed
from windrow.stores.kv import KV


@dataclass(frozen=True)
class Filed:
    """The assignment of rows to windows: window i of `starts` and `ends` takes row `row_of[i]`.

    closed: for each row the end up to which it came too late for the windows that cover it; None if none did, or if it is not
    asked for. marks: the largest event times by partition, of all rows that count; rows that cover no window count too.
    """

    rows: Slice
    row_of: IntArray
    starts: IntArray
    ends: IntArray
    closed: IntArray | None
    marks: dict[tuple[str, int], int]


def file_rows(
    definition: AggregateDefinition,
    assigner: WindowAssigner,
    rows: Slice,
    watermark_us: int | IntArray,
    size_floor: IntArray | None,
    dead: DeadLetters,
) -> Filed:
    """Assign rows to windows. `size_floor`, one per row: windows that end at or below it are out of retention."""
    row_of, starts, ends = assigner.assign(rows.times)
    floor = _passed(watermark_us, definition.allowed_lateness_us)
    open_ = ends > (floor if isinstance(floor, int) else floor[row_of])
    if size_floor is not None:
        open_ &= ends > size_floor[row_of]
    closed: IntArray | None = None
    if open_.all():
        marks = dict(event_time_marks(rows))
    else:
        if definition.full_state:
            closed = np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
            np.maximum.at(closed, row_of[~open_], ends[~open_])
        taken = np.bincount(row_of[open_], minlength=len(rows)) > 0
        covered = np.bincount(row_of, minlength=len(rows)) > 0
        lost = covered & ~taken
        if lost.any():
            _bury_late(definition, rows, np.flatnonzero(lost), row_of, ends, watermark_us, size_floor, dead)
        # A dead letter does not advance its partition.
        marks = dict(event_time_marks(rows.take(np.flatnonzero(~lost))))
        row_of, starts, ends = row_of[open_], starts[open_], ends[open_]
    kept = np.bincount(row_of, minlength=len(rows)) > 0
    if len(row_of) and not kept.all():
        chosen = np.flatnonzero(kept)
        rows = rows.take(chosen)
        row_of = (np.cumsum(kept) - 1)[row_of]
        closed = None if closed is None else closed[chosen]
    return Filed(rows, row_of, starts, ends, closed, marks)


def _bury_late(
    definition: AggregateDefinition,
    rows: Slice,
    lost: IntArray,
    row_of: IntArray,
    ends: IntArray,
    watermark_us: int | IntArray,
    size_floor: IntArray | None,
    dead: DeadLetters,
) -> None:
    retention_us = definition.retention.time_us
    newest = np.full(len(rows), START_OF_TIME_US, dtype=np.int64)
    np.maximum.at(newest, row_of, ends)
    gone = np.zeros(len(rows), dtype=bool)
    if retention_us is not None:
        gone = newest <= _passed(watermark_us, retention_us)
    if size_floor is not None:
        gone |= newest <= size_floor
    times = pa.array(rows.times)
    kept = "newer ones are kept" if retention_us is None else f"retention={show_duration(retention_us)!r}"
    allowed = f"allowed_lateness={show_duration(definition.allowed_lateness_us)!r}"
    for reason, words, late in (
        (OUT_OF_RETENTION, f"every window of its event time is out of retention, {kept}", lost[gone[lost]]),
        (TOO_LATE, f"every window of its event time is closed, {allowed}", lost[~gone[lost]]),
    ):
        dead.add_rows(reason, late_details(words, watermark_us, late), rows.table, late, times)


def bury_failed(
    rows: Slice, row_of: IntArray, groups: Groups, deltas: pa.Table, broken: list[Broken], dead: DeadLetters
) -> pa.Table:
    """Send messages of a (key, window) on which the user's code raised to the dead-letter sink; its state stays."""
    bad = np.zeros(groups.size, dtype=bool)
    for b in broken:
        if bad[b.group]:
            continue
        bad[b.group] = True
        members = np.unique(row_of[groups.codes == b.group])
        dead.add_rows(AGGREGATE_FAILED, b.detail, rows.table, members, pa.array(rows.times))
    return deltas.filter(pa.array(~bad))


def without_failed(filed: Filed, groups: Groups, broken: list[Broken], dead: DeadLetters) -> Filed:
    """Remove messages on which the user's code raised in some window from all windows: a kept message is in all or in none."""
    stays = bury_messages(filed.rows, filed.row_of, groups, broken, dead)
    line = stays[filed.row_of]
    return replace(
        filed,
        rows=filed.rows.take(np.flatnonzero(stays)),
        row_of=(np.cumsum(stays) - 1)[filed.row_of[line]],
        starts=filed.starts[line],
        ends=filed.ends[line],
        closed=None if filed.closed is None else filed.closed[stays],
    )


def bury_messages(
    rows: Slice, row_of: IntArray, groups: Groups, broken: list[Broken], dead: DeadLetters
) -> BoolArray:
    """Send messages on which the user's code raised to the dead-letter sink, each once; True for the others."""
    stays = np.ones(len(rows), dtype=bool)
    for b in broken:
        members = np.unique(row_of[groups.codes == b.group])
        members = members[stays[members]]
        dead.add_rows(AGGREGATE_FAILED, b.detail, rows.table, members, pa.array(rows.times))
        stays[members] = False
    return stays


def bury_broken(
    rows: pa.Table, broken: list[Broken], definition: AggregateDefinition, dead: DeadLetters
) -> None:
    for b in broken:
        row = rows.slice(b.group, 1)
        payload = {
            "window": [row.column(START)[0].as_py(), row.column(END)[0].as_py()],
            "key": {k: row.column(k)[0].as_py() for k in definition.by},
        }
        dead.add(AGGREGATE_FAILED, f"{b.alias}: {b.error!r}", payload)


def _passed(watermark_us: int | IntArray, by_us: int) -> Any:
    if isinstance(watermark_us, int):
        return passed(watermark_us, by_us)
    distinct, inverse = np.unique(watermark_us, return_inverse=True)
    return np.array([passed(w, by_us) for w in distinct.tolist()], dtype=np.int64)[inverse]


def refile(
    operator: Steps,
    assigner: WindowAssigner,
    limits: SizeLimits,
    kv: KV,
    tables: Mapping[str, pa.Table],
    redone: Redone,
) -> int:
    """Store rows as their steps did, each under the watermark that it had; steps of one `now`.

    The window metadata that belongs to them is there already. The replay emits no pane, dead letter or metadata. If size limits
    put windows out of retention, messages that only those took may be left out.
    """
    sifted_into(partial(_refiled, operator, assigner, limits, redone), kv, tables, OF_STEPS)
    return 0


def _refiled(
    operator: Steps,
    assigner: WindowAssigner,
    limits: SizeLimits,
    redone: Redone,
    kv: KV,
    tables: Mapping[str, pa.Table],
) -> None:
    history, progress = operator.history, operator.progress(kv)
    assert history is not None and progress.schema is not None, "nothing was filed before"
    operator._bind(progress.schema)
    silent = DeadLetters(0)
    [table] = tables.values()
    if len(table) == 0:
        return
    first = combine(table.column(STEP))[0].as_py()
    table = with_derived(operator.definition.makes, table)
    table, _ = operator._passing(table, int(redone.nows_us[first]), silent)
    rows = countable_rows(operator.definition, table, int(redone.nows_us[first]), silent)
    if len(rows) == 0:
        return
    watermark_us = redone.watermarks_us[combine(rows.table.column(STEP)).to_numpy()]
    size_floor = limits.floors(kv, rows.table) if limits.active else None
    filed = file_rows(operator.definition, assigner, rows, watermark_us, size_floor, silent)
    if len(filed.row_of) == 0:
        return
    step = np.asarray(redone.numbers[combine(filed.rows.table.column(STEP)).to_numpy()], dtype=np.int64)
    # It raises where it did: a message on which it does was not stored.
    rows = operator.noted(filed.rows, step)
    operator.deltas(rows, filed.row_of, filed.starts, filed.ends)
    history.add(kv, rows, step, operator.calculation, closed=filed.closed)
