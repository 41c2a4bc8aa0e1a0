"""Storage of a log's records: numbered byte strings that are created once, whole or not at all.

`RecordLog` has the rules of the log (order, epochs, torn records, truncation), over `RecordFiles`.
This module has only what a medium must be able to do. Fencing rests on exclusive creation alone. A log therefore
lies on a POSIX file system, or on a broker that fences producers, and never on an
object store that `pyarrow.fs` reaches.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from windrow.core.errors import LogUnsupported
from windrow.core.location import local_path
from windrow.stores.files import make_durable_folder, private

SUFFIX = ".wrl"
MARKER = "truncated"
_RECORD_NAME = re.compile(r"(\d{20})\.wrl")
_TEMP_NAME = re.compile(r"(\d{20})\.[0-9a-f]{32}\.tmp")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
#: Attempts, each of which another driver's sweep can spoil between two links.
_PROBES = 10
_REMEDY = (
    "Put the log on a local disk or a network file system with hard links (ext4, xfs, NFS); "
    "segments and snapshots may stay where they are"
)


class RecordFiles(ABC):
    """Base class of media for the records of one log. Five methods are required; the others have defaults."""

    def prepare(self) -> None:
        """Make the place ready to write to. LogUnsupported if the medium cannot create exclusively."""
        return

    def claim(self) -> None:
        """Take the right to create from its holder, where the medium has such a right. It may be called repeatedly."""
        return

    @abstractmethod
    def create(self, seq: int, data: bytes) -> bool:
        """True if record `seq` now holds `data`, durably. False: it existed already, and is untouched, or
        the right to create is another's by now.

        After an exception it is unknown which of the two.
        """

    @abstractmethod
    def read(self, seq: int) -> bytes | None:
        """Return the bytes of record `seq`, None if there is none."""

    def recall(self, seq: int) -> bytes | None:
        """Return the bytes of a record that `numbers` has just listed, as `read` does, but without checking that it exists."""
        return self.read(seq)

    def exists(self, seq: int) -> bool:
        """True if there is a record `seq`."""
        return self.read(seq) is not None

    @abstractmethod
    def numbers(self) -> list[int]:
        """Return all numbers there are, ascending."""

    @abstractmethod
    def remove(self, seq: int) -> None:
        """Remove a record if it is there. Removals become visible in the order in which they were made."""

    def remove_all(self, seqs: Sequence[int]) -> None:
        """Remove records, in this ascending order; they are the oldest that there are."""
        for seq in seqs:
            self.remove(seq)

    def mark_truncated(self) -> None:
        """Remember for ever, and before the first removal becomes visible, that records were removed."""
        return

    @abstractmethod
    def is_truncated(self) -> bool:
        """True if records were ever removed."""

    def sweep(self, next_seq: int) -> None:
        """Remove leftovers of attempts to create records below `next_seq`."""
        return


class MemoryRecords(RecordFiles):
    """Records in this process, for tests and simulation. Several logs (drivers) may share one."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.truncated = False
        self._lock = threading.RLock()

    def create(self, seq: int, data: bytes) -> bool:
        with self._lock:
            if seq in self.records:
                return False
            self.records[seq] = data
            return True

    def read(self, seq: int) -> bytes | None:
        return self.records.get(seq)

    def numbers(self) -> list[int]:
        with self._lock:
            return sorted(self.records)

    def remove(self, seq: int) -> None:
        with self._lock:
            self.records.pop(seq, None)

    def mark_truncated(self) -> None:
        self.truncated = True

    def is_truncated(self) -> bool:
        return self.truncated


