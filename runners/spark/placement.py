"""Placement: the executor that has the store of a shard, to which the shard's tasks go.

A store is a cache, so a task may run anywhere; elsewhere it restores the store first. Without placement each executor ends
up with every shard, since Spark sends a task to any free core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from windrow.runners.spark import jvm_calls
from windrow.runners.task_result import Answer

#: Returns the executors that are alive, in Spark's words for a preferred location.
Alive = Callable[[DataFrame], Sequence[str]]


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
    """The owners of a job's shards, as one driver knows them."""

    def __init__(self, shards: int, alive: Alive | None = None) -> None:
        self._alive = alive or _alive
        self._owners: list[str | None] = [None] * shards
        self._places: dict[int, str] = {}
        #: Tasks of the last batch that ran where their shard's store was not.
        self.misplaced = 0

    def locations(self, rows: DataFrame) -> list[str] | None:
        """Return the preferred location of each shard's task; None where there is nothing to prefer.

        With one executor, or one shard, tasks have one place.
        """
        spark = rows.sparkSession
        if len(self._owners) == 1 or is_local(spark) or jvm_calls.known(spark) is None:
            return None
        alive = self._alive(rows)
        if len(alive) < 2:
            return None
        owners = owners_of(self._owners, alive)
        self._owners = [*owners]
        return owners

    def ran(self, answers: Sequence[Answer]) -> None:
        """Note where the tasks of a batch ran."""
        places = {answer.result.shard: answer.place for answer in answers}
        self.misplaced = sum(self._places.get(shard, place) != place for shard, place in places.items())
        self._places |= places


def is_local(spark: SparkSession) -> bool:
    """True if tasks run in the driver's JVM."""
    return (spark.sparkContext.master or "").startswith("local[")


def _alive(rows: DataFrame) -> list[str]:
    """Return the executors that Spark has, oldest first."""
    sc: Any = rows.sparkSession.sparkContext
    managers = sc._jvm.org.apache.spark.SparkEnv.get().blockManager().master().getMemoryStatus().keys()
    executors = []
    for manager in str(managers.mkString("\n")).splitlines():
        executor, host, *_ = manager.removeprefix("BlockManagerId(").split(", ")
        if executor != "driver":
            executors.append((int(executor), host))
    return [f"executor_{host}_{executor}" for executor, host in sorted(executors)]
