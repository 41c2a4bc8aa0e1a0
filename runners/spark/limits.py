"""Batch limits: without one a batch holds all that a source has, however much has come while nobody read."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from windrow.connectors.kafka.stream import KafkaStream
from windrow.core.logs import get_logger

logger = get_logger()

#: Options of Spark's sources that limit a batch.
OF_FILES = ("maxFilesPerTrigger", "maxBytesPerTrigger")
OF_KAFKA = ("maxOffsetsPerTrigger",)
_KAFKA = ("kafka", "windrow-kafka")


def warn_of_no_limit(stream: DataFrame | KafkaStream) -> None:
    """Warn once for each source whose batches have no limit, with the option that would set one."""
    if isinstance(stream, KafkaStream):
        if stream.max_offsets is None:
            _warn(repr(stream), "max_offsets=... of wr.sources.kafka")
        return
    leaves = stream._jdf.queryExecution().logical().collectLeaves()
    for i in range(leaves.size()):
        source, set_options, options = _source(leaves.apply(i))
        if options and not {o.lower() for o in options} & set_options:
            _warn(source, f".option({options[0]!r}, ...) on spark.readStream")


def _warn(source: str, remedy: str) -> None:
    logger.warning(
        "nothing limits a batch: after an outage all that has come is one commit",
        source=source,
        remedy=remedy,
    )


def _source(leaf: Any) -> tuple[str, set[str], tuple[str, ...]]:
    """Return (a source, its options in lower case, the options that would limit it); empty where it has none."""
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelation" and leaf.sourceName().startswith("FileSource["):
        names = leaf.dataSource().options().keySet().mkString("\n")
        return leaf.sourceName(), set(names.lower().split("\n")), OF_FILES
    if kind == "StreamingRelationV2" and leaf.sourceName() in _KAFKA:
        return leaf.sourceName(), {name.lower() for name in leaf.extraOptions().keySet()}, OF_KAFKA
    return kind, set(), ()
