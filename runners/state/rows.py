"""State of several shards as rows, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.checkpoint.records import Commit
from windrow.core.errors import ConfigurationError
from windrow.core.keys import decode_position, encode_equal
from windrow.core.messages import WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.core.types import concat
from windrow.operators.aggregate.output import PANE_TYPE, STAMP, pane_schema, stamp_us, window_column
from windrow.operators.aggregate.state_rows import in_window_order
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.output import Columns
from windrow.operators.join.windows import windows_of_input
from windrow.operators.steps.columns import (
    END,
    FIRST,
    LAST,
    MESSAGES,
    OFFSET,
    ORDINAL,
    PANES,
    PARTITION,
    SOURCE,
    START,
)
from windrow.operators.steps.dead import SCHEMA as LETTERS
from windrow.operators.steps.filed_rows import empty_rows
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.progress import Progress
from windrow.runners.embedded.queries import joined_message_rows, message_rows, windows_between
from windrow.stores.kv import KV

#: (operator, store) of each shard.
Shards = Sequence[tuple[Any, Any]]

POSITION = pa.struct(
    [("source", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()), ("ordinal", pa.int64())]
)
STORED = pa.struct([("time", STAMP), *POSITION])
DEAD_SCHEMA = pa.schema([*LETTERS, ("operator", pa.string()), ("commit", pa.int64())])
COMMITS_SCHEMA = pa.schema(
    [
        ("commit", pa.int64()),
        ("epoch", pa.int64()),
        ("now", STAMP),
        ("watermark", STAMP),
        ("steps", pa.int64()),
        ("rows", pa.int64()),
        ("panes", pa.int64()),
        ("published", pa.int64()),
        ("query", pa.string()),
        ("batch", pa.int64()),
        (
            "next_offsets",
            pa.list_(pa.struct([("source", pa.string()), ("partition", pa.int64()), ("next", pa.int64())])),
        ),
    ]
)


def windows(
    shards: Shards, definition: Any, start: Any, end: Any, key: Any
) -> tuple[pa.Table | None, dict[str, pa.Array]]:
    """`windows_between` over all shards, sorted."""
    found = [windows_between(operator, kv, start, end, key) for operator, kv in shards]
    some = [(rows, values) for rows, values in found if rows is not None and len(rows)]
    if not some:
        return None, {}
    rows = concat([rows for rows, _ in some])
    values = {a: concat([pa.table({"v": v[a]}) for _, v in some]).column("v") for a in definition.agg}
    order = pa.array(in_window_order(rows, definition.by))
    return rows.take(order), {a: combine(v).take(order) for a, v in values.items()}


def windows_of_join(
    shards: Shards, definition: Any, start: Any, end: Any, key: Any, name: str | None
) -> list[WindowInfo]:
    """The windows of one input of a join over all shards, sorted."""
    given = (definition.left, definition.right)[side_of(definition, name) or 0]
    found = [p for p in messages(shards, definition, None, None, key, name) if len(p)]
    if not found:
        return []
    table = concat([p.table for p in found])
    low = START_OF_TIME_US if start is None else instant_us(start, "start")
    high = END_OF_TIME_US if end is None else instant_us(end, "end")
    operator, kv = shards[0]
    watermark_us = Progress.load(kv, operator.aux_cf).watermark_us
    return windows_of_input(
        given.window, Slice(table, np.concatenate([p.times for p in found])), low, high, watermark_us
    )


def windows_table(
    shards: Shards, definition: Any, start: Any, end: Any, key: Any, watermark_us: int, prefix: str
) -> pa.Table:
    """Windows as rows; those of a job without messages have the columns that are known. Sources are without `prefix`."""
    rows, values = windows(shards, definition, start, end, key)
    panes = panes_schema(shards, definition)
    schema = pa.schema(
        [
            *(f for f in panes if f.name not in ("pane", "commit")),
            ("messages", pa.int64()),
            ("first", POSITION),
            ("last", POSITION),
            ("panes", pa.int64()),
            ("fired", pa.bool_()),
        ]
    )
    if rows is None:
        return schema.empty_table()
    ends = combine(rows.column(END)).to_numpy()
    if definition.tuple_window:
        fired = combine(rows.column(MESSAGES)).to_numpy() >= definition.window.size
    else:
        fired = ends <= watermark_us
    columns = [
        window_column(definition, combine(rows.column(START)), combine(rows.column(END))),
        *(combine(rows.column(b)).cast(schema.field(b).type) for b in definition.by),
        *(combine(values[a]).cast(schema.field(a).type) for a in definition.agg),
        combine(rows.column(MESSAGES)),
        _positions(rows.column(FIRST).to_pylist(), prefix),
        _positions(rows.column(LAST).to_pylist(), prefix),
        combine(rows.column(PANES)),
        pa.array(fired),
    ]
    return pa.table(columns, schema=schema)


def _positions(encoded: Iterable[bytes | None], prefix: str) -> pa.Array:
    names = [field.name for field in POSITION]
    found = [None if e is None else dict(zip(names, decode_position(e)[0], strict=True)) for e in encoded]
    for at in found:
        if at is not None:
            at["source"] = str(at["source"]).removeprefix(prefix)
    return pa.array(found, POSITION)


def panes_schema(shards: Shards, definition: Any) -> pa.Schema:
    """The columns of an operator's panes, as far as some shard knows them."""
    found = []
    for operator, kv in shards:
        if isinstance(definition, JoinDefinition):
            found.append(_joined_schema(operator, kv))
            continue
        schema = Progress.load(kv, operator.aux_cf).schema
        if schema is not None:
            operator._bind(schema)
            found.append(pane_schema(definition, operator.calculation))
    return concat([f.empty_table() for f in found]).schema if found else pa.schema([])


