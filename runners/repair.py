"""Repair of a watermark or a `now` that ran ahead: one commit that records who set it back, when, from where and to where.

Nothing else can lower them. The commit has no step: each shard's changelog has the operators' progress, so stores, readers
and snapshots take it as any commit. The claim before it fences the job's driver.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from windrow.checkpoint import job_admin
from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.records import REPAIR, Commit, Mark, ShardResult, now_of
from windrow.checkpoint.replay import STEP_OF
from windrow.checkpoint.shard import Shard, ShardSpec
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.errors import ConfigurationError, JobMismatch
from windrow.core.time import show_instant
from windrow.operators.operator import Logic
from windrow.operators.steps.progress import Progress
from windrow.runners.state.definitions import Definitions
from windrow.stores.temp_dirs import scratch


@dataclass(frozen=True)
class Back:
    """The times to set back to; None leaves one as it is."""

    watermark_us: int | None = None
    now_us: int | None = None


def set_back(
    location: str | None,
    to: Back,
    *,
    at_us: int,
    driver: str,
    definition: Any = None,
    transport: Transport = FILES,
) -> Commit:
    """Lower the watermark, or `now`, of the job at `location`, and return the commit that does so.

    Windows that were purged are gone: later messages for them begin new ones. So are expired messages of a join: later
    messages for them find no partner. Raises `ConfigurationError` where there is nothing to lower.
    """
    seen = job_admin.look(location, transport)
    definitions = Definitions(seen.epoch, seen.where, definition)
    operators = [definitions.of(name).logic() for name in definitions.names]
    _check(seen, to)
    log = transport.log(seen.folders)
    before = seen.epoch
    claim = log.open_epoch(
        opened_us=at_us,
        driver=driver,
        fingerprints=before.fingerprints,
        shards=before.shards,
        job=before.job,
        meta=dict(before.meta),
    )
    last = log.last_commit
    assert last is not None
    with scratch("repair") as folder:
        folders = seen.folders
        if not os.path.isdir(folders.location):  # a job whose log is elsewhere
            folders = JobFolders(os.path.join(folder, "job"))
            folders.make()
        cfs = [cf for operator in operators for cf in operator.cfs()]
        kept = tuple(cf for cf in cfs if cf.endswith((".messages", ".message_index")))
        spec = ShardSpec(
            folders,
            before.job,
            0,
            tuple(c for c in cfs if c not in kept),
            kept,
            os.path.join(folder, "local"),
            transport=transport,
        )
        results = [
            _shard(replace(spec, shard=n), log, last, operators, definitions, to)
            for n in range(before.shards)
        ]
    return log.append(_record(last, claim.epoch, results, to, at_us, driver))


def _check(seen: job_admin.Look, to: Back) -> None:
    last = seen.last_commit
    if last is None:
        raise JobMismatch(f"{seen.where} has no commit yet, so there is nothing to set back")
    if to.watermark_us is not None:
        _lower("watermark", max(_watermarks(last).values(), default=None), to.watermark_us)
    if to.now_us is not None:
        _lower("now", now_of(last), to.now_us)


def _lower(what: str, from_us: int | None, to_us: int) -> None:
    if from_us is None or to_us >= from_us:
        shown = "not known" if from_us is None else show_instant(from_us)
        raise ConfigurationError(
            f"the {what} is {shown}, and {show_instant(to_us)} is not before it: this only sets back, and whatever is fed "
            "moves it on"
        )


def _watermarks(commit: Commit) -> dict[str, int]:
    return dict(commit.meta.get("watermarks", {}))


def _shard(
    spec: ShardSpec, log: RecordLog, last: Commit, operators: list[Logic], definitions: Definitions, to: Back
) -> ShardResult:
    """Set back the progress of a shard's operators, as the changelog of one commit."""
    former = next((r for r in last.shards if r.shard == spec.shard), ShardResult(shard=spec.shard))
    shard = Shard.open(spec, last.commit, log.commits)
    try:
        changes = shard.overlay()
        for operator in operators:
            progress = Progress.load(shard.kv, operator.aux_cf)
            if to.watermark_us is not None:
                chain = definitions.chains.get(operator.definition.name)
                own_us = (
                    to.watermark_us
                    if chain is None
                    else chain.watermark_of(operator.definition.name, to.watermark_us)
                )
                operator.set_back(changes, progress, own_us)
            if to.now_us is not None and progress.now_us is not None:
                progress.now_us = min(progress.now_us, to.now_us)
            progress.save(lambda key, value, cf=operator.aux_cf: changes.batch.put(cf, key, value))
        # Metadata of every commit for a replay of messages.
        steps = {name: n for name, n in former.counters.items() if name.startswith(STEP_OF)}
        return shard.write(last.commit + 1, changes.batch, {}, None, steps)
    finally:
        shard.close()


def _record(
    last: Commit, epoch: int, results: list[ShardResult], to: Back, at_us: int, driver: str
) -> Commit:
    watermarks, now_us = _watermarks(last), now_of(last)
    mark_us = min(watermarks.values(), default=None)
    marks = dict(last.marks)
    emitted: dict[str, Any] = {"by": driver, "at_us": at_us}
    if to.watermark_us is not None:
        emitted["watermark_us"] = [mark_us, to.watermark_us]
        watermarks = {name: min(us, to.watermark_us) for name, us in watermarks.items()}
        marks = {p: replace(m, max_time_us=_least(m.max_time_us, to.watermark_us)) for p, m in marks.items()}
        mark_us = min(watermarks.values(), default=None)
    if to.now_us is not None:
        emitted["now_us"] = [now_us, to.now_us]
        now_us = to.now_us
        marks = {
            p: Mark(max_time_us=m.max_time_us, seen_us=_least(m.seen_us, now_us)) for p, m in marks.items()
        }
    return replace(
        last,
        epoch=epoch,
        commit=last.commit + 1,
        steps=(),
        shards=tuple(results),
        watermark_us=mark_us,
        marks=marks,
        meta={**last.meta, "watermarks": watermarks, "now_us": now_us, REPAIR: emitted},
    )


def _least(known_us: int | None, to_us: int) -> int | None:
    return None if known_us is None else min(known_us, to_us)
