"""Snapshots of a shard's store, its large files shared by content.

    blobs/<xxh3-128 of the content, hex>                         one SST file, immutable
    manifests/<shard>-<commit>-<xxh3-128 of the file>.manifest   immutable, recorded last
    manifest = SNAPSHOT_MANIFEST, msgpack [shard, commit, [[name, size, digest, content or nil], ...]]

SST files are named by content because two copies of one shard write different files under one number: by
name, a snapshot could mix them and be corrupt. The few other small files (CURRENT, MANIFEST, OPTIONS)
change with every snapshot and lie in the manifest itself. A manifest is recorded after every blob that it
names is there and verified, so a recorded snapshot is whole, and it is checked once more, byte for byte, when
it is restored.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import msgpack
import xxhash

from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState, StateError
from windrow.stores.files import inside, make_folder, now_ns, plain_name, private, sync_directory, write_whole
from windrow.stores.incremental_work import Slices, in_batches, whole
from windrow.stores.kv import LocalStore

SLICE_BYTES: Final = 1 << 19
_NAME: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]{32})\.manifest")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
SWEEP_GRACE_S: Final = 900.0
#: Files that a sweep reads or removes in one slice.
SWEEP_FILES: Final = 16
Names: TypeAlias = list[str]
#: Digests of files that never change, by (name, inode, change of content in ns, size).
Digests: TypeAlias = dict[tuple[str, int, int, int], str]
#: The file in a store's folder that keeps the digests of the last snapshot. It goes wherever the store goes.
DIGESTS: Final = "windrow-digests"


class StoredFile(NamedTuple):
    """File of a snapshot: its content is in the manifest, or where `content` is None in the blob
    `digest`."""

    name: str
    size: int
    digest: str
    content: bytes | None


class Snapshot(NamedTuple):
    """Content of a manifest."""

    shard: int
    commit: int
    files: tuple[StoredFile, ...]

    @property
    def blobs(self) -> dict[str, int]:
        """Size of each blob by digest."""
        return {file.digest: file.size for file in self.files if file.content is None}


def copy_name(shard: int) -> str:
    """Return the folder of a store's checkpoint, which exists only until it is kept."""
    return f"snapshot-{shard}-{os.getpid()}-{secrets.token_hex(4)}"


def kept_digests(store: str) -> Digests:
    """Return the digests that the last snapshot of a store has left in its folder; none where that file is no good."""
    try:
        with open(os.path.join(store, DIGESTS), "rb") as file:
            digest, rows = msgpack.unpackb(file.read())
        if digest == _digest(rows):
            return {(name, *numbers): known for name, *numbers, known in msgpack.unpackb(rows)}
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        pass
    return {}


def keep_digests(store: str, known: Digests) -> None:
    """Leave the digests of a snapshot in the store's folder, for the process that takes the next one."""
    rows = msgpack.packb([(*identity, digest) for identity, digest in known.items()])
    with (
        contextlib.suppress(OSError),  # a torn file is as good as none
        open(os.path.join(store, DIGESTS), "wb", opener=private) as file,
    ):
        file.write(msgpack.packb([_digest(rows), rows]))


