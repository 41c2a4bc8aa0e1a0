"""Deltas of a bucket of sessions with many queried keys: reads see exactly the current rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.deep import usually
from windrow.stores import delta_blocks, sessions
from windrow.stores.block_format import Codec, Kind
from windrow.stores.kv import MemoryKV
from windrow.stores.sessions import HOME, HOT, PANE, SessionStore
from windrow.stores.window_state import END, START, Near

WIDTH_US = 10
NAMES = [HOME, "k", START, END, PANE, "n"]


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    kinds = [pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.bool_(), pa.int64()]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(NAMES)
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=NAMES
    )


def plain(rows: pa.Table | None) -> list[tuple[Any, ...]]:
    return [] if rows is None else [tuple(row[name] for name in NAMES) for row in rows.to_pylist()]


class Job:
    """A store, and what has to be in it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.kv, self.store = (
            chance,
            MemoryKV(("windows", "aux")),
            SessionStore("windows", "aux", ["k"], WIDTH_US),
        )
        self.there, self.known_schema = list[tuple[Any, ...]](), 0

    def some(self, homes: list[int], most: int) -> list[tuple[Any, ...]]:
        rows = []
        for _ in range(self.chance.randrange(most)):
            self.known_schema += 1
            home = self.chance.choice(homes)
            end = 500 if home == HOT else home + self.chance.randrange(WIDTH_US)
            rows.append(
                (
                    home,
                    f"k{self.chance.randrange(9)}",
                    end - 3,
                    end,
                    self.chance.random() < 0.2,
                    self.known_schema,
                )
            )
        return rows

    def end(self) -> None:
        """Sessions come to where they are looked for by their end, and nobody reads what lies there."""
        rows = self.some([0, 10, 20], 6)
        if rows:
            self.store.put(self.kv, Near(None, {}), table(rows), lambda kept: kept)
            self.there += rows

    def step(self) -> None:
        """Some of what there is of some keys goes, and something comes, perhaps elsewhere."""
        homes = self.chance.sample([0, 10, 20, HOT], self.chance.randrange(1, 5))
        asked = [
            (home, f"k{self.chance.randrange(9)}") for home in homes for _ in range(self.chance.randrange(5))
        ]
        asked.sort(key=lambda one: self.chance.random() if self.chance.random() < 0.2 else 0)
        keys = pa.table(
            [pa.array([h for h, _ in asked], pa.int64()), pa.array([k for _, k in asked], pa.string())],
            names=[START, "k"],
        )
        near = self.store.near(self.kv, homes, keys)
        read = plain(near.rows)
        assert not Counter(read) - Counter(self.there)
        assert not Counter(row for row in self.there if row[:2] in set(asked)) - Counter(read)
        stay = [i for i in range(len(read)) if self.chance.random() < 0.7]
        fresh = self.some([0, 10, 20, *([HOT] if HOT in near.held else [])], 4)
        self.store.put(self.kv, near, table(fresh), lambda rows: rows, np.array(stay, dtype=np.int64))
        gone = Counter(read) - Counter(read[i] for i in stay)
        self.there = [*(Counter(self.there) - gone).elements(), *fresh]

    def look(self) -> None:
        for homes in ([0], [0, 10, 20], [HOT], [10, HOT]):
            stored = Counter(plain(self.store.read(self.kv, homes)))
            assert stored == Counter(row for row in self.there if row[0] in homes)

    def kinds(self) -> set[tuple[int, int]]:
        """The kind and codec of each value."""
        return {(value[2], value[3]) for _, value in self.kv.scan("windows")}


@pytest.mark.parametrize("narrow_from", [2, delta_blocks.NARROW_FROM])
@pytest.mark.parametrize("page_bytes", [0, 500, sessions.PAGE_BYTES])
def test_what_is_read_is_what_is_there_wherever_it_lies(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int, narrow_from: int
) -> None:
    monkeypatch.setattr(sessions, "PAGE_BYTES", page_bytes)
    monkeypatch.setattr(delta_blocks, "NARROW_FROM", narrow_from)
    monkeypatch.setattr(delta_blocks, "FOLD_AT", 5)
    kinds = set[tuple[int, int]]()
    for seed in range(usually(5, deep=120)):
        job = Job(random.Random(seed))
        for _ in range(25):
            job.chance.choice([job.end, job.step, job.step])()
            job.look()
            kinds |= job.kinds()
    assert (Kind.CHANGED in {kind for kind, _ in kinds}) == (page_bytes > 0)
    assert ((Kind.CHANGED, Codec.NARROW) in kinds) == (page_bytes > 0 and narrow_from == 2)


def test_a_bucket_that_has_changed_often_lies_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_blocks, "FOLD_AT", 2)
    job = Job(random.Random(1))
    job.store.put(
        job.kv, Near(None, {}), table([(0, "a", 0, 5, False, 0), (0, "b", 1, 4, False, 0)]), lambda rows: rows
    )
    keys = pa.table({START: pa.array([0], pa.int64()), "k": ["a"]})
    for n in range(1, 6):
        near = job.store.near(job.kv, [0], keys)
        others = np.array([i for i, row in enumerate(plain(near.rows)) if row[1] != "a"], dtype=np.int64)
        fresh = table([(0, "a", 0, 5 + n % 2, False, n)])
        job.store.put(job.kv, near, fresh, lambda rows: rows, others)
        assert sorted(plain(job.store.read(job.kv, [0]))) == [
            (0, "a", 0, 5 + n % 2, False, n),
            (0, "b", 1, 4, False, 0),
        ]
        assert near.rows is not None
        assert {kind for kind, _ in job.kinds()} == ({Kind.CHANGED, Kind.BLOCK} if n < 2 else {Kind.PAGE})


def test_all_that_is_removed_of_a_bucket_is_gone_and_the_bucket_with_it() -> None:
    job = Job(random.Random(1))
    job.store.put(job.kv, Near(None, {}), table([(0, "a", 0, 5, False, 0)]), lambda rows: rows)
    keys = pa.table({START: pa.array([0], pa.int64()), "k": ["a"]})
    job.store.put(job.kv, job.store.near(job.kv, [0], keys), table([]), lambda rows: rows)
    assert plain(job.store.read(job.kv, [0])) == []
    job.store.drop(job.kv, 10)
    assert list(job.kv.scan("windows")) == []
