"""One shard: its store, brought up to the last commit, and what it writes in the next one.

The numbers are those of docs/explanation/commit-protocol.md. A shard changes nothing but files under names of its own; its
store only ever holds committed segments (log first, apply later), so it never rolls back.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.compaction import SNAPSHOTS, base_due, bases_of, commit_of, compact, sweep_local
from windrow.checkpoint.layout import JobFolders, attempt_name, base_name
from windrow.checkpoint.marker import MARKER, MARKER_CF, Marker
from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.recovery import ShardAction, ShardDecision, ShardFacts, StoreFound, on_shard_open
from windrow.checkpoint.summary import DEAD, DEAD_FILE
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.errors import CorruptState, NewerFormat, StateError, StateLocked, StateLost
from windrow.core.logs import get_logger
from windrow.stores.files import sync_directory
from windrow.stores.kv import Batch, LocalStore, Overlay
from windrow.stores.rocks import RocksKV, destroy
from windrow.stores.segment import read_segment, write_segment
from windrow.stores.slices import Slices, whole
from windrow.stores.snapshots import Digests, SnapshotStore, copy_name

logger = get_logger()

#: Counters of a shard's answer: rows of an operator's pane file. (And `DEAD_FILE`.)
PANES_OF = "panes_file."

#: Kinds of files that a transport keeps; panes by operator. (And `DEAD`.)
CHANGELOG, SEGMENT, PANES = "changelog", "segment", "panes."

#: How long a shard waits for a store that another process has open.
LOCK_WAIT_S = 10.0

#: Reads the commits that the log keeps; given by whoever can read it.
Commits = Callable[[], Iterator[Commit]]
#: Files the messages of the retained windows again, from the source (seed 003: the message store is lost), given all commits
#: that the log has. The store has the window metadata of the last of them.
Replay = Callable[["ShardSpec", LocalStore, Sequence[Commit]], None]
#: Opens the store of a folder: (path, column families, how long to wait for who has it open). Errors as `RocksKV`'s.
OpenStore = Callable[[str, Sequence[str], float], LocalStore]


def open_rocks(path: str, cfs: Sequence[str], lock_wait_s: float) -> LocalStore:
    """A store is RocksDB's, if nobody says otherwise."""
    return RocksKV(path, cfs, lock_wait_s=lock_wait_s)


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
        missing = None if marker is None else _missing(marker, committed, by_number)
        if missing is not None and all(_present(spec, _result(record, spec.shard)) for record in missing):
            assert kv is not None and marker is not None
            shard = cls(spec, kv, marker.commit)
            try:
                shard.catch_up(missing)
            except BaseException:
                kv.close()  # or nobody else could open it as long as this process lives
                raise
            return shard
        known = {c.commit: c for c in commits()}
        known.update(by_number)
        if kv is not None and marker is not None and marker.commit <= committed and not marker.is_of(known):
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
                if on_shard_open(dataclasses.replace(facts, can_replay=True)).replay_messages:
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
            store = SnapshotStore(spec.folders.snapshots)
            [manifest] = [n for n in store.list(spec.shard) if commit_of(n) == decision.base][-1:]
            try:
                # Copied, not linked: damage to the local store must not be damage to the snapshot.
                store.restore(manifest, path)
            except CorruptState as error:
                raise _SnapshotDamaged from error
        kv = kv or spec.open_store(path, spec.cfs, LOCK_WAIT_S)
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
            commit, result = self.applied + 1, _result(record, self.spec.shard)
            batch = Batch()
            if result is not None and result.segment is not None:
                for part in _read_parts(self.spec, result, commit):
                    batch.extend(part)
            self.apply(commit, batch, record)

    def apply(self, commit: int, changes: Batch, record: Commit | None = None) -> None:
        """Take in what a commit changed: first into the transport's changelog, then into the store.

        record: of the commit; without it the store cannot be told from that of another history.
        """
        spec = self.spec
        spec.transport.copy(spec.job, spec.shard, commit, partial(self._key_by_key, changes))
        batch = Batch()
        batch.extend(changes)
        batch.put(MARKER_CF, MARKER, Marker.of(spec.job, spec.shard, commit, record).pack())
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

    def marker(self, commit: int) -> bytes:
        """What `applied` says after `commit`."""
        return Marker.of(self.spec.job, self.spec.shard, commit).pack()

    def _mark(self, commit: int, record: Commit | None = None) -> None:
        batch = Batch()
        batch.put(MARKER_CF, MARKER, Marker.of(self.spec.job, self.spec.shard, commit, record).pack())
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
            changelog = self.spec.folders.changelog
            _, _, batch, extra = read_segment(changelog(base_name(base, self.spec.shard)))
            self.kv.write(batch)
            for name, digest in extra.get("parts", ()):
                self.kv.write(_checked(self.spec, changelog(name), digest, base))
            first = base + 1
        for number in range(first, upto + 1):
            result = _result(known[number], self.spec.shard)
            if result is not None and result.segment is not None:
                batch = _read_changelog(spec, result, number)
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
        changes: Batch,
        panes: Mapping[str, pa.Table],
        dead: pa.Table | None,
        counters: Mapping[str, int],
        *,
        snapshot: str | None = None,
    ) -> ShardResult:
        """Write what commit `commit` changes in this shard, under a name of this attempt's own.

        `panes` are by operator; empty tables are not written.
        """
        spec, folders = self.spec, self.spec.folders
        name = attempt_name(commit, spec.shard)
        metadata, messages = changes.only(spec.metadata_cfs), changes.only(spec.message_cfs)
        digests = ["", ""]
        if len(metadata):
            digests[0] = write_segment(folders.changelog(name), commit, spec.shard, metadata)
        if len(messages):
            digests[1] = write_segment(folders.segment(name), commit, spec.shard, messages)
        told = {operator: table for operator, table in panes.items() if len(table)}
        for operator, table in told.items():
            write_parquet(table, folders.panes(name, operator))
        if dead is not None and len(dead):
            write_parquet(dead, folders.dead(name))
        wrote = any(digests)
        files = {CHANGELOG: folders.changelog(name)} if digests[0] else {}
        files |= {SEGMENT: folders.segment(name)} if digests[1] else {}
        files |= {PANES + operator: folders.panes(name, operator) for operator in told}
        files |= {DEAD: folders.dead(name)} if dead is not None and len(dead) else {}
        return ShardResult(
            shard=spec.shard,
            segment=name if wrote else None,
            digest="-".join(digests) if wrote else None,
            panes=name if told else None,
            panes_rows=sum(len(t) for t in told.values()),
            snapshot=snapshot,
            counters={
                **counters,
                **{PANES_OF + operator: len(table) for operator, table in told.items()},
                **({DEAD_FILE: 0 if dead is None else len(dead)} if dead is not None and len(dead) else {}),
            },
            kept=spec.transport.keep(spec.shard, files),
        )

    # -- 6: in the background ---------------------------------------------------------------------------------------

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


