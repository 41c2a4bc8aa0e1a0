"""`kill -9` of a process that feeds a job, again and again: no pane is lost, none comes twice."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import windrow as wr
from tests.deep import usually
from windrow.connectors.sinks import pane_files
from windrow.core.messages import Message, Position
from windrow.runners.embedded import operator as embedded
from windrow.testing import ManualClock, TestDriver, ledger

ROOT = Path(__file__).parents[2]
S = 1_000_000
KILLS = usually(2, deep=12)
#: How many messages one life of the process takes in, if it is not killed before.
A_LIFE = 400
#: Where state lies in one life after the other: killed in memory it comes back in memory, and on a disk that slept meanwhile.
STORES = ("rocksdb", "memory", "memory")

DEFINITION = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.hopping("10 seconds", "5 seconds"),
    agg={"n": wr.count(), "sum": wr.sum("v"), "list": wr.collect_list("v")},
    watermark="4 seconds",
    retention="20 seconds",
    emit=wr.Emit(early=wr.every(3), late=wr.every_batch, mode="retracting"),
)


def message(offset: int) -> Message:
    """The source: the same at every reading, a few seconds out of order."""
    late = (offset * 7919) % 11
    return Message(
        {"t": (offset // 4 - late) * S, "k": "abc"[offset % 3], "v": offset}, Position("s", 0, offset)
    )


def feed(location: str, out: str, store: Any) -> None:
    """Feed on from the job's last offset, in the child process."""
    embedded.SNAPSHOT_EVERY = 9
    with DEFINITION.open(location, clock=ManualClock(), sink=wr.sinks.parquet(out), store=store) as op:
        offset = op.next_offsets().get(("s", 0), 0)
        cut = random.Random(offset)
        end = offset + A_LIFE
        while offset < end:
            size = cut.randint(1, 40)
            op.add_messages([message(o) for o in range(offset, min(offset + size, end))])
            offset = min(offset + size, end)
            if cut.random() < 0.5:
                op.timeout()


def entries(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def run(
    location: Path, out: Path, store: str, watched: Path | None, grown: int = 0, module: str = __name__
) -> int:
    """One life of the child, killed at the moment when `watched` has `grown` entries more. Returns its exit code."""
    there = 0 if watched is None else entries(watched)
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", module, str(location), str(out), store]
        with subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT) as child:
            while watched is not None and child.poll() is None:
                if entries(watched) >= there + grown:
                    child.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.001)  # the child needs the core, and a commit writes for longer
            code = child.wait()
        said.seek(0)
        assert code in (0, -signal.SIGKILL), said.read()[-3000:]
    return code


def test_no_pane_is_lost_or_sent_twice_however_often_the_process_is_killed(tmp_path: Path) -> None:
    job, out = tmp_path / "job", tmp_path / "out"
    chance = random.Random(20)
    # Between any two of the files of a commit: its panes, its segment, its record, what the sink makes of it.
    watched = [job / "panes", job / "changelog", job / "log", out, out / "_manifests"]
    killed, stores = 0, cycle(STORES)
    while killed < KILLS:
        killed += run(job, out, next(stores), chance.choice(watched), chance.randint(1, 6)) != 0
    assert run(job, out, next(stores), None) == 0

    with TestDriver(DEFINITION, job) as driver:
        [fed] = driver.next_offsets().values()
        for offset in range(fed):
            driver.know(message(offset))
        published = [
            pane
            for file in pane_files(str(out))
            for pane in DEFINITION.values(pq.read_table(file), driver.op.job)
        ]
        driver.check(published, dead_letters=True)
        assert len(driver.commits()) > KILLS
    assert wr.read_panes(str(out)).num_rows == len(published)
    ledger(published, retracting=True)


if __name__ == "__main__":
    feed(*sys.argv[1:])
