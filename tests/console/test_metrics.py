"""`windrow metrics`: the log's numbers for Prometheus; rules and dashboard, evaluated by a running Prometheus."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import windrow as wr
from tests.console.small_jobs import minutes
from windrow.console.main import main
from windrow.console.metrics import SERVED, LogCollector, Watched, exposed
from windrow.runners.telemetry import METRICS

OBSERVE = Path(__file__).resolve().parents[2] / "docker" / "observe"
COUNTS = minutes("1 minute")
#: A job with the SDK, and with a sink: it commits once for each line that it is given.
JOB = """
import sys, time
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
import windrow as wr
from tests.console.small_jobs import minutes
from windrow.runners.telemetry import Stages

metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
server, _ = start_http_server(0, "127.0.0.1")
print(server.server_port, flush=True)
with {definition}.open({location!r}, sink=lambda panes, token: None) as op:
    for n, _ in enumerate(sys.stdin):
        now = time.time_ns() // 1000
        late = {{"k": 1, "t": now - 3_600_000_000}}
        op.add_messages([{{"k": n % 3, "t": now}}, {{"k": 1, "t": "no"}}, late])
        op.flush()
        op.engine._telemetry.committed(op.engine.job.log.last_commit, Stages(), lambda: {{"topic": {{"0": n}}}})
"""


def job(folder: Path, commits: int = 3) -> str:
    """Run a job with panes and dead letters, and return its identity."""
    with COUNTS.open(str(folder), sink=lambda panes, token: None) as op:
        for n in range(commits):
            op.add_messages([{"k": "secret key", "t": n * 600_000_000}, {"k": 1, "t": "no"}])
            op.flush()
        op.add_messages([{"k": "x", "t": 0}])
        op.flush()
        return op.job


def scraped(collector: LogCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def test_the_log_s_numbers_are_served_as_the_job_has_them(tmp_path: Path) -> None:
    name = job(tmp_path)
    registry = scraped(LogCollector([Watched(str(tmp_path))]))
    with wr.read_state(str(tmp_path)) as state:
        commits, panes, letters = state.commits(), state.panes(), state.dead_letters()

    def value(sample: str, **labels: str) -> float | None:
        return registry.get_sample_value(sample, {"job": name, **labels})

    assert value("windrow_commits_total") == len(commits) == 4
    assert value("windrow_rows_total") == commits[-1].counters["rows"] == 7
    assert value("windrow_panes_total", operator="counts") == sum(
        r.panes_rows for c in commits for r in c.shards
    )
    assert value("windrow_panes_total", operator="counts") >= len(panes)
    reasons = [letter.reason for letter in letters]
    assert value("windrow_dead_letters_total", reason="malformed") == reasons.count("malformed") == 3
    assert value("windrow_late_total") == reasons.count("out_of_retention") == 1
    assert value("windrow_commit_duration_seconds_count") == 4
    assert value("windrow_commit_duration_seconds_bucket", le="+Inf") == 4
    assert value("windrow_unpublished") == 0
    assert value("windrow_watermark_lag_seconds", operator="counts") == pytest.approx(
        time.time() - 1_200, abs=600
    )
    assert registry.get_sample_value("windrow_up", {"location": str(tmp_path)}) == 1
    assert "secret" not in repr([family.samples for family in registry.collect()])


def test_what_the_log_forgets_stays_counted_and_a_new_job_begins_anew(tmp_path: Path) -> None:
    watched = Watched(str(tmp_path / "job"))
    first = job(tmp_path / "job")
    watched.look()
    before = dict(watched.panes)
    watched.look()
    assert watched.panes == before and watched.buckets()[-1] == ("+Inf", 4)
    shutil.rmtree(tmp_path / "job")
    second = job(tmp_path / "job", commits=1)
    watched.look()
    assert first != second and watched.job == second and watched.buckets()[-1] == ("+Inf", 2)


def test_a_location_that_is_gone_or_none_is_down_and_the_others_are_up(tmp_path: Path) -> None:
    job(tmp_path / "job")
    (tmp_path / "empty").mkdir()
    places = [str(tmp_path / name) for name in ("job", "empty", "missing")]
    registry = scraped(LogCollector([Watched(place) for place in places]))
    assert [registry.get_sample_value("windrow_up", {"location": place}) for place in places] == [1, 0, 0]


def test_a_port_in_use_is_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["metrics", str(tmp_path), "--port", str(port)]) == 1
    assert f"port {port} of 127.0.0.1 cannot be served" in capsys.readouterr().err


def test_the_dashboard_is_what_its_program_makes() -> None:
    spec = importlib.util.spec_from_file_location("dashboard", OBSERVE / "dashboard.py")
    assert spec is not None and spec.loader is not None
    dashboard = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dashboard)
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text(), "run docker/observe/dashboard.py"


def expressions() -> dict[str, str]:
    """Return what panels and rules evaluate, by title; of rules the side that is compared."""
    board = json.loads((OBSERVE / "grafana" / "windrow.json").read_text(encoding="utf-8"))
    queries = {f"{p['title']} {t['refId']}": t["expr"] for p in board["panels"] for t in p["targets"]}
    rules = yaml.safe_load((OBSERVE / "rules.yaml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        [left] = re.findall(r"^(.*) [<>] \d+$", rule["expr"])
        queries[rule["alert"]] = left
    return queries


def test_panels_and_rules_name_every_metric_and_no_other() -> None:
    names = {exposed(name) for name in {**METRICS, **SERVED}}
    used = set(re.findall(r"windrow_\w+", " ".join(expressions().values())))
    used = {re.sub("_(total|bucket)$", "", name) for name in used}
    assert used == names


def prometheus(name: str) -> str:
    """Return a program of Debian's package; the test fails where it is missing."""
    program = shutil.which(name)
    assert program is not None, f"{name} is missing: run docker/observe/prometheus.sh"
    return program


