"""`python bytewax_ones.py <folder>`: messages one by one through Bytewax' window operator, with its recovery store.

Runs in an environment of its own, so it imports nothing of windrow's. Reads messages, JSON of [time in ms, key, value], from
standard input. Bytewax tells a window when it closes; its recovery is SQLite, a snapshot every second. Prints the messages
it takes in a second of CPU time.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

WINDOW = timedelta(minutes=10)
#: Its engine looks at every key whenever it is woken: one message at a time it takes 300 a second.
COMMIT = 1_000


def main(folder: str) -> None:
    messages = json.load(sys.stdin)
    first = datetime.fromtimestamp(messages[0][0] / 1000, UTC)
    rows = [(key, (datetime.fromtimestamp(ms / 1000, UTC), value)) for ms, key, value in messages]
    emitted: list[Any] = []
    init_db_dir(folder, 1)
    flow = Dataflow("ones")
    stream = op.input("in", flow, TestingSource(rows, batch_size=COMMIT))
    clock = win.EventClock(lambda row: row[0], wait_for_system_duration=timedelta(seconds=10))
    windower = win.TumblingWindower(length=WINDOW, align_to=first - timedelta(minutes=1))
    windows = win.fold_window(
        "count", stream, clock, windower, lambda: (0, 0), lambda a, r: (a[0] + 1, a[1] + r[1]), _merged
    )
    op.output("out", windows.down, TestingSink(emitted))
    begin = time.process_time()
    run_main(flow, recovery_config=RecoveryConfig(folder), epoch_interval=timedelta(seconds=1))
    seconds = time.process_time() - begin
    counted = sum(n for _, (_, (n, _)) in emitted)
    assert counted == len(messages), (
        f"{counted} of {len(messages)} messages in {len(emitted)} windows: {emitted[:2]}"
    )
    print(json.dumps({"rate": len(messages) / seconds}))


def _merged(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


if __name__ == "__main__":
    main(sys.argv[1])
