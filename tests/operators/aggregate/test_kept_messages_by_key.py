"""Messages behind a full-state aggregate over windows of time lie in columns by their keys."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from tests.counting import CountingKV
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.aggregate.kept_messages import History
from windrow.operators.aggregate.kept_messages_by_key import WIDE, KeyedHistory
from windrow.stores.kv import KV, Batch, MemoryKV

S, GLOBAL = 1_000_000, wr.global_window()


def medians(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": ["k"],
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"m": wr.median("v")},
        "watermark": wr.explicit(),
        "retention": "30 seconds",
        "max_ahead": wr.forever,
        "emit": wr.Emit(early=wr.every_batch),
    }
    return wr.Aggregate(**{"name": "agg", **settings, **changes})


class Job:
    """One shard, in memory."""

    def __init__(self, definition: wr.Aggregate, kv: KV | None = None) -> None:
        self.logic: Any = definition.logic()
        self.kv = MemoryKV(self.logic.cfs()) if kv is None else kv
        self.sent = 0

    def as_rows(self) -> Job:
        """With messages as values of their own."""
        self.logic.history = History(self.logic.definition)
        return self

    def ingest(self, rows: Sequence[tuple[Any, int, Any]]) -> list[dict[str, Any]]:
        """Messages of (key, time, value); what is told of them."""
        keys, times, values = zip(*rows, strict=True)
        n = len(rows)
        table = pa.table(
            {
                "k": pa.array(keys),
                "t": pa.array(times, pa.int64()),
                "v": pa.array(values),
                "__source": ["s"] * n,
                "__partition": np.zeros(n, dtype=np.int64),
                "__offset": np.arange(self.sent, self.sent + n),
            }
        )
        self.sent += n
        return _emitted(self.logic.ingest(self.kv, {self.logic.definition.inputs[0].name: table}, 0))

    def advance(self, watermark_us: int) -> list[dict[str, Any]]:
        return _emitted(self.logic.advance(self.kv, watermark_us, 0))

    def set_back(self, watermark_us: int) -> None:
        progress, batch = self.logic.progress(self.kv), Batch()
        self.logic.set_back(self.kv, progress, watermark_us)
        progress.save(lambda key, value: batch.put(self.logic.aux_cf, key, value))
        self.kv.write(batch)

    def kept(self, start: Any = (START_OF_TIME_US, None), end: Any = (END_OF_TIME_US - 1, None)) -> list[int]:
        """The offsets of messages that are kept, in order."""
        selected = self.logic.view([self.kv], END_OF_TIME_US).between(self.kv, start, end)
        return [] if selected is None else selected.table.column("__offset").to_pylist()


def _emitted(step: Any) -> list[dict[str, Any]]:
    rows = []
    for pane in step.panes:
        for row in pane.to_pylist():
            rows.append({name: row[name] for name in ("__start", "k", "m", "__timing") if name in row})
    return sorted(rows, key=repr)


def test_early_results_of_a_few_keys_read_what_is_kept_of_these() -> None:
    definition = medians(window=wr.tumbling("1 day"), retention="1 day")
    kv = CountingKV(definition.logic().cfs())
    job, rows = Job(definition, kv), [(n % 5_000, n, n) for n in range(100_000)]
    job.ingest(rows)
    job.ingest([(7, S, 0)])  # what the process holds of the index is read once
    kv.clear()
    [pane] = job.ingest([(11, S, 0)])
    assert pane["m"] == statistics.median([0, *(v for k, _, v in rows if k == 11)])
    assert kv.read["agg.messages"] < 200_000  # of about 8 MB


def test_windows_emit_as_they_do_where_each_message_is_a_value_of_its_own() -> None:
    """Random messages, late ones among them, of jobs of both kinds."""
    for seed in range(6):
        draw = random.Random(seed)
        window = draw.choice([wr.tumbling("10 seconds"), wr.hopping("10 seconds", "4 seconds"), GLOBAL])
        emit = wr.Emit(early=wr.every_batch, mode=draw.choice(["accumulating", "discarding"]))
        definition = medians(
            window=window,
            emit=emit,
            allowed_lateness="5 seconds",
            retention=wr.forever if window is GLOBAL else "12 seconds",
        )
        jobs = [Job(definition).as_rows(), Job(definition)]
        at = 0
        for _ in range(14):
            at += draw.randrange(5 * S)
            rows = [
                (draw.choice(["a", "b", None]), max(at - draw.randrange(12 * S), 0), draw.randrange(9))
                for _ in range(draw.randrange(1, 9))
            ]
            emitted = [job.ingest(rows) for job in jobs]
            told_on = [job.advance(at) for job in jobs]
            assert emitted[0] == emitted[1] and told_on[0] == told_on[1], seed
            low, high = sorted(draw.randrange(at + 1) for _ in range(2))
            for asked in ((), ((low, 3), (high, ("s", 0, 20)))):
                kept = [job.kept(*asked) for job in jobs]
                assert kept[0] == kept[1], seed
        assert isinstance(jobs[1].logic.history, KeyedHistory)
        for job in jobs:
            job.advance(END_OF_TIME_US)
            assert window is GLOBAL or not list(job.kv.scan("agg.messages"))


@pytest.mark.parametrize("per", ["key", "job"])
def test_what_is_evicted_by_number_is_gone_whatever_comes_later(per: str) -> None:
    for seed in range(3):
        draw = random.Random(seed)
        hopping, retention = wr.hopping("10 seconds", "2 seconds"), wr.Retain("1 hour", windows=3, per=per)
        definition = medians(window=hopping, retention=retention, allowed_lateness="1 hour")
        jobs, at = [Job(definition).as_rows(), Job(definition)], 100 * S
        for _ in range(12):
            at += draw.randrange(15 * S)
            rows = [(draw.choice("ab"), at - draw.randrange(40 * S), draw.randrange(9)) for _ in range(3)]
            emitted = [job.ingest(rows) + job.advance(at) for job in jobs]
            assert emitted[0] == emitted[1] and jobs[0].kept() == jobs[1].kept(), seed


def test_what_was_forgotten_stays_so_when_the_watermark_is_set_back() -> None:
    definition = medians(window=wr.hopping("10 seconds", "2 seconds"), retention="1 second")
    jobs = [Job(definition).as_rows(), Job(definition)]
    emitted = []
    for job in jobs:
        job.ingest([("a", n * S, n) for n in range(20)])
        job.advance(16 * S)
        job.set_back(8 * S)
        emitted.append([job.kept(), job.ingest([("a", 5 * S, 100)]), job.advance(40 * S)])
    assert emitted[0] == emitted[1]


def test_keys_and_columns_that_widen_are_found_again() -> None:
    emitted = []
    for job in (Job(medians()).as_rows(), Job(medians())):
        job.ingest([(1, S, 1), (2, S, 5)])
        emitted.append(
            [job.ingest([(1.0, S, 2.5), (2.5, S, 1.0)]), job.ingest([(1, 2 * S, 7)]), job.advance(10 * S)]
        )
    assert emitted[0] == emitted[1]
    assert [row["m"] for row in emitted[1][2]] == [2.5, 5.0, 1.0]


@pytest.mark.parametrize(
    ("narrow", "wide", "there"),
    [
        (pa.int64(), pa.decimal128(24, 5), range(50)),
        (pa.decimal128(10, 1), pa.decimal128(30, 12), [Decimal(n) / 10 for n in range(50)]),
        (pa.decimal128(10, 1), pa.float64(), [Decimal(n) / 2 for n in range(50)]),
        (pa.binary(2), pa.binary(), [b"%02d" % n for n in range(50)]),
    ],
    ids=["integers", "decimals", "floats", "bytes"],
)
def test_a_key_is_found_again_whatever_its_column_widens_to(narrow: Any, wide: Any, there: Any) -> None:
    emitted = []
    for job in (Job(medians()).as_rows(), Job(medians())):
        for kind, value in ((narrow, 1), (wide, 9)):
            keys = pa.array(there, narrow).cast(kind)
            rows = pa.table({"k": keys, "t": np.full(len(keys), S), "v": np.full(len(keys), value)})
            emitted.append(_emitted(job.logic.ingest(job.kv, {"agg": rows}, 0)))
    assert emitted[1] == emitted[3] and [row["m"] for row in emitted[3]] == [5.0] * 50


def test_a_year_in_one_step_shares_stretches_until_it_is_evicted() -> None:
    day, job = 86_400 * S, Job(medians())
    job.ingest([("a", n * day, n) for n in range(2_000)])
    assert job.kv.get("agg.aux", WIDE) is not None
    assert len(list(job.kv.scan("agg.messages"))) < 300
    assert len(job.advance(1_000 * day)) == 1_000
    assert job.kept() == list(range(1_000, 2_000))
    job.advance(END_OF_TIME_US)
    assert not list(job.kv.scan("agg.messages"))


def test_without_keys_and_with_texts_from_a_dictionary() -> None:
    definition = medians(by=[], agg={"m": wr.median("v"), "last": wr.collect_list("k")})
    job = Job(definition)
    table = pa.table({"k": pa.array(["x", "y"]).dictionary_encode(), "t": [1, 2], "v": [1, 4]})
    [name] = [i.name for i in definition.inputs]
    for _ in range(2):
        step = job.logic.ingest(job.kv, {name: table}, 0)
    [pane] = step.panes
    assert pane.column("m").to_pylist() == [2.5] and pane.column("last").to_pylist() == [["x", "y", "x", "y"]]
