"""What an open operator hands out: rows, as tables, data frames, or Python values that are made when they are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.errors import ConfigurationError
from windrow.core.extras import need
from windrow.core.lazy import LazyList, Part
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.operators.steps.labels import flat

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Results(LazyList[Any]):
    """Panes, or rows of a join, as a list that cannot be changed. Many are better taken as a table or a data frame, without
    making a Python object of each: `to_arrow`, `to_pandas`, `to_polars`.
    """

    def __init__(self, told: Sequence[tuple[Definition, Sequence[pa.Table]]], job: str) -> None:
        self._told = told
        super().__init__([_part(one, table, job) for one, tables in told for table in tables])

    def to_arrow(self) -> pa.Table:
        """All as a table: `window`, the keys, the aggregates, `pane`, `commit`; of a join its columns."""
        if len(self._told) > 1:
            names = [one.name for one, _ in self._told]
            raise ConfigurationError(
                f"operator None is several, {names}, with columns of their own: name one"
            )
        tables = self._told[0][1]
        return concat(tables) if tables else pa.table({})

    def to_pandas(self) -> pd.DataFrame:
        """All as a data frame of pandas, with flat columns: `window_start`, `window_end`, ..., `pane_timing`, ..., `commit`."""
        need("pandas", "pandas", "to_pandas()")
        return flat(self.to_arrow()).to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All as a data frame of polars, with flat columns: `window_start`, `window_end`, ..., `pane_timing`, ..., `commit`."""
        need("polars", "polars", "to_polars()")
        import polars as pl

        frame = pl.from_arrow(flat(self.to_arrow()))
        assert isinstance(frame, pl.DataFrame)
        return frame


def _part(definition: Definition, table: pa.Table, job: str) -> Part:
    def made(low: int, high: int) -> Iterable[Any]:
        rows: Iterator[Any] = iter(definition.values(table.slice(low, high - low), job))
        return rows

    return Part(len(table), made)
