"""Any aggregate over sessions says in each step what its oracle says: the two pure steps, without a job around them.

What a job adds (files, crashes, lost messages) is the contract suite's. Each definition has ten sets of keys, the messages of
which are as those of jobs of their own: what a step costs hardly depends on them. So 1,100 jobs are played, of 110 definitions;
WINDROW_DEEP=1 plays 200,000.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.deep import usually
from windrow.core.messages import DeadLetter, Message, Position
from windrow.core.time import END_OF_TIME_US, to_datetime
from windrow.operators.oracle.watermark import InputsOracle
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE
from windrow.operators.steps.dead_letters import to_letters
from windrow.runners import tasks
from windrow.stores import delta_blocks, page_writer
from windrow.stores.kv import MemoryKV, Overlay
from windrow.testing.expected_output import Letter, difference, letters_differ
from windrow.testing.generators import BASE_US, SCHEMA, WRONG, Draw
from windrow.testing.scenario import ONLY

JOBS, BLOCKS, SETS = usually(64, deep=20_000), 2, 10
LATE = usually(8, deep=5_000)
POSITIONS = {SOURCE: pa.string(), PARTITION: pa.int64(), OFFSET: pa.int64(), ORDINAL: pa.int64()}
COLUMNS = pa.schema([*SCHEMA, *POSITIONS.items()])


class Sessions(Draw):
    """Choices of one seed, with more kinds of sessions than operators in a job have."""

    def _session(self, in_time: bool) -> tuple[Any, bool, bool]:
        if self.chance.random() < 0.7:
            return super()._session(in_time)
        own, cut = (wr.col("g") * self.pick(1, 4)) * self.unit_us, wr.tumbling(self.units(9))
        longest = self.units(self.pick(2, 3, 7))
        options: Any = {"max_length": longest}, {"cut": cut}, {"cut": cut, "max_length": longest}
        return wr.session(own, **self.pick(*options)), False, True


def table_of(messages: list[Message]) -> pa.Table:
    """Messages as they travel."""
    rows = [{**m.payload, **dict(zip(POSITIONS, m.position or (), strict=True))} for m in messages]
    return pa.Table.from_pylist(rows, COLUMNS)


def taken(chance: Random, draw: Draw) -> list[Message]:
    """Messages of two partitions; what is wrong in one is its time."""
    messages: list[Message] = []
    n = chance.choice([4, 6, 8, 12, 16])
    for row in zip(*(draw.messages([ONLY], n) for _ in range(SETS)), strict=True):
        for number, (_, payload) in enumerate(row):
            key = None if payload["k"] is None else f"{payload['k']}{number}"
            wrong = WRONG[0] if chance.random() < 0.04 else {}
            position = Position(ONLY, chance.randrange(2), len(messages))
            messages.append(Message({**payload, "k": key, **wrong}, position))
    return messages


def placed(dead: list[DeadLetter]) -> list[Letter]:
    return [(letter.reason, letter.position) for letter in dead]


def play(seed: int) -> list[str]:
    """Plays a job; gives what it told."""
    chance = Random(seed)
    draw = Sessions(chance)
    definition: Any = draw.aggregate("panes", window="session")
    return played(seed, chance, definition, taken(chance, draw), 4 * draw.unit_us)


def play_late(seed: int) -> list[str]:
    """Plays a job of which about every other message comes late, over the times of sessions that are closed."""
    chance = Random(seed)
    lateness = chance.choice([0, 0, 1, 3])
    gap = chance.choice(["2 seconds", "2 seconds", (wr.col("g") + 1) * 2_000_000])
    options: Any = chance.choice(
        [{}, {}, {"cut": wr.tumbling("9 seconds")}, {"max_length": "5 seconds"}, {"max_length": "3 seconds"}]
    )
    kept, sizes = chance.choice([lateness, lateness + 2, 30]), chance.choice([{}, {}, {"windows": 2}])
    agg = {"n": wr.count(), "all": wr.collect_list("v"), "mid": wr.median("v")}
    aliases = (
        ("n", "all", "mid") if options.get("max_length") else chance.choice([("n",), ("n", "all", "mid")])
    )
    modes = ["accumulating", "retracting", *([] if options.get("max_length") else ["discarding"])]
    triggers = [wr.every_batch, wr.every(2), wr.never, wr.every("3 seconds")]
    emit = chance.choice([wr.Emit.append(), None, None, None])
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.session(gap, **options),
        agg={alias: agg[alias] for alias in aliases},
        allowed_lateness=None if emit is not None else f"{lateness} seconds",
        retention=wr.Retain(f"{kept} seconds", **({} if options.get("max_length") else sizes)),
        watermark=wr.bounded("1 second"),
        emit=emit
        or wr.Emit(
            early=chance.choice(triggers),
            late=chance.choice(triggers[:2]),
            mode=chance.choice(modes),
            closing_pane=chance.random() < 0.3,
        ),
        name="panes",
    )
    messages, us = list[Message](), BASE_US
    for number in range(chance.choice([20, 40])):
        us += chance.choice([0, 500_000, 1_000_000, 3_000_000])
        for _ in range(4):
            time_us = us - chance.choice([0, 0, 500_000, *range(1_000_000, 9_000_000, 1_000_000)])
            payload = {"k": chance.choice("abcde"), "t": to_datetime(time_us), "g": chance.randrange(3)}
            position = Position(ONLY, chance.randrange(2), len(messages))
            messages.append(Message({**payload, "i": 0, "v": number}, position))
    return played(seed, chance, definition, messages, 2_000_000, 4)


def played(
    seed: int, chance: Random, definition: Any, left: list[Message], pause_us: int, one: int = SETS
) -> list[str]:
    """Return the rows of a job that ingests these messages in steps. one: how many are about one step"""
    logic, oracle, marks = definition.logic(), definition.oracle(), InputsOracle(definition)
    kv, now_us, emitted = MemoryKV(logic.cfs()), BASE_US, list[str]()
    while True:
        size = one * chance.randint(1, 8) * chance.choice([0, 1, 1, 1])  # nothing may come while time passes
        batch = sorted(left[:size], key=lambda m: m.position or ())
        ends = None if left else END_OF_TIME_US
        del left[:size]
        now_us += chance.randrange(pause_us)
        watermark_us = marks.advance(now_us, ends)
        wanted = oracle.advance(watermark_us, now_us)
        if batch:
            more = oracle.ingest(batch, now_us, watermark_us)
            marks.observe(oracle.counted, now_us)
            wanted = type(wanted)(wanted.rows + more.rows, wanted.dead + more.dead)
        over = Overlay(kv)
        step = tasks.both_steps(logic, over, table_of(batch), watermark_us, now_us)
        kv.write(over.batch)
        rows = list(definition.values(logic.rows(step.panes, 0), "")) if step.panes else []
        letters = [] if step.dead is None else to_letters(step.dead, 0)
        how = difference(rows, wanted.rows) or letters_differ(placed(letters), placed(wanted.dead))
        assert how is None, f"job {seed}: {definition!r}, step of {batch}: {how}"
        emitted += map(str, rows)
        if ends is not None:
            return emitted


@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_aggregate_over_sessions_says_what_its_oracle_says(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:  # as where pages are many, and rows
        monkeypatch.setattr(page_writer, "NARROW_PAGES", 0)
        monkeypatch.setattr(delta_blocks, "NARROW_FROM", 1)
    said = sum(len(play(seed)) > 3 for seed in range(block, JOBS, BLOCKS))
    assert said > JOBS / BLOCKS / 2


def test_sessions_that_overlap_closed_ones_say_what_the_oracle_says() -> None:
    assert sum(len(play_late(seed)) > 3 for seed in range(LATE)) > LATE / 2
