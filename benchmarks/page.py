"""The page of a job with 100,000 keys: when it is ready, what many readers wait, what it costs server and job, and its memory.

The job runs here, `windrow ui` in a process of its own. `page` requests whole documents by HTTP; `page-memory` opens a tab
of Chromium, which follows the job. Nothing is attached to the tab before the end: developer tools keep each answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from playwright.sync_api import sync_playwright

import windrow as wr
from tests.console.ui.chromium import CHROMIUM, SWITCHES

from .harness import Context, Row, median, scratch

KEYS, CHANGED, FEW = 100_000, 100, 10
READERS, REQUESTS = 20, 10
#: Commits over which the memory of server and tab is watched.
COMMITS = 10_000
#: True once the tab shows a commit.
SHOWS = "n => document.querySelector('.status').textContent.startsWith(`Commit ${n}`)"
TABLE = "/jobs/job/table?operator=counts&table=windows"
OPTIONS: dict[str, Any] = {
    "name": "counts",
    "by": "key",
    "event_time": "t",
    "window": wr.tumbling("1 hour"),
    "retention": "1 day",
    "agg": {"n": wr.count(), "total": wr.sum("v")},
}
COUNTS = wr.Aggregate(**OPTIONS, emit=wr.Emit(early=wr.every_batch))


def page(context: Context) -> list[Row]:
    """Time pages, readers, and the commits of a job without and with a reader."""
    first, ready, event, behind, ordered, waits = [], [], [], [], [], []
    with scratch() as folder, COUNTS.open(f"{folder}/job") as job:
        commit(job, 5_000 if context.quick else KEYS)
        for _ in range(context.rounds):
            with served(f"{folder}/job") as (_, port), Events(port) as events:
                first.append(asked(port, "/jobs/job/watermark"))
                ready.append(asked(port, f"{TABLE}&order=key"))
                for n in range(10):
                    commit(job, CHANGED)
                    event.append(events.wait_for(job.last_commit))
                    behind.append(asked(port, f"{TABLE}&order=key&page={n + 1}"))
                ordered.append(asked(port, f"{TABLE}&order=n&down=1"))
                waits.append(readers(job, port, events))
        paces = context.interleave({"alone": lambda: pace(job, None), "read": lambda: watched(folder, job)})
    rows = [
        Row("page: a new server answers", "ms", median(first)),
        _bar("page: ready, 100,000 keys by key", "ms", median(ready), 500),
        Row("page: from a commit to its event", "ms", median(event)),
        _bar("page: from the event of a commit to the document", "ms", median(behind), 300),
        _bar("page: by another column", "ms", median(ordered), 1_500),
        _bar(f"page: {READERS} readers, p99", "ms", median(waits), 1_000),
    ]
    explain = [explained(emit, 5_000 if context.quick else KEYS) for emit in (wr.never, wr.every_batch)]
    rows.append(_bar("page: explain of one key, 12 commits of 100,000 keys, CPU", "ms", max(explain), 100))
    share = 100 * (1 - median(paces["read"]) / median(paces["alone"]))
    return [*rows, _bar("page: commits a second that an open page costs", "%", share, 1, paces)]


def page_memory(context: Context) -> list[Row]:
    """Return the memory of server and tab at each tenth of many commits."""
    keys, commits = (5_000, 100) if context.quick else (KEYS, context.commits or COMMITS)
    rows, asks = list[Row](), 0
    sizes: dict[str, list[float]] = {"server": [], "tab": []}
    with scratch() as folder, COUNTS.open(f"{folder}/job") as job:
        commit(job, keys)
        with served(f"{folder}/job") as (process, port), Events(port) as events:
            tab = Tab(f"http://127.0.0.1:{port}{TABLE}&order=key", f"{folder}/chromium")
            for tenth in range(1, 11):
                while job.last_commit < commits // 10 * tenth:
                    commit(job, FEW)
                    if (n := job.last_commit // 50) > asks:  # readers of other pages and orders
                        asks, order = n, ("key", "start", "n")[n % 3]
                        asked(port, f"{TABLE}&page={n % 50 + 1}&order={order}")
                context.step(f"commit {job.last_commit}")
                events.wait_for(job.last_commit)
                for size, mib in zip(sizes.values(), (resident_mib(process), tab.mib()), strict=True):
                    size.append(mib)
            tab.close(SHOWS, job.last_commit)
    for name, size in sizes.items():
        parts = (
            (f"page: memory, {name}, commit {commits // 10 * i:,}", mib) for i, mib in enumerate(size, 1)
        )
        rows += [Row(part, "MiB", mib) for part, mib in parts]
        growth = max(size[-2:]) - max(size[1:3])
        rows.append(
            _bar(f"page: memory, {name}, growth from 0.2 to 1 of {commits:,} commits", "MiB", growth, 20)
        )
    return rows


def _bar(name: str, unit: str, ours: float, most: float, samples: Any = None) -> Row:
    return Row(
        name, unit, ours, most, "bar", most / ours if ours > 0 else None, "", ours < most, samples or {}
    )


def explained(early: Any, keys: int) -> float:
    """Return the milliseconds of processor time of an explanation by a state just opened, after 12 commits of all keys."""
    times = []
    with scratch() as folder:
        with wr.Aggregate(**OPTIONS, emit=wr.Emit(early=early)).open(folder) as job:
            for _ in range(12):
                commit(job, keys)
        for n in range(5):
            with wr.read_state(folder) as state:
                begun = time.process_time()
                [why] = state.explain(0, key=f"key-{n:06}")
                times.append(1_000 * (time.process_time() - begun))
                assert why.commits
    return median(times)


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


class Events:
    """A connection to the events of a job, as an open page has it."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=600)
        self._connection.request("GET", "/jobs/job/events")
        self._answer = self._connection.getresponse()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def next(self) -> int:
        """Return the commit of the next event."""
        while not (line := self._answer.readline()).startswith(b"data"):
            if not line:
                raise AssertionError("the server ended the events")
        return int(line.removeprefix(b"data: "))

    def wait_for(self, commit: int) -> float:
        """Wait for the event of a commit, and return the milliseconds that passed."""
        begun = time.perf_counter()
        while self.next() < commit:
            pass
        return 1_000 * (time.perf_counter() - begun)


