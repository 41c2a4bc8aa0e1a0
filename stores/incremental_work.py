"""Incremental work: it runs in slices, between which its caller can do something else."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: A generator that yields at the end of each slice and returns what came of it all.
Slices: TypeAlias = Generator[None, None, T]


def whole(slices: Slices[T]) -> T:
    """Run all slices, one after the other, and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


def in_batches(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Yield so many items at a time, the rest at last."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
