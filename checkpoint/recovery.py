"""Recovery: what to do next, decided from what was observed, by pure total functions.

    observed facts  ->  decision: an action by name, why, and what the user can do if it is a refusal

No function here reads a file or a clock; the driver and the shards look, ask, and do what they are told. So
every combination of facts can be tabled, and tests/checkpoint/test_recovery.py does. The steps of
docs/explanation/commit-protocol.md that ask: `on_startup` in 0.4, `on_batch` in 1.2 and 4.1, `on_shard_open` in 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from windrow.checkpoint.offsets import SliceRelation
from windrow.core.errors import (
    CorruptState,
    Fenced,
    NewerFormat,
    OffsetGap,
    PositionsMissing,
    SourceBehind,
    StateLost,
    WindrowError,
)

NO_COMMITS = range(0)

# --- a batch comes in ---


class BatchAction(Enum):
    """What to do with a batch that Spark hands in."""

    SKIP_AND_PUBLISH = "skip and publish"
    REDO_INTENT = "redo intent"
    NEW_COMMIT = "new commit"
    NEW_COMMIT_DROPPING_OLD_ROWS = "new commit, dropping old rows"
    REFUSE_GAP = "refuse: gap"
    REFUSE_BEHIND = "refuse: behind"
    REFUSE_NO_POSITIONS = "refuse: no positions"
    REFUSE_SKIPPED_BATCH = "refuse: skipped batch"
    REFUSE_STATE_MISSING = "refuse: state missing"
    STOP_FENCED = "stop: fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What is known when a batch comes in.

    own_epoch, log_epoch: this driver's claim, and the last one in the log
    commit, query_id, batch_id: of the last commit; commit 0 where there is none. Those of the embedded runner
        have no query
    intent_query_id, intent_batch_id: of the intent that no commit has followed, if any
    published: highest commit known to be published
    new_query_id, new_batch_id: of the batch
    has_positions: True if the rows of the frame carry positions
    has_ids: True if every operator knows its messages by ids: what was counted before is found by lookup
    relation: how they stand to the offsets of the last commit. UNKNOWN before the Spark action: ask again
        after it, before the commit is created
    fresh_start: True if the user said that an empty log is meant, although the query has run before
    whole_files: True if positions are (file, row): files are known by name, and no offsets are kept of them
    nothing_between: True if Spark's own plans show that the batches after the last commit's, up to this one, brought nothing
    """

    own_epoch: int
    log_epoch: int
    commit: int
    query_id: str | None
    batch_id: int | None
    intent_query_id: str | None
    intent_batch_id: int | None
    published: int
    new_query_id: str
    new_batch_id: int
    has_positions: bool
    relation: SliceRelation
    fresh_start: bool = False
    has_ids: bool = False
    whole_files: bool = False
    nothing_between: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """What to do, and how.

    publish: commits whose panes go to the sink before anything else
    drop_old_rows: rows below our offsets are left out
    reuse_intent: take `now`, watermark, idle verdicts and floors from the pending intent
    """

    action: BatchAction
    why: str
    remedy: str = ""
    publish: range = NO_COMMITS
    drop_old_rows: bool = False
    reuse_intent: bool = False

    def raise_if_refused(self) -> None:
        """Raise the error that belongs to a refusal; do nothing otherwise."""
        _raise(_BATCH_ERRORS.get(self.action), self.why, self.remedy)


_BATCH_ERRORS: dict[BatchAction, type[WindrowError]] = {
    BatchAction.REFUSE_GAP: OffsetGap,
    BatchAction.REFUSE_BEHIND: SourceBehind,
    BatchAction.REFUSE_NO_POSITIONS: PositionsMissing,
    BatchAction.REFUSE_SKIPPED_BATCH: OffsetGap,
    BatchAction.REFUSE_STATE_MISSING: StateLost,
    BatchAction.STOP_FENCED: Fenced,
}
_OLD_ROWS_POSSIBLE = (SliceRelation.UNKNOWN, SliceRelation.OVERLAPS, SliceRelation.BELOW)


