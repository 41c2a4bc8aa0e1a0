"""Kernel of user aggregates: a class with initial, add, merge, finish, or a function of a window's rows."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation, UserFunction
from windrow.core.border import fit
from windrow.core.errors import BadAggregate, TypeClash
from windrow.core.types import as_type, plain_type
from windrow.operators.aggregations.arrays import bounds, sort_rows, validity
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
from windrow.operators.steps.groups import Groups, stable_order


def pack_state(state: Any) -> bytes:
    """Return a state as msgpack bytes; a tuple comes back as a list."""
    return bytes(msgpack.packb(state, use_bin_type=True))


def unpack_state(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


@kernel("user")
class User(Kernel):
    """The kernel of a user class. Parts: s, the packed state; r, the arguments of a row (a struct; states have none).

    `merge` calls the user's `add` once for each message and `merge` where two states meet, in row order. An exception
    of user code, or a state that msgpack cannot hold, is a Failure of its group and leaves the
    others alone. Null arguments are passed as None. The identity finishes as `finish(initial())`.
    """

    def __init__(self, of: Typed) -> None:
        if of.aggregation.function is None or of.aggregation.function.whole_table:
            raise BadAggregate(f"{of.aggregation!r} is no class with initial, add, merge and finish")
        self._body = of.aggregation.function.body
        returns = of.aggregation.function.returns
        self._kind = _reduced(of.aggregation, of.types[0]) if returns is None else returns

    def lift(self, rows: Arguments) -> Parts:
        if not rows.values:
            return {"r": pa.array([{}] * len(rows), pa.struct([]))}
        names = [str(i) for i in range(len(rows.values))]
        return {"r": pa.StructArray.from_arrays([plain(v) for v in rows.values], names=names)}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        states = present(parts, "s", groups.rows, pa.binary())
        added = present(parts, "r", groups.rows, pa.struct([]))
        known = validity(states)
        rows = np.flatnonzero(known | validity(added))
        rows = rows[stable_order(groups.codes[rows], groups.size)]
        ends = bounds(groups.codes[rows], groups.size).tolist()
        taken = pa.array(rows)
        packed: list[bytes | None] = states.take(taken).to_pylist()
        columns = [c.take(taken).to_pylist() for c in added.flatten()]
        arguments = list(zip(*columns, strict=True)) if columns else [()] * len(rows)
        merged: list[bytes | None] = [None] * groups.size
        for g in range(groups.size):
            start, end = ends[g], ends[g + 1]
            if end - start == 1 and packed[start] is not None:
                merged[g] = packed[start]
            elif end > start:
                try:
                    merged[g] = self._fold(packed[start:end], arguments[start:end])
                except Exception as error:  # the user's code may raise anything; the operator dead-letters it
                    failures.append(Failure(g, error))
        return {"s": pa.array(merged, pa.binary())}

    def _fold(self, packed: list[bytes | None], arguments: list[tuple[Any, ...]]) -> bytes:
        body = self._body
        first = packed[0]
        state = body.initial() if first is None else unpack_state(first)
        for i, (data, values) in enumerate(zip(packed, arguments, strict=True)):
            if data is None:
                state = body.add(state, *values)
            elif i > 0:
                state = body.merge(state, unpack_state(data))
        return pack_state(state)

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        body = self._body
        values: list[Any] = []
        for g, data in enumerate(present(parts, "s", size, pa.binary()).to_pylist()):
            try:
                value = body.finish(body.initial() if data is None else unpack_state(data))
            except Exception as error:  # as in merge
                if failures is None:
                    raise
                failures.append(Failure(g, error))
                value = None
            values.append(value)
        return to_array(values, self._kind, failures)


def _reduced(aggregation: Aggregation, kind: pa.DataType) -> pa.DataType:
    """Return the result type of a reduction of values of `kind`, which its states hold."""
    kind = plain_type(kind)
    if pa.types.is_decimal(kind) or not (
        is_number(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind) or _is_bytes(kind)
    ):
        raise TypeClash(
            f"{aggregation!r}: values of type {kind} cannot be reduced: cast them to numbers, text or bytes, or use a class of "
            "yours with wr.aggregate_function"
        )
    return kind


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def to_array(values: list[Any], kind: pa.DataType, failures: list[Failure] | None) -> pa.Array:
    """Return results as `kind`; one that is no such value is a Failure of its group, with null."""
    fitted = fit(values, kind)
    for g, why in fitted.misfits.items():
        if failures is None:
            raise ValueError(why)
        failures.append(Failure(g, ValueError(why)))
    return fitted.array


def evaluate_table_functions(
    function: UserFunction, table: pa.Table, groups: Groups, times: pa.Array, order: pa.Array | None = None
) -> tuple[pa.Array, list[Failure]]:
    """Return (one value for each group, failures): `function` of the messages of a group, in order of event time.

    times: int64 microseconds of the rows. Ties are by `order` (encoded positions), or in row order where that
    is None. A group without messages is null; so is one for which the function raised or gave no
    `function.returns`.
    """
    keys = [times] if order is None else [times, order]
    rows = sort_rows(groups.codes, groups.size, keys)
    ends = bounds(groups.codes, groups.size).tolist()
    ordered = table.take(pa.array(rows)).combine_chunks()
    failures: list[Failure] = []
    values: list[Any] = []
    for g in range(groups.size):
        value = None
        if ends[g + 1] > ends[g]:
            try:
                value = function.body(ordered.slice(ends[g], ends[g + 1] - ends[g]))
            except Exception as error:  # the user's code may raise anything; the operator dead-letters it
                failures.append(Failure(g, error))
        values.append(value)
    return to_array(values, function.returns, failures), failures


# -- weighted ---------------------------------------------------------------------------------------------------------


@kernel("weighted_avg")
class WeightedAvg(Kernel):
    """The weighted average. Parts, both float64: xw, the sum of value times weight, and w, the sum of weights.

    Rows where the value or the weight is null are skipped; null where the weights sum to 0.
    """

    _kind = pa.float64()
    regroups = False

    def __init__(self, of: Typed) -> None:
        for role, kind in zip(("column", "weight"), of.types, strict=True):
            if not is_number(plain_type(kind)):
                raise TypeClash(
                    f"{of.aggregation!r}: the {role} of type {kind} is no number: cast it to a number first"
                )

    def lift(self, rows: Arguments) -> Parts:
        value, weight = (_doubles(v) for v in rows.values)
        product = pc.multiply(value, weight)
        return {"xw": product, "w": pc.if_else(pc.is_valid(product), weight, pa.scalar(None, pa.float64()))}

    def merge(self, parts: Accumulators, groups: Groups, failures: list[Failure]) -> Parts:
        xw, w = groups.aggregate([(parts["xw"], "sum"), (parts["w"], "sum")])
        return {"xw": xw, "w": w}

    def finish(self, parts: Accumulators, size: int, failures: list[Failure] | None = None) -> pa.Array:
        xw, w = (present(parts, n, size, pa.float64()) for n in ("xw", "w"))
        return pc.divide(xw, pc.if_else(pc.equal(w, 0.0), pa.scalar(None, pa.float64()), w))


def _doubles(values: pa.Array) -> pa.Array:
    return as_type(plain(values), pa.float64())
