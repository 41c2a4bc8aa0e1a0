"""Sinks of a simulated job: as drivers have them, and as a reader sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from windrow.connectors import sinks
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.core.errors import Fenced
from windrow.core.messages import DeadLetter, Token
from windrow.core.types import concat
from windrow.operators.operator import Definition
from windrow.runners.protocol import PUBLISH_ATTEMPTS
from windrow.testing.expected_output import Broken
from windrow.testing.simulated_kafka import SimulatedKafka
from windrow.testing.simulation.world import World

#: The number of partitions of a simulated topic.
PARTITIONS = 2


class Around(Protocol):
    """The environment of a simulated job."""

    world: World
    kafka: SimulatedKafka


class Outlet(Protocol):
    """The sink of one operator. `check_epoch` raises `Fenced` in a driver that has lost its job."""

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        """Open the sink for one driver."""

    def read(self) -> list[Any]:
        """Return all rows of committed transactions, as a reader sees them; of one (key, window) in the order of sending."""


class MemoryOutlet:
    """`wr.sinks.memory()`, shared by all drivers."""

    def __init__(self, around: Around, operator: Definition) -> None:
        self.sink = sinks.memory()

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return self.sink

    def read(self) -> list[Any]:
        return self.sink.panes


class ParquetOutlet:
    """`wr.sinks.parquet(...)` on the simulated disk, one folder for all operators."""

    def __init__(self, around: Around, operator: Definition) -> None:
        self._operator = operator
        self._path = os.path.join(around.world.folder, "sink")

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return sinks.parquet(self._path)

    def read(self) -> list[Any]:
        if not os.path.isdir(self._path):
            return []  # nothing was published yet
        rows = sinks.read_panes(self._path, self._operator.name)
        return list(self._operator.values(rows, "")) if len(rows) else []


class KafkaOutlet:
    """`wr.sinks.kafka(...)` on the simulated cluster; each driver has a sink of its own. Values are in Arrow."""

    def __init__(self, around: Around, operator: Definition) -> None:
        self._around, self._operator = around, operator
        self._topic = f"panes of {operator.name}"
        around.kafka.create_topic(self._topic, PARTITIONS)
        self._overtaken: list[str] = []

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        cluster: Any = _Watched(self._around, check_epoch, self._overtaken)
        return KafkaSink(self._topic, cluster, encode=_encoded)

    def read(self) -> list[Any]:
        if self._overtaken:
            raise Broken(self._overtaken[0])
        kafka: Any = self._around.kafka
        kafka.expire_transactions()
        rows = [
            pa.ipc.open_stream(record.value()).read_all()
            for partition in kafka.partitions(self._topic)
            for record in read_all(kafka, self._topic, partition)
        ]
        return list(self._operator.values(concat(rows), "")) if rows else []


def _encoded(rows: pa.Table) -> list[bytes]:
    """Encode each row as a stream of Arrow."""
    found = []
    for n in range(len(rows)):
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows.slice(n, 1))
        found.append(out.getvalue().to_pybytes())
    return found


class _Watched:
    """The cluster as one driver's sink sees it. A driver that fences others and finds a newer one has to stop."""

    def __init__(self, around: Around, check_epoch: Callable[[], None], overtaken: list[str]) -> None:
        self._around, self._check_epoch, self._overtaken = around, check_epoch, overtaken
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._around.kafka, name)

    def consumer(self, **config: Any) -> Any:
        self._use("reads")
        return self._around.kafka.consumer(**config)

    def producer(self, **config: Any) -> Any:
        made: Any = self._around.kafka.producer(**config)
        init, begin = made.init_transactions, made.begin_transaction

        def watched_init(timeout: float) -> None:
            init(timeout)
            with self._around.world.undisturbed():
                try:
                    self._check_epoch()
                except Fenced:
                    self._over = True
                    self._around.world.trouble += 1  # to the driver that this fenced

        def watched_begin() -> None:
            self._use("sends")
            begin()

        made.init_transactions, made.begin_transaction = watched_init, watched_begin
        return made

    def _use(self, does: str) -> None:
        if self._over:
            self._overtaken.append(f"{self._around.world.process} was overtaken, and {does} all the same")


OutletOf = Callable[[Around, Definition], Outlet]
OUTLETS: dict[str, OutletOf] = {"kafka": KafkaOutlet, "memory": MemoryOutlet, "parquet": ParquetOutlet}


class Pointed:
    """A sink at which a schedule can strike, and that refuses at times. It may not refuse for ever without as many faults."""

    def __init__(self, world: World, sink: Sink) -> None:
        self._world, self._sink = world, sink
        self._commit, self._attempts, self._faults = -1, 0, 0

    def publish(self, token: Token, panes: PaneFiles) -> None:
        if token.commit != self._commit:
            self._commit, self._attempts, self._faults = token.commit, 0, self._world.trouble
        self._attempts += 1
        try:
            self._publish(token, panes)
        except Fenced:
            raise
        except Exception as error:
            faults = self._world.trouble - self._faults
            if self._attempts == PUBLISH_ATTEMPTS and faults < self._attempts:
                raise Broken(
                    f"{panes.operator!r} of commit {token.commit} was refused {self._attempts} times, after {faults} faults"
                ) from error
            raise

    def _publish(self, token: Token, panes: PaneFiles) -> None:
        self._world.point("5 publish", f"before {panes.operator!r} of commit {token.commit} goes out")
        if self._world.chance(0.02) and self._world.inject_fault("sink refuses", "the sink refuses"):
            raise ConnectionError("the sink refuses")
        self._sink.publish(token, panes)
        self._world.point("5 publish", f"{panes.operator!r} of commit {token.commit} is out")

    def last_commit(self, job: str, operator: str) -> int | None:
        self._world.point("5 publish", "before a sink is asked what it has")
        return self._sink.last_commit(job, operator)


class LettersOutlet:
    """A dead-letter sink in memory, shared by all drivers. A commit that is published again has to be the same."""

    def __init__(self) -> None:
        self.dead_letters: dict[int, list[DeadLetter]] = {}

    def publish(self, token: Token, panes: PaneFiles) -> None:
        letters = list(panes.panes())
        if self.dead_letters.setdefault(token.commit, letters) != letters:
            raise Broken(f"dead letters of commit {token.commit} were given twice, and are not the same")

    def last_commit(self, job: str, operator: str) -> int | None:
        return None