def on_batch(facts: BatchFacts) -> BatchDecision:
    """What this batch is, next to what the log has."""
    if facts.log_epoch != facts.own_epoch:
        return BatchDecision(
            action=BatchAction.STOP_FENCED,
            why=f"the log is at epoch {facts.log_epoch}, this driver's epoch is {facts.own_epoch}",
            remedy="another driver has opened this job, or the log was replaced: run one driver only",
        )
    publish = range(facts.published + 1, facts.commit + 1)
    if _recorded(facts) and not _may_have_new_rows(facts):
        return BatchDecision(
            action=BatchAction.SKIP_AND_PUBLISH,
            why=f"batch {facts.new_batch_id} is committed: the log has this query up to {facts.batch_id}",
            publish=publish,
        )
    refusal = _refuse_batch(facts)
    if refusal is not None:
        return refusal
    drop = facts.commit > 0 and facts.has_positions and facts.relation in _OLD_ROWS_POSSIBLE
    if _intended(facts):
        return BatchDecision(
            action=BatchAction.REDO_INTENT,
            why=f"commit {facts.commit + 1} was begun for this batch, and nothing of it is visible",
            publish=publish,
            drop_old_rows=drop,
            reuse_intent=True,
        )
    return BatchDecision(
        action=BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS if drop else BatchAction.NEW_COMMIT,
        why=f"batch {facts.new_batch_id} becomes commit {facts.commit + 1}",
        publish=publish,
        drop_old_rows=drop,
    )


def _same_query(facts: BatchFacts) -> bool:
    return facts.query_id == facts.new_query_id  # None, of no commit or the embedded runner's, equals none


def _recorded(facts: BatchFacts) -> bool:
    """True if a batch with this number became a commit."""
    return _same_query(facts) and facts.batch_id is not None and facts.new_batch_id <= facts.batch_id


def _may_have_new_rows(facts: BatchFacts) -> bool:
    """True if a recorded batch may reach further than it did: Spark plans it anew where it has lost its plan."""
    if not facts.has_positions or facts.whole_files:
        return False
    return facts.relation not in (SliceRelation.BELOW, SliceRelation.EMPTY)


def _intended(facts: BatchFacts) -> bool:
    return (facts.intent_query_id, facts.intent_batch_id) == (facts.new_query_id, facts.new_batch_id)


def _refuse_batch(facts: BatchFacts) -> BatchDecision | None:
    if facts.commit == 0:
        return None if facts.new_batch_id == 0 else _refuse_without_state(facts)
    if not facts.has_positions:
        return _refuse_without_positions(facts)
    if facts.whole_files and (refusal := _refuse_gap_of_numbers(facts)) is not None:
        return refusal
    if facts.relation is SliceRelation.GAP:
        return BatchDecision(
            action=BatchAction.REFUSE_GAP,
            why=f"the rows of batch {facts.new_batch_id} begin above the offsets of commit {facts.commit}: "
            "messages between them are missing",
            remedy="start the query from the job's own offsets (next_offsets) or earlier; if the source has "
            "lost these messages, begin with an empty windrow location",
        )
    if facts.relation is SliceRelation.BELOW and not _same_query(facts):
        return BatchDecision(
            action=BatchAction.REFUSE_BEHIND,
            why=f"all rows of batch {facts.new_batch_id} of this new query are below the offsets of "
            f"commit {facts.commit}: they were counted before",
            remedy="start the query from the job's own offsets (next_offsets), or with larger batches; to "
            "count them again, begin with an empty windrow location",
        )
    return None


def _refuse_without_state(facts: BatchFacts) -> BatchDecision | None:
    if facts.fresh_start or _intended(facts):
        return None
    return BatchDecision(
        action=BatchAction.REFUSE_STATE_MISSING,
        why=f"Spark is at batch {facts.new_batch_id} of this query, but the log is empty: the batches "
        "before are in no state",
        remedy="restore the log folder; or delete Spark's checkpoint to begin anew; or ask for a fresh "
        "start, which leaves those batches out",
    )


