"""Paths of a job's files. This is the one place for every name below a job's location.

log/         records: epochs, intents, commits            (the truth)
changelog/   window metadata a commit changed, per task   <commit>-<first shard>-<attempt>.seg; base-<shard>-<commit>.seg,
                                                      which names its base_part-<shard>-<commit>-<attempt>.seg
segments/    messages a commit filed, per task            <commit>-<first shard>-<attempt>.seg
panes/       panes of a commit, per task and operator     <commit>-<first shard>-<attempt>.<operator>.parquet
dead/        dead letters of a commit, per task           <commit>-<first shard>-<attempt>.parquet
snapshots/   copies of shards' stores, content-addressed
alive        when a driver last found nothing to commit: a time, for `windrow health`
local/       shards' own stores, where no other local folder is given: a cache
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from windrow.core.location import local_path
from windrow.stores.files import inside, make_durable_folder, make_folder, sync_directory


@dataclass(frozen=True)
class JobFolders:
    """The folders of one job."""

    location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", local_path(self.location))

    def make(self) -> None:
        """Make the folders. Their names survive a power cut: files that are synced inside would be lost with them."""
        make_durable_folder(self.location)
        for name in ("log", "changelog", "segments", "panes", "dead", "snapshots"):
            make_folder(os.path.join(self.location, name))
        sync_directory(self.location)  # always: a process that made them before may have died here

    @property
    def log(self) -> str:
        return os.path.join(self.location, "log")

    @property
    def snapshots(self) -> str:
        return os.path.join(self.location, "snapshots")

    @property
    def alive(self) -> str:
        return os.path.join(self.location, "alive")

    @property
    def local(self) -> str:
        return os.path.join(self.location, "local")

    @property
    def changelogs(self) -> str:
        return os.path.join(self.location, "changelog")

    def changelog(self, name: str) -> str:
        return inside(self.changelogs, f"{name}.seg")

    def segment(self, name: str) -> str:
        return inside(os.path.join(self.location, "segments"), f"{name}.seg")

    def panes(self, name: str, operator: str) -> str:
        return inside(os.path.join(self.location, "panes"), f"{name}.{operator}.parquet")

    def dead(self, name: str) -> str:
        return inside(os.path.join(self.location, "dead"), f"{name}.parquet")

    def store(self, shard: int, local: str | None = None) -> str:
        return os.path.join(local or self.local, f"shard-{shard:04d}")

    def named_by_commits(self) -> str | None:
        """Return some file that only a commit could have named, or a snapshot; None if there is none."""
        for folder in ("segments", "changelog", os.path.join("snapshots", "manifests"), "panes", "dead"):
            path = os.path.join(self.location, folder)
            for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
                file = os.path.join(path, name)
                # A user's folder of Parquet sinks may have these names, too.
                if os.path.isfile(file) and not name.endswith(".tmp") and not name.startswith("part-"):
                    return file
        return None


@dataclass(frozen=True)
class BorrowedFolders(JobFolders):
    """Folders of a job that is only read: files that commits name and that are missing are fetched to `scratch`."""

    scratch: str

    def changelog(self, name: str) -> str:
        return self._borrowed(super().changelog(name))

    def segment(self, name: str) -> str:
        return self._borrowed(super().segment(name))

    def panes(self, name: str, operator: str) -> str:
        return self._borrowed(super().panes(name, operator))

    def dead(self, name: str) -> str:
        return self._borrowed(super().dead(name))

    def _borrowed(self, path: str) -> str:
        if os.path.exists(path):
            return path
        return os.path.join(self.scratch, os.path.relpath(path, self.location))


def attempt_name(commit: int, shard: int) -> str:
    """Return a name that no other attempt at this commit has."""
    return f"{commit:012d}-{shard:04d}-{secrets.token_hex(4)}"


def base_name(commit: int, shard: int) -> str:
    """Return the compacted changelog of a shard as of `commit`."""
    return f"base-{shard:04d}-{commit:012d}"


def base_part_name(commit: int, shard: int) -> str:
    """Return one part of a compacted changelog, under a name that no other attempt at it has."""
    return f"base_part-{shard:04d}-{commit:012d}-{secrets.token_hex(4)}"
