"""Output rows without windows: their labels, and their form for users. Most are emitted once and never retracted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import is_one
from windrow.core.messages import JoinedRow, Kind, Timing, Token
from windrow.core.types import concat
from windrow.operators.steps.columns import INDEX, INSERT, IS_LAST, KIND, SIGN, TIMING
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import PANE_TYPE

#: Labels of more rows than these are stored once, where all are alike.
SHARED = 1 << 16


def labelled(rows: pa.Table, timing: str) -> pa.Table:
    """Return rows with the timing of their emission."""
    return rows.append_column(TIMING, pa.repeat(pa.scalar(timing, pa.string()), len(rows)))


def without_labels(emitted: Sequence[pa.Table]) -> pa.Table:
    """Return the rows without labels, as downstream operators receive them."""
    return concat([_bare(rows) for rows in emitted])


def signed(emitted: Sequence[pa.Table]) -> pa.Table:
    """Return rows without labels, with the sign of each: -1 for a retraction."""
    tables = []
    for rows in emitted:
        inserted = pc.equal(rows.column(KIND), INSERT)
        tables.append(_bare(rows).append_column(SIGN, pc.if_else(inserted, pa.scalar(1), pa.scalar(-1))))
    return concat(tables)


def output_rows(emitted: Sequence[pa.Table], commit: int) -> pa.Table:
    """Return rows of the steps of a commit, with the columns of a pane: each is emitted once, unless its own columns differ."""
    tables, shared = list[pa.Table](), dict[str, pa.Array]()
    for rows in emitted:
        if len(rows) > SHARED and not {INDEX, IS_LAST, KIND} & set(rows.column_names):
            parts = rows.select([TIMING]).to_batches()
            panes = [label for part in parts for label in _alike(pa.Table.from_batches([part]), shared)]
            commits = _repeated(shared.setdefault("commits", _commits(SHARED, commit)), len(rows))
        else:
            panes, commits = [_labels(rows)], [_commits(len(rows), commit)]
        labels = pa.chunked_array(panes), pa.chunked_array(commits)
        tables.append(_bare(rows).append_column("pane", labels[0]).append_column("commit", labels[1]))
    return concat(tables)


def _alike(rows: pa.Table, shared: dict[str, pa.Array]) -> list[pa.Array]:
    """Return the labels of rows; of many of one timing as chunks that share the memory of those in `shared`."""
    timing = rows.column(TIMING)
    if not is_one(timing):
        return [_labels(rows)]
    labels = shared.get(name := timing[0].as_py())
    if labels is None:
        labels = shared[name] = _labels(labelled(pa.table({"n": np.zeros(SHARED, dtype=np.int8)}), name))
    return _repeated(labels, len(rows))


def _labels(rows: pa.Table) -> pa.Array:
    n = len(rows)
    once = {
        INDEX: pa.array(np.zeros(n, dtype=np.int32)),
        IS_LAST: pa.repeat(pa.scalar(True), n),
        KIND: pa.repeat(pa.scalar("INSERT"), n),
    }
    labels = [combine(rows.column(TIMING))]
    labels += [combine(rows.column(name)) if name in rows.column_names else once[name] for name in once]
    return pa.StructArray.from_arrays(labels, fields=list(PANE_TYPE))


def _commits(n: int, commit: int) -> pa.Array:
    return pa.array(np.full(n, commit, dtype=np.int64))


def _repeated(values: pa.Array, n: int) -> list[pa.Array]:
    """Return chunks of `n` rows in all that share the memory of these values."""
    whole, rest = divmod(n, len(values))
    return [values] * whole + ([values.slice(0, rest)] if rest else [])


def _bare(rows: pa.Table) -> pa.Table:
    labels = [name for name in (TIMING, INDEX, IS_LAST, KIND) if name in rows.column_names]
    return rows.drop_columns(labels)


def output_schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of `output_rows` of rows with these fields."""
    return pa.schema([*fields, pa.field("pane", PANE_TYPE), pa.field("commit", pa.int64())])


def to_rows(rows: pa.Table, job: str) -> Iterator[JoinedRow]:
    """Yield emitted rows as Python values."""
    for row in rows.to_pylist():
        label, commit = row.pop("pane"), row.pop("commit")
        yield JoinedRow(
            row,
            Timing(label["timing"]),
            commit,
            Token(job, commit),
            Kind(label["kind"]),
            label["index"],
            label["is_last"],
        )