def _refuse_without_positions(facts: BatchFacts) -> BatchDecision | None:
    if not _same_query(facts) and facts.has_ids:
        return None if facts.new_batch_id == 0 else _refuse_middle_of_another(facts)
    if not _same_query(facts):
        return BatchDecision(
            action=BatchAction.REFUSE_NO_POSITIONS,
            why=f"this is another Spark query than that of commit {facts.commit}, and its rows carry no "
            "positions: which of them were counted before cannot be known",
            remedy="restore Spark's checkpoint; or keep the source's position columns in the frame; or begin "
            "with an empty windrow location (a definition with ids=wr.ids(...) would know them from then on)",
        )
    return _refuse_gap_of_numbers(facts)


def _refuse_gap_of_numbers(facts: BatchFacts) -> BatchDecision | None:
    """Where no offsets tell what is missing, the batches of a query follow each other, but for those that brought nothing."""
    follows = facts.batch_id is None or facts.new_batch_id <= facts.batch_id + 1
    if follows or facts.nothing_between or not _same_query(facts):
        return None
    untold = "files of them may be lost" if facts.has_positions else "their rows carry no positions"
    return BatchDecision(
        action=BatchAction.REFUSE_SKIPPED_BATCH,
        why=f"the log has this query up to batch {facts.batch_id}, Spark goes on with "
        f"{facts.new_batch_id}: the batches between are in no state, and {untold}",
        remedy="restore the newest log folder; or begin anew, with an empty windrow location and an "
        "empty Spark checkpoint",
    )


def _refuse_middle_of_another(facts: BatchFacts) -> BatchDecision:
    """Ids tell what was counted, not what is missing: another query is let in from its beginning only."""
    return BatchDecision(
        action=BatchAction.REFUSE_SKIPPED_BATCH,
        why=f"this is another Spark query than that of commit {facts.commit}, at its batch {facts.new_batch_id}: "
        "whether the batches before were counted cannot be known",
        remedy="start it with an empty Spark checkpoint, from where the source begins or before what was "
        "counted: rows that were counted are known by their ids",
    )


# --- a shard is opened ---


class StoreFound(Enum):
    """What a shard finds where its local store belongs."""

    ABSENT = "absent"
    OK = "ok"  # of this job and shard, checksums right; `applied` tells how far it is
    CORRUPT = "corrupt"
    DIVERGED = "diverged"  # its newest commit has another digest than the log has for it
    OTHER_JOB = "of another job"  # or another shard: a leftover
    NEWER_FORMAT = "of a newer format"
    LOCKED = "locked"  # by another process, still after the bounded wait


