"""Settings of Kafka are told by an allow-list: no other value is in any repr, error or line of a log."""

import traceback
from typing import Any

import pytest

import windrow as wr
from windrow.connectors.kafka import connectivity_probe
from windrow.connectors.kafka.cluster import HIDDEN, Discreet, redacted, shown
from windrow.connectors.kafka.options import parse

SECRET = "hunter2-hunter2"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{SECRET}";'
#: Each has the secret where librdkafka quotes it, or where somebody could think of quoting it.
SETTINGS: dict[str, dict[str, Any]] = {
    "Java's": {"kafka.sasl.jaas.config": JAAS},
    "a token": {"sasl.oauthbearer.config": f"principal=me {SECRET}"},
    "an endpoint": {"sasl.oauthbearer.token.endpoint.url": f"https://me:{SECRET}@host"},
    "a plugin": {"plugin.library.paths": SECRET},
    "a key": {"ssl.key.pem": SECRET, "security.protocol": "SSL"},
    "a key's place": {"ssl.keystore.location": f"/{SECRET}", "security.protocol": "SSL"},
    "a password": {"ssl.key.password": SECRET, "sasl.password": SECRET, "linger.ms": "soon"},
    "a command": {"sasl.kerberos.kinit.cmd": SECRET, "sasl.mechanism": "x", "security.protocol": "SASL_SSL"},
    "no property": {"my.own": SECRET},
    "other servers": {"bootstrap.servers": "b:9092", "sasl.password": SECRET},
    "short": {"sasl.password": "hu", "isolation.level": "none"},
}


def output_of(action: Any) -> str:
    """All that a person would be shown of what comes of it."""
    try:
        return repr(action())
    except Exception as error:
        return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("name", SETTINGS)
def test_no_value_that_is_not_listed_is_reported(name: str) -> None:
    def cluster() -> wr.Kafka:
        return wr.Kafka("a:9092", {"log_level": 0, **SETTINGS[name]})

    as_options = {f"kafka.{k.removeprefix('kafka.')}": str(v) for k, v in SETTINGS[name].items()}
    for action in (
        cluster,
        lambda: wr.kafka_log(cluster(), "job"),
        lambda: wr.sinks.kafka("topic", cluster()),
        lambda: wr.sources.kafka(cluster(), "topic", value=wr.decoders.raw()),
        lambda: wr.KafkaSource(cluster()),
        lambda: cluster().check(),
        lambda: cluster().producer().flush(0),
        lambda: cluster().admin().poll(0),
        lambda: connectivity_probe.brokers(cluster(), 0.01),
        lambda: parse({"kafka.bootstrap.servers": "a:9092", "subscribe": "t", "kafka.log_level": "0", **as_options}),
    ):  # fmt: skip
        said = output_of(action)
        assert "hunter2" not in said and "hu'" not in said and '"hu"' not in said


def test_what_is_listed_is_shown_and_a_mistake_in_it_is_named() -> None:
    cluster = wr.Kafka(
        "a:9092", {"kafka.sasl.password": "x", "kafka.security.protocol": "SASL_SSL", "no": "y"}
    )
    assert (
        repr(cluster)
        == "wr.Kafka('a:9092', {'no': '***', 'sasl.password': '***', 'security.protocol': 'SASL_SSL'})"
    )
    assert cluster.settings(group_id="g")["sasl.password"] == "x"
    with pytest.raises(wr.ConfigurationError, match=r'Invalid value "none" for .*"isolation.level"'):
        wr.Kafka("a:9092", {"isolation.level": "none"}).check()
    with pytest.raises(
        wr.ConfigurationError, match=r"in place of sasl.jaas.config give sasl.username and sasl.password"
    ):
        wr.Kafka("a:9092", {"sasl.jaas.config": JAAS}).check()


def test_lines_of_librdkafka_quote_nothing_hidden() -> None:
    lines: list[tuple[Any, ...]] = []

    class Lines:
        def log(self, *arguments: Any) -> None:
            lines.append(arguments)

    settings = {
        "sasl.oauthbearer.config": f"principal=me secret={SECRET}",
        "sasl.password": "ab",
        "client.id": "me",
    }
    Discreet(Lines(), settings).log(
        40, "%s [%s] %s", "FAIL", "me#1", f"beginning at: secret={SECRET}, cable ab", 3
    )
    assert lines == [
        (40, "%s [%s] %s", "FAIL", "me#1", f"beginning at: {HIDDEN}={HIDDEN}, cable {HIDDEN}", 3)
    ]
    assert redacted("x", {"a": ""}) == "x" and shown({"client.id": 5}) == {"client.id": "5"}


def test_a_registry_is_reported_by_its_place_alone() -> None:
    decoder = wr.decoders.avro(
        {"url": f"https://me:{SECRET}@host:81/x", "basic.auth.user.info": f"me:{SECRET}"}
    )
    assert repr(decoder) == "wr.decoders.avro('https://host:81/x')"
