"""Files that commits name. An attempt writes them, any process may read them, and each read verifies them.

For a shard a commit names the changes of window metadata (`changelog/`), the messages that were filed (`segments/`), panes by
operator, and dead letters. Where a transport carries them, a file that is not here is fetched.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windrow.checkpoint.compaction import bases_of, commit_of
from windrow.checkpoint.job_paths import JobFolders, attempt_name, base_name
from windrow.checkpoint.records import PANES_OF, Commit, ShardResult
from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.checkpoint.transport import FILES, At, Transport
from windrow.checkpoint.truncation_summary import DEAD, DEAD_FILE, DeadLetterFile
from windrow.core.errors import CorruptState, TypeClash
from windrow.stores.files import Growing, digest_of, sync_directory
from windrow.stores.kv import Batch, Changes
from windrow.stores.segment import append_segment, read_parts, read_segment
from windrow.stores.snapshots import SnapshotStore
from windrow.stores.spill import Gathered

#: Kinds of files that a transport keeps; panes by operator. (And `DEAD`.)
CHANGELOG, SEGMENT, PANES = "changelog", "segment", "panes."
#: Rows that are inspected.
LOOK_ROWS = 256

#: Rows that an operator emits in a commit.
Rows: TypeAlias = pa.Table | Gathered


class Named(NamedTuple):
    """A segment that a commit names. at: where a transport keeps it; None where it keeps none. where: its begin and end in a
    file that holds those of several shards.
    """

    kind: str
    path: str
    digest: str
    at: At | None = None
    where: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the segment, whose file is there."""
        return os.path.getsize(self.path) if self.where is None else self.where[1] - self.where[0]


