"""Registration of the format "windrow-kafka": Spark looks for modules called `pyspark_*`."""

from windrow.runners.spark.kafka import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
