"""A real Kafka broker in a container, which a test may stop, kill and pause."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from windrow.connectors.kafka.cluster import Kafka
from windrow.connectors.kafka.connectivity_probe import brokers
from windrow.core.errors import KafkaFailed

#: The default image: Kafka's own.
IMAGE = "apache/kafka:4.1.0"

#: Properties that differ from Kafka's defaults: one broker, no waiting, no topics by accident.
DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    # A killed broker comes back after its former session has expired: 13 s by Kafka's default.
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.max.timeout.ms": "3600000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}
#: Half of the cost of a short-lived broker is the optimising compiler.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OWNER = "windrow.broker.owner"
_LOG_LINES = 60
# Below the ports that systems give to outgoing connections: a client that keeps calling a stopped broker
# could otherwise be given the broker's own port, and be connected to itself.
_PORTS = range(20_000, 30_000)


class KafkaBroker:
    """A broker in a container, for the time of a `with`; `broker.kafka` is its cluster. At the end it is removed with its data.

    image: one that takes apache/kafka's variables
    config: the broker's properties, over `DEFAULTS`; its listener for clients is named OUTSIDE
    client: what `wr.Kafka` needs to reach it, where it asks for passwords or TLS
    ready_s: how many seconds the broker may take to answer after a start

    Port and data stay over `stop`, `kill`, `pause` and what undoes them. Needs testcontainers and a container engine. Raises
    `KafkaFailed` (WR601), with the broker's last log lines.
    """

    def __init__(
        self,
        image: str = IMAGE,
        *,
        config: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
        ready_s: float = 120.0,
    ) -> None:
        self.image = image
        self.config = {**DEFAULTS, **(config or {})}
        self._client = dict(client or {})
        self._ready_s = ready_s
        self._testcontainer: Any = None
        self._kafka: Kafka | None = None

    def __enter__(self) -> KafkaBroker:
        try:
            self._run()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kafka(self) -> Kafka:
        """The cluster, for as long as the broker is there."""
        if self._kafka is None:
            raise KafkaFailed(f"{self.image} does not run: use it as `with KafkaBroker() as broker:`")
        return self._kafka

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self._container.name)

    @property
    def version(self) -> str:
        """Kafka's version, as the broker logs it."""
        found = re.search(r"Kafka version: (\S+)", self.logs())
        return found[1] if found else "unknown"

    def logs(self, lines: int | None = None) -> str:
        """Return the broker's log since its first start; the last `lines` of it."""
        return str(self._container.logs(tail=lines or "all").decode(errors="replace"))

    def stop(self) -> None:
        """Stop the broker by a controlled shutdown: it closes its log and gives up its partitions."""
        self._container.stop(timeout=60)

    def kill(self) -> None:
        """End the broker at once."""
        self._container.kill()

    def start(self) -> None:
        """Start the broker after `stop` or `kill`. Returns when it answers."""
        self._container.start()
        self._wait_until_ready()

    def restart(self) -> None:
        """Call `stop`, then `start`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the broker: connections stay open without answers."""
        self._container.pause()

    def unpause(self) -> None:
        """Let the broker go on. Returns when it answers."""
        self._container.unpause()
        self._wait_until_ready()

    def close(self) -> None:
        """Remove the container and its data. Done by the `with`."""
        started, self._testcontainer, self._kafka = self._testcontainer, None, None
        if started is not None:
            started.stop()

    @property
    def _container(self) -> Any:
        if self._testcontainer is None:
            raise KafkaFailed(f"{self.image} does not run: use it as `with KafkaBroker() as broker:`")
        return self._testcontainer.get_wrapped_container()

    def _run(self) -> None:
        from docker.errors import APIError, DockerException

        for port in random.sample(_PORTS, 20):
            if not _free(port):
                continue
            try:
                self._testcontainer = self._create(port)
                self._testcontainer.start()
                return
            except APIError as error:
                if "already allocated" in str(error) or "already in use" in str(error):
                    self.close()
                    continue
                raise KafkaFailed(f"{self.image} cannot be started: {error}") from error
            except DockerException as error:
                raise KafkaFailed(
                    f"no container engine answers: {error}. Start one, or name it in DOCKER_HOST"
                ) from error
        raise KafkaFailed(f"no free port between {_PORTS.start} and {_PORTS.stop}: end what holds them")

    def _create(self, port: int) -> Any:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self.image)
        engine = container.get_docker_client()
        _remove_leftovers(engine.client)
        _do_without_ryuk_where_it_is_not(engine.client)
        host = engine.host().replace("localhost", "127.0.0.1")
        self._kafka = Kafka(f"{host}:{port}", self._client)
        kwargs: dict[str, Any] = {"labels": {_OWNER: _owner()}}
        if engine.client.networks.list(names=["bridge"]):
            container.with_bind_ports(9092, port)
            listeners = _listeners(self._kafka.servers, 9092, 9093, 19092)
        else:  # an engine without a network of its own: the broker is one of the host's processes
            others = (p for p in random.sample(_PORTS, len(_PORTS)) if p != port and _free(p))
            inside, control = next(others), next(others)
            kwargs["network_mode"] = "host"
            listeners = _listeners(self._kafka.servers, port, control, inside)
        settings = {**listeners, **self.config}
        container.with_envs(**{_variable(name): value for name, value in settings.items()})
        container.with_env("KAFKA_HEAP_OPTS", "-Xmx512m -Xms128m")
        container.with_env("KAFKA_JVM_PERFORMANCE_OPTS", _SHORT_LIVED)
        return container.with_kwargs(**kwargs)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_s
        while not brokers(self.kafka, wait_s=1.0):
            self._container.reload()
            state = self._container.status
            if state != "running":
                raise KafkaFailed(
                    f"{self.image} has ended ({state}), its last lines:\n{self.logs(_LOG_LINES)}"
                )
            if time.monotonic() > deadline:
                raise KafkaFailed(
                    f"{self.image} does not answer at {self.kafka.servers} after {self._ready_s:g} s, "
                    f"its last lines:\n{self.logs(_LOG_LINES)}"
                )


