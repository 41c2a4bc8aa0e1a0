"""A changelog beside a store: every batch is appended to a file before it is written.

    file    = header record*                                 each an envelope header  = CHANGELOG_HEADER,
    msgpack [cfs or nil, base]   base: bytes after the header that a compaction wrote record  = CHANGELOG, a
    batch as `Batch.encode`

Used whole, it rebuilds a store; limited to the cf of window metadata, it is the compact changelog of seed
003, from which the start of the earliest retained window is known when everything else is lost.

A record that is torn at the end of the file was never answered for, and is left out. Damage before a readable
record, or inside what a compaction wrote (whole, by rename), is refused: what follows would be applied to the
wrong state. Replaying is idempotent, for puts and deletes and ranges alike, so a batch that is in the
changelog and not in the store does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgpack

from windrow.core.envelope import HEADER_SIZE, MAGIC, Kind, seal, unseal_at
from windrow.core.errors import CorruptState
from windrow.stores.files import write_whole
from windrow.stores.kv import KV, Batch, Pair

_CHUNK_BYTES: Final = 4 << 20


class Replay(NamedTuple):
    """What a rebuild found: batches applied, bytes read, bytes of a torn tail that were left out."""

    batches: int
    bytes_read: int
    bytes_torn: int


class ChangeloggedKV:
    """`kv`, with a changelog at `path`; with `cfs`, only of those. An existing changelog goes on, without its
    torn tail."""

    def __init__(
        self,
        kv: KV,
        path: str | os.PathLike[str],
        cfs: Sequence[str] | None = None,
        *,
        fsync: bool = False,
    ) -> None:
        self.kv = kv
        self.path = os.fspath(path)
        self._logged = None if cfs is None else tuple(cfs)
        self._fsync = fsync
        end = self._resume() if os.path.exists(self.path) else self._begin([])
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(end)
        self._file.seek(end)

    @property
    def cfs(self) -> tuple[str, ...]:
        return self.kv.cfs

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self.kv.get(cf, key)

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.kv.multi_get(cf, keys)

    def scan(
        self, cf: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[Pair]:
        return self.kv.scan(cf, start, end, reverse)

    def write(self, batch: Batch) -> None:
        unknown = set(batch.cfs) - set(self.cfs)
        if unknown:
            raise KeyError(unknown.pop())
        logged = batch if self._logged is None else batch.only(self._logged)
        if logged.cfs:
            self._append(seal(Kind.CHANGELOG, logged.encode()))
        self.kv.write(batch)

    def compact(self) -> None:
        """Rewrites the changelog as the store's contents: one put a row, tombstones and overwritten values
        vanish."""
        end = self._begin([seal(Kind.CHANGELOG, batch.encode()) for batch in self._contents()])
        self._file.close()
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        self._file.seek(end)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self.kv.close()

    def _append(self, record: bytes) -> None:
        """All of the record, or the file as it was: a half record before a whole one would be damage, not a
        tail."""
        start = self._file.tell()
        view = memoryview(record)
        try:
            while view:
                view = view[self._file.write(view) :]
            if self._fsync:
                os.fsync(self._file.fileno())
        except BaseException:
            self._file.truncate(start)
            self._file.seek(start)
            raise

    def _begin(self, records: list[bytes]) -> int:
        header = seal(Kind.CHANGELOG_HEADER, msgpack.packb([self._logged, sum(map(len, records))]))
        write_whole(self.path, [header, *records])
        return len(header) + sum(map(len, records))

    def _resume(self) -> int:
        with open(self.path, "rb") as file:
            data = file.read()
        cfs, _, _ = _header(data, self.path)
        mine = None if self._logged is None else list(self._logged)
        if cfs != mine:
            raise CorruptState(
                f"the changelog {self.path} is of {cfs or 'all cfs'}, asked for {mine or 'all cfs'}"
            )
        return max(end for _, end in _records(data, self.path))

    def _contents(self) -> Iterator[Batch]:
        for cf in self.cfs if self._logged is None else self._logged:
            keys: list[bytes] = []
            values: list[bytes] = []
            size = 0
            for key, value in self.kv.scan(cf):
                keys.append(key)
                values.append(value)
                size += len(key) + len(value)
                if size >= _CHUNK_BYTES:
                    yield _puts(cf, keys, values)
                    keys, values, size = [], [], 0
            if keys:
                yield _puts(cf, keys, values)


def rebuild(path: str | os.PathLike[str], kv: KV) -> Replay:
    """Replays a changelog into a store, which is empty or holds an earlier state of the same changelog."""
    name = os.fspath(path)
    with open(name, "rb") as file:
        data = file.read()
    batches, read = 0, 0
    for batch, end in _records(data, name):
        if batch is not None:
            kv.write(batch)
            batches += 1
        read = end
    return Replay(batches, read, len(data) - read)


def _records(data: bytes, path: str) -> Iterator[tuple[Batch | None, int]]:
    """(None, end of the header), then (batch, end of its record) up to a torn tail."""
    _, base, at = _header(data, path)
    yield None, at
    while at < len(data):
        try:
            payload, end = unseal_at(Kind.CHANGELOG, data, at)
        except CorruptState as error:
            if at < base:
                raise CorruptState(
                    f"the changelog {path} is damaged at byte {at}: {error.message}"
                ) from error
            later = _readable_after(data, at + 1)
            if later is not None:
                raise CorruptState(
                    f"the changelog {path} is damaged at byte {at} ({error.message}), and goes on at byte "
                    f"{later}: restore it or rebuild from the source"
                ) from error
            return
        yield Batch.decode(payload), end
        at = end
    if at < base:
        raise CorruptState(f"the changelog {path} has {at} bytes, its compaction wrote {base}")


def _header(data: bytes, path: str) -> tuple[list[str] | None, int, int]:
    """(cfs, end of what a compaction wrote, end of the header). Written with the file, so never torn."""
    try:
        payload, end = unseal_at(Kind.CHANGELOG_HEADER, data, 0)
    except CorruptState as error:
        raise CorruptState(f"the changelog {path} has no readable header: {error.message}") from error
    cfs, base = msgpack.unpackb(payload)
    return cfs, end + base, end


def _readable_after(data: bytes, at: int) -> int | None:
    """Where the next whole record begins, if one does."""
    while True:
        at = data.find(MAGIC + bytes((Kind.CHANGELOG,)), at)
        if at < 0 or len(data) - at < HEADER_SIZE:
            return None
        try:
            unseal_at(Kind.CHANGELOG, data, at)
            return at
        except CorruptState:
            at += 1


def _puts(cf: str, keys: list[bytes], values: list[bytes]) -> Batch:
    batch = Batch()
    batch.put_many(cf, keys, values)
    return batch
