"""Kernel of weighted_avg. Parts: xw (sum of value times weight) and w (sum of weights), both float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation
from windrow.core.errors import TypeClash
from windrow.core.types import as_type, plain_type
from windrow.operators.aggregations.base import (
    Arguments,
    Failure,
    Kernel,
    Parts,
    is_number,
    kernel,
    plain,
    present,
)
from windrow.operators.steps.groups import Groups


class WeightedAvg(Kernel):
    """The weighted average. Rows where the value or the weight is null are skipped; null where the weights sum to 0."""

    regroups = False

    def __init__(
        self, aggregation: Aggregation, types: tuple[pa.DataType, ...], options: Mapping[str, Any]
    ) -> None:
        for role, kind in zip(("column", "weight"), types, strict=True):
            if not is_number(plain_type(kind)):
                raise TypeClash(
                    f"{aggregation!r}: the {role} of type {kind} is no number: cast it to a number first"
                )

    def lift(self, rows: Arguments) -> Parts:
        value, weight = (_doubles(v) for v in rows.values)
        product = pc.multiply(value, weight)
        return {"xw": product, "w": pc.if_else(pc.is_valid(product), weight, pa.scalar(None, pa.float64()))}

    def merge(self, parts: Mapping[str, pa.Array], groups: Groups, failures: list[Failure]) -> Parts:
        xw, w = groups.aggregate([(parts["xw"], "sum"), (parts["w"], "sum")])
        return {"xw": xw, "w": w}

    def finish(
        self, parts: Mapping[str, pa.Array], size: int, failures: list[Failure] | None = None
    ) -> pa.Array:
        xw, w = (present(parts, n, size, pa.float64()) for n in ("xw", "w"))
        return pc.divide(xw, pc.if_else(pc.equal(w, 0.0), pa.scalar(None, pa.float64()), w))

    def output_type(self) -> pa.DataType:
        return pa.float64()


def _doubles(values: pa.Array) -> pa.Array:
    return as_type(plain(values), pa.float64())


kernel("weighted_avg")(WeightedAvg)
