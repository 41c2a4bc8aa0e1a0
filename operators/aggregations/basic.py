"""Kernels of count, sum, avg, min, max.

Integers are summed as two limbs, `hi * 2**32 + lo` with `0 <= lo < 2**32`, so that no sum of int64 values can
wrap. Arrow's own int64 sum wraps silently. So does its sum of decimal128: decimals are summed in 256
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.errors import TypeClash
from windrow.core.sql import quoted
from windrow.core.types import as_type
from windrow.operators.aggregations.arrays import filled
from windrow.operators.aggregations.base import (
    Accumulators,
    Arguments,
    Failure,
    Kernel,
    Parts,
    Typed,
    is_number,
    kernel,
    plain,
    present,
)
from windrow.operators.steps.groups import Groups

_LIMB = 32
_MASK = (1 << _LIMB) - 1
_DIGITS = 38  # of the largest decimal that Spark knows
_MOST_DIGITS = 66  # of the largest decimal that is summed: ten are left for the sum
_CONTEXT = Context(prec=75)


def split_limbs(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (hi, lo) of integers."""
    if not values.null_count and not pa.types.is_uint64(values.type):  # no copy
        numbers = values.to_numpy().astype(np.int64, copy=False)
        return pa.array(numbers >> _LIMB), pa.array(numbers & _MASK)
    wide = values if pa.types.is_uint64(values.type) else values.cast(pa.int64())
    hi = pc.shift_right(wide, pa.scalar(_LIMB, wide.type)).cast(pa.int64())
    lo = pc.bit_wise_and(wide, pa.scalar(_MASK, wide.type)).cast(pa.int64())
    return hi, lo


