"""A segment: what one shard changed in one commit, as one file.

    envelope(SEGMENT, msgpack [commit, shard, extra, batch])            batch as `Batch.encode`
    envelope(SEGMENT, 2, msgpack [commit, shard, extra, size, batch])   batch of `size` bytes, in one Zstandard frame

A task writes its segment under a name of its own and reports the digest; only the commit record that names
both makes it count. So a segment is written whole or not at all, and is checked against the digest of the
commit that named it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgpack
import pyarrow as pa
import xxhash

from windrow.core.envelope import Kind, seal, unseal
from windrow.core.errors import CorruptState
from windrow.stores.files import write_whole
from windrow.stores.kv import Batch

#: Format version of a segment whose batch is compressed.
COMPRESSED = 2


def encode_segment(
    commit: int, shard: int, batch: Batch, extra: Mapping[str, Any] | None = None, *, compress: bool = False
) -> bytes:
    """The bytes of a segment; `extra` is a map of what msgpack takes (offsets, counts, marks, panes)."""
    data = batch.encode()
    if not compress:
        return seal(Kind.SEGMENT, msgpack.packb([commit, shard, dict(extra or {}), data]))
    packed = pa.compress(data, codec="zstd", asbytes=True)
    return seal(
        Kind.SEGMENT, msgpack.packb([commit, shard, dict(extra or {}), len(data), packed]), COMPRESSED
    )


def decode_segment(data: bytes) -> tuple[int, int, Batch, dict[str, Any]]:
    """(commit, shard, batch, extra)."""
    payload = unseal(Kind.SEGMENT, data, COMPRESSED)
    try:
        commit, shard, extra, *size, batch = msgpack.unpackb(payload, strict_map_key=False)
        if size:
            batch = pa.decompress(batch, size[0], codec="zstd", asbytes=True)
    except (ValueError, TypeError, msgpack.UnpackException, OSError) as error:
        raise CorruptState(f"a segment of {len(data)} bytes cannot be read: {error}") from error
    return commit, shard, Batch.decode(batch), extra


def digest_of(data: bytes) -> str:
    """xxh3 of 128 bits, in hex: what a commit record says of a segment."""
    return xxhash.xxh3_128_hexdigest(data)


def write_segment(
    path: str | os.PathLike[str],
    commit: int,
    shard: int,
    batch: Batch,
    extra: Mapping[str, Any] | None = None,
    *,
    compress: bool = False,
    fsync: bool = True,
    fsync_dir: bool = True,
) -> str:
    """Writes the segment and returns its digest. `fsync=False` is for tests and for state that may be
    lost."""
    data = encode_segment(commit, shard, batch, extra, compress=compress)
    write_whole(os.fspath(path), [data], fsync=fsync, fsync_dir=fsync_dir)
    return digest_of(data)


def read_segment(
    path: str | os.PathLike[str], digest: str | None = None
) -> tuple[int, int, Batch, dict[str, Any]]:
    """(commit, shard, batch, extra); CorruptState where the file is not the one that `digest` names, or is
    torn."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise CorruptState(f"the segment {os.fspath(path)} is gone") from error
    if digest is not None and digest_of(data) != digest:
        raise CorruptState(
            f"the segment {os.fspath(path)} has digest {digest_of(data)}, its commit recorded {digest}: "
            "it is damaged or another attempt's"
        )
    try:
        return decode_segment(data)
    except CorruptState as error:
        raise CorruptState(f"{os.fspath(path)}: {error.message}") from error