class SnapshotStore:
    """Snapshots of any number of shards in one directory."""

    def __init__(self, directory: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self.directory = os.fspath(directory)
        self._blobs = os.path.join(self.directory, "blobs")
        self._manifests = os.path.join(self.directory, "manifests")
        self._fsync = fsync
        make_folder(self._blobs)
        make_folder(self._manifests)

    def create(self, kv: LocalStore, shard: int, commit: int, workdir: str | os.PathLike[str]) -> str:
        """Store the content of `kv` and return the manifest's name. Only files that no snapshot has are
        copied.

        `workdir` should be on the store's own file system: files are hard-linked there for the time of the
        call.
        """
        make_folder(os.fspath(workdir))
        copy = os.path.join(os.fspath(workdir), copy_name(shard))
        try:
            kv.checkpoint(copy)
            return whole(self.keep(copy, shard, commit))
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def keep(self, copy: str, shard: int, commit: int, known: Digests | None = None) -> Slices[str]:
        """Create a snapshot, as `create` does, from an existing checkpoint of a store, in slices of about `SLICE_BYTES`.

        known: the digests of the store's files at the last snapshot, which are not read again; those of this one are added.
        """
        files, known = [], {} if known is None else known
        for name in sorted(os.listdir(copy)):
            files.append((yield from self._store(os.path.join(copy, name), known)))
        present = {file.name for file in files}
        for identity in [i for i in known if i[0] not in present]:
            del known[identity]
        if self._fsync:
            sync_directory(self._blobs)
            sync_directory(self.directory)  # the names of the folders, which may be new
            yield
        data = seal(Kind.SNAPSHOT_MANIFEST, msgpack.packb([shard, commit, files]))
        name = f"{shard}-{commit}-{_digest(data)}.manifest"
        write_whole(os.path.join(self._manifests, name), [data], fsync=self._fsync)
        self._refuse_missing(name, Snapshot(shard, commit, tuple(files)))
        return name

    def is_whole(self, manifest: str) -> bool:
        """True if every file that a manifest names exists with its recorded size; only `verify` checks the content."""
        try:
            blobs = self.read(manifest).blobs
            return all(os.path.getsize(inside(self._blobs, d)) == size for d, size in blobs.items())
        except (CorruptState, FileNotFoundError):
            return False

    def restore(self, manifest: str, target: str | os.PathLike[str], *, link: bool = False) -> Snapshot:
        """Rebuild the store's directory at `target`, which must be empty or not there, and verify every
        byte.

        With `link` SST files are hard-linked rather than copied: faster, and safe as RocksDB never changes
        one, but damage to either is then damage to both.
        """
        snapshot = self.read(manifest)
        target = os.fspath(target)
        if os.path.isdir(target) and os.listdir(target):
            raise StateError(f"{target} is not empty: move it aside before restoring {manifest} there")
        staging = f"{target}.{secrets.token_hex(4)}.tmp"
        make_folder(staging)
        try:
            for file in snapshot.files:
                self._bring(file, inside(staging, file.name), manifest, link)
            os.rename(staging, target)  # also onto an empty directory
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return snapshot

    def verify(self, manifest: str) -> Snapshot:
        """Read every byte of a snapshot; CorruptState names the damage."""
        snapshot = self.read(manifest)
        for digest, size in snapshot.blobs.items():
            self._check(digest, size, manifest, self._read_blob(digest, manifest))
        return snapshot

    def read(self, manifest: str) -> Snapshot:
        """Return the content of a manifest, after its own bytes are verified."""
        match = _NAME.fullmatch(manifest)
        if match is None:
            raise CorruptState(f"{manifest!r} is no name of a snapshot manifest")
        try:
            with open(inside(self._manifests, manifest), "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise CorruptState(f"the snapshot {manifest} is gone from {self._manifests}") from error
        if _digest(data) != match[3]:
            raise CorruptState(
                f"the snapshot manifest {manifest} is damaged: its content has digest {_digest(data)}"
            )
        try:
            shard, commit, files = msgpack.unpackb(unseal(Kind.SNAPSHOT_MANIFEST, data))
            stored = tuple(_stored(*file) for file in files)
            if (str(shard), str(commit)) != match.groups()[:2]:
                raise ValueError(f"it is of shard {shard!r} as of commit {commit!r}")
        except (ValueError, TypeError) as error:
            raise CorruptState(
                f"the snapshot manifest {manifest} is whole but wrong ({error}): it restores nothing"
            ) from error
        return Snapshot(shard, commit, stored)

    def list(self, shard: int | None = None) -> Names:
        """Manifest names, oldest commit first; of one shard, or of all."""
        manifests = []
        for name in os.listdir(self._manifests):
            match = _NAME.fullmatch(name)
            if match is not None and shard in (None, int(match[1])):
                manifests.append((int(match[2]), int(match[1]), name))
        return [name for _, _, name in sorted(manifests)]

    def drop(self, keep: Iterable[str], shard: int | None = None, *, grace_s: float = SWEEP_GRACE_S) -> int:
        """Remove the manifests not in `keep` (of one shard, or of all) and the blobs that none names; returns bytes
        freed.
        """
        self.drop_manifests(keep, shard)
        return whole(self.sweep(grace_s))

    def drop_manifests(self, keep: Iterable[str], shard: int | None = None) -> None:
        """Remove the manifests not in `keep` (of one shard, or of all). Their blobs stay until a sweep."""
        kept = set(keep)
        for name in self.list(shard):
            if name not in kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._manifests, name))

    def sweep(self, grace_s: float = SWEEP_GRACE_S) -> Slices[int]:
        """Remove the blobs that no manifest names, and torn manifests, in slices; returns bytes freed.

        It reads the manifests of all shards. Blobs younger than `grace_s` stay: a snapshot that is being taken may be about
        to name them.
        """
        named: set[str] = set()
        for names in in_batches(self.list(), SWEEP_FILES):
            for name in names:
                with contextlib.suppress(CorruptState):  # gone meanwhile, or damaged: it restores nothing
                    named.update(self.read(name).blobs)
            yield
        horizon_ns = now_ns(self.directory) - int(grace_s * 1e9)
        unnamed = [
            os.path.join(self._blobs, name) for name in sorted(os.listdir(self._blobs)) if name not in named
        ]
        torn = [os.path.join(self._manifests, n) for n in os.listdir(self._manifests) if n.endswith(".tmp")]
        freed = 0
        for paths in in_batches(unnamed + torn, SWEEP_FILES):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path)
                    if status.st_mtime_ns <= horizon_ns:
                        os.unlink(path)
                        freed += status.st_size
            yield
        return freed

    # -- files -----------------------------------------------------------------------------------------------

    def _store(self, path: str, known: Digests) -> Slices[StoredFile]:
        status = os.stat(path)
        name, size = os.path.basename(path), status.st_size
        identity = name, status.st_ino, status.st_mtime_ns, size
        if not name.endswith(".sst"):
            with open(path, "rb") as file:
                content = file.read()
            return StoredFile(name, len(content), _digest(content), content)
        if identity not in known:
            known[identity] = yield from _copied(path)
        digest = known[identity]
        blob = os.path.join(self._blobs, digest)
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(blob) == size:
                os.utime(blob)  # young again, so that no sweep takes it before the manifest is there
                return StoredFile(name, size, digest, None)
        temporary = f"{blob}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            yield from _copied(path, temporary, self._fsync)
            written = yield from _copied(temporary)
            if written != digest:
                raise CorruptState(f"{temporary} reads back as {written}, {path} has digest {digest}")
            os.rename(temporary, blob)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return StoredFile(name, size, digest, None)

    def _bring(self, file: StoredFile, path: str, manifest: str, link: bool) -> None:
        if file.content is not None:
            self._check(file.digest, file.size, manifest, iter([file.content]), path)
            return
        source = self._read_blob(file.digest, manifest)
        if link:
            self._check(file.digest, file.size, manifest, source)
            with contextlib.suppress(OSError):
                os.link(inside(self._blobs, file.digest), path)
                return
            source = self._read_blob(file.digest, manifest)
        self._check(file.digest, file.size, manifest, source, path)

    def _read_blob(self, digest: str, manifest: str) -> Iterator[bytes]:
        try:
            yield from _blocks(inside(self._blobs, digest))
        except FileNotFoundError as error:
            raise CorruptState(f"the snapshot {manifest} names the blob {digest}, which is gone") from error

    def _check(
        self, digest: str, size: int, manifest: str, blocks: Iterator[bytes], path: str | None = None
    ) -> None:
        actual = _copy(blocks, path)
        if actual != digest:
            raise CorruptState(
                f"the snapshot {manifest} is damaged: the file {digest} of {size} bytes reads back as {actual}"
            )

    def _refuse_missing(self, name: str, snapshot: Snapshot) -> None:
        for digest, size in snapshot.blobs.items():
            path = os.path.join(self._blobs, digest)
            if not os.path.exists(path) or os.path.getsize(path) != size:
                os.unlink(os.path.join(self._manifests, name))
                raise StateError(
                    f"the blob {digest} was swept while {name} was taken: take the snapshot again"
                )


