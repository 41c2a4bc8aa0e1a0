"""The SQL of `spark_partials` makes in the JVM the parts that `lift` and `merge` make in Arrow."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from windrow.core import aggregations as wr
from windrow.operators.aggregations import Arguments, Kernel, Parts, concat_parts, make_kernel
from windrow.operators.steps.groups import Groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [127, -128, None, 5]),
    "short": (pa.int16(), [32767, -32768, -1, None]),
    "int": (pa.int32(), [2**31 - 1, 2**31 - 1, -(2**31), None]),
    "long": (pa.int64(), [2**63 - 1, 2**62, -(2**63), -1]),
    "float": (pa.float32(), [1.5, math.nan, -0.25, None]),
    "double": (pa.float64(), [1e6 + 1, 1e6 + 2, 1e6 + 4, None]),
    "wild": (pa.float64(), [math.nan, math.inf, -math.inf, -0.0]),
    "huge": (pa.float64(), [1e300, -1e300, 1e300, 2e300]),
    "mixed": (pa.float64(), [1.0, 3e145, 7e145, None]),
    "money": (pa.decimal128(10, 2), [Decimal("99999999.99"), Decimal("-0.01"), None, Decimal("3.00")]),
    "yes": (pa.bool_(), [True, False, None, True]),
    "day": (pa.date32(), [dt.date(1960, 1, 1), None, dt.date(2013, 7, 1), dt.date(2013, 6, 30)]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(2013, 7, d, tzinfo=dt.UTC) for d in (3, 1, 4, 2)]),
    "odd `name`": (pa.int32(), [1, 2, 3, 4]),
}
TEXT = {"text": (pa.string(), ["b", "a", None, "c"])}
NUMBERS = [c for c in COLUMNS if c not in ("day", "at")]
CASES: list[tuple[wr.Aggregation, str | None]] = [
    (wr.count(), None),
    *((wr.count("x"), c) for c in COLUMNS),
    *((wr.min("x"), c) for c in COLUMNS),
    *((wr.max("x"), c) for c in COLUMNS),
    *((make("x"), c) for make in (wr.sum, wr.avg, wr.variance, wr.stddev) for c in NUMBERS if c != "yes"),
]
KEYS = [0, 0, 0, 1] * 5 + [2]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    columns = {"key": pa.array(KEYS)}
    for name, (kind, values) in {**COLUMNS, **TEXT}.items():
        columns[name] = pa.array(values * 5 + [None], kind)
    return pa.table(columns)


@pytest.fixture(scope="module")
def partials(spark: SparkSession, compiled: None, table: pa.Table) -> pa.Table:
    """The partials of all cases over two halves of the table, in one query: columns `<case>.<part>`."""
    from pyspark.sql import functions as F

    expressions = []
    for i, (aggregation, column) in enumerate(CASES):
        parts = kernel_of(aggregation, column).spark_partials([column] if column else [])
        assert parts is not None
        expressions += [F.expr(sql).alias(f"{i}.{part}") for part, sql in parts.items()]
    halves = []
    for half in (table.slice(0, 10), table.slice(10)):
        frame = spark.createDataFrame(half).repartition(3)
        halves.append(frame.groupBy("key").agg(*expressions).toArrow())
    return pa.concat_tables(halves).combine_chunks()


def kernel_of(aggregation: wr.Aggregation, column: str | None) -> Kernel:
    return make_kernel(aggregation, [COLUMNS[column][0]] if column else [])


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{a!r} of {c}" for a, c in CASES])
def test_partials_of_the_jvm_merge_to_the_values_of_lifted_rows(
    i: int, table: pa.Table, partials: pa.Table
) -> None:
    aggregation, column = CASES[i]
    kernel = kernel_of(aggregation, column)
    values = (table[column].combine_chunks(),) if column else ()
    lifted = kernel.lift(Arguments(pa.array([0] * len(table)), None, values))
    groups = Groups([table["key"]], len(table))
    expected = kernel.finish(kernel.merge(lifted, groups, []), groups.size)

    names = [n for n in partials.column_names if n.startswith(f"{i}.")]
    from_jvm: Parts = {n.split(".")[1]: partials[n].combine_chunks() for n in names}
    keys = partials["key"].to_pylist()
    merged = kernel.merge(from_jvm, Groups([pa.array(keys)], len(keys)), [])
    by_key = dict(zip(dict.fromkeys(keys), kernel.finish(merged, 3).to_pylist(), strict=True))
    for key, value in enumerate(expected.to_pylist()):
        is_float = isinstance(value, float)
        assert by_key[key] == (pytest.approx(value, rel=1e-9, nan_ok=True) if is_float else value)

    # and they meet lifted rows in one column
    both = concat_parts([(from_jvm, len(keys)), (lifted, len(table))])
    twice = kernel.merge(both, Groups([pa.array(keys + KEYS)], len(keys) + len(KEYS)), [])
    assert len(kernel.finish(twice, 3)) == 3


@pytest.mark.parametrize(
    ("aggregation", "kind"),
    [
        (wr.min("x"), pa.string()),
        (wr.max("x"), pa.binary()),
        (wr.sum("x"), pa.decimal128(38, 2)),  # Spark's own sum would overflow where ours does not
        (wr.sum("x"), pa.uint64()),
        (wr.variance("x"), pa.uint64()),
        (wr.first("x"), pa.int64()),
        (wr.median("x"), pa.int64()),
        (wr.collect_list("x"), pa.int64()),
        (wr.approx_count_distinct("x"), pa.int64()),
    ],
    ids=repr,
)
def test_what_spark_cannot_pre_aggregate_has_no_partials(
    aggregation: wr.Aggregation, kind: pa.DataType
) -> None:
    assert make_kernel(aggregation, [kind]).spark_partials(["x"]) is None
