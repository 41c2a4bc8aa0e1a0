"""Local stores of an executor: their folder, notes of their use, and the eviction of those whose shards have moved away.

A store is a cache of committed data, so it may be removed at any time. Commits decide what is removed, never ages: an
executor on which nothing happens keeps its stores.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import time

from windrow.core.errors import BadLocation
from windrow.core.location import local_path
from windrow.core.logs import get_logger
from windrow.stores.files import inode_of, private
from windrow.stores.quarantine import move_aside

logger = get_logger()

#: Variables that list several folders, on disks of their own as a rule: shards are spread over them.
_LISTS = re.compile(
    r"\$(?:(SPARK_LOCAL_DIRS|SPARK_EXECUTOR_DIRS|LOCAL_DIRS)\b|\{(\w*LOCAL_DIRS|SPARK_EXECUTOR_DIRS)\})"
)
#: A store that was not used in so many commits is evicted.
EVICT_AFTER = 64
#: Stores that were not used in the last two commits are evicted sooner, the oldest first, where they take more than this
#: share of the bytes of those that were.
UNUSED_AFTER, UNUSED_SHARE = 2, 0.25
_USED = "windrow-used"
_STORE = re.compile(r"shard-\d+")


def folder_of(said: str, shard: int) -> str:
    """Return the folder that a setting names on this machine, for the store of a shard."""

    def one_of(match: re.Match[str]) -> str:
        folders = os.environ.get(match[1] or match[2], "").split(",")
        return folders[shard % len(folders)] or match[0]

    expanded = os.path.expandvars(_LISTS.sub(one_of, said))
    if "$" in expanded:
        raise BadLocation(
            f"local_dir {said!r}: the executor has no such variable ({expanded!r}): name a folder of its disks, or leave it out"
        )
    return local_path(expanded, "local_dir")


def note_use(store: str, commit: int) -> None:
    """Note that a store is used in a commit. A lost note makes the store look unused, which costs a restore."""
    with contextlib.suppress(OSError), open(os.path.join(store, _USED), "wb", opener=private) as file:
        file.write(b"%d" % commit)


def bytes_of(store: str) -> int:
    """Return the bytes of a store's files."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(store) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def evict(folder: str, commit: int) -> list[str]:
    """Remove the stores of a folder whose shards have moved to other executors. commit: the one that is being made.

    Stores of executors that are gone are among them: Spark keeps the folder of an executor that was killed until the
    application ends. A store that somebody has open for writing stays. Who reads one meanwhile fails, and reads another at the
    next attempt.
    """
    unused, in_use = [], 0
    for place in _folders(folder):
        for name in sorted(os.listdir(place)):
            if _STORE.fullmatch(name):
                store = os.path.join(place, name)
                used = _used(store)
                if used <= commit - UNUSED_AFTER:
                    unused.append((used, bytes_of(store), store))
                else:
                    in_use += bytes_of(store)
    spare = sum(size for _, size, _ in unused) - UNUSED_SHARE * in_use
    gone = []
    for used, size, store in sorted(unused):
        if used > commit - EVICT_AFTER and spare <= 0:
            break
        spare -= size
        gone += [store] if _remove(store) else []
    return gone


def _folders(folder: str) -> list[str]:
    """Return the folder of a job's stores, and those of the application's other executors under the same directory of Spark."""
    pattern = re.sub(r"/blockmgr-[^/]+/", "/blockmgr-*/", glob.escape(folder))
    return sorted({folder, *glob.glob(pattern)})


def _used(store: str) -> int:
    try:
        with open(os.path.join(store, _USED), "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _remove(store: str) -> bool:
    aside = f"{store}.aside-{time.time_ns()}"
    try:
        moved = move_aside(store, inode_of(store), aside)
    except FileNotFoundError:
        return False
    if moved:
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("the store of a shard that moved is evicted", path=store)
    return moved
