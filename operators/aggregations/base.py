"""Kernels of aggregations, in columns: lift rows to accumulators, merge those of a group, finish to a value.

An accumulator is a handful of Arrow columns ("parts"), one row per (key, window). One table holds the parts of
an older commit before those of a newer one. So `merge` is a left fold in commit order and in
position order inside a commit. A part may be null or missing altogether (the input's type widened since, or
only rows have it and states do not): that is the identity. `docs/reference/aggregations.md` lists the parts of every
kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation
from windrow.core.arrays import IntArray
from windrow.core.errors import BadAggregate, TypeClash
from windrow.core.types import as_type, concat, plain_type
from windrow.operators.steps.groups import Groups, combine

Parts = dict[str, pa.Array]
Accumulators = Mapping[str, pa.Array]


@dataclass(frozen=True)
class Typed:
    """An aggregation, the types of its arguments, and the options of its operator."""

    aggregation: Aggregation
    types: tuple[pa.DataType, ...]
    options: Mapping[str, Any]

    @property
    def kind(self) -> pa.DataType:
        """Return the plain type of its first argument."""
        return plain_type(self.types[0])

    def check_order(self, places: Sequence[int] = (-1,), lack: str = "has no order") -> None:
        """Raise `TypeClash` unless these arguments have an order."""
        for i in places:
            if not is_ordered(self.types[i]):
                argument = f"{self.aggregation.args[i]!r} of type {self.types[i]}"
                raise TypeClash(f"{self.aggregation!r}: {argument} {lack}: name one of its fields")

    def check_number(self, lack: str) -> None:
        """Raise `TypeClash` unless the first argument is a number."""
        if not is_number(self.kind):
            raise TypeClash(
                f"{self.aggregation!r}: column of type {self.types[0]} {lack}: cast it to a number first"
            )


@dataclass(frozen=True)
class Arguments:
    """Input rows to be lifted, in position order.

    time_us: int64 event times; order: binary, encoded positions (sort order = position order), or None where
    the rows have no positions. values: the argument columns, already evaluated. sign: 1 for each added row, -1
    for each retracted row; None where all are added.
    """

    time_us: pa.Array
    order: pa.Array | None
    values: tuple[pa.Array, ...]
    sign: IntArray | None = None

    def __len__(self) -> int:
        return len(self.time_us)

    def take(self, indices: pa.Array) -> Arguments:
        """Return these rows, in the order of `indices`."""
        order = None if self.order is None else self.order.take(indices)
        sign = None if self.sign is None else self.sign[indices.to_numpy()]
        values = tuple(plain(v).take(indices) for v in self.values)
        return Arguments(self.time_us.take(indices), order, values, sign)


@dataclass
class Failure:
    """An exception of user code for one group."""

    group: int
    error: Exception


class SumOverflow(OverflowError):
    """The error of a sum of integers that does not fit its type."""


class Kernel(Protocol):
    """The behaviour of one kind of aggregation. Made from an `Aggregation` and its argument types.

    folds: True if merging many accumulators at once gives the very bits of merging them one after the other.
    regroups: True if neighbours may be merged before they are merged with what was there, without a change of bits.
    """

    folds: bool = True
    regroups: bool = True
    #: The plain type of its first argument.
    _kind: pa.DataType

    def lift(self, rows: Arguments) -> Parts:
        """Return one accumulator per row."""
        ...

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        """Return one accumulator per group. A group in `failures` has the identity: keep its old state instead."""
        ...

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        """Return one value per accumulator, the identity's too.

        Raises nothing for data. An int64 overflow is a null reported by `overflowed`. An exception of user code
        goes into `failures` with a null value (without a list it is raised). By default the value is the part v.
        """
        return as_type(present(parts, "v", size, self.output_type()), self.output_type())

    def output_type(self) -> pa.DataType:
        """Return the Arrow type of the value."""
        return self._kind

    def overflowed(self, values: pa.Array) -> pa.Array:
        """True where a value of `finish` did not fit its type."""
        return pa.array(np.zeros(len(values), dtype=np.bool_))

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        """Map parts to Spark SQL aggregate expressions over the argument columns; None where there is none."""
        return None


def fold(kernel: Kernel, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
    """Merge the accumulators of each group one after the other, in row order."""
    counts = np.zeros(0, dtype=np.int64) if kernel.folds else np.bincount(groups.codes, minlength=groups.size)
    deepest = int(counts.max(initial=0))
    if deepest <= 2:
        return kernel.merge(parts, groups, failures)
    order, bounds = groups.slices()
    shallow = np.arange(groups.rows)[np.argsort(order)] - bounds[groups.codes] < 2
    two = pa.array(np.flatnonzero(shallow))
    first = Groups.of_codes(groups.codes[shallow], groups.size)
    merged = kernel.merge({n: c.take(two) for n, c in parts.items()}, first, failures)
    for depth in range(2, deepest):
        deep = np.flatnonzero(counts > depth)
        after = pa.array(order[bounds[deep] + depth])
        both = {
            n: pa.concat_arrays([merged[n].take(pa.array(deep)), c.take(after)]) for n, c in parts.items()
        }
        codes = np.tile(np.arange(len(deep)), 2)
        step = kernel.merge(both, Groups.of_codes(codes, len(deep)), failures)
        place = np.arange(groups.size)
        place[deep] = groups.size + np.arange(len(deep))
        merged = {n: pa.concat_arrays([c, step[n]]).take(pa.array(place)) for n, c in merged.items()}
    return merged


KernelFactory = Callable[[Typed], Kernel]
KERNELS: dict[str, KernelFactory] = {}
F = TypeVar("F", bound=KernelFactory)


def kernel(*kinds: str) -> Callable[[F], F]:
    """Register the factory of these kinds."""

    def register(factory: F) -> F:
        KERNELS.update(dict.fromkeys(kinds, factory))
        return factory

    return register


def make_kernel(
    aggregation: Aggregation, types: Sequence[pa.DataType], options: Mapping[str, Any] | None = None
) -> Kernel:
    """Return the kernel of `aggregation` over argument columns of `types`; TypeClash where it cannot take them."""
    if aggregation.kind not in KERNELS:
        raise BadAggregate(
            f"{aggregation!r} is no incremental aggregation: known are {', '.join(sorted(KERNELS))}"
        )
    return KERNELS[aggregation.kind](Typed(aggregation, tuple(types), options or {}))


def lift_where(kernel: Kernel, rows: Arguments, mask: pa.Array) -> Parts:
    """Return `kernel.lift(rows)` with the identity where `mask` is not true. Only the rows that count are lifted."""
    chosen = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    if chosen.all():
        return kernel.lift(rows)
    lifted = kernel.lift(rows.take(pa.array(np.flatnonzero(chosen))))
    target = np.where(chosen, np.cumsum(chosen) - 1, -1)
    return {name: take_or_null(part, target) for name, part in lifted.items()}


def concat_parts(pieces: Sequence[tuple[Accumulators, int]]) -> Parts:
    """Concatenate parts of several (parts, size); nulls where a piece lacks a part, types widened."""
    table = concat([pa.table({**parts, "": pa.nulls(size)}) for parts, size in pieces])
    return {name: combine(table.column(name)) for name in table.column_names if name}


def plain(values: pa.Array) -> pa.Array:
    """Return `values` as `plain_type`."""
    return as_type(values, plain_type(values.type))


def present(parts: Accumulators, name: str, size: int, kind: pa.DataType) -> pa.Array:
    """Return part `name`, or nulls where no commit has written it yet."""
    return parts[name] if name in parts else pa.nulls(size, kind)


def take_or_null(values: pa.Array, rows: IntArray) -> pa.Array:
    """Return `values[rows]`, null where the row is -1."""
    return values.take(pa.array(rows, mask=rows < 0))


def is_number(kind: pa.DataType) -> bool:
    """True if arithmetic takes `kind`: integers, floats, decimals, booleans, and nothing but nulls."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def is_ordered(kind: pa.DataType) -> bool:
    """True if values of `kind` have an order."""
    kind = plain_type(kind)
    return not (pa.types.is_nested(kind) or pa.types.is_interval(kind))
