"""Backup: a consistent copy of a job's files, taken while the job runs.

The log is read first, then what its commits name is copied, and what shards are rebuilt from. Files are never changed, but a
running job sweeps them: a copy from which some shard cannot be rebuilt, or that lacks panes which are perhaps not out, is
thrown away, and begun again from a newer commit. Shards' own stores are caches, and are left out.

The copy is the same job, as of its last commit then: to run by itself, next to the original, it has to be forked.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windrow.checkpoint import job_admin
from windrow.checkpoint.compaction import commit_of
from windrow.checkpoint.files import SEGMENT, ShardFiles, pane_files
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.records import Commit
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_reader import readable
from windrow.checkpoint.storage import MARKER, SUFFIX, FolderRecords
from windrow.checkpoint.truncation_summary import letters_kept
from windrow.core.errors import CorruptState, StateLost
from windrow.stores.files import private, sync_directory
from windrow.stores.snapshots import SnapshotStore

#: The number of times that files may vanish during a backup.
ATTEMPTS = 10


@dataclass(frozen=True)
class Backup:
    """Result of a backup: the job, its last commit, and the files and bytes copied."""

    job: str
    commit: int
    files: int
    bytes: int


def backup(source: str, target: str) -> Backup:
    """Copy the job at `source`, as of a commit while we look, to the folder `target`, which must not exist or be empty.

    Opening `target` restores it. Raises `StateLost` where the job's own files do not suffice to rebuild it.
    """
    folders = JobFolders(target)
    job_admin.refuse_full(folders, "back up")
    for left in reversed(range(ATTEMPTS)):
        seen = job_admin.look(source)
        before = _signature(seen)
        staging = JobFolders(f"{folders.location}.backup-{secrets.token_hex(4)}")
        try:
            backup = _copy(seen, staging)
            job_admin.move_in(staging, folders)
            return backup
        except (StateLost, CorruptState, FileNotFoundError):
            if not left or _signature(job_admin.look(source)) == before:
                raise
        finally:
            shutil.rmtree(staging.location, ignore_errors=True)
    raise AssertionError("unreachable")


def _signature(seen: job_admin.Look) -> tuple[int, int, list[str]]:
    """Return what changes when a needed file is removed: the bounds of the log, and the snapshots."""
    return seen.state.first_seq, seen.state.next_seq, _manifests(seen.folders)


def _copy(seen: job_admin.Look, staging: JobFolders) -> Backup:
    staging.make()
    end = seen.state.next_seq
    known = {c.commit: c for c in seen.log.commits() if c.seq < end}
    records = {seq: seen.log.files.read(seq) for seq in range(seen.state.first_seq, end)}
    for record in known.values():
        for path in _named(seen.folders, record):
            _bring(seen.folders, staging, path)
    for file in letters_kept(seen.state.summary, known.values()):
        _bring(seen.folders, staging, seen.folders.dead(file.name))
    _copy_bases(seen, staging)
    _copy_snapshots(seen, staging)
    _refuse_incomplete(seen, staging, known)
    for seq, data in records.items():
        if data is None:
            raise StateLost(f"log record {seq} of {seen.where} went while it was copied")
        _write(os.path.join(staging.log, f"{seq:020d}{SUFFIX}"), data)
    if FolderRecords(seen.folders.log).is_truncated() or seen.state.first_seq:
        _write(os.path.join(staging.log, MARKER), b"records of this log were truncated; keep this file\n")
    files, size = _sync(staging.location)
    return Backup(seen.epoch.job, seen.state.commit_number, files, size)


def _named(folders: JobFolders, record: Commit) -> Iterator[str]:
    """Yield every file that a commit names, except its dead letters."""
    for result in record.shards:
        yield from (named.path for named in ShardFiles(folders, result.shard).named(record))
    for files in pane_files(folders, record).values():
        yield from files


def _copy_bases(seen: job_admin.Look, staging: JobFolders) -> None:
    """Compact changelogs up to our commit, the file that names the parts last."""
    for shard in range(seen.epoch.shards):
        files = ShardFiles(seen.folders, shard)
        for base in files.bases():
            if base > seen.state.commit_number:
                continue
            try:
                path, parts = files.base_files(base)
            except CorruptState:
                continue  # as with snapshots
            if all([_bring(seen.folders, staging, part) for part in parts]):
                _bring(seen.folders, staging, path)


def _copy_snapshots(seen: job_admin.Look, staging: JobFolders) -> None:
    """Snapshots up to our commit, the manifest last."""
    if not _manifests(seen.folders):
        return
    store = SnapshotStore(seen.folders.snapshots)
    SnapshotStore(staging.snapshots)  # makes the folders
    for name in store.list():
        if commit_of(name) > seen.state.commit_number:
            continue
        try:
            blobs = store.read(name).blobs
        except (CorruptState, FileNotFoundError):
            continue  # damaged, or swept: what is needed is asked for later
        paths = [os.path.join(seen.folders.snapshots, "blobs", digest) for digest in blobs]
        if all([_bring(seen.folders, staging, path) for path in paths]):
            _bring(seen.folders, staging, os.path.join(seen.folders.snapshots, "manifests", name))


def _manifests(folders: JobFolders) -> list[str]:
    """List the manifests of all snapshots. Does not create the folders."""
    path = os.path.join(folders.snapshots, "manifests")
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def _refuse_incomplete(seen: job_admin.Look, staging: JobFolders, known: Mapping[int, Commit]) -> None:
    """Raise `StateLost` where the copy would not open, or could not publish panes that are perhaps unpublished."""
    commit = seen.state.commit_number
    for shard in range(seen.epoch.shards):
        if commit not in _ways(seen, staging, shard, known):
            raise StateLost(
                f"shard {shard} of {seen.where} cannot be rebuilt as of commit {commit} from files: neither a snapshot with "
                "the segments after it, nor all segments are there. Let the job take a snapshot (it does when it goes on), and "
                "back up then"
            )
    published = 0 if seen.last_commit is None else seen.last_commit.published
    for number in range(published + 1, commit + 1):
        if number not in known:
            continue  # the last commit of a fork or of a restored log: the original's panes
        for files in pane_files(staging, known[number]).values():
            for path in files:
                if not os.path.exists(path):
                    raise StateLost(
                        f"panes of commit {number}, which may not be published yet, are gone: {path}"
                    )


def _ways(seen: job_admin.Look, staging: JobFolders, shard: int, known: Mapping[int, Commit]) -> set[int]:
    """Commits as of which a shard can be rebuilt from the copy: {the last one}, or none."""
    commit = seen.state.commit_number
    ways = readable(_spec(seen, staging, shard, ("messages",)), known, [commit])
    files = ShardFiles(seen.folders, shard)
    messages = any(named.kind == SEGMENT for record in known.values() for named in files.named(record))
    return ways if ways or messages else readable(_spec(seen, staging, shard, ()), known, [commit])


def _spec(seen: job_admin.Look, folders: JobFolders, shard: int, messages: tuple[str, ...]) -> ShardSpec:
    return ShardSpec(folders, seen.epoch.job, shard, (), messages)


def _bring(source: JobFolders, target: JobFolders, path: str) -> bool:
    """Copy a file to its place in the copy. False if it is gone."""
    there = os.path.join(target.location, os.path.relpath(path, source.location))
    if os.path.exists(there):
        return True
    try:
        with open(path, "rb") as data, open(there, "xb", opener=private) as copy:
            shutil.copyfileobj(data, copy, 1 << 20)
    except FileNotFoundError:
        return False
    return True


def _write(path: str, data: bytes) -> None:
    with open(path, "xb", opener=private) as file:
        file.write(data)


def _sync(location: str) -> tuple[int, int]:
    """Make all files and names below a folder survive a power cut; returns how many files and bytes there are."""
    files = size = 0
    for folder, _, names in os.walk(location):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
                files, size = files + 1, size + os.fstat(file.fileno()).st_size
        sync_directory(folder)
    return files, size
