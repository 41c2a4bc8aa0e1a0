"""The state of a job of Spark's, of two shards: read from outside, and as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.state.jobs import KINDS, begun, listing

from .conftest import at

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DELAYS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("10 seconds"), watermark="5 seconds", retention="1 hour",
    agg={"n": wr.count(), "mid": wr.median("v")},
)  # fmt: skip
KEYS = "abcdefg"


def rows(*seconds: int) -> list[dict[str, Any]]:
    return [{"t": at(s), "k": KEYS[s % 7], "v": s} for s in seconds]


@pytest.fixture(scope="module")
def job(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three batches, each a commit; two shards."""
    from .conftest import SCHEMA, Feed

    folder = tmp_path_factory.mktemp("state")
    source = Feed(folder / "input", SCHEMA)
    for first in (0, 20, 40):
        source.add(rows(*range(first, first + 20)))
    writer = DELAYS.writeStream(source.stream(spark)).sink(wr.sinks.parquet(str(folder / "out")))
    writer.option("checkpointLocation", str(folder / "job")).trigger(
        availableNow=True
    ).start().awaitTermination()
    return folder / "job" / "windrow"


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def read(spark: Any, location: Path, table: str, **options: Any) -> Any:
    reader = spark.read.format("windrow").option("table", table)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(location))


