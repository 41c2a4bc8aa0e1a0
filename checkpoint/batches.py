"""Decisions about Spark's batches, from what the log has, in the form that `recovery.py` describes.

The steps of docs/explanation/commit-protocol.md that ask: 1.2 and 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from windrow.checkpoint.offsets import SliceRelation
from windrow.checkpoint.recovery import ANEW, NO_COMMITS, raise_refusal
from windrow.core.errors import Fenced, OffsetGap, PositionsMissing, SourceBehind, StateLost, WindrowError


class BatchAction(Enum):
    """Action to take on a batch that Spark delivers."""

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
    """Facts that are known when a batch arrives.

    own_epoch, log_epoch: this driver's claim, and the last one in the log
    commit, query_id, batch_id: of the last commit; commit 0 where there is none. Those of the embedded runner
        have no query
    intent_query_id, intent_batch_id: of the intent that no commit has followed, if any
    published: highest commit known to be published
    new_query_id, new_batch_id: of the batch
    has_positions: True if the rows of the frame carry positions
    has_ids: True if every operator knows its messages by ids: what was counted before is found by lookup
    relation: of the rows to the offsets of the last commit. UNKNOWN before the Spark action: ask again
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
    """Decision about a batch: the action, and its reason.

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
        raise_refusal(_BATCH_ERRORS.get(self.action), self.why, self.remedy)


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
    """Decide how to treat this batch, from what the log has."""
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
    """True if a recorded batch may reach further than it did: Spark plans it again where it has lost its plan."""
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
            f"lost these messages, begin with an empty windrow location, {ANEW}",
        )
    if facts.relation is SliceRelation.BELOW and not _same_query(facts):
        return BatchDecision(
            action=BatchAction.REFUSE_BEHIND,
            why=f"all rows of batch {facts.new_batch_id} of this new query are below the offsets of "
            f"commit {facts.commit}: they were counted before",
            remedy="start the query from the job's own offsets (next_offsets), or with larger batches; to "
            f"count them again, begin with an empty windrow location, {ANEW}",
        )
    return None


def _refuse_without_state(facts: BatchFacts) -> BatchDecision | None:
    if facts.fresh_start or _intended(facts):
        return None
    return BatchDecision(
        action=BatchAction.REFUSE_STATE_MISSING,
        why=f"Spark is at batch {facts.new_batch_id} of this query, but the log is empty: the batches "
        "before are in no state",
        remedy=f"restore the log folder; or delete Spark's checkpoint to begin anew, {ANEW}; or ask for a fresh "
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
            f"with an empty windrow location, {ANEW} (a definition with ids=wr.ids(...) would know them from then on)",
        )
    return _refuse_gap_of_numbers(facts)


def _refuse_gap_of_numbers(facts: BatchFacts) -> BatchDecision | None:
    """Return a refusal if batch numbers leave a gap and no offsets show what is missing; batches without rows may be absent."""
    follows = facts.batch_id is None or facts.new_batch_id <= facts.batch_id + 1
    if follows or facts.nothing_between or not _same_query(facts):
        return None
    not_emitted = "files of them may be lost" if facts.has_positions else "their rows carry no positions"
    return BatchDecision(
        action=BatchAction.REFUSE_SKIPPED_BATCH,
        why=f"the log has this query up to batch {facts.batch_id}, Spark goes on with "
        f"{facts.new_batch_id}: the batches between are in no state, and {not_emitted}",
        remedy="restore the newest log folder; or begin anew, with an empty windrow location and an "
        f"empty Spark checkpoint, {ANEW}",
    )


def _refuse_middle_of_another(facts: BatchFacts) -> BatchDecision:
    """Refuse another query unless it starts at its beginning: ids show what was counted, not what is missing."""
    return BatchDecision(
        action=BatchAction.REFUSE_SKIPPED_BATCH,
        why=f"this is another Spark query than that of commit {facts.commit}, at its batch {facts.new_batch_id}: "
        "whether the batches before were counted cannot be known",
        remedy="start it with an empty Spark checkpoint, from where the source begins or before what was "
        "counted: rows that were counted are known by their ids",
    )
