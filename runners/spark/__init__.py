"""The only door to pyspark: drives shards from foreachBatch."""

from windrow.core.extras import need

need("pyspark", "spark", "a job on Spark")
