"""Shutdown of stores: flush of data that is in memory alone, and processes that are forked while a store is open."""

from __future__ import annotations

import ctypes
import os
import shutil
import weakref
from collections.abc import Mapping
from typing import Any, Final, Protocol

#: A checkpoint that is made to flush a store, and taken away.
FLUSH_DIR: Final = "flush.tmp"
#: Properties of a column family: the number of changes that are not flushed.
_IN_MEMORY: Final = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")


def sweep_flush_dir(path: str) -> None:
    for name in (FLUSH_DIR, FLUSH_DIR + ".tmp"):
        shutil.rmtree(os.path.join(path, name), ignore_errors=True)


def is_written(db: Any, maps: Mapping[str, Any]) -> bool:
    """True if nothing is in memory alone: then a store is whole, whatever fails now. The check itself takes no room."""
    try:
        return all(cf.property_int_value(name) == 0 for cf in (db, *maps.values()) for name in _IN_MEMORY)
    except Exception:
        return False


class Forked(Protocol):
    """A holder of objects that start threads."""

    def leave_to_parent(self) -> list[Any]:
        """Give up what is held, in a child process, and return it."""


#: All of this process, until they are dropped.
FORKED: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def _forked() -> None:
    """Never free here what the parent has open: it would wait for threads that do not exist here, or write."""
    for holder in list(FORKED):
        for one in holder.leave_to_parent():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


os.register_at_fork(after_in_child=_forked)
