"""Plans of tasks on their way: what arrives is what was sent, and its bytes do not follow the number of shards."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.core.broadcast import Broadcast

from tests.checkpoint.test_shard_commits import commit
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_commits import PackedCommit
from windrow.runners.spark.shipping import Shipping
from windrow.runners.tasks import TaskPlan

RECENT, COMMITS = 33, 80


class Sent(Broadcast[Any]):
    """A broadcast that is sent nowhere."""

    def __init__(self, value: Any) -> None:
        self._value, self.alive = value, True

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (id(self),)

    def destroy(self, blocking: bool = False) -> None:
        self.alive = False


class Context:
    """Executors of one test, which have what was sent to them."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def broadcast(self, value: Any) -> Sent:
        self.sent.append(Sent(value))
        BY_ID[id(self.sent[-1])] = self.sent[-1]
        return self.sent[-1]


BY_ID: dict[int, Sent] = {}


def _sent(number: int) -> Sent:
    assert BY_ID[number].alive
    return BY_ID[number]


@pytest.mark.parametrize("shards", [1, 8, 64, 256])
def test_a_plan_arrives_whole_and_stays_small(shards: int, tmp_path: Any) -> None:
    """Each commit travels with tasks a few times, and as a broadcast once at most."""
    spec = ShardSpec(JobFolders(str(tmp_path)), "job", -1, ("a.windows",), ())
    commits = [PackedCommit.of(commit(number, shards), shards) for number in range(1, COMMITS)]
    shipping, context, sizes = Shipping(), Context(), list[int]()
    for number in range(1, COMMITS):
        recent = tuple(commits[max(number - RECENT, 0) : number])
        plan = TaskPlan(spec, (), number + 1, 0, {}, b"", None, recent)
        shipped = pickle.dumps(shipping.ship(context, plan))  # type: ignore[arg-type]
        sizes.append(len(shipped))
        assert pickle.loads(shipped) == plan
        if number % 7 == 0:  # an attempt that is made again
            assert pickle.loads(pickle.dumps(shipping.ship(context, plan))) == plan  # type: ignore[arg-type]
    assert max(sizes) < 6_000
    sent = [c.commit for one in context.sent for c in one.value]
    assert len(sent) == len(set(sent))
    shipping.close()
    assert not any(one.alive for one in context.sent)