class FolderRecords(RecordFiles):
    """One file `<seq, 20 digits>.wrl` per record in a folder of a POSIX file system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(local_path(path, "log"))
        self._marked = False

    def __repr__(self) -> str:
        return f"FolderRecords({str(self.path)!r})"

    def prepare(self) -> None:
        """Create the folder; try what `create` relies on: links never replace, and the folder syncs."""
        make_durable_folder(str(self.path))
        if not any(self._links_keep() for _ in range(_PROBES)):
            raise LogUnsupported(
                f"the log cannot lie in {self.path}: hard links replace files there. {_REMEDY}"
            )
        _sync_folder(self.path)

    def _links_keep(self) -> bool:
        """True if a link onto a file fails. May be wrong where a driver that claims sweeps our files in between."""
        first, second = self._temp(0), self._temp(0)
        try:
            _write(first, b"probe")
            _link(first, second)
            try:
                _link(first, second)
            except FileExistsError:
                return True
            return False
        except FileNotFoundError:
            if not self.numbers():
                raise
            return True  # swept, by a driver that has just made a record here by a link
        finally:
            first.unlink(missing_ok=True)
            second.unlink(missing_ok=True)

    def create(self, seq: int, data: bytes) -> bool:
        """Steps L1 to L4 of docs/explanation/commit-protocol.md."""
        temp, final = self._temp(seq), self._file(seq)
        try:
            inode = _write(temp, data)  # L1: a temporary file, synced
            try:
                _link(temp, final)  # L2: from here on the record exists
            except (FileExistsError, FileNotFoundError):
                # The number is taken, and another driver that saw that may have swept our file away. But a network file system
                # may repeat a request whose answer got lost, and find our own link. Equal bytes would prove nothing (two
                # drivers may write the same); that it is one file does.
                if not self._is(final, inode):
                    if max(self.numbers(), default=-1) < seq:
                        raise  # for some other reason
                    return False
            _sync_folder(self.path)  # L3: from here on it survives a power cut
            return True
        finally:
            with contextlib.suppress(OSError):
                temp.unlink()  # L4: the next driver sweeps leftovers

    def _is(self, path: Path, inode: int) -> bool:
        """True if this is the name of that file."""
        try:
            return path.stat().st_ino == inode
        except FileNotFoundError:
            return False

    def written_at(self, seq: int) -> float:
        """Return when record `seq` was written, in seconds since the epoch. FileNotFoundError where there is none."""
        return self._file(seq).stat().st_mtime

    def read(self, seq: int) -> bytes | None:
        try:
            return self._file(seq).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, seq: int) -> bool:
        # Opening asks a network file system's server; a stat may be answered from the client's cache.
        try:
            os.close(os.open(self._file(seq), os.O_RDONLY))
        except FileNotFoundError:
            return False
        return True

    def numbers(self) -> list[int]:
        return sorted(int(match[1]) for match in self._matches(_RECORD_NAME))

    def remove(self, seq: int) -> None:
        self._file(seq).unlink(missing_ok=True)

    def mark_truncated(self) -> None:
        if self._marked:
            return
        with contextlib.suppress(FileExistsError):
            _write(self.path / MARKER, b"records of this log were truncated; keep this file\n")
        _sync_folder(self.path)
        self._marked = True

    def is_truncated(self) -> bool:
        return (self.path / MARKER).exists()

    def sweep(self, next_seq: int) -> None:
        for match in self._matches(_TEMP_NAME):
            if int(match[1]) < next_seq:
                (self.path / match[0]).unlink(missing_ok=True)

    def _matches(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return [match for name in names if (match := pattern.fullmatch(name))]

    def _file(self, seq: int) -> Path:
        return self.path / f"{seq:020d}{SUFFIX}"

    def _temp(self, seq: int) -> Path:
        return self.path / f"{seq:020d}.{uuid.uuid4().hex}.tmp"


def _write(path: Path, data: bytes) -> int:
    """Create a file, synced; returns its inode."""
    with open(path, "xb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_ino


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise LogUnsupported(
            f"the log cannot lie in {target.parent}: no hard links there ({error.strerror}). {_REMEDY}"
        ) from error


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise LogUnsupported(
            f"the log cannot lie in {path}: this folder cannot be synced ({error.strerror}). {_REMEDY}"
        ) from error
    finally:
        os.close(handle)
