"""Marker of a shard's store: the job and shard that own it, and the commit that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgpack

from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.core.envelope import check_version
from windrow.stores.kv import KV

FORMAT = 1
#: The commit that a store holds, and one of which it holds a part: it was being applied when its process died.
MARKER_CF, MARKER, BEGUN = "marker", b"applied", b"begun"


class Marker(NamedTuple):
    """Owner of a store, the commit that it holds, and that commit's identity: None where its record is not known."""

    job: str
    shard: int
    commit: int
    identity: str | None

    @classmethod
    def of(cls, job: str, shard: int, commit: int, record: CommitOfShards | None = None) -> Marker:
        return cls(job, shard, commit, None if record is None else record.identity)

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb([FORMAT, *self])
        return packed

    @classmethod
    def unpack(cls, value: bytes) -> Marker:
        version, *fields = msgpack.unpackb(value)
        check_version("the store's marker", version, FORMAT)
        return cls(*fields)

    def is_of(self, known: Mapping[int, CommitOfShards]) -> bool:
        """True unless the log has another commit of that number, or none any more, which leaves no evidence."""
        if self.identity is None or self.commit == 0:
            return True
        return self.commit in known and known[self.commit].identity == self.identity


def is_of(kv: KV | None, marker: Marker | None, known: Mapping[int, CommitOfShards]) -> bool:
    """True if the log has the commit that a store holds, and the one of which it holds a part. False where there is none."""
    if kv is None or marker is None:
        return False
    part = begun(kv)
    return marker.is_of(known) and (part is None or part.is_of(known))


def marker_of(kv: KV, job: str, shard: int) -> Marker | None:
    """Return the marker of a store of this shard; None where it is another's, or holds no whole commit."""
    value = kv.get(MARKER_CF, MARKER)
    marker = None if value is None else Marker.unpack(value)
    return marker if marker is not None and (marker.job, marker.shard) == (job, shard) else None


def begun(kv: KV) -> Marker | None:
    """Return the commit of which a store holds a part; None where it holds whole ones."""
    value = kv.get(MARKER_CF, BEGUN)
    return None if value is None else Marker.unpack(value)
