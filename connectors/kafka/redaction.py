"""Redaction of settings: only the values of the keys listed here are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Settings that are no secret on any cluster. An unknown key may be one, so this is no list of secrets.
SHOWN = frozenset(
    """
    allow.auto.create.topics api.version.request api.version.request.timeout.ms auto.commit.interval.ms auto.offset.reset
    batch.num.messages batch.size broker.address.family broker.address.ttl check.crcs client.dns.lookup client.id client.rack
    compression.codec compression.level compression.type connections.max.idle.ms debug delivery.timeout.ms
    enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.partition.eof
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol heartbeat.interval.ms isolation.level
    linger.ms log.connection.close log_level max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.max.age.ms partition.assignment.strategy partitioner queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages receive.message.max.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.required.acks acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.mechanism sasl.mechanisms security.protocol session.timeout.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.location ssl.certificate.location ssl.endpoint.identification.algorithm statistics.interval.ms
    sticky.partitioning.linger.ms topic.metadata.refresh.interval.ms transaction.timeout.ms transactional.id
    """.split()  # noqa: SIM905
)
HIDDEN = "***"
#: Shorter values are hidden only as whole words, not inside other words.
_LONG = 4


def shown(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as people may read them."""
    return {k: str(v) if k in SHOWN else HIDDEN for k, v in settings.items()}


def redacted(text: str, settings: Mapping[str, Any]) -> str:
    """Hide in `text` the values of settings that are not shown, and the words of these values."""
    values = {str(v) for k, v in settings.items() if k not in SHOWN}
    words = {word for value in values for word in re.split(r"[\s=;,:@/\"']+", value) if len(word) >= _LONG}
    for hidden in sorted((values | words) - {""}, key=len, reverse=True):
        exact = re.escape(hidden)
        text = re.sub(exact if len(hidden) >= _LONG else rf"(?<!\w){exact}(?!\w)", HIDDEN, text)
    return text


class Discreet:
    """Redacting logger for librdkafka, whose lines may quote settings."""

    def __init__(self, logger: Any, settings: Mapping[str, Any]) -> None:
        self.logger, self._settings = logger, settings

    def log(self, level: int, message: str, *arguments: Any) -> None:
        said = (redacted(a, self._settings) if isinstance(a, str) else a for a in arguments)
        self.logger.log(level, redacted(message, self._settings), *said)
