"""Snapshots and compact changelogs of a shard, from which its state is rebuilt, and the cleanup of its local folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from windrow.checkpoint.job_paths import JobFolders, base_name, base_part_name
from windrow.stores.files import now_ns
from windrow.stores.incremental_work import Slices, in_batches
from windrow.stores.kv import Batch, Pair
from windrow.stores.segment import write_segment
from windrow.stores.snapshots import SWEEP_GRACE_S, SnapshotStore

#: Whole snapshots of a shard that are kept. Segments after the older one are kept too: the newer may be damaged.
SNAPSHOTS = 2

#: A compact changelog is written in parts of about so many bytes: neither memory nor a slice must grow with state.
BASE_PART_BYTES, BASE_SLICE_BYTES = 1 << 20, 1 << 17
#: It is written again when as many bytes have changed as it has, or after so many commits: the log keeps their records.
BASE_COMMITS = 2048
#: Shards whose first ones were written in one commit write later ones apart, up to as many commits again later.
APART = 389
#: Shards whose manifests are read, and names that are looked at, in one slice.
SLICE_SHARDS, SLICE_NAMES = 16, 256

_BASE = re.compile(r"base-(?P<shard>\d+)-(?P<commit>\d+)\.seg")
_FILE = re.compile(r"base_part-(?P<of>\d+)-(?P<base>\d+)-|(?P<commit>\d+)-\d+-")

_LEFT = re.compile(
    r"shard-(?P<of>\d+)\.(aside-|(?:private|spill)-(?P<user>\d+)-|[0-9a-f]+\.tmp)|snapshot-(?P<copy>\d+)-(?P<taker>\d+)-"
)


def commit_of(manifest: str) -> int:
    """Return the commit that a snapshot is of."""
    return int(manifest.split("-")[1])


def snapshot_at(folders: JobFolders, shard: int) -> int:
    """Return the commit of the newest whole snapshot of a shard; 0 if there is none."""
    return next(_snapshots(folders, shard), 0)


def snapshots_from(folders: JobFolders, shards: int) -> int:
    """Return the commit after which segments would be needed, were all stores lost; 0 where a shard has no snapshot."""
    if not os.path.isdir(os.path.join(folders.snapshots, "manifests")):  # a reader makes no folder
        return 0
    store, newest = SnapshotStore(folders.snapshots), dict.fromkeys(range(shards), 0)
    for shard, names in _by_shard(store).items():
        newest[shard] = next((commit_of(name) for name in names if store.is_whole(name)), 0)
    return min(newest.values())


def covered(folders: JobFolders, shards: int) -> Slices[dict[int, int]]:
    """Return the commit of the oldest whole snapshot that is kept of each shard; 0 before there are as many as are kept.

    Snapshots are listed once, whatever the number of shards.
    """
    store = SnapshotStore(folders.snapshots)
    commits = dict.fromkeys(range(shards), 0)
    for batch in in_batches(_by_shard(store).items(), SLICE_SHARDS):
        for shard, names in batch:
            there = (commit_of(name) for name in names if store.is_whole(name))
            newest = [commit for _, commit in zip(range(SNAPSHOTS), there, strict=False)]
            commits[shard] = newest[-1] if len(newest) == SNAPSHOTS else 0
        yield
    return commits


def _by_shard(store: SnapshotStore) -> dict[int, list[str]]:
    """Return the manifests of each shard, newest first."""
    manifests = defaultdict[int, list[str]](list)
    for name in reversed(store.list()):
        manifests[int(name.partition("-")[0])].append(name)
    return manifests


def _snapshots(folders: JobFolders, shard: int) -> Iterator[int]:
    """Commits of whole snapshots, newest first."""
    store = SnapshotStore(folders.snapshots)
    return (commit_of(name) for name in reversed(store.list(shard)) if store.is_whole(name))


def bases_of(folders: JobFolders, shard: int) -> list[int]:
    """Commits of the shard's compact changelogs, newest first."""
    there = os.listdir(folders.changelogs) if os.path.isdir(folders.changelogs) else []
    return _bases(there).get(shard, [])


def _bases(names: Iterable[str]) -> dict[int, list[int]]:
    """Return the commits of the compact changelogs of each shard, newest first, of files of the changelog."""
    bases = defaultdict[int, list[int]](list)
    for match in filter(None, map(_BASE.fullmatch, names)):
        bases[int(match["shard"])].append(int(match["commit"]))
    return {shard: sorted(commits, reverse=True) for shard, commits in bases.items()}


