"""What makes `spark.read.format("windrow")` work without registration: Spark looks for modules called `pyspark_*`."""

from windrow.runners.spark.source import WindrowSource as DefaultSource

__all__ = ["DefaultSource"]