def _repeating(schema: pa.Schema) -> list[str]:
    """Columns whose values repeat: everything but numbers, and the commit."""
    found = []
    for field in schema:
        if pa.types.is_struct(field.type):
            found += [f"{field.name}.{child.name}" for child in field.type]
        elif (
            not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
            or field.name == "commit"
        ):
            found.append(field.name)
    return found


def write_parquet(table: pa.Table, path: str) -> None:
    """A Parquet file that survives a power loss before anything names it."""
    if len(table) > 1000:
        # Dictionaries of numbers that differ from row to row cost half of the time and save nothing.
        pq.write_table(table, path, compression="snappy", use_dictionary=_repeating(table.schema))
    else:
        pq.write_table(table, path, compression="none")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(os.path.dirname(path))


# -- observing ------------------------------------------------------------------------------------------------------


def _missing(marker: Marker, committed: int, recent: Mapping[int, Commit]) -> list[Commit] | None:
    """The commits after the one that a store holds; None where `recent` does not have them, or cannot tell whose it is."""
    numbers = range(marker.commit + 1, committed + 1)
    if marker.commit > committed or not marker.is_of(recent) or any(n not in recent for n in numbers):
        return None
    return [recent[n] for n in numbers]


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
        result = _result(known[number], spec.shard)
        if not _present(spec, result, changelog_only=True):
            break
        changelog_from = number
        both = both and _present(spec, result)
        if both:
            segments_from = number
    base = _newest_base(spec)
    copied = spec.transport.copied(spec.job, spec.shard)
    whole = max(base or 0, copied if copied <= committed else 0)
    complete = whole >= changelog_from - 1
    snapshots = SnapshotStore(spec.folders.snapshots).list(spec.shard)
    return ShardFacts(
        committed=committed,
        store=found,
        applied=applied,
        segments_from=segments_from,
        snapshots=tuple(c for n in snapshots if (c := commit_of(n)) not in damaged),
        changelog=committed if complete and committed > 0 else None,
        needs_messages=bool(spec.message_cfs),
        can_replay=can_replay,
        replayable=spec.replayable,
    )


