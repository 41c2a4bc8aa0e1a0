"""Files that exist whole or not at all, and private folders."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import xxhash

from windrow.core.errors import ConfigurationError, CorruptState, DiskFailed, WindrowError

#: Octal mode of folders of state, for where shards run as another user than the driver: 2770, with a group for both.
FOLDER_MODE = "WINDROW_FOLDER_MODE"
_DEFAULT_MODE = 0o750
#: A probe file for the file system's time, and the age at which a leftover one is deleted.
_NOW, NOW_GRACE_NS = re.compile(r"now\.\d+-[0-9a-f]+\.tmp"), 900 * 10**9


def make_folder(path: str) -> None:
    """Make a folder of state, and those above it that are missing. Others may not look into it, unless `FOLDER_MODE` lets them.

    An existing folder keeps its mode. Files that other libraries write there are open to all users that may enter it.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make_folder(above)
    try:
        os.mkdir(path, _mode())
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return  # another process was faster
    if FOLDER_MODE in os.environ:
        os.chmod(path, _mode())  # exactly so, whatever the umask


def make_durable_folder(path: str) -> None:
    """Make a folder, and those above it that are missing, whose names survive a power cut.

    A folder is made when the name of the one above it is durable. So of an existing path only the last
    name can be one that its maker had no time to sync.
    """
    above = os.path.dirname(path)
    if not os.path.isdir(path):
        if above and above != path:
            make_durable_folder(above)
        make_folder(path)
    sync_name(path)


def sync_name(path: str) -> None:
    """Make the name of a folder survive a power cut. A folder above that this user may not read, or that cannot be synced, was
    there before.
    """
    try:
        sync_directory(os.path.dirname(path))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
            raise


#: A name of a file that a file names: nothing that could be a path, and nothing that is hidden.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]{0,199}")


def plain_name(value: Any) -> str:
    """Check that `value` is a file's name in its folder, and return it. ValueError for anything that could lead elsewhere."""
    if not isinstance(value, str) or _PLAIN_NAME.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no name of a file of a job")
    return value


def inside(folder: str, name: Any) -> str:
    """Return the path of a file in `folder` by a name that comes out of a file. `CorruptState` for a path, and for a link.

    Every such name becomes a path here: a folder may come from somebody else.
    """
    try:
        path = os.path.join(folder, plain_name(name))
    except ValueError as error:
        raise CorruptState(f"a file of {folder} names another: {error}") from error
    if os.path.islink(path):
        raise CorruptState(f"{path} is a link, and windrow follows none: put the file itself there")
    return path


def refuse_links(folder: str) -> None:
    """Raise `CorruptState` where a folder, in which another library opens files, has links in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise CorruptState(
                    f"{entry.path} is a link, and windrow follows none: put the file itself there"
                )


def inode_of(path: str) -> tuple[int, int]:
    """Return the identity of a folder, which is independent of its name."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def beheaded(path: str, inode: tuple[int, int]) -> Iterator[None]:
    """Remove CURRENT from a RocksDB store, which needs no space and no write, so that the next open finds it damaged.

    inode: of its folder; another folder may have its name. CURRENT is removed again after the body: RocksDB may
    write a new one in its last moments.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            if (os.fstat(folder).st_dev, os.fstat(folder).st_ino) == inode:
                stack.callback(_unlink, "CURRENT", folder)
                _unlink("CURRENT", folder)
        yield


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def on_disk(location: str) -> Iterator[None]:
    """Raise errors of the file system below `location` with the path and the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WindrowError):
            raise
        where = f"{error.filename!r} of {location}" if error.filename else location
        why = os.strerror(error.errno) if error.errno else str(error)
        raise disk_failed(where, why, error.errno) from error


def disk_failed(where: str, why: str, number: int | None) -> DiskFailed:
    """Return the error of a disk that failed. number: the system's of the error"""
    remedy = _REMEDIES.get(number or 0, "see what is wrong with the disk")
    done = "read or written" if number == errno.EIO else "written"
    failed = DiskFailed(
        f"{where} cannot be {done}: {why}. What was committed is safe: {remedy}, and call again"
    )
    failed.errno = number
    return failed


