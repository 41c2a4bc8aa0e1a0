"""Queries on the state of one operator. Runners, readers, Spark's tables and the command line query a `View`.

A view is of one operator, over the stores of its shards: its answers are in one order, whatever the shards. `View.refuse`
rejects a table that the operator does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.arrays import BoolArray
from windrow.core.errors import BadInstant, ConfigurationError
from windrow.core.inputs import Input, which
from windrow.core.keys import encode_equal
from windrow.core.messages import Position, StoredMessage, TupleWindow, Window, WindowInfo
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice, user_columns
from windrow.operators.steps.output_columns import POSITION, STAMP, STORED
from windrow.operators.steps.output_rows import output_schema
from windrow.stores.kv import KV, Batch

WINDOWS, MESSAGES = "windows", "messages"
#: A bound of messages: a time, and maybe an offset among messages of that time; or a window in the place of both.
Bound = tuple[Instant, int] | Instant | Window | TupleWindow
AnyWindow = TypeVar("AnyWindow", Window, TupleWindow)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The provenance of a window or an emitted row: the messages that it was made of.

    messages: by input; None where they are not kept
    complete: all of them are kept
    joined_by: of a window that was two before, the message that made it one
    """

    window: WindowInfo | None
    row: Mapping[str, Any] | None
    messages: Mapping[str, Sequence[StoredMessage]] | None
    joined_by: Position | None = None
    #: Of a row, a line for each condition that made it.
    reasons: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as it is stored, in order. show: of rows of it, those that users see; names of columns are the same.

    Only `first` and `last` may differ in type, and `window` may be its two bounds, `START` and `END`.
    """

    rows: pa.Table
    show: Callable[[pa.Table], pa.Table] = lambda rows: rows


@dataclass(frozen=True, slots=True)
class Query:
    """A query for rows of a table: between two bounds, both inclusive, of a key, of an input.

    start, end: times, or numbers of messages; of messages a time with an offset, too, or in the place of both a window
    """

    start: Any = None
    end: Any = None
    key: Any = None
    input: str | None = None

    def checked(self, table: str, covering: bool = False) -> Query:
        """Return it as a view takes it, and raise where its bounds are swapped.

        covering: windows that hold all of the range. A view finds them where the lower bound is above the upper one.
        """
        if table == MESSAGES:
            self._check_bounds()
            return self
        check.flag(covering, "covering", BadInstant)
        low, high = self.times
        if low > high:
            raise BadInstant(
                f"start={self.start!r} is after end={self.end!r}: swap them; windows that hold all of a range are asked for by "
                "covering=True"
            )
        if covering and (self.start is None or self.end is None):
            raise BadInstant(
                f"covering=True with start={self.start!r}, end={self.end!r}: no window holds a range without bounds, give both"
            )
        return replace(self, start=high, end=low) if covering else self

    def _check_bounds(self) -> None:
        if isinstance(self.start, TupleWindow):
            return
        (low, first), (high, last) = self.bounds
        if low > high or (low == high and first is not None and last is not None and first > last):
            raise BadInstant(f"start={self.start!r} is after end={self.end!r}: swap them")

    @property
    def times(self) -> tuple[int, int]:
        """Return bounds of windows."""
        return (
            START_OF_TIME_US if self.start is None else instant_us(self.start, "start"),
            END_OF_TIME_US if self.end is None else instant_us(self.end, "end"),
        )

    @property
    def bounds(self) -> tuple[tuple[int, Any], tuple[int, Any]]:
        """Return bounds of messages, of which `start` may be a window of time."""
        if isinstance(self.start, Window):
            window = alone(self.start, self.end)
            return (window.start_us, None), (window.end_us - 1, None)
        return _bound(self.start, START_OF_TIME_US), _bound(self.end, END_OF_TIME_US)

    def selects(self, rows: Slice, by: tuple[str, ...]) -> BoolArray:
        """True for messages that it means; an offset counts among messages of the bound's own time. by: their key columns."""
        (low_us, first), (high_us, last) = self.bounds
        mask: BoolArray = (rows.times >= low_us) & (rows.times <= high_us)
        offsets = rows.table.column(OFFSET).to_numpy()
        if first is not None:
            mask &= (rows.times > low_us) | (offsets >= first)
        if last is not None:
            mask &= (rows.times < high_us) | (offsets <= last)
        return mask & of_key(rows.table, key_of(by, self.key))


class Viewed(Protocol):
    """The part of an operator's logic that each view reads."""

    definition: Any

    def known_schema(self, kv: KV) -> pa.Schema | None: ...
    def schema_of(self, kv: KV, name: str) -> pa.Schema | None: ...