def normalise_limbs(hi: pa.Array, lo: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the same sums with `0 <= lo < 2**32`. A null `hi` is 0 where there is a `lo`: partials may lack it."""
    if hi.type == lo.type and not hi.null_count and not lo.null_count:
        low = lo.to_numpy()
        return pa.array(hi.to_numpy() + (low >> _LIMB)), pa.array(low & _MASK)
    carry = pc.shift_right(lo, _LIMB)
    return pc.add(pc.coalesce(hi, pc.multiply(lo, 0)), carry), pc.bit_wise_and(
        lo, pa.scalar(_MASK, pa.int64())
    )


def join_limbs(hi: pa.Array, lo: pa.Array) -> pa.Array:
    """Return int64 sums; null where the sum does not fit int64."""
    fits = pc.and_(pc.greater_equal(hi, -(1 << 31)), pc.less(hi, 1 << 31))
    safe = pc.if_else(fits, hi, pa.scalar(None, pa.int64()))
    return pc.add(pc.shift_left(safe, _LIMB), lo)


@kernel("count")
class Count(Kernel):
    """The count of rows, or of non-null values. Part: n."""

    _kind = pa.int64()

    def __init__(self, of: Typed) -> None:
        self._column = bool(of.aggregation.args)

    def lift(self, rows: Arguments) -> Parts:
        if self._column:
            return {"n": pc.is_valid(rows.values[0]).cast(pa.int64())}
        return {"n": pa.array(np.ones(len(rows), dtype=np.int64))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        return {"n": groups.aggregate([(parts["n"], "sum")])[0]}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        return filled(present(parts, "n", size, pa.int64()), 0)

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        return {"n": f"count({quoted(column_names[0])})" if self._column else "count(1)"}


@kernel("sum")
class Sum(Kernel):
    """The sum. Parts: hi, lo of integers; f of floats; d of decimals. After int widened to float there are both."""

    def __init__(self, of: Typed) -> None:
        kind = of.kind
        if not is_number(kind) or (
            pa.types.is_decimal(kind) and not (0 <= kind.scale <= _DIGITS and kind.precision <= _MOST_DIGITS)
        ):
            raise TypeClash(
                f"{of.aggregation!r}: column of type {of.types[0]} cannot be summed: cast it to a number first"
            )
        self._decimal_overflow = of.options.get("integer_overflow") == "decimal"
        if pa.types.is_null(kind):
            kind = pa.int64()
        if pa.types.is_boolean(kind):
            kind = pa.int8()
        self._kind = kind
        self.regroups = not pa.types.is_floating(kind)

    def lift(self, rows: Arguments) -> Parts:
        values = as_type(plain(rows.values[0]), self._kind)
        if pa.types.is_decimal(self._kind):
            return {"d": values.cast(_wide(self._kind))}
        if pa.types.is_floating(self._kind):
            return {"f": values.cast(pa.float64())}
        hi, lo = split_limbs(values)
        return {"hi": hi, "lo": lo}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        columns = {n: parts[n] for n in ("hi", "lo", "f", "d") if n in parts}
        if "d" in columns:
            columns["d"] = columns["d"].cast(_wide(columns["d"].type))
        sums = groups.aggregate([(column, "sum") for column in columns.values()])
        merged = dict(zip(columns, sums, strict=True))
        if "lo" in merged:
            hi = present(merged, "hi", groups.size, pa.int64())
            merged["hi"], merged["lo"] = normalise_limbs(hi, merged["lo"])
        return merged

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        if pa.types.is_decimal(self._kind):
            return self._decimals(parts, size)
        hi = filled(present(parts, "hi", size, pa.int64()), 0)
        lo = filled(present(parts, "lo", size, pa.int64()), 0)
        if pa.types.is_floating(self._kind):
            whole = pc.add(
                pc.multiply(as_type(hi, pa.float64()), float(1 << _LIMB)), as_type(lo, pa.float64())
            )
            total = pc.add(filled(present(parts, "f", size, pa.float64()), 0.0), whole)
            if "d" in parts:  # of decimals, from before the column widened
                total = pc.add(total, filled(parts["d"].cast(pa.float64()), 0.0))
            return total
        if self._decimal_overflow:
            exact = [
                (int(h) << _LIMB) + int(low) for h, low in zip(hi.to_pylist(), lo.to_pylist(), strict=True)
            ]
            return pa.array(exact, pa.decimal128(_DIGITS, 0))
        return join_limbs(hi, lo)

    def _decimals(self, parts: Accumulators, size: int) -> pa.Array:
        """Return decimal sums, and integer sums from before the column widened; null beyond the digits of their type."""
        wide, kind = _wide(self._kind), self.output_type()
        total = filled(present(parts, "d", size, wide).cast(wide), pa.scalar(0, pa.int64()).cast(wide))
        if "lo" in parts:
            scale = pa.scalar(Decimal(1 << _LIMB), pa.decimal128(10, 0))
            hi, lo = (filled(parts[n], 0).cast(pa.decimal128(19, 0)) for n in ("hi", "lo"))
            for whole in (pc.multiply(hi, scale), lo):
                total = pc.add(total, whole.cast(wide)).cast(wide)
        limit = pa.scalar(Decimal(10**kind.precision - 1).scaleb(-kind.scale, _CONTEXT), wide)
        fits = pc.less_equal(pc.abs(total), limit)
        return pc.if_else(fits, total, pa.scalar(None, wide)).cast(kind)

    def output_type(self) -> pa.DataType:
        if pa.types.is_decimal(self._kind):
            if self._kind.precision > _DIGITS:
                return _wide(self._kind)
            return pa.decimal128(_DIGITS, self._kind.scale)
        if pa.types.is_floating(self._kind):
            return pa.float64()
        return pa.decimal128(_DIGITS, 0) if self._decimal_overflow else pa.int64()

    def overflowed(self, values: pa.Array) -> pa.Array:
        """True where a sum did not fit int64, or 38 digits."""
        return pc.is_null(values)

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        name, kind = quoted(column_names[0]), self._kind
        if pa.types.is_floating(kind):
            return {"f": f"sum(cast({name} as double))"}
        if kind in (pa.int8(), pa.int16(), pa.int32()):
            return {"lo": f"sum(cast({name} as bigint))"}  # 2**32 rows of a group fit; merge makes hi
        if kind == pa.int64():
            return {"hi": f"sum(shiftright({name}, {_LIMB}))", "lo": f"sum({name} & {_MASK}L)"}
        if pa.types.is_decimal128(kind) and kind.precision <= _DIGITS - 10:  # Spark's sum has 10 digits more
            return {"d": f"cast(sum({name}) as decimal({_DIGITS}, {kind.scale}))"}
        return None


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return the type in which decimals of `kind` are summed."""
    return pa.decimal256(75, kind.scale)  # one digit is left for an addition


@kernel("avg")
class Avg(Kernel):
    """The average: the quotient of the exact sum and the count, as float64. Parts of the sum, and n."""

    _of_sums = Sum
    _kind = pa.float64()

    def __init__(self, of: Typed) -> None:
        self._sum = self._of_sums(replace(of, options={"integer_overflow": "decimal"}))
        self._decimal = pa.types.is_decimal(of.kind)
        self.regroups = self._sum.regroups

    def lift(self, rows: Arguments) -> Parts:
        return {**self._sum.lift(rows), "n": pc.is_valid(rows.values[0]).cast(pa.int64())}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        return {**self._sum.merge(parts, groups, failures), "n": groups.aggregate([(parts["n"], "sum")])[0]}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        n = filled(present(parts, "n", size, pa.int64()), 0)
        count = pc.if_else(pc.equal(n, 0), pa.scalar(None, pa.float64()), n.cast(pa.float64()))
        if self._decimal or "d" in parts:
            return pc.divide(self._sum.finish(parts, size).cast(pa.float64()), count)
        if "f" not in parts and "hi" in parts:
            return self._exact(parts, count)
        hi = as_type(filled(present(parts, "hi", size, pa.int64()), 0), pa.float64())
        lo = as_type(filled(present(parts, "lo", size, pa.int64()), 0), pa.float64())
        whole = pc.add(pc.multiply(hi, float(1 << _LIMB)), lo)
        total = pc.add(filled(present(parts, "f", size, pa.float64()), 0.0), whole)
        return pc.divide(total, count)

    def _exact(self, parts: Accumulators, count: pa.Array) -> pa.Array:
        hi, lo = filled(parts["hi"], 0), filled(parts["lo"], 0)
        total = join_limbs(hi, lo)
        if total.null_count == 0:
            return pc.divide(total.cast(pa.float64(), safe=False), count)
        sums = [(int(h) << _LIMB) + int(low) for h, low in zip(hi.to_pylist(), lo.to_pylist(), strict=True)]
        counts = count.to_pylist()
        return pa.array(
            [None if n is None else s / int(n) for s, n in zip(sums, counts, strict=True)], pa.float64()
        )

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        parts = self._sum.spark_partials(column_names)
        return None if parts is None else {**parts, "n": f"count({quoted(column_names[0])})"}


def extremes(values: pa.Array, fn: str, groups: Groups) -> pa.Array:
    """Return min or max of each group; NaN is larger than any number."""
    if pa.types.is_duration(values.type):  # which Arrow does not group
        return extremes(values.cast(pa.int64()), fn, groups).cast(values.type)
    if not pa.types.is_floating(values.type):
        return groups.aggregate([(values, fn)])[0]
    nan = pc.is_nan(values)
    number = pc.if_else(nan, pa.scalar(None, values.type), values)
    best, any_nan = groups.aggregate([(number, fn), (nan.cast(pa.int8()), "max")])
    any_nan = pc.equal(filled(any_nan, 0), 1)
    takes_nan = any_nan if fn == "max" else pc.and_(any_nan, pc.is_null(best))
    return pc.if_else(takes_nan, pa.scalar(float("nan"), values.type), best)


@kernel("min", "max")
class Extreme(Kernel):
    """The min or max of any ordered type. Part: v, in a type that Arrow can group."""

    def __init__(self, of: Typed) -> None:
        of.check_order()
        self.fn = of.aggregation.kind
        self._kind = of.kind

    def lift(self, rows: Arguments) -> Parts:
        values = plain(rows.values[0])
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())
        return {"v": values}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        return {"v": extremes(parts["v"], self.fn, groups)}

    def spark_partials(self, column_names: Sequence[str]) -> dict[str, str] | None:
        """Return None for text and bytes: their min and max make Spark sort instead of hash."""
        kind = self._kind
        fixed = (
            pa.types.is_signed_integer(kind)
            or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.date32())
            or pa.types.is_timestamp(kind)
            or pa.types.is_decimal128(kind)
        )
        return {"v": f"{self.fn}({quoted(column_names[0])})"} if fixed else None
