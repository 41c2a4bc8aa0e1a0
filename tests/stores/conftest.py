"""Every kind of store, opened empty, for the contract suite."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windrow.stores.kv import KV, Batch, MemoryKV, Overlay
from windrow.stores.rocks import RocksKV
from windrow.stores.spilling_overlay import Spilling
from windrow.testing.faults import FaultyKV

CFS = ("data", "meta", "other")
MakeKV = Callable[[], KV]


class AlwaysSpilling(Spilling):
    """One that keeps nothing in memory; what does not fit lies in another one."""

    def __init__(self) -> None:
        super().__init__(MemoryKV(CFS), "nowhere")

    def write(self, batch: Batch) -> None:
        super().write(batch)
        self._spill()

    def _store(self) -> KV:
        return MemoryKV(CFS)


KINDS: dict[str, Callable[[Path], KV]] = {
    "memory": lambda path: MemoryKV(CFS),
    "rocks": lambda path: RocksKV(path / "db", CFS),
    "faulty": lambda path: FaultyKV(CFS),
    "overlay-memory": lambda path: Overlay(MemoryKV(CFS)),
    "overlay-rocks": lambda path: Overlay(RocksKV(path / "db", CFS)),
    "overlay-faulty": lambda path: Overlay(FaultyKV(CFS)),
    "spilling": lambda path: AlwaysSpilling(),
    "overlay-overlay": lambda path: Overlay(Overlay(MemoryKV(CFS))),
}


@pytest.fixture(params=KINDS)
def make_kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeKV]:
    """Makes empty stores of one kind, and closes them with all that is under them."""
    numbers = itertools.count()
    opened: list[KV] = []

    def make() -> KV:
        path = tmp_path / str(next(numbers))
        path.mkdir()
        kv = KINDS[request.param](path)
        opened.append(kv)
        return kv

    yield make
    for kv in opened:
        while isinstance(kv, Overlay):
            kv = kv.base
        with contextlib.suppress(Exception):
            kv.close()


@pytest.fixture
def kv(make_kv: MakeKV) -> KV:
    return make_kv()
