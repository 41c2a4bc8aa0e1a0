"""Which files of a Parquet sink count: for each job and operator a sequence of records, as a job's log is one.

`<path>/_manifests/<job>~<operator>/<number>.wrl` is JSON. A record names the files of a commit. Now and then one names all
files up to a commit: then small files were merged into few, and the records before it are removed. What makes this safe is
the log's own rule (docs/explanation/commit-protocol.md): numbers are created exclusively, in order, by who has read up to the
one before. So of two drivers that publish or merge at once one goes on from what the other has made, and a number that is free
again because its record was removed is found out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint.storage import FolderRecords
from windrow.core.errors import CorruptState, NewerFormat
from windrow.core.logs import get_logger
from windrow.core.types import concat
from windrow.stores.files import sync_directory
from windrow.stores.slices import Slices, in_batches, whole

logger = get_logger()

FOLDER = "_manifests"
FORMAT = 2
#: One record names all files, when there are this many since the last such one, or an eighth as many as it names files.
RECORDS = 16
#: So many files of one level, one after the other, are merged into one of the next.
RUN_LEAST, RUN_MOST = 16, 256
#: Files from this size on are left alone.
LARGE_BYTES = 1 << 20
#: Files that are read, or removed, and rows that are written, in one slice of merging.
_SLICE_FILES, _SLICE_ROWS = 4, 65_536
#: Runs that one merge rewrites at most: what an older windrow left comes in by and by.
_RUNS = 4


@dataclass(frozen=True)
class DataFile:
    """A file of panes, of the commits from `first` to `last`. level: how often its rows were merged; None where never again."""

    name: str
    first: int
    last: int
    size: int
    level: int | None


class Manifest:
    """What a sink's directory has of one operator of one job. `load` reads it; who adds to it loads it once."""

    def __init__(self, path: str, job: str, operator: str) -> None:
        self.path, self.job, self.operator = path, job, operator
        self.records = FolderRecords(os.path.join(path, FOLDER, f"{job}~{operator}"))
        self.files: list[DataFile] = []
        #: The newest commit that is here; None for none.
        self.commit: int | None = None
        self._next = 0
        self._last_data: bytes | None = None
        self._since = 0  # records since the last that names all files
        self._gone: list[str] = []  # files that it has replaced
        self._older: list[str] = []  # manifests of an older windrow, that the next such record will replace
        self._merging: Slices[None] | None = None

    # -- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> Manifest:
        """As of now."""
        found = self._read()
        self.files, self.commit, self._gone, self._older = [], None, [], []
        self._next, self._last_data, self._since = 0, None, 0
        if not found or "gone" not in found[0][1]:
            self._take_older(found[0][1]["commit"] if found else None)
        for data, body in found:
            self._take(data, body)
        return self

    def _read(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The records that count, oldest first: from the newest on that names all files."""
        before: list[int] | None = None
        while True:
            seqs = self.records.numbers()
            found: list[tuple[bytes, dict[str, Any]]] = []
            for seq in reversed(seqs):
                data = self.records.read(seq) if seq == seqs[-1] - len(found) else None
                if data is None:
                    break
                body = _decode(data, self.records, seq)
                found.append((data, body))
                if "gone" in body:
                    return found[::-1]
            if len(found) == len(seqs) and (seqs or [0])[0] == 0 and not self.records.is_truncated():
                return found[::-1]
            if seqs == before:
                raise CorruptState(
                    f"{self.records.path} has records {seqs}, of which one is missing: restore the folder from a backup"
                )
            before = seqs

    def _take_older(self, below: int | None) -> None:
        """What an older windrow made before our first record: a manifest a commit, beside our folders."""
        folder = os.path.join(self.path, FOLDER)
        pattern = re.compile(re.escape(f"{self.job}-{self.operator}-") + r"(\d{12,})\.manifest")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            match = pattern.fullmatch(name)
            if match is None or (below is not None and int(match[1]) >= below):
                continue
            body = older(os.path.join(folder, name))
            if body is not None and (body["job"], body["operator"]) == (self.job, self.operator):
                self._add([_file(self.path, n, int(match[1])) for n in body["files"]], int(match[1]))
                self._older.append(os.path.join(FOLDER, name))

    def _take(self, data: bytes, body: dict[str, Any]) -> None:
        """Another record, in its order."""
        if "gone" in body:
            self.files = [DataFile(*f) for f in body["files"]]
            self.commit, self._gone, self._older, self._since = body["commit"], body["gone"], [], 0
        else:
            self._add([_file(self.path, n, body["commit"]) for n in body["files"]], body["commit"])
            self._since += 1
        self._next, self._last_data = body["number"] + 1, data

    def _add(self, files: list[DataFile], commit: int) -> None:
        self.files += files
        self.commit = commit

    # -- writing ------------------------------------------------------------------------------------------------------

    def open(self) -> Manifest:
        """Ready to add to. What is here survives a power cut from now on, and what others left unfinished is removed."""
        self.records.prepare()
        self.load().sync()
        self.records.sweep(self._next)
        self._sweep()
        return self

    def sync(self) -> None:
        """What was loaded survives a power cut, whoever made it."""
        folder = os.fspath(self.records.path)
        if os.path.isdir(folder):
            sync_directory(folder)
        if self._older:
            sync_directory(os.path.dirname(folder))

    def has(self, commit: int) -> bool:
        """True if this commit, or a later one, is here: commits come in order."""
        return self.commit is not None and commit <= self.commit

    def add(self, commit: int, rows: int, files: Sequence[str]) -> bool:
        """Make the files of a commit count. False if it is here already."""
        while not self.has(commit):
            if self._append({"commit": commit, "rows": rows, "files": list(files)}):
                return True
        return False

    def merge_if_due(self, added: int = 1) -> None:
        """The next slices of merging what has gathered, in which about twice as many files are read as were `added`.

        It changes nothing that a reader sees, so where it fails it is tried again later.
        """
        due = max(RECORDS, len(self.files) // 8)
        if self._merging is None:
            if self._since < due:
                return
            self._merging = self._merge()
        try:
            if self._since < 2 * due:
                for _ in range(1 + 2 * added // _SLICE_FILES):
                    next(self._merging)
            else:
                whole(self._merging)  # openings are too short for slices
                self._merging = None
        except StopIteration:
            self._merging = None
        except (OSError, CorruptState, pa.ArrowException) as error:
            self._merging, self._since = None, 0
            logger.warning(
                "files of the Parquet sink are not merged for now", path=self.path, error=repr(error)
            )
            with contextlib.suppress(OSError):
                self._sweep()

    def _merge(self) -> Slices[None]:
        # What the last merge replaced: whoever began to read it has had a merge's time.
        for names in in_batches(self._gone, _SLICE_FILES):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))
            yield
        files, made = list(self.files), dict[str, str]()
        changes: list[tuple[list[DataFile], list[DataFile]]] = []
        for _ in range(_RUNS):
            run = _run(files)
            if run is None:
                break
            before, after = files[run], (yield from self._merged(files[run], made))
            files[run] = after
            changes.append((before, after))
        self._record(changes, made)

    def _record(self, changes: list[tuple[list[DataFile], list[DataFile]]], made: dict[str, str]) -> None:
        """What was merged counts from now on, unless another driver has been here meanwhile. made: temporary names, by names.

        A merged file has the number of this record in its name: as long as that is free nobody takes the file for garbage.
        """
        files, gone, names = list(self.files), list(self._older), dict[str, str]()
        for name, temporary in made.items():
            names[name] = f"{self._prefix}{self._next:020d}-{name}"
            os.rename(os.path.join(self.path, temporary), os.path.join(self.path, names[name]))
        sync_directory(self.path)
        for before, after in changes:
            before = [replace(f, name=names.get(f.name, f.name)) for f in before]
            at = next((i for i, f in enumerate(files) if f == before[0]), None)
            if at is None or files[at : at + len(before)] != before:
                self._sweep()
                return
            kept = files[at : at + len(before)] = [replace(f, name=names.get(f.name, f.name)) for f in after]
            gone += [f.name for f in before if f.name not in {a.name for a in kept}]
        if self._append({"commit": self.commit, "files": [_row(f) for f in files], "gone": gone}):
            self.records.mark_truncated()
            for seq in self.records.numbers():
                if seq < self._next - 1:
                    self.records.remove(seq)
        else:
            self._sweep()

    def _merged(self, run: list[DataFile], made: dict[str, str]) -> Slices[list[DataFile]]:
        """The rows of several files in one, under a temporary name of `made`; the same files, never to be merged, where their
        columns do not go together.
        """
        tables = []
        try:
            for batch in in_batches(run, _SLICE_FILES):
                tables += [read_file(os.path.join(self.path, made.get(f.name, f.name))) for f in batch]
                yield
            table = concat(tables)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return [replace(f, level=None) for f in run]
        first, last = run[0].first, run[-1].last
        name = f"{first:012d}-{last:012d}-{secrets.token_hex(4)}.parquet"
        made[name] = f"{self._prefix}{name}.tmp"
        path = os.path.join(self.path, made[name])
        with pq.ParquetWriter(path, table.schema) as writer:
            for at in range(0, len(table), _SLICE_ROWS):
                writer.write_table(table.slice(at, _SLICE_ROWS))
                yield
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield
        size = os.stat(path).st_size
        assert run[0].level is not None
        return [DataFile(name, first, last, size, run[0].level + 1 if size < LARGE_BYTES else None)]

    def _append(self, body: dict[str, Any]) -> bool:
        """True if the next record is this. Else somebody else was faster, and what he made is taken in."""
        whole = {
            "format": FORMAT,
            "job": self.job,
            "operator": self.operator,
            "number": self._next,
            # No two attempts write the same bytes: who finds his number free again must find other bytes before it.
            "attempt": secrets.token_hex(8),
            **body,
        }
        data = json.dumps(whole).encode()
        if self.records.create(self._next, data) and not self._is_passed():
            self._take(data, whole)
            return True
        self.load().sync()
        return False

    def _is_passed(self) -> bool:
        """True if records were removed beyond the last that we know (L5 of docs/explanation/commit-protocol.md)."""
        if self._next == 0:
            return self.records.is_truncated()
        return self.records.read(self._next - 1) != self._last_data

    @property
    def _prefix(self) -> str:
        return f"merged-{self.job}-{self.operator}-"

    def _sweep(self) -> None:
        """Remove merged files that do not count, and whose number is taken or that have none yet, so that they never will."""
        pattern = re.compile(
            re.escape(self._prefix) + r"(?:(\d{20})-)?\d{12,}-\d{12,}-[0-9a-f]{8}\.parquet(\.tmp)?"
        )
        counting = {f.name for f in self.files}
        for name in os.listdir(self.path):
            match = pattern.fullmatch(name)
            over = match is not None and (match[2] is not None or int(match[1] or 0) < self._next)
            if over and name not in counting and name not in self._gone:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))


def _run(files: list[DataFile]) -> slice | None:
    """The first files, one after the other, that are enough of one level to be merged."""
    begin = 0
    for i in range(1, len(files) + 1):
        if i < len(files) and files[i].level == files[begin].level:
            continue
        if files[begin].level is not None and i - begin >= RUN_LEAST:
            return slice(begin, min(i, begin + RUN_MOST))
        begin = i
    return None


def _file(path: str, name: str, commit: int) -> DataFile:
    try:
        size = os.stat(os.path.join(path, name)).st_size
    except FileNotFoundError:
        size = 0
    return DataFile(name, commit, commit, size, 0 if size < LARGE_BYTES else None)


def _row(file: DataFile) -> list[Any]:
    return [file.name, file.first, file.last, file.size, file.level]


def _decode(data: bytes, records: FolderRecords, seq: int) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(data)
        form = body["format"]
    except (ValueError, KeyError) as error:
        raise CorruptState(
            f"record {seq} of {records.path} cannot be read ({error}): restore it from a backup"
        ) from error
    if form > FORMAT:
        raise NewerFormat(
            f"record {seq} of {records.path} has format {form}, this windrow reads up to {FORMAT}: upgrade windrow"
        )
    return body


def older(path: str) -> dict[str, Any] | None:
    """A manifest of format 1, which was one file a commit; None if it was merged meanwhile."""
    try:
        with open(path, encoding="utf-8") as file:
            body: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return body


def manifests(path: str) -> list[Manifest]:
    """What there is in the directory of a Parquet sink, by operator and job."""
    folder = os.path.join(path, FOLDER)
    found: set[tuple[str, str]] = set()
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        job, tilde, operator = name.partition("~")
        if tilde:
            found.add((operator, job))
        elif name.endswith(".manifest") and (body := older(os.path.join(folder, name))) is not None:
            found.add((body["operator"], body["job"]))
    return [Manifest(path, job, operator).load() for operator, job in sorted(found)]


def read_file(path: str) -> pa.Table:
    """One file. `pq.read_table` would look for a dataset, which takes four times as long."""
    with pq.ParquetFile(path) as file:
        return file.read()


def read_slices(path: str, rows: int) -> Iterator[pa.Table]:
    """One file, so many rows at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(rows, use_threads=False):
            yield pa.Table.from_batches([batch])
