"""One shard: its store, brought up to the last commit, and what it writes in the next one.

The numbers are those of docs/explanation/commit-protocol.md. A shard changes nothing but files under names of its own; its
store only ever holds committed segments (log first, apply later), so it never rolls back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from windrow.checkpoint.compaction import SNAPSHOTS, base_due, compact, sweep_local
from windrow.checkpoint.files import Rows, ShardFiles
from windrow.checkpoint.layout import JobFolders
from windrow.checkpoint.marker import BEGUN, MARKER, MARKER_CF, Marker, is_of
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.recovery import ShardAction, ShardDecision, ShardFacts, StoreFound, on_shard_open
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.errors import CorruptState, NewerFormat, StateError, StateLocked, StateLost
from windrow.core.logs import get_logger
from windrow.stores.kv import Batch, Changes, LocalStore, Overlay
from windrow.stores.recent import RecentKV
from windrow.stores.rocks import destroy
from windrow.stores.segment import PART_BYTES
from windrow.stores.slices import Slices, whole
from windrow.stores.snapshots import Digests, SnapshotStore, copy_name

logger = get_logger()

#: How long a shard waits for a store that another process has open.
LOCK_WAIT_S = 10.0

#: Reads the commits that the log keeps; given by whoever can read it.
Commits = Callable[[], Iterator[Commit]]
#: Files the messages of the retained windows again, from the source (seed 003: the message store is lost), given all commits
#: that the log has. The store has the window metadata of the last of them.
Replay = Callable[["ShardSpec", LocalStore, Sequence[Commit]], None]
#: Opens the store of a folder: (path, column families, how long to wait for who has it open). Errors as `RocksKV`'s.
OpenStore = Callable[[str, Sequence[str], float], LocalStore]


def open_rocks(path: str, cfs: Sequence[str], lock_wait_s: float) -> LocalStore:  # if nobody says otherwise
    return RecentKV(path, cfs, lock_wait_s=lock_wait_s)


@dataclass(frozen=True)
class ShardSpec:
    """What a shard needs to know to find its state. Picklable: it travels to executors.

    metadata_cfs hold window metadata, message_cfs messages; local is the folder of local stores, None for the job's own;
    replayable is False where lost messages cannot be read from the source again; open_store opens local stores; transport
    carries what commits name.
    """

    folders: JobFolders
    job: str
    shard: int
    metadata_cfs: tuple[str, ...]
    message_cfs: tuple[str, ...] = ()
    local: str | None = None
    replayable: bool = True
    open_store: OpenStore = open_rocks
    transport: Transport = FILES

    @property
    def cfs(self) -> tuple[str, ...]:
        return (MARKER_CF, *self.metadata_cfs, *self.message_cfs)

    @property
    def path(self) -> str:
        return self.folders.store(self.shard, self.local)

    @property
    def files(self) -> ShardFiles:
        return ShardFiles(self.folders, self.shard, self.transport)


class MessagesLost(StateLost):
    """Of a shard only the messages are lost: a replay can bring them back from the source."""


class _SnapshotDamaged(Exception):
    """The snapshot that was to be restored cannot be."""


class Shard:
    """The open store of one shard, at commit `applied`."""

    def __init__(self, spec: ShardSpec, kv: LocalStore, applied: int) -> None:
        self.spec = spec
        self.kv = kv
        self.applied = applied
        self._digests: Digests = {}

    # -- 3.1: open and catch up -------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        spec: ShardSpec,
        committed: int,
        commits: Commits,
        recent: Sequence[Commit] = (),
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        replay: Replay | None = None,
    ) -> Shard:
        """Bring the shard's store to commit `committed`. `recent` are the newest commits, so that the log need not be
        read in the common case; `commits` reads older ones.
        """
        kv, found, marker = _look(spec, spec.path, lock_wait_s)
        by_number = {c.commit: c for c in recent}
        if kv is not None and marker is not None and is_of(kv, marker, by_number):
            missing = _missing(marker, committed, by_number)
            if missing is not None and all(map(spec.files.has, missing)):
                return cls._led_on(spec, kv, marker.commit, missing)
        known = {c.commit: c for c in commits()}
        known.update(by_number)
        past = marker is not None and marker.commit <= committed
        if kv is not None and marker is not None and past and not is_of(kv, marker, known):
            logger.warning("the store is of another history of the job", path=spec.path, commit=marker.commit)
            kv.close()
            kv, found, marker = None, StoreFound.DIVERGED, None
        applied = None if marker is None else marker.commit
        damaged: list[int] = []
        while True:
            facts = _facts(spec, committed, known, found, applied, replay is not None, damaged)
            decision = on_shard_open(facts)
            try:
                decision.raise_if_refused()
            except StateError as error:
                if kv is not None:
                    kv.close()  # or nobody else could open it as long as this process lives
                if not isinstance(error, StateLost):
                    raise
                if on_shard_open(replace(facts, can_replay=True)).replay_messages:
                    raise MessagesLost(error.message) from None
                raise
            try:
                return cls._carry_out(spec, decision, known, kv, replay)
            except StateLocked:
                if decision.private_copy:
                    raise
                # Somebody has opened it since we looked.
                kv, found, applied = None, StoreFound.LOCKED, None
            except _SnapshotDamaged as error:
                # The next best way, or a refusal; by now the local store is out of the way.
                logger.warning("snapshot is damaged", commit=decision.base, error=str(error.__cause__))
                damaged.append(decision.base)
                kv = None
                if decision.move_aside:
                    found, applied = StoreFound.ABSENT, None

    @classmethod
    def _led_on(cls, spec: ShardSpec, kv: LocalStore, applied: int, missing: Sequence[Commit]) -> Shard:
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
        known: dict[int, Commit],
        kv: LocalStore | None,
        replay: Replay | None,
    ) -> Shard:
        path = spec.path
        if decision.private_copy:
            path = f"{path}.private-{os.getpid()}-{time.monotonic_ns()}"
            logger.warning("the store is not let go: a copy is built beside it", path=spec.path, copy=path)
        if decision.action not in (ShardAction.USE_AS_IS, ShardAction.APPLY_SEGMENTS):
            if kv is not None:
                kv.close()
                kv = None
            if decision.move_aside and os.path.exists(path):
                os.rename(path, f"{path}.aside-{time.time_ns()}")
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
        if decision.action is ShardAction.RESTORE_SNAPSHOT and _applied(kv) != decision.base:
            kv.close()
            raise StateLocked(f"the store {path} was taken away by somebody else since it was restored")
        shard = cls(spec, kv, decision.base)
        try:
            if decision.action is ShardAction.REBUILD_FROM_CHANGELOG:
                shard._rebuild(decision.base, known, replay if decision.replay_messages else None)
                if decision.replay_messages:
                    # Whoever opens this shard next, wherever, finds all that it took to bring it back.
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

    def catch_up(self, records: Iterable[Commit]) -> None:
        """Apply committed segments, one commit after the other."""
        for record in records:
            batch, begun = Batch(), False
            for part in self.spec.files.read(record):
                if batch.nbytes + part.nbytes > PART_BYTES and self.spec.transport == FILES:
                    batch.put(MARKER_CF, BEGUN, self.marker(record.commit, record))
                    self.kv.write(batch)
                    batch, begun = Batch(), True
                batch.extend(part)
            self.apply(self.applied + 1, batch, record, begun=begun)

    def apply(self, commit: int, changes: Batch, record: Commit | None = None, begun: bool = False) -> None:
        """Take in what a commit changed: first into the transport's changelog, then into the store. record: of the commit;
        without it the store cannot be told from that of another history. begun: a part of it is there."""
        spec, batch, marker = self.spec, Batch(), self.marker(commit, record)
        spec.transport.copy(spec.job, spec.shard, commit, partial(self._key_by_key, changes))
        if changes.nbytes <= PART_BYTES and not begun:
            batch.extend(changes)
        else:  # in parts; one that was begun and did not end is begun again
            for part in changes.parts(PART_BYTES):
                part.put(MARKER_CF, BEGUN, marker)
                self.kv.write(part)
            batch.delete(MARKER_CF, BEGUN)
        batch.put(MARKER_CF, MARKER, marker)
        self.kv.write(batch)
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

    def marker(self, commit: int, record: Commit | None = None) -> bytes:
        """What a store says of the commit that it holds."""
        return Marker.of(self.spec.job, self.spec.shard, commit, record).pack()

    def _mark(self, commit: int, record: Commit | None = None) -> None:
        batch = Batch()
        batch.put(MARKER_CF, MARKER, self.marker(commit, record))
        self.kv.write(batch)
        self.applied = commit

    def _rebuild(self, upto: int, known: dict[int, Commit], replay: Replay | None) -> None:
        """Window metadata from its changelog: the newest base, and what commits changed since. Then messages, by `replay`."""
        spec, base = self.spec, _newest_base(self.spec)
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
            replay(self.spec, self.kv, [known[n] for n in sorted(known) if n <= upto])
        # Last: a store that was killed before this holds nothing, as far as anybody can tell.
        self._mark(upto, known.get(upto))

    # -- 3.2: run and write -----------------------------------------------------------------------------------------

    def overlay(self) -> Overlay:
        """What the operator runs on: reads go to the store, changes stay beside it."""
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
    ) -> ShardResult:
        """Write what commit `commit` changes in this shard, under a name of this attempt's own. `panes` are by operator; empty
        tables are not written."""
        spec = self.spec
        metadata, messages = changes.only(spec.metadata_cfs), changes.only(spec.message_cfs)
        return spec.files.write(commit, metadata, messages, panes, dead, counters, snapshot)

    # -- 6: between commits -----------------------------------------------------------------------------------------

    def preserve(self, *, alone: bool = False) -> Slices[str]:
        """A snapshot of the store as of `applied`, and where it is due a compact changelog; in slices, between which the shard
        may go on. Older snapshots and what killed attempts left go. Returns the snapshot's name.

        alone: no other process can be taking a snapshot of any shard of the job.
        """
        spec, applied = self.spec, self.applied
        local, folder = os.path.dirname(spec.path), SnapshotStore(spec.folders.snapshots)
        copy = os.path.join(local, copy_name(spec.shard))
        try:
            due = spec.transport == FILES and base_due(spec.folders, spec.shard, applied)
            # A scan sees the store as of now, whatever is written meanwhile; to open the copy would take longer than a commit.
            scans = {cf: self.kv.scan(cf) for cf in spec.metadata_cfs} if due else {}
            self.kv.checkpoint(copy)
            yield
            name = yield from folder.keep(copy, spec.shard, applied, self._digests)
            if due:
                yield from compact(spec.folders, spec.shard, scans, applied)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        yield
        kept = [n for n in folder.list(spec.shard) if folder.is_whole(n)][-SNAPSHOTS:]
        folder.drop(kept, spec.shard, **({"grace_s": 0.0} if alone else {}))
        sweep_local(local, spec.shard)
        return name

    def snapshot(self) -> str:
        """`preserve`, at once."""
        return whole(self.preserve())

    def close(self) -> None:
        self.kv.close()
        if ".private-" in self.kv.path:
            shutil.rmtree(self.kv.path, ignore_errors=True)


# -- observing ------------------------------------------------------------------------------------------------------


def _missing(marker: Marker, committed: int, recent: Mapping[int, Commit]) -> list[Commit] | None:
    """The commits after the one that a store holds; None where `recent` does not have them."""
    numbers = range(marker.commit + 1, committed + 1)
    known = marker.commit <= committed and all(n in recent for n in numbers)
    return [recent[n] for n in numbers] if known else None


def _applied(kv: LocalStore) -> int | None:
    """The commit that a store says it holds; None where it says nothing."""
    value = kv.get(MARKER_CF, MARKER)
    return None if value is None else Marker.unpack(value).commit


def _look(
    spec: ShardSpec, path: str, lock_wait_s: float
) -> tuple[LocalStore | None, StoreFound, Marker | None]:
    """What is in the local folder: (the open store, its condition, the commit it holds)."""
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


def _facts(
    spec: ShardSpec,
    committed: int,
    known: dict[int, Commit],
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
    base = _newest_base(spec)
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


def _newest_base(spec: ShardSpec) -> int | None:
    return next(iter(spec.files.bases()), None)
