"""Read-only shard: the store as it is on disk, and over it, in memory, the changes of later commits.

Opening a store for writing, flushing it and closing it waits for the disk a dozen times. A process that has the store for
one commit, and leaves it to another, would do that in each of them. A read takes no lock and changes nothing but a note of
rocksdict's own (`rocksdict-config.json`), which may be torn. So a store applies commits only every so many of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from windrow.checkpoint.marker import begun, is_of, marker_of
from windrow.checkpoint.shard import Shard, ShardSpec, missing_after
from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.core.errors import StateError
from windrow.stores.kv import LocalStore, Overlay

#: A store applies commits every so many commits.
TAKES_IN_EVERY: Final = 4
#: More than so many bytes are not read again in each of them.
MOST_BYTES: Final = 32 << 20


class Resting(Overlay):
    """Read-only store, and the later commits over it."""

    def __init__(self, base: LocalStore) -> None:
        super().__init__(base)
        self.path = base.path

    def checkpoint(self, path: str) -> None:
        raise StateError(f"the store {self.path} is read only: open it to take a copy of it")

    def close(self) -> None:
        super().close()
        self.base.close()


def open_resting(spec: ShardSpec, committed: int, recent: Sequence[CommitOfShards]) -> Shard | None:
    """Open the shard as of commit `committed`; None where its store does not reach it by small commits in `recent`."""
    if not spec.transport.shares_location:
        return None
    known = {c.commit: c for c in recent}
    with ExitStack() as stack:
        try:
            kv = spec.read_store(spec.path, spec.cfs)
            stack.callback(kv.close)
            marker = marker_of(kv, spec.job, spec.shard)
            if marker is None or begun(kv) is not None or not is_of(kv, marker, known):
                return None
            missing = missing_after(marker, committed, known)
            if missing is None or not _are_small(spec, missing):
                return None
            shard = Shard(spec, Resting(kv), marker.commit)
            shard.catch_up(missing)
        except (StateError, OSError):
            return None  # opening it for writing shows the cause
        stack.pop_all()
        return shard


def _are_small(spec: ShardSpec, missing: Sequence[CommitOfShards]) -> bool:
    """True if all of it is there, and not much."""
    if not all(map(spec.files.has, missing)):
        return False
    named = (n for record in missing for n in spec.files.named(record))
    return sum(os.path.getsize(n.path) for n in named) <= MOST_BYTES
