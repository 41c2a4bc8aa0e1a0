"""Errors of rocksdict, which are plain Exceptions and differ by text only; and the wait for a store that is open elsewhere."""

from __future__ import annotations

import errno
import os
import re
import time

from windrow.core.errors import CorruptState, StateError, StateLocked
from windrow.core.logs import get_logger
from windrow.stores.files import disk_failed

logger = get_logger()

#: A wait of this length for another process's lock is logged.
PATIENCE_S = 0.1
#: No code of this process releases a store while it waits, unless another thread is just closing it.
OWN_WAIT_S = 1.0

#: Text of the system in RocksDB's errors when the disk fails.
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def is_passing(error: Exception, path: str) -> bool:
    """True if the store is in use elsewhere, or was given another column family since we looked.

    Each open, or attempt, deletes old logs of RocksDB, which another process may have done first. An open writes a new
    manifest, and deletes the one that CURRENT named when we began to look.
    """
    text = str(error)
    gone = "No such file" in text
    in_use = "/LOCK:" in text or (gone and "/LOG.old." in text)
    if gone and (manifest := re.search(r"/(MANIFEST-\d+): No such file", text)):
        in_use = manifest[1] != _manifest(path)
    return (text.startswith("IO error") and in_use) or "Column families not opened" in text


class Waiting:
    """Wait for a store that is open elsewhere: it logs the wait once, and ends with an error."""

    def __init__(self, path: str, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._began, self._reported = time.monotonic(), False

    def go_on(self, error: Exception) -> None:
        """Raises `StateLocked` when it has been long enough."""
        by, waited_s = _holder(error), time.monotonic() - self._began
        wait_s = min(self._wait_s, OWN_WAIT_S) if by == "this process" else self._wait_s
        if waited_s >= wait_s:
            raise StateLocked(
                f"the store {self._path} is still open in {by or 'another process'} after {wait_s:g} seconds: wait until it is "
                f"closed there, or build a private copy ({error})"
            ) from error
        if by is not None and waited_s >= PATIENCE_S and not self._reported:
            self._reported = True
            logger.warning(
                "waiting for a store that is open elsewhere", path=self._path, by=by, seconds=wait_s
            )


def _holder(error: Exception) -> str | None:
    """Return the process that has the store open; None if the error says nothing of that."""
    text = str(error)
    if "/LOCK:" not in text:
        return None
    return "this process" if "lock hold by current process" in text else "another process"


def _manifest(path: str) -> str:
    """Return the manifest that counts."""
    with open(os.path.join(path, "CURRENT"), errors="replace") as file:
        return file.read().strip()


def translate(error: Exception, path: str) -> Exception:
    """Our error for one of rocksdict's."""
    if isinstance(error, StateError):
        return error
    text = str(error)
    if text.startswith("Corruption") or "No such file or directory" in text:
        return CorruptState(f"the store {path} is damaged: {text}")
    for number in _OF_THE_DISK:
        of_rocksdict = text.endswith(f"(os error {number})")  # of the file that it writes itself
        if of_rocksdict or (text.startswith("IO error") and os.strerror(number) in text):
            return disk_failed(f"the store {path}", text, number)
    return StateError(f"the store {path} failed: {text}")
