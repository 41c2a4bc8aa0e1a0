"""Read-only shard: the store as it is on disk, and over it, in memory, the changes of later commits.

Opening a store for writing, flushing it and closing it waits for the disk a dozen times. A process that has the store for
one commit, and leaves it to another, would do that in each of them. A read takes no lock and changes nothing but a note of
rocksdict's own (`rocksdict-config.json`), which may be torn. So a store applies commits only every so many of them.

What a process has read stays open in it: when it has the shard again, it takes in what was committed since. That is right
whatever was written into the folder meanwhile: it is a commit of this job, to which later ones are added. If the folder is
gone, the store counts as lost, as it does for every other process: the source may not have its messages for much longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from windrow.checkpoint.marker import begun, is_of, marker_of
from windrow.checkpoint.shard import Shard, ShardSpec, missing_after
from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.core.errors import StateError
from windrow.stores.kv import LocalStore, Overlay

#: A store applies commits every so many commits at least.
TAKES_IN_EVERY: Final = 32
#: More than so many bytes are not kept in memory over a store.
MOST_BYTES: Final = 32 << 20
#: A process keeps so many stores open, each of which takes 0.4 MB of memory and some files, and so many bytes over them.
KEPT_STORES, KEPT_BYTES = 256, 64 << 20


class Resting(Overlay):
    """Read-only store, and the later commits over it."""

    def __init__(self, base: LocalStore, applied: int) -> None:
        """applied: the commit that the store holds."""
        super().__init__(base)
        self.path, self.of_store = base.path, applied
        #: Bytes of the later commits.
        self.taken = 0

    def checkpoint(self, path: str) -> None:
        raise StateError(f"the store {self.path} is read only: open it to take a copy of it")

    def close(self) -> None:
        super().close()
        self.base.close()


class KeptStores:
    """Stores that a process has read, and leaves open between commits."""

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}
        self._looked = 0

    def take(self, path: str) -> Shard | None:
        """Return the shard of a store, which is then the caller's; None where it is not kept."""
        return self._shards.pop(path, None)

    def drop(self, path: str) -> None:
        """Close the store, which is about to be opened for writing."""
        shard = self.take(path)
        if shard is not None:
            shard.close()

    def keep(self, shard: Shard) -> None:
        """Take over a shard. One that is not read-only, or for which there is no room, is closed."""
        if shard.applied > self._looked:
            self._looked = shard.applied
            for path in [p for p, kept in self._shards.items() if _is_old(kept, shard.applied)]:
                self.drop(path)
        bytes_kept = sum(_taken(kept) for kept in self._shards.values())
        room = len(self._shards) < KEPT_STORES and bytes_kept + _taken(shard) <= KEPT_BYTES
        if isinstance(shard.kv, Resting) and room:
            self.drop(shard.kv.path)
            self._shards[shard.kv.path] = shard
        else:
            shard.close()


def _taken(shard: Shard) -> int:
    return shard.kv.taken if isinstance(shard.kv, Resting) else 0


def _is_old(shard: Shard, commit: int) -> bool:
    """True if a shard has not been here for long, or its store has replaced the files that are open here."""
    return isinstance(shard.kv, Resting) and shard.kv.of_store < commit - 2 * TAKES_IN_EVERY


def open_resting(
    spec: ShardSpec, committed: int, recent: Sequence[CommitOfShards], kept: KeptStores | None = None
) -> Shard | None:
    """Open the shard as of commit `committed`; None where its store does not reach it by small commits in `recent`."""
    if not spec.transport.shares_location:
        return None
    known = {c.commit: c for c in recent}
    shard = None if kept is None else kept.take(spec.path)
    if shard is not None:
        shard.spec = spec
        if not shard.is_in_place():
            shard.close()
        elif _reaches(shard, committed, known):
            return shard
    return _read(spec, committed, known)


def _read(spec: ShardSpec, committed: int, known: Mapping[int, CommitOfShards]) -> Shard | None:
    try:
        kv = spec.read_store(spec.path, spec.cfs)
    except (StateError, OSError):
        return None  # opening it for writing shows the cause
    try:
        marker = marker_of(kv, spec.job, spec.shard)
    except (StateError, OSError):
        marker = None
    if marker is None:
        kv.close()
        return None
    shard = Shard(spec, Resting(kv, marker.commit), marker.commit)
    return shard if _reaches(shard, committed, known) else None


def _reaches(shard: Shard, committed: int, known: Mapping[int, CommitOfShards]) -> bool:
    """Bring a read-only shard to a commit. False where it cannot be: then it is closed."""
    spec, kv = shard.spec, shard.kv
    assert isinstance(kv, Resting)
    with ExitStack() as stack:
        stack.callback(shard.close)
        with suppress(StateError, OSError):
            marker = marker_of(kv, spec.job, spec.shard)
            if (
                marker is None
                or not {*spec.cfs} <= {*kv.cfs}
                or begun(kv) is not None
                or not is_of(kv, marker, known)
            ):
                return False
            missing = missing_after(marker, committed, known)
            if missing is None or not all(map(spec.files.has, missing)):
                return False
            kv.taken += sum(n.nbytes for record in missing for n in spec.files.named(record))
            if kv.taken > MOST_BYTES:
                return False
            shard.catch_up(missing)
            stack.pop_all()
            return True
    return False
