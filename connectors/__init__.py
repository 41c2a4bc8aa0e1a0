"""Kafka and file sources, replay, log and changelog transports, and sinks."""
