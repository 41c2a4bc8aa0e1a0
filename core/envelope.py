"""Frame of everything that windrow persists.

    "WR" | u8 kind | u8 version | u32 crc32 | u32 length | payload

Integers are big-endian. The checksum (zlib's crc32) covers kind, version and payload. A reader learns from
the first twelve bytes whether this is ours, what it is, whether it can be read, and where it ends; it never
guesses. An unknown version is an error. Records of a file follow each other.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from windrow.core.errors import CorruptState, NewerFormat

MAGIC: Final = b"WR"
_HEADER: Final = struct.Struct(">2sBBII")
HEADER_SIZE: Final = _HEADER.size
MAX_PAYLOAD: Final = 0xFFFF_FFFF


class Kind(enum.IntEnum):
    """Kind of a payload. Numbers are persisted: never reuse one."""

    SEGMENT = 1
    LOG_RECORD = 3
    SNAPSHOT_MANIFEST = 4
    SINK_MANIFEST = 9
    CHUNK = 11


def check_version(what: str, found: int, known: int) -> None:
    """Raise for data of a later windrow, and for an unknown version."""
    if found != known:
        raise NewerFormat(f"{what} of version {found}, this windrow reads version {known}: upgrade windrow")


def seal(kind: Kind, payload: bytes, version: int = 1) -> bytes:
    """Frame a payload."""
    return header_of(kind, [payload], version) + payload


def header_of(kind: Kind, payload: Sequence[bytes | memoryview], version: int = 1) -> bytes:
    """Return the header of a payload, whose pieces are passed."""
    size = sum(map(len, payload))
    if size > MAX_PAYLOAD:
        raise ValueError(f"a {kind.name} of {size} bytes is above {MAX_PAYLOAD}: split it")
    return _HEADER.pack(MAGIC, kind, version, _checksum(kind, version, *payload), size)


def length_of(head: bytes) -> int:
    """Return the length of the payload after a header; 0 where that is cut short."""
    return int(_HEADER.unpack(head)[-1]) if len(head) == HEADER_SIZE else 0


def unseal(kind: Kind, data: bytes, known: int = 1) -> bytes:
    """Return the payload of data that holds exactly one frame of `kind`."""
    return bytes(unsealed(kind, data, known))


def unsealed(kind: Kind, data: bytes, known: int = 1, *, checked: bool = False) -> memoryview:
    """Unseal as `unseal` does, without a copy. checked: a digest was compared, which takes the place of the checksum."""
    if len(data) < HEADER_SIZE:
        raise CorruptState(f"a {kind.name} is cut short: {len(data)} bytes, its header has {HEADER_SIZE}")
    magic, found, version, checksum, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptState(f"not a {kind.name}: it starts with {magic.hex()}, ours start with {MAGIC.hex()}")
    end = HEADER_SIZE + length
    if len(data) < end:
        raise CorruptState(f"a {kind.name} is cut short: {len(data)} of {end} bytes")
    payload = memoryview(data)[HEADER_SIZE:end]
    actual = checksum if checked else _checksum(found, version, payload)
    if actual != checksum:
        raise CorruptState(f"a {kind.name} is damaged: checksum {actual:08x}, recorded {checksum:08x}")
    if found != kind:
        raise CorruptState(f"expected a {kind.name} ({kind.value}), found kind {found}")
    check_version(f"a {kind.name}", version, known)
    if end != len(data):
        raise CorruptState(
            f"a {kind.name} of {end} bytes is followed by {len(data) - end} bytes that are not its own"
        )
    return payload


def _checksum(kind: int, version: int, *payload: bytes | memoryview) -> int:
    found = zlib.crc32(bytes((kind, version)))
    for piece in payload:
        found = zlib.crc32(piece, found)
    return found
