"""Segment: the changes of one shard in one commit, as one file.

    envelope(SEGMENT, msgpack [commit, shard, extra, size, more, batch])   batch as `Batch.encode`

size: bytes of a batch that is in one Zstandard frame, 0 of others. more: True if another envelope follows, with the next part
of a batch that is large; parts are applied in their order.

A task writes segments under a name of its own and reports their digests; only the commit record that names
both makes them count. So a file is written whole or not at all, and a segment is checked against the digest of the
commit that named it. The segments of the shards of one task lie in one file, one after another; the commit says where.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import msgpack
import pyarrow as pa
import xxhash

from windrow.core.envelope import HEADER_SIZE, Kind, header_of, length_of, unsealed
from windrow.core.errors import CorruptState
from windrow.stores.files import Growing, write_whole
from windrow.stores.kv import Batch, Changes

#: A batch of more bytes is written in parts of about so many: then it is in memory once, not four times.
PART_BYTES = 16 << 20
#: The fields before a batch rarely have more than so many bytes.
HEAD_BYTES = 1 << 16
#: Bytes of msgpack's length of bytes, by the type byte before it.
_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
#: Bytes of a file that are read at once for its digest.
READ_BYTES = 1 << 20


def encode_segment(
    commit: int, shard: int, batch: Changes, extra: Mapping[str, Any] | None = None, *, compress: bool = False
) -> bytes:
    """Return the bytes of a segment; `extra` is a map of what msgpack takes (offsets, counts, marks, panes)."""
    data, size = batch.packed(batch.nbytes), 0
    if compress:
        data, size = pa.compress(data, codec="zstd", asbytes=True), len(data)
    return b"".join(_pieces(commit, shard, extra, data, size))


def decode_segment(data: bytes) -> tuple[int, int, Batch, dict[str, Any]]:
    """Return (commit, shard, batch, extra)."""
    return _whole(_parts_in(io.BytesIO(data), len(data)))


def _whole(parts: Iterator[tuple[int, int, Batch, dict[str, Any]]]) -> tuple[int, int, Batch, dict[str, Any]]:
    commit, shard, batch, extra = next(parts)
    for _, _, part, _ in parts:
        batch.extend(part)
    return commit, shard, batch, extra


def _parts_in(
    file: IO[bytes], left: int, checked: bool = False, views: bool = False
) -> Iterator[tuple[int, int, Batch, dict[str, Any]]]:
    """Yield the content of each envelope in a file of `left` bytes; one at a time is in memory. checked: by its digest."""
    more = True
    while more:
        head = file.read(HEADER_SIZE)
        file.seek(-len(head), os.SEEK_CUR)  # read at once, it is not copied
        data = file.read(min(HEADER_SIZE + length_of(head), left))
        left -= len(data)
        payload = unsealed(Kind.SEGMENT, data, checked=checked)
        try:
            commit, shard, extra, size, more, batch = _fields(payload)
            if size:
                batch = pa.decompress(batch, size, codec="zstd", asbytes=True)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException, OSError) as error:
            raise CorruptState(f"a segment of {len(data)} bytes cannot be read: {error}") from error
        if left and not more:
            raise CorruptState(
                f"a segment of {len(data)} bytes is followed by {left} bytes that are not its own"
            )
        yield commit, shard, Batch.decode(batch, views), extra


def _fields(payload: memoryview) -> list[Any]:
    """Parse a msgpack payload. An uncompressed batch, which is nearly all of it, becomes a view."""
    reader = msgpack.Unpacker(strict_map_key=False)
    reader.feed(payload[:HEAD_BYTES])
    try:
        count = reader.read_array_header()
        fields = [reader.unpack() for _ in range(5)]
        width = _WIDTHS.get(payload[reader.tell()], 0)
    except msgpack.OutOfData:
        width = 0
    if not width:
        return list(msgpack.unpackb(payload, strict_map_key=False))
    first = reader.tell() + 1 + width
    if (count, first + int.from_bytes(payload[first - width : first], "big")) != (6, len(payload)):
        raise ValueError(f"it has {count} fields, and not as many bytes as they say")
    return [*fields, payload[first:]]


def _encode_parts(
    commit: int, shard: int, batch: Changes, extra: Mapping[str, Any] | None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a segment, in parts where the batch is large."""
    size = batch.nbytes
    if size <= PART_BYTES:
        yield from _pieces(commit, shard, extra, batch.packed(size))
        return
    parts = batch.parts(PART_BYTES)
    part = next(parts, None)
    while part is not None:
        following = next(parts, None)
        yield from _pieces(commit, shard, extra, part.packed(PART_BYTES), more=following is not None)
        part = following


