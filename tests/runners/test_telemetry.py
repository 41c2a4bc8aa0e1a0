"""Telemetry: what a job did is what its metrics and spans say, once a commit, and never by a key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import windrow as wr
from windrow.checkpoint.health import size_of
from windrow.runners import telemetry
from windrow.testing import ManualClock

HOURLY = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("1 hour"),
    agg={"n": wr.count()},
    retention="1 hour",
    watermark="5 minutes",
    emit=wr.Emit(late=wr.every_batch),
    name="hourly",
)
READER, SPANS = InMemoryMetricReader(), InMemorySpanExporter()


@cache
def set_providers() -> None:
    """Set the providers of the process, which can be set once."""
    metrics.set_meter_provider(MeterProvider([READER]))
    tracer = TracerProvider()
    tracer.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(tracer)


@pytest.fixture(autouse=True)
def providers() -> Iterator[None]:
    """Providers that keep nothing of other tests."""
    set_providers()
    yield
    SPANS.clear()


def measured(job: str) -> dict[tuple[Any, ...], Any]:
    """Return the points of a job: a number, or a histogram's count and sum, by name and other attributes."""
    points: dict[tuple[Any, ...], Any] = {}
    data = READER.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes)
                    if attributes.pop("job") == job:
                        value = getattr(point, "value", None)
                        place = (metric.name, *map(str, attributes.values()))
                        points[place] = (point.count, point.sum) if value is None else value
    return points


def minute(n: int) -> dict[str, Any]:
    return {"k": "secret key", "t": n * 60_000_000}


def test_metrics_say_what_the_job_did(tmp_path: Path) -> None:
    clock, taken = ManualClock(0), list[Any]()
    with HOURLY.open(str(tmp_path), clock=clock, sink=lambda panes, token: taken.extend(panes)) as op:
        clock.set(7_200_000_000)
        op.add_messages([minute(10), minute(20), minute(100)])
        op.flush()
        clock.advance("1 minute")
        op.add_messages([minute(30), {"k": "b", "t": "yesterday"}, minute(300)])
        op.flush()
        op.add_messages([minute(40)])  # out of retention
        op.flush()
        job, counters = op.job, op.counters
        points = measured(job)
        health, last = op.health(), op.last_commit
        size = size_of(str(tmp_path))
    assert points["windrow.commits",] == last == 3
    assert points["windrow.rows",] == counters["rows"] == 7
    assert points["windrow.panes", "hourly"] == len(taken) > 2
    assert points["windrow.dead_letters", "malformed"] == 1
    assert points["windrow.late",] == points["windrow.dead_letters", "out_of_retention"] == 1
    assert points["windrow.unpublished",] == health.unpublished == 0
    assert points["windrow.snapshot.commits",] == health.since_snapshot == 3
    assert points["windrow.snapshot.age",] == 60, "from the first commit to the last"
    assert points["windrow.watermark.lag", "hourly"] == health.lag_us / 1e6 == (7_260 - 295 * 60)
    assert 0 < points["windrow.state.size",] <= 2 * size
    count, seconds = points["windrow.commit.duration",]
    published, publishing = points["windrow.publish.duration",]
    assert (count, published) == (3, 3) and 0 < publishing < seconds
    assert "secret" not in repr(points)


def test_every_metric_is_recorded_and_none_is_unnamed(tmp_path: Path) -> None:
    with HOURLY.open(str(tmp_path), sink=lambda panes, token: None) as op:
        op.add_messages([minute(10), minute(100), {"k": 1, "t": "no"}])
        op.flush()
        record = op.engine.job.log.last_commit
        assert record is not None
        op.engine._telemetry.committed(record, telemetry.Stages(), lambda: {"topic": {"0": 17}})
        points = measured(op.job)
    assert {name for name, *_ in points} == set(telemetry.METRICS)
    assert points["windrow.lag", "topic", "0"] == 17


def test_what_an_earlier_run_counted_is_not_counted_again(tmp_path: Path) -> None:
    for n in range(2):
        with HOURLY.open(str(tmp_path)) as op:
            op.add_messages([{"k": 1, "t": "no"}, minute(10)])
            op.flush()
            assert measured(op.job)["windrow.dead_letters", "malformed"] == n + 1
            assert op.counters["dead.malformed"] == n + 1


def test_spans_of_a_commit_lie_one_after_the_other_within_it(tmp_path: Path) -> None:
    SPANS.clear()
    with HOURLY.open(str(tmp_path), sink=lambda panes, token: None) as op:
        op.add_messages([minute(10), minute(100)])
        op.flush()
    *stages, whole = [span for span in SPANS.get_finished_spans()][:6]
    assert [span.name for span in stages] == [
        f"windrow.{stage}" for stage in ("plan", "run", "record", "publish", "tidy")
    ]
    assert whole.name == "windrow.commit" and dict(whole.attributes or {})["rows"] == 2
    times = [whole.start_time]
    for span in stages:
        assert span.parent is not None and whole.context is not None
        assert span.parent.span_id == whole.context.span_id
        assert span.start_time == times[-1]
        times.append(span.end_time)
    assert times[-1] == whole.end_time


@pytest.mark.spark
def test_spark_records_the_same_and_a_span_for_each_shard(spark: Any, tmp_path: Path) -> None:
    SPANS.clear()
    function = HOURLY.foreach_batch(str(tmp_path), sink=lambda frame, token: None, shards=2)
    function(spark.createDataFrame([(f"k{n}", n * 60_000_000) for n in range(90)], "k string, t long"), 0)
    function.close()
    points = measured(function.job.job)
    assert points["windrow.rows",] == 90
    assert points["windrow.commit.duration",][0] == points["windrow.commits",] == 1
    spans = SPANS.get_finished_spans()
    shards = [span for span in spans if span.name == "windrow.shard"]
    [run] = [span for span in spans if span.name == "windrow.run"]
    assert sorted(dict(span.attributes or {})["shard"] for span in shards) == [0, 1]
    for span in shards:
        assert run.start_time <= span.start_time < span.end_time <= run.end_time


def test_an_exporter_that_fails_stops_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no meter")

    monkeypatch.setattr(telemetry.Telemetry, "_measure", fails)
    with HOURLY.open(str(tmp_path)) as op:
        op.add_messages([minute(10)])
        op.flush()
        assert op.last_commit == 1


def test_windrow_imports_no_telemetry_and_needs_none(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["opentelemetry.sdk"] = None
import windrow as wr
with {HOURLY!r}.open({str(tmp_path)!r}) as op:
    op.add_messages([{{"k": 1, "t": 1}}]); op.flush()
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "prometheus"))))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "['opentelemetry.sdk']\n"
