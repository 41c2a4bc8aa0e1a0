"""A broker that asks for a password, over TLS: `wr.Kafka`'s properties reach every client that windrow makes."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import windrow as wr
from windrow.core import errors as e
from windrow.testing import KafkaBroker

pytestmark = pytest.mark.spark  # all in one process: one of them needs Spark, and all this one broker
PASSWORD = "hay-in-rows"
VALUE = wr.decoders.json({"k": pa.string(), "t": pa.int64(), "x": pa.int64()})
COUNTS = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count(), "total": wr.sum("x")},
    retention="1 hour",
)


def identity() -> tuple[str, str]:
    """(private key, certificate of 127.0.0.1 signed by itself), as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "windrow tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def kafka(kafka_image: str) -> Iterator[wr.Kafka]:
    key, certificate = identity()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "listener.security.protocol.map": "OUTSIDE:SASL_SSL,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.outside.plain.sasl.jaas.config": f'{module} required user_windrow="{PASSWORD}";',
        "listener.name.outside.ssl.keystore.type": "PEM",
        # A line each: that is how they stand in the broker's file of properties.
        "listener.name.outside.ssl.keystore.key": key.replace("\n", " "),
        "listener.name.outside.ssl.keystore.certificate.chain": certificate.replace("\n", " "),
    }
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "windrow",
        "sasl.password": PASSWORD,
        "ssl.ca.pem": certificate,
    }
    with KafkaBroker(kafka_image, config=config, client=client) as broker:
        yield broker.kafka


@pytest.fixture(scope="module")
def cluster(kafka: wr.Kafka) -> wr.Kafka:
    kafka.create_topic("given", 2)
    producer = kafka.producer()
    for i in range(100):
        row = {"k": "ab"[i % 2], "t": i * 1_000_000, "x": i}
        producer.produce("given", json.dumps(row), partition=i % 2)
    producer.flush()
    return kafka


def test_a_job_with_all_of_it_in_kafka_runs_and_is_asked(cluster: wr.Kafka, tmp_path: Path) -> None:
    log, flights = wr.kafka_log(cluster, "job"), wr.sources.kafka(cluster, "given", value=VALUE)
    COUNTS.run(tmp_path / "job", flights, sink=wr.sinks.kafka("panes", cluster), log=log, available_now=True)
    with wr.read_state(log=log) as state:
        assert sum(w.messages for w in state.get_windows()) == 100
    consumer = cluster.consumer(group_id="reader", auto_offset_reset="earliest")
    consumer.subscribe(["panes"])
    records: list[Any] = []
    while len(records) < 18:  # nine windows of two keys are over
        records += [json.loads(m.value()) for m in consumer.consume(18, 1.0) if m.error() is None]
    consumer.close()
    assert {(p["k"], p["n"]) for p in records} == {("a", 5), ("b", 5)}


@pytest.mark.slow
def test_sparks_tasks_read_it_by_the_sources_options(cluster: wr.Kafka, spark: Any) -> None:
    reader = spark.read.format("windrow-kafka").option("kafka.bootstrap.servers", cluster.servers)
    for name, value in cluster.config:
        reader = reader.option(f"kafka.{name}", value)
    assert reader.option("subscribe", "given").load().count() == 100


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sasl.password": "guessed"}, "SASL authentication error: Authentication failed"),
        ({"ssl.ca.pem": identity()[1]}, "certificate verify failed"),
    ],
    ids=["a wrong password", "a stranger's certificate"],
)
def test_who_is_not_let_in_is_informed_why(
    cluster: wr.Kafka, tmp_path: Path, changed: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.connectors.kafka.source_metadata.TIMEOUT_S", 6)
    other = wr.Kafka(cluster.servers, {**dict(cluster.config), **changed, "log_level": 0})
    with pytest.raises(e.KafkaFailed, match=f"last error: .*{why}"):
        COUNTS.run(tmp_path / "job", wr.sources.kafka(other, "given", value=VALUE), available_now=True)
