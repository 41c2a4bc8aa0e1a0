"""Placement: the executor that has the store of a shard, to which the shard's tasks go.

A store is a cache, so a task may run anywhere; elsewhere it restores the store first. Without placement each executor ends
up with every shard, since Spark sends a task to any free core.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from windrow.runners.spark import jvm_calls
from windrow.runners.task_result import Answer

#: Where there are more shards than so many for each core, several share a task if they have few rows.
TASKS_A_CORE = 2
#: Returns the executors that take tasks, in Spark's words for a preferred location.
Alive = Callable[[DataFrame], Sequence[str]]

#: Where all executors are lost, a batch waits so many seconds for the first new one, and so many more for the others.
FIRST_S, OTHERS_S = 60.0, 5.0
_POLL_S = 0.1


def owners_of(before: Sequence[str | None], alive: Sequence[str]) -> list[str]:
    """Return the executor of each shard: the one before, where it is alive and has no more than its share.

    Shares differ by one at most, so that a new executor gets its share and no shard moves between the others.
    """
    held = Counter(owner for owner in before if owner in alive)
    share, larger = divmod(len(before), len(alive))
    room = {
        owner: share + (i < larger)
        for i, owner in enumerate(sorted(alive, key=lambda o: (-held[o], alive.index(o))))
    }
    owners = []
    for owner in before:
        stays = owner is not None and room.get(owner, 0) > 0
        owners.append(owner if stays else None)
        if owner is not None and stays:
            room[owner] -= 1
    spare = (owner for owner in alive for _ in range(room[owner]))
    return [next(spare) if owner is None else owner for owner in owners]


class Placement:
    """The owners of a job's shards, as one driver knows them: of groups of shards that may share a task."""

    def __init__(
        self,
        shards: int,
        alive: Alive | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._alive, self._clock, self._pause = alive or _alive, clock, pause
        self._shards = shards
        #: Of each group; shard n is in group n modulo their number.
        self._owners: list[str | None] = []
        self._places: dict[int, str] = {}
        #: Tasks of the last batch that ran where their shard's store was not.
        self.misplaced = 0

    def groups(self, cores: int) -> int:
        """Return the number of groups. It stays, so that shards do, unless there are more cores."""
        if cores > len(self._owners) and len(self._owners) < self._shards:
            self._owners = [None] * min(self._shards, TASKS_A_CORE * cores)
        return len(self._owners)

    def locations(self, rows: DataFrame, tasks: int) -> list[str] | None:
        """Return the preferred location of each task; None where there is nothing to prefer. tasks: one a group, or one a shard

        With one executor, or one shard, tasks have one place.
        """
        if self._shards == 1:
            return None
        self._owners = self._owners or [None] * self._shards
        alive = self._alive(rows) or self._replacements(rows)
        if len(alive) < 2:
            return None
        owners = owners_of(self._owners, alive)
        self._owners = [*owners]
        return [owners[n % len(owners)] for n in range(tasks)]

    def _replacements(self, rows: DataFrame) -> Sequence[str]:
        """Wait for new executors where all are lost, and return them.

        Spark's tasks would wait for the first one as well. All would then restore their stores there, and most of them once
        more on the executors that come after it.
        """
        lost = len({owner for owner in self._owners if owner is not None})
        alive: Sequence[str] = ()
        until = self._clock() + FIRST_S
        while len(alive) < lost and self._clock() < until:
            self._pause(_POLL_S)
            before, alive = alive, self._alive(rows)
            if alive and not before:
                until = self._clock() + OTHERS_S
        return alive

    def ran(self, answers: Sequence[Answer]) -> None:
        """Note where the tasks of a batch ran."""
        places = {answer.result.shard: answer.place for answer in answers}
        self.misplaced = sum(self._places.get(shard, place) != place for shard, place in places.items())
        self._places |= places


def _alive(rows: DataFrame) -> list[str]:
    """Return the executors that take tasks, oldest first; none in local mode, and where only Spark's public API is used."""
    calls = None if jvm_calls.is_local(rows.sparkSession) else jvm_calls.known(rows)
    return [] if calls is None else [f"executor_{host}_{number}" for number, host in calls.executors()]
