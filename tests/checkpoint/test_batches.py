"""Recovery's decisions on batches over the whole space of facts, and the rows that a reader would look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.checkpoint.refusals import check_refusal
from windrow.checkpoint.batches import BatchAction, BatchDecision, BatchFacts, on_batch
from windrow.checkpoint.offsets import SliceRelation, relation

GO = {BatchAction.REDO_INTENT, BatchAction.NEW_COMMIT, BatchAction.NEW_COMMIT_DROPPING_OLD_ROWS}


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
    for log_epoch, last, intent, behind, batch, positions, store_state, fresh, ids, files in space:
        facts = replace(
            BASE,
            log_epoch=log_epoch,
            intent_query_id=intent[0],
            intent_batch_id=intent[1],
            new_batch_id=batch,
            has_positions=positions,
            relation=store_state,
            fresh_start=fresh,
            has_ids=ids,
            whole_files=files,
            **last,  # type: ignore[arg-type]
        )
        yield replace(facts, published=max(facts.commit - behind, 0))


Decided = list[tuple[BatchFacts, BatchDecision]]


@pytest.fixture(scope="module")
def decided() -> Decided:
    """The whole space, made once: half of what these tests cost is to make it."""
    return [(facts, on_batch(facts)) for facts in batch_facts()]


def test_every_batch_is_decided_and_every_action_happens(decided: Decided) -> None:
    seen = set()
    for facts, decision in decided:
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


def test_refusals_of_batches_say_why_and_what_to_do(decided: Decided) -> None:
    shown = {}
    for _, decision in decided:
        shown[decision.action, decision.why] = decision
    for decision in shown.values():
        check_refusal(decision)


def test_a_driver_that_is_not_the_last_to_claim_does_nothing(decided: Decided) -> None:
    for facts, decision in decided:
        fenced = decision.action is BatchAction.STOP_FENCED
        assert fenced == (facts.log_epoch != facts.own_epoch), facts


def is_recorded(facts: BatchFacts) -> bool:
    return facts.commit > 0 and facts.query_id == facts.new_query_id and facts.new_batch_id <= 3


def test_a_recorded_batch_is_skipped_where_nothing_in_it_is_new_or_could_be_distinguished_and_no_other_is(
    decided: Decided,
) -> None:
    nothing_new = (SliceRelation.BELOW, SliceRelation.EMPTY)
    for facts, decision in decided:
        if facts.log_epoch != facts.own_epoch:
            continue
        blind = not facts.has_positions or facts.whole_files
        skipped = is_recorded(facts) and (blind or facts.relation in nothing_new)
        assert (decision.action is BatchAction.SKIP_AND_PUBLISH) == skipped, facts


def test_a_recorded_batch_whose_offsets_are_not_known_yet_is_looked_at_without_its_old_rows(
    decided: Decided,
) -> None:
    for facts, decision in decided:
        asked = facts.relation is SliceRelation.UNKNOWN and facts.has_positions and not facts.whole_files
        if facts.log_epoch == facts.own_epoch and is_recorded(facts) and asked:
            assert decision.action in GO and decision.drop_old_rows, facts


def test_another_query_gets_in_only_with_positions_or_from_its_beginning_with_ids(decided: Decided) -> None:
    for facts, decision in decided:
        if facts.log_epoch != facts.own_epoch or facts.has_positions:
            continue
        if facts.commit and facts.query_id != facts.new_query_id:
            begins = facts.has_ids and facts.new_batch_id == 0
            refused = BatchAction.REFUSE_SKIPPED_BATCH if facts.has_ids else BatchAction.REFUSE_NO_POSITIONS
            assert decision.action in GO if begins else decision.action is refused, facts


def test_with_positions_ids_decide_nothing(decided: Decided) -> None:
    for facts, decision in decided:
        if facts.has_positions:
            assert decision == on_batch(replace(facts, has_ids=False)), facts


def test_without_positions_batches_of_a_query_must_follow_each_other(decided: Decided) -> None:
    for facts, decision in decided:
        if facts.commit and not facts.has_positions and decision.action in GO:
            if facts.has_ids and facts.query_id != facts.new_query_id:
                continue
            assert (facts.query_id, facts.batch_id) == (facts.new_query_id, facts.new_batch_id - 1), facts


def test_where_no_offsets_show_a_gap_of_numbers_is_refused_unless_sparks_plans_show_that_nothing_came(
    decided: Decided,
) -> None:
    for facts, decision in decided:
        shown = on_batch(replace(facts, nothing_between=True))
        counted_on = facts.commit and facts.query_id == facts.new_query_id and facts.batch_id is not None
        blind = not facts.has_positions or facts.whole_files
        if facts.log_epoch == facts.own_epoch and counted_on and blind and facts.new_batch_id > 4:
            assert decision.action is BatchAction.REFUSE_SKIPPED_BATCH, facts
            follows = on_batch(replace(facts, batch_id=facts.new_batch_id - 1))
            assert replace(shown, why="") == replace(follows, why=""), facts
        else:
            assert shown == decision, facts


def test_rows_are_dropped_where_some_may_be_old_and_can_be_distinguished(decided: Decided) -> None:
    possible = (SliceRelation.UNKNOWN, SliceRelation.OVERLAPS, SliceRelation.BELOW)
    for facts, decision in decided:
        if decision.action in GO:
            old = facts.commit > 0 and facts.has_positions and facts.relation in possible
            assert decision.drop_old_rows == old, facts


def test_an_intent_is_redone_for_its_own_batch_only(decided: Decided) -> None:
    for facts, decision in decided:
        if decision.action in GO:
            own = (facts.intent_query_id, facts.intent_batch_id) == (facts.new_query_id, facts.new_batch_id)
            assert (decision.action is BatchAction.REDO_INTENT) == own, facts


def test_the_answer_after_the_action_never_asks_for_less_rows_than_the_one_before(decided: Decided) -> None:
    """So no batch has to be run twice because its offsets were known only afterwards."""
    for facts, after in decided:
        before = on_batch(replace(facts, relation=SliceRelation.UNKNOWN))
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
