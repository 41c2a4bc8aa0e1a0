"""Evolution of the gap: sessions of a larger gap are unions of the stored sessions of a smaller one.

The first step under the larger gap merges them, once. Closed sessions stay as they are. The others reach further, merge where
they touch, and are emitted again when the watermark passes their new end, or at once if it has. State out of retention
stays so.
  auxiliary  \\0gap -> the gap that the state has, and the first time that is not out of retention, both i64
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.byte_order import decode_i64, encode_i64
from windrow.core.time import START_OF_TIME_US
from windrow.core.windows import LAST_END_US
from windrow.operators.aggregate.sessions.extents import joined
from windrow.operators.aggregate.sessions.kept_messages import note_emitted_parts
from windrow.operators.aggregate.sessions.merging import (
    with_all_messages_from,
    with_extents,
    with_some_messages_from,
)
from windrow.operators.aggregate.sessions.parts import Sessions
from windrow.operators.aggregate.sessions.rows import Rows, Step, Stored, codes_of, extents, owners, unfolded
from windrow.operators.steps.columns import END, MESSAGES_FROM, ON_TIME, START
from windrow.operators.steps.groups import Groups, combine, without
from windrow.operators.steps.step import limit
from windrow.stores.kv import KV, Batch
from windrow.stores.sessions import CURRENT, HOME, HOT
from windrow.stores.window_state import Near

_GAP = b"\x00gap"


def floor_of(logic: Sessions, kv: KV) -> int:
    """Return the time before which messages were out of retention when the gap grew."""
    value = None if logic.definition.gap_before_us is None else kv.get(logic.aux_cf, _GAP)
    return START_OF_TIME_US if value is None else decode_i64(value, 8)


def widen(logic: Sessions, step: Step) -> None:
    """Widen sessions of a state whose gap is smaller than the definition's, and emit those that have ended."""
    kv, watermark_us, first_us = step.kv, step.progress.watermark_us, logic.definition.gap_before_us
    value = None if first_us is None else kv.get(logic.aux_cf, _GAP)
    before_us = first_us if value is None else decode_i64(value)
    if before_us is None or before_us >= logic.gap_us:
        return
    floor_us = max(limit(logic.retained_from(watermark_us), before_us), floor_of(logic, kv))
    batch = Batch()
    batch.put(logic.aux_cf, _GAP, encode_i64(logic.gap_us) + encode_i64(floor_us))
    kv.write(batch)
    stored = logic.read(kv, [HOT, *(bucket.home for bucket in logic.store.buckets(kv))], step.emitted_us)
    for index in (logic.timers.due, logic.timers.closing, logic.timers.waiting):
        index.drop(kv)
    if stored is None:
        return
    logic.store.clear(kv)
    if logic.limited:
        logic.limits.begin_anew(kv)
    rows = Stored.of(Near(stored, {}), logic.definition.by, step.emitted_us).rows(logic.definition.by)
    before = combine(rows.sessions.column(END)).to_numpy()
    ends = _ends(logic, rows.sessions, before, logic.gap_us - before_us, step.closed_us)
    moves = ends != before
    _put(logic, step, rows.where(~moves), logic.has_passed(ends[~moves], watermark_us))
    if moves.any():
        wider = _joined(logic, step, rows.where(moves), ends[moves])
        passed = logic.has_passed(combine(wider.sessions.column(END)).to_numpy(), watermark_us)
        # The step is the one before the new messages: these are not emitted yet.
        brings = step.moment.before_us is None
        then = step._replace(progress=replace(step.progress, step=step.progress.step - brings))
        _put(logic, step, logic.fire(then, wider, passed & logic.fires_in_time(wider), ON_TIME), passed)
        logic.emit(step)


def _ends(logic: Sessions, sessions: pa.Table, before: IntArray, more_us: int, closed_us: int) -> IntArray:
    """Return the ends of sessions under the larger gap; closed ones keep theirs, and a cell limits them."""
    wider = np.minimum(before, LAST_END_US - more_us) + more_us
    if logic.cells is not None:
        wider = np.minimum(wider, logic.cells.assign(combine(sessions.column(START)).to_numpy())[2])
    ends: IntArray = np.where(before < closed_us, before, np.maximum(wider, before))
    return ends


def _put(logic: Sessions, step: Step, rows: Rows, passed: BoolArray) -> None:
    """Store sessions anew. passed: those that move to the bucket of their end."""
    if len(rows.sessions) == 0:
        return
    ends = combine(rows.sessions.column(END)).to_numpy()
    if logic.limited:
        logic.limits.change(step.kv, None, rows.sessions)
    logic.timers.set_ends(step.kv, rows.sessions, ~passed, step.progress.step)
    nothing, homes = np.zeros(0, dtype=np.int64), np.where(passed, logic.store.home(ends), HOT)
    logic.keep(step, Near(None, {}), nothing, rows, homes)


def _joined(logic: Sessions, step: Step, rows: Rows, ends: IntArray) -> Rows:
    """Merge open sessions that touch, given their new ends."""
    by = logic.definition.by
    codes = codes_of([rows.sessions], by)
    if logic.cells is not None:
        cells = logic.cells.assign(combine(rows.sessions.column(START)).to_numpy())[1]
        codes = Groups([pa.array(codes), pa.array(cells)], len(codes)).codes
    touching = joined(extents(rows.sessions, codes)._replace(ends=ends))
    rows = unfolded(logic.calculation, logic.spans, rows)
    if logic.definition.full_state and logic.definition.emit.mode == "discarding":
        rows = note_emitted_parts(rows, touching.component)
    order = np.argsort(combine(rows.sessions.column(START)).to_numpy(), kind="stable")
    component = touching.component[order]
    sessions = without(rows.sessions, HOME, CURRENT).take(pa.array(order))
    noted = MESSAGES_FROM in sessions.column_names
    sessions = with_all_messages_from(sessions) if noted else sessions
    sessions = with_extents(sessions, touching.starts[component], touching.ends[component])
    groups = Groups.numbered(component, len(touching.starts))
    merged = logic.merged(sessions, groups, step.dead)
    merged = with_some_messages_from(merged) if noted else merged
    return Rows(merged, rows.panes, owners(merged, rows.panes, by))
