"""Shard: its store, restored to the last commit, and its writes in the next one.

The numbers are those of docs/explanation/commit-protocol.md. A shard changes nothing but files under names of its own; its
store only ever holds committed segments (log first, apply later), so it never rolls back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from windrow.checkpoint.compaction import SNAPSHOTS, Changelog, compact, sweep_local
from windrow.checkpoint.files import CommitFiles, Rows, ShardFiles
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.marker import BEGUN, MARKER, MARKER_CF, Marker, is_of
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.recovery import ShardAction, ShardDecision, ShardFacts, StoreFound, on_shard_open
from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.errors import CorruptState, NewerFormat, StateError, StateLocked, StateLost
from windrow.core.logs import Logger, get_logger
from windrow.stores.files import inode_of
from windrow.stores.incremental_work import Slices, whole
from windrow.stores.kv import Batch, Changes, LocalStore, Overlay
from windrow.stores.page_cache import RecentKV
from windrow.stores.quarantine import destroy, move_aside
from windrow.stores.rocks import RocksKV
from windrow.stores.segment import PART_BYTES
from windrow.stores.snapshots import (
    SWEEP_GRACE_S,
    Digests,
    SnapshotStore,
    copy_name,
    keep_digests,
    kept_digests,
)

#: Longest wait of a shard for a store that another process has open.
LOCK_WAIT_S = 10.0

#: Reads the commits that the log keeps; passed by a caller that can read it.
Commits = Callable[[], Iterator[Commit]]
#: Files the messages of the retained windows again, from the source (seed 003: the message store is lost), given all commits
#: that the log has. The store has the window metadata of the last of them.
Replay = Callable[["ShardSpec", LocalStore, Sequence[Commit]], None]
#: Opens the store of a folder: (path, column families, how long to wait for its lock). Errors as `RocksKV`'s.
OpenStore = Callable[[str, Sequence[str], float], LocalStore]


#: Reads the store of a folder as it rests there, with no lock: (path, column families). `StateError` where it cannot.
ReadStore = Callable[[str, Sequence[str]], LocalStore]


def read_rocks(path: str, cfs: Sequence[str]) -> LocalStore:
    return RocksKV(path, cfs, read_only=True)


def open_rocks(path: str, cfs: Sequence[str], lock_wait_s: float) -> LocalStore:  # the default of `ShardSpec`
    return RecentKV(path, cfs, lock_wait_s=lock_wait_s)


@dataclass(frozen=True)
class ShardSpec:
    """Specification from which a shard finds its state. Picklable: it travels to executors.

    metadata_cfs hold window metadata, message_cfs messages; local is the folder of local stores, None for the job's own;
    replayable is False where lost messages cannot be read from the source again; open_store opens local stores, read_store
    reads them; transport carries what commits name.
    """

    folders: JobFolders
    job: str
    shard: int
    metadata_cfs: tuple[str, ...]
    message_cfs: tuple[str, ...] = ()
    local: str | None = None
    replayable: bool = True
    open_store: OpenStore = open_rocks
    read_store: ReadStore = read_rocks
    transport: Transport = FILES

    @property
    def cfs(self) -> tuple[str, ...]:
        return (MARKER_CF, *self.metadata_cfs, *self.message_cfs)

    @property
    def path(self) -> str:
        return self.folders.store(self.shard, self.local)

    @property
    def logger(self) -> Logger:
        """Logger that names job and shard."""
        return get_logger().bind(job=self.job, shard=self.shard)

    @property
    def files(self) -> ShardFiles:
        return ShardFiles(self.folders, self.shard, self.transport)


class MessagesLost(StateLost):
    """Error for a shard that has lost only its messages: a replay can read them from the source again."""


class StoreDamaged(CorruptState):
    """Error for a store that proved damaged in use and was moved aside: the next open of the shard rebuilds it."""


class _SnapshotDamaged(Exception):
    """Error for a snapshot that cannot be restored."""


#: Identity of a folder, independent of its name; None: there is none.
Inode = tuple[int, int] | None


def _folder(path: str) -> Inode:
    try:
        return inode_of(path)
    except FileNotFoundError:
        return None


def _move_aside(path: str, inode: Inode) -> bool:
    return inode is not None and move_aside(path, inode, f"{path}.aside-{time.time_ns()}")


def _raise_if_refused(decision: ShardDecision, facts: ShardFacts) -> None:
    try:
        decision.raise_if_refused()
    except StateLost as error:
        if on_shard_open(replace(facts, can_replay=True)).replay_messages:
            raise MessagesLost(error.message) from None
        raise


def _whole_records(known: Mapping[int, CommitOfShards], upto: int) -> list[Commit]:
    """Return the records of commits up to `upto`. Raises `StateError` where the log does not show one of them here yet."""
    commits = [known[number] for number in sorted(known) if number <= upto]
    records = [commit for commit in commits if isinstance(commit, Commit)]
    if len(records) < len(commits):
        unseen = [commit.commit for commit in commits if not isinstance(commit, Commit)]
        raise StateError(
            f"the log does not show commits {unseen} here yet, which the driver has made: try again"
        )
    return records


class Shard:
    """The open store of one shard, at commit `applied`."""

    def __init__(self, spec: ShardSpec, kv: LocalStore, applied: int) -> None:
        self.spec = spec
        self.kv = kv
        self.applied = applied
        self._digests: Digests | None = None
        self._inode = _folder(kv.path)

    # -- 3.1: open and catch up -------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        spec: ShardSpec,
        committed: int,
        commits: Commits,
        recent: Sequence[CommitOfShards] = (),
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        replay: Replay | None = None,
    ) -> Shard:
        """Bring the shard's store to commit `committed`. `recent` are the newest commits, so that the log need not be
        read in the common case; `commits` reads older ones.
        """
        inode = _folder(spec.path)
        kv, status, marker = look(spec, spec.path, lock_wait_s)
        by_number: dict[int, CommitOfShards] = {c.commit: c for c in recent}
        if kv is not None and marker is not None and is_of(kv, marker, by_number):
            missing = missing_after(marker, committed, by_number)
            if missing is not None and all(map(spec.files.has, missing)):
                try:
                    return cls._led_on(spec, kv, marker.commit, missing)
                except StoreDamaged:
                    kv, status, marker = None, StoreFound.ABSENT, None
        known = {**by_number, **{c.commit: c for c in commits()}}
        past = marker is not None and marker.commit <= committed
        if kv is not None and marker is not None and past and not is_of(kv, marker, known):
            spec.logger.warning("the store is of another history", path=spec.path, commit=marker.commit)
            kv.close()
            kv, status, marker = None, StoreFound.DIVERGED, None
        applied = None if marker is None else marker.commit
        damaged: list[int] = []
        while True:
            facts = facts_of(spec, committed, known, status, applied, replay is not None, damaged)
            decision = on_shard_open(facts)
            try:
                _raise_if_refused(decision, facts)
            except StateError:
                if kv is not None:
                    kv.close()  # or nobody else could open it as long as this process lives
                raise
            try:
                return cls._carry_out(spec, decision, known, kv, replay, inode)
            except StateLocked:
                if decision.private_copy:
                    raise
                # Another process has opened it since we looked.
                kv, status, applied = None, StoreFound.LOCKED, None
            except StoreDamaged:
                if kv is None:
                    raise  # what was just built
                kv, status, applied = None, StoreFound.ABSENT, None
            except _SnapshotDamaged as error:
                # The next best way, or a refusal; by now the local store is out of the way.
                spec.logger.warning("snapshot is damaged", commit=decision.base, error=str(error.__cause__))
                damaged.append(decision.base)
                kv = None
                if decision.move_aside:
                    status, applied = StoreFound.ABSENT, None

    @classmethod
    def _led_on(
        cls, spec: ShardSpec, kv: LocalStore, applied: int, missing: Sequence[CommitOfShards]
    ) -> Shard:
        shard = cls(spec, kv, applied)
        try:
            shard.catch_up(missing)
        except BaseException:
            kv.close()  # or nobody else could open it as long as this process lives
            raise
        return shard

    @classmethod
    def _carry_out(
        cls,
        spec: ShardSpec,
        decision: ShardDecision,
        known: Mapping[int, CommitOfShards],
        kv: LocalStore | None,
        replay: Replay | None,
        inode: Inode,
    ) -> Shard:
        path = spec.path
        if decision.private_copy:
            path = f"{path}.private-{os.getpid()}-{time.monotonic_ns()}"
            spec.logger.warning(
                "the store is not let go: a copy is built beside it", path=spec.path, copy=path
            )
        if decision.action not in (ShardAction.USE_AS_IS, ShardAction.APPLY_SEGMENTS):
            if kv is not None:
                kv.close()
                kv = None
            if decision.move_aside and os.path.exists(path):
                if not _move_aside(path, inode):
                    raise StateLocked(
                        f"somebody else has opened the store {path} since this one looked at it"
                    )
            elif not decision.private_copy and os.path.exists(path):
                if os.path.exists(os.path.join(path, "CURRENT")):
                    raise StateLocked(
                        f"the store {path} was made by somebody else since this one looked for it"
                    )
                destroy(path)
                shutil.rmtree(path, ignore_errors=True)
        if decision.action is ShardAction.RESTORE_SNAPSHOT:
            manifest = next(name for commit, name in spec.files.snapshots() if commit == decision.base)
            try:
                # Copied, not linked: damage to the local store must not be damage to the snapshot.
                SnapshotStore(spec.folders.snapshots).restore(manifest, path)
            except CorruptState as error:
                raise _SnapshotDamaged from error
        kv = kv or spec.open_store(path, spec.cfs, LOCK_WAIT_S)
        if decision.action is ShardAction.RESTORE_SNAPSHOT and applied_in(kv) != decision.base:
            kv.close()
            raise StateLocked(f"the store {path} was taken away by somebody else since it was restored")
        shard = cls(spec, kv, decision.base)
        try:
            if decision.action is ShardAction.REBUILD_FROM_CHANGELOG:
                shard._rebuild(decision.base, known, replay if decision.replay_messages else None)
                if decision.replay_messages:
                    # The next open of this shard, on any machine, finds all that its recovery needed.
                    shard.snapshot()
            elif decision.action is ShardAction.START_EMPTY:
                shard._mark(0)
            for number in decision.apply:
                shard.catch_up([known[number]])
        except BaseException:
            kv.close()
            if decision.action is ShardAction.REBUILD_FROM_CHANGELOG:
                destroy(path)
            raise
        return shard

    def is_in_place(self) -> bool:
        """True if the store's folder is the one that was opened, and is still there."""
        return self._inode is not None and _folder(self.kv.path) == self._inode

    def set_aside(self) -> None:
        """Close the damaged store and move it aside, since it is a cache of committed data. The next open of the shard
        rebuilds it."""
        with contextlib.suppress(StateError):  # it may fail, as long as it releases the lock
            self.kv.close()
        if not _move_aside(self.kv.path, self._inode) and os.path.exists(self.kv.path):
            self.spec.logger.warning(
                "the damaged store is left alone: somebody has it open, or has built it anew",
                path=self.kv.path,
            )

    def _write(self, batch: Batch) -> None:
        """Write into the store. If RocksDB finds damage while it rewrites files, the next write of each process reports it."""
        try:
            self.kv.write(batch)
        except CorruptState as error:
            self.spec.logger.warning(
                "the store is damaged and moved aside", path=self.kv.path, error=str(error)
            )
            self.set_aside()
            raise StoreDamaged(error.message) from error

    def catch_up(self, records: Iterable[CommitOfShards]) -> None:
        """Apply committed segments in the order of their commits, small ones of several together."""
        held, last, apart = Batch(), None, not self.spec.transport.shares_location
        for record in records:
            batch, begun = Batch(), False
            for part in self.spec.files.read(record):
                if batch.nbytes + part.nbytes > PART_BYTES and not apart:
                    held, last = self._let_go(held, last), None
                    batch.put(MARKER_CF, BEGUN, self.marker(record.commit, record))
                    self._write(batch)
                    batch, begun = Batch(), True
                batch.extend(part)
            if begun or apart:
                self.apply(self.applied + 1, batch, record, begun=begun)
                continue
            if held.nbytes + batch.nbytes > PART_BYTES:
                held = self._let_go(held, last)
            held.extend(batch)
            last = record
        self._let_go(held, last)

    def _let_go(self, held: Batch, last: CommitOfShards | None) -> Batch:
        """Apply the held changes of commits up to the `last`. Returns an empty batch."""
        if last is not None:
            self.apply(last.commit, held, last)
        return Batch()

    def apply(
        self, commit: int, changes: Batch, record: CommitOfShards | None = None, begun: bool = False
    ) -> None:
        """Apply a commit's changes: first to the transport's changelog, then to the store. record: of the commit;
        without it the store cannot be distinguished from that of another history. begun: a part of it is there."""
        spec, batch, marker = self.spec, Batch(), self.marker(commit, record)
        spec.transport.copy(spec.job, spec.shard, commit, partial(self._key_by_key, changes))
        if changes.nbytes <= PART_BYTES and not begun:
            batch.extend(changes)
        else:  # in parts; one that was begun and did not end is begun again
            for part in changes.parts(PART_BYTES):
                part.put(MARKER_CF, BEGUN, marker)
                self._write(part)
            batch.delete(MARKER_CF, BEGUN)
        batch.put(MARKER_CF, MARKER, marker)
        self._write(batch)
        self.applied = commit

    def _key_by_key(self, changes: Batch) -> Batch:
        """Changes of window metadata, with a delete for every key that a deleted range holds."""
        batch = Batch()
        for cf in self.spec.metadata_cfs:
            for start, end in changes.ranges(cf):
                batch.delete_many(cf, [key for key, _ in self.kv.scan(cf, start, end)])
            points = changes.points(cf)
            batch.put_many(cf, points.keys(), points.values())  # type: ignore[arg-type]
        return batch

    def marker(self, commit: int, record: CommitOfShards | None = None) -> bytes:
        """Return the marker that a store has when it holds this commit."""
        return Marker.of(self.spec.job, self.spec.shard, commit, record).pack()

    def _mark(self, commit: int, record: CommitOfShards | None = None) -> None:
        batch = Batch()
        batch.put(MARKER_CF, MARKER, self.marker(commit, record))
        self._write(batch)
        self.applied = commit

    def _rebuild(self, upto: int, known: Mapping[int, CommitOfShards], replay: Replay | None) -> None:
        """Rebuild window metadata from its changelog: the newest base, then later commits. Then messages, by `replay`."""
        spec, base = self.spec, newest_base(self.spec)
        first = 1
        if (base or 0) < spec.transport.copied(spec.job, spec.shard) <= upto:
            first = spec.transport.restore(spec.job, spec.shard, self.kv.write) + 1
            if first > upto + 1:
                raise StateLost(
                    f"shard {spec.shard}: another executor took in commit {first - 1} while this one was to reach commit "
                    f"{upto}: this driver is over, or try again"
                )
        elif base is not None:
            for batch in spec.files.read_base(base):
                self.kv.write(batch)
            first = base + 1
        for number in range(first, upto + 1):
            if any(spec.files.named(known[number])):
                batch = Batch()
                for part in spec.files.read(known[number], metadata_only=True):
                    batch.extend(part)
                spec.transport.copy(spec.job, spec.shard, number, partial(self._key_by_key, batch))
                self.kv.write(batch)
        if replay is not None:
            replay(self.spec, self.kv, _whole_records(known, upto))
        # Last: a store that was killed before this counts as empty.
        self._mark(upto, known.get(upto))

    # -- 3.2: run and write -----------------------------------------------------------------------------------------

    def overlay(self) -> Overlay:
        """Return the overlay that the operator runs on: it reads from the store and buffers changes."""
        return Overlay(self.kv)

    def write(
        self,
        commit: int,
        changes: Changes,
        panes: Mapping[str, Rows],
        dead: pa.Table | None,
        counters: Mapping[str, int],
        *,
        snapshot: str | None = None,
        shared: CommitFiles | None = None,
    ) -> ShardResult:
        """Write the changes of `commit` in this shard, under a name of this attempt's own, or into files that the task's
        shards share. `panes` are by operator; empty tables are not written."""
        spec = self.spec
        metadata, messages = changes.only(spec.metadata_cfs), changes.only(spec.message_cfs)
        return spec.files.write(commit, metadata, messages, panes, dead, counters, snapshot, shared)

    # -- 6: between commits -----------------------------------------------------------------------------------------

    def preserve(self, *, alone: bool = False, compacts: bool | None = None) -> Slices[str]:
        """Write a snapshot of the store as of `applied`, and a compact changelog if due, in slices. Between them the shard
        may continue. Older snapshots and leftovers of killed attempts are deleted. Returns the snapshot's name.

        alone: no other process can be taking a snapshot of any shard of the job. compacts: whether a compact changelog is
        due, where the driver, who looks after all shards, knows it; it then also sweeps what no snapshot names.
        """
        spec, applied, driven = self.spec, self.applied, compacts is not None
        local, folder = os.path.dirname(spec.path), SnapshotStore(spec.folders.snapshots)
        copy = os.path.join(local, copy_name(spec.shard))
        try:
            if compacts is None:
                changelog = Changelog(spec.folders)
                whole(changelog.look(applied))  # nothing is applied before the copy is taken
                compacts = changelog.is_due(spec.shard, applied)
            due = spec.transport.shares_location and compacts
            # A scan sees the store as of now, whatever is written meanwhile; to open the copy would take longer than a commit.
            scans = {cf: self.kv.scan(cf) for cf in spec.metadata_cfs} if due else {}
            self.kv.checkpoint(copy)
            yield
            if self._digests is None:
                self._digests = kept_digests(self.kv.path)
            name = yield from folder.keep(copy, spec.shard, applied, self._digests)
            keep_digests(self.kv.path, self._digests)
            if due:
                yield from compact(spec.folders, spec.shard, scans, applied)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        yield
        kept = [n for n in folder.list(spec.shard) if folder.is_whole(n)][-SNAPSHOTS:]
        folder.drop_manifests(kept, spec.shard)
        if not (driven and spec.transport.shares_location):
            yield from folder.sweep(0.0 if alone else SWEEP_GRACE_S)
        sweep_local(local, spec.shard)
        return name

    def snapshot(self, compacts: bool | None = None) -> str:
        """Do all of `preserve` at once."""
        return whole(self.preserve(compacts=compacts))

    def close(self) -> None:
        try:
            self.kv.close()
        except CorruptState as error:  # what was read of it was whole
            self.spec.logger.warning(
                "the store is damaged and moved aside", path=self.kv.path, error=str(error)
            )
            self.set_aside()
        if ".private-" in self.kv.path:
            shutil.rmtree(self.kv.path, ignore_errors=True)


