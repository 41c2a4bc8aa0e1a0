"""The function for foreachBatch: both routes, dead letters, replays, refusals, sinks that refuse."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors.exceptions.captured import PythonException, StreamingQueryException

import windrow as wr
from windrow.core.errors import BadWatermark, SparkUnsupported, StateError
from windrow.core.sharding import Sharding
from windrow.core.time import to_datetime
from windrow.runners.spark import action, routes
from windrow.runners.spark.action import Action
from windrow.runners.spark.session import check_session
from windrow.testing.clock import DEFAULT_START, ManualClock

from .conftest import SCHEMA, at

pytestmark = pytest.mark.spark

INCREMENTAL = {
    "n": wr.count(),
    "s": wr.sum("v"),
    "hi": wr.max("v"),
    "mean": wr.avg("v"),
    "spread": wr.variance("v"),
}


def define(agg: dict[str, Any] | None = None, **changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": agg or INCREMENTAL,
        "watermark": "5 seconds",
        "retention": "1 hour",
        "emit": wr.Emit(early=wr.every_batch, late=wr.every_batch),
    }
    return wr.Aggregate(**{**settings, **changes})


ROWS = [
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in range(0, 12)],
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in (3, 13, 25, 26)],
    [{"t": at(s), "k": "ab"[s % 2], "v": s} for s in (2, 27, 60)],
]


def run(
    spark: Any, feed: Any, tmp_path: Any, definition: wr.Aggregate, batches: Any, **options: Any
) -> list[wr.Pane]:
    sink = wr.sinks.memory()
    function = definition.foreach_batch(
        str(tmp_path / "state"), sink=sink, clock=options.pop("clock", ManualClock()), **options
    )
    start(
        spark, feed, tmp_path, function, batches, definition.inputs[0].name if definition.by_input else None
    )
    function.close()
    return sink.panes


def start(
    spark: Any, feed: Any, tmp_path: Any, function: Any, batches: Any, named: str | None = None
) -> None:
    for batch in batches:
        feed.add(batch)
    stream = feed.stream(spark)
    if named is not None:
        stream = wr.together([define(input=named)], **{named: stream})
    query = (
        stream.writeStream.foreachBatch(function)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def plain(panes: list[wr.Pane]) -> list[Any]:
    return sorted(
        (p.commit, p.window.start_us, p.key["k"], p.timing.value, p.index, p.is_last, tuple(p.values.items()))
        for p in panes
    )


def embedded(tmp_path: Any, definition: wr.Aggregate, batches: Any) -> list[Any]:
    """The same steps without Spark: advance, then ingest, for each batch."""
    oracle = definition.oracle()
    now_us, marks, watermark = ManualClock().now_us(), None, None
    panes = []
    for i, batch in enumerate(batches):
        watermark = -(2**63) if marks is None else marks - 5_000_000
        told, _ = oracle.advance(watermark, now_us)
        more, _ = oracle.ingest([wr.Message(r) for r in batch], now_us, watermark)
        panes += [(i + 1, p) for p in [*told, *more]]
        times = [int(r["t"].timestamp() * 1_000_000) for r in batch]
        marks = max(times) if marks is None else max(marks, *times)
    return sorted(
        (c, p.window.start_us, p.key["k"], p.timing.value, p.index, p.is_last, tuple(p.values.items()))
        for c, p in panes
    )


def same(left: list[Any], right: list[Any]) -> bool:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a[:-1] == b[:-1]
        for (name, x), (_, y) in zip(a[-1], b[-1], strict=True):
            assert x == y if None in (x, y) else x == pytest.approx(y, rel=1e-9), name
    return True


@pytest.mark.proves(
    "Spark: bare: `foreachBatch`",
    "Spark: pre-aggregation in the JVM",
)
@pytest.mark.parametrize(
    ("agg", "named", "groups"),
    [
        (INCREMENTAL, None, True),
        (INCREMENTAL, "rows", True),
        ({**INCREMENTAL, "mid": wr.median("v")}, None, False),
    ],
    ids=["partials", "partials of an input with a name", "rows"],
)
def test_both_routes_give_the_panes_of_the_oracle(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any, named: str | None, groups: bool
) -> None:
    made = grouped_batches(monkeypatch)
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    definition = define(agg, input=named)
    got = run(spark, feed(), tmp_path, definition, ROWS)
    assert made == ([1, 2, 3] if groups else [])
    assert same(plain(got), embedded(tmp_path, definition, ROWS))
    assert {p.timing.value for p in got} == {"EARLY", "ON_TIME", "LATE"}


def grouped_batches(monkeypatch: Any) -> list[int]:
    """Gets the commits of batches that SQL groups."""
    made: list[int] = []
    prepare = Action._prepare

    def prepared(self: Any, df: Any, plan: Any, *given: Any) -> Any:
        frame, parts = prepare(self, df, plan, *given)
        if parts is not None:
            made.append(plan.commit)
        return frame, parts

    monkeypatch.setattr(Action, "_prepare", prepared)
    return made


def test_after_a_batch_of_few_rows_the_rows_of_the_next_one_cross(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", 3)
    made = grouped_batches(monkeypatch)
    batches = [
        [{"t": at(10 * begin + i), "k": "abc"[i % 3], "v": i} for i in range(n)]
        for begin, n in enumerate((5, 3, 4, 2, 1, 9))
    ]
    got = run(spark, feed(), tmp_path, define(), batches, shards=2)
    assert made == [1, 2, 4], "the first, of which nobody knows, and those after 5 and 4 rows"
    assert same(plain(got), embedded(tmp_path, define(), batches))


def test_a_driver_that_is_started_anew_knows_how_many_rows_came_last(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """So a batch that is run again goes the way that it went."""
    monkeypatch.setattr(action, "FEW_ROWS", 3)
    made, source = grouped_batches(monkeypatch), feed()
    for n in (5, 2, 9):
        run(spark, source, tmp_path, define(), [[{"t": at(i), "k": "abc"[i % 3], "v": i} for i in range(n)]])
    assert made == [1, 2]


@pytest.mark.parametrize("agg", [{"n": wr.count()}, {"mid": wr.median("v")}], ids=["partials", "rows"])
def test_a_shard_answers_though_no_row_comes_to_it(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: Any, agg: Any
) -> None:
    """Of four shards one has the only key. A row for each of them is added only where Spark may know that nothing comes."""
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    added: list[int] = []
    control = routes.control_rows
    monkeypatch.setattr(routes, "control_rows", lambda *a: added.append(1) or control(*a))
    batches = [[{"t": at(20 * n), "k": "a", "v": n}] for n in range(3)]
    sink = wr.sinks.memory()
    function = define(agg).foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock(), shards=4)
    start(spark, feed(), tmp_path, function, batches)
    assert not added and function.job.progress.commit == 3
    assert same(plain(sink.panes), embedded(tmp_path, define(agg), batches))
    function.close()
    nothing = define(agg).foreach_batch(str(tmp_path / "none"), sink=wr.sinks.memory(), shards=4)
    start(
        spark,
        feed("more"),
        tmp_path / "none",
        lambda df, n: nothing(df.sparkSession.createDataFrame([], df.schema).where("false"), n),
        batches[:2],
    )
    assert added == [1] and nothing.job.progress.commit == 2
    nothing.close()


def test_the_number_of_shards_does_not_change_the_panes(spark: Any, feed: Any, tmp_path: Any) -> None:
    definition = define()
    one = run(spark, feed("one"), tmp_path / "one", definition, ROWS, shards=1)
    four = run(spark, feed("four"), tmp_path / "four", definition, ROWS, shards=4)
    assert plain(one) == plain(four) != []


def test_a_key_that_widens_between_two_runs_stays_in_its_shard(spark: Any, tmp_path: Any) -> None:
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tuples(5), agg={"n": wr.count()}, retention=wr.forever
    )
    sink = wr.sinks.memory()
    for batch, kind in enumerate(("int", "bigint", "decimal(12,2)", "double", "float")):
        function = definition.foreach_batch(str(tmp_path / "state"), sink=sink, shards=4, clock=ManualClock())
        numbers = spark.range(20).selectExpr(f"cast(id as {kind}) as k", "timestamp_micros(id) as t")
        function(numbers, batch)
        function.close()
    assert sorted((pane.key["k"], pane["n"]) for pane in sink.panes) == [(k, 5) for k in range(20)]


def test_jobs_begun_before_keys_were_hashed_by_value_hash_them_by_type() -> None:
    fields = [("`k`", True), ("`s`", False)]
    group = "pmod(xxhash64(`k`, `s`), 4096)"
    assert Sharding(4, by_value=False).sql(fields) == f"cast(({group} * 4) div 4096 as int)"
    assert "xxhash64(cast(`k` as double) + 0D, `s`)" in Sharding(4).sql(fields)


@pytest.mark.proves(
    "Lateness and retention: dead letters with reason, position and payload; all counted, kept up to a limit"
)
@pytest.mark.parametrize("agg", [{"n": wr.count()}, {"mid": wr.median("v")}], ids=["partials", "rows"])
def test_what_cannot_be_counted_is_dead_lettered_with_its_reason(
    spark: Any, feed: Any, tmp_path: Any, agg: Any
) -> None:
    letters: list[dict[str, Any]] = []
    definition = define(agg, allowed_lateness="20 seconds", null_keys="dead_letter")
    batches = [
        [
            {"t": None, "k": "a", "v": 1},
            {"t": at(100), "k": "a", "v": 2},
            {"t": at(100), "k": None, "v": 3},
            {
                "t": DEFAULT_START + timedelta(days=1, microseconds=1),
                "k": "a",
                "v": 6,
            },  # too far ahead of now
        ],
        [{"t": at(50), "k": "a", "v": 4}, {"t": at(85), "k": "a", "v": 5}],
    ]
    run(
        spark,
        feed(),
        tmp_path,
        definition,
        batches,
        dead_letters=lambda token, files: [letters.extend(pq.read_table(f).to_pylist()) for f in files],
    )
    assert sorted((x["reason"], json.loads(x["payload"])["v"]) for x in letters) == [
        ("malformed", 1),
        ("malformed", 6),
        ("null_key", 3),
        ("too_late", 4),
    ]


@pytest.mark.proves("Spark: bare: `foreachBatch`")
def test_a_batch_that_is_handed_in_again_is_not_counted_again(spark: Any, feed: Any, tmp_path: Any) -> None:
    sink = wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    seen: list[Any] = []

    def twice(df: Any, batch_id: int) -> None:
        function(df, batch_id)
        before = len(sink.panes)
        function(df, batch_id)
        seen.append(len(sink.panes) - before)

    source = feed()
    start(spark, source, tmp_path, twice, ROWS)
    assert seen == [0, 0, 0] and not list((tmp_path / "state").glob("nonce-*"))
    assert function.job.progress.commit == 3
    function.close()
    # In another process, and without a batch, it is drained all the same.
    again = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    with pytest.raises(StateError, match=r"use drain\(spark, stream\)"):
        again.drain(spark)
    assert not any(p.window.start_us == 60_000_000 and p.timing.value == "ON_TIME" for p in sink.panes)
    again.drain(spark, source.stream(spark))
    assert any(p.window.start_us == 60_000_000 and p.timing.value == "ON_TIME" for p in sink.panes)
    again.close()


@pytest.mark.proves("Spark: a folder that executors do not share is found before the first commit")
def test_a_folder_that_tasks_see_otherwise_than_the_driver_is_refused(spark: Any, tmp_path: Any) -> None:
    function = define().foreach_batch(str(tmp_path), sink=wr.sinks.memory())
    function._open(spark)
    [nonce] = tmp_path.glob("nonce-*")
    nonce.rename(tmp_path / "elsewhere")  # as it is with a folder of the driver's own machine
    with pytest.raises(PythonException, match="is not the folder that the driver sees: it lacks nonce-"):
        function(spark.createDataFrame(pa.Table.from_pylist(ROWS[0], SCHEMA)), 0)
    assert function.job.progress.commit == 0
    function.close()


@pytest.mark.proves("Coming back: Spark's checkpoint deleted")
def test_rows_without_positions_of_another_query_are_refused(spark: Any, feed: Any, tmp_path: Any) -> None:
    source = feed()
    run(spark, source, tmp_path, define(), ROWS)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"WR302.*carry no positions"):
        run(spark, source, tmp_path, define(), [])


NUMBERED = SCHEMA.append(pa.field("o", pa.int64()))
FLAT = [{**r, "o": i} for i, r in enumerate(r for rows in ROWS for r in rows)]


@pytest.mark.parametrize(
    "agg", [{"n": wr.count()}, {"n": wr.count(), "mid": wr.median("v")}], ids=["partials", "rows"]
)
def test_rows_with_positions_of_another_query_are_counted_once(
    spark: Any, feed: Any, tmp_path: Any, agg: Any
) -> None:
    definition = define(agg, positions=wr.positions("o"))
    first = run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:10]])
    shutil.rmtree(tmp_path / "checkpoint")
    second = run(spark, feed("again", NUMBERED), tmp_path, definition, [FLAT])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in [*first, *second]}
    assert sum(latest.values()) == len(FLAT)


@pytest.mark.parametrize(
    "agg", [{"n": wr.count()}, {"n": wr.count(), "mid": wr.median("v")}], ids=["partials", "rows"]
)
def test_a_batch_that_spark_plans_again_with_more_in_it_brings_its_new_rows(
    spark: Any, feed: Any, tmp_path: Any, agg: Any
) -> None:
    """As it does when its plan was lost with the power. Handed in as it was, it makes no commit."""
    sink = wr.sinks.memory()
    function = define(agg, positions=wr.positions("o")).foreach_batch(str(tmp_path / "state"), sink=sink)
    commits: list[int] = []

    def planned_again(df: Any, batch_id: int) -> None:
        for frame in (df.where("o < 10"), df.where("o < 10"), df, df):
            function(frame, batch_id)
            commits.append(function.job.progress.commit)

    start(spark, feed("input", NUMBERED), tmp_path, planned_again, [FLAT])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in sink.panes}
    assert sum(latest.values()) == len(FLAT)
    assert commits == [1, 1, 2, 2]
    function.close()


@pytest.mark.proves("Ids: on Spark, a new query without positions")
def test_rows_with_ids_of_another_query_are_counted_once(spark: Any, feed: Any, tmp_path: Any) -> None:
    definition = define({"n": wr.count()}, ids=wr.ids("o"))
    first = run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:6], FLAT[3:10]], shards=2)
    shutil.rmtree(tmp_path / "checkpoint")
    sink = wr.sinks.memory()
    function = definition.foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())
    start(spark, feed("again", NUMBERED), tmp_path, function, [FLAT, FLAT[5:]])
    latest = {(p.window.start_us, p.key["k"]): p["n"] for p in [*first, *sink.panes]}
    assert sum(latest.values()) == len(FLAT)
    totals = function.job.progress.counters
    assert totals["duplicates"] == 3 + 10 + len(FLAT[5:])
    assert not any(name.startswith("dead.") for name in totals)
    function.close()


@pytest.mark.proves("Ids: on Spark, a new query without positions")
def test_with_ids_another_query_is_let_in_from_its_beginning_only(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    definition = define({"n": wr.count()}, ids=wr.ids("o"))
    run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:6]])
    function = definition.foreach_batch(str(tmp_path / "state"), clock=ManualClock())
    with pytest.raises(wr.WindrowError, match=r"WR301.*at its batch 3.*empty Spark checkpoint"):
        function(spark.createDataFrame([], "k string, t timestamp, v long, o long"), 3)
    function.close()


@pytest.mark.parametrize(
    ("rows", "error"),
    [(FLAT[:5], r"WR303.*counted before"), (FLAT[15:], r"WR301.*between them are missing")],
    ids=["behind", "gap"],
)
def test_another_query_that_begins_elsewhere_is_refused(
    spark: Any, feed: Any, tmp_path: Any, rows: Any, error: str
) -> None:
    definition = define({"n": wr.count()}, positions=wr.positions("o"))
    run(spark, feed("first", NUMBERED), tmp_path, definition, [FLAT[:10]])
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=error):
        run(spark, feed("again", NUMBERED), tmp_path, definition, [rows])


@pytest.mark.proves("Coming back: panes of a commit go out once")
def test_a_sink_that_refuses_fails_the_query_and_a_restart_publishes_first(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windrow.runners import protocol as module

    monkeypatch.setattr(module, "PUBLISH_ATTEMPTS", 2)

    def refuse(panes: Any, token: Any) -> None:
        raise OSError("the disk of the sink is full")

    source = feed()
    function = define().foreach_batch(str(tmp_path / "state"), sink=refuse, clock=ManualClock())
    with pytest.raises(StreamingQueryException, match=r"WR403.*first when the query is started again"):
        start(spark, source, tmp_path, function, ROWS)
    assert function.job.progress.commit == 1
    function.close()
    panes = run(spark, source, tmp_path, define(), [])
    assert same(plain(panes), embedded(tmp_path, define(), ROWS))


@pytest.mark.proves("Sinks: a function of a DataFrame (Spark)")
def test_a_function_as_sink_gets_a_dataframe_and_a_token(spark: Any, feed: Any, tmp_path: Any) -> None:
    got: list[Any] = []
    function = define().foreach_batch(
        str(tmp_path / "state"), sink=lambda df, token: got.append((token.commit, df.count(), df.columns))
    )
    start(spark, feed(), tmp_path, function, ROWS[:1])
    function.close()
    assert got == [(1, 4, ["window", "k", *INCREMENTAL, "pane", "commit"])]


def test_each_commit_is_told_to_the_listeners(spark: Any, feed: Any, tmp_path: Any) -> None:
    source, heard = feed(), list[dict[str, Any]]()
    source.add([{"t": at(1), "k": "a", "v": 1}, {"t": at(2), "k": "b", "v": 2}])
    source.add([{"t": at(30), "k": "a", "v": 3}])
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
    )
    function = definition.foreach_batch(str(tmp_path / "windrow"), sink=wr.sinks.memory())
    function.listeners.append(heard.append)
    query = (
        source.stream(spark)
        .writeStream.foreachBatch(function)
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    function.close()
    assert [(p["batchId"], p["commit"], p["numInputRows"]) for p in heard] == [(0, 1, 2), (1, 2, 1)]
    assert heard[-1] == function.last_progress


def test_the_settings_of_the_session_are_as_before_when_a_batch_is_done(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    names = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")
    source, seen = feed(), list[list[str]]()
    source.add([{"t": at(1), "k": "a", "v": 1}])
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
    )
    function = definition.foreach_batch(str(tmp_path / "windrow"))

    def batch(df: Any, batch_id: int) -> None:
        conf = df.sparkSession.conf
        conf.set(names[1], "5")
        seen.append([conf.get(n) for n in names])
        function(df, batch_id)
        seen.append([conf.get(n) for n in names])

    query = (
        source.stream(spark)
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    function.close()
    assert seen[0] == seen[1] and seen[0][1] == "5"


@pytest.mark.proves("Spark: speculation is refused")
def test_speculation_is_refused(spark: Any, feed: Any, tmp_path: Any) -> None:
    conf = spark.sparkContext._conf
    conf.set("spark.speculation", "true")
    try:
        with pytest.raises((SparkUnsupported, StreamingQueryException), match=r"WR501.*speculation"):
            run(spark, feed(), tmp_path, define(), ROWS[:1])
    finally:
        conf.set("spark.speculation", "false")


@pytest.mark.proves("Coming back: two drivers: only the newer goes on")
def test_two_drivers_on_one_state_only_the_newer_goes_on(spark: Any, feed: Any, tmp_path: Any) -> None:
    source = feed()
    older = define().foreach_batch(str(tmp_path / "state"), sink=wr.sinks.memory())
    start(spark, source, tmp_path, older, ROWS[:1])
    sink = wr.sinks.memory()
    newer = define().foreach_batch(str(tmp_path / "state"), sink=sink)
    start(spark, source, tmp_path, newer, ROWS[1:2])
    with pytest.raises(StreamingQueryException, match=r"WR205.*one driver only"):
        start(spark, source, tmp_path, older, ROWS[2:])
    newer.close()
    older.close()
    assert max(p.commit for p in sink.panes) == 2


@pytest.mark.proves("Spark: several operators in one commit")
def test_several_operators_on_one_input_are_one_commit(spark: Any, feed: Any, tmp_path: Any) -> None:
    hourly = define({"n": wr.count()}, name="tens")
    total = define({"n": wr.count()}, name="total", by=(), window=wr.hopping("20 seconds", "10 seconds"))
    tens, totals = wr.sinks.memory(), wr.sinks.memory()
    function = wr.foreach_batch(
        [hourly, total], str(tmp_path / "state"), sink={"tens": tens, "total": totals}
    )
    start(spark, feed(), tmp_path, function, ROWS)
    function.drain(spark)
    function.close()
    messages = sum(len(rows) for rows in ROWS)
    assert sum({(p.window, p.key["k"]): p["n"] for p in tens.panes}.values()) == messages
    assert sum({p.window: p["n"] for p in totals.panes}.values()) == 2 * messages


@pytest.mark.proves("Spark: columns of any name; `apply` hands out its dead letters")
@pytest.mark.parametrize("agg", [wr.sum("v`.w"), wr.median("v`.w")], ids=["partials", "rows"])
def test_apply_takes_any_name_of_a_column_and_hands_out_its_dead_letters(spark: Any, agg: Any) -> None:
    definition = define(
        {"n.m": agg}, by=("a.b", "c`d"), event_time="t.`t", null_keys="dead_letter", emit=wr.Emit()
    )
    rows = [(at(1), "x", "y", 3), (at(2), "x", "y", 3), (None, "x", "y", 4), (at(3), None, "y", 5)]
    df = spark.createDataFrame(rows, "`t.``t` timestamp, `a.b` string, `c``d` string, `v``.w` bigint")
    letters: list[str] = []
    panes = definition.apply(df, dead_letters=lambda token, files: letters.extend(files))
    [pane] = panes.collect()
    assert (pane["a.b"], pane["c`d"], pane["n.m"]) == ("x", "y", 6 if agg == wr.sum("v`.w") else 3.0)
    found = spark.read.parquet(*letters).select("reason").collect()
    assert sorted(r.reason for r in found) == ["malformed", "null_key"]


def test_a_value_on_which_an_expression_raises_is_one_dead_letter(spark: Any) -> None:
    few = {"n": wr.count(), "few": wr.count().where(wr.lit(10) / wr.col("v") > 1)}
    rows = [("a", at(1), 1), ("a", at(2), 0), ("a", at(3), 2)]
    letters: list[str] = []
    panes = define(few, emit=wr.Emit()).apply(
        spark.createDataFrame(rows, "k string, t timestamp, v bigint"),
        dead_letters=lambda token, files: letters.extend(files),
    )
    assert [(p["n"], p["few"]) for p in panes.collect()] == [(2, 2)]
    [letter] = spark.read.parquet(*letters).collect()
    assert letter.reason == "malformed" and "divide by zero" in letter.detail


@pytest.mark.proves("Spark: `apply` on a bounded DataFrame")
def test_apply_on_a_bounded_frame_gives_the_final_windows(spark: Any, tmp_path: Any) -> None:
    rows = [r for batch in ROWS for r in batch]
    df = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))
    definition = define({"n": wr.count()}, emit=wr.Emit())
    panes = definition.apply(df).collect()
    assert sum(p["n"] for p in panes) == len(rows)
    assert {p["pane"]["timing"] for p in panes} == {"ON_TIME"}


def test_apply_on_a_bounded_frame_counts_each_id_once(spark: Any) -> None:
    frame = spark.createDataFrame(
        [("a", at(1), 5, 1), ("a", at(1), 5, 1), ("b", at(2), 5, 1), ("a", at(3), None, 1)],
        "k string, t timestamp, o long, v long",
    )
    panes = define({"n": wr.count()}, ids=wr.ids("o"), emit=wr.Emit()).apply(frame)
    assert sorted((r["k"], r["n"]) for r in panes.collect()) == [("a", 1), ("b", 1)]


@pytest.mark.proves("Watermarks: `withWatermark` on the DataFrame is honoured, another refused")
def test_the_watermark_of_the_dataframe_is_honoured_and_another_refused(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    stream = feed().stream(spark).withWatermark("t", "7 seconds")
    with pytest.raises(BadWatermark, match=r"withWatermark\('t', '7 seconds'\).*bounded\('5 seconds'\)"):
        define().writeStream(stream)
    writer = define(watermark="0 seconds").writeStream(stream)
    assert "watermark=wr.bounded('7 seconds')" in repr(writer)
    define(watermark="7 seconds").writeStream(stream)


@pytest.mark.proves("Watermarks: event times without a zone, in a declared one")
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.string()], ids=["timestamp_ntz", "text"])
def test_times_without_a_zone_are_of_the_zone_that_is_declared(
    spark: Any, feed: Any, tmp_path: Any, kind: pa.DataType
) -> None:
    schema = pa.schema([("t", kind), ("k", pa.string()), ("v", pa.int64())])
    local = datetime(2013, 7, 1, 5, 10)
    rows = [{"t": local if kind == pa.timestamp("us") else str(local), "k": "a", "v": 1}]
    definition = define({"n": wr.count()}, window=wr.tumbling("1 hour"), time_zone="America/New_York")
    source = feed("naive", schema)
    source.ddl = f"t {'string' if kind == pa.string() else 'timestamp_ntz'}, k string, v bigint"
    [pane] = run(spark, source, tmp_path, definition, [rows])
    assert to_datetime(pane.window.start_us) == datetime(2013, 7, 1, 9, tzinfo=UTC)


@pytest.mark.proves("Watermarks: custom")
def test_a_watermark_of_the_users_own_moves_the_job(spark: Any, feed: Any, tmp_path: Any) -> None:
    half = wr.custom(lambda marks, now_us: max(marks.values(), default=0) // 2, name="half")
    definition = define({"n": wr.count()}, watermark=half, emit=wr.Emit())
    batches = [[{"t": at(s), "k": "a", "v": 1}] for s in (2, 30, 31)]
    panes = run(spark, feed(), tmp_path, definition, batches)
    assert [(p.timing.value, p.commit, p["n"]) for p in panes] == [("ON_TIME", 3, 1)]


@pytest.mark.proves("Spark: Spark Connect is refused with the reason")
def test_spark_connect_is_refused_with_the_reason() -> None:
    class ConnectSession:
        """What a session of Spark Connect looks like from here: it has no JVM behind it."""

    with pytest.raises(SparkUnsupported, match=r"WR501.*Spark Connect"):
        check_session(ConnectSession())  # type: ignore[arg-type]


@pytest.mark.parametrize(("unit", "each"), [("ms", 1_000), ("ns", 1_000_000_000)])
def test_integers_are_times_in_the_unit_that_is_given(spark: Any, unit: Any, each: int) -> None:
    definition = define({"n": wr.count()}, event_time_unit=unit, emit=wr.Emit.append())
    rows = [("a", 100 * each + 1), ("a", 109 * each), ("a", -5 * each - 1), ("b", 2**63 - 1)]
    told = definition.apply(spark.createDataFrame(rows, "k string, t bigint")).collect()
    assert sorted((r["window"]["start"].timestamp(), r["n"]) for r in told) == [(-10.0, 1), (100.0, 2)]
