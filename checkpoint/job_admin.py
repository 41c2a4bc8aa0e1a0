"""Administration of a job while no driver runs it: inspect it, clear it, copy it.

None of these needs the definitions. `reset` never renumbers the log: its last record is a claim with which the log
begins anew, so a driver that slept through it can create nothing (docs/explanation/commit-protocol.md, L5). A fork's log
begins, as a truncated log does, with a commit: the original's last, without its files; what those held is in
snapshots of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import uuid
from dataclasses import dataclass, replace

from windrow.checkpoint.files import CHANGELOG, SEGMENT, ShardFiles
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import FileLog, RecordLog
from windrow.checkpoint.logstate import LogState
from windrow.checkpoint.marker import MARKER, MARKER_CF
from windrow.checkpoint.offsets import merge
from windrow.checkpoint.records import Commit, Epoch, ShardResult, Step, encode
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.checkpoint.storage import FolderRecords
from windrow.checkpoint.transport import FILES, Transport
from windrow.checkpoint.truncation_summary import SUMMARY
from windrow.core.errors import CorruptState, Fenced, JobMismatch, StateError, StateLocked, StateLost
from windrow.core.positions import Partition
from windrow.operators.operator import MESSAGES
from windrow.stores.files import sync_directory
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV

#: Everything below a location but the log.
DATA_FOLDERS = ("changelog", "segments", "panes", "dead", "snapshots", "local")
#: A live driver may sweep files while they are copied: then the copy begins again, from a newer commit.
FORK_ATTEMPTS = 5
#: Debian's name for a folder that is never there.
NOWHERE = "/nonexistent"


@dataclass(frozen=True)
class Look:
    """Contents of the log of a location. `epoch` is the last claim; `log` has been read to its end, as a reader. `where` is the
    location, or the log where that is elsewhere.
    """

    where: str
    folders: JobFolders
    epoch: Epoch
    state: LogState
    log: RecordLog

    @property
    def last_commit(self) -> Commit | None:
        return self.state.last_commit


def look(location: str | None, transport: Transport = FILES) -> Look:
    """Read the log of a location, as a reader. Raises `JobMismatch` where there is none.

    Where a `transport` carries the log, the location may be a cache of it, or None: of the job nothing is on this machine.
    """
    folders = JobFolders(NOWHERE if location is None else location)
    log = transport.log(folders)
    state = transport.read(folders, log)
    if state.epoch is None:
        raise JobMismatch(transport.no_job(folders))
    where = folders.location if transport.shares_location else repr(transport)
    return Look(where, folders, state.epoch, state, log)


# -- reset ----------------------------------------------------------------------------------------------------------


def reset(location: str, *, now_us: int, driver: str) -> str:
    """Delete the state of a job. Returns the identity of the empty job that the location holds then.

    Refused (`StateLocked`) while another process has one of its stores open. A driver that holds none at the moment, such
    as one between two Spark batches, is fenced first, and stops at its next record.
    """
    seen = look(location)
    _refuse_open_stores(seen.folders)
    log = FileLog(seen.folders.log)
    before = seen.epoch
    fence = log.open_epoch(
        opened_us=now_us,
        driver=driver,
        fingerprints=before.fingerprints,
        shards=before.shards,
        job=before.job,
        meta=dict(before.meta),
    )
    # Data is deleted first: a snapshot that outlived the commits could be taken for that of a later job.
    for name in DATA_FOLDERS:
        _delete(os.path.join(seen.folders.location, name))
    sync_directory(seen.folders.location)
    seq = fence.seq + 1
    begin = Epoch(
        epoch=fence.epoch + 1,
        opened_us=now_us,
        driver=driver,
        fingerprints={},
        shards=before.shards,
        job=_new_job(),
        meta={"reset": before.job},
        first_seq=seq,
        seq=seq,
    )
    files = FolderRecords(seen.folders.log)
    if not files.create(seq, encode(begin)):
        raise Fenced(
            f"another driver has opened {seen.folders.location} while it was being reset, and finds its data gone: stop it, "
            "and reset again"
        )
    files.mark_truncated()
    for number in files.numbers():
        if number < seq:
            files.remove(number)
    return begin.job


def _delete(folder: str) -> None:
    if os.path.isdir(folder):
        shutil.rmtree(folder)


def _refuse_open_stores(folders: JobFolders) -> None:
    if not os.path.isdir(folders.local):
        return
    for name in sorted(os.listdir(folders.local)):
        path = os.path.join(folders.local, name)
        if not os.path.exists(os.path.join(path, "CURRENT")):
            continue
        try:
            RocksKV(path, (), lock_wait_s=0.2).close()
        except StateLocked as error:
            raise StateLocked(
                f"another process has the job at {folders.location} open (its store {name} is locked): stop it first"
            ) from error
        except StateError:
            continue  # damaged or of a newer format: no process has it open, which is the question here


# -- fork -----------------------------------------------------------------------------------------------------------


def fork(source: str, target: str, *, now_us: int, driver: str) -> Commit:
    """Copy the state of the job at `source`, as of its last commit, to `target`, under an identity of its own.

    The original is only read, and may be running. The copy continues from the same offsets, watermark and `now`, with the
    next commit number; opened with the same definitions it gives what the original would. Panes up to the last commit,
    published or not, are the original's: the copy's begin with the commit after it. Returns that last commit.
    """
    folders = JobFolders(target)
    refuse_full(folders, "fork")
    for _ in range(FORK_ATTEMPTS):
        seen = look(source)
        staging = JobFolders(f"{folders.location}.fork-{secrets.token_hex(4)}")
        try:
            commit = _copy(seen, staging, now_us, driver)
            move_in(staging, folders)
            return commit
        except (StateLost, CorruptState, FileNotFoundError):
            if look(source).state.commit_number == seen.state.commit_number:
                raise
        finally:
            shutil.rmtree(staging.location, ignore_errors=True)
    raise StateError(
        f"the job at {source} swept its files {FORK_ATTEMPTS} times while they were being copied: stop it, and fork then"
    )


def refuse_full(target: JobFolders, verb: str) -> None:
    """Raise `JobMismatch` where a copy cannot be put."""
    path = target.location
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise JobMismatch(f"{path} is not empty: {verb} to a location that does not exist yet")


def move_in(staging: JobFolders, target: JobFolders) -> None:
    """Put a whole copy in its place."""
    if os.path.isdir(target.location):
        os.rmdir(target.location)
    os.rename(staging.location, target.location)
    sync_directory(os.path.dirname(target.location))


def _copy(seen: Look, staging: JobFolders, now_us: int, driver: str) -> Commit:
    """Build the whole copy at `staging`; its log comes last."""
    last = seen.last_commit
    if last is None:
        raise JobMismatch(f"{seen.folders.location} has no commit yet, so there is nothing to fork")
    log = FileLog(seen.folders.log)
    log.tail()
    known = [c for c in log.commits() if c.commit <= last.commit]
    staging.make()
    job = _new_job()
    snapshots = {shard: _copy_shard(seen, staging, job, shard, known) for shard in range(seen.epoch.shards)}
    genesis = replace(
        last,
        epoch=1,
        seq=1,
        steps=(_steps_so_far(known),),
        published=last.commit - 1,
        shards=tuple(ShardResult(shard=shard, snapshot=name) for shard, name in snapshots.items()),
    )
    # Dead letters belong to the original, as its panes do.
    before = replace(log.state.summary.after(known[:-1]), commit=last.commit - 1, dead_letters=())
    claim = replace(
        seen.epoch,
        epoch=2,
        seq=2,
        first_seq=1,
        voids=(),
        opened_us=now_us,
        driver=driver,
        job=job,
        meta={
            **seen.epoch.meta,
            SUMMARY: before.dump(),
            "forked_from": seen.epoch.job,
            "forked_at": last.commit,
        },
    )
    files = FolderRecords(staging.log)
    files.prepare()
    files.mark_truncated()
    files.create(genesis.seq, encode(genesis))
    files.create(claim.seq, encode(claim))
    return last


def _steps_so_far(known: list[Commit]) -> Step:
    """Return one step for the copy's log that covers all steps of the original: offsets read per source, or whole files."""
    last = known[-1]
    taken: dict[Partition, int] = {}
    for commit in known:
        for step in commit.steps:
            taken = merge(taken, step.next_offsets)
    now_us = last.now_us if last.now_us is not None else last.meta.get("now_us", 0)
    return Step(kind="advance", now_us=now_us, watermark_us=last.watermark_us, next_offsets=taken)


