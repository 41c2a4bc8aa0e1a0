"""The options of format "windrow-kafka": Spark's names, checked before anything is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from windrow.connectors.kafka.cluster import Kafka
from windrow.core.errors import ConfigurationError
from windrow.core.suggestions import meant

EARLIEST, LATEST = -2, -1

#: Options by their names in the documentation; Spark passes them in lower case.
NAMES = (
    "subscribe",
    "assign",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "includeTopicId",
    "kafkaConsumer.pollTimeoutMs",
    "resumeFrom",
)
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "resumeFrom")
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")

_NO_SERIALIZERS = "leave it out: key and value come as bytes; decode them in Spark"
_OURS = "leave it out: offsets are in Spark's checkpoint; say startingOffsets or resumeFrom"
#: Properties of Kafka's Java client that librdkafka lacks, or that would break what the source promises.
REFUSED = {
    "key.deserializer": _NO_SERIALIZERS,
    "value.deserializer": _NO_SERIALIZERS,
    "key.serializer": _NO_SERIALIZERS,
    "value.serializer": _NO_SERIALIZERS,
    "auto.offset.reset": _OURS,
    "enable.auto.commit": _OURS,
    "enable.auto.offset.store": _OURS,
    "enable.partition.eof": _OURS,
    "interceptor.classes": "leave it out: there are no Java classes here",
    "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
    "sasl.client.callback.handler.class": "use kafka.sasl.oauthbearer.* of librdkafka",
    "sasl.login.callback.handler.class": "use kafka.sasl.oauthbearer.* of librdkafka",
    "ssl.truststore.location": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.password": "use kafka.ssl.ca.location with a PEM file, which needs none",
    "ssl.truststore.type": "use kafka.ssl.ca.location with a PEM file",
    "ssl.keystore.type": "leave it out: kafka.ssl.keystore.location is PKCS#12",
    "max.poll.records": "leave it out: batches are as large as memory allows",
}


@dataclass(frozen=True)
class Bound:
    """Requested start or end of reading. `value`: topic -> partition -> offset or milliseconds, or one
    number of milliseconds for all."""

    kind: Literal["earliest", "latest", "offsets", "timestamps", "timestamp"]
    value: Mapping[str, Mapping[int, int]] | int | None = None


@dataclass(frozen=True)
class SourceOptions:
    """Options of a Kafka source. Picklable: it travels to the tasks."""

    kafka: Kafka
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    strategy: Literal["error", "latest"] = "error"
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 900.0
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = False
    topic_id: bool = True
    committed: bool = True
    poll_timeout_s: float = 120.0
    resume_from: str | None = None
    named: tuple[str, ...] = ()

    def check_for(self, *, streaming: bool) -> None:
        """Refuse options of the other kind of query."""
        other, word = (_BATCH_ONLY, "stream") if streaming else (_STREAM_ONLY, "bounded read")
        for name in other:
            if name in self.named:
                raise ConfigurationError(f"option {name} means nothing for a {word}: leave it out")
        for side, bound in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            for topic, offsets in _named(bound).items():
                never = EARLIEST if side == "endingOffsets" else None if streaming else LATEST
                bad = [p for p, o in offsets.items() if o == never or o < EARLIEST]
                if bad:
                    raise ConfigurationError(
                        f"{side} of {topic}-{bad[0]} is {offsets[bad[0]]}: use an offset, or "
                        + ("-1 for the latest" if never == EARLIEST else "-2 for the earliest")
                    )
        if not streaming and self.starting is not None and self.starting.kind == "latest":
            raise ConfigurationError(
                "startingOffsets 'latest' leaves a bounded read nothing: use 'earliest' or JSON"
            )


def _named(bound: Bound | None) -> Mapping[str, Mapping[int, int]]:
    return (
        bound.value
        if bound is not None and bound.kind == "offsets" and isinstance(bound.value, Mapping)
        else {}
    )


def parse(fixed: Mapping[str, str]) -> SourceOptions:
    """Parse the options. Raises `ConfigurationError` with the option, its value and what to write."""
    options = {name.lower(): value for name, value in fixed.items()}
    properties = {n: v for n, v in options.items() if n.startswith("kafka.")}
    options = {n: v for n, v in options.items() if n not in properties}
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known:
            near = meant(name, NAMES)
            said = f"did you mean {near!r}?" if near else f"there are {', '.join(NAMES)}"
            raise ConfigurationError(f"option {name!r} is none of windrow-kafka: {said}")
    kafka = _cluster(properties)
    isolation = dict(kafka.config).get("isolation.level", "read_committed")
    topics, pattern, assigned = _subscription(options)
    starting = _bound(options, "starting", ("earliest", "latest"))
    ending = _bound(options, "ending", ("latest",))
    for side, bound in (("starting", starting), ("ending", ending)):
        unknown = [t for t in _named(bound) if t not in (topics or assigned or _named(bound))]
        if unknown:
            raise ConfigurationError(
                f"{side}Offsets names topic {unknown[0]!r}, which is not in {sorted(topics or assigned or ())}: take it out"
            )
    return SourceOptions(
        kafka,
        topics,
        pattern,
        assigned,
        starting,
        ending,
        _one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        _number(options, "maxOffsetsPerTrigger"),
        _number(options, "minOffsetsPerTrigger"),
        _delay_s(options.get("maxtriggerdelay", "15m")),
        _number(options, "minPartitions"),
        _flag(options, "failOnDataLoss", True),
        _flag(options, "includeHeaders", False),
        _flag(options, "includeTopicId", True),
        isolation != "read_uncommitted",
        (_number(options, "kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
        options.get("resumefrom"),
        tuple(known[n] for n in options),
    )


def _cluster(properties: Mapping[str, str]) -> Kafka:
    config = {name.removeprefix("kafka."): value for name, value in properties.items()}
    for name, remedy in REFUSED.items():
        if name in config:
            raise ConfigurationError(f"option kafka.{name} is not for windrow-kafka: {remedy}")
    servers = config.pop("bootstrap.servers", None)
    if not servers:
        raise ConfigurationError(
            'no cluster is given: use .option("kafka.bootstrap.servers", "localhost:9092")'
        )
    kafka = Kafka(servers, config)
    kafka.check()
    return kafka


def _subscription(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    """Return (topics, pattern, assigned partitions), of which exactly one is set."""
    kinds = [n for n in ("subscribe", "subscribePattern", "assign") if n.lower() in options]
    if len(kinds) != 1:
        raise ConfigurationError(
            f"{' and '.join(kinds) or 'none'} of subscribe, subscribePattern and assign is given: give one of them"
        )
    text = options[kinds[0].lower()]
    if kinds == ["subscribe"]:
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise ConfigurationError(f"subscribe {text!r} names no topic: give one, several with commas")
        return topics, None, None
    if kinds == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigurationError(
                f"subscribePattern {text!r} is no regular expression: {error}"
            ) from error
        return (), text, None
    example = '{"flights": [0, 1]}'
    value = _json(
        "assign",
        text,
        example,
        lambda v: {str(t): tuple(sorted({_int(p) for p in parts})) for t, parts in v.items()},
    )
    if not value or not all(value.values()):
        raise ConfigurationError(f"assign {text!r} names no partition: write it as {example}")
    return (), None, value


def _bound(options: Mapping[str, str], side: str, words: tuple[str, ...]) -> Bound | None:
    """Parse one bound from its most specific option, as in Spark: a timestamp, timestamps, offsets."""
    stamp, stamps, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if stamp.lower() in options:
        return Bound("timestamp", _number(options, stamp, least=0))
    for name, kind in ((stamps, "timestamps"), (offsets, "offsets")):
        if name.lower() not in options:
            continue
        text = options[name.lower()].strip()
        if kind == "offsets" and text.lower() in words:
            return Bound(text.lower())  # type: ignore[arg-type]
        example = (
            '{"flights": {"0": 23, "1": -2}}' if kind == "offsets" else '{"flights": {"0": 1700000000000}}'
        )
        also = f"{' or '.join(repr(w) for w in words)}, or as " if kind == "offsets" else ""
        return Bound(
            kind,  # type: ignore[arg-type]
            _json(
                name,
                text,
                also + example,
                lambda v: {str(t): {int(p): _int(o) for p, o in parts.items()} for t, parts in v.items()},
            ),
        )
    return None


def _json(name: str, text: str, example: str, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{name} {text!r} cannot be read: write it as {example}") from error


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _number(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < least:
        raise ConfigurationError(f"{name} {text!r}: give a whole number, {least} or more")
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    return bool(_one_of(options, name, ("true", "false"), str(default).lower()) == "true")


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> Any:
    text = options.get(name.lower(), default).strip().lower()
    if text not in allowed:
        raise ConfigurationError(f"{name} {options[name.lower()]!r} is none of {list(allowed)}")
    return text


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _delay_s(text: str) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)", text.strip())
    if found is None:
        raise ConfigurationError(f"maxTriggerDelay {text!r}: write it as '15m', '30s' or '500ms'")
    return int(found[1]) * _UNITS_S[found[2]]
