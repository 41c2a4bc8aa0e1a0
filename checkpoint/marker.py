"""What a shard's store says of itself: whose it is, and the commit that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgpack
import xxhash

from windrow.checkpoint.records import Commit
from windrow.core.errors import NewerFormat

MARKER_CF, MARKER = "marker", b"applied"


class Marker(NamedTuple):
    """Whose a store is, the commit that it holds, and what identifies that commit: None of stores that did not note it."""

    job: str
    shard: int
    commit: int
    identity: str | None

    @classmethod
    def of(cls, job: str, shard: int, commit: int, record: Commit | None = None) -> Marker:
        return cls(job, shard, commit, None if record is None else identity_of(record))

    def pack(self) -> bytes:
        version = 1 if self.identity is None else 2
        packed: bytes = msgpack.packb([version, *self[: 2 + version]])
        return packed

    @classmethod
    def unpack(cls, value: bytes) -> Marker:
        version, *fields = msgpack.unpackb(value)
        if version > 2:
            raise NewerFormat(
                f"the store's marker has version {version}, this release knows 2: upgrade windrow"
            )
        job, shard, commit, identity = [*fields, None][:4]
        return cls(str(job), int(shard), int(commit), identity)

    def is_of(self, known: Mapping[int, Commit]) -> bool:
        """False if the log has another commit of that number, or none any more: then nothing tells."""
        if self.identity is None or self.commit == 0:
            return True
        return self.commit in known and identity_of(known[self.commit]) == self.identity


def identity_of(record: Commit) -> str:
    """Tells a commit from that of the same number in another history of the job: of a backup that went on by itself."""
    wrote = [[r.shard, r.segment, r.digest] for r in record.shards]
    told: bytes = msgpack.packb([record.seq, record.epoch, record.commit, record.now_us, wrote])
    return xxhash.xxh3_64_hexdigest(told)
