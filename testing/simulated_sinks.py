"""Where the panes of a simulated job go: the sinks as drivers have them, and what a reader sees."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from windrow.connectors import sinks
from windrow.connectors.kafka.sink import KafkaSink, read_all
from windrow.connectors.pane_files import PaneFiles, Sink
from windrow.core.errors import Fenced
from windrow.core.messages import Pane, Token
from windrow.runners.protocol import PUBLISH_ATTEMPTS
from windrow.testing.simulated_job import (
    PARTITIONS,
    SCHEMA,
    Broken,
)
from windrow.testing.simulated_world import (
    World,
)

if TYPE_CHECKING:
    from windrow.testing.simulation import Simulation


class Outlet(Protocol):
    """Where the panes of a simulated job go. `check_epoch` raises `Fenced` in a driver that has lost its job."""

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        """The sink as one driver has it."""

    def read(self) -> list[Pane]:
        """All panes as a reader sees them, of committed transactions only; of one (key, window) in the order they were sent."""


class MemoryOutlet:
    """`wr.sinks.memory()`, shared by all drivers."""

    def __init__(self, simulation: Simulation) -> None:
        self.sink = sinks.memory()

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return self.sink

    def read(self) -> list[Pane]:
        return self.sink.panes


class ParquetOutlet:
    """`wr.sinks.parquet(...)` on the simulated disk."""

    def __init__(self, simulation: Simulation) -> None:
        self._definition = simulation.definition
        self._path = os.path.join(simulation.world.folder, "sink")

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        return sinks.parquet(self._path)

    def read(self) -> list[Pane]:
        if not os.path.isdir(self._path):
            return []  # nothing was published yet
        return list(self._definition.values(sinks.read_panes(self._path), ""))


class KafkaOutlet:
    """`wr.sinks.kafka(...)` on the simulated cluster; each driver has a sink of its own."""

    topic = "panes"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._kafka = simulation, simulation.kafka
        self._kafka.create_topic(self.topic, PARTITIONS)
        self._overtaken: list[str] = []

    def open(self, check_epoch: Callable[[], None]) -> Sink:
        cluster: Any = _Watched(self._simulation, check_epoch, self._overtaken)
        return KafkaSink(self.topic, cluster)

    def read(self) -> list[Pane]:
        if self._overtaken:
            raise Broken(self._overtaken[0])
        self._kafka.expire_transactions()
        cluster: Any = self._kafka
        rows = []
        for partition in self._kafka.partitions(self.topic):
            for record in read_all(cluster, self.topic, partition):
                row = json.loads(record.value())
                row["window"] = {name: _time_or_number(at) for name, at in row["window"].items()}
                rows.append(row)
        definition = self._simulation.definition
        table = pa.Table.from_pylist(rows, definition.logic().schema({definition.inputs[0].name: SCHEMA}))
        return list(definition.values(table, ""))


class _Watched:
    """The cluster as one driver's sink has it. Who finds, when it has fenced the others, that it was overtaken, has to stop."""

    def __init__(self, simulation: Simulation, check_epoch: Callable[[], None], overtaken: list[str]) -> None:
        self._simulation, self._check_epoch, self._overtaken = simulation, check_epoch, overtaken
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation.kafka, name)

    def consumer(self, **config: Any) -> Any:
        self._use("reads")
        return self._simulation.kafka.consumer(**config)

    def producer(self, **config: Any) -> Any:
        made: Any = self._simulation.kafka.producer(**config)
        init, begin = made.init_transactions, made.begin_transaction

        def watched_init(timeout: float) -> None:
            init(timeout)
            with self._simulation.world.undisturbed():
                try:
                    self._check_epoch()
                except Fenced:
                    self._over = True
                    self._simulation.world.trouble += 1  # to who was fenced by this

        def watched_begin() -> None:
            self._use("sends")
            begin()

        made.init_transactions, made.begin_transaction = watched_init, watched_begin
        return made

    def _use(self, does: str) -> None:
        if self._over:
            self._overtaken.append(f"{self._simulation.world.process} was overtaken, and {does} all the same")


def _time_or_number(value: str | int | None) -> datetime | int | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


OutletOf = Callable[["Simulation"], Outlet]
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
                    f"panes of commit {token.commit} were refused {self._attempts} times, after {faults} faults"
                ) from error
            raise

    def _publish(self, token: Token, panes: PaneFiles) -> None:
        self._world.point("5 publish", f"before panes of commit {token.commit} go out")
        if self._world.chance(0.02) and self._world.goes_wrong("sink refuses", "the sink refuses"):
            raise ConnectionError("the sink refuses")
        self._sink.publish(token, panes)
        self._world.point("5 publish", f"panes of commit {token.commit} are out")

    def last_commit(self, job: str, operator: str) -> int | None:
        self._world.point("5 publish", "before a sink is asked what it has")
        return self._sink.last_commit(job, operator)
