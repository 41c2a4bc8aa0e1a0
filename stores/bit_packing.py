"""Bit packing of records where many pages are written at once: records are as short as their values allow, 47 bytes for 163.

    shape    for each of the bytes of nulls, the whole numbers and the texts of a record, in this order, four bytes: kind and
             three numbers. 0: a number of so many bytes, 0 where all are the same. 1: a text, as long as the others, of so many
             bytes, and between which places it has bytes of its own. 2: the length of a text, in so many bytes
    frame    for each of them the number to add, i64, or for a text all its bytes, of which those that all share are valid

Values of other widths, as of decimals, are stored unchanged. The column's type says whether a number is signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.core.arrays import BoolArray, IntArray, extremes

NUMBER, TEXT, LENGTH = 0, 1, 2
#: Bytes in the shape for each part of a record.
ITEM = 4
#: A number that is added.
_BASE = np.dtype("<i8")
#: The longest text of which parts are left out.
_LONGEST = 255


class Part(NamedTuple):
    """One column of the records to write. kind: there; None if they need no bytes. values: are copied there, less `base`."""

    name: str
    item: bytes
    frame: bytes
    kind: Any
    values: npt.NDArray[Any]
    base: int = 0


def number(name: str, values: npt.NDArray[Any], what: int = NUMBER) -> Part:
    """Whole numbers of one, two, four or eight bytes, of which there is one at least."""
    low, high = int(values.min()), int(values.max())
    width = next((w for w in (0, 1, 2, 4) if high - low < 1 << 8 * w), 8)
    if width >= values.dtype.itemsize:
        width, low = values.dtype.itemsize, 0
    if width == 8:
        low = 0
    frame = np.array([low], dtype=np.int64 if low < 1 << 63 else np.uint64).tobytes()
    return Part(name, bytes((what, width, 0, 0)), frame, f"<u{width}" if width else None, values, low)


def text(name: str, ends: IntArray, data: Any, null: BoolArray | None = None) -> Part | None:
    """Texts of one length; None where they are not, or too long, or where so many are null that lengths take fewer bytes.

    ends: where each begins, and where the last ends; null: which are none, None if all are some
    """
    n, lengths = len(ends) - 1, np.diff(ends)
    own_lengths = lengths if null is None else lengths[~null]
    width = int(own_lengths[0]) if len(own_lengths) else 0
    if (
        width > _LONGEST
        or int(lengths.sum()) != width * len(own_lengths)
        or not bool((own_lengths == width).all())
    ):
        return None
    if width == 0:
        return Part(name, bytes((TEXT, 0, 0, 0)), b"", None, ends[:-1])
    matrix = np.frombuffer(data, np.uint8, len(own_lengths) * width, int(ends[0])).reshape(-1, width)
    own = np.flatnonzero(np.not_equal(*extremes(matrix)))
    low, high = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
    if null is not None and (high - low) * n > n + matrix.size:
        return None
    item, frame = bytes((TEXT, width, low, high)), matrix[0].tobytes()
    if low == high:
        return Part(name, item, frame, None, ends[:-1])
    kind = f"V{high - low}"
    values: Any = np.ndarray((len(matrix),), kind, matrix, low, (width,))
    if null is not None:
        present, values = values, np.zeros(n, kind)
        values[~null] = present
    return Part(name, item, frame, kind, values)


class Item(NamedTuple):
    """Description of one part in a shape. at: the offset of its frame."""

    name: str
    what: int
    width: int
    low: int
    high: int
    at: int

    @property
    def kind(self) -> str | None:
        """The numpy type of its bytes in a record; None if records have none."""
        width = self.high - self.low if self.what == TEXT else self.width
        return None if width == 0 else f"V{width}" if self.what == TEXT else f"<u{width}"


def items_of(names: Sequence[str], shape: bytes) -> tuple[list[Item], int]:
    """Parse a shape. Returns the items of parts of these names, and the length of a frame."""
    items, at = list[Item](), 0
    for i, name in enumerate(names):
        item = Item(name, *tuple(shape[ITEM * i : ITEM * (i + 1)]), at)  # type: ignore[call-arg]
        items.append(item)
        at += item.width if item.what == TEXT else _BASE.itemsize
    return items, at


def numbers(
    item: Item, records: npt.NDArray[np.void], frames: npt.NDArray[np.uint8], rows: IntArray, kind: str
) -> npt.NDArray[Any]:
    """Return the numbers of all records. frames: of each page; rows: in each page"""
    base = np.ascontiguousarray(frames[:, item.at : item.at + _BASE.itemsize]).view("<u8")[:, 0].astype(kind)
    if not item.kind:
        return np.repeat(base, rows)
    values = records[item.name].astype(kind)
    if base.any():
        values += base[0] if bool((base == base[0]).all()) else np.repeat(base, rows)
    return values


def texts(
    item: Item, records: npt.NDArray[np.void], frames: npt.NDArray[np.uint8], rows: IntArray
) -> npt.NDArray[np.uint8]:
    """Return the bytes of all texts, one after the other."""
    if item.width == 0:
        return np.zeros(0, dtype=np.uint8)
    frame = np.ascontiguousarray(frames[:, item.at : item.at + item.width]).view(f"V{item.width}")[:, 0]
    cells = np.repeat(frame, rows)
    if item.kind:
        own: Any = np.ndarray((len(cells),), item.kind, cells, item.low, (item.width,))
        own[:] = records[item.name]
    return cells.view(np.uint8)
