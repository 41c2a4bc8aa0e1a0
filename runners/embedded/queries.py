"""`get_windows` and `get_messages` over the state of an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.summary import Letters
from windrow.core.errors import ConfigurationError
from windrow.core.keys import encode_key, plain_number
from windrow.core.messages import DeadLetter, Position, StoredMessage, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.operators.aggregate.logic import WindowAggregator
from windrow.operators.aggregate.state_rows import in_window_order
from windrow.operators.aggregate.tuples import TupleAggregator
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.windows import windows_of_input
from windrow.operators.steps.columns import END, OFFSET, ORDINAL, PARTITION, SOURCE, START
from windrow.operators.steps.dead import to_letters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.progress import Progress
from windrow.stores.kv import KV

Operator = WindowAggregator | TupleAggregator


def key_of(by: tuple[str, ...], key: Any) -> dict[str, Any] | None:
    """The key fields that are asked for, by name; None for all keys."""
    if key is None:
        return None
    if isinstance(key, Mapping):
        unknown = [k for k in key if k not in by]
        if unknown:
            raise ConfigurationError(f"key field {unknown[0]!r} is none of {list(by)}")
        return dict(key)
    values = tuple(key) if isinstance(key, (tuple, list)) else (key,)
    if len(values) != len(by):
        raise ConfigurationError(f"key {key!r} has {len(values)} values, the operator is keyed by {list(by)}")
    return dict(zip(by, values, strict=True))


def of_key(rows: pa.Table, wanted: dict[str, Any] | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True for rows of the key that is asked for."""
    mask = np.ones(len(rows), dtype=bool)
    for name, value in (wanted or {}).items():
        mask &= np.array([v == value for v in rows.column(name).to_pylist()], dtype=bool)
    return mask


def windows_between(
    operator: Operator, kv: KV, start: Instant | None, end: Instant | None, key: Any
) -> tuple[pa.Table | None, dict[str, pa.Array]]:
    """Merged state rows of windows that overlap the closed range, sorted, and their values."""
    low = START_OF_TIME_US if start is None else instant_us(start, "start")
    high = END_OF_TIME_US if end is None else instant_us(end, "end")
    wanted = key_of(operator.definition.by, key)
    if isinstance(operator, TupleAggregator):
        rows, values = operator.state(kv, 1, min(high, END_OF_TIME_US - 1) + 1)
        inclusive = 1
    else:
        first = operator.assigner.first_open(low)
        rows, values = operator.state(kv, first, min(high, END_OF_TIME_US - 1) + 1)
        inclusive = 0
    if rows is None:
        return None, {}
    starts, ends = (combine(rows.column(c)).to_numpy() for c in (START, END))
    mask = (starts <= high) & (ends + inclusive > low if inclusive else ends > low) & of_key(rows, wanted)
    order = in_window_order(rows, operator.definition.by)
    order = pa.array(order[mask[order]])
    return rows.take(order), {a: combine(v).take(order) for a, v in values.items()}


def messages_between(
    operator: Operator, kv: KV, start: Any, end: Any, key: Any, prefix: str = ""
) -> list[StoredMessage]:
    """Stored messages in key order, both bounds inclusive; their sources without `prefix`."""
    rows = message_rows(operator, kv, start, end, key)
    return [] if rows is None else stored(rows_without_prefix(rows, prefix))


def message_rows(operator: Operator, kv: KV, start: Any, end: Any, key: Any) -> Slice | None:
    """`messages_between` as rows; None where there are none."""
    history = operator.history
    if history is None:
        raise ConfigurationError(
            f"{operator.definition.name!r} keeps no messages: its aggregations are incremental (only window metadata is "
            "kept). Messages are kept where an aggregation needs them, e.g. wr.median"
        )
    progress = Progress.load(kv, operator.aux_cf)
    if progress.schema is None:
        return None
    operator._bind(progress.schema)
    low, high = _bound(start, START_OF_TIME_US), _bound(end, END_OF_TIME_US)
    if isinstance(operator, TupleAggregator):
        keys, values = history.store.scan_between(kv, (0, None), (0, None))
    else:
        low = max(low, (progress.purged_us, None), key=lambda b: b[0])
        keys, values = history.store.scan_between(kv, low, high)
    rows = history.decode(kv, keys, values, operator.calculation)
    if rows is None:
        return None
    wanted = key_of(operator.definition.by, key)
    mask = of_key(rows.table, wanted)
    if isinstance(operator, TupleAggregator):
        mask &= (rows.times >= low[0]) & (rows.times <= high[0])
    return rows.take(np.flatnonzero(mask))


