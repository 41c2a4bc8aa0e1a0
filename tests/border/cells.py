"""Cells of a matrix of the border: each is tried, all that fail are named, and the matrix prints its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import windrow as wr

INPUT: dict[str, Any] = {"event_time": "ts", "max_ahead": wr.forever}
WINDOW: dict[str, Any] = {"window": wr.tumbling("1 hour"), "retention": "1 day"}


def try_cells(
    cells: Sequence[tuple[Any, ...]], of: int, check: Callable[..., str], folder: Path
) -> Counter[str]:
    """Count what each cell came to, which `check(*cell, folder)` returns. of: how many cells the matrix has."""
    came, wrong = Counter[str](), list[str]()
    for i, cell in enumerate(cells):
        try:
            came[check(*cell, folder / str(i))] += 1
        except Exception as error:
            wrong.append(f"{' '.join(map(str, cell))}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{len(cells)} of {of} cells: {dict(came)}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)
    return came
