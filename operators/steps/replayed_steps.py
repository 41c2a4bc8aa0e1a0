"""Steps that were, and are done again because a shard has lost its messages."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core.arrays import IntArray


@dataclass(frozen=True, slots=True)
class Redone:
    """Steps that are done again, one after the other: when they were, under which watermark, and under which number."""

    nows_us: IntArray
    watermarks_us: IntArray
    numbers: IntArray
