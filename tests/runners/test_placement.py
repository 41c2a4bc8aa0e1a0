"""Owners of shards: a shard moves only where its executor is gone, or has more than its share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from windrow.runners.spark.placement import owners_of

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
