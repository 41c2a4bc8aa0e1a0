"""Reader of a shard as of one commit: nothing is locked, claimed or written below the job's location.

A live store trails the commits (RocksDB's own log is off): a read replica of it is opened, and the segments after its
`applied` marker are laid over that. Where it is missing, damaged, or ahead of the commit that is asked for, the newest snapshot
at or before that commit is restored into a scratch folder and brought up to it in the same way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence

from windrow.checkpoint.marker import begun, is_of, marker_of
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.core.errors import CorruptState, NewerFormat, StateError, StateLost
from windrow.stores.kv import KV, Batch, MemoryKV, Overlay
from windrow.stores.rocks import RocksKV, mirror
from windrow.stores.snapshots import SnapshotStore

#: Attempts to open a live store whose files are deleted meanwhile.
MIRRORS = 3
STORE, SNAPSHOT, SEGMENTS, CHANGELOG = "store", "snapshot", "segments", "changelog"


class ShardView:
    """One shard as of `commit`. `way`: the source it was built from; `base`: the commit of that source."""

    def __init__(self, spec: ShardSpec, kv: Overlay, commit: int, way: str, base: int) -> None:
        self.spec = spec
        self.kv = kv
        self.commit = commit
        self.way = way
        self.base = base

    def follow(self, known: Mapping[int, Commit]) -> Batch:
        """Lay the segments of the commits that follow over it, and return the changes of window metadata. The segments are all
        there, or an error says that the view is lost.
        """
        changes = Batch()
        for number in sorted(known):
            for part in self.spec.files.read(known[number]):
                self.kv.batch.extend(part.only(self.spec.cfs))
                changes.extend(part.only(self.spec.metadata_cfs))
            self.commit = number
        return changes

    def close(self) -> None:
        self.kv.base.close()


def open_view(
    spec: ShardSpec, commit: int, known: Mapping[int, Commit], scratch: str, *, live: bool = True
) -> ShardView:
    """Return the shard as of `commit`, by the first way that works. `live=False` leaves the local store alone.

    `known` are the commits that the log keeps. Raises `StateLost` where no way leads to that commit.
    """
    if live:
        view = _from_store(spec, commit, known, scratch)
        if view is not None:
            return view
    damage: CorruptState | None = None
    for base, manifest in _starts(spec, commit):
        if not spec.files.lead(base, commit, known):
            continue
        try:
            kv = MemoryKV(spec.cfs) if manifest is None else _restored(spec, manifest, base, scratch)
        except CorruptState as error:
            spec.logger.warning("snapshot is damaged", commit=base, error=str(error))
            damage = error
            continue
        return _brought(spec, kv, base, commit, known, SEGMENTS if manifest is None else SNAPSHOT)
    if not spec.message_cfs:
        emitted = from_changelog(spec, commit, known)
        if emitted is not None:
            return emitted
    raise StateLost(
        f"shard {spec.shard} of {spec.folders.location} cannot be read as of commit {commit}: neither its store, nor a "
        f"snapshot with the segments after it, nor all segments are there{'' if damage is None else f' ({damage})'}"
    )


def readable(spec: ShardSpec, known: Mapping[int, Commit], commits: Sequence[int]) -> set[int]:
    """Return the `commits` that snapshots, segments and changelog lead to; the live store is not inspected."""
    reached = set()
    starts = [base for base, _ in _starts(spec, max(commits, default=0))]
    bases = [] if spec.message_cfs else spec.files.bases()
    for base in {*starts, *bases}:
        number = base
        while True:
            reached.add(number)
            number += 1
            if not spec.files.has(known.get(number), metadata_only=base not in starts):
                break
    return reached & set(commits)


def _starts(spec: ShardSpec, commit: int) -> list[tuple[int, str | None]]:
    """Return (commit, manifest) of each possible start, newest first; at last the empty state."""
    return [*(start for start in spec.files.snapshots() if start[0] <= commit), (0, None)]


def _brought(
    spec: ShardSpec, kv: KV, base: int, commit: int, known: Mapping[int, Commit], way: str
) -> ShardView:
    """Return a view of `kv`, which holds commit `base`, with the later segments laid over it."""
    overlay = Overlay(kv)
    try:
        view = ShardView(spec, overlay, commit, way, base)
        view.follow({number: known[number] for number in range(base + 1, commit + 1)})
    except BaseException:
        kv.close()
        raise
    return view


def _from_store(spec: ShardSpec, commit: int, known: Mapping[int, Commit], scratch: str) -> ShardView | None:
    """Return the local store, if it is this shard's and segments continue from it."""
    if not os.path.exists(os.path.join(spec.path, "CURRENT")):
        return None
    kv = _opened(spec, scratch)
    if kv is None:
        return None
    try:
        marker = marker_of(kv, spec.job, spec.shard)
        if marker is not None:
            base, is_own = marker.commit, is_of(kv, marker, known)
        else:  # of a job that began a moment ago the disk has nothing: its store is in memory, and its log off
            base, is_own = 0, not any(next(kv.scan(cf), None) for cf in spec.cfs)
        part = begun(kv)
        is_own = is_own and (part is None or part.commit <= commit)
        if base > commit or not is_own or not spec.files.lead(base, commit, known):
            kv.close()
            return None
    except CorruptState:
        kv.close()
        return None
    return _brought(spec, kv, base, commit, known, STORE)


