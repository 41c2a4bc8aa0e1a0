"""Health of a job, from its last commit, its driver's last sign of life, and the current time; nothing else is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windrow.checkpoint.records import Commit
from windrow.checkpoint.replay import STORE_BYTES
from windrow.core.positions import Partition, shown_source
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, iso
from windrow.operators.operator import Definition
from windrow.operators.steps.watermarks import holder_of


@dataclass(frozen=True)
class Health:
    """commit: 0 where there is none. age_us: since the last commit, or since a driver last
    found that nothing had come and nothing was due. watermark_us: the least of the operators. held_by: the
    partition that holds it back (see `holder_of`). unpublished: commits of which not everything is with the sinks. lag_us: how
    far the watermark trails the clock; None before the first message, and at the end of time. since_snapshot: commits
    since the newest snapshot, of the shard whose is the oldest; all of them where it has none. store_bytes: of the stores that
    executors keep on disks of their own, as of the last commit; None where stores lie below the location.
    """

    commit: int = 0
    age_us: int | None = None
    watermark_us: int = START_OF_TIME_US
    held_by: Partition | None = None
    unpublished: int = 0
    lag_us: int | None = None
    since_snapshot: int = 0
    store_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Times as ISO 8601, durations in milliseconds."""
        held_by = None if self.held_by is None else {"source": self.held_by[0], "partition": self.held_by[1]}
        return {
            "commit": self.commit,
            "ageMs": None if self.age_us is None else self.age_us // 1_000,
            "watermark": iso(self.watermark_us) if self.watermark_us > START_OF_TIME_US else None,
            "lagMs": None if self.lag_us is None else self.lag_us // 1_000,
            "heldBy": held_by,
            "unpublished": self.unpublished,
            "snapshotCommits": self.since_snapshot,
            "storeBytes": self.store_bytes,
        }


def health_of(
    last: Commit | None,
    definitions: Sequence[Definition],
    published: int,
    now_us: int,
    alive_us: int | None = None,
    snapshot: int = 0,
) -> Health:
    """Return the health of a job whose last commit is `last`, `published` the highest commit that is out.

    alive_us: `alive_at`; snapshot: `snapshots_from`.
    """
    if last is None:
        return Health()
    reached = dict(last.meta.get("watermarks", {}))
    slowest = min(definitions, key=lambda d: reached.get(d.name, START_OF_TIME_US), default=None)
    watermark_us = min(reached.values(), default=START_OF_TIME_US)
    at_us = last.now_us if last.now_us is not None else last.meta.get("now_us")
    held_by = None
    if watermark_us != END_OF_TIME_US and at_us is not None and slowest is not None:
        marks = {p: m.max_time_us for p, m in last.marks.items() if m.max_time_us is not None}
        seen = {p: m.seen_us for p, m in last.marks.items() if m.seen_us is not None}
        if (holder := holder_of(slowest, marks, seen, at_us)) is not None:
            held_by = (shown_source(holder[0]), holder[1])
    return Health(
        last.commit,
        None if at_us is None else max(0, now_us - max(at_us, alive_us or at_us)),
        watermark_us,
        held_by,
        max(0, last.commit - published),
        now_us - watermark_us if START_OF_TIME_US < watermark_us < END_OF_TIME_US else None,
        last.commit - snapshot,
        _store_bytes(last),
    )


def _store_bytes(last: Commit) -> int | None:
    sizes = [n for result in last.shards if (n := result.counters.get(STORE_BYTES)) is not None]
    return sum(sizes) if sizes else None


def note_alive(path: str, now_us: int) -> None:
    """Record that a driver had nothing to commit. Only probes read the file, and it may be lost."""
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
        file.write(str(now_us))


def alive_at(path: str) -> int | None:
    """Return the time that `note_alive` recorded last; None where there is none, or it is being written."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def size_of(folder: str) -> int:
    """Return the bytes of all files below a folder; files that vanish meanwhile count as nothing."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total