@dataclass(frozen=True)
class ShardFiles:
    """The files of one shard of a job."""

    folders: JobFolders
    shard: int
    transport: Transport = FILES

    # -- what commits changed ---------------------------------------------------------------------------------------

    def named(self, record: CommitOfShards) -> Iterator[Named]:
        """Yield the files of a commit's changes: window metadata, then messages, each where there is any."""
        result = record.result_of(self.shard)
        if result is None or result.segment is None:
            return
        metadata, _, messages = (result.digest or "-").partition("-")
        changelog, segment = self.folders.changelog(result.segment), self.folders.segment(result.segment)
        for kind, path, digest in ((CHANGELOG, changelog, metadata), (SEGMENT, segment, messages)):
            if digest:
                yield Named(kind, path, digest, result.kept.get(kind), result.ranges.get(kind))

    def has(self, record: CommitOfShards | None, *, metadata_only: bool = False) -> bool:
        """True if all that a commit changed is here, or can be fetched; metadata_only: of window metadata."""
        return record is not None and all(
            os.path.exists(n.path) or (n.at is not None and self.transport.has(self.shard, n.at))
            for n in self.named(record)
            if n.kind == CHANGELOG or not metadata_only
        )

    def lead(
        self, base: int, commit: int, known: Mapping[int, CommitOfShards], *, metadata_only: bool = False
    ) -> bool:
        """True if the files of the changes after commit `base`, up to `commit`, exist."""
        numbers = range(base + 1, commit + 1)
        return all(self.has(known.get(n), metadata_only=metadata_only) for n in numbers)

    def read(
        self, record: CommitOfShards, *, metadata_only: bool = False, views: bool = False
    ) -> Iterator[Batch]:
        """Yield the changes of a commit, in parts. views: large values are views, for a reader that keeps none of them"""
        for named in self.named(record):
            if named.kind == CHANGELOG or not metadata_only:
                if named.at is not None and not os.path.exists(named.path):
                    self.transport.fetch(self.shard, named.at, named.path)
                yield from self._parts(named, record.commit, views)

    def read_file(self, named: Named, commit: int) -> Batch:
        """Read a segment of this shard. Raises `CorruptState` where it is not the one that `commit` names."""
        whole = Batch()
        for part in self._parts(named, commit):
            whole.extend(part)
        return whole

    def _parts(self, named: Named, commit: int, views: bool = False) -> Iterator[Batch]:
        for number, shard, batch, _ in read_parts(named.path, named.digest, named.where, views=views):
            if (number, shard) != (commit, self.shard):
                raise CorruptState(
                    f"{named.path} is of commit {number}, shard {shard}; commit {commit}, shard {self.shard} names it"
                )
            yield batch

    # -- files that replace those of all commits up to one ----------------------------------------------------------

    def bases(self) -> list[int]:
        """Commits of compact changelogs, newest first."""
        return bases_of(self.folders, self.shard)

    def base_files(self, base: int) -> tuple[str, list[str]]:
        """Paths of a compact changelog: of the file that names its parts, and of these."""
        path = self.folders.changelog(base_name(base, self.shard))
        return path, [self.folders.changelog(name) for name, _ in _parts_of(path, read_segment(path)[3])]

    def read_base(self, base: int) -> Iterator[Batch]:
        """Yield a compact changelog, in parts."""
        path = self.folders.changelog(base_name(base, self.shard))
        number, shard, batch, extra = read_segment(path)
        if (number, shard) != (base, self.shard):
            raise CorruptState(f"{path} is of commit {number}, shard {shard}")
        yield batch
        for name, digest in _parts_of(path, extra):
            yield self.read_file(Named(CHANGELOG, self.folders.changelog(name), digest), base)

    def snapshots(self) -> list[tuple[int, str]]:
        """Return (commit, manifest) of snapshots, newest first. Creates no folder."""
        folder = self.folders.snapshots
        if not all(os.path.isdir(os.path.join(folder, f)) for f in ("manifests", "blobs")):
            return []
        return [(commit_of(name), name) for name in reversed(SnapshotStore(folder).list(self.shard))]

    # -- an attempt -------------------------------------------------------------------------------------------------

    def write(
        self,
        commit: int,
        metadata: Changes,
        messages: Changes,
        panes: Mapping[str, Rows],
        dead: pa.Table | None,
        counters: Mapping[str, int],
        snapshot: str | None = None,
        shared: CommitFiles | None = None,
    ) -> ShardResult:
        """Write the changes of `commit`, under a name of this attempt's own. panes: by operator. Empty ones are not written.

        shared: the files of the task's shards. They, and this result, are complete when the task has finished them.
        """
        with (
            contextlib.nullcontext(shared)
            if shared
            else CommitFiles(self.folders, commit, self.shard) as files
        ):
            digests, ranges = {CHANGELOG: "", SEGMENT: ""}, {}
            for kind, changes in ((CHANGELOG, metadata), (SEGMENT, messages)):
                if len(changes):
                    digests[kind], ranges[kind] = files.append(kind, self.shard, changes)
            for operator, rows in panes.items():
                files.add(PANES + operator, self.shard, rows)
            if dead is not None:
                files.add(DEAD, self.shard, dead)
            wrote = any(digests.values())
            written = ShardResult(
                shard=self.shard,
                segment=files.name if wrote else None,
                digest="-".join(digests.values()) if wrote else None,
                panes_rows=sum(map(len, panes.values())),
                snapshot=snapshot,
                counters=counters,
                ranges=ranges if shared else {},
            )
            if shared:
                return written
            [written] = files.finished([written])
        return replace(written, kept=self.transport.keep(self.shard, files.paths))


