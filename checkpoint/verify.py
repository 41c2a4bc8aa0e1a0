"""Verification of a job's files: each is read whole, and they are compared. Nothing is changed, and the job may be running.

It checks: every record, segment, base, snapshot, pane file and file of dead letters by its checksum; that commits follow
each other and neither offsets, marks, watermark nor `now` decrease; that files a commit names exist unless a snapshot covers
them; that pane and dead-letter files have the rows that were counted; and that a shard's store, its snapshot with segments,
and its changelog have the same content.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.checkpoint import job_admin
from windrow.checkpoint.compaction import commit_of
from windrow.checkpoint.files import PANES, check_digest
from windrow.checkpoint.job_paths import base_name
from windrow.checkpoint.records import PANES_OF, REPAIR, Commit, ShardResult
from windrow.checkpoint.shard import ShardSpec
from windrow.checkpoint.shard_reader import CHANGELOG, STORE, ShardView, from_changelog, open_view
from windrow.checkpoint.truncation_summary import letters_kept
from windrow.core.errors import CorruptState, StateError, StateLost
from windrow.core.location import local_path
from windrow.operators.operator import MESSAGES
from windrow.stores.snapshots import SnapshotStore
from windrow.stores.temp_dirs import scratch

#: A running job sweeps files and applies commits during a verification.
ATTEMPTS = 3


@dataclass
class Report:
    """Report of a verification: what was checked, by kind, and the faults as (what, why)."""

    location: str
    job: str = ""
    commit: int = 0
    checked: dict[str, int] = field(default_factory=dict)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def count(self, kind: str, n: int = 1) -> None:
        self.checked[kind] = self.checked.get(kind, 0) + n

    def say(self, what: str, why: str) -> None:
        self.wrong.append((what, why))


def verify(location: str) -> Report:
    """Check everything below a location, as of its last commit; again where the job continued meanwhile."""
    for _ in range(ATTEMPTS - 1):
        report = _verify(location)
        if not report.wrong or _last_commit(location) in (None, report.commit):
            return report
    return _verify(location)


def _last_commit(location: str) -> int | None:
    try:
        return job_admin.look(location).state.commit_number
    except CorruptState:
        return None


def _verify(location: str) -> Report:
    report = Report(local_path(location))
    try:
        seen = job_admin.look(location)
        known = {c.commit: c for c in seen.log.commits()}
    except CorruptState as error:
        report.say("log", error.message)
        return report
    report.job, report.commit = seen.epoch.job, max(known, default=0)
    report.count("records", seen.state.next_seq - seen.state.first_seq)
    _follow_each_other(report, [known[n] for n in sorted(known)])
    for file in letters_kept(seen.log.state.summary, known.values()):
        with _damage(report, f"dead letters of commit {file.commit}"):
            path = seen.folders.dead(file.name)
            _rows(report, "dead letters", path, file.digest, file.commit, file.rows, needed=True)
    for shard in range(seen.epoch.shards):
        spec = ShardSpec(seen.folders, seen.epoch.job, shard, (), ())
        covered = _snapshots(report, spec)
        families = _segments(report, spec, known, covered)
        _bases_of(report, spec, families)
        metadata = tuple(sorted(cf for cf in families if not cf.endswith(MESSAGES)))
        kept = tuple(sorted(cf for cf in families if cf.endswith(MESSAGES)))
        _stores(report, ShardSpec(seen.folders, seen.epoch.job, shard, metadata, kept), known)
    return report


@contextlib.contextmanager
def _damage(report: Report, what: str) -> Iterator[None]:
    """Report damage that is found inside."""
    try:
        yield
    except CorruptState as error:
        report.say(what, error.message)


def _follow_each_other(report: Report, commits: list[Commit]) -> None:
    for before, after in itertools.pairwise(commits):
        what = f"commit {after.commit}"
        if after.commit != before.commit + 1:
            report.say(what, f"follows commit {before.commit}")
        if after.published < before.published:
            report.say(what, f"says {after.published} are published, the one before it {before.published}")
        for partition, offset in before.next_offsets.items():
            now = after.next_offsets.get(partition)
            if now is None or now < offset:
                report.say(what, f"offset of {partition} goes back from {offset} to {now}")
        if REPAIR in after.meta:
            continue  # a repair has set its times back, and the record says who did it
        for partition, mark in before.marks.items():
            then, new = (
                mark.max_time_us,
                after.marks[partition].max_time_us if partition in after.marks else None,
            )
            if then is not None and (new is None or new < then):
                report.say(what, f"mark of {partition} goes back from {then} to {new}")
        for name, us in before.meta.get("watermarks", {}).items():
            moved = after.meta.get("watermarks", {}).get(name)
            if moved is None or moved < us:
                report.say(what, f"watermark of {name!r} goes back from {us} to {moved}")
        if before.now_us is not None and after.now_us is not None and after.now_us < before.now_us:
            report.say(what, f"now goes back from {before.now_us} to {after.now_us}")
    report.count("commits", len(commits))


def _snapshots(report: Report, spec: ShardSpec) -> int:
    """Check a shard's snapshots. Returns the commit of the newest whole one."""
    covered = 0
    if not os.path.isdir(os.path.join(spec.folders.snapshots, "manifests")):
        return covered
    if not os.path.isdir(os.path.join(spec.folders.snapshots, "blobs")):
        report.say(spec.folders.snapshots, "has manifests and no folder 'blobs'")
        return covered
    store = SnapshotStore(spec.folders.snapshots)
    for manifest in store.list(spec.shard):
        report.count("snapshots")
        with _damage(report, f"snapshot {manifest}"):
            store.verify(manifest)
            covered = max(covered, commit_of(manifest))
    return covered