def _stored(name: str, size: int, digest: str, content: bytes | None) -> StoredFile:
    """Return a file as a manifest describes it. ValueError where a name could lead out of the store, or out of the blobs."""
    if type(size) is not int or not isinstance(content, bytes | None) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{name!r} of {size!r} bytes with digest {digest!r} is no file of a store")
    return StoredFile(plain_name(name), size, digest, content)


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _blocks(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(SLICE_BYTES):
            yield block


def _copy(blocks: Iterator[bytes], path: str | None = None) -> str:
    """Return the digest of the blocks' content; with `path` they are also written there."""
    state = xxhash.xxh3_128()
    with contextlib.ExitStack() as stack:
        target = None if path is None else stack.enter_context(open(path, "xb", opener=private))
        for block in blocks:
            state.update(block)
            if target is not None:
                target.write(block)
    return state.hexdigest()


def _copied(source: str, path: str | None = None, fsync: bool = False) -> Slices[str]:
    """Digest of a file, which with `path` is also copied there; in slices, each of which is synced. To read takes no time."""
    state = xxhash.xxh3_128()
    with contextlib.ExitStack() as stack:
        target = None if path is None else stack.enter_context(open(path, "xb", opener=private))
        for i, block in enumerate(_blocks(source)):
            state.update(block)
            if target is not None:
                target.write(block)
                if fsync:
                    target.flush()
                    os.fsync(target.fileno())
            if target is not None or i % 8 == 7:
                yield
    return state.hexdigest()