def _pieces(
    commit: int,
    shard: int,
    extra: Mapping[str, Any] | None,
    data: bytes | memoryview,
    size: int = 0,
    more: bool = False,
) -> list[bytes | memoryview]:
    """Return msgpack [commit, shard, extra, size, more, batch] in its envelope, without a copy of the batch `data`."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(6)
    for field in (commit, shard, dict(extra or {}), size, more):
        packer.pack(field)
    pieces = [packer.bytes() + _bytes_header(len(data)), data]
    return [header_of(Kind.SEGMENT, pieces), *pieces]


def _bytes_header(size: int) -> bytes:
    """Return msgpack's header of so many bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)


def digest_of(data: bytes) -> str:
    """Return the xxh3 of 128 bits, in hex, by which a commit record identifies a segment."""
    return xxhash.xxh3_128_hexdigest(data)


def write_segment(
    path: str | os.PathLike[str],
    commit: int,
    shard: int,
    batch: Changes,
    extra: Mapping[str, Any] | None = None,
    *,
    compress: bool = False,
    fsync: bool = True,
    fsync_dir: bool = True,
) -> str:
    """Writes the segment and returns its digest. `fsync=False` is for tests and for state that may be
    lost."""
    digest = xxhash.xxh3_128()
    frames: Iterable[bytes | memoryview] = (
        [encode_segment(commit, shard, batch, extra, compress=True)]
        if compress
        else _encode_parts(commit, shard, batch, extra)
    )

    def chunks() -> Iterator[bytes | memoryview]:
        for frame in frames:
            digest.update(frame)
            yield frame

    write_whole(os.fspath(path), chunks(), fsync=fsync, fsync_dir=fsync_dir)
    return digest.hexdigest()


def append_segment(file: Growing, commit: int, shard: int, batch: Changes) -> tuple[str, tuple[int, int]]:
    """Write a segment at the end of a file; returns its digest, and where it begins and ends."""
    digest, begin = xxhash.xxh3_128(), file.size
    for frame in _encode_parts(commit, shard, batch, None):
        digest.update(frame)
        file.write(frame)
    return digest.hexdigest(), (begin, file.size)


def read_segment(
    path: str | os.PathLike[str], digest: str | None = None
) -> tuple[int, int, Batch, dict[str, Any]]:
    """Return (commit, shard, batch, extra); CorruptState where the file is not the one that `digest` names, or is
    torn."""
    return _whole(read_parts(path, digest))


def read_parts(
    path: str | os.PathLike[str],
    digest: str | None = None,
    where: tuple[int, int] | None = None,
    *,
    views: bool = False,
) -> Iterator[tuple[int, int, Batch, dict[str, Any]]]:
    """Read as `read_segment` does, the batch in the parts in which it was written; one at a time is in memory.

    where: its begin and end in a file of several
    views: large values are views of what was read, as `Batch.decode` has them
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except FileNotFoundError as error:
            raise CorruptState(f"the segment {os.fspath(path)} is gone") from error
        begin, end = where or (0, os.fstat(file.fileno()).st_size)
        size = end - begin
        file.seek(begin)
        whole = file.read(size) if size <= PART_BYTES else None
        if (
            digest is not None
            and (actual := _digest_in(file, size) if whole is None else digest_of(whole)) != digest
        ):
            raise CorruptState(
                f"the segment {os.fspath(path)} has digest {actual}, its commit recorded {digest}: "
                "it is damaged or another attempt's"
            )
        try:
            yield from _parts_in(
                file if whole is None else io.BytesIO(whole), size, digest is not None, views
            )
        except CorruptState as error:
            raise CorruptState(f"{os.fspath(path)}: {error.message}") from error


def _digest_in(file: IO[bytes], size: int) -> str:
    """Return the digest of the next so many bytes, which remain to be read."""
    digest, begin = xxhash.xxh3_128(), file.tell()
    while data := file.read(min(READ_BYTES, begin + size - file.tell())):
        digest.update(data)
    file.seek(begin)
    return digest.hexdigest()
