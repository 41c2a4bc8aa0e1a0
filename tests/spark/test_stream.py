"""The builder: heartbeat, drain, file positions, its own checkpoint, executors that share a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import windrow as wr
from tests.deep import usually
from windrow.core.errors import (
    ConfigurationError,
    DuplicateColumn,
    QueryStopped,
    TypeClash,
    UnknownColumn,
    UnknownOption,
)
from windrow.runners import protocol
from windrow.runners.spark import routes
from windrow.runners.spark.batch import BatchFunction
from windrow.runners.spark.limits import warn_of_no_limit
from windrow.runners.spark.session import check_session
from windrow.testing.clock import ManualClock

from . import executors
from .conftest import SCHEMA, at

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]
ROOT = Path(__file__).parents[2]


def define(**changes: Any) -> wr.Aggregate:
    settings: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "mid": wr.median("v")},
        "watermark": "5 seconds",
        "retention": "1 hour",
    }
    return wr.Aggregate(**{**settings, **changes})


def rows(*seconds: float) -> list[dict[str, Any]]:
    return [{"t": at(s), "k": "a", "v": int(s)} for s in seconds]


def writer(spark: Any, source: Any, tmp_path: Path, sink: Any, definition: wr.Aggregate | None = None) -> Any:
    stream = (definition or define()).writeStream(source.stream(spark)).sink(sink)
    return stream.option("checkpointLocation", str(tmp_path / "checkpoint"))


def until(condition: Callable[[], bool], query: Any) -> None:
    """Wait for a condition of a running query, whose failure ends the wait."""
    while not condition():
        if query.awaitTermination(0.05) or query.exception() is not None:
            raise AssertionError(f"the query ended first: {query.exception()}")


def test_early_panes_come_by_the_clock_without_any_input(spark: Any, feed: Any, tmp_path: Path) -> None:
    source, sink, clock = feed(), wr.sinks.memory(), ManualClock()
    source.add(rows(1, 2, 3))
    definition = define(emit=wr.Emit(early=wr.every("10 seconds")))
    query = (
        writer(spark, source, tmp_path, sink, definition)
        .clock(clock)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    until(lambda: bool(query.lastProgress and query.lastProgress["counters"].get("rows")), query)
    assert sink.panes == []
    clock.advance(timedelta(seconds=11))
    until(lambda: bool(sink.panes), query)
    query.stop()
    assert [(p.timing.value, p["n"]) for p in sink.panes] == [("EARLY", 3)]
    health = query.lastProgress["health"]
    assert (health["unpublished"], health["heldBy"]) == (0, {"source": "files", "partition": 0})


def test_drain_fires_everything_and_later_data_is_late(spark: Any, feed: Any, tmp_path: Path) -> None:
    source, sink = feed(), wr.sinks.memory()
    source.add(rows(1, 2, 11))
    query = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sink.panes == []
    query.drain()
    assert [(p.timing.value, p["n"]) for p in sink.panes] == [("ON_TIME", 2), ("ON_TIME", 1)]
    commit = query.lastProgress["commit"]
    query.drain()
    assert query.lastProgress["commit"] == commit
    query.stop()


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing.File{}BasedCheckpointFileManager"


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "100 milliseconds"}])
def test_spark_keeps_its_checkpoint_without_a_process_for_each_look_at_a_file(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trigger: dict[str, Any]
) -> None:
    """The query has the setting, the session has not; what was chosen is kept, and either goes on with the other."""
    source, sink, asked = feed(), wr.sinks.memory(), list[Any]()
    batch = BatchFunction._batch

    def noted(self: Any, df: Any, number: int) -> None:
        asked.append(df.sparkSession.conf.get(MANAGER, None))
        batch(self, df, number)

    monkeypatch.setattr(BatchFunction, "_batch", noted)
    chosen = [None, MANAGERS.format("Context"), None]
    for n, manager in enumerate(chosen):
        source.add(rows(10 * n + 1, 10 * n + 2))
        if manager is not None:
            spark.conf.set(MANAGER, manager)
        query = writer(spark, source, tmp_path, sink).trigger(**trigger).start()
        assert spark.conf.get(MANAGER, None) == manager
        query.processAllAvailable()
        query.stop()
        spark.conf.unset(MANAGER)
        assert {*asked} == {manager or MANAGERS.format("System")}
        asked.clear()
    if "availableNow" in trigger:
        writer(spark, source, tmp_path, sink).trigger(availableNow=True).start().drain()
        assert sorted(p["n"] for p in sink.panes) == [2, 2, 2]


def test_a_query_that_spark_itself_was_asked_to_stop_is_not_taken_for_one_that_has_read_everything(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source, sink = feed(), wr.sinks.memory()
    for second in range(3):
        source.add(rows(second))
    stopped = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    spark.streams.get(stopped.id).stop()
    with pytest.raises(QueryStopped, match="perhaps unread"):
        stopped.drain()
    stopped.stop()
    query = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    query.drain()
    assert [(p.timing.value, p["n"]) for p in sink.panes] == [("ON_TIME", 3)]


def test_an_idle_query_makes_no_commits_and_continues_under_the_other_trigger(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source, sink, folder = feed(), wr.sinks.memory(), tmp_path / "checkpoint" / "spark"
    for second in (1, 2):
        source.add(rows(second))
    query = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress["batchId"] == 1  # a batch for each file: the heartbeat does not make them one
    query.stop()

    query = writer(spark, source, tmp_path, sink).trigger(processingTime="10 milliseconds").start()

    def rests() -> bool:
        """Three batches after the last commit: where a period of the clock ends, one more is made first."""
        come, made = query.query.lastProgress, query.lastProgress
        return bool(come and made and come["batchId"] >= made["batchId"] + 3)

    until(rests, query)
    resting = query.lastProgress
    assert resting["batchId"] >= 2 and resting["health"]["ageMs"] < 60_000
    assert "snapshotCommits" in resting["health"]
    source.add(rows(3))
    until(lambda: query.lastProgress["numInputRows"] == 1, query)
    query.stop()
    assert query.lastProgress["commit"] > resting["commit"]

    query = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    query.drain()
    assert [(p.timing.value, p["n"]) for p in sink.panes] == [("ON_TIME", 3)]
    assert len(os.listdir(folder / "sources")) == 2


def test_a_query_with_a_heartbeat_drains_what_is_there_though_it_is_never_idle(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source, sink = feed(), wr.sinks.memory()
    for start in (0, 20, 40):
        source.add(rows(start, start + 1))
    query = writer(spark, source, tmp_path, sink).trigger(processingTime="10 milliseconds").start()
    query.drain()
    query.stop()
    assert sorted((p.window.start_us // 1_000_000, p["n"]) for p in sink.panes) == [(0, 2), (20, 2), (40, 2)]


def test_a_drain_after_a_restart_reads_what_the_life_before_has_left(
    spark: Any, feed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that is planned before is committed already and has no rows: that says nothing of the files after it."""
    source, sink = feed(), wr.sinks.memory()
    for second in range(4):
        source.add(rows(second))

    class Refuses:
        def publish(self, token: wr.Token, panes: Any) -> None:
            raise ConnectionError("full")

        def last_commit(self, job: str, operator: str) -> int | None:
            return None

    monkeypatch.setattr(protocol, "PUBLISH_ATTEMPTS", 1)
    definition = define(emit=wr.Emit(early=wr.every_batch))
    first = writer(spark, source, tmp_path, Refuses(), definition).start()
    with pytest.raises(StreamingQueryException, match="refused the panes of 'aggregate' of commit 1"):
        first.drain()
    first.stop()
    stopped = writer(spark, source, tmp_path, sink, definition).start()
    stopped.stop()
    with pytest.raises(QueryStopped, match="perhaps unread"):
        stopped.drain()
    last = writer(spark, source, tmp_path, sink, definition).start()
    last.drain()
    assert (sink.panes[-1].timing.value, sink.panes[-1]["n"]) == ("ON_TIME", 4)


