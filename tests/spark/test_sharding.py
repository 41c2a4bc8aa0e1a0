"""Whoever has a key finds the shard that Spark puts it on."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from windrow.core.sharding import Sharding

#: A value of each type that a key may have.
VALUES = {
    "boolean": "true",
    "tinyint": "-7",
    "int": "-3",
    "bigint": "1234567890123",
    "float": "-0.0",
    "double": "'NaN'",
    "decimal(9,2)": "-12.50",
    "decimal(30,3)": "-9876543210987654321.125",
    "string": "'Zürich, the longest name of all airports'",
    "binary": "'abc'",
    "date": "'1969-12-31'",
    "timestamp": "'2013-07-01 05:00:00.123456'",
    "timestamp_ntz": "'2013-07-01'",
}


def test_keys_of_every_type_are_found_on_their_shard(spark: Any) -> None:
    columns = [f"if(id = 0, cast({v} as {kind}), null) as `{kind}`" for kind, v in VALUES.items()]
    rows = spark.range(2).selectExpr(*columns)
    keys = [[name] for name in rows.columns] + [rows.columns]
    sharding = Sharding(1000)
    fields = [
        [(f"`{name}`", isinstance(rows.schema[name].dataType, T.NumericType)) for name in key] for key in keys
    ]
    table = rows.toArrow()
    expected = rows.selectExpr(*[f"{sharding.sql(f)} as s{i}" for i, f in enumerate(fields)]).toArrow()
    for i, key in enumerate(keys):
        shards = sharding.of([table.column(name).combine_chunks() for name in key]).tolist()
        assert shards == expected.column(i).to_pylist(), key