class View:
    """The queries on one operator, over the stores of its shards.

    watermark_us: the operator's
    """

    logic: Viewed
    definition: Any
    #: Column families in which a commit counts the messages that it brought to a window; empty where it does not.
    counted_in: tuple[str, ...] = ()

    def __init__(self, logic: Viewed, stores: Sequence[KV], watermark_us: int) -> None:
        self.logic, self.stores = logic, stores
        self.definition = logic.definition
        self.watermark_us, self.prefix = watermark_us, self.definition.inputs[0].source_prefix

    def refuse(self, table: str) -> ConfigurationError:
        """Return the error for a table that it does not have."""
        name, has = self.definition.name, list(self.definition.tables)
        if not has:
            return ConfigurationError(
                f"{name!r} keeps no {table} that could be asked for: its results are in panes() of wr.read_state, and in sinks"
            )
        return ConfigurationError(f"table {table!r} of {name!r} is none of {has}: ask for one of these")

    def input(self, name: str | None) -> Input:
        """Return the input that a query means; its name may be left out where there is but one."""
        inputs: tuple[Input, ...] = self.definition.inputs
        asked = [i for i in inputs if name in (None, i.name)]
        if len(asked) != 1:
            raise ConfigurationError(which(name, inputs, self.definition.name))
        return asked[0]

    def source_prefix(self, input: str) -> str:
        """Return the prefix that the job adds to the sources of an input in the state."""
        return self.input(input).source_prefix

    # -- its rows ---------------------------------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        """Return the columns of the emitted rows, as far as some store knows them."""
        known = union([self.logic.known_schema(kv) for kv in self.stores])
        return pa.schema([]) if known is None else output_schema(known)

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        """Return the types of the key columns, of an input; null where they are not known yet."""
        input_spec = self.definition.inputs[0] if input is None else self.input(input)
        known = self.known(input_spec.name) or pa.schema([])
        keys = self.definition.keys(input_spec)
        return {b: known.field(b).type if b in known.names else pa.null() for b in keys}

    def known(self, input: str | None = None) -> pa.Schema | None:
        """Return the columns of an input, as far as some store knows them; without a name of the first."""
        name = self.definition.inputs[0].name if input is None else input
        return union([self.logic.schema_of(kv, name) for kv in self.stores])

    # -- its tables -------------------------------------------------------------------------------------------------

    def table(self, table: str, query: Query) -> pa.Table:
        """Return rows of one of its tables."""
        if table == WINDOWS in self.definition.tables:
            return self.windows_table(query)
        if table == MESSAGES in self.definition.tables:
            return messages_table(self.messages(query), self.message_schema(query.input))
        raise self.refuse(table)

    def stored_table(self, table: str, query: Query) -> StoredTable:
        """Return `table`, where showing all of it may cost more than reading it."""
        return StoredTable(self.table(table, query))

    def kept(self, before: Any = None, changes: Sequence[Batch] = ()) -> Any:
        """Return all rows of its windows, from which it answers from then on; None where it does not keep them.

        before: those of this commit, or of an earlier one, which the changes of each shard since then bring to this one
        """
        return None

    def timed(self, table: str) -> str | None:
        """Return the column of a table whose times `start` and `end` bound; None where they are numbers."""
        if table not in self.definition.tables:
            raise self.refuse(table)
        return {WINDOWS: "window", MESSAGES: "stored"}.get(table)

    def windows(self, query: Query) -> Sequence[WindowInfo]:
        """Return windows that overlap the closed range of a query, sorted by start, end and key."""
        raise self.refuse(WINDOWS)

    def windows_table(self, query: Query) -> pa.Table:
        """Return `windows` as rows."""
        raise self.refuse(WINDOWS)

    def messages(self, query: Query) -> list[Slice]:
        """Return kept messages in key order, in pieces; positions are as in the source."""
        raise self.refuse(MESSAGES)

    def message_schema(self, input: str | None) -> pa.Schema:
        """Return the columns of a table of messages, as far as they are known."""
        raise self.refuse(MESSAGES)

    # -- provenance -------------------------------------------------------------------------------------------------

    #: The time column of its rows, where rows of a time are found among those that were emitted.
    row_time: str | None = None

    def why_not(self, offsets: Mapping[str, int]) -> list[str]:
        """Return the conditions that keep messages from a row. offsets: those of messages by the name of their pattern."""
        raise ConfigurationError(f"{self.definition.name!r} has no rules: only wr.Rules says why not")

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        """Return the provenance at a time: of windows that start there, of rows of a message of that time."""
        return []

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the provenance of each of these rows, which it emitted, or of some columns of them."""
        return [[] for _ in rows]

    def one(self, what: Any, key: Any) -> pa.Table | None:
        """Return the start and key of one window, as a row; None where several may be meant.

        what: when it starts, with its `key`; a row that was emitted for it; or the window
        """
        return None

    def part_of(self, one: pa.Table, kv: KV, changes: Batch) -> Batch:
        """Return a copy of the part of a commit's changes, in `counted_in`, in which such a window is found."""
        return changes

    def brought(self, provenance: Provenance, kv: KV) -> list[tuple[bool, int]] | None:
        """Return message counts of a window in what one commit wrote, in the families `counted_in` of `kv`.

        True with a count: the window had so many messages then; False: so many more. None where the commit's own messages
        cannot be separated from older ones."""
        return []


# -- arguments of queries -------------------------------------------------------------------------------------------


def key_of(by: tuple[str, ...], key: Any) -> dict[str, Any] | None:
    """Return the key fields of a query, by name; None for all keys."""
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


