"""Windows of rows of a join: what a step pushes out itself, and what many messages at once leave behind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.counting import CountingKV
from windrow.core.time import END_OF_TIME_US

S = 1_000_000


def join(how: str, per: str, n: int = 2, scale: str = "small") -> wr.Join:
    left, right = (
        wr.Input(name, event_time="t", max_ahead=wr.forever, window=wr.rows(n, per=per)) for name in "lr"
    )
    return wr.Join(left=left, right=right, on="k", how=how, retention="1 hour", scale=scale)


class Job:
    def __init__(self, definition: wr.Join) -> None:
        self.logic: Any = definition.logic()
        self.kv, self.sent = CountingKV(self.logic.cfs()), 0

    def ingest(self, rows: list[tuple[str, int]]) -> list[tuple[Any, Any]]:
        """Messages of (input, key), at the times of their places; the pairs of places that are told, None for nobody."""
        tables = {}
        for name in "lr":
            numbered = [(self.sent + i, key) for i, (input, key) in enumerate(rows) if input == name]
            if numbered:
                places, keys = (np.array(column) for column in zip(*numbered, strict=True))
                tables[name] = pa.table(
                    {
                        "k": keys,
                        "t": places * S,
                        name: places,
                        "__source": [name] * len(numbered),
                        "__partition": np.zeros(len(numbered), dtype=np.int64),
                        "__offset": places,
                    }
                )
        self.sent += len(rows)
        return _emitted(self.logic.ingest(self.kv, tables, 0))

    def end(self) -> list[tuple[Any, Any]]:
        return _emitted(self.logic.advance(self.kv, END_OF_TIME_US, 0))


def _emitted(step: Any) -> list[tuple[Any, Any]]:
    rows = [row for pane in step.panes for row in pane.to_pylist()]
    return [(row.get("l"), row.get("r")) for row in rows]


@pytest.mark.parametrize("how", ["inner", "full"])
def test_messages_that_their_own_step_pushes_out_are_not_filed(how: str) -> None:
    job = Job(join(how, "key"))
    pairs = job.ingest([("l", 1)] * 2_000)
    assert pairs == ([] if how == "inner" else [(place, None) for place in range(1_998)])
    assert len(list(job.kv.scan("join.left.messages"))) == 2
    assert job.kv.written < 4_000
    job.kv.written = 0
    assert sorted(job.ingest([("r", 1)])) == [(1_998, 2_000), (1_999, 2_000)]
    assert job.kv.written < 2_000
    assert job.end() == []


@pytest.mark.parametrize("per", ["key", "input"])
@pytest.mark.parametrize("scale", ["small", "large"])
def test_messages_of_one_input_at_once_are_as_those_that_come_one_by_one(per: str, scale: str) -> None:
    """Yield runs of one input, which no other input interrupts."""
    for seed in range(3):
        draw = random.Random(seed)
        definition = join(
            draw.choice(["inner", "left", "full", "semi", "anti"]), per, draw.choice([1, 2, 5]), scale
        )
        at_once, single = Job(definition), Job(definition)
        for _ in range(20):
            side = draw.choice("lr")
            rows = [(side, draw.randrange(4)) for _ in range(draw.randrange(1, 9))]
            # A message that is pushed out before any other input comes meets the same, or nobody.
            pairs = sorted(at_once.ingest(rows), key=repr)
            assert pairs == sorted((row for one in rows for row in single.ingest([one])), key=repr), seed
            for cf in ("join.left.messages", "join.right.messages", "join.left.message_index"):
                if cf in at_once.logic.cfs():
                    ours, theirs = ([key for key, _ in job.kv.scan(cf)] for job in (at_once, single))
                    assert ours == theirs, (seed, cf)
        assert sorted(at_once.end(), key=repr) == sorted(single.end(), key=repr), seed
        for job in (at_once, single):
            assert not list(job.kv.scan("join.left.messages"))