def _newest_base(spec: ShardSpec) -> int | None:
    return next(iter(bases_of(spec.folders, spec.shard)), None)


def _result(commit: Commit, shard: int) -> ShardResult | None:
    for result in commit.shards:
        if result.shard == shard:
            return result
    return None


def _digests(result: ShardResult) -> tuple[str, str]:
    metadata, _, messages = (result.digest or "-").partition("-")
    return metadata, messages


def _present(spec: ShardSpec, result: ShardResult | None, *, changelog_only: bool = False) -> bool:
    """True if the files of a committed segment are there."""
    if result is None or result.segment is None:
        return True
    metadata, messages = _digests(result)
    changelog, segment = spec.folders.changelog(result.segment), spec.folders.segment(result.segment)
    if metadata and not _there(spec, result, CHANGELOG, changelog):
        return False
    return changelog_only or not messages or _there(spec, result, SEGMENT, segment)


def _there(spec: ShardSpec, result: ShardResult, kind: str, path: str) -> bool:
    """True if a committed file is here, or can be fetched."""
    at = result.kept.get(kind)
    return os.path.exists(path) or (at is not None and spec.transport.has(spec.shard, at))


def _brought(spec: ShardSpec, result: ShardResult, kind: str, path: str) -> str:
    """`path`, where a committed file is now, if it is anywhere."""
    at = result.kept.get(kind)
    if at is not None and not os.path.exists(path):
        spec.transport.fetch(spec.shard, at, path)
    return path


def _read_changelog(spec: ShardSpec, result: ShardResult, commit: int) -> Batch:
    assert result.segment is not None
    metadata, _ = _digests(result)
    if not metadata:
        return Batch()
    path = _brought(spec, result, CHANGELOG, spec.folders.changelog(result.segment))
    return _checked(spec, path, metadata, commit)


def _read_parts(spec: ShardSpec, result: ShardResult, commit: int) -> Iterator[Batch]:
    assert result.segment is not None
    yield _read_changelog(spec, result, commit)
    _, messages = _digests(result)
    if messages:
        path = _brought(spec, result, SEGMENT, spec.folders.segment(result.segment))
        yield _checked(spec, path, messages, commit)


def _checked(spec: ShardSpec, path: str, digest: str, commit: int) -> Batch:
    number, shard, batch, _ = read_segment(path, digest)
    if (number, shard) != (commit, spec.shard):
        raise CorruptState(
            f"{path} is of commit {number}, shard {shard}; commit {commit}, shard {spec.shard} names it"
        )
    return batch
