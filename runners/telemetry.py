"""Telemetry of a job by OpenTelemetry's API: numbers and spans, recorded once a commit.

Nothing happens unless the program has imported `opentelemetry`, which windrow never does by itself. Exporters are the
program's own. No key is an attribute: the attributes are job, operator and the reason of dead letters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windrow.checkpoint.compaction import snapshots_from
from windrow.checkpoint.health import size_of
from windrow.checkpoint.job import Job
from windrow.checkpoint.log import Log
from windrow.checkpoint.records import PANES_OF, Commit, now_of
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.operator import Definition

#: Reasons of dead letters that came too late for all of their windows.
LATE = ("too_late", "out_of_retention")
#: The state is measured at most once in so many seconds: that reads a directory.
SIZE_EVERY_S = 60.0
#: Upper bounds of durations, in seconds.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class Metric:
    """A metric: its kind, unit and meaning, and its attributes besides `job`."""

    kind: str
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()


METRICS = {
    "windrow.commits": Metric("counter", "{commit}", "commits"),
    "windrow.rows": Metric("counter", "{row}", "messages that commits ingested"),
    "windrow.panes": Metric("counter", "{pane}", "emitted panes and rows", ("operator",)),
    "windrow.late": Metric("counter", "{row}", "messages that came too late for all of their windows"),
    "windrow.dead_letters": Metric("counter", "{row}", "dead letters", ("reason",)),
    "windrow.commit.duration": Metric(
        "histogram", "s", "duration of a commit, publishing and tidying included"
    ),
    "windrow.publish.duration": Metric(
        "histogram", "s", "time in which the sinks took the output of a commit"
    ),
    "windrow.watermark.lag": Metric("gauge", "s", "distance from the watermark to now", ("operator",)),
    "windrow.unpublished": Metric("gauge", "{commit}", "commits whose output sinks may lack"),
    "windrow.state.size": Metric("gauge", "By", "bytes below the location, measured once a minute at most"),
    "windrow.snapshot.commits": Metric("gauge", "{commit}", "commits since the newest snapshot"),
    "windrow.snapshot.age": Metric(
        "gauge", "s", "time from the first commit since the newest snapshot to the last"
    ),
    "windrow.lag": Metric("gauge", "{record}", "records of Kafka that are not read", ("source", "partition")),
}
_instruments: dict[str, Any] = {}


class Stages:
    """The times at which the stages of a commit begin, and the times of its shards."""

    def __init__(self) -> None:
        self.begun = [("plan", time.time_ns())]
        self.shards: Sequence[tuple[int, int, int]] = ()

    def begin(self, name: str) -> None:
        """Begin the next stage."""
        self.begun.append((name, time.time_ns()))

    def ended(self, end_ns: int) -> list[tuple[str, int, int]]:
        """Return each stage with its begin and end."""
        ends = [*(at for _, at in self.begun[1:]), end_ns]
        return [(name, at, end) for (name, at), end in zip(self.begun, ends, strict=True)]


@dataclass
class Telemetry:
    """The telemetry of one opened job. definitions: those that were opened, by which the watermark is kept."""

    job: Job
    definitions: Sequence[Definition]
    _counters: dict[str, int] = field(default_factory=dict)
    _measured_s: float = -SIZE_EVERY_S
    _begins: tuple[int, Commit | None] = (-1, None)

    def __post_init__(self) -> None:
        self._counters = dict(self.job.progress.counters)

    def committed(
        self, record: Commit, stages: Stages, lag: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    ) -> None:
        """Record a commit that has just ended. lag: returns unread records of Kafka, by source and partition."""
        before, self._counters = self._counters, dict(record.counters)
        metrics, trace = sys.modules.get("opentelemetry.metrics"), sys.modules.get("opentelemetry.trace")
        if metrics is None and trace is None:
            return
        try:
            now_ns = time.time_ns()
            if metrics is not None:
                self._measure(metrics, record, before, stages.ended(now_ns))
                self._measure_lag(lag())
            if trace is not None:
                self._trace(trace, record, stages, now_ns)
        except Exception as error:  # telemetry is no part of the work
            self.job.logger.warning("a commit could not be measured", commit=record.commit, error=repr(error))

    def _measure(
        self, api: Any, record: Commit, before: Mapping[str, int], stages: Sequence[tuple[str, int, int]]
    ) -> None:
        instruments = _instruments or _created(api)
        job = {"job": self.job.job}
        instruments["windrow.commits"].add(1, job)
        instruments["windrow.rows"].add(sum(step.rows for step in record.steps), job)
        for operator, rows in panes_of(record).items():
            instruments["windrow.panes"].add(rows, {**job, "operator": operator})
        dead = {
            name.removeprefix("dead."): n - before.get(name, 0)
            for name, n in record.counters.items()
            if name.startswith("dead.") and n > before.get(name, 0)
        }
        for reason, n in dead.items():
            instruments["windrow.dead_letters"].add(n, {**job, "reason": reason})
        instruments["windrow.late"].add(sum(dead.get(reason, 0) for reason in LATE), job)
        instruments["windrow.commit.duration"].record((stages[-1][2] - stages[0][1]) / 1e9, job)
        for name, begin_ns, end_ns in stages:
            if name == "publish":
                instruments["windrow.publish.duration"].record((end_ns - begin_ns) / 1e9, job)
        for operator, lag_us in lags_of(record, self.definitions, now_of(record)).items():
            instruments["windrow.watermark.lag"].set(lag_us / 1e6, {**job, "operator": operator})
        progress = self.job.progress
        instruments["windrow.unpublished"].set(max(0, record.commit - progress.published), job)
        snapshot = snapshots_from(self.job.folders, self.job.shards)
        instruments["windrow.snapshot.commits"].set(record.commit - snapshot, job)
        if record.commit <= snapshot or self._begins[0] != snapshot:  # the log is read once for each snapshot
            self._begins = snapshot, first_after(self.job.log, snapshot, record)
        instruments["windrow.snapshot.age"].set(age_s(self._begins[1] or record, record), job)
        if time.monotonic() - self._measured_s >= SIZE_EVERY_S:
            self._measured_s = time.monotonic()
            instruments["windrow.state.size"].set(size_of(self.job.folders.location), job)

    def _measure_lag(self, lag: Mapping[str, Mapping[str, int]]) -> None:
        for source, partitions in lag.items():
            for partition, records in partitions.items():
                attributes = {"job": self.job.job, "source": source, "partition": partition}
                _instruments["windrow.lag"].set(records, attributes)

    def _trace(self, api: Any, record: Commit, stages: Stages, end_ns: int) -> None:
        tracer = api.get_tracer("windrow")
        facts = {"job": self.job.job, "commit": record.commit, "rows": sum(s.rows for s in record.steps)}
        whole = tracer.start_span("windrow.commit", start_time=stages.begun[0][1], attributes=facts)
        if whole.is_recording():
            within = api.set_span_in_context(whole)
            for name, begin_ns, stage_end_ns in stages.ended(end_ns):
                span = tracer.start_span(f"windrow.{name}", within, start_time=begin_ns)
                inside = api.set_span_in_context(span)
                for shard, shard_begin_ns, shard_end_ns in stages.shards if name == "run" else ():
                    about = {"shard": shard}
                    opened = tracer.start_span(
                        "windrow.shard", inside, start_time=shard_begin_ns, attributes=about
                    )
                    opened.end(shard_end_ns)
                span.end(stage_end_ns)
        whole.end(end_ns)


def panes_of(record: Commit) -> dict[str, int]:
    """Return how many rows each operator emitted in a commit."""
    rows: dict[str, int] = {}
    for shard in record.shards:
        for name, n in shard.counters.items():
            if name.startswith(PANES_OF):
                operator = name.removeprefix(PANES_OF)
                rows[operator] = rows.get(operator, 0) + n
    return rows


def first_after(log: Log, snapshot: int, last: Commit) -> Commit:
    """Return the first commit since a snapshot that the log keeps; the last one where there is none."""
    return next(log.commits(max(snapshot + 1, log.first_commit)), last) if snapshot < last.commit else last


def age_s(first: Commit, last: Commit) -> float:
    """Return the seconds from one commit to another, by their `now`."""
    return max(0, (now_of(last) or 0) - (now_of(first) or 0)) / 1e6


def lags_of(record: Commit, definitions: Sequence[Definition], now_us: int | None) -> dict[str, int]:
    """Return the distance from each operator's watermark to `now`, in microseconds, where there is one."""
    reached = record.meta.get("watermarks", {})
    lags = {}
    for whole in definitions:
        for part in whole.parts:
            watermark_us = whole.watermark_of(part.name, reached.get(whole.name, START_OF_TIME_US))
            if now_us is not None and START_OF_TIME_US < watermark_us < END_OF_TIME_US:
                lags[part.name] = now_us - watermark_us
    return lags


def _created(api: Any) -> dict[str, Any]:
    """Return the instruments, made once in a process: those of the API follow a provider that comes later."""
    meter = api.get_meter("windrow")
    for name, metric in METRICS.items():
        make = getattr(meter, f"create_{metric.kind}")
        options = {"explicit_bucket_boundaries_advisory": SECONDS} if metric.kind == "histogram" else {}
        _instruments[name] = make(name, unit=metric.unit, description=metric.meaning, **options)
    return _instruments