def _copy_shard(seen: Look, staging: JobFolders, job: str, shard: int, known: list[Commit]) -> str:
    """Build a shard's store from the original's files, give it its new identity, and keep a snapshot of it."""
    last = known[-1].commit
    metadata, messages = _column_families(seen, shard, known)
    original = ShardSpec(seen.folders, seen.epoch.job, shard, metadata, messages, staging.local)
    Shard.open(original, last, lambda: iter(known)).close()
    spec = ShardSpec(staging, job, shard, metadata, messages)
    kv = RocksKV(spec.path, spec.cfs)
    try:
        # A snapshot may bring families that no segment we have seen writes to.
        more = [cf for cf in sorted(kv.found) if cf not in spec.cfs and cf != "default"]
        if more:
            kv.close()
            metadata += tuple(cf for cf in more if not cf.endswith(MESSAGES))
            messages += tuple(cf for cf in more if cf.endswith(MESSAGES))
            spec = ShardSpec(staging, job, shard, metadata, messages)
            kv = RocksKV(spec.path, spec.cfs)
        copy = Shard(spec, kv, last)
        batch = Batch()
        batch.put(MARKER_CF, MARKER, copy.marker(last))
        kv.write(batch)
        return copy.snapshot()
    finally:
        kv.close()


def _column_families(seen: Look, shard: int, known: list[Commit]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (families of window metadata, families of messages) that the files of a shard write to."""
    metadata: set[str] = set()
    messages: set[str] = set()
    files = ShardFiles(seen.folders, shard)
    for commit in known:
        for named in files.named(commit):
            if named.kind == SEGMENT:
                # There were messages: if their files are gone, that must not look like an operator without any.
                messages.update(name + suffix for name in seen.epoch.fingerprints for suffix in MESSAGES)
            if os.path.exists(named.path):
                families = metadata if named.kind == CHANGELOG else messages
                families.update(files.read_file(named, commit.commit).cfs)
    return tuple(sorted(metadata)), tuple(sorted(messages))


def _new_job() -> str:
    return f"job-{uuid.uuid4().hex[:12]}"