def joined_messages(
    operator: JoinOperator, kv: KV, side: int, start: Any, end: Any, key: Any
) -> list[StoredMessage]:
    """Kept messages of one side of a join in key order, both bounds inclusive."""
    return stored(joined_message_rows(operator, kv, side, start, end, key))


def joined_windows(
    operator: JoinOperator, kv: KV, side: int, start: Instant | None, end: Instant | None, key: Any
) -> list[WindowInfo]:
    """The windows of one side of a join that overlap the closed range, sorted."""
    low = START_OF_TIME_US if start is None else instant_us(start, "start")
    high = END_OF_TIME_US if end is None else instant_us(end, "end")
    window = (operator.definition.left, operator.definition.right)[side].window
    rows = joined_message_rows(operator, kv, side, None, None, key)
    return windows_of_input(window, rows, low, high, Progress.load(kv, operator.aux_cf).watermark_us)


def joined_message_rows(operator: JoinOperator, kv: KV, side: int, start: Any, end: Any, key: Any) -> Slice:
    """`joined_messages` as rows; their sources are without the input's name."""
    low, high = _bound(start, START_OF_TIME_US), _bound(end, END_OF_TIME_US)
    by = operator.intakes[side].by
    wanted = key_of(by, key)
    lasting = operator.lasting(kv, side)
    whole = None
    if wanted and len(wanted) == len(by) == len(set(by) & set(operator.intakes[lasting].by)):
        whole = encode_key([plain_number(wanted[b]) for b in operator.intakes[lasting].by])
    rows = operator.kept(kv, lasting, low, high, whole)
    if wanted:
        rows = rows.take(np.flatnonzero(of_key(rows.table, wanted)))
    prefix = (operator.definition.left, operator.definition.right)[side].source_prefix
    return rows_without_prefix(rows, prefix)


def stored(rows: Slice) -> list[StoredMessage]:
    """Rows of messages as Python values."""
    payloads = rows.table.select(user_columns(rows.table)).to_pylist()
    positions = zip(
        *(rows.table.column(c).to_pylist() for c in (SOURCE, PARTITION, OFFSET, ORDINAL)), strict=True
    )
    return [
        StoredMessage(int(t), Position(*p), payload)
        for t, p, payload in zip(rows.times, positions, payloads, strict=True)
    ]


def without_prefix(infos: Sequence[WindowInfo], prefix: str) -> list[WindowInfo]:
    """Windows with the positions that whoever fed the messages gave."""
    if not prefix:
        return list(infos)
    return [replace(w, first=_as_given(w.first, prefix), last=_as_given(w.last, prefix)) for w in infos]


def rows_without_prefix(rows: Slice, prefix: str) -> Slice:
    """Rows of messages with the sources that whoever fed them gave."""
    if not prefix:
        return rows
    table = rows.table
    named = pa.array([s.removeprefix(prefix) for s in table.column(SOURCE).to_pylist()], pa.string())
    return Slice(table.set_column(table.column_names.index(SOURCE), SOURCE, named), rows.times)


def _as_given(position: Any, prefix: str) -> Any:
    return None if position is None else position._replace(source=position.source.removeprefix(prefix))


def letters_of(path: str, letters: Letters) -> list[DeadLetter]:
    """The dead letters of a shard in a commit; none where the file was swept since."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        return []
    return to_letters(table, letters.commit)


def _bound(value: Any, default: int) -> tuple[int, Any]:
    if value is None:
        return default, None
    if isinstance(value, tuple):
        return instant_us(value[0], "time"), value[1]
    return instant_us(value, "time"), None
