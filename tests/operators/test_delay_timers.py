"""Timers of windows in which something waits by a delay, against a dict of the first moments."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

import windrow as wr
from tests.operators.test_join_unmatched_rows import Watched
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.triggers import Due
from windrow.operators.steps.columns import SINCE, START


def rows(chance: Random, now: int, starts: list[int]) -> pa.Table:
    chosen = [chance.choice(starts) for _ in range(chance.randint(0, 4))] if starts else []
    since = [chance.randint(now - 12, now) for _ in chosen]
    return pa.table({START: pa.array(chosen, pa.int64()), SINCE: pa.array(since, pa.int64())})


def test_each_window_has_one_timer_at_the_first_moment_at_which_some_of_it_is_due() -> None:
    us = wr.delay("5 us").delay_us, wr.delay("11 us").delay_us
    emit = wr.Emit(early=wr.delay("5 us"), late=wr.delay("11 us"))
    for seed in range(60):
        chance, due, kv = Random(seed), Due(emit, "aux"), Watched(("aux",))
        model, now = dict[int, int](), 0
        for _ in range(30):
            now += chance.randint(0, 4)
            match chance.randint(0, 4):
                case 0 | 1:
                    starts = [chance.randint(-3, 3) * 10 for _ in range(chance.randint(1, 5))]
                    nows = [now - chance.randint(0, 2) for _ in starts]
                    table = pa.table({START: pa.array(starts, pa.int64())})
                    assert due.waiting_since(kv, table, np.array(nows)).column(SINCE).to_pylist() == nows
                    for start, came in zip(starts, nows, strict=True):
                        model[start] = min(model.get(start, END_OF_TIME_US), came + min(us))
                case 2:
                    passed = due.passed(kv, now)
                    assert passed == {start for start, at in model.items() if at <= now}
                    waiting = rows(chance, now, sorted(passed | {10}))
                    due.note(kv, passed, [waiting], now)
                    model = {start: at for start, at in model.items() if start not in passed}
                    for row in waiting.to_pylist() if passed else ():
                        later = [row[SINCE] + d for d in us if row[SINCE] + d > now]
                        at, start = min(later, default=now), row[START]
                        model[start] = min(model.get(start, at), at)
                case 3:
                    ended = chance.sample(range(-30, 31, 10), 2)
                    due.end(kv, ended)
                    model |= {start: START_OF_TIME_US for start in ended if start in model}
                case 4 if chance.random() < 0.2:
                    due.begin(kv, {0, 10})
                    model = {0: START_OF_TIME_US, 10: START_OF_TIME_US}
            assert due.first(kv) == min(model.values(), default=END_OF_TIME_US)
        assert due.passed(kv, END_OF_TIME_US) == set(model)


def test_a_moment_at_which_nothing_is_due_reads_nothing_of_a_thousand_windows() -> None:
    due, kv = Due(wr.Emit(early=wr.delay("5 us")), "aux"), Watched(("aux",))
    starts: Any = np.arange(1_000) * 10
    due.waiting_since(kv, pa.table({START: pa.array(starts)}), starts)
    kv.looked = 0
    assert due.passed(kv, 4) == set()
    assert kv.looked == 0
    assert due.passed(kv, 15) == {0, 10}
    assert kv.looked == 2
