"""Panes as rows: `window`, the keys, the aggregates, `pane struct<timing, index, is_last, kind>`, `commit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray
from windrow.core.message_keys import decode_position
from windrow.core.messages import Position, WindowInfo
from windrow.core.types import as_type
from windrow.operators.aggregate.definition import WINDOW_END, WINDOW_START, WINDOW_TIME, AggregateDefinition
from windrow.operators.aggregate.pane_order import in_window_order
from windrow.operators.aggregate.panes import dicts, make_window
from windrow.operators.aggregations.calculation import Calculation
from windrow.operators.steps.columns import (
    END,
    FIRST,
    INDEX,
    INSERT,
    IS_LAST,
    KIND,
    LAST,
    MESSAGES,
    PANES,
    REPLACED,
    SIGN,
    START,
    TIMING,
)
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import (
    PANE_TYPE,
    STAMP,
    TIME_WINDOW_TYPE,
    TUPLE_WINDOW_TYPE,
    stamp_us,
    stamps,
)

#: Prefix of the columns of values, beyond those of state rows.
VALUE = "v."


def pane_schema(definition: AggregateDefinition, calculation: Calculation) -> pa.Schema:
    """Return the schema of panes as users see them."""
    window = TUPLE_WINDOW_TYPE if definition.numbered else TIME_WINDOW_TYPE
    return pa.schema(
        [
            pa.field("window", window, metadata={"windrow": "window"}),
            *(
                pa.field(b, calculation.schema.field(b).type, metadata={"windrow": "key"})
                for b in definition.by
            ),
            *calculation.output,
            pa.field("pane", PANE_TYPE),
            pa.field("commit", pa.int64()),
        ]
    )


def window_column(definition: AggregateDefinition, starts: pa.Array, ends: pa.Array) -> pa.StructArray:
    if definition.numbered:
        return pa.StructArray.from_arrays([starts, ends], fields=list(TUPLE_WINDOW_TYPE))
    return pa.StructArray.from_arrays([stamps(starts), stamps(ends)], fields=list(TIME_WINDOW_TYPE))


def pane_rows(
    definition: AggregateDefinition, schema: pa.Schema, panes: Sequence[pa.Table], commit: int
) -> pa.Table:
    """Return panes of steps as rows of `schema`."""
    tables = []
    if definition.forwards_retractions:
        panes = [table.filter(pc.not_equal(table.column(KIND), REPLACED)) for table in panes]
    parts = [part for table in panes for part in _contiguous(table)]
    commits = pa.array(np.full(max(map(len, parts), default=0), commit, dtype=np.int64))
    for table in parts:
        n = len(table)
        columns = [window_column(definition, combine(table.column(START)), combine(table.column(END)))]
        columns += [as_type(combine(table.column(b)), schema.field(b).type) for b in definition.by]
        columns += [as_type(combine(table.column(a)), schema.field(a).type) for a in definition.agg]
        labels = [combine(table.column(c)) for c in (TIMING, INDEX, IS_LAST, KIND)]
        columns.append(pa.StructArray.from_arrays(labels, fields=list(PANE_TYPE)))
        columns.append(commits.slice(0, n))
        tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _contiguous(table: pa.Table) -> list[pa.Table]:
    """Return the rows in parts whose columns lie in one piece each."""
    return [pa.Table.from_batches([batch]) for batch in table.to_batches()]


def pane_message_schema(definition: AggregateDefinition, calculation: Calculation) -> pa.Schema:
    """Return the columns of panes as the next operator sees them."""
    panes = pane_schema(definition, calculation)
    names = (*definition.by, *definition.agg)
    return pa.schema(
        [
            *(panes.field(n).remove_metadata() for n in names),
            *(pa.field(n, STAMP) for n in (WINDOW_TIME, WINDOW_START, WINDOW_END)),
        ]
    )


def pane_messages(
    definition: AggregateDefinition, calculation: Calculation, panes: Sequence[pa.Table]
) -> pa.Table:
    """Return panes as messages for the next operator."""
    schema = pane_message_schema(definition, calculation)
    tables = []
    for table in panes:
        starts, ends = (combine(table.column(c)) for c in (START, END))
        times = [pa.array(ends.to_numpy() - 1), starts, ends]
        columns = [
            as_type(combine(table.column(f.name)), f.type) for f in schema if f.name in table.column_names
        ]
        emitted = pa.table([*columns, *map(stamps, times)], schema=schema)
        if definition.emits_updates:
            inserted = pc.equal(table.column(KIND), INSERT)
            emitted = emitted.append_column(SIGN, pc.if_else(inserted, pa.scalar(1), pa.scalar(-1)))
        tables.append(emitted)
    return pa.concat_tables(tables)


def sorted_states(
    definition: AggregateDefinition, rows: pa.Table, values: Mapping[str, pa.Array]
) -> pa.Table:
    """Return the visible columns of merged state rows, and their values, sorted by start, end and key."""
    if definition.takes_back:  # windows whose messages were all retracted are left out
        holds = pc.greater(rows.column(MESSAGES), 0)
        rows, values = rows.filter(holds), {a: v.filter(holds) for a, v in values.items()}
    emitted = rows.select([START, END, *definition.by, MESSAGES, PANES, FIRST, LAST])
    for alias in definition.agg:
        emitted = emitted.append_column(VALUE + alias, values[alias])
    return emitted.take(pa.array(in_window_order(emitted, definition.by)))


def to_infos(definition: AggregateDefinition, rows: pa.Table, fired: BoolArray) -> list[WindowInfo]:
    """Return `sorted_states` as window metadata."""
    tuples = definition.numbered
    starts, ends = rows.column(START).to_pylist(), rows.column(END).to_pylist()
    spans = list(zip(starts, ends, strict=True))
    windows = {
        span: make_window(*(span if tuples else map(stamp_us, span)), tuples=tuples) for span in set(spans)
    }
    labels = (rows.column(name).to_pylist() for name in (MESSAGES, FIRST, LAST, PANES))
    keys = dicts(rows, definition.by, definition.by)
    values = dicts(rows, definition.agg, [VALUE + alias for alias in definition.agg])
    return [
        WindowInfo(
            window=windows[span],
            key=key,
            messages=messages,
            first=None if first is None else Position(*decode_position(first)[0]),
            last=None if last is None else Position(*decode_position(last)[0]),
            values=emitted,
            panes=panes,
            fired=is_over,
        )
        for span, key, emitted, is_over, messages, first, last, panes in zip(
            spans, keys, values, fired.tolist(), *labels, strict=True
        )
    ]