def test_a_second_run_on_the_same_checkpoint_processes_nothing(spark: Any, feed: Any, tmp_path: Path) -> None:
    source = feed()
    source.add(rows(1, 2, 11))
    for _ in range(2):
        query = (
            writer(spark, source, tmp_path, wr.sinks.parquet(str(tmp_path / "out")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        query.drain()
        query.stop()
        files = sorted(os.listdir(tmp_path / "out"))
    assert (query.lastProgress or {"numInputRows": 0})[
        "numInputRows"
    ] == 0  # a look at what is due, and no more
    assert files == sorted(os.listdir(tmp_path / "out"))
    assert len(wr.read_panes(str(tmp_path / "out"))) == 2


def test_with_sparks_checkpoint_deleted_our_positions_decide(spark: Any, feed: Any, tmp_path: Path) -> None:
    source, sink = feed(), wr.sinks.memory()
    source.add(rows(1, 2, 11))
    first = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    first.awaitTermination()
    first.stop()
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    source.add(rows(3, 40))
    second = writer(spark, source, tmp_path, sink).trigger(availableNow=True).start()
    second.awaitTermination()
    second.drain()
    second.stop()
    latest = {p.window.start_us // 1_000_000: p["n"] for p in sink.panes}
    assert latest == {0: 3, 10: 1, 40: 1}


def test_the_recorded_steps_name_the_rows_of_files_that_they_took(
    spark: Any, feed: Any, tmp_path: Path
) -> None:
    source = feed()
    source.add(rows(1, 2, 11))
    definition = define(agg={"n": wr.count()})
    query = writer(spark, source, tmp_path, wr.sinks.memory(), definition).trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()
    steps = [s for c in query.batch.job.commits() for s in c.steps if s.rows]
    [(source_name, partition)] = steps[0].next_offsets
    assert source_name.endswith("00000.parquet")
    assert (partition, steps[0].first_offsets[source_name, 0], steps[0].next_offsets[source_name, 0]) == (
        0,
        0,
        3,
    )


def test_what_is_wrong_is_said_at_start_and_by_the_driver(spark: Any, feed: Any, tmp_path: Path) -> None:
    source = feed()
    with pytest.raises(UnknownColumn, match="column 'nope' of 'aggregate' is not in the input"):
        define(by="nope").writeStream(source.stream(spark))
    stream = define().writeStream(source.stream(spark))
    with pytest.raises(ConfigurationError, match=r"use apply\(df\)"):
        define().writeStream(spark.range(1))
    with pytest.raises(ConfigurationError, match=r"is streaming: use writeStream\(df\)"):
        define().apply(source.stream(spark))
    for bad in ("out/x", 42):
        with pytest.raises(ConfigurationError, match=f"{bad!r} is no sink"):
            stream.sink(bad)
        with pytest.raises(ConfigurationError, match=f"{bad!r} is no sink"):
            stream.deadLetters(bad)
    with pytest.raises(
        ConfigurationError, match=r"'Checkpoint_Location'.*did you mean 'checkpointLocation'\?"
    ):
        stream.option("Checkpoint_Location", "c")
    with pytest.raises(ConfigurationError, match=r"'maxFilesPerTrigger'.*go to spark\.readStream"):
        stream.options(maxFilesPerTrigger=1)
    stream.option("CHECKPOINTLOCATION", str(tmp_path / "c"))
    with pytest.raises(ConfigurationError, match=r"no sink: .*\.sink\(wr\.sinks"):
        stream.start()
    with pytest.raises(ConfigurationError, match="shards='abc': use how many"):
        stream.sink({}).option("shards", "abc").start()
    with pytest.raises(ConfigurationError, match="shards=0: use how many"):
        define().foreach_batch(str(tmp_path / "c"), shards=0)
    with pytest.raises(ConfigurationError, match="no checkpointLocation"):
        define().writeStream(source.stream(spark)).sink(wr.sinks.memory()).start()
    assert not (tmp_path / "c").exists()


def test_verbs_of_spark_that_have_another_place_say_which(spark: Any, feed: Any) -> None:
    writer = define().writeStream(feed().stream(spark))
    for verb, says in [
        ("outputMode", "'outputMode': the definition says what is emitted when: emit="),
        ("format", "'format': use .sink"),
        ("foreachBatch", r"'foreachBatch': use .sink\(function\)"),
        ("partitionBy", "'partitionBy': see help"),
    ]:
        with pytest.raises(AttributeError, match=f"the writer of writeStream has no {says}"):
            getattr(writer, verb)
    with pytest.raises(
        UnknownOption, match="trigger has no option 'processingtime': did you mean 'processingTime'"
    ):
        writer.trigger(processingtime="1 second")  # type: ignore[call-arg]


def test_an_input_whose_rows_would_all_be_dead_letters_is_refused_up_front(spark: Any, feed: Any) -> None:
    stream = feed().stream(spark)
    for sql, says in [
        ("cast(v as double)", "'t' of the input is of type double, which is no time: cast it"),
        ("v > 0", "'t' is of type bool: use a timestamp"),
        ("cast(t as timestamp_ntz)", "'t' has no time zone .* declare it with time_zone"),
        ("struct(t)", "'t' is of type struct.*: use a timestamp"),
    ]:
        with pytest.raises(TypeClash, match=says):
            define().writeStream(stream.selectExpr("k", "v", f"{sql} as t"))
    alone, named = define(), define(input="i")
    verbs: list[Callable[[Any], Any]] = [
        alone.writeStream,
        lambda rows: named.together(i=rows),
        lambda rows: named.writeStream(i=rows),
    ]
    for verb in verbs:
        with pytest.raises(wr.ConfigurationError, match="is a list: give a DataFrame of Spark, such as"):
            verb([{"k": "a"}])
    with pytest.raises(TypeClash, match="which is no time"):
        define().apply(spark.sql("select 1.5D as t, 'a' as k, 1L as v"))
    with pytest.raises(DuplicateColumn, match="'k' and 'K', which are one name to Spark"):
        define().writeStream(stream.selectExpr("k", "v", "t", "v as K"))
    with pytest.raises(DuplicateColumn):
        wr.Join(
            left=wr.Input("a", event_time="t"),
            right=wr.Input("b", event_time="t"),
            on="k",
            retention="1 hour",
        ).together(a=stream.selectExpr("k", "t", "v", "v"), b=stream)


def moved(spark: Any, folder: Path, files: Sequence[list[dict[str, Any]]], feed: Any) -> None:
    """Two folders take turns, as two executors would: what each has is behind when it is its turn again."""
    for n, batch in enumerate(files):
        feed.add(batch)
        executors.run(spark, folder, "-two", str(folder / f"executor-{n % 2}"), drain=n == len(files) - 1)


def on_two_executors(spark: Any, folder: Path, files: Sequence[list[dict[str, Any]]], feed: Any) -> None:
    """A cluster of its own."""
    for batch in files:
        feed.add(batch)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.executors", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("move", usually([moved], deep=[moved, on_two_executors]))
def test_shards_move_between_executors_with_folders_of_their_own(
    move: Callable[..., None], spark: Any, feed: Any, tmp_path: Path
) -> None:
    """In a cluster as a rule in tests/drills alone, where one of its executors is killed."""
    times = range(usually(4, deep=8))
    files = [[{"t": at(5 * i - s), "k": "abcd"[s % 4], "v": s} for s in range(20)] for i in times]
    move(spark, tmp_path, files, feed())
    executors.run(spark, tmp_path, "-one")
    one, two = (wr.read_panes(str(tmp_path / ("out" + n))).to_pylist() for n in ("-one", "-two"))
    order = [("window", "start"), ("pane", "index")]

    def key(row: dict[str, Any]) -> Any:
        return (row["commit"], row["k"], *[row[a][b] for a, b in order])

    assert sorted(one, key=key) == sorted(two, key=key) != []


def test_a_source_of_which_nothing_limits_a_batch_is_warned_of(
    spark: Any, feed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source = feed()
    source.add(rows(1))
    limited, schema = source.stream(spark), source.stream(spark).schema
    unlimited = spark.readStream.schema(schema).parquet(str(source.path))
    topic = wr.sources.kafka("nowhere:9092", "orders", value=wr.decoders.json(SCHEMA))
    rate = spark.readStream.format("rate").load().selectExpr("timestamp as t", "'a' as k", "value as v")
    by_bytes = spark.readStream.schema(schema).option("MAXBYTESPERTRIGGER", "1g").parquet(str(source.path))
    progress = {
        "maxFilesPerTrigger": [unlimited.where("v > 0"), limited.union(unlimited)],
        "max_offsets": [topic],
    }
    for remedy, streams in {**progress, "": [limited, by_bytes, rate, replace(topic, max_offsets=5)]}.items():
        for stream in streams:
            caplog.clear()
            warn_of_no_limit(stream)
            assert len(caplog.records) == bool(remedy)
            assert remedy in caplog.text


def test_no_error_is_logged_of_a_stream_without_files_and_workers_run_this_python(
    spark: Any, feed: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rate = spark.readStream.format("rate").load()
    assert routes.with_file_positions(rate) is None
    assert routes.with_file_positions(feed().stream(spark).where("v > 0")) is not None
    assert "ERROR" not in capfd.readouterr().err
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3-of-nowhere")
    check_session(spark)
    assert spark.sparkContext.pythonExec == sys.executable
