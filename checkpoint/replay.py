"""Replay of recorded steps: those that a shard must repeat to restore its messages, and the messages that each took.

Pure functions of the log's commits, for a shard whose store, snapshots and segments are lost while its changelog is there.
A step that took messages files them under the number that it had then: each commit notes the number of an operator's last
step (`step.<operator>`), so the step that is j steps before the end of commit c has that number less j.

A replay that cannot be exact raises `StateLost`; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from windrow.checkpoint.records import Commit, ShardResult, Step
from windrow.core.arrays import IntArray
from windrow.core.errors import StateLost
from windrow.core.positions import Partition, shown_source
from windrow.core.time import START_OF_TIME_US
from windrow.operators.operator import Definition

#: partition -> [first, next) offset.
Ranges = dict[Partition, tuple[int, int]]

#: Counters of a shard's answer, by operator that keeps messages: the number of its last step; where a commit is of several
#: shards, the rows of its ingest, and the time from which it keeps messages; where rows came in pieces, how many steps their
#: ingest was. They are facts, and no part of a job's totals.
STEP_OF, ROWS_OF, KEPT_OF, PIECES_OF = "step.", "taken.", "kept_from.", "pieces."
#: Another, by operator on Spark: groups that SQL made of the rows of a shard, or could have made, where that decides what the
#: next batch does.
GROUPS_OF = "groups."
#: The bytes of a shard's store on its executor, where stores lie outside the job's location.
STORE_BYTES = "store.bytes"
#: In a commit's `meta`, by operator: what decided besides the fingerprint which messages were filed.
FILING = "filing"

REMEDY = (
    "restore the folders of segments and snapshots from a backup, or begin with an empty windrow location"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redo:
    """One step to repeat: `rows` messages of `ranges`, by the operator's step `number`.

    divided: they came in pieces, each a step; `number` is the first's.
    """

    commit: int
    number: int
    kind: str
    now_us: int
    watermark_us: int
    ranges: Ranges
    rows: int
    divided: bool = False


def is_total(counter: str) -> bool:
    """True if a shard's counter adds up to one of the job."""
    return not counter.startswith((STEP_OF, ROWS_OF, KEPT_OF, PIECES_OF, GROUPS_OF, STORE_BYTES))


def steps_again(
    commits: Iterable[Commit],
    definition: Definition,
    shard: int,
    kept_from_us: int | None,
    why: str = "",
) -> list[Redo]:
    """Return the ingests of the retained messages, from `kept_from_us` on. None: every step, advances too.

    `commits` are all that the log has, in order. why: what was taken before them may be needed.
    """
    if definition.ids is not None and kept_from_us is not None:
        raise StateLost(
            f"messages of shard {shard} cannot be replayed: {definition.name!r} knows them by {definition.ids!r}, and which of "
            f"several with one id it took, the log does not say. {REMEDY[0].upper()}{REMEDY[1:]}"
        )
    redo: list[Redo] = []
    reached: dict[Partition, int] = {}
    before: Commit | None = None
    for commit in commits:
        if kept_from_us is None or largest_time(commit) >= kept_from_us:
            if before is None and commit.commit > 1:
                raise StateLost(
                    f"messages of shard {shard} cannot be replayed: the log begins at commit {commit.commit}, and what "
                    f"was taken before it is needed{f': {why}' if why else ''}. {REMEDY[0].upper()}{REMEDY[1:]}"
                )
            redo += _steps_of(commit, definition, shard, reached, kept_from_us is None)
        for step in commit.steps:
            for partition, following in step.next_offsets.items():
                reached[partition] = max(following, reached.get(partition, following))
        if before is None:
            reached.update(commit.next_offsets)  # a truncated log does not have it step by step
        before = commit
    return redo


def largest_time(commit: Commit) -> int:
    """Return the largest event time of all messages that were counted up to a commit."""
    return max(
        (m.max_time_us for m in commit.marks.values() if m.max_time_us is not None),
        default=START_OF_TIME_US - 1,
    )


def _steps_of(
    commit: Commit,
    definition: Definition,
    shard: int,
    reached: Mapping[Partition, int],
    everything: bool,
) -> list[Redo]:
    name = definition.name
    result = next((r for r in commit.shards if r.shard == shard), ShardResult(shard=shard))
    last, then = result.counters.get(STEP_OF + name), commit.meta.get(FILING, {}).get(name)
    if last is None or then is None:
        raise StateLost(
            f"messages of shard {shard} cannot be replayed: commit {commit.commit} does not say how {name!r} counted its "
            f"steps: it kept no messages then. {REMEDY[0].upper()}{REMEDY[1:]}"
        )
    now = definition.filing()
    changed = [
        f"{k}={then.get(k)!r}, now {now.get(k)!r}" for k in {**then, **now} if then.get(k) != now.get(k)
    ]
    if changed:
        raise StateLost(
            f"messages of shard {shard} cannot be replayed: commit {commit.commit} was made with {'; '.join(changed)}. "
            "Open the job with the former value; change it when the messages are back"
        )
    rows, pieces = result.counters.get(ROWS_OF + name), result.counters.get(PIECES_OF + name)
    steps = list(commit.steps)
    if rows is not None:
        # A commit of several shards: one without rows does no ingest, unless it takes columns.
        ingests = rows or definition.logic().takes_columns
        steps = [s for s in steps if s.kind == "advance" or ingests]
    watermarks = commit.meta.get("watermarks", {})
    redone = []
    for i, step in enumerate(steps):
        if step.kind == "advance" and not everything:
            continue
        if step.kind == "ingest" and step.rows and not step.next_offsets:
            raise StateLost(
                f"messages of shard {shard} cannot be replayed: those of commit {commit.commit} had no positions, so that "
                f"they cannot be distinguished in the source. {REMEDY[0].upper()}{REMEDY[1:]}"
            )
        # A commit of several shards has one advance, and the watermark of each operator.
        watermark_us = step.watermark_us if rows is None else watermarks.get(name, step.watermark_us)
        redone.append(
            Redo(
                commit=commit.commit,
                number=last - (len(steps) - 1 - i) - ((pieces or 1) - 1),
                kind=step.kind,
                now_us=step.now_us,
                watermark_us=START_OF_TIME_US if watermark_us is None else watermark_us,
                ranges=_ranges(step, reached if rows is not None else {}, definition),
                rows=0 if step.kind == "advance" else step.rows if rows is None else rows,
                divided=pieces is not None and step.kind == "ingest",
            )
        )
    return redone


