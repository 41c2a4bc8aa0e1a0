"""`kill -9` of a process that feeds a job, again and again: no pane is lost, none comes twice."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

import windrow as wr
from windrow.connectors.sinks import pane_files
from windrow.core.messages import Message, Position
from windrow.operators.output import to_panes
from windrow.testing import ManualClock, TestDriver, all_panes_equal, ledger

S = 1_000_000
MESSAGES = 4_000
KILLS = 10

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


def feed(location: str, out: str) -> None:
    """What the child does: feeds to the end from where the job stands, and says how far it is."""
    with DEFINITION.open(location, clock=ManualClock(), sink=wr.sinks.parquet(out)) as op:
        offset = op.next_offsets().get(("s", 0), 0)
        cut = random.Random(offset)
        while offset < MESSAGES:
            size = cut.randint(1, 40)
            op.add_messages([message(o) for o in range(offset, min(offset + size, MESSAGES))])
            offset += size
            if cut.random() < 0.5:
                op.timeout()
            print(offset, flush=True)


def run(location: Path, out: Path, kill_after: int | None) -> int:
    """One life of the child, killed once it has reported `kill_after` times. Returns its exit code."""
    child = subprocess.Popen(
        [sys.executable, __file__, str(location), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    with child, child.stdout as lines:
        said = []
        for line in lines:
            said.append(line)
            if kill_after is not None and len([w for w in said if w.strip().isdigit()]) >= kill_after:
                child.send_signal(signal.SIGKILL)
                break
        lines.read()
        code = child.wait()
    assert code in (0, -signal.SIGKILL), "".join(said[-30:])
    return code


def test_no_pane_is_lost_or_sent_twice_however_often_the_process_is_killed(tmp_path: Path) -> None:
    job, out = tmp_path / "job", tmp_path / "out"
    chance = random.Random(20)
    killed = 0
    while killed < KILLS and run(job, out, chance.randint(1, 12)) != 0:
        killed += 1
    while run(job, out, None) != 0:
        pass
    assert killed == KILLS

    with TestDriver(DEFINITION, job) as driver:
        for offset in range(MESSAGES):
            driver.know(message(offset))
        published = [
            pane
            for file in pane_files(str(out))
            for pane in to_panes(DEFINITION, pq.read_table(file), driver.op.job)
        ]
        assert driver.op.next_offsets() == {("s", 0): MESSAGES}
        expected = driver.check()
        assert len(driver.commits()) > KILLS
    assert all_panes_equal(published, expected.panes)
    assert wr.read_panes(str(out)).num_rows == len(published)
    ledger(published, retracting=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    feed(*sys.argv[1:])
