"""Fault injection: stores and files that fail on purpose, and come back with only the data that would have survived.

`FaultyKV` is a store in memory that crashes at the n-th write. Like RocksDB without its log it loses
unflushed data when its process dies; like RocksDB with atomic flush it keeps a prefix of the batches, and
never a part of one.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from windrow.stores.kv import Batch, MemoryKV, Pair

if TYPE_CHECKING:
    from windrow.runners.embedded import Embedded


class SimulatedCrash(BaseException):
    """The process dies here. Not an Exception: nothing but the test may catch it."""


class CrashPoint(enum.Enum):
    """The point in a write at which the process dies."""

    BEFORE_WRITE = "before_write"  # the batch never reached the store
    AFTER_WRITE = "after_write"  # the batch is in, the caller got no answer


class FaultyKV:
    """A store that crashes at write number `crash_at` (the first is 1) and is dead from then on, until
    `reopen`."""

    def __init__(
        self,
        cfs: Sequence[str],
        crash_at: int | None = None,
        crash_point: CrashPoint = CrashPoint.BEFORE_WRITE,
    ) -> None:
        self.crash_at = crash_at
        self.crash_point = crash_point
        self.writes = 0
        self._live: MemoryKV | None = MemoryKV(cfs)
        self._cfs = tuple(cfs)
        self._durable = Batch()
        self._unflushed: list[Batch] = []

    @property
    def cfs(self) -> tuple[str, ...]:
        return self._cfs

    @property
    def unflushed(self) -> int:
        """Return the number of last batches that a crash may lose."""
        return len(self._unflushed)

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._alive().get(cf, key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._alive().multi_get(cf, keys)

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        return self._alive().scan(cf, start, end, reverse)

    def write(self, batch: Batch) -> None:
        live = self._alive()
        self.writes += 1
        crash = self.writes == self.crash_at
        if crash and self.crash_point is CrashPoint.BEFORE_WRITE:
            self.crash()
        live.write(batch)
        copy = Batch()
        copy.extend(batch)
        self._unflushed.append(copy)
        if crash:
            self.crash()

    def flush(self) -> None:
        """Make everything written so far survive a crash."""
        self._alive()
        for batch in self._unflushed:
            self._durable.extend(batch)
        self._unflushed.clear()

    def crash(self) -> None:
        """Kill the process now."""
        self._live = None
        raise SimulatedCrash(f"at write {self.writes}")

    def close(self) -> None:
        """Close cleanly: flush, as RocksDB does."""
        if self._live is not None:
            self.flush()
            self._live = None

    def reopen(
        self,
        survivors: int = 0,
        crash_at: int | None = None,
        crash_point: CrashPoint = CrashPoint.BEFORE_WRITE,
    ) -> FaultyKV:
        """Return the store after a restart: with the flushed batches, and the first `survivors` of the others."""
        if not 0 <= survivors <= len(self._unflushed):
            raise ValueError(f"{survivors} of {len(self._unflushed)} unflushed batches cannot survive")
        again = FaultyKV(self._cfs, crash_at, crash_point)
        for batch in [self._durable, *self._unflushed[:survivors]]:
            again._alive().write(batch)
            again._durable.extend(batch)
        return again

    def _alive(self) -> MemoryKV:
        if self._live is None:
            raise SimulatedCrash("this store has crashed or was closed: reopen it")
        return self._live


def tear_file(path: str | os.PathLike[str], keep_bytes: int) -> None:
    """Cut a file short, as a crash in the middle of a write does."""
    size = os.path.getsize(path)
    if not 0 <= keep_bytes < size:
        raise ValueError(f"keeping {keep_bytes} of {size} bytes tears nothing off")
    os.truncate(path, keep_bytes)


def damage_file(path: str | os.PathLike[str], at: int) -> None:
    """Flip one bit of a file, as a failing disk does; a negative `at` counts from the end."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        here = file.tell()
        byte = file.read(1)
        if not byte:
            raise ValueError(f"{os.fspath(path)} has no byte {at}")
        file.seek(here)
        file.write(bytes((byte[0] ^ 0x01,)))


class CommitPoint(enum.StrEnum):
    """The point in a commit of the embedded runner at which the process dies: `driver.crash(at=CommitPoint.BEFORE_APPLY)`.

    BEFORE_SEGMENT: nothing of the commit is on disk
    BEFORE_RECORD: its segment is, and no record names it
    BEFORE_APPLY: it is committed, and the store does not hold it
    BEFORE_PUBLISH: it is committed and applied, and the panes are not out
    """

    BEFORE_SEGMENT = "before segment"  # nothing of the commit is on disk
    BEFORE_RECORD = "before record"  # the segment is, no record names it
    BEFORE_APPLY = "before apply"  # committed; the store does not hold it
    BEFORE_PUBLISH = "before publish"  # committed and applied; the panes are not out


@contextlib.contextmanager
def die_at(operator: Embedded, point: CommitPoint) -> Iterator[None]:
    """Make the next commit of `operator` raise `SimulatedCrash` at `point`. The operator is of no use afterwards."""

    def die(*_: Any, **__: Any) -> NoReturn:
        raise SimulatedCrash(point.value)

    owner, name = {
        CommitPoint.BEFORE_SEGMENT: (operator.engine.shard, "write"),
        CommitPoint.BEFORE_RECORD: (operator.engine.job, "commit"),
        CommitPoint.BEFORE_APPLY: (operator.engine.shard.kv, "write"),
        CommitPoint.BEFORE_PUBLISH: (operator.engine, "stage"),
    }[point]
    setattr(owner, name, die)
    try:
        yield
    finally:
        delattr(owner, name)
