"""The function for foreachBatch: dead letters, sinks, refusals, watermarks, several operators."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors.exceptions.captured import PythonException, StreamingQueryException
from pyspark.sql import DataFrame

import windrow as wr
from windrow.core.errors import BadWatermark, SparkUnsupported
from windrow.core.time import to_datetime
from windrow.core.zones import zone_of
from windrow.operators.oracle.times import zone_info
from windrow.runners.spark import action
from windrow.runners.spark.session import FixedStages, check_session, in_bytes
from windrow.testing.clock import DEFAULT_START, ManualClock

from .batches import INCREMENTAL, ROWS, define, embedded, plain, run, same, start
from .conftest import SCHEMA, at

pytestmark = pytest.mark.spark


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


def test_a_folder_that_tasks_see_otherwise_than_the_driver_is_refused(spark: Any, tmp_path: Any) -> None:
    function = define().foreach_batch(str(tmp_path), sink=wr.sinks.memory())
    function._open(spark)
    [nonce] = tmp_path.glob("nonce-*")
    nonce.rename(tmp_path / "elsewhere")  # as it is with a folder of the driver's own machine
    with pytest.raises(PythonException, match="is not the folder that the driver sees: it lacks nonce-"):
        function(spark.createDataFrame(pa.Table.from_pylist(ROWS[0], SCHEMA)), 0)
    assert function.job.progress.commit == 0
    function.close()


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
    assert same(plain(panes), embedded(define(), ROWS))


def test_a_function_as_sink_gets_a_dataframe_and_a_token(spark: Any, feed: Any, tmp_path: Any) -> None:
    got: list[Any] = []
    function = define().foreach_batch(
        str(tmp_path / "state"), sink=lambda df, token: got.append((token.commit, df.count(), df.columns))
    )
    start(spark, feed(), tmp_path, function, ROWS[:1])
    function.close()
    assert got == [(1, 4, ["window", "k", *INCREMENTAL, "pane", "commit"])]


def test_each_commit_is_reported_to_the_listeners(spark: Any, feed: Any, tmp_path: Any) -> None:
    source, reports = feed(), list[dict[str, Any]]()
    source.add([{"t": at(1), "k": "a", "v": 1}, {"t": at(2), "k": "b", "v": 2}])
    source.add([{"t": at(30), "k": "a", "v": 3}])
    definition = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
    )
    function = definition.foreach_batch(str(tmp_path / "windrow"), sink=wr.sinks.memory())
    function.listeners.append(reports.append)
    query = (
        source.stream(spark)
        .writeStream.foreachBatch(function)
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    function.close()
    assert [(p["batchId"], p["commit"], p["numInputRows"]) for p in reports] == [(0, 1, 2), (1, 2, 1)]
    assert reports[-1] == function.last_progress


def test_the_settings_of_the_session_are_as_before_when_a_batch_is_done(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, "FEW_ROWS", -1)
    names = (
        "spark.sql.adaptive.enabled",
        "spark.sql.shuffle.partitions",
        "spark.sql.execution.arrow.maxBytesPerBatch",
    )
    source, seen = feed(), list[list[str]]()
    for n in (1, 2):
        source.add([{"t": at(n), "k": "a", "v": 1}])
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
    assert len(seen) == 4 and seen[0][1] == "5" and all(s == seen[0] for s in seen)


def test_what_is_sent_to_python_is_measured_where_rows_may_be_wide(
    spark: Any, feed: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of the first batch, nor of what the user's own functions take; after few rows it does not matter."""
    seen, name = list[str](), "spark.sql.execution.arrow.maxBytesPerBatch"

    class Seen(FixedStages):
        def __enter__(self) -> Seen:
            super().__enter__()
            seen.append(self._conf.get(name))
            return self

    monkeypatch.setattr(action, "FixedStages", Seen)
    monkeypatch.setattr(action, "FEW_ROWS", 1)
    limit, none = spark.conf.get(name), str(2**31 - 1)
    batches = [
        [{"t": at(n), "k": k, "v": n} for k in ("a", key)] for n, key in enumerate(["b", "b" * 5000, "b"])
    ]
    batches += [batches[0], batches[0][:1], batches[0], batches[0], batches[0]]
    sink = wr.sinks.memory()
    function = define().foreach_batch(str(tmp_path / "state"), sink=sink, clock=ManualClock())

    def batch(df: Any, n: int) -> None:
        function(df.mapInArrow(lambda rows: rows, df.schema) if n == 6 else df.where("k is not null"), n)

    start(spark, feed(), tmp_path, batch, batches)
    function.close()
    assert seen == [limit, none, limit, none, none, limit, limit, none]
    assert same(plain(sink.panes), embedded(define(), batches))


