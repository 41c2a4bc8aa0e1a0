"""User input, as messages or as a table: `wr.Message`s, dicts, tables, data frames.

The call itself raises on a mistake of the program: not a message, not a position, a column that no message has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from windrow.core.errors import DuplicateColumn, InputError, TypeClash
from windrow.core.messages import Message, Position
from windrow.operators.steps.columns import OFFSET, PARTITION, SOURCE
from windrow.runners.rows import is_name

#: One message: a dict is one without a position.
MessageLike: TypeAlias = "Message | Mapping[str, Any]"
#: Many: a list or generator of them, an Arrow table or batch, a data frame of pandas or polars.
Many: TypeAlias = "Iterable[MessageLike] | pa.Table | pa.RecordBatch | Any"

#: Offsets below this have a next one that fits 64 bits.
_LAST = 2**63 - 1
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.large_string(): pa.string()}
#: Types of which Arrow takes no rows.
_NO_ROWS = frozenset({pa.string_view(), pa.binary_view()})


def message_of(message: MessageLike) -> Message:
    """Return a message with a position of plain numbers or none. Its payload is a copy, so the user may reuse the dict."""
    if not isinstance(message, Message):
        if isinstance(message, Mapping):
            return Message(dict(message))
        remedy = (
            "add_messages takes many" if _is_many(message) else "give wr.Message({...}, position), or a dict"
        )
        raise InputError(f"{message!r:.200} is a {type(message).__name__} and no message: {remedy}")
    if type(message.payload) is not dict and not isinstance(message.payload, Mapping):
        raise InputError(f"the payload of {message!r:.200} is no mapping of names to values: give a dict")
    position = message.position
    if position is not None and not (type(position) is Position and _is_plain(*position)):
        position = position_of(position)
    return Message(dict(message.payload), position)


def position_of(value: Any) -> Position:
    """Return a position of plain numbers."""
    try:
        source, *numbers = Position(*value)
        position = Position(
            str(source) if isinstance(source, str) else source, *(n.__index__() for n in numbers)
        )
        if _is_plain(*position):
            return position
    except (TypeError, AttributeError):
        pass
    raise InputError(
        f"position {value!r:.200} is none: give wr.Position(source, partition, offset): a text, and whole numbers from 0 on"
    )


def _is_plain(source: Any, partition: Any, offset: Any, ordinal: Any) -> bool:
    return (
        type(partition) is type(offset) is type(ordinal) is int
        and 0 <= partition < 2**32
        and 0 <= offset < _LAST
        and 0 <= ordinal < 2**32
        and type(source) is str
        and (source.isascii() or is_name(source))
    )


def many_of(messages: Many, one: str = "add_message") -> pa.Table | list[Message]:
    """Return the user's input as messages or as a table."""
    if isinstance(messages, pa.Table):
        return of_users(messages)
    if isinstance(messages, pa.RecordBatch):
        return of_users(pa.Table.from_batches([messages]))
    if hasattr(messages, "__arrow_c_stream__") or hasattr(messages, "__dataframe__"):
        return of_users(table_of_frame(messages))
    if isinstance(messages, (Message, Mapping, str, bytes)) or not isinstance(messages, Iterable):
        remedy = (
            f"{one} takes one" if isinstance(messages, (Message, Mapping)) else "give messages, or a table"
        )
        raise InputError(f"{messages!r:.200} is a {type(messages).__name__}, not many messages: {remedy}")
    return [message_of(message) for message in messages]


def of_users(table: pa.Table) -> pa.Table:
    """Return a table without reserved columns. One with all position columns is windrow's own, and is kept."""
    names = table.column_names
    check_unique(names)
    if not _NO_ROWS.isdisjoint(table.schema.types):
        table = pa.table([_without_views(column) for column in table.columns], names=names)
    reserved = [n for n in names if n.startswith("__")]
    if reserved and {SOURCE, PARTITION, OFFSET} <= set(reserved):
        return table
    return table.drop_columns(reserved) if reserved else table


def check_unique(names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise DuplicateColumn(f"the input has column {twice[0]!r} twice (all: {names}): rename or drop one")


def table_of_frame(frame: Any) -> pa.Table:
    """Convert a data frame to a table, without its index; NaN of pandas is null."""
    if hasattr(frame, "columns"):
        check_unique(list(map(str, frame.columns)))
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        else:
            table = pa.table(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeClash(
            f"a column of the data frame has values of several types: {error}; give it one, or add its rows as dicts"
        ) from error
    columns = [_without_views(column) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to common types: Polars has its own for text."""
    if pa.types.is_dictionary(column.type):
        kind = _VIEWS.get(column.type.value_type, column.type.value_type)
        chunks = [c.dictionary.cast(kind).take(c.indices) for c in column.chunks]
        return pa.chunked_array(chunks, kind)
    return column.cast(_VIEWS.get(column.type, column.type))


def _is_many(value: Any) -> bool:
    return isinstance(value, (list, tuple, pa.Table, pa.RecordBatch)) or hasattr(value, "__arrow_c_stream__")