def _listeners(advertised: str, outside: int, control: int, inside: int) -> dict[str, str]:
    """Return one listener for clients, one for the broker itself, one for the controller.

    The broker writes its transaction markers through a connection to itself, and the advertised address is good outside of
    the container only: with that one alone every transaction would hang.
    """
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"OUTSIDE://:{outside},INSIDE://127.0.0.1:{inside},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"OUTSIDE://{advertised},INSIDE://127.0.0.1:{inside}",
        "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "log.dirs": "/var/lib/kafka/data",
    }


def _variable(name: str) -> str:
    """Return the spelling of a property in apache/kafka: `log.dirs` is KAFKA_LOG_DIRS."""
    return "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"


def _is_leftover(owner: str) -> bool:
    """True if the process that started a container ran on this machine, and runs no longer."""
    host, _, pid = owner.rpartition("/")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _remove_leftovers(client: Any) -> None:
    """Remove the brokers of killed runs, which nothing else would remove."""
    from docker.errors import APIError, NotFound

    for container in client.containers.list(all=True, ignore_removed=True, filters={"label": _OWNER}):
        if not _is_leftover(container.labels[_OWNER]):
            continue
        try:
            container.remove(force=True, v=True)
        except (NotFound, APIError):  # another run is removing it
            continue


def _do_without_ryuk_where_it_is_not(client: Any) -> None:
    """Disable Ryuk, the removing container of testcontainers, where it is unavailable; the brokers are then removed here."""
    from docker.errors import APIError, ImageNotFound
    from testcontainers.core.config import testcontainers_config as config

    if config.ryuk_disabled:
        return
    try:
        client.images.get(config.ryuk_image)
    except ImageNotFound:
        try:
            client.images.pull(config.ryuk_image)
        except APIError:
            config.ryuk_disabled = True
