"""The page of a job with 100,000 keys: when it is ready, what many readers wait, and what it costs server and job.

The job runs here, `windrow ui` in a process of its own, and is asked for whole documents by HTTP.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

import windrow as wr

from .harness import Context, Row, median, scratch

KEYS, CHANGED = 100_000, 100
READERS, REQUESTS = 20, 10
#: Commits over which the memory of a server is watched, and those of which the first and last tenths are compared.
COMMITS = 10_000
TABLE = "/jobs/job/table?operator=counts&table=windows"
COUNTS = wr.Aggregate(
    name="counts",
    by="key",
    event_time="t",
    window=wr.tumbling("1 hour"),
    retention="1 day",
    agg={"n": wr.count(), "total": wr.sum("v")},
    emit=wr.Emit(early=wr.every_batch),
)


def page(context: Context) -> list[Row]:
    """Time pages, readers, memory, and the commits of a job without and with a reader."""
    keys, commits = (5_000, 100) if context.quick else (KEYS, context.commits or COMMITS)
    first, ready, behind, ordered, waits = [], [], [], [], []
    with scratch() as folder, COUNTS.open(f"{folder}/job") as job:
        commit(job, keys)
        for _ in range(context.rounds):
            with served(f"{folder}/job") as (_, port):
                first.append(asked(port, "/jobs/job/watermark"))
                ready.append(asked(port, f"{TABLE}&order=key"))
                for n in range(10):
                    commit(job, CHANGED)
                    time.sleep(
                        0.3
                    )  # the server reads four times a second: without a pause it answers as of before
                    behind.append(asked(port, f"{TABLE}&order=key&page={n + 1}"))
                ordered.append(asked(port, f"{TABLE}&order=n&down=1"))
                waits.append(readers(job, port))
        paces = context.interleave({"alone": lambda: pace(job, None), "read": lambda: watched(folder, job)})
        before, after = memory(context, folder, job, commits)
    rows = [
        Row("page: a new server answers", "ms", median(first)),
        _bar("page: ready, 100,000 keys by key", "ms", median(ready), 500),
        _bar("page: behind a commit", "ms", median(behind), 300),
        _bar("page: by another column", "ms", median(ordered), 1_500),
        _bar(f"page: {READERS} readers, p99", "ms", median(waits), 1_000),
    ]
    share = 100 * (1 - median(paces["read"]) / median(paces["alone"]))
    rows.append(_bar("page: commits a second that an open page costs", "%", share, 1, paces))
    growth = after - before
    return [*rows, _bar(f"page: memory of the server that grows over {commits:,} commits", "MiB", growth, 20)]


def _bar(name: str, unit: str, ours: float, most: float, samples: Any = None) -> Row:
    return Row(
        name, unit, ours, most, "bar", most / ours if ours > 0 else None, "", ours < most, samples or {}
    )


def commit(job: Any, keys: int) -> None:
    """Commit one message for each of so many keys."""
    rows = {
        "key": pa.array([f"key-{n:06}" for n in range(keys)]),
        "t": pa.array(np.full(keys, 5), pa.timestamp("us", "UTC")),
        "v": np.arange(keys),
    }
    job.add_messages(pa.table(rows))
    job.flush()


@contextmanager
def served(location: str) -> Iterator[tuple[int, int]]:
    """The process and the port of a server."""
    command = [sys.executable, "-m", "windrow.console.main", "ui", location, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        assert process.stdout is not None
        try:
            yield process.pid, urlsplit(process.stdout.readline()).port or 0
        finally:
            process.terminate()


def asked(port: int, path: str) -> float:
    """Return the milliseconds until a document is here."""
    begun = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path, headers={"X-Part": "1"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200 or b"</main>" not in text:
        raise AssertionError(f"{path}: {answer.status}, {text[:200]!r}")
    return 1_000 * (time.perf_counter() - begun)


def readers(job: Any, port: int) -> float:
    """Return the 99th percentile of what readers wait who all follow a job."""
    waits: list[float] = []

    def read() -> None:
        waits.extend(asked(port, f"{TABLE}&page={n + 1}") for n in range(REQUESTS))

    threads = [threading.Thread(target=read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        commit(job, CHANGED)
        time.sleep(0.3)
    return float(np.percentile(waits, 99))


def follow(port: int, stop: threading.Event) -> None:
    """Ask for the table at each event, as the page does, until the job stands still and `stop` is set."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", "/jobs/job/events")
    events = connection.getresponse()
    while not stop.is_set():
        if events.readline().startswith(b"data"):
            asked(port, TABLE)
    connection.close()


def pace(job: Any, port: int | None, seconds: float = 5.0) -> float:
    """Return the commits a second of a job that makes as many as it can, on a core of its own."""
    stop, cores = threading.Event(), os.sched_getaffinity(0)
    reader = None
    if port is not None:
        code = f"from benchmarks.page import follow; import threading; follow({port}, threading.Event())"
        reader = subprocess.Popen([sys.executable, "-c", code])
        os.sched_setaffinity(reader.pid, {max(cores)})
        stop.wait(3)  # the reader has begun
    os.sched_setaffinity(0, {min(cores)})
    number, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        commit(job, CHANGED)
        number += 1
    os.sched_setaffinity(0, cores)
    if reader is not None:
        reader.kill()
        reader.wait()
    return number / passed


def watched(folder: str, job: Any) -> float:
    with served(f"{folder}/job") as (_, port):
        asked(port, TABLE)
        return pace(job, port)


def memory(context: Context, folder: str, job: Any, commits: int) -> tuple[float, float]:
    """Return the MiB of a server that follows a job, after a tenth of the commits and after all."""
    with served(f"{folder}/job") as (process, port):
        sizes = []
        for n in range(commits):
            commit(job, CHANGED)
            if n % 10 == 9:
                asked(port, f"{TABLE}&page={n % 50 + 1}")
            if n % max(commits // 20, 1) == 0:
                context.step(f"commit {n}")
                sizes.append(resident_mib(process))
    return max(sizes[2:4]), max(sizes[-2:])


def resident_mib(process: int) -> float:
    """Return the memory of a process."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        [line] = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1_024