def _opened(spec: ShardSpec, scratch: str) -> RocksKV | None:
    """Return a read replica of the local store. Its owner may be replacing files just now, so it is tried again."""
    for _ in range(MIRRORS):
        own = os.path.join(scratch, f"mirror-{spec.shard}-{secrets.token_hex(4)}")
        try:
            mirror(spec.path, own)
            return RocksKV(own, spec.cfs, read_only=True)
        except NewerFormat:
            raise
        except StateError as error:
            spec.logger.debug("the live store cannot be read", path=spec.path, error=str(error))
    return None


def _restored(spec: ShardSpec, manifest: str, base: int, scratch: str) -> RocksKV:
    path = os.path.join(scratch, f"snapshot-{spec.shard}-{secrets.token_hex(4)}")
    SnapshotStore(spec.folders.snapshots).restore(manifest, path)
    kv = RocksKV(path, spec.cfs, read_only=True)
    marker = marker_of(kv, spec.job, spec.shard)
    if marker is None or marker.commit != base:
        kv.close()
        raise CorruptState(f"the snapshot {manifest} is not of commit {base} of {spec.job}")
    return kv


def from_changelog(spec: ShardSpec, commit: int, known: Mapping[int, Commit]) -> ShardView | None:
    """Return window metadata alone, from a compacted changelog and later commits; None where these do not exist."""
    for base in [b for b in (*spec.files.bases(), 0) if b <= commit]:
        if spec.files.lead(base, commit, known, metadata_only=True):
            kv = MemoryKV(spec.cfs)
            for part in spec.files.read_base(base) if base else ():
                kv.write(part.only(spec.cfs))
            return _changed(spec, kv, base, commit, known)
    if 0 < spec.transport.copied(spec.job, spec.shard) <= commit:
        kv = MemoryKV(spec.cfs)
        # The driver may have copied more meanwhile: then this is of no use.
        base = spec.transport.restore(spec.job, spec.shard, kv.write)
        if base <= commit and spec.files.lead(base, commit, known, metadata_only=True):
            return _changed(spec, kv, base, commit, known)
    return None


def _changed(spec: ShardSpec, kv: MemoryKV, base: int, commit: int, known: Mapping[int, Commit]) -> ShardView:
    """Return window metadata of commit `base`, with the changes of later commits."""
    for number in range(base + 1, commit + 1):
        for part in spec.files.read(known[number], metadata_only=True):
            kv.write(part.only(spec.cfs))
    return ShardView(spec, Overlay(kv), commit, CHANGELOG, base)


def metadata_of(
    spec: ShardSpec, record: Commit, part: Callable[[Batch], Batch] | None = None
) -> Batch | None:
    """Return a commit's changes to a shard's window metadata; None where its file was swept. part: returns the part that is
    wanted, a copy, of changes whose values may be views
    """
    if not spec.files.has(record, metadata_only=True):
        return None
    whole = Batch()
    for changes in spec.files.read(record, metadata_only=True, views=part is not None):
        whole.extend(changes if part is None else part(changes))
    return whole
