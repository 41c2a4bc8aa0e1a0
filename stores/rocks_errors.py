"""What rocksdict's errors mean: plain Exceptions, told apart by their text."""

from __future__ import annotations

import errno
import os
import re

from windrow.core.errors import CorruptState, StateError
from windrow.stores.files import disk_failed

#: What RocksDB tells in the system's words where the disk refuses.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def is_passing(error: Exception, path: str) -> bool:
    """True if the store is in use elsewhere, or was given another column family since we looked.

    Each who opens it, or tries to, takes away old logs of RocksDB: another may have done so first. Who opens it writes a new
    manifest, and takes away the one that CURRENT said when we began to look.
    """
    text = str(error)
    gone = "No such file" in text
    in_use = "/LOCK:" in text or (gone and "/LOG.old." in text)
    if gone and (manifest := re.search(r"/(MANIFEST-\d+): No such file", text)):
        in_use = manifest[1] != _manifest(path)
    return (text.startswith("IO error") and in_use) or "Column families not opened" in text


def _manifest(path: str) -> str:
    """The manifest that counts."""
    with open(os.path.join(path, "CURRENT")) as file:
        return file.read().strip()


def translate(error: Exception, path: str) -> Exception:
    """Our error for one of rocksdict's."""
    if isinstance(error, StateError):
        return error
    text = str(error)
    if text.startswith("Corruption") or "No such file or directory" in text:
        return CorruptState(f"the store {path} is damaged: {text}")
    for number in _OF_THE_DISK if text.startswith("IO error") else ():
        if os.strerror(number) in text:
            return disk_failed(f"the store {path}", text, number)
    return StateError(f"the store {path} failed: {text}")
