"""Transport of a job's log, and of the files that its commits name: the job's own folder, or a broker.

With files nothing is transported: every process reads what a task writes below the job's location. A broker carries
copies. A task stores its files there and returns their offsets; a process that lacks a committed file fetches it. The
location is then a cache of that machine. Committed window metadata is copied once more, key by key, to a compacted
changelog. docs/explanation/adr/0009 gives the reasons, docs/howto/adding-a-transport.md an example.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import FileLog, Log, LogState, RecordLog
from windrow.checkpoint.recovery import ANEW
from windrow.core.errors import JobMismatch, StateLost
from windrow.stores.files import write_whole
from windrow.stores.kv import Batch

#: [first, last] offset of what a transport keeps of a file.
At = tuple[int, int]
CACHE_MARK = "cache-of"


class Transport(ABC):
    """Base class of transports: a value, picklable, because it travels to executors, with a `repr` that names its place.

    Four methods are required. Without those of the changelog, a shard that is lost is rebuilt from all kept files, so that none
    of them is ever forgotten. A failure raises an error of the medium; a lost file raises `StateLost`.
    """

    #: True if every process sees what another one writes below the location: nothing is carried, and the location is no cache.
    shares_location: ClassVar[bool] = False

    @abstractmethod
    def log(self, folders: JobFolders) -> RecordLog:
        """Return the job's log, not yet read."""

    @abstractmethod
    def keep(self, shard: int, files: Mapping[str, str]) -> Mapping[str, At]:
        """Keep the files of an attempt, durably; {kind: path} to {kind: where}. Empty where nothing has to be kept."""

    @abstractmethod
    def has(self, shard: int, at: At) -> bool:
        """True if a kept file can still be fetched."""

    @abstractmethod
    def fetch(self, shard: int, at: At, path: str) -> None:
        """Bring a kept file to where it was written, `path`. The folder may be missing; the file appears whole."""

    def forget(self, shard: int, below: int) -> None:
        """Drop files of the shard below this offset: none of them will be fetched any more."""
        return

    def read(self, folders: JobFolders, log: Log) -> LogState:
        """Read a log of `log()` to its end. Raises `JobMismatch` where the location is of another transport or job."""
        state = log.tail()
        if state.epoch is not None:
            refuse_others(folders, state.epoch.job, repr(self))
        return state

    def no_job(self, folders: JobFolders) -> str:
        """Return the error's text for a log without a record."""
        return f"{self!r} holds no job: no driver has ever opened it. Give the place and the name that the job has"

    def prepare(self, folders: JobFolders, job: str, shards: int) -> None:
        """Make ready for a driver. Refuses a location that belongs to another transport or another job."""
        mark_cache(folders, job, repr(self))

    def copied(self, job: str, shard: int) -> int:
        """Return the commit up to which the transport's changelog has the shard's window metadata whole; 0 for none."""
        return 0

    def copy(self, job: str, shard: int, commit: int, changes: Callable[[], Batch]) -> None:
        """Copy a commit's changes of window metadata to that changelog, unless it has them. Called before a store holds
        the commit: a store at commit c means that the changelog is whole up to c or further. No ranges in `changes`.
        """
        return

    def restore(self, job: str, shard: int, write: Callable[[Batch], None]) -> int:
        """Write all window metadata of that changelog; returns the commit that it is of. Called if `copied` is not 0."""
        return 0


@dataclass(frozen=True)
class FileTransport(Transport):
    """Transport by the job's own folder, which all processes see: nothing to do."""

    shares_location: ClassVar[bool] = True

    def log(self, folders: JobFolders) -> RecordLog:
        return FileLog(folders.log)

    def read(self, folders: JobFolders, log: Log) -> LogState:
        if os.path.isfile(folders.location):
            raise JobMismatch(f"{folders.location} is no windrow location: it is a file, give a folder")
        refuse_cache(folders)
        refuse_lost_log(folders, log)
        return log.tail()

    def no_job(self, folders: JobFolders) -> str:
        if os.path.isdir(folders.log):
            return f"{folders.location} is no windrow location: no driver has ever opened it"
        return (
            f"{folders.location} is no windrow location: it has no folder 'log'. Give the location that the job was opened "
            "with (of a job begun with writeStream: <checkpointLocation>/windrow)"
        )

    def prepare(self, folders: JobFolders, job: str, shards: int) -> None:
        refuse_cache(folders)

    def keep(self, shard: int, files: Mapping[str, str]) -> Mapping[str, At]:
        return {}

    def has(self, shard: int, at: At) -> bool:
        return False

    def fetch(self, shard: int, at: At, path: str) -> None:
        raise StateLost(f"{path} is gone: its commit was made with log=..., open the job with it")


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
