"""`windrow metrics LOCATION`: the numbers of a job's log for Prometheus, for jobs without an SDK of OpenTelemetry.

Names are those under which OpenTelemetry's exporter for Prometheus exposes the metrics of `runners/telemetry.py`. The log is
read at each scrape. Nothing is written, and the job is not disturbed.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from windrow.checkpoint import job_admin
from windrow.checkpoint.health import size_of
from windrow.console import views
from windrow.core.clock import SystemClock
from windrow.core.errors import ConfigurationError, WindrowError
from windrow.core.extras import need
from windrow.runners.state.definitions import Definitions, location_and_log
from windrow.runners.telemetry import LATE, METRICS, SECONDS, Metric, age_s, first_after, lags_of, panes_of

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

#: Metrics of the server alone.
SERVED = {
    "windrow.commit.age": Metric(
        "gauge", "s", "seconds since the last commit, or the last sign of life of an idle job"
    ),
    "windrow.up": Metric("gauge", "", "1 where the log of the location can be read"),
}
_UNITS = {"s": "_seconds", "By": "_bytes"}


def exposed(name: str) -> str:
    """Return the name of a metric for Prometheus, without the ending of counters."""
    return name.replace(".", "_") + _UNITS.get({**METRICS, **SERVED}[name].unit, "")


def serve(options: argparse.Namespace, out: TextIO) -> int:
    """Serve the metrics of jobs until Ctrl-C."""
    need("prometheus_client", "metrics", "windrow metrics")
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(LogCollector([Watched(location) for location in options.locations]))
    try:
        server, thread = start_http_server(options.port, options.host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"port {options.port} of {options.host} cannot be served ({error}): use another --port"
        ) from error
    print(f"http://{options.host}:{server.server_port}/metrics", file=out, flush=True)
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()
    return 0


@dataclass
class Watched:
    """A job that is watched, and the sums over its commits since it was first seen: the log keeps the last ones alone."""

    location: str
    job: str = ""
    seen: int = 0
    panes: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total_s: float = 0.0

    def look(self) -> job_admin.Look:
        """Read the log and add the commits that are new."""
        look = job_admin.look(*location_and_log(self.location))
        if look.epoch.job != self.job:
            self.job, self.seen, self.panes, self.total_s = look.epoch.job, 0, {}, 0.0
            self.counts = [0] * (len(SECONDS) + 1)
        for commit in look.log.commits():
            if commit.commit <= self.seen:
                continue
            self.seen = commit.commit
            for operator, rows in panes_of(commit).items():
                self.panes[operator] = self.panes.get(operator, 0) + rows
            took_ms = views.duration_ms(look, commit)
            if took_ms is not None:
                self._took(took_ms / 1e3)
        return look

    def _took(self, seconds: float) -> None:
        self.total_s += seconds
        self.counts[sum(seconds > bound for bound in SECONDS)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts of durations, by upper bound."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, SECONDS), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class LogCollector:
    """The metrics of jobs, from their logs, as of each scrape."""

    def __init__(self, jobs: list[Watched]) -> None:
        self._jobs, self._turn = jobs, threading.Lock()

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of all jobs."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        families: dict[str, Any] = {}
        for name, metric in {**METRICS, **SERVED}.items():
            labels = ["location"] if name == "windrow.up" else ["job", *metric.attributes]
            families[name] = kinds[metric.kind](exposed(name), metric.meaning, labels=labels)
        with self._turn:
            for watched in self._jobs:
                try:
                    self._add(families, watched)
                    readable = 1.0
                except (WindrowError, OSError):
                    readable = 0.0
                families["windrow.up"].add_metric([watched.location], readable)
        for family in families.values():
            if family.samples:
                yield family

    def _add(self, families: dict[str, Any], watched: Watched) -> None:
        """Add the numbers of one job."""
        look = watched.look()
        last, job = look.last_commit, look.epoch.job
        now_us = SystemClock().now_us()
        health = views.health(look, now_us)
        gauges: dict[str, float] = {
            "windrow.unpublished": health.unpublished,
            "windrow.snapshot.commits": health.since_snapshot,
        }
        if last is not None:
            since = first_after(look.log, last.commit - health.since_snapshot, last)
            gauges["windrow.snapshot.age"] = age_s(since, last)
        if health.age_us is not None:
            gauges["windrow.commit.age"] = health.age_us / 1e6
        gauges["windrow.state.size"] = size_of(look.folders.location)
        for name, value in gauges.items():
            families[name].add_metric([job], value)
        totals = {} if last is None else last.counters
        dead = {n.removeprefix("dead."): v for n, v in totals.items() if n.startswith("dead.")}
        families["windrow.commits"].add_metric([job], health.commit)
        families["windrow.rows"].add_metric([job], totals.get("rows", 0))
        families["windrow.late"].add_metric([job], sum(dead.get(reason, 0) for reason in LATE))
        for reason, n in dead.items():
            families["windrow.dead_letters"].add_metric([job, reason], n)
        for operator, n in watched.panes.items():
            families["windrow.panes"].add_metric([job, operator], n)
        families["windrow.commit.duration"].add_metric([job], watched.buckets(), watched.total_s)
        definitions = Definitions(look.epoch, look.where)
        known = {whole.name: whole for whole in (definitions.whole(n) for n in definitions.found)}
        for operator, lag_us in () if last is None else lags_of(last, [*known.values()], now_us).items():
            families["windrow.watermark.lag"].add_metric([job, operator], lag_us / 1e6)
