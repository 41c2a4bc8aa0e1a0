"""Environment of a drill: topics, a producer that keeps writing, and the job as a process that is started again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import windrow as wr
from tests.conftest import READING, SHORT_LIVED, WORKERS
from tests.drills import processes
from tests.drills.job import DEFINITIONS, sink_of, source_of
from tests.drills.ledgers import check_ledger
from tests.spark import classes
from windrow.checkpoint.log import FileLog
from windrow.connectors.kafka import client
from windrow.testing import KafkaBroker, Report, check_topics

ROOT = Path(__file__).parents[2]
START = datetime(2020, 1, 1, tzinfo=UTC)
PARTITIONS = 2
#: A job that commits nothing for so long, however often it is started again, is stuck.
STUCK_S = 300.0
#: How often a job may end by itself before it commits once.
ENDS = 6


class DrillFailed(Exception):
    """The job does not do what it must, with what it said last."""


class Producer:
    """Writes transactions until it is stopped: one in eight is aborted, one record in six is late, a few are no JSON."""

    def __init__(self, kafka: wr.Kafka, topic: str, seed: str) -> None:
        self.kafka, self.topic = kafka, topic
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        producer, second = None, 0
        try:
            while not self._stop.wait(0.1):
                try:
                    if producer is None:
                        producer = self.kafka.producer(
                            transactional_id=f"drill-{uuid.uuid4().hex}", transaction_timeout_ms=10_000
                        )
                        producer.init_transactions(10)
                    self._transact(producer, second)
                except client.KafkaException:
                    producer = None  # what became of it, the topic knows
                second += 1
        except BaseException as error:
            self._error = error

    def _transact(self, producer: Any, second: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for _ in range(self._rng.randint(0, 12)):
                producer.produce(self.topic, value=self._value(second, partition), partition=partition)
        if self._rng.random() < 1 / 8:
            producer.flush(10)
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)

    def _value(self, second: int, partition: int) -> str:
        rng = self._rng
        if rng.random() < 1 / 200:
            return "}"
        back = rng.uniform(5, 90) if rng.random() < 1 / 6 else rng.uniform(0, 3)
        at = START + timedelta(seconds=max(0.0, second - back))
        return json.dumps(
            {"t": at.isoformat(), "k": f"{rng.choice('abcd')}{partition}", "v": rng.randrange(1000)}
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Job:
    """One process of the job. `said` is all that it wrote."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.drills.job", json.dumps(settings)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKERS), *filter(None, sys.path)]),
                    "PYSPARK_SUBMIT_ARGS": READING,
                    "JDK_JAVA_OPTIONS": SHORT_LIVED + classes.options(),
                },
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """`kill -9` of the process and all that belongs to it, if it has not ended."""
        if not self.ended:
            processes.kill_session(self.pid)
        self.reap()

    def drain(self) -> int:
        """Let the job read what is there and drain. Its exit code."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its code says how
            self.process.stdin.write(b"drain\n")
            self.process.stdin.flush()
        return self.reap()

    def reap(self) -> int:
        """Wait for the end. The exit code."""
        code = self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # of a line that nobody read
                self.process.stdin.close()
        return code


class World:
    """One drill's topics, producer and job."""

    def __init__(
        self,
        name: str,
        runner: str,
        kafka: wr.Kafka,
        folder: Path,
        broker: KafkaBroker | None,
        job: str = "windows",
    ) -> None:
        self.kafka, self.folder, self.runner, self.broker = kafka, folder, runner, broker
        topic = f"drill-{name}-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(topic, PARTITIONS)
        self.settings = {
            "runner": runner,
            "job": job,
            "servers": kafka.servers,
            "config": dict(kafka.config),
            "topic": topic,
            "out": f"{topic}-out",
            "location": str(folder / "job"),
            # Executors of a cluster have folders of their own.
            "local": "$SPARK_LOCAL_DIRS/windrow" if runner == "cluster" else str(folder / "local"),
        }
        #: Jobs that ended by themselves, where nothing was done to end them.
        self.ends = 0
        self._started = 0
        self._log = FileLog(self.windrow / "log")
        self.producer = Producer(kafka, topic, name)
        self.job = self.start()

    def start(self) -> Job:
        """Another process of the job; the one before may still run."""
        self._started += 1
        return Job(self.settings, self.folder.with_name(f"job-{self._started}.log"))

    def restart(self) -> None:
        """The job has ended: the next process of it."""
        self.job.reap()
        self.job = self.start()

    @property
    def windrow(self) -> Path:
        """Return the folder of windrow's own files."""
        location = Path(self.settings["location"])
        return location if self.runner == "embedded" else location / "windrow"

    @property
    def stores(self) -> list[Path]:
        """The folders of local RocksDB stores."""
        places = [self.windrow, Path(self.settings["local"])]
        return sorted({f.parent for place in places for f in place.rglob("CURRENT")})

    @property
    def read(self) -> int:
        """Return the number of offsets that the job's commits have counted."""
        last = self._log.tail().last_commit
        return 0 if last is None else sum(last.next_offsets.values())

    def continues(self, commits: int = 2) -> None:
        """Wait for so many commits with records of the source; a job that ends meanwhile is started again."""
        read, ends, until = self.read, 0, time.monotonic() + STUCK_S
        while commits > 0:
            time.sleep(0.05)
            if self.read > read:
                read, ends, commits = self.read, 0, commits - 1
                until = time.monotonic() + STUCK_S
            if self.job.ended:
                ends += 1
                self.ends += 1
                if ends == ENDS:
                    raise DrillFailed(
                        f"the job ended {ENDS} times without a commit:\n{self.job.said[-4000:]}"
                    )
                self.restart()
            if time.monotonic() > until:
                raise DrillFailed(f"no commit for {STUCK_S:.0f} s:\n{self.job.said[-4000:]}")

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + STUCK_S
        while not true():
            if time.monotonic() > until:
                raise DrillFailed(f"not {what} after {STUCK_S:.0f} s:\n{self.job.said[-4000:]}")
            time.sleep(0.05)

    def finish(self) -> Report:
        """No more input; the job drains, and the topics are compared."""
        self.producer.stop()
        for _ in range(ENDS):
            if self.job.ended:
                self.ends += 1
                self.restart()
            if self.job.drain() == 0:
                source, sink = (
                    source_of(self.kafka, self.settings["topic"]),
                    sink_of(self.kafka, self.settings["out"]),
                )
                job = DEFINITIONS[self.settings["job"]]
                check = check_topics if job.unsettled() is None else check_ledger
                return check(job, source, sink)
        raise DrillFailed(f"the job did not drain in {ENDS} attempts:\n{self.job.said[-4000:]}")

    def close(self) -> None:
        self.job.kill()
        self.producer.stop()
