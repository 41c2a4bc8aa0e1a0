"""Seed 002, sentence by sentence: windows around messages, by index and by time, and their statistics."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.errors import BadAggregate, BadWindow, ConfigurationError, RetentionMissing, UnknownOption
from windrow.core.time import to_datetime
from windrow.stores.kv import MemoryKV
from windrow.testing import TestDriver

S = 1_000_000
MS = 1_000


def played(
    folder: Path, definition: wr.Over, messages: list[dict[str, Any]], *, drain: bool = True
) -> list[dict[str, Any]]:
    """Return the rows for messages that come one by one, after a comparison with the oracle."""
    with TestDriver(definition, folder / "job") as driver:
        for n, message in enumerate(messages):
            driver.add(wr.Message(message, wr.Position("s", 0, n)))
        if drain:
            driver.drain()
        driver.check(dead_letters=True)
        return [dict(row.values) for row in driver.committed_panes()]


def windows(tmp_path: Path, frame: Any, times: list[int], *, drain: bool = True) -> dict[int, list[int]]:
    """The messages in the window around each: both are called by their number."""
    is_counted = not hasattr(wr.count().over(frame).frame, "low_us")
    over = wr.Over(
        event_time="t",
        frame=frame,
        agg={"seen": wr.collect_list("n", order="event_time")},
        ttl=wr.forever if is_counted else None,
        max_ahead=wr.forever,
    )
    messages = [{"t": t, "n": n} for n, t in enumerate(times)]
    rows = played(tmp_path, over, messages, drain=drain)
    assert all(row["t"] == to_datetime(times[row["n"]]) for row in rows)  # wherever its window lies
    return {row["n"]: row["seen"] for row in rows}


def values(
    tmp_path: Path, aggregation: Any, xs: list[Any], *, every_us: int = MS, **options: Any
) -> list[Any]:
    """Compute an aggregation of messages that come in equal steps."""
    is_counted = not hasattr(aggregation.frame, "low_us")
    over = wr.Over(
        event_time="t",
        agg={"v": aggregation},
        ttl=wr.forever if is_counted else None,
        max_ahead=wr.forever,
        **options,
    )
    emitted = played(tmp_path, over, [{"t": i * every_us, "x": x} for i, x in enumerate(xs)])
    return [row["v"] for row in emitted]


FIVE = list(range(5))
INDEX = {
    "the last three": (
        wr.rows_between(-2, 0),
        {2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4]},
    ),
    "the same by its ends": ((-2, 0), {2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}),
    "turned round": (wr.rows_between(0, -2), {2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}),
    "without itself": (wr.rows_between(-2, 0, closed="left"), {2: [0, 1], 3: [1, 2], 4: [2, 3]}),
    "without the first": (
        wr.rows_between(-2, 0, closed="right"),
        {1: [0, 1], 2: [1, 2], 3: [2, 3], 4: [3, 4]},
    ),
    "neither end": (wr.rows_between(-2, 0, closed="neither"), {1: [0], 2: [1], 3: [2], 4: [3]}),
    "the next three": (wr.rows_between(0, 2), {0: [0, 1, 2], 1: [1, 2, 3], 2: [2, 3, 4]}),
    "around": (wr.rows_between(-1, 2), {1: [0, 1, 2, 3], 2: [1, 2, 3, 4]}),
    "wholly past": (wr.rows_between(-3, -1), {3: [0, 1, 2], 4: [1, 2, 3]}),
    "wholly future": (wr.rows_between(1, 3, closed="right"), {0: [2, 3], 1: [3, 4]}),
    "itself": (wr.rows_between(0, 0), {n: [n] for n in FIVE}),
    "cut off": (
        wr.rows_between(-1, 1, partial="emit"),
        {0: [0, 1], 1: [0, 1, 2], 2: [1, 2, 3], 3: [2, 3, 4], 4: [3, 4]},
    ),
    "null where cut off": (
        wr.rows_between(-1, 1, partial="null"),
        {0: None, 1: [0, 1, 2], 2: [1, 2, 3], 3: [2, 3, 4], 4: None},
    ),
}


@pytest.mark.parametrize("name", INDEX)
def test_a_window_by_index_is_emitted_when_it_is_whole(name: str, tmp_path: Path) -> None:
    frame, wanted = INDEX[name]
    assert windows(tmp_path, frame, [i * MS for i in FIVE]) == wanted


TIME = {
    "the last two": (
        ("-2 ms", 0),
        {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4]},
    ),
    "without the oldest moment": (
        wr.range_between("-2 ms", 0, closed="right"),
        {0: [0], 1: [0, 1], 2: [1, 2], 3: [2, 3], 4: [3, 4]},
    ),
    "without its own moment": (
        wr.range_between("-2 ms", 0, closed="left"),
        {0: [], 1: [0], 2: [0, 1], 3: [1, 2], 4: [2, 3]},
    ),
    "two back and one ahead": (
        ("-2 ms", "1 ms"),
        {0: [0, 1], 1: [0, 1, 2], 2: [0, 1, 2, 3], 3: [1, 2, 3, 4], 4: [2, 3, 4]},
    ),
    "to the future": ((0, "1 ms"), {0: [0, 1], 1: [1, 2], 2: [2, 3], 3: [3, 4], 4: [4]}),
    "wholly past": (("-2 ms", "-1 ms"), {0: [], 1: [0], 2: [0, 1], 3: [1, 2], 4: [2, 3]}),
    "wholly future": (("2 ms", "3 ms"), {0: [2, 3], 1: [3, 4], 2: [4], 3: [], 4: []}),
    "its own moment": ((0, 0), {n: [n] for n in FIVE}),
}


@pytest.mark.parametrize("name", TIME)
def test_a_window_by_time_is_emitted_for_every_message(name: str, tmp_path: Path) -> None:
    frame, wanted = TIME[name]
    assert windows(tmp_path, frame, [i * MS for i in FIVE]) == wanted


def test_messages_of_one_moment_are_in_each_others_windows_by_time_and_in_order_by_index(
    tmp_path: Path,
) -> None:
    times = [5 * S, 5 * S, 9 * S]
    assert windows(tmp_path / "a", ("-2 s", 0), times) == {0: [0, 1], 1: [0, 1], 2: [2]}
    assert windows(tmp_path / "c", (0, "2 s"), times) == {0: [0, 1], 1: [0, 1], 2: [2]}
    assert windows(tmp_path / "b", (-1, 0), times) == {1: [0, 1], 2: [1, 2]}


def test_windows_wait_until_the_watermark_is_past_their_end(tmp_path: Path) -> None:
    def some(name: str, frame: Any, times: list[int]) -> list[int]:
        return sorted(windows(tmp_path / name, frame, [t * S for t in times], drain=False))

    assert some("a", (0, "5 s"), [0, 1, 5]) == []
    assert some("b", (0, "5 s"), [0, 1, 6]) == [0]
    assert some("c", (0, "5 s"), [0, 1, 100]) == [0, 1]
    assert some("d", wr.range_between(0, "5 s", closed="left"), [0, 1, 5]) == [0]
    assert some("e", (0, 2), [0, 1, 2]) == []
    assert some("f", (0, 2), [0, 1, 2, 3]) == [0]


STATISTICS = {
    "average of four": (wr.avg("x").over(4), [1.5, 2.5, 3.5, 4.5]),
    "average of a time": (wr.avg("x").over("4 ms"), [0, 0.5, 1, 1.5, 2, 3, 4]),
    "running average": (wr.avg("x").over(), [0, 0.5, 1, 1.5, 2, 2.5, 3]),
    "running count": (wr.count().over(), [1, 2, 3, 4, 5, 6, 7]),
    "running sum": (wr.sum("x").over(), [0, 1, 3, 6, 10, 15, 21]),
    "running least": (wr.min("x").over(), [0] * 7),
    "running most": (wr.max("x").over(), [0, 1, 2, 3, 4, 5, 6]),
    "sum of three": (wr.sum("x").over(3), [3, 6, 9, 12, 15]),
    "deviation": (wr.stddev("x").over(2), [math.sqrt(0.5)] * 6),
    "deviation of all there is": (wr.stddev("x", ddof=0).over(2), [0.5] * 6),
    "middle": (wr.median("x").over(3), [1.0, 2.0, 3.0, 4.0, 5.0]),
    "first of three": (wr.first("x").over(3), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_over_the_last_messages_and_over_all_so_far(name: str, tmp_path: Path) -> None:
    aggregation, wanted = STATISTICS[name]
    assert values(tmp_path, aggregation, list(range(7))) == pytest.approx(wanted)


def test_what_has_no_first_time_counts_all_of_the_same_time_as_sql_does(tmp_path: Path) -> None:
    """`SUM(x) OVER (ORDER BY t)`: its default frame is RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW."""
    agg = {"all": wr.sum("x").over(wr.range_between(wr.unbounded, 0)), "so_far": wr.sum("x").over()}
    over = wr.Over(event_time="t", agg=agg, allowed_lateness="1 minute", emit=wr.Emit(late=wr.every_batch))
    assert over.frames["all"] == wr.sum("x").over((wr.unbounded, "0 seconds")).frame != over.frames["so_far"]
    assert "wr.range_between(wr.forever, 0)" in repr(over) and eval(repr(over), {"wr": wr}) == over
    with over.open(str(tmp_path)) as op:
        op.add_messages([{"t": t * S, "x": x} for t, x in ((1, 1), (2, 2), (2, 4), (3, 8), (9, 0))])
        rows = [(row["t"].second, row["all"], row["so_far"]) for row in op.get_result()]
        assert rows == [(1, 1, 1), (2, 7, 3), (2, 7, 7), (3, 15, 15)]
        op.flush()
        op.add_message({"t": 2 * S, "x": 16})  # changes all of its time, and what comes later
        rows = [(row["t"].second, row["all"], row["so_far"]) for row in op.get_result()]
        assert rows == [(2, 23, 3), (2, 23, 7), (2, 23, 23), (3, 31, 31)]
        op.flush()
        op.drain()
        [row] = op.get_result()
        assert (row["all"], row["so_far"]) == (31, 31)


def test_averages_over_a_time_around(tmp_path: Path) -> None:
    def means(name: str, *ends: Any) -> list[Any]:
        return values(tmp_path / name, wr.avg("x").over(ends), list(range(7)), every_us=10 * MS)

    assert means("a", 0, "35 ms") == [1.5, 2.5, 3.5, 4.5, 5, 5.5, 6]
    assert means("b", "-15 ms", "25 ms") == [1, 1.5, 2.5, 3.5, 4.5, 5, 5.5]


def test_nulls_are_skipped_and_nan_is_larger_than_any_number(tmp_path: Path) -> None:
    xs = [None, 2.0, float("nan"), None, None, 4.0]
    pairs = [(None, 2.0), (2.0, float("nan")), (float("nan"), None), (None, None), (None, 4.0)]
    wanted = {
        "sum": [2.0, math.nan, math.nan, 0.0, 4.0],
        "avg": [2.0, math.nan, math.nan, None, 4.0],
        "min": [2.0, 2.0, math.nan, None, 4.0],
        "max": [2.0, math.nan, math.nan, None, 4.0],
        "stddev": [None, math.nan, None, None, None],
    }
    assert len(pairs) == 5
    for kind, expected in wanted.items():
        emitted = values(tmp_path / kind, getattr(wr, kind)("x").over(2), xs)
        assert repr(emitted) == repr(expected), kind


def test_what_is_not_in_a_window_has_no_part_in_its_sum(tmp_path: Path) -> None:
    xs = [1e300, 1.0, 2.0, float("inf"), 3.0, 4.0, 0.1, 0.2]
    emitted = values(tmp_path, wr.sum("x").over(2), xs)
    assert emitted == [1e300, 3.0, math.inf, math.inf, 7.0, 4.1, 0.1 + 0.2]


def test_sums_of_integers_and_decimals_are_exact(tmp_path: Path) -> None:
    big = 2**62
    assert values(tmp_path / "a", wr.sum("x").over(2), [big, big - 1, 1 - big]) == [2**63 - 1, 0]
    exact = values(tmp_path / "b", wr.sum("x").over(2), [big, big, big], integer_overflow="decimal")
    assert exact == [Decimal(2**63)] * 2
    cents = [Decimal("0.10"), Decimal("0.20"), Decimal("0.30")]
    assert values(tmp_path / "c", wr.sum("x").over(), cents) == [
        Decimal("0.10"),
        Decimal("0.30"),
        Decimal("0.60"),
    ]
    assert values(tmp_path / "d", wr.max("x").over(2), cents) == [Decimal("0.20"), Decimal("0.30")]


def test_a_sum_that_does_not_fit_is_a_dead_letter_of_its_message(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", agg={"v": wr.sum("x").over(2)}, ttl="1 hour", max_ahead=wr.forever)
    with over.open(str(tmp_path)) as op:
        for i, x in enumerate([2**62, 2**62, 1]):
            op.add_message({"t": i, "x": x})
        op.drain()
        assert [row["v"] for row in op.get_result()] == [2**62 + 1]
        [letter] = op.dead_letters()
        assert (letter.reason, letter.event_time_us) == ("integer_overflow", 1)
        assert (
            letter.detail
            == "v: the sum does not fit int64: use integer_overflow='decimal' for sums beyond int64"
        )


def test_a_pause_longer_than_the_ttl_parts_neighbours(tmp_path: Path) -> None:
    agg = {"n": wr.count().over(), "two": wr.sum("x").over(wr.rows_between(-1, 1, partial="emit"))}
    over = wr.Over(event_time="t", agg=agg, ttl="2 seconds", max_ahead=wr.forever)
    messages = [{"t": t * S, "x": x} for x, t in enumerate([0, 2, 5, 6])]
    assert [(row["n"], row["two"]) for row in played(tmp_path, over, messages)] == [
        (1, 1),
        (2, 1),
        (1, 5),
        (2, 5),
    ]


def test_what_comes_after_the_watermark_has_no_row_and_no_part(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", frame=("-5 s", 0), agg={"n": wr.count()}, max_ahead=wr.forever)
    with over.open(str(tmp_path)) as op:
        for t in (0, 4, 3, 6):
            op.add_message({"t": t * S})
        op.drain()
        assert [row["n"] for row in op.get_result()] == [1, 2, 2]
        assert [letter.reason for letter in op.dead_letters()] == ["too_late"]


@wr.aggregate_function(name="slope", returns=pa.float64(), envelope=True)
def slope(messages: pa.Table) -> float:
    """By how much x grows in a second, between the first and the last of the window."""
    x, t = messages["x"].to_pylist(), messages["t"].cast(pa.int64()).to_pylist()
    assert messages["__offset"].to_pylist() == sorted(messages["__offset"].to_pylist())
    return (x[-1] - x[0]) / (t[-1] - t[0]) * S


def test_a_function_gets_the_messages_of_the_window_with_their_times_and_places(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", agg={"slope": slope().over(3)}, ttl=wr.forever, max_ahead=wr.forever)
    messages = [{"t": t * S, "x": float(t * t)} for t in (0, 1, 3, 4)]
    rows = played(tmp_path, over, messages)
    assert [(row["t"].second, row["slope"]) for row in rows] == [
        (3, 3.0),
        (4, 5.0),
    ]  # with the time of its message


def test_messages_without_a_whole_window_are_counted(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", agg={"n": wr.count().over(3)}, ttl=wr.forever, max_ahead=wr.forever)
    with over.open(str(tmp_path)) as op:
        for t in range(5):
            op.add_message({"t": t})
        op.drain()
        assert len(op.get_result()) == 3
        assert op.counters["incomplete"] == 2


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no frame": ({"agg": {"n": wr.count()}}, BadWindow, r"no frame.*\.over\(10\)"),
    "no aggregation": ({"agg": {}}, BadAggregate, "at least one"),
    "no ttl": ({"by": "k", "agg": {"n": wr.count().over(3)}}, RetentionMissing, "ttl='1 day'"),
    "a window": ({"window": (-2, 0), "agg": {"n": wr.count()}}, UnknownOption, "did you mean 'frame'"),
    "sources": ({"source": "x", "agg": {"n": wr.count()}}, UnknownOption, "did you mean 'input'"),
    "two orders": (
        {
            "agg": {
                "n": wr.count().over(),
                "m": wr.count().over(wr.rows_between(-1, 0, order="position")),
            },
        },
        BadWindow,
        "say order='position' of both, or",
    ),
    "a ttl of frames of time": (
        {"agg": {"n": wr.count().over("3 s")}, "ttl": "1 s"},
        ConfigurationError,
        "leave it out",
    ),
    "two kinds of future": (
        {"agg": {"n": wr.count().over((0, 3)), "m": wr.count().over("3 s")}, "ttl": "1 s"},
        BadWindow,
        "two operators",
    ),
    "a name twice": (
        {"agg": {"x": wr.count().over("3 s")}, "select": ("x",)},
        ConfigurationError,
        "emitted twice",
    ),
    "an overflow": (
        {"agg": {"x": wr.count().over("3 s")}, "integer_overflow": "wrap"},
        ConfigurationError,
        "'decimal'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_definitions_that_cannot_be_are_refused_with_the_remedy(name: str) -> None:
    options, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        wr.Over(**{"event_time": "t", **options})


@pytest.mark.parametrize(
    "options", [{}, {"by": "k", "retention": wr.forever}], ids=["one line", "all that came"]
)
def test_where_nothing_more_is_remembered_for_it_a_line_continues_for_ever(
    tmp_path: Path, options: Any
) -> None:
    """As psi's `Average(2)` and `Average()`: a ttl need not be said."""
    agg = {"two": wr.sum("x").over(2), "all": wr.sum("x").over()}
    over = wr.Over(event_time="t", agg=agg, max_ahead=wr.forever, **options)
    assert (
        over.fingerprint
        == wr.Over(event_time="t", agg=agg, ttl=wr.forever, max_ahead=wr.forever, **options).fingerprint
    )
    rows = played(
        tmp_path, over, [{"t": day * 86_400 * S, "k": "a", "x": x} for day, x in enumerate((1, 2, 4))]
    )
    assert [(row["two"], row["all"]) for row in rows] == [(3, 3), (6, 7)]


