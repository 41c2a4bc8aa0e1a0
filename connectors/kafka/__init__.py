"""Apache Kafka: the cluster, sources, sinks and transports. Only this folder knows confluent_kafka."""
