"""Shipping of task plans to executors: each executor, and not each task, receives the parts that grow with the job.

A commit names the files of every shard. Its entries, packed by shard, travel once as a broadcast of Spark's, and serve the
plans of the next few commits. A task unpacks its own. A plan that is large for another reason travels so, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import CloudPickleSerializer

from windrow.checkpoint.shard_commits import Packed, PackedCommit
from windrow.core.logs import get_logger
from windrow.runners.spark import jvm_calls
from windrow.runners.tasks import TaskPlan

logger = get_logger()

#: Entries of so many bytes travel with each task: a broadcast takes some milliseconds.
WITH_TASKS_BYTES = 1 << 12


@dataclass(frozen=True)
class Shipped:
    """A task plan on its way. Unpickled, it is the plan; `payload`, `taken` and `recent` are values or broadcasts."""

    payload: Any
    taken: Any
    recent: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return arrived, (self.payload, self.taken, self.recent)


def arrived(payload: Any, taken: Any, recent: Sequence[Any]) -> TaskPlan:
    """Return the plan, in a task."""
    plan: TaskPlan = pickle.loads(_value(payload))
    return replace(plan, taken=_value(taken), recent=tuple(map(_value, recent)))


def _value(shipped: Any) -> Any:
    return shipped.value if isinstance(shipped, Broadcast) else shipped


class Shipping:
    """Broadcasts of one opened job. Each lives as long as a plan may need it."""

    def __init__(self) -> None:
        self._sc: SparkContext | None = None
        self._commits: dict[int, Any] = {}
        self._of_plan: list[Any] = []

    def ship(self, sc: SparkContext, task: TaskPlan) -> Shipped:
        """Return the plan as tasks get it. The plan before it is over."""
        if sc is not self._sc:
            self._sc, self._commits, self._of_plan = sc, {}, []
        recent = [commit for commit in task.recent if isinstance(commit, PackedCommit)]
        numbers = {commit.commit for commit in recent}
        self._drop([*self._of_plan, *(self._commits.pop(n) for n in self._commits.keys() - numbers)])
        for commit in recent:
            if commit.commit not in self._commits:
                self._commits[commit.commit] = self._placed(commit, commit.shards.nbytes, WITH_TASKS_BYTES)
        payload = CloudPickleSerializer().dumps(replace(task, taken=None, recent=()))  # type: ignore[no-untyped-call]
        placed = self._placed(bytes(payload), len(payload), jvm_calls.INLINE_BYTES)
        taken = task.taken and self._placed(task.taken, task.taken.nbytes, WITH_TASKS_BYTES)
        self._of_plan = [placed, taken]
        return Shipped(placed, taken, tuple(self._commits[commit.commit] for commit in recent))

    def close(self) -> None:
        self._drop([*self._of_plan, *self._commits.values()])
        self._sc, self._commits, self._of_plan = None, {}, []

    def _placed(self, value: bytes | Packed | PackedCommit, nbytes: int, most: int) -> Any:
        """Return the value, or a broadcast of it where it is large."""
        assert self._sc is not None
        return value if nbytes <= most else self._sc.broadcast(value)

    def _drop(self, shipped: Sequence[Any]) -> None:
        for variable in shipped:
            if isinstance(variable, Broadcast):
                try:
                    variable.destroy()
                except Exception as error:  # of a context that has been stopped
                    logger.debug("a broadcast could not be destroyed", error=repr(error))