_FULL, _CLOSED = "free some space", "let this user write there"
_REMEDIES = {
    errno.EIO: "see what the system's log says of the disk, move the job to a sound one where it is broken",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "raise the limit of file sizes",
    errno.EROFS: "mount it for writing",
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.ENOTDIR: "name a folder, or one that can be made",
    errno.EEXIST: "name a folder, or one that can be made",
}


def private(path: str, flags: int) -> int:
    """Return an opener of files of state, for `open`."""
    return os.open(path, flags, _mode() & 0o666)


def _mode() -> int:
    text = os.environ.get(FOLDER_MODE)
    if text is None:
        return _DEFAULT_MODE
    if re.fullmatch("[0-2]?7[0-7]{2}", text) is None:
        raise ConfigurationError(
            f"{FOLDER_MODE}={text!r}: give an octal mode that its owner may use, such as 2770"
        )
    return int(text, 8)


def write_whole(
    path: str, parts: Iterable[bytes | memoryview], *, fsync: bool = True, fsync_dir: bool = True
) -> None:
    """Write a file under an attempt-unique temporary name next to it, then rename it: readers see all or
    nothing."""
    with Growing(path) as file:
        for part in parts:
            file.write(part)
        file.finish(fsync=fsync)
    if fsync and fsync_dir:
        sync_directory(os.path.dirname(path))


class Growing:
    """File that grows under an attempt-unique temporary name next to its own, which it has from `finish` on."""

    def __init__(self, path: str) -> None:
        self.path, self.size = path, 0
        self._temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        self._file = open(self._temporary, "xb", opener=private)  # noqa: SIM115 (`finish` closes it)

    def write(self, part: bytes | memoryview) -> None:
        self._file.write(part)
        self.size += len(part)

    def finish(self, *, fsync: bool = True) -> None:
        """Give the file its name. It survives a power cut as soon as its folder is synced."""
        self._file.flush()
        if fsync:
            os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._temporary, self.path)

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Remove what was not finished."""
        if failed is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)


class Unnamed:
    """File without a name in the system's temporary folder: it is deleted with its owner, however the process ends."""

    def __init__(self) -> None:
        with on_disk(tempfile.gettempdir()):
            self.descriptor, path = tempfile.mkstemp(prefix="windrow-")
            weakref.finalize(self, os.close, self.descriptor)
            os.unlink(path)
        self.size = 0

    def write(self, *data: Any) -> int:
        """Write bytes, or buffers, at the end; returns where they begin."""
        at, left = self.size, [memoryview(buffer).cast("B") for buffer in data]
        self.size += sum(map(len, left))
        with on_disk(tempfile.gettempdir()):
            while left:
                written = os.writev(self.descriptor, left)
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if left:
                    left[0] = left[0][written:]
        return at

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, at)

    def mapped(self, at: int = 0) -> mmap.mmap:
        """Map it into memory from a page on, which the system reads on access and may release. There must be bytes."""
        return mmap.mmap(self.descriptor, self.size - at, access=mmap.ACCESS_READ, offset=at)


def digest_of(path: str) -> str:
    """Return the xxh3 of 128 bits of a file's content, in hex."""
    state = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def sync_directory(path: str) -> None:
    """Makes the names in a directory survive a power loss."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now_ns(directory: str) -> int:
    """Return the time by the clock of a directory's file system. Probe files that killed processes left are deleted."""
    path = os.path.join(directory, f"now.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with open(path, "xb", opener=private):
        pass
    try:
        now = os.stat(path).st_mtime_ns
    finally:
        os.unlink(path)
    for name in os.listdir(directory):
        left = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            # By age: a process of another machine may have the number of one that is dead here.
            if _NOW.fullmatch(name) and os.stat(left).st_mtime_ns < now - NOW_GRACE_NS:
                os.unlink(left)
    return now
