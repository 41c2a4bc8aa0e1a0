"""Simulated disk: a power cut leaves synced data, and some of the rest."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from typing import Any

from windrow.testing.simulation.world import SWEEPS, World

_STEP_OF = {
    "changelog": "3.2 files",
    "segments": "3.2 files",
    "panes": "3.2 files",
    "dead": "3.2 files",
    "snapshots": "6 snapshot",
    "executor-0": "3.1 store",
    "executor-1": "3.1 store",
    "sink": "5 sink",
}


class Disk:
    """A folder of real files that knows what a power cut would leave.

    A file's content survives as of its last fsync, a name as of the last fsync of its folder. Unsynced data may survive
    all the same, wholly, in part or not. A name that a rename has given to another file is one of the two.
    """

    _fsync, _link, _rename = staticmethod(os.fsync), staticmethod(os.link), staticmethod(os.rename)
    _unlink, _mkdir = staticmethod(os.unlink), staticmethod(os.mkdir)

    def __init__(self, world: World) -> None:
        self._world = world
        self._contents: dict[int, int] = {}  # size, by inode
        self._names: dict[int, set[tuple[str, int]]] = {}  # (name, inode), by the folder's inode
        #: Links to the files of synced names, by the folder's inode and the name.
        self._replaced: dict[tuple[int, str], str] = {}
        self._aside = f"{world.folder}-aside"

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        folder = stat.S_ISDIR(status.st_mode)
        self._point(path, "folder is synced" if folder else "file is synced")
        if folder:
            with os.scandir(descriptor) as entries:
                self._names[status.st_ino] = {(e.name, e.inode()) for e in entries}
            self._let_go([r for r in self._replaced if r[0] == status.st_ino])
        else:
            self._contents[status.st_ino] = status.st_size

    def link(self, source: str, target: str, **more: Any) -> None:
        self._point(os.fspath(target), "file is linked")
        self._link(source, target, **more)

    def mkdir(self, path: str, *more: Any, **options: Any) -> None:
        """Make a folder; a driver may die right after it, before the name is synced."""
        self._mkdir(path, *more, **options)
        self._point(os.fspath(path), "new folder is synced")

    def rename(self, source: str, target: str, **more: Any) -> None:
        self._point(os.fspath(target), "file is renamed")
        self._set_aside(os.fspath(target))
        self._rename(source, target, **more)

    def unlink(self, path: str, **more: Any) -> None:
        """Delete at once: it harms nothing if a power cut brings the file back."""
        if not more and self._is_in_sink(path):
            self._point(os.fspath(path), "file is removed")
        elif not more and not os.fspath(path).endswith(".tmp"):
            self._world.point(SWEEPS, "before a file is deleted")
        self._unlink(path, **more)

    def _is_in_sink(self, path: str) -> bool:
        return os.path.relpath(path, self._world.folder).split(os.sep)[0] == "sink"

    def _set_aside(self, target: str) -> None:
        """Keep a file whose synced name is about to be another's."""
        folder, name = os.stat(os.path.dirname(target)).st_ino, os.path.basename(target)
        if (folder, name) in self._replaced:
            return  # the current file was never synced, whatever its number
        if os.path.isfile(target) and (name, os.stat(target).st_ino) in self._names.get(folder, ()):
            os.makedirs(self._aside, exist_ok=True)
            kept = os.path.join(self._aside, f"{folder}-{name}")
            self._link(target, kept)
            self._replaced[folder, name] = kept

    def _point(self, path: str, what: str) -> None:
        parts = os.path.relpath(path, self._world.folder).split(os.sep)
        top = next((p for p in parts if p in _STEP_OF), parts[0])
        self._world.point(_STEP_OF.get(top, top), f"before a {what} in {top}")

    def keep(self, path: str) -> None:
        """Make this file survive as it is."""
        status, folder = os.stat(path), os.stat(os.path.dirname(path))
        self._contents[status.st_ino] = status.st_size
        name = os.path.basename(path)
        before = {n for n in self._names.get(folder.st_ino, ()) if n[0] != name}
        self._names[folder.st_ino] = {*before, (name, status.st_ino)}
        self._let_go([(folder.st_ino, name)])

    def _let_go(self, replaced: Iterable[tuple[int, str]]) -> None:
        for folder, name in replaced:
            kept = self._replaced.pop((folder, name), None)
            if kept is not None:
                self._unlink(kept)

    def lose(self) -> None:
        """Cut the power."""
        self._lose(self._world.folder, True)
        for folder, _, files in os.walk(self._world.folder):  # the current files are on the disk
            with os.scandir(folder) as entries:
                self._names[os.stat(folder).st_ino] = {(e.name, e.inode()) for e in entries}
            for status in (os.stat(os.path.join(folder, name)) for name in files):
                self._contents[status.st_ino] = status.st_size
        self._let_go(list(self._replaced))

    def _lose(self, folder: str, everything_here: bool) -> None:
        chance = self._world.random
        inode = os.stat(folder).st_ino
        synced = self._names.get(inode, set())
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
        for entry in entries:
            kept = everything_here and entry.name in ("executor-0", "executor-1")
            if not kept and (entry.name, entry.inode()) not in synced and chance.random() < 0.5:
                self._world.counts["lost: names"] += 1
                if entry.is_dir():
                    shutil.rmtree(entry.path)
                elif (inode, entry.name) in self._replaced:
                    self._rename(self._replaced.pop((inode, entry.name)), entry.path)
                else:
                    self._unlink(entry.path)
            elif entry.is_dir():
                self._lose(entry.path, False)
            else:
                size = entry.stat().st_size
                if size and self._contents.get(entry.inode()) != size and chance.random() < 0.7:
                    self._world.counts["torn: files"] += 1
                    os.truncate(entry.path, chance.randrange(size))
