"""Views of panes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import aggregations
from windrow.core.errors import ConfigurationError
from windrow.operators.steps.groups import Groups


def latest(what: Any, by: str | Sequence[str] | None = None) -> Any:
    """Return the current pane of each (key, window); of a column, return an aggregation.

    what: a pyarrow Table from `wr.read_panes`, or a Spark DataFrame of panes. Or a column or expression: then the non-null
        value of the largest event time, ties by position, for `agg=`
    by: the key columns. A table from `wr.read_panes` knows its own; a DataFrame does not

    Returns its input with fewer rows. Raises `ConfigurationError` (WR100) where the key columns are unknown.

    >>> latest("gate")
    wr.latest('gate')
    """
    if isinstance(what, (str, pc.Expression)):
        return aggregations.latest(what)
    panes = what
    keys = None if by is None else (by,) if isinstance(by, str) else tuple(by)
    if isinstance(panes, pa.Table):
        return _of_table(panes, keys)
    from windrow.runners.spark.latest import latest_frame

    return latest_frame(panes, keys)


def key_columns(panes: pa.Table) -> tuple[str, ...] | None:
    """Return the key columns that a table of panes names in its schema."""
    marked = [f.name for f in panes.schema if f.metadata and f.metadata.get(b"windrow") == b"key"]
    known = any(f.metadata and b"windrow" in f.metadata for f in panes.schema)
    return tuple(marked) if known else None


def _of_table(panes: pa.Table, by: tuple[str, ...] | None) -> pa.Table:
    if len(panes) == 0:
        return panes
    keys = by if by is not None else key_columns(panes)
    if keys is None:
        raise ConfigurationError(
            "latest: these panes do not say which columns are keys: use latest(panes, by=[...])"
        )
    window = panes.column("window").combine_chunks()
    pane = panes.column("pane").combine_chunks()
    columns = [window.field(0), window.field(1), *(panes.column(k) for k in keys)]
    groups = Groups(columns, len(panes))
    insert = np.array([k == "INSERT" for k in pane.field("kind").to_pylist()], dtype=np.int64)
    index = pane.field("index").to_numpy()
    commit = panes.column("commit").to_numpy()
    order = np.lexsort([1 - insert, index, commit])  # a pane comes before its retraction
    newest = np.zeros(groups.size, dtype=np.int64)
    newest[groups.codes[order]] = order
    newest = newest[insert[newest] == 1]
    return panes.take(pa.array(np.sort(newest)))
