"""Directory of a Parquet sink: data files, each linked once and never changed or removed, and records of published commits.

    <path>/part-<operator>~<job>~<commit>-<shard>-<digest>.parquet   the panes of one shard in one commit
    <path>/_manifests/<job>~<operator>/<commit>.wrl                  that commit and all before it are published

Readers that know nothing of windrow list the directory, and open what they found. So no file that a glob can see is ever
replaced or removed: a merged file and the files that it was made of cannot appear or vanish in one step that no listing can
observe half-way (docs/explanation/adr/0021). A file's name is a function of the commit's record and the file's content, so
drivers that publish one commit at once make the same names. A record is created exclusively after its files are durable, and
only the newest counts: older ones are removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.storage import FolderRecords
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState
from windrow.stores.files import digest_of, sync_directory, sync_name

FOLDER = "_manifests"
#: Records beyond the newest that are left until they are removed together.
RECORDS = 16
#: A name has at most 255 bytes, of which an operator's has up to 192.
DIGEST_LENGTH = 16
_NAME = re.compile(
    r"part-(?P<operator>[\w.-]+)~(?P<job>[\w.-]+)~(?P<commit>\d{10,})-(?P<shard>[0-9a-f]{4,})-(?P<digest>[0-9a-f]{16})"
    r"\.parquet"
)


class DataFile(NamedTuple):
    """A data file, in the order in which rows are read. shard: its place among the files of the commit"""

    operator: str
    commit: int
    job: str
    shard: int
    digest: str
    name: str


class Manifest:
    """The published commits of one operator of one job. `load` reads the newest; a driver that publishes opens it once."""

    def __init__(self, path: str, job: str, operator: str) -> None:
        self.path, self.job, self.operator = path, job, operator
        self.records = FolderRecords(os.path.join(path, FOLDER, f"{job}~{operator}"))
        #: The newest published commit; None for none.
        self.commit: int | None = None
        #: The number of data files of all published commits.
        self.files = 0
        self._added = 0

    def load(self) -> Manifest:
        """Read the newest record."""
        while numbers := self.records.numbers():
            data = self.records.read(numbers[-1])
            if data is not None:  # else a driver has removed it, after it made a newer one
                self.commit, self.files = numbers[-1], self.decode(data, numbers[-1])
                break
        return self

    def open(self) -> Manifest:
        """Make ready to add to. What is published survives a power cut from now on."""
        self.records.prepare()
        self.load().sync()
        self.records.sweep((self.commit or 0) + 1)
        return self

    def sync(self) -> None:
        """Sync the loaded records, of any publisher, so that they survive a power cut."""
        folder = os.fspath(self.records.path)
        if os.path.isdir(folder):
            for path in (self.path, os.path.dirname(folder), folder):
                sync_name(path)
            sync_directory(folder)

    def has(self, commit: int) -> bool:
        """True if this commit, or a later one, is published: commits come in order."""
        return self.commit is not None and commit <= self.commit

    def add(self, commit: int, sources: Sequence[str], digests: Mapping[str, str] | None = None) -> None:
        """Publish the files of a commit. digests: of files whose digests are known"""
        for shard, source in enumerate(sources):
            digest = ((digests or {}).get(source) or digest_of(source))[:DIGEST_LENGTH]
            name = f"part-{self.operator}~{self.job}~{commit:010d}-{shard:04x}-{digest}.parquet"
            self._link(source, os.path.join(self.path, name), commit)
        sync_directory(self.path)
        # Another driver that has created this record wrote the same: a record follows from the commits.
        self.records.create(commit, self.record(commit, self.files + len(sources)))
        sync_directory(os.fspath(self.records.path))
        self.commit, self.files, self._added = commit, self.files + len(sources), self._added + 1
        if self._added >= RECORDS:
            self.records.remove_all([n for n in self.records.numbers() if n < commit])
            self._added = 0

    def _link(self, source: str, target: str, commit: int) -> None:
        """Give a file another name, or copy it where that cannot be. A copy is no part of the directory before it is whole."""
        if os.path.exists(target):
            return
        try:
            os.link(source, target)
        except FileExistsError:
            return
        except OSError:
            temporary = os.path.join(
                os.fspath(self.records.path), f"{commit:020d}.{secrets.token_hex(16)}.tmp"
            )
            shutil.copyfile(source, temporary)
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)

    def record(self, commit: int, files: int) -> bytes:
        """Return the record of a commit. files: the number of data files of all commits up to it"""
        return seal(Kind.SINK_MANIFEST, msgpack.packb([self.job, self.operator, commit, files]))

    def decode(self, data: bytes, number: int) -> int:
        """Return the number of data files that record `number` counts."""
        try:
            job, operator, commit, files = msgpack.unpackb(unseal(Kind.SINK_MANIFEST, data))
            if (job, operator, commit) != (self.job, self.operator, number):
                raise ValueError(f"it is of commit {commit} of {operator!r} of {job}")
        except (CorruptState, ValueError, TypeError) as error:
            why = error.message if isinstance(error, CorruptState) else error
            raise CorruptState(
                f"record {number} of {self.records.path} cannot be read ({why}): restore it from a backup"
            ) from error
        return int(files)


def manifests(path: str) -> list[Manifest]:
    """Return the manifests in the directory of a Parquet sink, by operator and job."""
    folder = os.path.join(path, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = sorted((operator, job) for job, tilde, operator in (n.partition("~") for n in names) if tilde)
    return [Manifest(path, job, operator).load() for operator, job in found]


def published_files(path: str, operator: str | None = None) -> list[DataFile]:
    """Return the data files of published commits, in the order of operators and commits.

    Raises `CorruptState` where files were removed.
    """
    chosen = [m for m in manifests(path) if operator in (None, m.operator)]
    # Listed after the records were read: the files of a commit are there before its record.
    there = [file for name in os.listdir(path) if (file := _parsed(name)) is not None]
    files: list[DataFile] = []
    for m in chosen:
        found = [f for f in there if (f.job, f.operator) == (m.job, m.operator) and m.has(f.commit)]
        if len(found) != m.files:
            raise CorruptState(
                f"{path} has {len(found)} files of operator {m.operator!r} of {m.job} up to commit {m.commit}, and {m.files} "
                f"were published: restore the folder from a backup, or read what there is with a glob over {path}/*.parquet"
            )
        files += found
    return sorted(files)


def _parsed(name: str) -> DataFile | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return DataFile(
        match["operator"], int(match["commit"]), match["job"], int(match["shard"], 16), match["digest"], name
    )


def read_published(path: str, file: DataFile) -> pa.Table:
    """Return the rows of a data file. `CorruptState` where its content is not the published one."""
    return read_file(_checked(path, file))


def _checked(path: str, file: DataFile) -> str:
    where = os.path.join(path, file.name)
    found = digest_of(where)[:DIGEST_LENGTH]
    if found != file.digest:
        raise CorruptState(f"{where} is damaged: its content has digest {found}. Restore it from a backup")
    return where


def verify(path: str) -> tuple[int, int, list[tuple[str, str]]]:
    """Verify the whole directory of a Parquet sink. Returns (last published commit, data files, [(fault, reason)])."""
    wrong: list[tuple[str, str]] = []
    last = 0
    try:
        last = max((m.commit or 0 for m in manifests(path)), default=0)
        files = published_files(path)
    except CorruptState as error:
        return last, 0, [(path, error.message)]
    for file in files:
        try:
            _checked(path, file)
        except CorruptState as error:
            wrong.append((file.name, error.message))
    return last, len(files), wrong


def read_file(path: str) -> pa.Table:
    """Read one file. `pq.read_table` would look for a dataset, which takes four times as long."""
    with pq.ParquetFile(path) as file:
        return file.read()


def read_slices(path: str, rows: int) -> Iterator[pa.Table]:
    """Read one file, so many rows at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(rows, use_threads=False):
            yield pa.Table.from_batches([batch])
