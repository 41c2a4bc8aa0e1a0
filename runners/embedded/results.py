"""Results of an open operator: rows as tables, data frames, or Python values that are made on access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.extras import need
from windrow.core.lazy import LazyList, Part
from windrow.core.logs import get_logger
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.operators.steps.output_columns import flat

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

logger = get_logger()

#: More unflushed commits, or rows, than this mean that the program has forgotten to flush.
MOST_COMMITS, MOST_ROWS = 1_000, 1_000_000


class Unflushed:
    """Emitted rows of committed steps that are not flushed, by operator; warns once where they become many."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in names}
        self._rows, self._warned = 0, False

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def of(self, name: str) -> tuple[pa.Table, ...]:
        return tuple(self._tables[name])

    def add(self, name: str, tables: Iterable[pa.Table]) -> None:
        """Keep these tables; those of other operators, inside a chain, are dropped."""
        if (kept := self._tables.get(name)) is None:
            return
        for table in tables:
            kept.append(table)
            self._rows += len(table)
        if not self._warned and (len(kept) > MOST_COMMITS or self._rows > MOST_ROWS):
            self._warned = True
            logger.warning(
                "results wait to be flushed, ever more of them: each get_result() gives all of them again, and they are kept "
                "in memory and on the disk. Call flush() when you have used them, or open with sink=",
                operator=name,
                commits=len(kept),
                rows=self._rows,
            )

    def clear(self) -> None:
        self._tables, self._rows = {name: [] for name in self._tables}, 0


class Results(LazyList[Any]):
    """A read-only list of panes, or rows of a join. Take many as a table or a data frame, without
    a Python object for each: `to_arrow`, `to_pandas`, `to_polars`.
    """

    def __init__(self, emitted: Sequence[tuple[Definition, Sequence[pa.Table]]], job: str) -> None:
        self._emitted = emitted
        super().__init__([_part(part, table, job) for part, tables in emitted for table in tables])

    def to_arrow(self) -> pa.Table:
        """Return all as a table: `window`, the keys, the aggregates, `pane`, `commit`; of a join its columns."""
        if len(self._emitted) > 1:
            names = [part.name for part, _ in self._emitted]
            raise ConfigurationError(
                f"operator None is several, {names}, with columns of their own: name one"
            )
        tables = self._emitted[0][1]
        return concat(tables) if tables else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """Return all as a pandas data frame, flat: `window_start`, `window_end`, ..., `pane_timing`, ..., `commit`."""
        need("pandas", "pandas", "to_pandas()")
        return flat(self.to_arrow()).to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all as a polars data frame, flat: `window_start`, `window_end`, ..., `pane_timing`, ..., `commit`."""
        need("polars", "polars", "to_polars()")
        import polars as pl

        frame = pl.from_arrow(flat(self.to_arrow()))
        assert isinstance(frame, pl.DataFrame)
        return frame


def _part(definition: Definition, table: pa.Table, job: str) -> Part:
    def build(low: int, high: int) -> Iterable[Any]:
        rows: Iterator[Any] = iter(definition.values(table.slice(low, high - low), job))
        return rows

    return Part(len(table), build)
