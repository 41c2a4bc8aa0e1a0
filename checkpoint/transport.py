"""Transport of a job's log, and of the files that its commits name: the job's own folder, or a broker.

With files nothing is transported: every process reads what a task writes below the job's location. A broker carries
copies. A task stores its files there and returns their offsets; a process that lacks a committed file fetches it. The
location is then a cache of that machine. Committed window metadata is copied once more, key by key, to a compacted
changelog. docs/explanation/adr/0009 gives the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import FileLog, Log, RecordLog
from windrow.checkpoint.recovery import ANEW
from windrow.core.errors import JobMismatch, StateLost
from windrow.stores.files import write_whole
from windrow.stores.kv import Batch

#: [first, last] offset of what a transport keeps of a file.
At = tuple[int, int]
CACHE_MARK = "cache-of"


class Transport(Protocol):
    """Interface of a transport. Picklable: it travels to executors. A failure raises `KafkaFailed`, a lost file `StateLost`."""

    def log(self, folders: JobFolders) -> RecordLog:
        """Return the job's log, not yet read."""

    def prepare(self, folders: JobFolders, job: str, shards: int) -> None:
        """Make ready for a driver. Refuses a location that belongs to another transport or another job."""

    def keep(self, shard: int, files: Mapping[str, str]) -> Mapping[str, At]:
        """Keep the files of an attempt, durably; {kind: path} to {kind: where}. Empty where nothing has to be kept."""

    def has(self, shard: int, at: At) -> bool:
        """True if a kept file can still be fetched."""

    def fetch(self, shard: int, at: At, path: str) -> None:
        """Bring a kept file to where it was written, `path`."""

    def forget(self, shard: int, below: int) -> None:
        """Nothing below this offset will be fetched any more."""

    def copied(self, job: str, shard: int) -> int:
        """Return the commit up to which the transport's changelog has the shard's window metadata whole; 0 for none."""

    def copy(self, job: str, shard: int, commit: int, changes: Callable[[], Batch]) -> None:
        """Copy a commit's changes of window metadata to that changelog, unless it has them. Called before a store holds
        the commit: a store at commit c means that the changelog is whole up to c or further. No ranges in `changes`.
        """

    def restore(self, job: str, shard: int, write: Callable[[Batch], None]) -> int:
        """Write all window metadata of that changelog; returns the commit that it is of."""


@dataclass(frozen=True)
class FileTransport:
    """Transport by the job's own folder, which all processes see: nothing to do."""

    def log(self, folders: JobFolders) -> RecordLog:
        return FileLog(folders.log)

    def prepare(self, folders: JobFolders, job: str, shards: int) -> None:
        refuse_cache(folders)

    def keep(self, shard: int, files: Mapping[str, str]) -> Mapping[str, At]:
        return {}

    def has(self, shard: int, at: At) -> bool:
        return False

    def fetch(self, shard: int, at: At, path: str) -> None:
        raise StateLost(
            f"{path} is gone: its commit was made with log=wr.kafka_log(...), open the job with it"
        )

    def forget(self, shard: int, below: int) -> None:
        """Nothing is kept."""

    def copied(self, job: str, shard: int) -> int:
        return 0

    def copy(self, job: str, shard: int, commit: int, changes: Callable[[], Batch]) -> None:
        """Do nothing: the files of the commits are the changelog."""

    def restore(self, job: str, shard: int, write: Callable[[Batch], None]) -> int:
        return 0


FILES = FileTransport()


def refuse_cache(folders: JobFolders) -> None:
    """Raise `JobMismatch` where a location is the cache of a job whose log is elsewhere."""
    cache = cache_of(folders)
    if cache is not None:
        raise JobMismatch(
            f"{folders.location} is a cache of {cache[0]}, whose log is at {cache[1]}: give log={cache[1]} to open or read "
            "it, at the command line log:SERVERS/NAME; verify, fork and reset work on logs in files only"
        )


def cache_of(folders: JobFolders) -> tuple[str, str] | None:
    """Return (job, where its log is) of a location that is a cache."""
    try:
        with open(os.path.join(folders.location, CACHE_MARK), encoding="utf-8") as file:
            job, where = file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return job, where


def refuse_lost_log(folders: JobFolders, log: Log) -> None:
    """Raise `StateLost` where a log without records has files next to it: they are of a job whose log is lost."""
    file = folders.named_by_commits()
    if file is not None and log.tail().epoch is None:  # asked last: another driver may begin a job just now
        raise StateLost(
            f"{folders.log} has no record, and {file} is of a job that had one: its log is lost. Restore the log folder, or "
            f"the location from a backup; to begin anew, delete {folders.location} or give another location, {ANEW}"
        )


def refuse_others(folders: JobFolders, job: str, where: str) -> None:
    """Raise `JobMismatch` where a location is of a job in files, or the cache of another job."""
    cache = cache_of(folders)
    if cache is None and os.path.isdir(folders.log) and os.listdir(folders.log):
        raise JobMismatch(
            f"{folders.location} holds the log of a job in files, and log={where} is given: give a location of its own, or "
            "leave log= out"
        )
    if cache is not None and cache[0] != job:
        raise JobMismatch(
            f"{folders.location} is a cache of {cache[0]}, and log={where} holds {job}: give a location of its own, or delete "
            "this folder: whatever the log holds comes back from it"
        )


def mark_cache(folders: JobFolders, job: str, where: str) -> None:
    """Make a location the cache of a job whose log is elsewhere; `JobMismatch` where it is something else already."""
    refuse_others(folders, job, where)
    if cache_of(folders) is None:
        folders.make()
        write_whole(os.path.join(folders.location, CACHE_MARK), [f"{job}\n{where}\n".encode()])
