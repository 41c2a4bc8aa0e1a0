"""Corrections of rules: rows that were emitted at the watermark, and their changes by late messages.

<rules>.emitted    rows that may be retracted, by rule and deadline
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray
from windrow.core.byte_order import encode_u32
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import as_type
from windrow.operators.aggregations.calculation import any_differ
from windrow.operators.rules.definition import MATCH_ID, RulesDefinition
from windrow.operators.rules.rule_intake import Arrived, hashes
from windrow.operators.rules.rule_state import width_of
from windrow.operators.rules.step_messages import Planned
from windrow.operators.steps.columns import INSERT, IS_LAST, KIND, LATE, POSITION_COLUMNS, RETRACT, TIMING
from windrow.operators.steps.groups import combine
from windrow.stores.event_log import TIME, Events
from windrow.stores.keyed_event_store import Hashes
from windrow.stores.kv import KV


class EmittedRows:
    """The rows of one rule that may be retracted, with their deadlines."""

    def __init__(self, cf: str, number: int, wait_us: int) -> None:
        self._events = Events(cf, width_of(wait_us), prefix=encode_u32(number))

    def add(self, kv: KV, rows: pa.Table, number: int) -> None:
        """File rows. number: of these, which no others of the rule have."""
        labels = [name for name in (TIMING, KIND, IS_LAST) if name in rows.column_names]
        self._events.add(kv, rows.drop_columns(labels), number)

    def read(self, kv: KV, low_us: int, fields: pa.Schema) -> pa.Table:
        """Read the rows with a deadline from `low_us` on, in the types that columns have by now."""
        rows = self._events.read(kv, low_us, END_OF_TIME_US)
        wanted = fields.append(pa.field(TIME, pa.int64()))
        if rows is None:
            return wanted.empty_table()
        there = set(rows.column_names)
        columns = [
            as_type(combine(rows.column(f.name)), f.type) if f.name in there else pa.nulls(len(rows), f.type)
            for f in wanted
        ]
        return pa.table(columns, schema=wanted)

    def drop(self, kv: KV, ids: pa.Array) -> None:
        """Drop the rows with these ids."""
        if not len(ids):
            return

        def gone(rows: pa.Table) -> BoolArray:
            there: BoolArray = pc.is_in(rows.column(MATCH_ID), value_set=ids).to_numpy()
            return there

        self._events.drop(kv, END_OF_TIME_US, gone)

    def forget(self, kv: KV, until_us: int) -> None:
        """Drop the stretches that are over."""
        self._events.forget(kv, until_us)


def late_partitions(
    planned: Planned,
    arrived: Mapping[str, Arrived],
    fits: Mapping[str, Mapping[tuple[str, str], BoolArray]],
    watermark_us: int,
    definition: RulesDefinition,
) -> tuple[Hashes, set[tuple[object, ...]]]:
    """Find the partitions of late messages that sub-patterns of a rule take, and their positions."""
    parts, places = [], set[tuple[object, ...]]()
    for binding, pattern in planned.rule.subpatterns.items():
        rows = arrived.get(pattern.input)
        if rows is None:
            continue
        late = (rows.rows.times < watermark_us) & fits[pattern.input][planned.name, binding]
        late_rows = rows.rows.table.filter(pa.array(late))
        parts.append(hashes(late_rows, definition.keys(definition.input(pattern.input))))
        places |= set(zip(*(late_rows.column(n).to_pylist() for n in POSITION_COLUMNS), strict=True))
    return (np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.uint32)), places


def corrected(
    ids: pa.Array, before: pa.Table, after: pa.Table | None
) -> tuple[pa.Table | None, pa.Array, pa.Table | None]:
    """Compare the emitted rows of tuples with the current ones: (rows to emit, retracted ids, new rows).

    ids: of the tuples, in their order; before, after: rows with their deadlines
    """
    timed = before.schema
    after = timed.empty_table() if after is None else after.select(timed.names)
    old = pc.index_in(ids, value_set=combine(before.column(MATCH_ID))).fill_null(-1).to_numpy()
    new = pc.index_in(ids, value_set=combine(after.column(MATCH_ID))).fill_null(-1).to_numpy()
    both = np.flatnonzero((old >= 0) & (new >= 0))
    apart = np.ones(len(ids), dtype=bool)
    if len(both):
        one, other = before.take(pa.array(old[both])), after.take(pa.array(new[both]))
        names = [name for name in timed.names if name != TIME]
        was, now = ([combine(table.column(n)) for n in names] for table in (one, other))
        apart[both] = any_differ(was, now, len(both))
    back, forth = np.flatnonzero((old >= 0) & apart), np.flatnonzero((new >= 0) & apart)
    if not len(back) and not len(forth):
        return None, pa.array([], pa.string()), None
    fresh = after.take(pa.array(new[forth]))
    rows = pa.concat_tables([before.take(pa.array(old[back])), fresh.cast(timed)])
    order = np.lexsort((np.r_[np.zeros(len(back)), np.ones(len(forth))], np.r_[back, forth]))
    kinds = np.array([RETRACT] * len(back) + [INSERT] * len(forth), dtype=object)[order]
    rows = rows.drop_columns([TIME]).take(pa.array(order))
    rows = rows.append_column(TIMING, pa.repeat(pa.scalar(LATE), len(rows)))
    rows = rows.append_column(KIND, pa.array(kinds.tolist(), pa.string()))
    rows = rows.append_column(IS_LAST, pa.array(np.zeros(len(rows), dtype=bool)))
    return rows, combine(ids.take(pa.array(back))), fresh if len(fresh) else None
