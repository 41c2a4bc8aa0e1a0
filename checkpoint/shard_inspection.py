"""Inspection of a shard before it is opened: its local folder, and the files that lead to the last commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from windrow.checkpoint.marker import MARKER, MARKER_CF, Marker
from windrow.checkpoint.recovery import ShardFacts, StoreFound
from windrow.checkpoint.shard_commits import CommitOfShards
from windrow.core.errors import CorruptState, NewerFormat, StateLocked
from windrow.stores.kv import LocalStore

if TYPE_CHECKING:
    from windrow.checkpoint.shard import ShardSpec


def missing_after(
    marker: Marker, committed: int, recent: Mapping[int, CommitOfShards]
) -> list[CommitOfShards] | None:
    """Return the commits after the one that a store holds; None where `recent` does not have them."""
    numbers = range(marker.commit + 1, committed + 1)
    known = marker.commit <= committed and all(n in recent for n in numbers)
    return [recent[n] for n in numbers] if known else None


def applied_in(kv: LocalStore) -> int | None:
    """Return the commit of a store's marker; None where it has no marker."""
    value = kv.get(MARKER_CF, MARKER)
    return None if value is None else Marker.unpack(value).commit


def look(
    spec: ShardSpec, path: str, lock_wait_s: float
) -> tuple[LocalStore | None, StoreFound, Marker | None]:
    """Inspect the local folder. Returns (the open store, its condition, the commit it holds)."""
    if not os.path.isdir(path) or not os.listdir(path):
        return None, StoreFound.ABSENT, None
    kv = None
    try:
        kv = spec.open_store(path, spec.cfs, lock_wait_s)
        value = kv.get(MARKER_CF, MARKER)
        marker = Marker.of(spec.job, spec.shard, 0) if value is None else Marker.unpack(value)
    except StateLocked:
        return None, StoreFound.LOCKED, None
    except NewerFormat:
        if kv is not None:
            kv.close()
        return None, StoreFound.NEWER_FORMAT, None
    except CorruptState:
        if kv is not None:
            kv.close()
        return None, StoreFound.CORRUPT, None
    if value is None:
        if any(next(kv.scan(cf), None) is not None for cf in spec.cfs):
            # Killed while it was built: what it holds is of no commit.
            kv.close()
            return None, StoreFound.CORRUPT, None
        # Opened and killed before its first write.
        return kv, StoreFound.OK, marker
    if (marker.job, marker.shard) != (spec.job, spec.shard):
        kv.close()
        return None, StoreFound.OTHER_JOB, None
    return kv, StoreFound.OK, marker


def facts_of(
    spec: ShardSpec,
    committed: int,
    known: Mapping[int, CommitOfShards],
    found: StoreFound,
    applied: int | None,
    can_replay: bool,
    damaged: Collection[int] = (),
) -> ShardFacts:
    segments_from = committed + 1
    changelog_from = committed + 1
    both = True
    for number in range(committed, 0, -1):
        if number not in known:
            break
        if not spec.files.has(known[number], metadata_only=True):
            break
        changelog_from = number
        both = both and spec.files.has(known[number])
        if both:
            segments_from = number
    base = newest_base(spec)
    copied = spec.transport.copied(spec.job, spec.shard)
    whole = max(base or 0, copied if copied <= committed else 0)
    complete = whole >= changelog_from - 1
    return ShardFacts(
        committed=committed,
        store=found,
        applied=applied,
        segments_from=segments_from,
        snapshots=tuple(commit for commit, _ in spec.files.snapshots() if commit not in damaged),
        changelog=committed if complete and committed > 0 else None,
        needs_messages=bool(spec.message_cfs),
        can_replay=can_replay,
        replayable=spec.replayable,
    )


def newest_base(spec: ShardSpec) -> int | None:
    return next(iter(spec.files.bases()), None)
