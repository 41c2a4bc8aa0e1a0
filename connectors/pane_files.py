"""Panes as a sink receives them, and the interface of a sink."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.connectors.manifests import read_file, read_slices
from windrow.core.messages import Token
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.operators.steps.dead_letters import to_letters
from windrow.stores.spill import Spill

#: Rows are read so many at a time.
SLICE_ROWS = 1 << 16
#: Files of fewer bytes are read at once.
MAPPED_BYTES = 4 << 20
#: The operator's name where the rows are dead letters.
DEAD_LETTERS = "dead_letters"


def _nobody_else() -> None:
    """Whoever has no rival owns the job."""


@dataclass(frozen=True)
class PaneFiles:
    """Panes of one operator in one commit: Parquet files, each of one shard or of some, and their metadata.

    files: their paths. rows: the number of panes. operator, definition, job: the owners
    epoch: of the driver that publishes. check_epoch: raises `Fenced` where another driver has taken the job since.
    letters_of: the commit, where the rows are its dead letters. digests: of files whose digests are known
    """

    files: tuple[str, ...]
    rows: int
    operator: str
    definition: Definition
    job: str
    epoch: int = 0
    check_epoch: Callable[[], None] = _nobody_else
    letters_of: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.definition.by

    def table(self) -> pa.Table:
        """Return all rows: `window`, keys, aggregates, `pane`, `commit`; of dead letters as they are kept."""
        return concat([read_file(f) for f in self.files])

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, in the same order, some thousand at a time."""
        common = self._common()
        for file in self.files:
            for rows in read_slices(file, SLICE_ROWS):
                yield rows if common is None else concat([common, rows])

    def by_shard(self) -> Iterator[pa.Table]:
        """Yield all rows, in the same order, those of a shard or of some at a time: all rows of a key among them."""
        common = self._common()
        for file in self.files:
            rows = read_file(file)
            yield rows if common is None else concat([common, rows])

    def _common(self) -> pa.Table | None:
        """Return the columns of all files, as one shard may know less of them than another; None where all are alike."""
        first, *others = [pq.read_schema(file).empty_table() for file in self.files] or [pa.table({})]
        return None if all(t.schema.equals(first.schema) for t in others) else concat([first, *others])

    def panes(self) -> list[Any]:
        """Return all rows as Python values: panes, rows of a join, or dead letters. For too many at once use `tables()`."""
        found: list[Any] = []
        for rows in self.tables():
            if self.letters_of is not None:
                found += to_letters(rows, self.letters_of)
            else:
                found += self.definition.values(rows, self.job)
        return found


def mapped_rows(path: str) -> pa.Table:
    """Return the rows of a file of panes; those of a large one are mapped from another file in Arrow's layout."""
    if os.path.getsize(path) <= MAPPED_BYTES:
        return read_file(path)
    rows = Spill()
    for rows_slice in read_slices(path, SLICE_ROWS):
        rows.add(rows_slice)
    return rows.mapped()[0]


class Sink(Protocol):
    """Interface of a sink of panes. A custom sink has these two methods, and must ignore a token that it already has."""

    def publish(self, token: Token, panes: PaneFiles) -> None:
        """Make the panes of one operator in one commit visible, once, however often it is called with this token.

        token: (job, commit). panes: `panes.table()` has all rows as Arrow, `panes.tables()` the same some at a time, however
            many they are, `panes.panes()` a list of Python values

        Raising refuses them for now: they are given again.
        """
        ...

    def last_commit(self, job: str, operator: str) -> int | None:
        """Return the highest commit of a job's operator that the sink has; None where it has none or cannot say.

        job: the identity in tokens. operator: its name
        """
        ...
