"""Replayed steps: earlier steps that run again because a shard has lost its messages."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core.arrays import IntArray


@dataclass(frozen=True, slots=True)
class Redone:
    """Steps that run again, one after the other: their times, watermarks and numbers."""

    nows_us: IntArray
    watermarks_us: IntArray
    numbers: IntArray