def _joined_schema(operator: JoinOperator, kv: KV) -> pa.Schema:
    left, right = operator.inputs.schemas(kv)
    none = np.zeros(0, dtype=np.int64)
    columns = Columns.of(operator.definition, left, right, operator.inputs.names(kv))
    told = columns.rows(empty_rows(left), empty_rows(right), none, none)
    return pa.schema([*told.schema, ("pane", PANE_TYPE), ("commit", pa.int64())])


def messages(
    shards: Shards, definition: Any, start: Any, end: Any, key: Any, name: str | None
) -> list[Slice]:
    """Kept messages of all shards, in key order, in pieces that follow each other."""
    found = []
    side = side_of(definition, name)
    for operator, kv in shards:
        if side is None:
            rows = message_rows(operator, kv, start, end, key)
        else:
            rows = joined_message_rows(operator, kv, side, start, end, key)
        if rows is not None and len(rows):
            found.append(rows)
    if len(found) < 2:
        return found
    operator = shards[0][0]
    store = operator.history.store if side is None else operator.stores[side]
    by = definition.by if side is None else operator.intakes[side].by
    return [_merged(found, by if store.layout.has_fields else (), fields_first=store.layout.fields_first)]


def _merged(found: list[Slice], by: Sequence[str], *, fields_first: bool) -> Slice:
    """Slices of several shards as one, in the order of their keys. One key lies in one shard, whose order stays."""
    times = np.concatenate([rows.times for rows in found])
    table = concat([rows.table for rows in found])
    rows = Slice(table, times)
    fields = encode_equal([table.column(b) for b in by]) if by else None
    positions = rows.order.to_pylist() if rows.order is not None else list(range(len(times)))
    stamps = times.tolist()
    if fields is None:
        order = sorted(range(len(stamps)), key=lambda i: (stamps[i], positions[i]))
    elif fields_first:
        order = sorted(range(len(stamps)), key=lambda i: fields[i])
    else:
        order = sorted(range(len(stamps)), key=lambda i: (stamps[i], fields[i], positions[i]))
    return rows.take(np.array(order, dtype=np.int64))


def side_of(definition: Any, name: str | None) -> int | None:
    """Which side of a join an input is; None for an aggregate."""
    if not isinstance(definition, JoinDefinition):
        if name is not None:
            raise ConfigurationError(
                f"input {name!r} of {definition.name!r}: only a join has inputs, leave it out"
            )
        return None
    names = [i.name for i in definition.inputs]
    if name is None and len(names) == 1:
        return 0
    if name not in names:
        raise ConfigurationError(f"input {name!r} of {definition.name!r}: say which, of {names}")
    return names.index(name)


def message_schema(shards: Shards, definition: Any, name: str | None) -> pa.Schema:
    """The columns of messages, as far as they are known."""
    side = side_of(definition, name)
    found = [pa.schema([("stored", STORED)])]
    for operator, kv in shards:
        schema = (
            Progress.load(kv, operator.aux_cf).schema if side is None else operator.inputs.schemas(kv)[side]
        )
        if schema is not None:
            own = user_columns(schema.empty_table())
            if "stored" in own:
                raise ConfigurationError(
                    "a column of the messages is called 'stored', as the column of their positions: use get_messages"
                )
            found.append(pa.schema([schema.field(n) for n in own]))
    return concat([f.empty_table() for f in found]).schema


def messages_table(found: list[Slice], schema: pa.Schema) -> pa.Table:
    """Messages as rows of `schema`."""
    tables = [schema.empty_table()]
    for rows in found:
        n = len(rows)
        parts = [pa.array(rows.times).cast(STAMP)]
        for column, field in zip((SOURCE, PARTITION, OFFSET, ORDINAL), POSITION, strict=True):
            parts.append(combine(rows.table.column(column)).cast(field.type))
        columns = {"stored": pa.StructArray.from_arrays(parts, fields=list(STORED))}
        columns |= {c: rows.table.column(c) for c in user_columns(rows.table)}
        tables.append(pa.table(columns) if n else schema.empty_table())
    return concat(tables)


def commits_table(commits: Sequence[Commit]) -> pa.Table:
    """Commit records as rows."""
    told = []
    for c in commits:
        now_us = c.now_us if c.now_us is not None else c.meta.get("now_us")
        told.append(
            {
                "commit": c.commit,
                "epoch": c.epoch,
                "now": now_us,
                "watermark": None if c.watermark_us is None else stamp_us(c.watermark_us),
                "steps": len(c.steps),
                "rows": sum(step.rows for step in c.steps),
                "panes": sum(shard.panes_rows for shard in c.shards),
                "published": c.published,
                "query": c.query_id,
                "batch": c.batch_id,
                "next_offsets": [
                    {"source": s, "partition": p, "next": o} for (s, p), o in sorted(c.next_offsets.items())
                ],
            }
        )
    return pa.Table.from_pylist(told, COMMITS_SCHEMA)
