"""Simulated store of a shard, in memory and in one file: unflushed data is lost with its process."""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from windrow.core.errors import CorruptState, StateError, StateLocked
from windrow.stores.files import inode_of, write_whole
from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.quarantine import OPEN
from windrow.testing.faults import FaultyKV
from windrow.testing.simulation.disk import Disk
from windrow.testing.simulation.world import World


class RestingStore(MemoryKV):
    """A shard's store as its file has it; it takes no lock."""

    def __init__(self, world: World, path: str, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self.path = path
        world.point("3.1 store", "before a store is read")
        self.write(_flushed(path) or Batch())

    def checkpoint(self, path: str) -> None:
        raise StateError(f"the store {self.path} is read only")


def _flushed(path: str) -> Batch | None:
    """Return the content of a store's newest file, or of the copy that it was restored from; None where there is none."""
    files = [n for n in os.listdir(path) if n.endswith(".sst")] if os.path.isdir(path) else []
    if not files:
        return None
    with open(os.path.join(path, min(files)), "rb") as stored:
        data = stored.read()
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise CorruptState(f"the store {path} is damaged")
    return Batch.decode(data[8:])


class SimulatedStore(FaultyKV):
    """A shard's store: in memory, and in one file of its folder as of its last flush. One process at a time opens it."""

    def __init__(self, world: World, disk: Disk, path: str, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self._world, self._disk = world, disk
        self.path = path
        world.point("3.1 store", "before a store is opened")
        if path in world.open_stores:
            raise StateLocked(f"the store {path} is open in {world.open_stores[path]}")
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "CURRENT"), "wb"):
            pass  # the name by which RocksDB, and readers of it, know that there is a store
        if (batch := _flushed(path)) is not None:
            self._alive().write(batch)
            self._durable.extend(batch)
        else:
            write_whole(os.path.join(path, "000001.sst"), [self._image()], fsync=False)
        world.open_stores[path] = self
        OPEN[self] = inode_of(path)  # who evicts stores looks there
        self._process = world.process
        if self._process is not None:
            self._process.stores.append(self)

    def __repr__(self) -> str:
        return f"<store of {self._process}>"

    def _image(self) -> bytes:
        data = self._durable.encode()
        return xxhash.xxh3_64_digest(data) + data

    def write(self, batch: Batch) -> None:
        self._world.point("3.1 store", "before a segment is applied")
        super().write(batch)

    def checkpoint(self, path: str) -> None:
        super().flush()
        os.makedirs(path)
        self._world.copies += 1  # no file of RocksDB's gets another content under its name
        write_whole(os.path.join(path, f"{self._world.copies + 1:06}.sst"), [self._image()], fsync=False)

    def close(self) -> None:
        if self._world.open_stores.get(self.path) is not self:
            self._world.point("3.1 store", "a store is closed")  # raises where its process is dead
            return
        self._world.point("3.1 store", "before a store is closed")
        super().close()
        write_whole(os.path.join(self.path, "000001.sst"), [self._image()], fsync=False)
        self._disk.keep(os.path.join(self.path, "000001.sst"))
        self._let_go()
        if self._process is not None and self in self._process.stores:
            self._process.stores.remove(self)

    def die(self, survivors: int) -> None:
        """Kill the process of the store: the first `survivors` of the unflushed batches are kept as well."""
        if self._world.open_stores.get(self.path) is not self:
            return
        for batch in self._unflushed[:survivors]:
            self._durable.extend(batch)
        self._live = None
        file = os.path.join(self.path, "000001.sst")
        if os.path.isdir(self.path):
            with open(file, "wb") as stored:
                stored.write(self._image())
            self._disk.keep(file)
        self._let_go()

    def _let_go(self) -> None:
        del self._world.open_stores[self.path]
        OPEN.pop(self, None)