class Changelog:
    """The changelogs of all shards: their compact ones, and the bytes that commits added. Each file is looked at once."""

    def __init__(self, folders: JobFolders) -> None:
        self._folders = folders
        #: Commits of the compact changelogs of each shard, newest first.
        self.bases: dict[int, list[int]] = {}
        #: The bytes of each shard's newest compact changelog, with its commit.
        self._held: dict[int, tuple[int, int]] = {}
        #: The bytes of commits, of all shards; those commits in order, and the bytes from each of them on.
        self._added: dict[int, int] = {}
        self._commits, self._since = list[int](), [0]
        self._next_commit = 1

    def look(self, upto: int) -> Slices[None]:
        """List the folder, and note what is new of commits up to one, in slices."""
        names = os.listdir(self._folders.changelogs) if os.path.isdir(self._folders.changelogs) else []
        self.bases = _bases(names)
        first, known, held = f"{self._next_commit:012d}", dict(self._held), defaultdict[int, int](int)
        for batch in in_batches((n for n in names if n >= first), SLICE_NAMES):
            for match in filter(None, map(_FILE.match, batch)):
                if match["base"] is None:
                    commit = int(match["commit"])
                    if commit <= upto:
                        self._added[commit] = self._added.get(commit, 0) + self._size(match.string)
                    continue
                shard, base = int(match["of"]), int(match["base"])
                if base == self.newest_base(shard) and known.get(shard, (0, 0))[0] != base:
                    held[shard] += self._size(match.string)
            yield
        for shard in self.bases:
            base = self.newest_base(shard)
            if known.get(shard, (0, 0))[0] != base:
                self._held[shard] = base, held[shard]
        self._next_commit = max(self._next_commit, upto + 1)
        oldest = min(map(self.newest_base, self._held), default=0)
        self._added = {commit: size for commit, size in self._added.items() if commit > oldest}
        self._commits = sorted(self._added)
        self._since = [*accumulate((self._added[c] for c in reversed(self._commits)), initial=0)][::-1]

    def is_due(self, shard: int, commit: int) -> bool:
        """True if all shards have changed as much since the shard's compact changelog as all of these hold.

        A file of a commit may have the changes of several shards, and is kept from the oldest compact changelog on. So what is
        kept, and what is written, follow what changes. Shards take turns: some write theirs after half as much.
        """
        base = self.newest_base(shard)
        if base == 0 or commit - base >= BASE_COMMITS + shard * APART % BASE_COMMITS:
            return commit > base
        changed = self._since[bisect_right(self._commits, base)]
        share = 1 - shard * APART % BASE_COMMITS / BASE_COMMITS / 2
        return changed > 0 and changed >= share * sum(size for _, size in self._held.values())

    def newest_base(self, shard: int) -> int:
        """Return the commit of a shard's newest compact changelog; 0 if there is none."""
        return next(iter(self.bases.get(shard, ())), 0)

    def _size(self, name: str) -> int:
        try:
            return os.stat(os.path.join(self._folders.changelogs, name)).st_size
        except FileNotFoundError:
            return 0


def compact(
    folders: JobFolders, shard: int, scans: Mapping[str, Iterator[Pair]], commit: int
) -> Slices[None]:
    """Write all window metadata as of `commit`, of which `scans` are, in parts that fit memory, and a file that names them.

    The one before it is kept, as a reader may use it. Older ones are deleted.
    """
    parts, batch, size, held = [], Batch(), 0, 0
    for cf, pairs in scans.items():
        for key, value in pairs:
            batch.put(cf, key, value)
            size += len(key) + len(value)
            if size < min(BASE_SLICE_BYTES, BASE_PART_BYTES):
                continue
            held, size = held + size, 0
            if held >= BASE_PART_BYTES:
                parts.append(_write_part(folders, shard, commit, batch))
                batch, held = Batch(), 0
            yield
    if held or size:
        parts.append(_write_part(folders, shard, commit, batch))
        yield
    write_segment(folders.changelog(base_name(commit, shard)), commit, shard, Batch(), {"parts": parts})
    yield
    names = os.listdir(folders.changelogs)
    kept = _bases(names)[shard][:2]
    for name in sorted(n for n in names if n.startswith("base")):
        kind, *rest = name.partition(".")[0].split("-")  # of what a killed process has left, too
        old = kind in ("base", "base_part") and int(rest[0]) == shard and int(rest[1]) < kept[-1]
        if old:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folders.changelogs, name))


def _write_part(folders: JobFolders, shard: int, commit: int, batch: Batch) -> list[str]:
    name = base_part_name(commit, shard)
    return [name, write_segment(folders.changelog(name), commit, shard, batch, compress=True)]


def sweep_local(local: str, shard: int) -> None:
    """Delete stores that were moved aside, private copies, and leftovers of killed attempts, all next to a shard's store.

    Called when a snapshot of the store is whole: what was moved aside before it will not be asked for. What a living process
    made, and what is younger than `SWEEP_GRACE_S`, may be in use, and stays.
    """
    horizon_ns = now_ns(local) - int(SWEEP_GRACE_S * 1e9)
    for name in sorted(os.listdir(local)):
        match = _LEFT.match(name)
        if (
            match is None
            or int(match["of"] or match["copy"]) != shard
            or _lives(match["user"] or match["taker"])
        ):
            continue
        path = os.path.join(local, name)
        with contextlib.suppress(FileNotFoundError):
            if _changed_ns(path) <= horizon_ns:
                shutil.rmtree(path, ignore_errors=True)


def _lives(pid: str | None) -> bool:
    """True if a process of this machine has this number."""
    return pid is not None and os.path.exists(f"/proc/{pid}")


def _changed_ns(folder: str) -> int:
    """Return the time at which a folder or a file in it was last changed."""
    with os.scandir(folder) as entries:
        return max([os.stat(folder).st_ctime_ns, *(entry.stat().st_mtime_ns for entry in entries)])
