"""Commits as one shard needs them: packed by the driver, unpacked by a task, the same as in the record."""

from __future__ import annotations

import pickle

from windrow.checkpoint.records import Commit, ShardResult
from windrow.checkpoint.shard_commits import PackedCommit, of_shard

SHARDS = 5


def commit(number: int, shards: int = SHARDS) -> Commit:
    """Every second shard has changed something; one is in a transport."""
    results = tuple(
        ShardResult(
            shard=shard,
            segment=f"{number:012d}-{shard:04d}-abcd" if shard % 2 else None,
            digest=f"{shard:032x}-" if shard % 2 else None,
            kept={"changelog": (7, 9)} if shard == 3 else {},
            counters={"rows": shard},
        )
        for shard in range(shards)
    )
    return Commit(
        epoch=1,
        commit=number,
        steps=(),
        next_offsets={},
        shards=results,
        published=0,
        watermark_us=None,
        seq=number,
    )


def test_a_shard_reads_of_a_packed_commit_what_the_record_says_of_it() -> None:
    record = commit(3)
    packed = pickle.loads(pickle.dumps(PackedCommit.of(record, SHARDS)))
    for shard in range(SHARDS):
        [of_record], [of_packed] = of_shard([record], shard), of_shard([packed], shard)
        assert of_packed.commit == 3 and of_packed.identity == of_record.identity == record.identity
        whole, here = record.result_of(shard), of_packed.result_of(shard)
        assert whole is not None and here is not None
        assert (whole.segment, whole.digest, whole.kept) == (here.segment, here.digest, here.kept)
        assert of_packed.result_of(shard + 1) is None, "it has no other shard's answer"


def test_the_part_of_a_shard_is_as_large_in_a_large_job() -> None:
    small, large = (len(pickle.dumps(of_shard([PackedCommit.of(commit(1, n), n)], 1))) for n in (2, 2_000))
    assert small == large
