"""The query of `writeStream(...).start()`: Spark's `StreamingQuery`, and `drain`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from windrow.core.errors import QueryStopped, SparkUnsupported
from windrow.runners.interrupts import Interrupts
from windrow.runners.spark.batch import BatchFunction
from windrow.runners.spark.graceful_stop import read_to_the_end
from windrow.runners.spark.session import found_nothing_more

#: A wait for the end of a query looks so often whether it was interrupted.
LOOK_S = 0.2


class WindowQuery:
    """A running windrow job. Mirrors `StreamingQuery`, and adds `drain`."""

    def __init__(self, batch: BatchFunction, spark: Any, *, ends_by_itself: bool, heartbeat: bool) -> None:
        self.batch = batch
        self._heartbeat = heartbeat
        self._ends_by_itself = ends_by_itself
        self._spark = spark
        self._recent: deque[dict[str, Any]] = deque(maxlen=100)
        batch.listeners.append(self._recent.append)
        self._query: StreamingQuery | None = None
        #: True if all records that existed at the call of `drain` are read.
        self._all_read = False
        #: Held by the thread that makes the last commit of a run with `availableNow`, and whether it is made.
        self._ending, self._ended = threading.RLock(), False

    def begin(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def query(self) -> StreamingQuery:
        """Spark's own query."""
        if self._query is None:
            raise SparkUnsupported("the query has not been started")
        return self._query

    @property
    def id(self) -> str:
        return str(self.query.id)

    @property
    def runId(self) -> str:
        return str(self.query.runId)

    @property
    def name(self) -> str:
        return str(self.query.name)

    @property
    def isActive(self) -> bool:
        return bool(self.query.isActive)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.query.status)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The progress of the last commit, and under "health" how the job is now; None before the first."""
        progress = self.batch.last_progress
        return None if progress is None else {**progress, "health": self.batch.health().as_json()}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._recent)

    def exception(self) -> Any:
        return self.query.exception()

    def addListener(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call `listener(progress)` after each commit."""
        self.batch.listeners.append(listener)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait as Spark's does; in the main thread Ctrl-C and SIGTERM stop the query, after the batch that is in work.

        A run with `availableNow` that has read everything ends with one more commit, without input: it emits the windows that
        the last batch closed, as Spark's own append mode does. It is made here, also beyond the timeout. A program that
        never calls this leaves it to the next run.
        """
        if not self._await(timeout):
            return False
        self._end_run()
        return None if timeout is None else True

    def _end_run(self) -> None:
        with self._ending:
            if self._ends_by_itself and not self._ended and found_nothing_more(self.query):
                self.batch.advance(self._spark)
                self._ended = True

    def _await(self, timeout: float | None = None) -> bool:
        """Wait until Spark's query ends. False where the time was over before."""
        ends = None if timeout is None else time.monotonic() + timeout
        with Interrupts(f"the query at {self.batch.location}") as interrupts:
            while True:
                left = LOOK_S if ends is None else min(LOOK_S, max(ends - time.monotonic(), 0.001))
                if self.query.awaitTermination(left):  # type: ignore[arg-type]
                    return True
                if interrupts.asked is not None:
                    self.stop()
                elif ends is not None and time.monotonic() >= ends:
                    return False

    def processAllAvailable(self) -> None:
        """Wait until all that the sources had at the call is committed. Raises where the query failed."""
        if self._ends_by_itself:
            self.awaitTermination()
        elif not self._read_what_is_there():
            self.query.awaitTermination()

    def stop(self) -> None:
        """Stop after the batch that is in work. Unread records are read when the query is started again.

        Called by a listener, that is from inside a batch, it returns at once.
        """
        if self.batch.gate.is_inside:
            threading.Thread(target=self.stop, name="windrow-stop").start()
            return
        if self.query.isActive:
            self._all_read = False
            self._end()
        with self._ending:
            self._ended = True
            self.batch.close()

    def _end(self) -> None:
        """Stop Spark's query where no batch is in work."""
        gate = self.batch.gate
        gate.close(lambda: not self.query.isActive, lambda: not self.query.status["isTriggerActive"])
        try:
            self.query.stop()
        finally:
            gate.open()

    def drain(self) -> None:
        """Process what is available, stop, then advance the watermark to the end of time: every window fires.

        Data that comes after a drain is late. Draining what is drained does nothing. Raises where the query failed, or was
        stopped, before everything was read: nothing is fired then.
        """
        if self.query.isActive and not self._ends_by_itself:
            self._all_read = self._read_what_is_there()
            self._end()
        self._await()
        if self._ends_by_itself:
            # Spark too ends the query where it finds nothing more, and records it, whoever has called stop.
            self._all_read = found_nothing_more(self.query)
        if not self._all_read:
            raise QueryStopped(
                f"the query at {self.batch.location} was stopped with input perhaps unread, which a drain would make late: "
                "start it again, and drain() it while it runs"
            )
        self.batch.drain(self._spark)

    def _read_what_is_there(self) -> bool:
        """Wait for a trigger that began after this call and found nothing in the sources. False where the query ended first.

        Spark's own `processAllAvailable` waits for a batch without any row: with the heartbeat there need never be one.
        """
        if not self._heartbeat:
            self.query.processAllAvailable()
            return bool(self.query.isActive)
        called = datetime.now(UTC)
        with Interrupts(f"the query at {self.batch.location}") as interrupts:
            while self.query.isActive:
                progress = self.query.lastProgress
                if (
                    progress is not None
                    and datetime.fromisoformat(progress["timestamp"]) >= called
                    and read_to_the_end(progress, self.batch.first_batch)
                ):
                    return True
                if interrupts.asked is not None:
                    self.stop()
                else:
                    self.query.awaitTermination(LOOK_S)  # type: ignore[arg-type]
        return False

    def __repr__(self) -> str:
        return f"<WindowQuery {self.batch!r}>"
