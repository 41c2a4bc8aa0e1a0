"""Snapshots and compact changelogs of a shard, from which its state is rebuilt, and the cleanup of its local folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping

from windrow.checkpoint.job_paths import JobFolders, base_name, base_part_name
from windrow.stores.files import now_ns
from windrow.stores.incremental_work import Slices
from windrow.stores.kv import Batch, Pair
from windrow.stores.segment import write_segment
from windrow.stores.snapshots import SWEEP_GRACE_S, SnapshotStore

#: Whole snapshots of a shard that are kept. Segments after the older one are kept too: the newer may be damaged.
SNAPSHOTS = 2

#: A compact changelog is written in parts of about so many bytes: neither memory nor a slice must grow with state.
BASE_PART_BYTES, BASE_SLICE_BYTES = 1 << 20, 1 << 17
#: It is written again when as many bytes have changed as it has, or after so many commits: the log keeps their records.
BASE_COMMITS = 2048

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
    return min(snapshot_at(folders, shard) for shard in range(shards))


def covered_by(folders: JobFolders, shard: int) -> int:
    """Return the commit of the oldest whole snapshot that is kept of a shard; 0 before there are as many as are kept."""
    newest = [commit for _, commit in zip(range(SNAPSHOTS), _snapshots(folders, shard), strict=False)]
    return newest[-1] if len(newest) == SNAPSHOTS else 0


def _snapshots(folders: JobFolders, shard: int) -> Iterator[int]:
    """Commits of whole snapshots, newest first."""
    store = SnapshotStore(folders.snapshots)
    return (commit_of(name) for name in reversed(store.list(shard)) if store.is_whole(name))


def bases_of(folders: JobFolders, shard: int) -> list[int]:
    """Commits of the shard's compact changelogs, newest first."""
    prefix = f"base-{shard:04d}-"
    names = os.listdir(folders.changelogs) if os.path.isdir(folders.changelogs) else []
    numbers = [n[len(prefix) : -4] for n in names if n.startswith(prefix) and n.endswith(".seg")]
    return sorted((int(n) for n in numbers if n.isdecimal()), reverse=True)


def base_due(folders: JobFolders, shard: int, commit: int) -> bool:
    """True if as much has changed since the compact changelog as it holds: so its cost follows what changes."""
    base = next(iter(bases_of(folders, shard)), None)
    if base is None or commit - base >= BASE_COMMITS:
        return base is None or commit > base
    part, own, held, changed = f"base_part-{shard:04d}-{base:012d}-", f"{shard:04d}", 0, 0
    with os.scandir(folders.changelogs) as entries:
        for entry in entries:
            number, _, rest = entry.name.partition("-")
            if entry.name.startswith(part):
                held += entry.stat().st_size
            elif number.isdecimal() and rest.startswith(own) and base < int(number) <= commit:
                changed += entry.stat().st_size
    return changed > 0 and changed >= held


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
    kept = bases_of(folders, shard)[:2]
    for name in sorted(os.listdir(folders.changelogs)):
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
