"""Recovery's decisions on shards and on starts over the whole space of facts, and the rows that a reader would look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

import pytest

from tests.checkpoint.refusals import check_refusal
from windrow.checkpoint.recovery import (
    PublishAction,
    PublishFacts,
    ShardAction,
    ShardFacts,
    StoreFound,
    on_shard_open,
    on_startup,
)

# --- a shard is opened ---


def shard_facts() -> Iterator[ShardFacts]:
    subsets = [*chain.from_iterable(combinations((1, 2, 3, 4), size) for size in range(5))]
    for committed in range(4):
        stores = [(StoreFound.OK, applied) for applied in range(5)]
        stores += [(state, None) for state in StoreFound if state is not StoreFound.OK]  # type: ignore[misc]
        others = product(
            stores, range(1, committed + 2), subsets, (None, *range(5)), (True, False), (True, False)
        )
        for (state, applied), segments_from, snapshots, changelog, needs, can in others:
            yield ShardFacts(
                committed=committed,
                store=state,
                applied=applied,
                segments_from=segments_from,
                snapshots=snapshots,
                changelog=changelog,
                needs_messages=needs,
                can_replay=can,
            )


REFUSED = {ShardAction.REFUSE_AHEAD, ShardAction.REFUSE_NEWER_FORMAT, ShardAction.REFUSE_LOST}


def bases(facts: ShardFacts) -> dict[ShardAction, set[int]]:
    """From where the segments that are there lead to the newest commit, in order of preference."""
    usable = {
        ShardAction.USE_AS_IS: {facts.applied} & {facts.committed},
        ShardAction.APPLY_SEGMENTS: {facts.applied},
        ShardAction.RESTORE_SNAPSHOT: {*facts.snapshots},
        ShardAction.START_EMPTY: {0},
        ShardAction.REBUILD_FROM_CHANGELOG: {facts.changelog}
        if facts.can_replay or not facts.needs_messages
        else set(),
    }
    segments = {*range(facts.segments_from, facts.committed + 1)}
    return {
        action: {
            base
            for base in candidates
            if base is not None
            and base <= facts.committed
            and segments >= {*range(base + 1, facts.committed + 1)}
        }
        for action, candidates in usable.items()
    }


def test_every_shard_comes_back_by_the_cheapest_way_that_is_complete() -> None:
    seen = set()
    for facts in shard_facts():
        decision = on_shard_open(facts)
        seen.add(decision.action)
        if facts.store is StoreFound.NEWER_FORMAT:
            wanted, base = ShardAction.REFUSE_NEWER_FORMAT, 0
        elif facts.applied is not None and facts.applied > facts.committed:
            wanted, base = ShardAction.REFUSE_AHEAD, 0
        else:
            ways = [(action, max(epochs)) for action, epochs in bases(facts).items() if epochs]
            wanted, base = ways[0] if ways else (ShardAction.REFUSE_LOST, 0)
        assert (decision.action, decision.base) == (wanted, base), facts
        applied = [] if wanted in REFUSED else [*range(base + 1, facts.committed + 1)]
        assert [*decision.apply] == applied, facts
    assert seen == {*ShardAction}


def test_a_store_is_moved_aside_only_to_be_replaced_and_never_when_it_is_of_use() -> None:
    kept = {ShardAction.USE_AS_IS, ShardAction.APPLY_SEGMENTS, *REFUSED}
    for facts in shard_facts():
        decision = on_shard_open(facts)
        there = facts.store not in (StoreFound.ABSENT, StoreFound.LOCKED)
        assert decision.move_aside == (there and decision.action not in kept), facts
        locked = facts.store is StoreFound.LOCKED and decision.action not in kept
        assert decision.private_copy == locked, facts


def test_messages_are_replayed_only_where_the_changelog_has_to_do() -> None:
    for facts in shard_facts():
        decision = on_shard_open(facts)
        rebuilt = decision.action is ShardAction.REBUILD_FROM_CHANGELOG
        assert decision.replay_messages == (rebuilt and facts.needs_messages), facts
        assert not decision.replay_messages or facts.can_replay, facts


def test_refusals_of_shards_say_why_and_what_to_do() -> None:
    shown = {}
    for facts in shard_facts():
        decision = on_shard_open(facts)
        shown[decision.action, decision.why] = decision
    assert len(shown) > 50
    for decision in shown.values():
        check_refusal(decision)


HEALTHY = ShardFacts(
    committed=9, store=StoreFound.OK, applied=8, segments_from=7, snapshots=(3, 6), changelog=9
)
GOLDEN_SHARDS: list[tuple[str, dict[str, Any], ShardAction, int, bool]] = [
    ("the usual: one behind", {}, ShardAction.APPLY_SEGMENTS, 8, False),
    ("nothing happened since", {"applied": 9}, ShardAction.USE_AS_IS, 9, False),
    ("moved here after a long time", {"applied": 4}, ShardAction.RESTORE_SNAPSHOT, 6, True),
    ("local disk lost", {"store": StoreFound.ABSENT}, ShardAction.RESTORE_SNAPSHOT, 6, False),
    ("RocksDB corrupt", {"store": StoreFound.CORRUPT}, ShardAction.RESTORE_SNAPSHOT, 6, True),
    ("a leftover of another job", {"store": StoreFound.OTHER_JOB}, ShardAction.RESTORE_SNAPSHOT, 6, True),
    ("another history", {"store": StoreFound.DIVERGED}, ShardAction.RESTORE_SNAPSHOT, 6, True),
    ("a killed task lives on", {"store": StoreFound.LOCKED}, ShardAction.RESTORE_SNAPSHOT, 6, False),
    (
        "the first commits, nothing dropped",
        {"store": StoreFound.ABSENT, "segments_from": 1, "snapshots": ()},
        ShardAction.START_EMPTY,
        0,
        False,
    ),
    (
        "a new job",
        {"store": StoreFound.ABSENT, "committed": 0, "segments_from": 1, "snapshots": (), "changelog": None},
        ShardAction.START_EMPTY,
        0,
        False,
    ),
    (
        "disk and snapshots lost",
        {"store": StoreFound.ABSENT, "snapshots": (), "can_replay": True},
        ShardAction.REBUILD_FROM_CHANGELOG,
        9,
        False,
    ),
    (
        "disk, snapshots and segments lost, no messages kept",
        {"store": StoreFound.ABSENT, "snapshots": (), "segments_from": 10, "needs_messages": False},
        ShardAction.REBUILD_FROM_CHANGELOG,
        9,
        False,
    ),
    (
        "and the source cannot be read again",
        {"store": StoreFound.ABSENT, "snapshots": ()},
        ShardAction.REFUSE_LOST,
        0,
        False,
    ),
    (
        "a driver that is over, or a log that lost commits",
        {"applied": 10},
        ShardAction.REFUSE_AHEAD,
        0,
        False,
    ),
    ("an older windrow", {"store": StoreFound.NEWER_FORMAT}, ShardAction.REFUSE_NEWER_FORMAT, 0, False),
]


@pytest.mark.parametrize(
    ("case", "changes", "action", "base", "aside"), GOLDEN_SHARDS, ids=[row[0] for row in GOLDEN_SHARDS]
)
def test_golden_shards(
    case: str, changes: dict[str, Any], action: ShardAction, base: int, aside: bool
) -> None:
    if "store" in changes:
        changes = {"applied": None, **changes}
    decision = on_shard_open(replace(HEALTHY, **changes))
    assert (decision.action, decision.base, decision.move_aside) == (action, base, aside)


@pytest.mark.parametrize(
    ("changelog", "lost"),
    [
        (9, "the source cannot be read again: messages are lost"),
        (5, "No changelog leads there either: windows and messages are lost"),
        (None, "No changelog leads there either: windows and messages are lost"),
    ],
)
def test_a_shard_that_is_lost_says_what_is_lost(changelog: int | None, lost: str) -> None:
    facts = replace(HEALTHY, store=StoreFound.ABSENT, applied=None, snapshots=(3,), changelog=changelog)
    assert lost in on_shard_open(facts).why


# --- a driver starts ---


def publish_facts() -> Iterator[PublishFacts]:
    for commit in range(5):
        for recorded, sink, panes_from in product(
            range(max(commit, 1)), (None, *range(7)), range(1, commit + 2)
        ):
            yield PublishFacts(commit=commit, recorded=recorded, sink=sink, panes_from=panes_from)


def test_what_was_perhaps_not_published_is_published_once_and_in_order() -> None:
    seen = set()
    for facts in publish_facts():
        decision = on_startup(facts)
        seen.add(decision.action)
        known = {*range(1, facts.recorded + 1), *range(1, (facts.sink or 0) + 1)}
        due = [c for c in range(1, facts.commit + 1) if c not in known]
        if (facts.sink or 0) > facts.commit:
            wanted = PublishAction.REFUSE_SINK_AHEAD
        elif not due:
            wanted = PublishAction.NOTHING
        elif facts.panes_from > due[0]:
            wanted = PublishAction.REFUSE_PANES_LOST
        else:
            wanted = PublishAction.PUBLISH
        assert decision.action is wanted, facts
        assert [*decision.publish] == (due if wanted is PublishAction.PUBLISH else []), facts
        check_refusal(decision)
    assert seen == {*PublishAction}


@pytest.mark.parametrize(
    ("sink", "action", "commits"),
    [
        (None, PublishAction.PUBLISH, [7]),  # a sink that cannot say gets the last commit again
        (6, PublishAction.PUBLISH, [7]),
        (7, PublishAction.NOTHING, []),
        (2, PublishAction.PUBLISH, [7]),  # emptied by the user: history is not sent again
        (8, PublishAction.REFUSE_SINK_AHEAD, []),
    ],
)
def test_golden_starts(sink: int | None, action: PublishAction, commits: list[int]) -> None:
    decision = on_startup(PublishFacts(commit=7, recorded=6, sink=sink, panes_from=5))
    assert (decision.action, [*decision.publish]) == (action, commits)