class CommitFiles:
    """Files of an attempt at a commit, by one shard or by those of a task, which share them and wait for the disk once.

    A file of panes or dead letters has the rows of all of them, and is named by the first one that has some.
    """

    def __init__(self, folders: JobFolders, commit: int, shard: int) -> None:
        """shard: the first one."""
        self.name, self._commit, self._folders = attempt_name(commit, shard), commit, folders
        self._open = contextlib.ExitStack()
        self._segments: dict[str, Growing] = {}
        self._rows: dict[str, tuple[int, Rows]] = {}

    def __enter__(self) -> CommitFiles:
        return self

    def __exit__(self, *failed: Any) -> None:
        """Remove what was not finished."""
        self._open.__exit__(*failed)

    @property
    def paths(self) -> dict[str, str]:
        """Paths by kind."""
        return {kind: self._path(kind) for kind in (*self._segments, *self._rows)}

    def append(self, kind: str, shard: int, changes: Changes) -> tuple[str, tuple[int, int]]:
        """Add a shard's changes; returns their digest, and where they begin and end in the file."""
        if kind not in self._segments:
            self._segments[kind] = self._open.enter_context(Growing(self._path(kind)))
        return append_segment(self._segments[kind], self._commit, shard, changes)

    def add(self, kind: str, shard: int, rows: Rows) -> None:
        """Add a shard's rows, if there are any."""
        if not len(rows):
            return
        if kind not in self._rows:
            self._rows[kind] = shard, rows
            return
        first, before = self._rows[kind]
        if isinstance(before, pa.Table):
            self._rows[kind] = first, (together := Gathered())
            together.add(before)
            before = together
        for table in [rows] if isinstance(rows, pa.Table) else rows.tables():
            before.add(table)

    def finished(self, results: Sequence[ShardResult]) -> list[ShardResult]:
        """Make the files survive a power cut, and return the results with all that they name."""
        for file in self._segments.values():
            file.finish()
            sync_directory(os.path.dirname(file.path))
        digests, counts = defaultdict[int, dict[str, str]](dict), defaultdict[int, dict[str, int]](dict)
        for kind, (first, rows) in self._rows.items():
            held = rows.held if isinstance(rows, Gathered) else None
            digests[first][kind] = write_parquet(rows if held is None else held, self._path(kind))
            counts[first][DEAD_FILE if kind == DEAD else PANES_OF + kind.removeprefix(PANES)] = len(rows)
        return [
            replace(
                shard,
                panes=self.name if any(kind != DEAD for kind in digests[shard.shard]) else None,
                counters={**shard.counters, **counts[shard.shard]},
                digests=digests[shard.shard],
            )
            for shard in results
        ]

    def _path(self, kind: str) -> str:
        folders = self._folders
        if kind.startswith(PANES):
            return folders.panes(self.name, kind.removeprefix(PANES))
        return {CHANGELOG: folders.changelog, SEGMENT: folders.segment, DEAD: folders.dead}[kind](self.name)


def _parts_of(path: str, extra: Any) -> list[tuple[str, str]]:
    """Return (name, digest) of each part that a compact changelog names."""
    parts = extra.get("parts", ()) if isinstance(extra, dict) else None
    if parts is None or not all(isinstance(p, list | tuple) and [*map(type, p)] == [str, str] for p in parts):
        raise CorruptState(f"{path} names its parts by {parts!r}: restore it from a backup, or delete it")
    return [(name, digest) for name, digest in parts]


# -- panes and dead letters -----------------------------------------------------------------------------------------


def pane_files(folders: JobFolders, record: Commit) -> dict[str, list[str]]:
    """Return the pane files of a commit, by operator, shards in order."""
    files: dict[str, list[str]] = {}
    for result in sorted(record.shards, key=lambda r: r.shard):
        if result.panes is None:
            continue
        for counter in result.counters:
            if counter.startswith(PANES_OF):
                operator = counter[len(PANES_OF) :]
                files.setdefault(operator, []).append(folders.panes(result.panes, operator))
    return files


def check_digest(path: str, digest: str | None) -> None:
    """Raise `CorruptState` where a file has not this digest. None: of a commit that names none."""
    try:
        actual = None if digest is None else digest_of(path)
    except FileNotFoundError:
        return
    if actual != digest:
        raise CorruptState(
            f"{path} is damaged: it has digest {actual}, its commit recorded {digest}. Restore it from a backup"
        )


