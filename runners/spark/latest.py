"""`wr.latest` on a Spark DataFrame of panes."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from windrow.core.errors import ConfigurationError
from windrow.core.sql import quoted


def latest_frame(panes: DataFrame, by: tuple[str, ...] | None) -> DataFrame:
    """Return the current pane of each (key, window)."""
    if by is None:
        raise ConfigurationError(
            "latest: a DataFrame does not say which columns are keys: use latest(df, by=[...])"
        )
    newest_first = [
        F.col("commit").desc(),
        F.col("pane.index").desc(),
        (F.col("pane.kind") == "INSERT").asc(),  # a pane comes before its retraction
    ]
    ranked = panes.withColumn(
        "__rank",
        F.row_number().over(Window.partitionBy("window", *[quoted(b) for b in by]).orderBy(*newest_first)),
    )
    return ranked.where((F.col("__rank") == 1) & (F.col("pane.kind") == "INSERT")).drop("__rank")