def _segments(report: Report, spec: ShardSpec, known: Mapping[int, Commit], covered: int) -> set[str]:
    """Check the files of each commit. Returns the column families that they write to."""
    families: set[str] = set()
    for number in sorted(known):
        record = known[number]
        with _damage(report, f"files of commit {number}"):
            for named in spec.files.named(record):
                if not os.path.exists(named.path):
                    if number > covered:
                        report.say(
                            named.path, f"commit {number} names it, it is gone, and no snapshot covers it"
                        )
                    continue
                report.count("segments")
                with _damage(report, named.path):
                    families.update(spec.files.read_file(named, number).cfs)
            for result in (r for r in record.shards if r.shard == spec.shard):
                _tables(report, spec, record, result)
    return families


def _tables(report: Report, spec: ShardSpec, record: Commit, result: ShardResult) -> None:
    """Pane files: there while they are needed, and with the rows that were counted."""
    for counter, n in result.counters.items():
        if counter.startswith(PANES_OF) and result.panes is not None:
            operator = counter[len(PANES_OF) :]
            path, digest = spec.folders.panes(result.panes, operator), result.digests.get(PANES + operator)
            _rows(report, "panes", path, digest, record.commit, n, needed=record.commit >= report.commit)


def _rows(
    report: Report, kind: str, path: str, digest: str | None, commit: int, n: int, *, needed: bool
) -> None:
    try:
        check_digest(path, digest)
        with pq.ParquetFile(path) as file:
            rows = file.read().num_rows
    except FileNotFoundError:
        if needed:
            report.say(path, f"commit {commit} names it, and it is gone")
        return
    except CorruptState as error:
        report.say(path, error.message)
        return
    except (pa.ArrowInvalid, OSError) as error:
        report.say(path, f"cannot be read: {error}")
        return
    report.count(kind)
    if rows != n:
        report.say(path, f"has {rows} rows, commit {commit} counted {n}")


def _bases_of(report: Report, spec: ShardSpec, families: set[str]) -> None:
    for base in spec.files.bases():
        report.count("bases")
        with _damage(report, f"{base_name(base, spec.shard)}.seg"):
            for part in spec.files.read_base(base):
                families.update(part.cfs)


def _stores(report: Report, spec: ShardSpec, known: Mapping[int, Commit]) -> None:
    """Check that the store, the snapshot with segments, and the changelog agree on the last commit."""
    with scratch("verify") as folder:
        views: list[ShardView] = []
        try:
            for live in (True, False):
                try:
                    view = open_view(spec, report.commit, known, folder, live=live)
                except (StateLost, CorruptState) as error:
                    if live or not views:
                        report.say(f"shard {spec.shard}", error.message)
                    continue
                if live or view.way != (views[0].way if views else None):
                    views.append(view)
                else:
                    view.close()
            if os.path.exists(os.path.join(spec.path, "CURRENT")) and not any(v.way == STORE for v in views):
                report.say(
                    spec.path, "the store cannot be used: it will be built anew when the job is opened"
                )
            emitted = (
                None if any(v.way == CHANGELOG for v in views) else from_changelog(spec, report.commit, known)
            )
            if emitted is not None:
                views.append(emitted)
            for other in views[1:]:
                families = spec.metadata_cfs if other.way == CHANGELOG else spec.cfs[1:]
                for cf in families:
                    report.count("comparisons")
                    for key, why in _differences(views[0], other, cf):
                        report.say(f"shard {spec.shard}, {cf}, key {key.hex()}", why)
                        break
        except StateError as error:
            report.say(f"shard {spec.shard}", error.message)
        finally:
            for view in views:
                view.close()


def _differences(one: ShardView, other: ShardView, cf: str) -> Iterator[tuple[bytes, str]]:
    """Keys of which two views of a shard say different things."""
    pairs = other.kv.scan(cf)
    their = next(pairs, None)
    for key, value in one.kv.scan(cf):
        if their is None or their[0] > key:
            yield key, f"is in the {one.way} and not in the {other.way}"
            return
        if their[0] < key:
            yield their[0], f"is in the {other.way} and not in the {one.way}"
            return
        if their[1] != value:
            yield key, f"the {one.way} and the {other.way} have different values"
            return
        their = next(pairs, None)
    if their is not None:
        yield their[0], f"is in the {other.way} and not in the {one.way}"
