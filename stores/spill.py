"""Rows that need not be in memory all at once: they wait in a file, in the system's temporary folder, that has no name.

Whatever becomes of the process, nothing is left behind: the file goes with the last that was read from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from windrow.core.types import concat
from windrow.stores.files import Unnamed

#: Arrow likes its buffers to begin at such places.
_ALIGNED = 64


class _Piece(NamedTuple):
    """A record batch: where its bytes lie, and its columns."""

    at: int
    size: int
    rows: int
    schema: pa.Schema


class Spill:
    """Tables by number, each of which grows at its end. Not for several threads at once."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[_Piece]] = {}
        self._file = Unnamed()

    def add(self, rows: pa.Table, number: int = 0) -> None:
        """More rows of a table."""
        pieces = self._pieces.setdefault(number, [])
        for batch in rows.to_batches():
            if len(batch):
                data = batch.serialize()
                at = self._file.write(data, b"\0" * (-data.size % _ALIGNED))
                pieces.append(_Piece(at, data.size, len(batch), batch.schema))

    @property
    def numbers(self) -> list[int]:
        """Those of the tables that have rows."""
        return sorted(number for number, pieces in self._pieces.items() if pieces)

    def rows(self, number: int = 0) -> int:
        """How many rows a table has."""
        return sum(piece.rows for piece in self._pieces.get(number, ()))

    def nbytes(self, number: int = 0) -> int:
        """How many bytes a table has."""
        return sum(piece.size for piece in self._pieces.get(number, ()))

    def read(self, numbers: Iterable[int]) -> list[pa.Table]:
        """Tables, one after the other, in memory."""
        return [
            _table(pa.py_buffer(self._file.read(piece.at, piece.size)), piece)
            for number in numbers
            for piece in self._pieces.get(number, ())
        ]

    def mapped(self) -> dict[int, pa.Table]:
        """All tables, by number, as they lie in the file: the system reads what is looked at, and may let go of it again."""
        if not self._file.size:
            return {}
        whole = pa.py_buffer(self._file.mapped())
        return {
            number: concat(
                [_table(whole.slice(piece.at, piece.size), piece) for piece in self._pieces[number]]
            )
            for number in self.numbers
        }


def _table(data: pa.Buffer, piece: _Piece) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(data, piece.schema)])
