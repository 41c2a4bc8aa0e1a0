"""Identity of messages: by the columns of their positions, or by columns of ids."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from windrow.core import check
from windrow.core.errors import ConfigurationError
from windrow.core.show import call

#: (source, partition). The source carries the topic's id where there is one: a recreated topic is another one.
Partition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Positions:
    """The columns of a frame that hold a row's position in its source."""

    offset: str
    partition: str | None = None
    source: str | None = None

    def __repr__(self) -> str:
        return call("positions", self.offset, partition=self.partition, source=self.source)


def positions(offset: str, *, partition: str | None = None, source: str | None = None) -> Positions:
    """Name the columns of a row's position in its source. Rows at or below a counted position are ignored.

    offset: a column of ints that increase within a (source, partition)
    partition: a column of ints; without it all rows are of partition 0
    source: a column of text, e.g. a topic's name

    Raises `ConfigurationError` (WR100) where one is no name.

    >>> positions("offset", partition="partition", source="topic")
    wr.positions('offset', partition='partition', source='topic')
    """
    columns = [c for c in (offset, partition, source) if c is not None]
    if offset is None or not all(isinstance(c, str) for c in columns):
        said = Positions(offset, partition, source)
        raise ConfigurationError(
            f"{said!r}: name columns, as in wr.positions('offset', partition='part', source='topic')"
        )
    return Positions(offset, partition, source)


@dataclass(frozen=True, slots=True)
class Ids:
    """The columns that together identify a message among those of its key."""

    columns: tuple[str, ...]

    def __repr__(self) -> str:
        return call("ids", *self.columns)


def ids(*columns: str) -> Ids:
    """Name the columns by which a message is known: a second one of the same key and ids is a duplicate, and does nothing.

    columns: one or several. They are remembered until every window that could hold the message is out of retention

    Raises `ConfigurationError` (WR100) where none is named, or one twice.

    >>> ids("order_id")
    wr.ids('order_id')
    """
    if not columns or not all(isinstance(c, str) for c in columns):
        raise ConfigurationError(f"ids of {columns!r}: name one column or several, as in wr.ids('order_id')")
    if len(set(columns)) != len(columns):
        raise ConfigurationError(f"ids of {columns!r} name a column twice: name each once")
    return Ids(columns)


def ids_of(value: Any) -> Ids | None:
    """Parse the value of `ids=`: `wr.ids(...)`, a column, several in a sequence, or None."""
    if value is None or isinstance(value, Ids):
        return value
    return ids(*check.names(value, "ids", "use 'order_id', several as ['day', 'number'], or wr.ids(...)"))


#: Between a topic and its id in the name of a source; Kafka allows it in neither.
TOPIC_ID = "@"
_ID = re.compile(r"[A-Za-z0-9_-]{22}")  # Kafka shows ids so: 128 bits


def topic_source(topic: str, topic_id: str | None) -> str:
    """Return the source that a topic is: with its id where that is known, so that a recreated topic is another source."""
    return f"{topic}{TOPIC_ID}{topic_id}" if topic_id else topic


def topic_of(source: str) -> tuple[str, str | None]:
    """Return (topic, its id where the source has it). A prefix that names the input of a join is removed."""
    name = source.rpartition(":")[2]
    topic, _, topic_id = name.rpartition(TOPIC_ID)
    return (topic, topic_id) if _ID.fullmatch(topic_id) and topic else (name, None)


def shown_source(source: str) -> str:
    """Return a source as users see it: that of the unnamed input has no prefix."""
    return source.removeprefix(":")


def under_another_name(known: Collection[str], sources: Collection[str]) -> tuple[str, str] | None:
    """Return (known source, one of `sources`) that are one topic, with its id on one side only; None if there is none."""
    topics = {(s.rpartition(":")[0], *topic_of(s)): s for s in known}
    for source in sorted(sources):
        prefix, (topic, topic_id) = source.rpartition(":")[0], topic_of(source)
        if source in known:
            continue
        for (other_prefix, other, other_id), name in sorted(topics.items(), key=lambda item: item[1]):
            if (other_prefix, other) == (prefix, topic) and (other_id is None) != (topic_id is None):
                return name, source
    return None