def _ranges(step: Step, reached: Mapping[Partition, int], definition: Definition) -> Ranges:
    """Return the ranges that a step read, of the inputs of a definition. A batch's extent may include rows that were read
    before and left out.
    """
    if step.kind == "advance":
        return {}
    prefixes = tuple(input.source_prefix for input in definition.inputs)
    ranges = {
        p: (max(f, reached.get(p, f)), step.next_offsets[p])
        for p, f in step.first_offsets.items()
        if p[0].startswith(prefixes)
    }
    return {p: (first, following) for p, (first, following) in ranges.items() if first < following}


def extent(redo: Iterable[Redo]) -> Ranges:
    """Return the range of each partition that must be read again."""
    ranges: Ranges = {}
    for step in redo:
        for partition, (first, following) in step.ranges.items():
            known = ranges.get(partition, (first, following))
            ranges[partition] = (min(first, known[0]), max(following, known[1]))
    return dict(sorted(ranges.items()))


def owners(redo: Sequence[Redo], offsets: Mapping[Partition, IntArray]) -> dict[Partition, IntArray]:
    """Return, for each message read from the source, the index in `redo` of the step that took it; -1: none did.

    `offsets`: of the messages of each partition, in the order of (offset, ordinal). Counts are compared, not numbers: a
    source may leave offsets out (Kafka's control records).
    """
    taken = {p: np.full(len(o), -1, dtype=np.int64) for p, o in offsets.items()}
    at = dict.fromkeys(offsets, 0)
    bounds = _bounds(redo, offsets)
    shared = _shared(redo)
    for k, step in enumerate(redo):
        spans = {p: (max(at[p], bounds[k, p][0]), bounds[k, p][1]) for p in step.ranges if p in offsets}
        spanned = sum(high - low for low, high in spans.values())
        if spanned > step.rows:
            # Rows of one record that two steps took: the first of them took the first rows.
            candidates = [p for p in spans if (k, p) in shared]
            if len(candidates) == 1:
                [p] = candidates
                low, high = spans[p]
                left = high - (spanned - step.rows)
                if left >= low and offsets[p][left] == step.ranges[p][1] - 1:
                    spans[p] = (low, left)
                    spanned = step.rows
        if spanned != step.rows:
            raise StateLost(_differs(step, spanned))
        for p, (low, high) in spans.items():
            taken[p][low:high] = k
            at[p] = max(at[p], high)
    return taken


def _bounds(
    redo: Sequence[Redo], offsets: Mapping[Partition, IntArray]
) -> dict[tuple[int, Partition], tuple[int, int]]:
    """Return, per step and partition, the bounds of the step's range among the partition's messages."""
    of: dict[Partition, list[int]] = {}
    for k, step in enumerate(redo):
        for partition in step.ranges:
            of.setdefault(partition, []).append(k)
    bounds = {}
    for partition, steps in of.items():
        if partition not in offsets:
            continue
        edges = np.array([redo[k].ranges[partition] for k in steps], dtype=np.int64)
        where = np.searchsorted(offsets[partition], edges, side="left").tolist()
        bounds.update({(k, partition): (low, high) for k, (low, high) in zip(steps, where, strict=True)})
    return bounds


def _shared(redo: Sequence[Redo]) -> set[tuple[int, Partition]]:
    """Return (step, partition) of which the last record is also of a later step."""
    shared = set()
    last: dict[Partition, int] = {}
    for k, step in enumerate(redo):
        for partition, (first, _) in step.ranges.items():
            before = last.get(partition)
            if before is not None and first < redo[before].ranges[partition][1]:
                shared.add((before, partition))
            last[partition] = k
    return shared


def _differs(step: Redo, value: int) -> str:
    named = [
        f"[{first}, {following}) of {shown_source(source)!r}/{partition}"
        for (source, partition), (first, following) in sorted(step.ranges.items())
    ]
    where = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    return (
        f"commit {step.commit} took {step.rows} messages of {where}; the source gives {value} of them now: messages are "
        f"lost. Give replay= a source that still has them, with the transform that the job has; or {REMEDY}"
    )
