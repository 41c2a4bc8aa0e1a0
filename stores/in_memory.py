"""In-memory store of a shard: small state, which is rebuilt from snapshot and log when the job is opened.

Nothing is written but snapshots, which are RocksDB's, so that a job may have its store here today, and on disk tomorrow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import islice

from windrow.stores.kv import Batch, MemoryKV
from windrow.stores.rocks import RocksKV

#: Keys are copied so many at a time.
_MANY = 10_000


class MemoryStore(MemoryKV):
    """Store in memory, with the content of the folder when it was opened and later writes. The folder is not changed."""

    def __init__(self, path: str, cfs: Sequence[str], lock_wait_s: float) -> None:
        super().__init__(cfs)
        self.path = path
        if os.path.isdir(path) and os.listdir(path):
            with RocksKV(path, cfs, lock_wait_s=lock_wait_s) as stored:
                _copy(stored, self)

    def checkpoint(self, path: str) -> None:
        """Write all of it as a store of RocksDB."""
        making = f"{path}.making"
        try:
            with RocksKV(making, self.cfs) as stored:
                _copy(self, stored)
                stored.checkpoint(path)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _copy(source: MemoryKV | RocksKV, target: MemoryKV | RocksKV) -> None:
    for cf in target.cfs:
        pairs = source.scan(cf)
        while portion := list(islice(pairs, _MANY)):
            batch = Batch()
            batch.put_many(cf, [key for key, _ in portion], [value for _, value in portion])
            target.write(batch)
