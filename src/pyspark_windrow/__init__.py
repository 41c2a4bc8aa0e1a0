"""Registration of `spark.read.format("windrow")`: Spark looks for modules called `pyspark_*`."""

from windrow.runners.spark.source import WindrowSource as DefaultSource

__all__ = ["DefaultSource"]