class ShardAction(Enum):
    """How a shard gets to the state after commit `committed`."""

    USE_AS_IS = "use as is"
    APPLY_SEGMENTS = "apply segments"
    START_EMPTY = "start empty, apply segments"
    RESTORE_SNAPSHOT = "restore snapshot, apply segments"
    REBUILD_FROM_CHANGELOG = "rebuild from changelog, replay messages, apply segments"
    REFUSE_AHEAD = "refuse: ahead"
    REFUSE_NEWER_FORMAT = "refuse: newer format"
    REFUSE_LOST = "refuse: lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """What a shard can see.

    committed: the commit that it has to reach, the newest in the log as the driver knows it; 0: none
    store, applied: the local store, and the commit that it holds if `store` is OK
    segments_from: this shard's segments of `segments_from..committed` are all there; committed + 1: none are
    snapshots: commits of which a recorded, verified snapshot of this shard is there
    changelog: the commit up to which the changelog of window metadata is complete; None: there is none
    needs_messages: True if the operators keep messages, which the changelog does not have
    can_replay: True if windrow can read the source again, from where the earliest retained window starts
    replayable: False if windrow could not, whoever told how: messages of a chain
    """

    committed: int
    store: StoreFound
    applied: int | None
    segments_from: int
    snapshots: tuple[int, ...] = ()
    changelog: int | None = None
    needs_messages: bool = True
    can_replay: bool = False
    replayable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDecision:
    """What to do, and how.

    base: the commit that the store holds before segments are applied, from wherever `action` says
    apply: the commits whose segments are then applied, in this order
    move_aside: the local store is renamed out of the way first, never deleted
    private_copy: build beside the local store, which another process holds
    replay_messages: messages of the retained windows are read from the source again, and no pane is sent
    """

    action: ShardAction
    why: str
    remedy: str = ""
    base: int = 0
    apply: range = NO_COMMITS
    move_aside: bool = False
    private_copy: bool = False
    replay_messages: bool = False

    def raise_if_refused(self) -> None:
        """Raise the error that belongs to a refusal; do nothing otherwise."""
        _raise(_SHARD_ERRORS.get(self.action), self.why, self.remedy)


_SHARD_ERRORS: dict[ShardAction, type[WindrowError]] = {
    ShardAction.REFUSE_AHEAD: Fenced,
    ShardAction.REFUSE_NEWER_FORMAT: NewerFormat,
    ShardAction.REFUSE_LOST: StateLost,
}


def on_shard_open(facts: ShardFacts) -> ShardDecision:
    """How this shard comes back, by the cheapest way that is complete."""
    c, applied = facts.committed, facts.applied if facts.store is StoreFound.OK else None
    if facts.store is StoreFound.NEWER_FORMAT:
        return ShardDecision(
            action=ShardAction.REFUSE_NEWER_FORMAT,
            why="the local store was written by a later release of windrow",
            remedy="upgrade windrow on this machine",
        )
    if applied is not None and applied > c:
        return ShardDecision(
            action=ShardAction.REFUSE_AHEAD,
            why=f"the local store holds commit {applied}, this driver knows of commits up to {c} only",
            remedy="if another driver runs this job, this one is over: stop it. If none does, the log has "
            f"lost commits {c + 1} to {applied}: restore the log folder",
        )
    if applied == c:
        why = f"the local store holds commit {c}"
        return ShardDecision(action=ShardAction.USE_AS_IS, why=why, base=c)
    if applied is not None and facts.segments_from <= applied + 1:
        return ShardDecision(
            action=ShardAction.APPLY_SEGMENTS,
            why=f"the local store holds commit {applied}, and all segments since are there",
            base=applied,
            apply=range(applied + 1, c + 1),
        )
    return _rebuild(facts)


def _rebuild(facts: ShardFacts) -> ShardDecision:
    """The local store is of no use: build another."""
    source = _find_base(facts)
    if source is None:
        return _refuse_lost(facts)
    action, base, has = source
    return ShardDecision(
        action=action,
        why=f"the local store is {_found(facts)}; {has}, and all segments since",
        base=base,
        apply=range(base + 1, facts.committed + 1),
        move_aside=facts.store not in (StoreFound.ABSENT, StoreFound.LOCKED),
        private_copy=facts.store is StoreFound.LOCKED,
        replay_messages=action is ShardAction.REBUILD_FROM_CHANGELOG and facts.needs_messages,
    )


def _find_base(facts: ShardFacts) -> tuple[ShardAction, int, str] | None:
    """The best commit to begin from of those that segments lead on from; commit 0 is the empty state."""
    reachable = range(facts.segments_from - 1, facts.committed + 1)
    snapshots = [k for k in facts.snapshots if k in reachable]
    if snapshots:
        return ShardAction.RESTORE_SNAPSHOT, max(snapshots), f"there is the snapshot of {max(snapshots)}"
    if 0 in reachable:
        return ShardAction.START_EMPTY, 0, "there is the empty state"
    k = facts.changelog
    if k is not None and k in reachable and (facts.can_replay or not facts.needs_messages):
        return ShardAction.REBUILD_FROM_CHANGELOG, k, f"there is the changelog up to {k}"
    return None


def _refuse_lost(facts: ShardFacts) -> ShardDecision:
    metadata = facts.changelog is not None and facts.segments_from - 1 <= facts.changelog <= facts.committed
    segments = range(facts.segments_from, facts.committed + 1)
    left = f"from commit {segments[0]} on" if segments else "none"
    remedy = (
        "restore the folders of segments and snapshots; or begin with an empty windrow location, from the earliest "
        "position that the source still has"
    )
    why = (
        f"the local store is {_found(facts)}, and no snapshot leads to the segments that are left ({left}). "
    )
    if metadata:
        why += (
            "The changelog does, but has no messages, and the source cannot be read again: messages are lost"
        )
        if facts.replayable:
            remedy = f"give replay=, a function that reads the source again; or {remedy}"
    else:
        why += "No changelog leads there either: windows and messages are lost"
    return ShardDecision(
        action=ShardAction.REFUSE_LOST,
        why=why,
        remedy=remedy,
    )


def _found(facts: ShardFacts) -> str:
    return f"at commit {facts.applied}" if facts.store is StoreFound.OK else facts.store.value


# --- a driver starts ---


class PublishAction(Enum):
    """Which panes go out before anything else."""

    NOTHING = "nothing"
    PUBLISH = "publish"
    REFUSE_SINK_AHEAD = "refuse: sink ahead"
    REFUSE_PANES_LOST = "refuse: panes lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFacts:
    """What is known of publishing when a driver starts.

    commit: the newest commit
    recorded: highest commit that it records as published
    sink: the highest token that the sink has of this job; None if it has none or cannot say
    panes_from: the panes of commits `panes_from..commit` are all there; commit + 1: none
    """

    commit: int
    recorded: int
    sink: int | None
    panes_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDecision:
    """publish: commits whose panes go to the sink, in this order, each under its own token."""

    action: PublishAction
    why: str
    remedy: str = ""
    publish: range = NO_COMMITS

    def raise_if_refused(self) -> None:
        """Raise the error that belongs to a refusal; do nothing otherwise."""
        _raise(_PUBLISH_ERRORS.get(self.action), self.why, self.remedy)


_PUBLISH_ERRORS: dict[PublishAction, type[WindrowError]] = {
    PublishAction.REFUSE_SINK_AHEAD: CorruptState,
    PublishAction.REFUSE_PANES_LOST: StateLost,
}


def on_startup(facts: PublishFacts) -> PublishDecision:
    """Which commits were made and perhaps not published.

    What the log records as published stays so even if the sink says less: then the user has replaced or
    emptied it, and history is not sent again.
    """
    if facts.sink is not None and facts.sink > facts.commit:
        return PublishDecision(
            action=PublishAction.REFUSE_SINK_AHEAD,
            why=f"the sink has the panes of commit {facts.sink}, the log ends at commit {facts.commit}",
            remedy="the log has lost commits, or is an older backup: restore its folder, fork it, or give another sink",
        )
    first = max(facts.recorded, facts.sink or 0) + 1
    if first > facts.commit:
        return PublishDecision(action=PublishAction.NOTHING, why=f"published up to commit {facts.commit}")
    if facts.panes_from > first:
        return PublishDecision(
            action=PublishAction.REFUSE_PANES_LOST,
            why=f"the panes of commits {first} to {min(facts.panes_from - 1, facts.commit)} were perhaps not "
            "published, and their files are gone",
            remedy="restore the folder of panes",
        )
    return PublishDecision(
        action=PublishAction.PUBLISH,
        why=f"commits {first} to {facts.commit} were perhaps not published",
        publish=range(first, facts.commit + 1),
    )


def _raise(error: type[WindrowError] | None, why: str, remedy: str) -> None:
    if error is not None:
        raise error(f"{why}. {remedy[:1].upper()}{remedy[1:]}")