# -- inspection before a shard is opened: its local folder, and the files that lead to the last commit -----------------


def missing_after(
    marker: Marker, committed: int, recent: Mapping[int, CommitOfShards]
) -> list[CommitOfShards] | None:
    """Return the commits after the one that a store holds; None where `recent` does not have them."""
    numbers = range(marker.commit + 1, committed + 1)
    known = marker.commit <= committed and all(n in recent for n in numbers)
    return [recent[n] for n in numbers] if known else None


def applied_in(kv: LocalStore) -> int | None:
    """Return the commit of a store's marker; None where it has no marker."""
    value = kv.get(MARKER_CF, MARKER)
    return None if value is None else Marker.unpack(value).commit


def look(
    spec: ShardSpec, path: str, lock_wait_s: float
) -> tuple[LocalStore | None, StoreFound, Marker | None]:
    """Inspect the local folder. Returns (the open store, its condition, the commit it holds)."""
    if not os.path.isdir(path) or not os.listdir(path):
        return None, StoreFound.ABSENT, None
    kv = None
    try:
        kv = spec.open_store(path, spec.cfs, lock_wait_s)
        value = kv.get(MARKER_CF, MARKER)
        marker = Marker.of(spec.job, spec.shard, 0) if value is None else Marker.unpack(value)
    except StateLocked:
        return None, StoreFound.LOCKED, None
    except NewerFormat:
        if kv is not None:
            kv.close()
        return None, StoreFound.NEWER_FORMAT, None
    except CorruptState:
        if kv is not None:
            kv.close()
        return None, StoreFound.CORRUPT, None
    if value is None:
        if any(next(kv.scan(cf), None) is not None for cf in spec.cfs):
            # Killed while it was built: what it holds is of no commit.
            kv.close()
            return None, StoreFound.CORRUPT, None
        # Opened and killed before its first write.
        return kv, StoreFound.OK, marker
    if (marker.job, marker.shard) != (spec.job, spec.shard):
        kv.close()
        return None, StoreFound.OTHER_JOB, None
    return kv, StoreFound.OK, marker


def facts_of(
    spec: ShardSpec,
    committed: int,
    known: Mapping[int, CommitOfShards],
    found: StoreFound,
    applied: int | None,
    can_replay: bool,
    damaged: Collection[int] = (),
) -> ShardFacts:
    segments_from = committed + 1
    changelog_from = committed + 1
    both = True
    for number in range(committed, 0, -1):
        if number not in known:
            break
        if not spec.files.has(known[number], metadata_only=True):
            break
        changelog_from = number
        both = both and spec.files.has(known[number])
        if both:
            segments_from = number
    base = newest_base(spec)
    copied = spec.transport.copied(spec.job, spec.shard)
    whole = max(base or 0, copied if copied <= committed else 0)
    complete = whole >= changelog_from - 1
    return ShardFacts(
        committed=committed,
        store=found,
        applied=applied,
        segments_from=segments_from,
        snapshots=tuple(commit for commit, _ in spec.files.snapshots() if commit not in damaged),
        changelog=committed if complete and committed > 0 else None,
        needs_messages=bool(spec.message_cfs),
        can_replay=can_replay,
        replayable=spec.replayable,
    )


def newest_base(spec: ShardSpec) -> int | None:
    return next(iter(spec.files.bases()), None)
