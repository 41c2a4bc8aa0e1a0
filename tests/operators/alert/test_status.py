"""Statuses that are composed, compared with a loop over the table of the requirements."""

from __future__ import annotations

import numpy as np
import pytest

from windrow.operators.alert.status import CANCEL, OPEN, REPEAT, compose, status_functions, transitions


def by_loop(after, heads, start, counts):
    """Status, status before, repeats and opening of each evaluation."""
    statuses, key = [], -1
    status, count, opening = CANCEL, 0, -1
    for i, functions in enumerate(after.tolist()):
        if heads[i]:
            key += 1
            status, count, opening = int(start[key]), int(counts[key]), -1
        before, status = status, functions[status]
        count = count + 1 if status == REPEAT else 0
        if status == OPEN:
            opening = i
        statuses.append((before, status, count, opening if (before, status) != (CANCEL, CANCEL) else -1))
        if status == CANCEL:
            opening = -1
    return statuses


@pytest.mark.parametrize("hysteresis", [0.0, 0.3, 1.0])
def test_composed_statuses_are_those_of_a_loop(hysteresis: float) -> None:
    random = np.random.default_rng(7)
    for n in (1, 2, 3, 17, 200, 3_000):
        for keys in (1, 5):
            heads = random.random(n) < keys / n
            heads[0] = True
            when, until = random.random(n) < 0.5, random.random(n) < 0.5
            stays = np.where(random.random(n) < hysteresis, ~until, when)
            after = status_functions(
                when,
                np.column_stack([stays, random.random(n) < 0.5])
                if n % 2
                else np.column_stack([stays, stays]),
            )
            start = random.integers(0, 3, int(heads.sum())).astype(np.uint8)
            counts = np.where(start == REPEAT, random.integers(1, 9, len(start)), 0)
            made = transitions(after, heads, start, counts)
            wanted = by_loop(after, heads, start, counts)
            assert (
                list(
                    zip(
                        made.before.tolist(),
                        made.after.tolist(),
                        made.count.tolist(),
                        made.opening.tolist(),
                        strict=True,
                    )
                )
                == wanted
            )


def test_the_status_table() -> None:
    """All rows of the table, from each status, for a condition that is false and one that is true."""
    condition = np.array([False, True])
    after = status_functions(condition, np.column_stack([condition, condition]))
    assert after.tolist() == [[CANCEL, CANCEL, CANCEL], [OPEN, REPEAT, REPEAT]]


def test_a_long_run_between_both_thresholds_is_composed_in_few_rounds() -> None:
    n = 100_000
    when, stays = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
    heads = np.zeros(n, dtype=bool)
    heads[0] = when[0] = True
    status = compose(
        status_functions(when, np.column_stack([stays, stays])), heads, np.array([CANCEL], np.uint8)
    )
    assert status[0] == OPEN and (status[1:] == REPEAT).all()
