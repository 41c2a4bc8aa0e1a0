"""The records of a log, in memory: a creation without an answer leaves them there, not there, or torn."""

from __future__ import annotations

import contextlib

from windrow.checkpoint.records import Record, decode
from windrow.checkpoint.storage import MemoryRecords
from windrow.core.errors import CorruptState
from windrow.testing.simulated_kafka import Outcome
from windrow.testing.simulation.world import READS, TRUNCATES, Unanswered, World


class SimulatedRecords(MemoryRecords):
    """The records of a log. A creation may fail with the record there, not there, or torn; the last one may not be synced."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._unsynced: set[int] = set()
        #: The truncated records: the whole history, for the checks.
        self.removed: dict[int, bytes] = {}
        self.writes = "log"  # the current write, for the points

    def create(self, seq: int, data: bytes) -> bool:
        world, what = self._world, f"record {seq} ({self.writes})"
        outcome = world.unanswered(self.writes, f"before {what}")
        if outcome is Outcome.LOST:
            raise Unanswered(f"no answer to {what}")
        if seq in self.records:
            return False
        torn = outcome is Outcome.LATE and seq == max(self.records, default=-1) + 1
        self.records[seq] = data[: world.random.randrange(len(data))] if torn else data
        self._unsynced.add(seq)
        if outcome is not None:
            raise Unanswered(f"no answer to {what}")
        world.point(self.writes, f"{what} is there, not synced")
        self._unsynced.clear()
        world.point(self.writes, f"{what} is synced")
        return True

    def remove(self, seq: int) -> None:
        self._world.point(TRUNCATES, f"before record {seq} is removed")
        if seq in self.records:
            self._world.counts["records truncated"] += 1
            # Not a record that an ended writer has put there when the number was free again.
            self.removed.setdefault(seq, self.records[seq])
        super().remove(seq)

    def mark_truncated(self) -> None:
        self._world.point(TRUNCATES, "before the log is marked as truncated")
        super().mark_truncated()

    def history(self) -> list[Record]:
        """Return all records that were ever part of the log, in order."""
        found = []
        for _, data in sorted({**self.records, **self.removed}.items()):
            with contextlib.suppress(CorruptState):  # torn, and declared void
                found.append(decode(data))
        return found

    def read(self, seq: int) -> bytes | None:
        self._world.point(READS, READS)
        return super().read(seq)

    def settle(self) -> None:
        """Mark all records as synced: a reader that depends on them has synced them."""
        self._unsynced.clear()

    def lose(self) -> None:
        """Cut the power: unsynced records may be gone or torn, and removed ones may be there again."""
        if self.is_truncated():
            back = [seq for seq in self.removed if seq not in self.records and self._world.chance(0.1)]
            self.records.update({seq: self.removed[seq] for seq in back})
        for seq in sorted(self._unsynced, reverse=True):
            chance = self._world.random.random()
            if chance < 0.4 and seq == max(self.records):
                del self.records[seq]
                self._world.counts["lost: records"] += 1
            elif chance < 0.7 and seq == max(self.records):
                self.records[seq] = self.records[seq][
                    : self._world.random.randrange(len(self.records[seq]) + 1)
                ]
                self._world.counts["torn: records"] += 1
        self._unsynced.clear()