def test_the_rules_fire_as_their_tests_say() -> None:
    checks = (
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "rules.test.yaml"],
        ["check", "config", "prometheus.yaml"],
    )
    for command in checks:
        done = subprocess.run(
            [prometheus("promtool"), *command], cwd=OBSERVE, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def asked(url: str, expression: str) -> list[Any]:
    """Return the series that an expression has in Prometheus now, not counting those that are not a number."""
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': expression})}") as answer:
            series = json.load(answer)["data"]["result"]
    except HTTPError:  # it is not ready
        return []
    return [one for one in series if one["value"][1] != "NaN"]


class Scrapes(BaseHTTPRequestHandler):
    """A target without metrics: it counts the scrapes, which a test waits for."""

    scraped = threading.Semaphore(0)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.scraped.release()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def scrapes() -> Iterator[int]:
    """The port of a target that counts scrapes."""
    with HTTPServer(("127.0.0.1", 0), Scrapes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def commit(live: subprocess.Popen[str]) -> None:
    assert live.stdin is not None
    live.stdin.write("\n")
    live.stdin.flush()


def test_a_running_prometheus_has_a_value_for_every_panel_and_rule(tmp_path: Path, scrapes: int) -> None:
    location = str(tmp_path / "job")
    code = JOB.format(definition=repr(COUNTS), location=location)
    serve = (sys.executable, "-m", "windrow.console.main", "metrics", location, "--port", "0")
    with (
        running(sys.executable, "-c", code, log=tmp_path / "job.log") as live,
        running(*serve, log=tmp_path / "log") as served,
    ):
        ports = [line_of(live), line_of(served).split(":")[-1].partition("/")[0]]
        config = yaml.safe_load((OBSERVE / "prometheus.yaml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
        config["rule_files"] = [str(OBSERVE / "rules.yaml")]
        config["scrape_configs"][0]["static_configs"] = [
            {"targets": [f"127.0.0.1:{port}" for port in (*ports, scrapes)]}
        ]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = (
            prometheus("prometheus"),
            f"--config.file={tmp_path}/prometheus.yaml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address={url.removeprefix('http://')}",
        )
        missing = expressions()
        with running(*command, log=tmp_path / "prometheus.log") as server:
            while missing and server.poll() is None and live.poll() is None:
                commit(live)
                if Scrapes.scraped.acquire(timeout=10):
                    missing = {title: e for title, e in missing.items() if not asked(url, e)}
            assert missing == {}, (tmp_path / "job.log").read_text() + (
                tmp_path / "prometheus.log"
            ).read_text()[-2000:]
            scrapes = [urlopen(f"http://127.0.0.1:{port}/metrics").read().decode() for port in ports]
            assert asked(url, "count by (job) (windrow_commits_total)")[0]["value"][1] == "2", (
                "both name the job alike"
            )
    kinds = [
        {
            family.name: family.type
            for family in text_string_to_metric_families(text)
            if family.name.startswith("windrow_")
        }
        for text in scrapes
    ]
    both = kinds[0].keys() & kinds[1].keys()
    assert {name: kinds[0][name] for name in both} == {name: kinds[1][name] for name in both}
    assert kinds[0].keys() == {exposed(name) for name in METRICS}, (
        "as the exporter of OpenTelemetry names them"
    )
    assert kinds[1].keys() - both == {exposed(name) for name in SERVED}
