"""Graceful stop: a query ends between two batches, by the one signal that Spark understands."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

#: By this text Spark knows a function that its own `stop()` interrupted from one that failed. It searches with a pattern that
#: takes stack for each character up to the end of the message: longer ones end in a StackOverflowError of a thousand lines.
INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a batch: java.lang.InterruptedException"
)
_INTERRUPTIONS = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException")
LOOK_S = 0.02


class Interrupted(Exception):
    """A batch that the end of its query left undone. It is done when the query is started again."""

    def __init__(self, why: str = "its query has ended") -> None:
        super().__init__(f"{why[:200]}\n{INTERRUPTED}")


class Gate:
    """The gate of batches. Once closed, the next batch blocks in it until the query ends, and is returned undone."""

    def __init__(self) -> None:
        self._over: Callable[[], bool] | None = None
        self._waits = threading.Event()
        self._inside: int | None = None

    @property
    def is_inside(self) -> bool:
        """True in the thread of the batch that is in work: it cannot wait for its own end."""
        return self._inside == threading.get_ident()

    def close(self, over: Callable[[], bool], idle: Callable[[], bool]) -> None:
        """Block until no batch is in work. `over`: True once the query has a stop request; `idle`: between two batches."""
        self._waits.clear()
        self._over = over
        while not (self._waits.wait(LOOK_S) or over() or idle()):
            pass

    def open(self) -> None:
        self._over = None

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Around a batch. Raises `Interrupted` where it is held until the end, and where it was only interrupted."""
        if self._over is not None:
            self._waits.set()
            while not self._over():
                time.sleep(LOOK_S)
            raise Interrupted
        self._inside = threading.get_ident()
        try:
            yield
        except Exception as error:
            closed = self._over is not None and self._over()
            if closed or any(_interruption(e) for e in _chain(error)):
                raise Interrupted(str(error)) from None
            raise
        finally:
            self._inside = None


def _interruption(error: BaseException) -> bool:
    emitted = str(error)
    return any(name in emitted for name in _INTERRUPTIONS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def read_to_the_end(progress: Any, first_batch: int | None) -> bool:
    """True if this trigger found nothing in the sources: what was there when it began is committed.

    Offsets decide, not rows: a batch that was committed before is skipped, and has none. The first batch of a run
    is ignored: it may have been planned before. A source that waits for more (`minOffsetsPerTrigger`) reports what it has.
    """
    for source in progress["sources"]:
        start, end, newest = (source.get(f"{which}Offset") for which in ("start", "end", "latest"))
        if source["description"].startswith("RateStream"):
            continue
        if start != end or (newest not in (None, "null") and newest != end):
            return False
    looked_only = "addBatch" not in progress["durationMs"]
    return looked_only or (first_batch is not None and progress["batchId"] > first_batch)
