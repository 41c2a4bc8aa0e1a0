"""Commits as one shard needs them: number, identity, and the names of the shard's own files.

A task opens its shard by the newest commits. A commit record names the files of all shards, so that to send it to every
shard costs the square of their number. The driver packs each commit once, with an index by shard; a task unpacks one entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

from windrow.checkpoint.records import Commit, ShardResult


class CommitOfShards(Protocol):
    """A commit, of which a shard reads its own part."""

    @property
    def commit(self) -> int: ...

    @property
    def identity(self) -> str:
        """Hash that distinguishes it from a commit of the same number in another history."""

    def result_of(self, shard: int) -> ShardResult | None:
        """Return the answer of a shard; None where it is not known here, or gave none."""


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """The part of a commit that concerns one shard."""

    commit: int
    identity: str
    result: ShardResult

    def result_of(self, shard: int) -> ShardResult | None:
        return self.result if self.result.shard == shard else None


@dataclass(frozen=True, slots=True)
class Packed:
    """Values by number, of which each is read without the others. ends: where each ends in `data`"""

    ends: bytes
    data: bytes

    @classmethod
    def of(cls, values: Sequence[Any]) -> Packed:
        ends, packed = array("Q"), []
        at = 0
        for value in values:
            packed.append(msgpack.packb(value))
            at += len(packed[-1])
            ends.append(at)
        return cls(ends.tobytes(), b"".join(packed))

    def __getitem__(self, number: int) -> Any:
        ends = memoryview(self.ends).cast("Q")
        begin = ends[number - 1] if number else 0
        return msgpack.unpackb(memoryview(self.data)[begin : ends[number]])

    @property
    def nbytes(self) -> int:
        return len(self.ends) + len(self.data)


@dataclass(frozen=True, slots=True)
class PackedCommit:
    """A commit, packed by shard."""

    commit: int
    identity: str
    shards: Packed

    @classmethod
    def of(cls, record: Commit, shards: int) -> PackedCommit:
        """Pack a commit of so many shards."""
        entries: list[Any] = [None] * shards
        for result in record.shards:
            if result.segment is not None:
                kept, ranges = ({k: list(v) for k, v in m.items()} for m in (result.kept, result.ranges))
                entries[result.shard] = [result.segment, result.digest, kept, ranges]
        return cls(record.commit, record.identity, Packed.of(entries))

    def result_of(self, shard: int) -> ShardResult:
        entry = self.shards[shard]
        if entry is None:
            return ShardResult(shard=shard)
        segment, digest, *where = entry
        kept, ranges = ({kind: (first, last) for kind, (first, last) in m.items()} for m in where)
        return ShardResult(shard=shard, segment=segment, digest=digest, kept=kept, ranges=ranges)


def of_shard(commits: Sequence[CommitOfShards], shard: int) -> list[CommitOfShards]:
    """Return commits as a shard needs them."""
    return [
        ShardCommit(c.commit, c.identity, c.result_of(shard) or ShardResult(shard=shard)) for c in commits
    ]
