"""One process whose job has many keys in one window, which fires in one advance: what that takes, as a line of JSON.

python -m benchmarks.fired KEYS [gone] [sessions]

gone: nothing asks for the window once it has fired, so nothing of it is kept. sessions: each key has a window of its own
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import windrow as wr

from .data import FIRST_US, SCHEMA
from .harness import scratch

DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
BEGIN_US = FIRST_US // DAY_US * DAY_US
BATCH = 200_000
MIB = 1 << 20


class Peak:
    """The most that a process held in memory meanwhile, beyond what it held before: its own, and with mapped files."""

    def __enter__(self) -> Peak:
        gc.collect()
        self.before = _resident()
        self.own = self.whole = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            own, whole = _resident()
            self.own = max(self.own, own - self.before[0])
            self.whole = max(self.whole, whole - self.before[1])


def _resident() -> tuple[float, float]:
    """MiB of its own, and with mapped files."""
    with open("/proc/self/status", encoding="ascii") as file:
        said = dict(line.split(":", 1) for line in file)
    return tuple(int(said[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def timed(spent: dict[str, float], name: str, act: Callable[[], Any]) -> Any:
    with Peak() as peak:
        begin, worked = time.perf_counter(), time.process_time()
        value = act()
        spent[f"{name}_s"] = round(time.perf_counter() - begin, 3)
        spent[f"{name}_cpu_s"] = round(time.process_time() - worked, 3)
    spent[f"{name}_mib"], spent[f"{name}_mapped_mib"] = round(peak.own), round(peak.whole)
    spent[f"{name}_own_mib"] = round(peak.before[0] + peak.own)
    return value


def main(keys: int, gone: bool, sessions: bool) -> dict[str, float]:
    aggregate = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.session("1 hour") if sessions else wr.tumbling("1 day"),
        agg={"n": wr.count(), "s": wr.sum("v"), "hi": wr.max("v")},
        retention="0 seconds" if gone else "10 days",
        emit=wr.Emit(drop_late=gone),
        watermark=wr.explicit(),
    )
    spent: dict[str, float] = {}
    with scratch() as folder, aggregate.open(folder) as op:
        for low in range(0, keys, BATCH):
            op.add_messages(_rows(low, min(low + BATCH, keys), HOUR_US if sessions else 1))
            op.timeout()

        def fire() -> None:
            op.advance_watermark(BEGIN_US + DAY_US)
            op.next_offsets()

        timed(spent, "fire", fire)
        assert len(timed(spent, "table", op.result_table)) == keys
        if keys <= 2_000_000:
            timed(spent, "pandas", lambda: op.get_result().to_pandas())
            last = timed(spent, "panes", lambda: sum(pane["n"] for pane in op.get_result()))
            assert last == keys
            if not gone:
                one = timed(spent, "key", lambda: op.get_windows(key="key-00000007"))
                assert len(one) == 1
                assert timed(spent, "windows", lambda: sum(w.values["n"] for w in op.get_windows())) == keys
        timed(spent, "flush", op.flush)
    return spent


def _rows(low: int, high: int, within_us: int) -> pa.Table:
    at = np.random.default_rng(low).permutation(np.arange(low, high))
    names = pc.binary_join_element_wise("key", pc.utf8_lpad(pa.array(at).cast(pa.string()), 8, "0"), "-")
    times = pa.array(BEGIN_US + at * 7_919_003 % within_us).cast(SCHEMA.field("t").type)
    return pa.table([times, names, pa.array(at)], schema=SCHEMA)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), "gone" in sys.argv[2:], "sessions" in sys.argv[2:])))
