"""How messages are told apart: by the columns that say where they stand, or by those that are their ids."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core.errors import ConfigurationError
from windrow.core.show import call


@dataclass(frozen=True, slots=True)
class Positions:
    """The columns of a frame that say where a row comes from."""

    offset: str
    partition: str | None = None
    source: str | None = None

    def __repr__(self) -> str:
        return call("positions", self.offset, partition=self.partition, source=self.source)


def positions(offset: str, *, partition: str | None = None, source: str | None = None) -> Positions:
    """Name the columns that hold a row's position; offsets must increase within a (source, partition)."""
    return Positions(offset, partition, source)


@dataclass(frozen=True, slots=True)
class Ids:
    """The columns that together say which message a row is, among those of its key."""

    columns: tuple[str, ...]

    def __repr__(self) -> str:
        return call("ids", *self.columns)


def ids(*columns: str) -> Ids:
    """Name the columns by which a message is known: a second one of the same key and ids is a duplicate, within retention."""
    if not columns or not all(isinstance(c, str) for c in columns):
        raise ConfigurationError(f"ids of {columns!r}: name one column or several, as in wr.ids('order_id')")
    if len(set(columns)) != len(columns):
        raise ConfigurationError(f"ids of {columns!r} name a column twice: name each once")
    return Ids(columns)
