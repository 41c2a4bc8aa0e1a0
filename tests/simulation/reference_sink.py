"""A transactional sink on the simulated broker that does exactly what docs/commit-protocol.md asks of one, and no more."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from windrow.connectors.sinks import PaneFiles, Sink
from windrow.core.messages import Pane, Token
from windrow.testing.simulated_kafka import SimulatedKafka
from windrow.testing.simulation import Simulation

PANES, TOKENS, PARTITIONS = "panes", "tokens", 2


class ReferenceSink:
    """One driver's: a producer with a stable transactional.id; after any error a new one, which begins with the first step."""

    def __init__(self, kafka: SimulatedKafka, check_epoch: Callable[[], None]) -> None:
        self.kafka, self.check_epoch = kafka, check_epoch
        self.producer: Any = None

    def publish(self, token: Token, panes: PaneFiles) -> None:
        try:
            if self.producer is None:
                self.producer = self.kafka.producer(transactional_id="windrow-job")
                self.producer.init_transactions(30)
            self.check_epoch()
            if self.last_token() < token.commit:
                self.transact(token, panes)
        except BaseException:
            self.producer = None  # what became of a transaction is not known
            raise

    def transact(self, token: Token, panes: PaneFiles) -> None:
        self.producer.begin_transaction()
        for pane in panes.panes():
            partition = len(pane.key["k"] + str(pane.window)) % PARTITIONS  # one of a (key, window)
            self.producer.produce(PANES, pickle.dumps(pane), partition=partition)
        self.producer.produce(TOKENS, str(token.commit).encode(), partition=0)
        self.producer.commit_transaction(30)

    def last_token(self) -> int:
        return max((int(value) for value in read_all(self.kafka, TOKENS, 0)), default=0)

    def last_commit(self, job: str, operator: str) -> int | None:
        return None


def read_all(kafka: SimulatedKafka, topic: str, partition: int) -> list[bytes]:
    """Values of all records that are committed."""
    consumer = kafka.consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        for message in consumer.consume(100, 1.0):
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found


class KafkaOutlet:
    """The topics of panes and tokens."""

    sink_type: Callable[[SimulatedKafka, Callable[[], None]], Sink] = ReferenceSink

    def __init__(self, simulation: Simulation) -> None:
        self.kafka = simulation.kafka
        self.kafka.create_topic(PANES, PARTITIONS)
        self.kafka.create_topic(TOKENS)

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return self.sink_type(self.kafka, check_epoch)

    def read(self) -> list[Pane]:
        panes: list[Pane] = []
        for partition in range(PARTITIONS):
            panes += [pickle.loads(value) for value in read_all(self.kafka, PANES, partition)]
        return panes
