"""Stores of a job in this process."""

from __future__ import annotations

from windrow.checkpoint.shard import OpenStore, open_rocks
from windrow.core.errors import ConfigurationError
from windrow.stores.in_memory import MemoryStore


def opener(store: str) -> OpenStore:
    """Return the function that opens the store of that name."""
    if store not in ("rocksdb", "memory"):
        raise ConfigurationError(f"store={store!r}: use 'rocksdb', on disk, or 'memory'")
    return MemoryStore if store == "memory" else open_rocks
