"""Names of confluent_kafka for modules that may not import it, looked up when they are used.

from windrow.connectors.kafka import client
raise client.KafkaException(client.KafkaError(client.KafkaError._TIMED_OUT))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as KafkaError
    from confluent_kafka import KafkaException as KafkaException
    from confluent_kafka import TopicPartition as TopicPartition

_NAMES = ("KafkaError", "KafkaException", "TopicPartition")
#: Special values of `TopicPartition.offset`.
OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID = -2, -1, -1001


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("confluent_kafka"), name)
