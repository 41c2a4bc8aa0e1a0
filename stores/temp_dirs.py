"""Temporary folders with an owner: the next process removes those that a killed one left.

A folder is its process's as long as that holds the lock of the file `lock` in it, which the system releases however the
process ends. The file appears locked, so that no process takes a new folder for one that was left.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

PREFIX = "windrow-"
LOCK = "lock"
#: (process, descriptor of the lock) of what this process made, by folder; a forked one inherits the former's.
_held: dict[str, tuple[int, int]] = {}


def make_scratch(kind: str) -> str:
    """Return a new folder, which is removed by `remove_scratch`, when this process ends, or by the next process."""
    if not _held:
        sweep()
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-")
    draft = os.path.join(folder, f"{LOCK}.tmp")
    descriptor = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(draft, os.path.join(folder, LOCK))
    _held[folder] = os.getpid(), descriptor
    return folder


def remove_scratch(folder: str) -> None:
    """Remove a folder that `make_scratch` made; nothing where that was done."""
    shutil.rmtree(folder, ignore_errors=True)
    held = _held.pop(folder, None)
    if held is not None:
        os.close(held[1])


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[str]:
    """Provide a folder for the time of a `with`."""
    folder = make_scratch(kind)
    try:
        yield folder
    finally:
        remove_scratch(folder)


def sweep() -> None:
    """Remove the folders of processes that are gone."""
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        if not name.startswith(PREFIX):
            continue
        folder = os.path.join(place, name)
        try:
            descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR)
        except OSError:
            continue  # not such a folder, or another process's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its process lives
        finally:
            os.close(descriptor)


@atexit.register
def _remove_all() -> None:
    for folder, (process, _) in list(_held.items()):
        if process == os.getpid():
            remove_scratch(folder)
