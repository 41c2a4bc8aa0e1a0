"""Simulated Kafka: a cluster in this process, with the duck type of `wr.Kafka` and the rules of transactions.

Its rules, which tests/kafka/test_simulated_kafka.py compares with a broker:

- `init_transactions` raises the epoch of its transactional.id, aborts what is open under it and fences older producers: their
  next request fails with a fatal `_FENCED`.
- A transaction's end writes a control record into each of its partitions, which takes an offset.
- `read_committed` consumers read up to the last stable offset, and see no aborted record; watermark offsets likewise.
- A producer's records are queued until `poll`, `flush` or the commit sends them; reports come from the same calls. Records
  that `purge` or the abort finds there are not sent.

A request can get lost, its answer can, or it can arrive late, when `deliver_late` is called: `step`, which is called before
each request, decides, and may raise. There is no time: a wait for records returns none, and a wait for an answer
times out at once. Nothing expires but open transactions, when `expire_transactions` is called.
"""

from __future__ import annotations

from typing import Any

from windrow.testing.simulated_kafka.broker import (
    Broker,
    SimulatedAdmin,
    SimulatedConsumer,
    SimulatedProducer,
)
from windrow.testing.simulated_kafka.broker import Outcome as Outcome
from windrow.testing.simulated_kafka.broker import Step as Step
from windrow.testing.simulated_kafka.broker import no_faults as no_faults


class SimulatedKafka(Broker):
    """A cluster in this process: `wr.sinks.kafka` takes it in the place of `wr.Kafka`; sources and logs want brokers. All
    clients that it makes see each other's records at once.

    step: a function of a request, to its `Outcome`, or None where it is answered; by default always

    >>> SimulatedKafka().create_topic("flights", 2)
    True
    """

    config: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<SimulatedKafka of {sorted(self._topics)}>"

    def consumer(self, **more: Any) -> SimulatedConsumer:
        return SimulatedConsumer(self, more)

    def producer(self, **more: Any) -> SimulatedProducer:
        return SimulatedProducer(self, more)

    def admin(self) -> SimulatedAdmin:
        return SimulatedAdmin(self)
