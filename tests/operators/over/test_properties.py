"""Windows around messages beside polars, and fed in any pieces: with nothing late the rows are the same."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.frames import RangeBetween
from windrow.operators.over import bucketed_frames, frame_kernels
from windrow.operators.over.partitions import Bounds, Lines
from windrow.testing.ledger import values_equal

S = 1_000_000
ROWS = 5_000


def readings(seed: int) -> pa.Table:
    """Messages in the order of event time, some of one moment; no two of a key."""
    chance = np.random.default_rng(seed)
    times = np.sort(chance.integers(0, 60 * S, ROWS) // 1_000 * 1_000)
    keys = chance.integers(0, 40, ROWS)
    values = chance.normal(1_000.0, 5.0, ROWS)
    table = pa.table(
        {
            "t": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "k": keys,
            "i": chance.integers(-(10**12), 10**12, ROWS),
            "x": pa.array(values, mask=chance.random(ROWS) < 0.1),
        }
    )
    _, first = np.unique(times * 40 + keys, return_index=True)
    return table.take(pa.array(np.sort(first)))


def played(path: Path, definition: wr.Over, table: pa.Table, cuts: list[int]) -> dict[tuple[Any, Any], Any]:
    ends = [0, *cuts, len(table)]
    with definition.open(str(path), schema=table.schema) as op:
        for low, high in pairwise(ends):
            op.add_messages(table.slice(low, high - low))
            if low % 2:
                op.next_offsets()
        op.drain()
        rows = [dict(row.values) for row in op.get_result()]
    return {(row["k"], row["t"]): row for row in rows}


def around(frame: Any, **options: Any) -> wr.Over:
    agg = {
        "n": wr.count(),
        "i": wr.sum("i"),
        "x": wr.sum("x"),
        "mean": wr.avg("x"),
        "least": wr.min("x"),
        "most": wr.max("x"),
        "dev": wr.stddev("x"),
    }
    return wr.Over(by="k", event_time="t", frame=frame, agg=agg, select=(), max_ahead=wr.forever, **options)


AGGREGATES = [
    pl.len().cast(pl.Int64).alias("n"),
    pl.col("i").sum().alias("i"),
    pl.col("x").sum().alias("x"),
    pl.col("x").mean().alias("mean"),
    pl.col("x").min().alias("least"),
    pl.col("x").max().alias("most"),
    pl.col("x").std().alias("dev"),
]


@pytest.mark.parametrize(
    ("frame", "period", "offset", "closed"),
    [
        (wr.range_between("-2 seconds", 0), 2, -2, "both"),
        (wr.range_between("-2 seconds", "1 second"), 3, -2, "both"),
        (wr.range_between("-5 seconds", 0, closed="right"), 5, -5, "right"),
        (wr.range_between(0, "3 seconds", closed="left"), 3, 0, "left"),
    ],
    ids=["past", "around", "open past", "future"],
)
def test_windows_by_time_are_those_of_polars_in_any_cut(
    frame: Any, period: int, offset: int, closed: Any, tmp_path: Path
) -> None:
    table = readings(7)
    polars = (
        pl.from_arrow(table)
        .sort("t")
        .rolling(
            "t",
            period=timedelta(seconds=period),
            offset=timedelta(seconds=offset),
            closed=closed,
            group_by="k",
        )
        .agg(AGGREGATES)
    )
    wanted = {(row["k"], row["t"]): row for row in polars.to_dicts()}  # type: ignore[union-attr]
    for name, cuts in (("whole", []), ("cut", [1, 17, 400, 401, 2_000, 3_333])):
        emitted = played(tmp_path / name, around(frame), table, cuts)
        assert emitted.keys() == wanted.keys()
        for key, row in wanted.items():
            assert values_equal(emitted[key], row), (name, key)


def test_windows_by_count_are_those_of_polars_in_any_cut(tmp_path: Path) -> None:
    table = readings(8)
    frame = (
        pl.from_arrow(table)
        .sort("t")
        .with_columns(
            pl.col("i").rolling_sum(10).over("k").alias("ten"),
            pl.col("i").cum_sum().over("k").alias("so_far"),
            pl.col("x").rolling_max(10, min_samples=1).over("k").alias("most"),
            pl.len().over("k").alias("all"),
        )
    )
    wanted = {(r["k"], r["t"]): r for r in frame.to_dicts() if r["ten"] is not None}  # type: ignore[union-attr]
    over = wr.Over(
        by="k",
        event_time="t",
        agg={"ten": wr.sum("i").over(10), "so_far": wr.sum("i").over(), "most": wr.max("x").over(10)},
        ttl=wr.forever,
        select=(),
        max_ahead=wr.forever,
    )
    for name, cuts in (("whole", []), ("cut", [3, 30, 31, 2_500, 2_501, 4_000])):
        emitted = played(tmp_path / name, over, table, cuts)
        assert emitted.keys() == wanted.keys()
        for key, row in emitted.items():
            assert (row["ten"], row["so_far"], row["most"]) == (
                wanted[key]["ten"],
                wanted[key]["so_far"],
                wanted[key]["most"],
            )


@pytest.mark.parametrize("longest", [1, 2, 3, 8, 9, 64, 65])
def test_half_blocks_make_what_a_loop_makes(longest: int) -> None:
    chance = np.random.default_rng(longest)
    values = chance.random(300)
    low = chance.integers(0, 300, 200)
    high = np.minimum(low + chance.integers(0, longest + 1, 200), 300)
    bounds = Bounds(low, high, np.ones(200, dtype=bool))
    [sums] = frame_kernels.halves((values,), lambda a, b: (a[0] + b[0],), (0.0,), bounds)
    assert sums == pytest.approx([values[a:b].sum() for a, b in zip(low, high, strict=True)])
    [most] = frame_kernels.halves((values,), lambda a, b: (np.maximum(a[0], b[0]),), (-1.0,), bounds)
    assert most.tolist() == [max(values[a:b], default=-1.0) for a, b in zip(low, high, strict=True)]


@pytest.mark.parametrize("most", [0, 4], ids=["half blocks", "row by row"])
@pytest.mark.parametrize("longest", [1, 2, 5, 40])
def test_short_windows_are_made_row_by_row_and_are_the_same(
    longest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_kernels, "_OFTEN", most)
    chance = np.random.default_rng(longest)
    values, other = chance.integers(-5, 5, 300), np.arange(300)
    low = np.sort(chance.integers(0, 300, 200))
    sizes = np.where(chance.random(200) < 0.1, chance.integers(0, longest + 1, 200), 1)
    bounds = Bounds(low, np.minimum(low + sizes, 300), np.ones(200, dtype=bool))
    calls: list[int] = []

    def last_of_largest(a: Any, b: Any) -> Any:
        calls.append(len(a[0]))
        better = b[0] >= a[0]
        return np.where(better, b[0], a[0]), np.where(better, b[1], a[1])

    extremes = frame_kernels.halves((values, other), last_of_largest, (-9, -1), bounds)
    wanted = [
        max(((int(values[i]), i) for i in range(a, b)), default=(-9, -1))
        for a, b in zip(bounds.low, bounds.high, strict=True)
    ]
    assert list(zip(*(column.tolist() for column in extremes), strict=True)) == wanted
    assert not most or sum(calls) <= sum(sizes)


@pytest.mark.parametrize("room", [0, 100], ids=["half blocks", "lines beside each other"])
@pytest.mark.parametrize("left", [0, 60], ids=["none before", "some before"])
def test_windows_of_slices_hold_what_a_loop_finds(
    room: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketed_frames, "_ROOM", room)
    chance = np.random.default_rng(left)
    size, reach, cut = 7, 100, 200
    before = chance.integers(0, size - 1, left), chance.integers(cut - 2 * reach, cut - reach, left)
    behind = chance.integers(0, size, 80), chance.integers(cut, cut + reach, 80)
    own, slices = np.arange(1_000, 1_000 + left), np.arange(10, 10 + size - 2)
    lines = Lines(None, behind[0], size, behind[1], None)
    rows = np.arange(80)[lines.order]
    lefts = Lines(None, before[0], size, before[1], None) if left else None
    middle = bucketed_frames.Middle(
        lefts,
        {"v": pa.array(own[lefts.order])} if lefts else {},
        {"v": pa.array(slices)},
        np.arange(1, size - 1),
    )
    places = np.arange(0, 80, 3)
    frame = RangeBetween(-2 * reach, -5)
    windows = bucketed_frames.Sliced(middle, lines, {"v": pa.array(rows)}, cut, frame, places)
    wanted = []
    for place in places:
        key, time = lines.codes[place], lines.times[place]
        held = [int(v) for v, k, t in zip(own, *before, strict=True) if k == key and t >= time - 2 * reach]
        held += [int(slices[key - 1])] if 0 < key < size - 1 else []
        wanted.append(
            held + [int(v) for v, k, t in zip(range(80), *behind, strict=True) if k == key and t <= time - 5]
        )
    values = [piece["v"].to_numpy() for piece in windows.pieces]
    assert windows.sizes.tolist() == list(map(len, wanted))
    assert windows.sums(values) == pytest.approx([sum(held) for held in wanted])
    columns = [(v,) for v in values]
    [least] = windows.merged(columns, frame_kernels.Ufunc(np.minimum), (9_999,))
    assert least.tolist() == [min(held, default=9_999) for held in wanted]
    for merge in (frame_kernels.Ufunc(np.maximum), lambda a, b: (np.maximum(a[0], b[0]),)):
        [most] = windows.merged(columns, merge, (-1,))
        assert most.tolist() == [max(held, default=-1) for held in wanted]


def test_windows_that_are_laid_out_in_pieces_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_kernels, "LAID_OUT", 10)
    low, high = np.array([0, 2, 5, 5, 0]), np.array([4, 9, 5, 6, 30])
    bounds = Bounds(low, high, np.ones(5, dtype=bool))
    gathered: dict[int, list[int]] = {i: [] for i in range(5)}
    for first, last, rows, of in frame_kernels.laid_out(bounds):
        assert last > first
        for row, window in zip(rows.tolist(), of.tolist(), strict=True):
            gathered[first + window].append(row)
    assert [gathered[i] for i in range(5)] == [list(range(a, b)) for a, b in zip(low, high, strict=True)]


def test_sums_of_the_same_numbers_are_made_once_and_those_of_others_are_their_own() -> None:
    low = np.array([0, 5, 90])
    windows = frame_kernels.Ranges(Bounds(low, low + 10, np.ones(3, dtype=bool)))
    once, ones = frame_kernels.Once(windows), np.ones(100, dtype=np.int64)
    totals = [once.sums([values]) for values in (ones, np.r_[ones[1:], 7], ones.copy())]
    assert [sums.tolist() for sums in totals] == [[10, 10, 10], [10, 10, 16], [10, 10, 10]]
    assert totals[0] is totals[2]