@pytest.mark.parametrize(
    ("said", "size"),
    [("67108864b", 1 << 26), ("64MB", 1 << 26), ("64m", 1 << 26), ("12", 12), ("2K", 2048), ("1tb", 1 << 40)],
)
def test_sizes_are_read_as_spark_reads_them(spark: Any, said: str, size: int) -> None:
    theirs = spark._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes
    assert in_bytes(said) == theirs(said) == size


def test_speculation_is_refused(spark: Any, feed: Any, tmp_path: Any) -> None:
    conf = spark.sparkContext._conf
    conf.set("spark.speculation", " true ")
    try:
        with pytest.raises((SparkUnsupported, StreamingQueryException), match=r"WR501.*speculation"):
            run(spark, feed(), tmp_path, define(), ROWS[:1])
    finally:
        conf.set("spark.speculation", "false")


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


def test_the_watermark_of_the_dataframe_is_honoured_and_another_refused(
    spark: Any, feed: Any, tmp_path: Any
) -> None:
    stream = feed().stream(spark).withWatermark("t", "7 seconds")
    with pytest.raises(BadWatermark, match=r"withWatermark\('t', '7 seconds'\).*bounded\('5 seconds'\)"):
        define().writeStream(stream)
    writer = define(watermark="0 seconds").writeStream(stream)
    assert "watermark=wr.bounded('7 seconds')" in repr(writer)
    define(watermark="7 seconds").writeStream(stream)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.string()], ids=["timestamp_ntz", "text"])
def test_times_without_a_zone_are_of_the_zone_that_is_declared(
    spark: Any, feed: Any, tmp_path: Any, kind: pa.DataType
) -> None:
    schema = pa.schema([("t", kind), ("k", pa.string()), ("v", pa.int64())])
    instants = {
        datetime(2013, 7, 1, 5, 10): datetime(2013, 7, 1, 9, 10, tzinfo=UTC),
        datetime(2025, 3, 9, 2, 30): datetime(2025, 3, 9, 7, 30, tzinfo=UTC),  # in a gap
        datetime(2025, 11, 2, 1, 30): datetime(2025, 11, 2, 5, 30, tzinfo=UTC),  # comes twice
        datetime(2038, 7, 15, 8): datetime(2038, 7, 15, 12, tzinfo=UTC),
    }
    for change in random.Random(3).sample(zone_of("America/New_York").changes[1:400].tolist(), 30):
        for minutes in (-330, -300, -240, -210):  # local times around it
            local = datetime(1970, 1, 1) + timedelta(microseconds=change, minutes=minutes)
            instants[local] = local.replace(tzinfo=zone_info("America/New_York")).astimezone(UTC)
    rows = [{"t": t if kind == pa.timestamp("us") else str(t), "k": "a", "v": 1} for t in instants]
    definition = define(
        {"n": wr.count()}, window=wr.tumbling("1 us"), time_zone="America/New_York", max_ahead=wr.forever
    )
    source = feed("naive", schema)
    source.ddl = f"t {'string' if kind == pa.string() else 'timestamp_ntz'}, k string, v bigint"
    panes = run(spark, source, tmp_path, definition, [rows])
    assert {to_datetime(pane.window.start_us) for pane in panes} == set(instants.values())


def test_a_watermark_of_the_users_own_moves_the_job(spark: Any, feed: Any, tmp_path: Any) -> None:
    half = wr.custom(lambda marks, now_us: max(marks.values(), default=0) // 2, name="half")
    definition = define({"n": wr.count()}, watermark=half, emit=wr.Emit())
    batches = [[{"t": at(s), "k": "a", "v": 1}] for s in (2, 30, 31)]
    panes = run(spark, feed(), tmp_path, definition, batches)
    assert [(p.timing.value, p.commit, p["n"]) for p in panes] == [("ON_TIME", 3, 1)]


def test_spark_connect_is_refused_with_the_reason() -> None:
    class ConnectSession:
        """Session of Spark Connect, as windrow sees it: without a JVM."""

    with pytest.raises(SparkUnsupported, match=r"WR501.*Spark Connect"):
        check_session(ConnectSession())  # type: ignore[arg-type]


def test_a_frame_of_spark_connect_is_refused_before_anything_is_opened() -> None:
    class ConnectFrame(DataFrame):
        """Frame of Spark Connect, as windrow sees it: without a JVM."""

        __module__ = "pyspark.sql.connect.dataframe"
        isStreaming = True

    frame = object.__new__(ConnectFrame)
    counts = define({"n": wr.count()})
    for take in (counts.writeStream, counts.apply):
        with pytest.raises(SparkUnsupported, match=r"WR501.*Spark Connect.*use a classic session"):
            take(frame)
