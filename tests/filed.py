"""Contents of a store's families of messages, and of shards as a task opens them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.read_only_shard import open_resting
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.checkpoint.transport import FILES
from windrow.core.time import END_OF_TIME_US
from windrow.operators.operator import Definition, Logic
from windrow.operators.steps.progress import Progress
from windrow.stores.keyed_event_store import KeyedEvents
from windrow.stores.kv import KV


def filed(kv: KV, cf: str) -> list[Any]:
    """Byte for byte; where messages of several steps lie together, what they and their steps say, if they are in retention."""
    pairs = list(kv.scan(cf))
    if not any(key[:1] == b"i" for key, _ in pairs):
        return pairs
    floor_us = Progress.load(kv, cf.removesuffix(".messages") + ".aux").purged_us
    rows = KeyedEvents(cf, 1).read(kv, floor_us, END_OF_TIME_US)
    return [] if rows is None else sorted(map(repr, rows.to_pylist()))


def opened(location: Path, shard: int, logics: Iterable[Logic]) -> Shard:
    """The shard as of the last commit, only read: its store need not have taken that in."""
    folders, logics = JobFolders(str(location)), [*logics]
    log = FILES.log(folders)
    log.tail()
    commits, epoch = [*log.commits()], log.epoch
    assert epoch is not None
    metadata = tuple(cf for logic in logics for cf in logic.metadata_cfs)
    messages = tuple(cf for logic in logics for cf in logic.message_cfs)
    resting = open_resting(
        ShardSpec(folders, epoch.job, shard, metadata, messages), commits[-1].commit, commits
    )
    assert resting is not None
    return resting


def messages_of(location: Path, definitions: Iterable[Definition]) -> dict[Any, Any]:
    """The message stores of both shards of a job."""
    messages, logics = {}, [d.logic() for d in definitions]
    for number in range(2):
        shard = opened(location, number, logics)
        for cf in (cf for logic in logics for cf in logic.cfs() if ".message" in cf):
            messages[number, cf] = filed(shard.kv, cf)
        shard.close()
    return messages
