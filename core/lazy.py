"""Lists whose items are made on access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

T = TypeVar("T")

#: Items are made so many at a time.
_AT_ONCE = 4_096
#: A longer list is not shown whole.
_SHOWN = 100


class Part(NamedTuple):
    """Part of a list: the number of items, and a function that makes those of a range."""

    size: int
    make: Callable[[int, int], Iterable[Any]]


class LazyList(Sequence[T]):
    """Immutable list whose items are made on access. It is equal to a list of the same items.

    >>> LazyList([Part(3, range)])[1:], len(LazyList([Part(3, range)])), LazyList([Part(3, range)]) == [0, 1, 2]
    ([1, 2], 3, True)
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = [part for part in parts if part.size]
        self._size = sum(part.size for part in self._parts)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return self._built(0, self._size)

    def _built(self, low: int, high: int) -> Iterator[T]:
        before = 0
        for size, make in self._parts:
            first, last = max(low - before, 0), min(high - before, size)
            for at in range(first, last, _AT_ONCE):
                yield from make(at, min(at + _AT_ONCE, last))
            before += size

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            wanted = range(self._size)[index]
            if len(wanted) == 0:
                return []
            low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            return list(self._built(low, high))[:: wanted.step]
        at = range(self._size)[index]  # raises, and counts from the end, as a list does
        return next(self._built(at, at + 1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LazyList)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[T]) -> list[T]:
        return [*self, *other]

    def __radd__(self, other: Iterable[T]) -> list[T]:
        return [*other, *self]

    def __repr__(self) -> str:
        if self._size <= _SHOWN:
            return repr(list(self))
        first_items = ", ".join(map(repr, self._built(0, _SHOWN)))
        return f"[{first_items}, ... {self._size - _SHOWN:,} more]"

    def _repr_html_(self) -> str:
        from windrow.core.notebook import MOST, of_items

        return of_items(self._built(0, MOST), self._size)
