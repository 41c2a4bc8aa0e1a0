"""The only door to pyspark: drives shards from foreachBatch."""