def one_key(by: Sequence[str], key: Mapping[str, Any], schema: pa.Schema) -> pa.Table | None:
    """Return a key as a row of columns of that schema; None where it is not all of a key, or there can be no such row."""
    if not by or set(key) != set(by):
        return None
    try:
        return pa.table({b: pa.array([key[b]], schema.field(b).type) for b in by})
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError):
        return None


def of_key(rows: pa.Table, wanted: Mapping[str, Any] | None) -> BoolArray:
    """True for rows of the key of a query."""
    mask = np.ones(len(rows), dtype=bool)
    for name, value in (wanted or {}).items():
        column = rows.column(name)
        if type(value) is str and value.isascii() and pa.types.is_string(column.type):
            mask &= pc.fill_null(pc.equal(column, value), False).to_numpy()
        else:
            mask &= np.array([v == value for v in column.to_pylist()], dtype=bool)
    return mask


def alone(window: AnyWindow, end: Bound | None) -> AnyWindow:
    """Return a window in the place of both bounds."""
    if end is not None:
        raise BadInstant(f"{window!r} has an end of its own: leave out {end!r}, or give two times")
    return window


def _bound(value: Bound | None, default: int) -> tuple[int, Any]:
    if value is None:
        return default, None
    if isinstance(value, TupleWindow):
        raise BadInstant(
            f"{value!r} is a window of numbers, by which messages are not known here: give times, or a window of time"
        )
    if not isinstance(value, (tuple, list)):
        return instant_us(value, "time"), None  # type: ignore[arg-type]
    at, offset = value if len(value) == 2 else (None, None)
    if at is None or isinstance(offset, bool) or not (offset is None or hasattr(offset, "__index__")):
        raise BadInstant(f"{value!r} is no bound of messages: use a time, (time, offset), or a window")
    return instant_us(at, "time"), None if offset is None else offset.__index__()


# -- messages -------------------------------------------------------------------------------------------------------


def stored(rows: Slice) -> list[StoredMessage]:
    """Return rows of messages as Python values."""
    payloads = rows.table.select(user_columns(rows.table)).to_pylist()
    positions = zip(
        *(rows.table.column(c).to_pylist() for c in (SOURCE, PARTITION, OFFSET, ORDINAL)), strict=True
    )
    return [
        StoredMessage(int(t), Position(*p), payload)
        for t, p, payload in zip(rows.times, positions, payloads, strict=True)
    ]


def without_prefix(infos: Sequence[WindowInfo], prefix: str) -> list[WindowInfo]:
    """Return windows with the positions as in the source, without the prefix."""
    return [replace(w, first=as_given(w.first, prefix), last=as_given(w.last, prefix)) for w in infos]


def rows_without_prefix(rows: Slice, prefix: str) -> Slice:
    """Return rows of messages with the sources as they were fed, without the prefix."""
    table = rows.table
    named = pa.array([s.removeprefix(prefix) for s in table.column(SOURCE).to_pylist()], pa.string())
    return Slice(table.set_column(table.column_names.index(SOURCE), SOURCE, named), rows.times)


def as_given(position: Position | None, prefix: str) -> Position | None:
    """Return a position as it was fed, without the prefix."""
    return None if position is None else position._replace(source=position.source.removeprefix(prefix))


def merged(found: Sequence[Slice], by: Sequence[str], *, fields_first: bool) -> list[Slice]:
    """Merge messages of several shards by key; the key comes first in the order, or after the time. One key lies in one
    shard, whose order stays.
    """
    tables = [rows for rows in found if len(rows)]
    if len(tables) < 2:
        return tables
    times = np.concatenate([rows.times for rows in tables])
    table = concat([rows.table for rows in tables])
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
    return [rows.take(np.array(order, dtype=np.int64))]


def union(schemas: Sequence[pa.Schema | None]) -> pa.Schema | None:
    """Return the columns of all; None without any."""
    known = [schema.empty_table() for schema in schemas if schema is not None]
    return concat(known).schema if known else None


def message_columns(schemas: Sequence[pa.Schema | None]) -> pa.Schema:
    """Return the columns of a table of messages: `stored`, and those that stores know."""
    parts = [pa.schema([("stored", STORED)])]
    for schema in filter(None, schemas):
        own = user_columns(schema.empty_table())
        if "stored" in own:
            raise ConfigurationError(
                "a column of the messages is called 'stored', as the column of their positions: use get_messages"
            )
        parts.append(pa.schema([schema.field(n) for n in own]))
    return union(parts)


def messages_table(found: Sequence[Slice], schema: pa.Schema) -> pa.Table:
    """Return messages as rows of `schema`."""
    tables = [schema.empty_table()]
    for rows in found:
        if not len(rows):
            continue
        parts = [pa.array(rows.times).cast(STAMP)]
        for column, field in zip((SOURCE, PARTITION, OFFSET, ORDINAL), POSITION, strict=True):
            parts.append(combine(rows.table.column(column)).cast(field.type))
        columns = {"stored": pa.StructArray.from_arrays(parts, fields=list(STORED))}
        columns |= {c: rows.table.column(c) for c in user_columns(rows.table)}
        tables.append(pa.table(columns))
    return concat(tables)