def expected(seconds: range) -> list[tuple[Any, ...]]:
    """(start, key, n, median) of every window, as pandas' reader would do it by hand."""
    groups: dict[tuple[int, str], list[int]] = {}
    for s in seconds:
        groups.setdefault((s // 10 * 10, KEYS[s % 7]), []).append(s)
    return [(at(start), k, len(v), sum(v) / len(v)) for (start, k), v in sorted(groups.items())]


def test_shards_are_merged_in_order(job: Path) -> None:
    before = listing(job)
    with wr.read_state(str(job)) as state:
        assert state.shards == 2
        windows = [(w.window.start_us // 1_000_000, w.key["k"], w.values["n"]) for w in state.get_windows()]
        assert windows == [(int(e[0].timestamp()), e[1], e[2]) for e in expected(range(60))]
        offsets = [m.event_time_us for m in state.get_messages()]
        assert offsets == [s * 1_000_000 for s in range(60)]
        one = state.get_windows(key="c", start=at(20), end=at(20))
        assert [w.messages for w in one] == [len([s for s in range(20, 30) if s % 7 == 2])]
        [why] = state.explain(at(20), key="c")
        assert why.positions is not None and len(why.positions) == one[0].messages
    assert listing(job) == before


def test_a_job_of_spark_s_is_whole(job: Path) -> None:
    from windrow.checkpoint.verify import verify

    report = verify(str(job))
    assert report.wrong == [] and report.checked["comparisons"] > 0


def test_windows_are_a_dataframe_of_a_partition_a_shard(spark: Any, job: Path) -> None:
    frame = read(spark, job, "windows")
    assert frame.rdd.getNumPartitions() == 2
    assert frame.columns == ["window", "k", "n", "mid", "messages", "first", "last", "panes", "fired"]
    rows = frame.selectExpr("window.start", "k", "n", "mid").orderBy("start", "k").toPandas()
    windows = [(r.start.tz_localize("UTC").to_pydatetime(), r.k, r.n, r.mid) for r in rows.itertuples()]
    assert windows == expected(range(60))


def test_messages_panes_commits_and_dead_letters_are_dataframes(spark: Any, job: Path) -> None:
    messages = read(spark, job, "messages")
    assert messages.columns == ["stored", "t", "k", "v"]
    assert [r.v for r in messages.orderBy("stored.time").collect()] == list(range(60))
    panes = read(spark, job, "panes")
    assert panes.columns == ["window", "k", "n", "mid", "pane", "commit"]
    with wr.read_state(str(job)) as state:
        assert panes.count() == state.panes().num_rows > 0
        last = state.commit
    commits = read(spark, job, "commits")
    assert commits.selectExpr("max(commit)", "sum(rows)").first() == (last, 60)
    letters = read(spark, job, "dead_letters")
    assert letters.count() == 0 and "reason" in letters.columns


def test_a_page_of_a_table_is_that_of_the_state(spark: Any, job: Path) -> None:
    asked = {"order": "n", "descending": True, "after": 2, "limit": 5, "contains": "a"}
    frame = read(spark, job, "windows", **{n: str(v).lower() for n, v in asked.items()})
    with wr.read_state(str(job)) as state:
        page = state.page("windows", **asked).rows.to_pylist()
    assert [(r.k, r.n, r.messages) for r in frame.collect()] == [
        (r["k"], r["n"], r["messages"]) for r in page
    ]
    assert len(page) == 5 and frame.where("n < 0").count() == 0
    with pytest.raises(Exception, match="table 'commits' has no pages"):
        read(spark, job, "commits", limit="1")


def test_an_older_commit_and_a_range_can_be_read(spark: Any, job: Path) -> None:
    with wr.read_state(str(job)) as state:
        first = min(c.commit for c in state.commits() if sum(s.rows for s in c.steps) == 20)
    frame = read(spark, job, "windows", asOf=first)
    assert sorted((r.window.start, r.k) for r in frame.collect()) != []
    assert frame.selectExpr("sum(n)").first() == (20,)
    rows = read(spark, job, "windows", start="1970-01-01 00:00:15", end="1970-01-01 00:00:15", key='"c"')
    assert [(r.k, r.n) for r in rows.collect()] == [("c", 1)]


CONDITIONS = [
    "k = 'c'", "k IN ('a', 'b') AND n > 1", "window.start >= timestamp'1970-01-01 00:00:30'",
    "window.end <= timestamp'1970-01-01 00:00:30' AND k <> 'a'", "mid > 30.5", "fired", "first.offset < 5",
    "k IS NULL", "k LIKE 'a%' OR n = 1",
]  # fmt: skip


def test_filters_that_are_pushed_down_leave_the_same_rows(spark: Any, job: Path, pushdown: None) -> None:
    rows = {c: sorted(map(str, read(spark, job, "windows").where(c).collect())) for c in CONDITIONS}
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    whole = read(spark, job, "windows").cache()  # from here on no filter comes to where it is read
    assert rows == {c: sorted(map(str, whole.where(c).collect())) for c in CONDITIONS}
    whole.unpersist()


def test_filters_reach_the_reader_where_spark_hands_them_over(spark: Any, job: Path, pushdown: None) -> None:
    frame = read(spark, job, "windows").where(
        "k = 'c' AND window.start >= timestamp'1970-01-01 00:00:30' AND mid > 1"
    )
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" in plan  # mid, a double, is left to Spark
    [filtered] = [line for line in plan.splitlines() if "Filter (" in line]
    assert "mid" in filtered and "= c" not in filtered and "00:00:30" not in filtered


def test_a_join_s_messages_and_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    begun(KINDS["join"], tmp_path / "job", range(40))
    frame = read(spark, tmp_path / "job", "messages", input="payments")
    with wr.read_state(str(tmp_path / "job")) as state:
        kept = [m.payload["x"] for m in state.get_messages(input="payments")]
        windows = [w.messages for w in state.get_windows(input="payments")]
    assert sorted(r.x for r in frame.collect()) == sorted(kept) != []
    messages = read(spark, tmp_path / "job", "windows", input="payments").collect()
    assert [r.messages for r in messages] == windows != []
    for options, why in (
        ({"table": "sessions"}, "none of"), ({"table": "windows"}, "say which, of"), ({"table": "commits", "asof": "99"}, "99"),
        ({"table": "commits", "as_of": "1"}, "'as_of' is none of"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=why):
            read(spark, tmp_path / "job", **options).collect()