def bring_panes(folders: JobFolders, transport: Transport, record: Commit, *, check: bool = True) -> None:
    """Fetch the available pane files of a commit. Raises `CorruptState` where a file is not as it was written.

    check: False where the files are not read now.
    """
    for result in record.shards:
        for kind in {**result.kept, **result.digests}:
            if kind.startswith(PANES) and result.panes is not None:
                path = folders.panes(result.panes, kind[len(PANES) :])
                if kind in result.kept:
                    _fetch(transport, result.shard, result.kept[kind], path)
                if check:
                    check_digest(path, result.digests.get(kind))


def pane_digests(folders: JobFolders, record: Commit, operator: str) -> dict[str, str]:
    """Return the digests of an operator's pane files."""
    return {
        folders.panes(result.panes, operator): result.digests[PANES + operator]
        for result in record.shards
        if result.panes is not None and PANES + operator in result.digests
    }


def bring_letters(folders: JobFolders, transport: Transport, file: DeadLetterFile) -> str:
    """Return the path of a dead-letter file. The file is fetched if it is not on this machine."""
    path = folders.dead(file.name)
    if file.at is not None:
        _fetch(transport, file.shard, file.at, path)
    check_digest(path, file.digest)
    return path


def _fetch(transport: Transport, shard: int, at: At, path: str) -> None:
    if not os.path.exists(path) and transport.has(shard, at):
        transport.fetch(shard, at, path)


def write_parquet(rows: Rows, path: str) -> str:
    """Write a Parquet file that survives a power loss before anything names it. Returns its digest.

    Raises `TypeClash` for types that no such file holds.
    """
    tables = iter([rows]) if isinstance(rows, pa.Table) else rows.tables()
    first = next(tables)
    try:
        _write_parquet(rows, first, tables, path)
    except pa.ArrowException:
        names = [f"{f.name!r} ({f.type})" for f in first.schema if not _is_of_parquet(f)]
        if not names:
            raise
        raise TypeClash(
            f"column {names[0]} cannot be emitted: rows are kept in Parquet files, which hold no such type; drop it, or "
            "cast it, an interval to text or a duration, a union to text or one of its types, before it reaches windrow"
        ) from None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(os.path.dirname(path))
    return digest_of(path)


def _is_of_parquet(field: pa.Field) -> bool:
    """True if a Parquet file holds values of the type."""
    try:
        pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return True


def _write_parquet(rows: Rows, first: pa.Table, others: Iterable[pa.Table], path: str) -> None:
    how = dict[str, Any](compression="none")
    if len(rows) > 1000:
        # Dictionaries of numbers that differ from row to row cost half of the time and save nothing.
        how = {"compression": "snappy", "use_dictionary": list(_repeating(first))}
    if isinstance(rows, pa.Table):
        pq.write_table(rows, path, **how)
    else:
        with pq.ParquetWriter(path, first.schema, **how) as writer:
            for table in chain([first], others):
                writer.write_table(table)


def _repeating(table: pa.Table) -> Iterable[str]:
    """Return the columns whose values repeat: all but numbers, and the commit; times where neighbouring ones do.

    Rows are in the order of their windows, so that a few of them say whether many have the same.
    """
    sample = table.slice(len(table) // 2, LOOK_ROWS)
    for field in table.schema:
        column = sample.column(field.name)
        if pa.types.is_struct(field.type):
            names = [child.name for child in field.type]
            yield from (f"{field.name}.{name}" for name in names if _repeats(pc.struct_field(column, name)))
        elif field.name == "commit" or not (
            pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or not _repeats(column)
        ):
            yield field.name


def _repeats(some: pa.ChunkedArray) -> bool:
    """False for times half of which or more are each another."""
    return not pa.types.is_timestamp(some.type) or 2 * pc.count_distinct(some).as_py() <= len(some)