FRAMES: dict[str, tuple[Any, str]] = {
    "nothing in it": (lambda: wr.rows_between(0, 0, closed="left"), "holds no message"),
    "no time in it": (lambda: wr.range_between(0, 0, closed="neither"), "holds no time"),
    "a word": (lambda: wr.rows_between(-1, 0, closed="none"), "'both', 'left', 'right', 'neither'"),
    "another": (lambda: wr.rows_between(-1, 0, partial="none"), "'skip', 'emit', 'null'"),
    "no number": (lambda: wr.rows_between("-1 s", 0), "wr.range_between"),
    "too many": (lambda: wr.rows_between(-(10**7), 0), "1_000_000"),
    "no beginning and a future": (lambda: wr.rows_between(wr.forever, 1), r"rows_between\(wr.forever, 0\)"),
    "no end": (
        lambda: wr.range_between("-1 s", wr.unbounded),
        r"wait for the end.*range_between\('-1 s', '1 minute'\)",
    ),
    "no first time and a future": (
        lambda: wr.range_between(wr.unbounded, "1 s"),
        r"unbounded, '1 s'.*use range_between\(wr.unbounded, 0\)",
    ),
    "no first time and not itself": (
        lambda: wr.range_between(wr.unbounded, 0, closed="left"),
        "closed='left'",
    ),
    "counted ahead beside all of a time": (
        lambda: wr.Over(
            event_time="t", agg={"a": wr.count().over((0, 1)), "b": wr.count().over((wr.unbounded, "0 s"))}
        ),
        "to two operators",
    ),
    "no last message": (
        lambda: wr.rows_between(0, wr.forever),
        r"wait for the end of the input.*rows_between\(0, 2\)",
    ),
    "no messages": (lambda: wr.count().over(0), "1 or more"),
    "future by mistake": (lambda: wr.count().over("-1 s"), "0 or more"),
    "no frame": (lambda: wr.count().over(1.5), "is no frame"),
    "a frame of an aggregate": (
        lambda: wr.Aggregate(
            event_time="t", window=wr.tumbling("1 s"), retention="1 s", agg={"n": wr.count().over(3)}
        ),
        "wr.Over",
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_cannot_be_are_refused_with_the_remedy(name: str) -> None:
    make, words = FRAMES[name]
    with pytest.raises((BadWindow, BadAggregate), match=words):
        make()


def test_an_aggregate_that_is_named_as_a_column_is_refused_when_the_column_comes(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", frame=("-1 s", 0), agg={"x": wr.sum("x")})
    with pytest.raises(ConfigurationError, match="another name"):
        over.open(str(tmp_path / "a"), schema=pa.schema([("t", pa.int64()), ("x", pa.int64())]))
    with over.open(str(tmp_path / "b")) as op, pytest.raises(ConfigurationError, match="another name"):
        op.add_message({"t": 0, "x": 1})


def arriving(tmp_path: Path, frame: Any, times: list[int], **options: Any) -> list[list[Any]]:
    """Return the rows that each message emits, by the numbers of messages: that of the row, and those in its window."""
    agg = {"seen": wr.collect_list("n")}
    over = wr.Over(
        **{
            "event_time": "t",
            "frame": frame,
            "agg": agg,
            "ttl": wr.forever,
            "max_ahead": wr.forever,
            **options,
        }
    )
    rows = []
    with TestDriver(over, tmp_path / "job") as driver:
        for n, t in enumerate(times):
            driver.add(wr.Message({"t": t * S, "n": n, "k": t > 80}, wr.Position("s", 0, n)))
            driver.next_offsets()
            rows.append([(row["n"], row["seen"]) for row in driver.panes()])
        driver.drain()
        driver.check(dead_letters=True)
        rows.append([(row["n"], row["seen"]) for row in driver.panes()])
    return rows


def test_messages_may_count_as_they_come_however_late(tmp_path: Path) -> None:
    frame = wr.rows_between(-1, 0, order="position", partial="emit")
    assert arriving(tmp_path / "past", frame, [5, 90, 1, 60]) == [
        [(0, [0])],
        [(1, [0, 1])],
        [(2, [1, 2])],
        [(3, [2, 3])],
        [],
    ]
    around = wr.rows_between(-1, 1, order="position", partial="emit")
    assert arriving(tmp_path / "around", around, [5, 90, 1]) == [
        [],
        [(0, [0, 1])],
        [(1, [0, 1, 2])],
        [(2, [1, 2])],
    ]
    # The watermark is 80 s past the message at 10, which is more than a minute: the one at 11 begins anew.
    assert arriving(tmp_path / "ttl", frame, [10, 90, 11], ttl="1 minute", by="k")[2] == [(2, [2])]


def test_a_message_from_long_ago_waits_for_its_neighbours_like_any_other(tmp_path: Path) -> None:
    """It is further behind the watermark than the ttl when it comes: that says nothing of what follows it."""
    around = wr.rows_between(0, 1, order="position", partial="emit")
    over = wr.Over(
        event_time="t",
        by="k",
        frame=around,
        agg={"seen": wr.collect_list("n")},
        ttl="1 second",
    )
    with TestDriver(over, tmp_path) as driver:
        driver.feed([{"t": 60 * S, "k": "b", "n": 0}])
        for n in (1, 2, 3):
            driver.feed([{"t": n * S, "k": "a", "n": n}])
        driver.advance_event_time(62 * S)  # ends both lines
        driver.feed([{"t": 4 * S, "k": "a", "n": 4}])
        driver.drain()
        driver.check(dead_letters=True)
        assert [row["seen"] for row in driver.committed_panes()] == [[1, 2], [2, 3], [0], [3], [4]]


def test_messages_that_count_as_they_come_are_not_mixed_with_event_time() -> None:
    running = wr.count().over(wr.rows_between(wr.forever, 0, order="position"))
    options: dict[str, Any] = {"event_time": "t", "ttl": wr.forever}
    with pytest.raises(BadWindow, match="two operators"):
        wr.Over(agg={"a": running, "b": wr.count().over(3)}, **options)
    with pytest.raises(ConfigurationError, match="leave them out"):
        wr.Over(agg={"a": running}, retention="1 day", **options)
    over = wr.Over(agg={"a": running}, **options)
    with pytest.raises(BadWindow, match="order='event_time'"):
        over.then(wr.Over(event_time="t", frame=("-1 s", 0), agg={"m": wr.count()}, name="next"))
    assert "order='position'" in repr(over)


def test_sparse_messages_do_not_each_take_a_value_of_their_own(tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array(range(0, 5_000 * 60 * S, 60 * S), pa.timestamp("us", "UTC"))})
    over = wr.Over(event_time="t", agg={"n": wr.count().over(2)}, ttl=wr.forever, max_ahead=wr.forever)
    logic, kv = over.logic(), MemoryKV(over.logic().cfs())
    logic.ingest(kv, {"over": rows}, 0)
    assert sum(1 for _ in kv.scan("over.events", b"", None)) < 100


def test_who_asks_for_windows_around_messages_is_shown_where_they_are_to_be_seen(tmp_path: Path) -> None:
    over = wr.Over(event_time="t", frame=("-1 second", 0), agg={"n": wr.count()})
    with (
        over.open(str(tmp_path)) as op,
        pytest.raises(ConfigurationError, match=r"'messages'.*explain\(\) of such a row"),
    ):
        op.get_windows()
