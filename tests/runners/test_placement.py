"""Owners of shards: a shard moves only where its executor is gone, or has more than its share."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from windrow.runners.spark.placement import FIRST_S, OTHERS_S, Placement, owners_of

EXECUTORS = [f"executor_host_{n}" for n in range(7)]


@given(st.data())
def test_shares_are_equal_and_no_shard_moves_without_need(data: Any) -> None:
    shards = data.draw(st.integers(1, 30))
    before = data.draw(st.lists(st.sampled_from([None, *EXECUTORS]), min_size=shards, max_size=shards))
    alive = data.draw(st.lists(st.sampled_from(EXECUTORS), min_size=1, unique=True))
    owners = owners_of(before, alive)
    counts = Counter(owners)
    assert set(owners) <= set(alive) and max(counts.values()) - min(counts[a] for a in alive) <= 1
    assert owners_of(owners, alive) == owners
    held = Counter(owner for owner in before if owner in alive)
    share, larger = divmod(shards, len(alive))
    # As few as any equal shares allow: each keeps its share, and as many as there are larger ones one more.
    above = sum(n > share for n in held.values())
    kept = sum(min(n, share) for n in held.values()) + min(above, larger)
    assert sum(a == b for a, b in zip(before, owners, strict=True)) == kept


def test_a_lost_executor_moves_its_own_shards_and_no_others() -> None:
    before = owners_of([None] * 12, EXECUTORS[:4])
    after = owners_of(before, EXECUTORS[1:4])
    assert all(a == b for a, b in zip(before, after, strict=True) if a != EXECUTORS[0])


class Cluster:
    """Executors that come at times of a clock, which moves only where the placement waits."""

    def __init__(self) -> None:
        self.now, self.coming = 0.0, [(0.0, name) for name in EXECUTORS[:3]]
        self.placement = Placement(9, self.alive, lambda: self.now, self.pause)

    def alive(self, rows: Any) -> list[str]:
        return [name for at, name in self.coming if at <= self.now]

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def placed_on(self, *coming: tuple[float, str]) -> set[str]:
        """Return the executors of a batch after one on three, which are lost; others come so many seconds later."""
        rows: Any = None
        assert set(self.placement.locations(rows, 9) or ()) == set(EXECUTORS[:3])
        self.coming = list(coming)
        return set(self.placement.locations(rows, 9) or ())


def test_where_all_executors_are_lost_a_batch_waits_for_as_many_new_ones() -> None:
    cluster = Cluster()
    late = [(20.0, EXECUTORS[3]), (21.5, EXECUTORS[4]), (22.0, EXECUTORS[5])]
    assert cluster.placed_on(*late) == set(EXECUTORS[3:6])
    assert cluster.now == pytest.approx(22, abs=0.2)


def test_it_waits_for_the_others_a_few_seconds_and_not_for_ever() -> None:
    cluster = Cluster()
    assert cluster.placed_on((20.0, EXECUTORS[3]), (21.0, EXECUTORS[4])) == set(EXECUTORS[3:5])
    assert cluster.now == pytest.approx(20 + OTHERS_S, abs=0.2)
    cluster = Cluster()
    assert cluster.placed_on() == set() and cluster.now == pytest.approx(FIRST_S, abs=0.2)


def test_no_batch_waits_where_one_executor_is_left_or_there_was_none() -> None:
    cluster = Cluster()
    assert cluster.placed_on((0.0, EXECUTORS[1]), (0.0, EXECUTORS[2])) == set(EXECUTORS[1:3])
    cluster.placement, cluster.coming = Placement(9, cluster.alive, lambda: cluster.now, cluster.pause), []
    rows: Any = None
    assert cluster.placement.locations(rows, 9) is None and cluster.now == 0


def test_shards_stay_in_their_groups_until_there_are_more_cores_than_groups() -> None:
    cluster, rows = Cluster(), cast(Any, None)
    placement = Placement(100, cluster.alive)
    assert [placement.groups(cores) for cores in (3, 1, 6)] == [6, 6, 6]
    together, apart = placement.locations(rows, 6), placement.locations(rows, 100)
    assert together is not None and apart == [together[n % 6] for n in range(100)]
    assert [placement.groups(cores) for cores in (7, 60)] == [14, 100]
    assert Placement(3, cluster.alive).groups(8) == 3
