"""Long frames of time, which are made of slices: the same values as of messages, and less to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.operators.over import frame_buckets
from windrow.operators.over.bucketed_frames import Sliced
from windrow.operators.over.frame_buckets import Slices
from windrow.stores.event_log import Events
from windrow.testing.ledger import values_equal

S = 1_000_000
#: Tables of five seconds.
TABLES, ROWS = 22, 120


def readings(keys: int, kind: pa.DataType | None = None, *, skewed: bool = False) -> list[pa.Table]:
    """Out of order by up to two seconds. skewed: one key has most of them."""
    chance = np.random.default_rng(3)
    tables = []
    for n in range(TABLES):
        times = (n * 5 * S) + chance.integers(0, 5 * S, ROWS) - chance.integers(0, 2 * S, ROWS)
        x = chance.normal(1_000.0, 5.0, ROWS)
        words = pa.array([f"{word:x}" for word in chance.integers(0, 10**6, ROWS)])
        k = chance.integers(0, keys, ROWS)
        tables.append(
            pa.table(
                {
                    "t": pa.array(np.maximum(times, 0)).cast(pa.timestamp("us", "UTC")),
                    "k": np.where(chance.random(ROWS) < 0.9, 0, k) if skewed else k,
                    "i": pa.array(chance.integers(-(10**6), 10**6, ROWS), kind if n > 15 else None),
                    "x": pa.array(x, mask=chance.random(ROWS) < 0.1),
                    "w": words.take(pa.array(np.arange(ROWS), mask=chance.random(ROWS) < 0.1)),
                }
            )
        )
    return tables


AGG: dict[str, Any] = {
    "n": wr.count(),
    "sum": wr.sum("i"),
    "f": wr.sum("x"),
    "mean": wr.avg("x"),
    "least": wr.min("i"),
    "most": wr.max("x"),
    "dev": wr.stddev("x"),
    "word": wr.min("w"),
    "some": wr.sum("i").where(wr.col("x") > 1_000),
}


def played(
    path: Path,
    tables: list[pa.Table],
    *,
    by: Any = "k",
    agg: dict[str, Any] = AGG,
    lives: int = 1,
    **options: Any,
) -> list[Any]:
    over, size = definition(by=by, agg=agg, **options), -(-len(tables) // lives)
    for low in range(0, len(tables), size):
        with over.open(str(path), schema=tables[0].schema) as op:
            for table in tables[low : low + size]:
                op.add_messages(table)
            if low + size >= len(tables):
                op.drain()
            rows = in_order(op.result_table())
    return rows


def definition(*, by: Any = "k", agg: dict[str, Any] = AGG, **options: Any) -> wr.Over:
    frame = options.pop("frame", ("-60 s", 0))
    lateness = {"watermark": "2 seconds", "max_ahead": wr.forever}
    return wr.Over(by=by, event_time="t", agg=agg, frame=frame, **lateness, **options)


def in_order(rows: pa.Table) -> list[Any]:
    ordered = rows.drop_columns(["pane", "commit"]).to_pylist()
    return sorted(ordered, key=lambda row: (row["t"], row["k"], row["i"]))


FRAMES: dict[str, dict[str, Any]] = {
    "the last minute": {},
    "without a key, wholly past": {"by": (), "frame": wr.range_between("-60 s", "-20 s", closed="left")},
    "of few messages a key": {"keys": 1_000},
    "of many keys, one of which has most messages": {"keys": 20, "skewed": True},
    "around, beside short ones, counted ones and running ones": {
        "frame": ("-50 s", 0),
        "agg": {
            **AGG,
            "short": wr.sum("i").over("2 seconds"),
            "other": wr.avg("x").over("45 seconds"),
            "three": wr.sum("i").over(wr.rows_between(-2, 0, partial="emit")),
            "so far": wr.max("i").over(),
        },
        "ttl": "1 hour",
    },
    "of a column that widens": {"kind": pa.float64(), "frame": ("-50 s", "4 s")},
}


@pytest.mark.parametrize("name", FRAMES)
def test_long_windows_are_the_same_by_slices_as_by_messages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(FRAMES[name])
    skewed = options.pop("skewed", False)
    tables = readings(options.pop("keys", 4), options.pop("kind", None), skewed=skewed)
    used = []
    monkeypatch.setattr(
        "windrow.operators.over.due_rows.Sliced", lambda *more: used.append(1) or Sliced(*more)
    )
    fast = played(tmp_path / "slices", tables, lives=2, **options)
    assert (len(used) > 4) == (name != "of few messages a key")
    monkeypatch.setattr(frame_buckets, "_LONG", 1 << 40)
    plain = played(tmp_path / "messages", tables, **options)
    assert len(plain) == TABLES * ROWS
    for a, b in zip(fast, plain, strict=True):
        assert values_equal(a, b)


def test_windows_are_whole_where_their_slices_are_given_up_as_they_are_emitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages become few: slices of them are not worth it, and in that very advance windows are made of those before."""
    tables = [table.slice(0, ROWS if n < 15 else 9) for n, table in enumerate(readings(4))]
    given_up, forget = list[int](), Slices._forget_all

    def forgotten(self: Slices, kv: Any) -> None:
        given_up.append(len(list(kv.scan(self.cf))))
        forget(self, kv)

    monkeypatch.setattr(Slices, "_forget_all", forgotten)
    fast = played(tmp_path / "slices", tables)
    assert given_up[0] > 50
    monkeypatch.setattr(frame_buckets, "_LONG", 1 << 40)
    plain = played(tmp_path / "messages", tables)
    assert len(fast) == len(plain) == 15 * ROWS + 9 * (TABLES - 15)
    assert all(values_equal(a, b) for a, b in zip(fast, plain, strict=True))


def test_an_advance_reads_the_ends_of_long_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = Events.read

    def counted(self: Events, *more: Any, **options: Any) -> pa.Table | None:
        frame_ends = whole(self, *more, **options)
        if frame_ends is not None:
            read[-1] += len(frame_ends)
        return frame_ends

    monkeypatch.setattr(Events, "read", counted)
    over = wr.Over(
        by="k", event_time="t", agg=AGG, frame=("-60 s", 0), watermark="2 seconds", max_ahead=wr.forever
    )
    tables = readings(4)
    with over.open(str(tmp_path), schema=tables[0].schema) as op:
        for table in tables:
            read.append(0)
            op.add_messages(table)
    # Some seven seconds of messages at each end, 40 a second, and fifty slices of four keys; there are 2,700 in all.
    assert max(read[16:]) < 1_000


def test_most_slices_are_read_as_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = Events.read

    def counted(self: Events, *more: Any, **options: Any) -> pa.Table | None:
        frame_ends = whole(self, *more, **options)
        if frame_ends is not None and self.cf.startswith("over.slices"):
            read[-1] += len(frame_ends)
        return frame_ends

    monkeypatch.setattr(Events, "read", counted)
    tables = readings(4)
    for low, high in ((0, 17), (17, TABLES)):
        with definition().open(str(tmp_path), schema=tables[0].schema) as op:
            for table in tables[low:high]:
                read.append(0)
                op.add_messages(table)
    # Fifty slices of four keys are there: six long ones, up to fourteen before and behind, eight for one that becomes whole.
    assert 0 < max(read[16:]) < 4 * 35