def readers(job: Any, port: int, events: Events) -> float:
    """Return the 99th percentile of what readers wait who all follow a job."""
    waits: list[float] = []

    def read() -> None:
        waits.extend(asked(port, f"{TABLE}&page={n + 1}") for n in range(REQUESTS))

    threads = [threading.Thread(target=read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        commit(job, CHANGED)
        events.wait_for(job.last_commit)
    return float(np.percentile(waits, 99))


def follow(port: int) -> None:
    """Request the table at each event, as the page does, until this process ends."""
    with Events(port) as events:
        while True:
            events.next()
            asked(port, TABLE)


def pace(job: Any, port: int | None, seconds: float = 5.0) -> float:
    """Return the commits a second of a job that makes as many as it can, on a core of its own."""
    cores = os.sched_getaffinity(0)
    reader = None
    if port is not None:
        code = f"from benchmarks.page import follow; print('begins', flush=True); follow({port})"
        reader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        os.sched_setaffinity(reader.pid, {max(cores)})
        assert reader.stdout is not None
        reader.stdout.readline()
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


def resident_mib(process: int) -> float:
    """Return the memory of a process."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        [line] = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1_024


class Tab:
    """A tab of a browser without a window, to which nothing is attached."""

    def __init__(self, address: str, folder: str) -> None:
        silent, self._folder = subprocess.DEVNULL, folder
        switches = [f"--user-data-dir={folder}", "--headless=new", "--remote-debugging-port=0"]
        self._browser = subprocess.Popen(
            [CHROMIUM, *SWITCHES, *switches, address], stdout=silent, stderr=silent
        )

    def mib(self) -> float:
        """Return the memory of the processes that draw tabs."""
        family, size = {self._browser.pid}, 0.0
        for process in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
                if parent in family:
                    family.add(process)
                    if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes():
                        size += resident_mib(process)
        return size

    def close(self, condition: str, argument: int) -> None:
        """Close it when a condition holds."""
        port = Path(self._folder, "DevToolsActivePort").read_text().split()[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port}")
            browser.contexts[0].pages[0].wait_for_function(condition, arg=argument, timeout=600_000)
        self._browser.terminate()
        self._browser.wait()
