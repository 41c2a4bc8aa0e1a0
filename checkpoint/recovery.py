"""Recovery decisions: pure total functions from observed facts to the next action.

    observed facts  ->  decision: an action by name, why, and what the user can do if it is a refusal

No function here reads a file or a clock: the driver and the shards gather facts and carry out decisions. So
every combination of facts can be tabled, and tests/checkpoint/test_recovery.py does. The steps of
docs/explanation/commit-protocol.md that decide here: `on_startup` in 0.4, `on_shard_open` in 3.1. Of batches: `batches.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from windrow.core.errors import CorruptState, Fenced, NewerFormat, StateLost, WindrowError

NO_COMMITS = range(0)
#: Where a remedy is to begin anew: a job that begins anew has another identity, so that a sink takes its rows as new ones.
ANEW = "with another sink or an emptied one, since the rows that were sent stay in it"

# --- a shard is opened ---


class StoreFound(Enum):
    """Condition of a shard's local store, as it is found."""

    ABSENT = "absent"
    OK = "ok"  # of this job and shard, checksums right; `applied` is the commit that it holds
    CORRUPT = "corrupt"
    DIVERGED = "diverged"  # its newest commit has another digest than the log has for it
    OTHER_JOB = "of another job"  # or another shard: a leftover
    NEWER_FORMAT = "of a newer format"
    LOCKED = "locked"  # by another process, still after the bounded wait


class ShardAction(Enum):
    """Way in which a shard reaches the state after commit `committed`."""

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
    """Facts that a shard can see.

    committed: the commit that it has to reach, the newest in the log as the driver knows it; 0: none
    store, applied: the local store, and the commit that it holds if `store` is OK
    segments_from: this shard's segments of `segments_from..committed` are all there; committed + 1: none are
    snapshots: commits of which a recorded, verified snapshot of this shard is there
    changelog: the commit up to which the changelog of window metadata is complete; None: there is none
    needs_messages: True if the operators keep messages, which the changelog does not have
    can_replay: True if windrow can read the source again, from where the earliest retained window starts
    replayable: False if windrow could not, with any `replay=`: messages of a chain
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
    """Decision about a shard: the action, and its reason.

    base: the commit that the store holds before segments are applied, from wherever `action` says
    apply: the commits whose segments are then applied, in this order
    move_aside: the local store is renamed out of the way first, never deleted
    private_copy: build next to the local store, which another process holds
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
        raise_refusal(_SHARD_ERRORS.get(self.action), self.why, self.remedy)


_SHARD_ERRORS: dict[ShardAction, type[WindrowError]] = {
    ShardAction.REFUSE_AHEAD: Fenced,
    ShardAction.REFUSE_NEWER_FORMAT: NewerFormat,
    ShardAction.REFUSE_LOST: StateLost,
}


def on_shard_open(facts: ShardFacts) -> ShardDecision:
    """Decide how this shard is recovered, by the cheapest way that is complete."""
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
    """Decide how to build another store, as the local one cannot be used."""
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
    """Return the best commit to begin from, of those that segments continue from; commit 0 is the empty state."""
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
        f"position that the source still has, {ANEW}"
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
    """Action on panes that must be published before anything else."""

    NOTHING = "nothing"
    PUBLISH = "publish"
    REFUSE_SINK_AHEAD = "refuse: sink ahead"
    REFUSE_PANES_LOST = "refuse: panes lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFacts:
    """Facts about publishing that are known when a driver starts.

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
    """publish: commits whose panes are sent to the sink, in this order, each under its own token."""

    action: PublishAction
    why: str
    remedy: str = ""
    publish: range = NO_COMMITS

    def raise_if_refused(self) -> None:
        """Raise the error that belongs to a refusal; do nothing otherwise."""
        raise_refusal(_PUBLISH_ERRORS.get(self.action), self.why, self.remedy)


_PUBLISH_ERRORS: dict[PublishAction, type[WindrowError]] = {
    PublishAction.REFUSE_SINK_AHEAD: CorruptState,
    PublishAction.REFUSE_PANES_LOST: StateLost,
}


def on_startup(facts: PublishFacts) -> PublishDecision:
    """Decide which commits to publish: those that the log has and the sink perhaps has not.

    A commit that the log records as published stays so, even if the sink reports fewer. In that case the user has replaced or
    emptied the sink, and history is not sent again.
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


def raise_refusal(error: type[WindrowError] | None, why: str, remedy: str) -> None:
    """Raise the error of a refusal; do nothing where there is none."""
    if error is not None:
        raise error(f"{why}. {remedy[:1].upper()}{remedy[1:]}")
