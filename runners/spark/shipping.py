"""Shipping of task plans to executors: each executor, and not each task, receives the parts that grow with the job.

A commit names the files of every shard. Its entries, packed by shard, serve the plans of the next few commits, and a task
unpacks its own. The newest commits travel with each task, until they take more than some bytes. Then they travel once,
together, as a broadcast of Spark's. A plan that is large for another reason travels so, too.
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

#: Entries of so many bytes, of all commits together, travel with each task: a broadcast takes some milliseconds.
WITH_TASKS_BYTES = 1 << 11


@dataclass(frozen=True)
class Shipped:
    """A task plan on its way. Unpickled, it is the plan.

    payload, taken, recent: values or broadcasts; those of `recent` are tuples of commits. first: the lowest commit of the plan
    """

    payload: Any
    taken: Any
    recent: tuple[Any, ...]
    first: int

    def __reduce__(self) -> tuple[Any, ...]:
        return arrived, (self.payload, self.taken, self.recent, self.first)


def arrived(payload: Any, taken: Any, recent: Sequence[Any], first: int) -> TaskPlan:
    """Return the plan, in a task."""
    plan: TaskPlan = pickle.loads(_value(payload))
    commits = tuple(commit for part in recent for commit in _value(part) if commit.commit >= first)
    return replace(plan, taken=_value(taken), recent=commits)


def _value(shipped: Any) -> Any:
    return shipped.value if isinstance(shipped, Broadcast) else shipped


class Shipping:
    """Broadcasts of one opened job. Each lives as long as a plan may need it."""

    def __init__(self) -> None:
        self._forget(None)

    def _forget(self, sc: SparkContext | None) -> None:
        self._sc = sc
        #: Broadcasts of commits, each with the number of its last one; and the commits since, which travel with each task.
        self._sent: list[tuple[int, Any]] = []
        self._newest: tuple[PackedCommit, ...] = ()
        self._last = 0
        self._of_plan: list[Any] = []

    def ship(self, sc: SparkContext, task: TaskPlan) -> Shipped:
        """Return the plan as tasks get it. The plan before it is over."""
        if sc is not self._sc:
            self._forget(sc)
        self._drop(self._of_plan)
        recent = [commit for commit in task.recent if isinstance(commit, PackedCommit)]
        first = recent[0].commit if recent else 0
        self._add(recent, first)
        payload = CloudPickleSerializer().dumps(replace(task, taken=None, recent=()))  # type: ignore[no-untyped-call]
        placed = self._placed(bytes(payload), len(payload), jvm_calls.INLINE_BYTES)
        taken = task.taken and self._placed(task.taken, task.taken.nbytes, WITH_TASKS_BYTES)
        self._of_plan = [placed, taken]
        return Shipped(placed, taken, (*(part for _, part in self._sent), self._newest), first)

    def _add(self, recent: Sequence[PackedCommit], first: int) -> None:
        """Add the commits that are new. They travel with each task as long as the newest together are few bytes."""
        self._drop([part for last, part in self._sent if last < first])
        self._sent = [(last, part) for last, part in self._sent if last >= first]
        new = [commit for commit in recent if commit.commit > self._last]
        if new:
            self._last = new[-1].commit
            newest = tuple(commit for commit in (*self._newest, *new) if commit.commit >= first)
            placed = self._placed(newest, sum(c.shards.nbytes for c in newest), WITH_TASKS_BYTES)
            if placed is newest:
                self._newest = newest
            else:
                self._sent, self._newest = [*self._sent, (self._last, placed)], ()

    def close(self) -> None:
        self._drop([*self._of_plan, *(part for _, part in self._sent)])
        self._forget(None)

    def _placed(self, value: bytes | Packed | tuple[PackedCommit, ...], nbytes: int, most: int) -> Any:
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
