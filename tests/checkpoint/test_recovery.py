"""Recovery decisions over the whole space of facts, and the rows that a reader would look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

import pytest

from windrow.checkpoint.offsets import SliceRelation, relation
from windrow.checkpoint.recovery import (
    BatchAction,
    BatchFacts,
    PublishAction,
    PublishFacts,
    ShardAction,
    ShardFacts,
    StoreFound,
    on_batch,
    on_shard_open,
    on_startup,
)
from windrow.core.errors import (
    CorruptState,
    Fenced,
    NewerFormat,
    OffsetGap,
    PositionsMissing,
    SourceBehind,
    StateLost,
)

GO = {BatchAction.REDO_INTENT, BatchAction.NEW_COMMIT, BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS}
ERRORS: dict[Any, type[Exception]] = {
    BatchAction.REFUSE_GAP: OffsetGap,
    BatchAction.REFUSE_BEHIND: SourceBehind,
    BatchAction.REFUSE_NO_POSITIONS: PositionsMissing,
    BatchAction.REFUSE_SKIPPED_BATCH: OffsetGap,
    BatchAction.REFUSE_STATE_MISSING: StateLost,
    BatchAction.STOP_FENCED: Fenced,
    ShardAction.REFUSE_AHEAD: Fenced,
    ShardAction.REFUSE_NEWER_FORMAT: NewerFormat,
    ShardAction.REFUSE_LOST: StateLost,
    PublishAction.REFUSE_SINK_AHEAD: CorruptState,
    PublishAction.REFUSE_PANES_LOST: StateLost,
}


def check_refusal(decision: Any) -> None:
    """A refusal has its error, which says why and what to do; nothing else raises."""
    assert decision.why
    error = ERRORS.get(decision.action)
    assert (error is not None) == decision.action.name.startswith(("REFUSE", "STOP")) == bool(decision.remedy)
    if error is None:
        decision.raise_if_refused()
        return
    with pytest.raises(error) as raised:
        decision.raise_if_refused()
    assert decision.why in str(raised.value)
    assert decision.remedy[1:] in str(raised.value)


# --- a batch comes in ---

BASE = BatchFacts(
    own_epoch=2,
    log_epoch=2,
    commit=5,
    query_id="q",
    batch_id=3,
    intent_query_id=None,
    intent_batch_id=None,
    published=5,
    new_query_id="q",
    new_batch_id=4,
    has_positions=True,
    relation=SliceRelation.UNKNOWN,
)
LAST = [
    {"commit": 0, "query_id": None, "batch_id": None},
    {"commit": 5, "query_id": None, "batch_id": None},  # made by the embedded runner
    {"commit": 5, "query_id": "q", "batch_id": 3},
    {"commit": 5, "query_id": "other", "batch_id": 3},
]
INTENTS = [(None, None), ("q", 0), ("q", 4), ("q", 9), ("other", 4)]


def batch_facts() -> Iterator[BatchFacts]:
    space = product(
        (1, 2, 3),
        LAST,
        INTENTS,
        (0, 1),
        (0, 2, 3, 4, 5, 9),
        (True, False),
        SliceRelation,
        (True, False),
        (True, False),
        (True, False),
    )
    for log_epoch, last, intent, behind, batch, positions, found, fresh, ids, files in space:
        facts = replace(
            BASE,
            log_epoch=log_epoch,
            intent_query_id=intent[0],
            intent_batch_id=intent[1],
            new_batch_id=batch,
            has_positions=positions,
            relation=found,
            fresh_start=fresh,
            has_ids=ids,
            whole_files=files,
            **last,  # type: ignore[arg-type]
        )
        yield replace(facts, published=max(facts.commit - behind, 0))


@pytest.mark.proves("Coming back: every combination of facts decided")
def test_every_batch_is_decided_and_every_action_happens() -> None:
    seen = set()
    for facts in batch_facts():
        decision = on_batch(facts)
        seen.add(decision.action)
        pending = range(facts.published + 1, facts.commit + 1)
        go = decision.action in GO
        skip = decision.action is BatchAction.SKIP_AND_PUBLISH
        assert [*decision.publish] == ([*pending] if go or skip else []), facts
        assert decision.reuse_intent == (decision.action is BatchAction.REDO_INTENT), facts
        if decision.action is not BatchAction.REDO_INTENT:
            drops = decision.action is BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS
            assert decision.drop_old_rows == drops, facts
    assert seen == {*BatchAction}


def test_refusals_of_batches_say_why_and_what_to_do() -> None:
    shown = {}
    for facts in batch_facts():
        decision = on_batch(facts)
        shown[decision.action, decision.why] = decision
    for decision in shown.values():
        check_refusal(decision)


def test_a_driver_that_is_not_the_last_to_claim_does_nothing() -> None:
    for facts in batch_facts():
        fenced = on_batch(facts).action is BatchAction.STOP_FENCED
        assert fenced == (facts.log_epoch != facts.own_epoch), facts


def is_recorded(facts: BatchFacts) -> bool:
    return facts.commit > 0 and facts.query_id == facts.new_query_id and facts.new_batch_id <= 3


def test_a_recorded_batch_is_skipped_where_nothing_in_it_is_new_or_could_be_told_and_no_other_is() -> None:
    nothing_new = (SliceRelation.BELOW, SliceRelation.EMPTY)
    for facts in batch_facts():
        if facts.log_epoch != facts.own_epoch:
            continue
        blind = not facts.has_positions or facts.whole_files
        skipped = is_recorded(facts) and (blind or facts.relation in nothing_new)
        assert (on_batch(facts).action is BatchAction.SKIP_AND_PUBLISH) == skipped, facts


def test_a_recorded_batch_whose_offsets_are_not_known_yet_is_looked_at_without_its_old_rows() -> None:
    for facts in batch_facts():
        decision = on_batch(facts)
        asked = facts.relation is SliceRelation.UNKNOWN and facts.has_positions and not facts.whole_files
        if facts.log_epoch == facts.own_epoch and is_recorded(facts) and asked:
            assert decision.action in GO and decision.drop_old_rows, facts


def test_another_query_gets_in_only_with_positions_or_from_its_beginning_with_ids() -> None:
    for facts in batch_facts():
        decision = on_batch(facts)
        if facts.log_epoch != facts.own_epoch or facts.has_positions:
            continue
        if facts.commit and facts.query_id != facts.new_query_id:
            begins = facts.has_ids and facts.new_batch_id == 0
            refused = BatchAction.REFUSE_SKIPPED_BATCH if facts.has_ids else BatchAction.REFUSE_NO_POSITIONS
            assert decision.action in GO if begins else decision.action is refused, facts


def test_with_positions_ids_decide_nothing() -> None:
    for facts in batch_facts():
        if facts.has_positions:
            assert on_batch(facts) == on_batch(replace(facts, has_ids=False)), facts


def test_without_positions_batches_of_a_query_must_follow_each_other() -> None:
    for facts in batch_facts():
        if facts.commit and not facts.has_positions and on_batch(facts).action in GO:
            if facts.has_ids and facts.query_id != facts.new_query_id:
                continue
            assert (facts.query_id, facts.batch_id) == (facts.new_query_id, facts.new_batch_id - 1), facts


def test_where_no_offsets_tell_a_gap_of_numbers_is_refused_unless_sparks_plans_show_that_nothing_came() -> (
    None
):
    for facts in batch_facts():
        decision, shown = on_batch(facts), on_batch(replace(facts, nothing_between=True))
        counted_on = facts.commit and facts.query_id == facts.new_query_id and facts.batch_id is not None
        blind = not facts.has_positions or facts.whole_files
        if facts.log_epoch == facts.own_epoch and counted_on and blind and facts.new_batch_id > 4:
            assert decision.action is BatchAction.REFUSE_SKIPPED_BATCH, facts
            follows = on_batch(replace(facts, batch_id=facts.new_batch_id - 1))
            assert replace(shown, why="") == replace(follows, why=""), facts
        else:
            assert shown == decision, facts


def test_rows_are_dropped_where_some_may_be_old_and_can_be_told() -> None:
    possible = (SliceRelation.UNKNOWN, SliceRelation.OVERLAPS, SliceRelation.BELOW)
    for facts in batch_facts():
        decision = on_batch(facts)
        if decision.action in GO:
            old = facts.commit > 0 and facts.has_positions and facts.relation in possible
            assert decision.drop_old_rows == old, facts


def test_an_intent_is_redone_for_its_own_batch_only() -> None:
    for facts in batch_facts():
        decision = on_batch(facts)
        if decision.action in GO:
            own = (facts.intent_query_id, facts.intent_batch_id) == (facts.new_query_id, facts.new_batch_id)
            assert (decision.action is BatchAction.REDO_INTENT) == own, facts


def test_the_answer_after_the_action_never_asks_for_less_rows_than_the_one_before() -> None:
    """So no batch has to be run twice because its offsets were known only afterwards."""
    for facts in batch_facts():
        before = on_batch(replace(facts, relation=SliceRelation.UNKNOWN))
        after = on_batch(facts)
        if before.action in GO and after.action in GO:
            assert before.drop_old_rows >= after.drop_old_rows, facts
            assert before.reuse_intent == after.reuse_intent, facts
        else:
            late = [BatchAction.REFUSE_GAP, BatchAction.REFUSE_BEHIND]
            late += [BatchAction.SKIP_AND_PUBLISH] * is_recorded(facts)
            assert before.action == after.action or after.action in late, facts


def test_with_positions_no_row_is_counted_twice_or_left_out() -> None:
    """One partition, rows 0, 1, 2, ...: whatever slice comes, in whatever query, what is counted stays 0..n-1."""
    for n, first, end, query in product(range(4), range(6), range(6), ("q", "new")):
        if end < first:
            continue
        before, slice_first, slice_next = {("s", 0): n}, {("s", 0): first}, {("s", 0): end}
        facts = replace(BASE, new_query_id=query, relation=relation(before, slice_first, slice_next))
        decision = on_batch(facts)
        counted = [*range(n)]
        if decision.action in GO:
            rows = range(first, end)
            counted += [row for row in rows if row >= n or not decision.drop_old_rows]
        assert counted == [*range(len(counted))], facts


GOLDEN_BATCHES: list[tuple[str, dict[str, Any], BatchAction]] = [
    ("the next batch", {}, BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS),
    ("the next batch, begins where we are", {"relation": SliceRelation.ADJACENT}, BatchAction.NEW_COMMIT),
    ("the next batch, empty", {"relation": SliceRelation.EMPTY}, BatchAction.NEW_COMMIT),
    ("the next batch, no positions", {"has_positions": False}, BatchAction.NEW_COMMIT),
    ("Spark repeats rows", {"relation": SliceRelation.BELOW}, BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS),
    (
        "crashed after the commit",
        {"new_batch_id": 3, "published": 4},
        BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS,
    ),
    (
        "crashed after the commit, its rows are known",
        {"new_batch_id": 3, "published": 4, "relation": SliceRelation.BELOW},
        BatchAction.SKIP_AND_PUBLISH,
    ),
    (
        "crashed after the commit of an empty batch",
        {"new_batch_id": 3, "relation": SliceRelation.EMPTY},
        BatchAction.SKIP_AND_PUBLISH,
    ),
    (
        "crashed after the commit, no positions",
        {"new_batch_id": 3, "has_positions": False},
        BatchAction.SKIP_AND_PUBLISH,
    ),
    (
        "crashed after the commit, files",
        {"new_batch_id": 3, "whole_files": True},
        BatchAction.SKIP_AND_PUBLISH,
    ),
    (
        "Spark has lost the plan of a batch and plans it anew, larger",
        {"new_batch_id": 3, "relation": SliceRelation.OVERLAPS},
        BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS,
    ),
    (
        "an older batch planned anew, after the intent",
        {"new_batch_id": 1, "intent_query_id": "q", "intent_batch_id": 1, "relation": SliceRelation.OVERLAPS},
        BatchAction.REDO_INTENT,
    ),
    (
        "an older batch",
        {"new_batch_id": 1, "relation": SliceRelation.BELOW},
        BatchAction.SKIP_AND_PUBLISH,
    ),
    ("crashed after the intent", {"intent_query_id": "q", "intent_batch_id": 4}, BatchAction.REDO_INTENT),
    (
        "crashed after the intent, checkpoint deleted",
        {"intent_query_id": "old", "intent_batch_id": 4, "query_id": "old", "new_batch_id": 0},
        BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS,
    ),
    (
        "checkpoint deleted, from earliest",
        {"query_id": "old", "new_batch_id": 0, "relation": SliceRelation.OVERLAPS},
        BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS,
    ),
    (
        "checkpoint deleted, from earliest, small batches",
        {"query_id": "old", "new_batch_id": 0, "relation": SliceRelation.BELOW},
        BatchAction.REFUSE_BEHIND,
    ),
    (
        "checkpoint deleted, from latest",
        {"query_id": "old", "new_batch_id": 0, "relation": SliceRelation.GAP},
        BatchAction.REFUSE_GAP,
    ),
    (
        "checkpoint deleted, no positions",
        {"query_id": "old", "new_batch_id": 0, "has_positions": False},
        BatchAction.REFUSE_NO_POSITIONS,
    ),
    (
        "checkpoint deleted, ids",
        {"query_id": "old", "new_batch_id": 0, "has_positions": False, "has_ids": True},
        BatchAction.NEW_COMMIT,
    ),
    (
        "another query in its middle, ids",
        {"query_id": "old", "new_batch_id": 4, "has_positions": False, "has_ids": True},
        BatchAction.REFUSE_SKIPPED_BATCH,
    ),
    (
        "the log lost a batch, ids",
        {"new_batch_id": 5, "has_positions": False, "has_ids": True},
        BatchAction.REFUSE_SKIPPED_BATCH,
    ),
    ("the log lost a batch", {"new_batch_id": 5, "has_positions": False}, BatchAction.REFUSE_SKIPPED_BATCH),
    (
        "the log lost a batch, files",
        {"new_batch_id": 5, "whole_files": True},
        BatchAction.REFUSE_SKIPPED_BATCH,
    ),
    (
        "nothing came for a while, no positions",
        {"new_batch_id": 5, "has_positions": False, "nothing_between": True},
        BatchAction.NEW_COMMIT,
    ),
    (
        "the log lost a batch with rows",
        {"new_batch_id": 5, "relation": SliceRelation.GAP},
        BatchAction.REFUSE_GAP,
    ),
    ("the first batch of a job", {**LAST[0], "new_batch_id": 0}, BatchAction.NEW_COMMIT),
    ("the log is gone", {**LAST[0], "new_batch_id": 7}, BatchAction.REFUSE_STATE_MISSING),
    (
        "the log is gone, and may be",
        {**LAST[0], "new_batch_id": 7, "fresh_start": True},
        BatchAction.NEW_COMMIT,
    ),
    (
        "a fresh start crashed after its intent",
        {**LAST[0], "new_batch_id": 7, "intent_query_id": "q", "intent_batch_id": 7},
        BatchAction.REDO_INTENT,
    ),
    ("another driver came", {"log_epoch": 3}, BatchAction.STOP_FENCED),
    ("the log was replaced under us", {"log_epoch": 1}, BatchAction.STOP_FENCED),
]


@pytest.mark.parametrize(
    ("case", "changes", "action"), GOLDEN_BATCHES, ids=[row[0] for row in GOLDEN_BATCHES]
)
def test_golden_batches(case: str, changes: dict[str, Any], action: BatchAction) -> None:
    assert on_batch(replace(BASE, **changes)).action is action


# --- a shard is opened ---


def shard_facts() -> Iterator[ShardFacts]:
    subsets = [*chain.from_iterable(combinations((1, 2, 3, 4), size) for size in range(5))]
    for committed in range(4):
        stores = [(StoreFound.OK, applied) for applied in range(5)]
        stores += [(found, None) for found in StoreFound if found is not StoreFound.OK]  # type: ignore[misc]
        others = product(
            stores, range(1, committed + 2), subsets, (None, *range(5)), (True, False), (True, False)
        )
        for (found, applied), segments_from, snapshots, changelog, needs, can in others:
            yield ShardFacts(
                committed=committed,
                store=found,
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
    found = {
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
        for action, candidates in found.items()
    }


@pytest.mark.proves("Coming back: every combination of facts decided")
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
            ways = [(action, max(found)) for action, found in bases(facts).items() if found]
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
