"""Quarantine of a broken store: it is moved aside only under its lock. A process that has it open continues to write under its
name, where the next store is built.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import weakref
from typing import Any, Final

from windrow.stores.files import inode_of, private

#: Stores that this process has open for writing, and their folders: locks of files keep out other processes only.
OPEN: Final[weakref.WeakKeyDictionary[Any, tuple[int, int]]] = weakref.WeakKeyDictionary()
#: Its holder neither opens a store nor moves one.
TURN: Final = threading.RLock()


def move_aside(path: str, inode: tuple[int, int], target: str) -> bool:
    """Rename the folder of a store to `target`. inode: of the folder that was inspected.

    Returns False, and changes nothing, where another process has the store open, or another folder has its name by now.
    """
    with TURN, contextlib.ExitStack() as stack:
        if inode in OPEN.values():
            return False
        try:
            if os.path.islink(os.path.join(path, "LOCK")):
                os.unlink(os.path.join(path, "LOCK"))  # RocksDB makes none
            lock = private(os.path.join(path, "LOCK"), os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if inode_of(path) != inode:
                return False
            os.rename(path, target)
        except (BlockingIOError, PermissionError, FileNotFoundError, NotADirectoryError):
            return False
    return True


def destroy(path: str | os.PathLike[str]) -> None:
    """Removes a closed store and all of its files; nothing where there is none."""
    shutil.rmtree(path, ignore_errors=True)
