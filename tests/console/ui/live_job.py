"""A job that commits on request, for the page to follow: flights, some of them late, some without a time."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any

import windrow as wr
from windrow.core.clock import SystemClock

SECOND = 1_000_000
KEYS = [("JFK", "B6"), ("JFK", "AA"), ("EWR", "UA"), ("LGA", "DL"), ("LGA", "MQ"), ("EWR", "B6")]
DELAYS = wr.Aggregate(
    name="delays",
    by=("origin", "carrier"),
    event_time="departure",
    window=wr.tumbling("10 minutes"),
    agg={"flights": wr.count(), "delay": wr.avg("dep_delay"), "middle": wr.median("dep_delay")},
    watermark="2 minutes",
    allowed_lateness="20 minutes",
    retention="2 hours",
    emit=wr.Emit(early=wr.every_batch, late=wr.every_batch),
)


def flights(batch: int, begin_us: int) -> list[wr.Message]:
    """Return one batch of two minutes of flights; some are late, some have no time."""
    rows = []
    for i in range(8 + batch * 5 % 9):
        origin, carrier = KEYS[(batch + i) % len(KEYS)]
        at = begin_us + (batch * 60 + i * 3) * SECOND
        at -= 900 * SECOND if i == 7 and batch % 3 == 2 else 0
        departure: Any = "soon" if i == 5 and batch % 5 == 0 else at
        payload = {
            "origin": origin,
            "carrier": carrier,
            "departure": departure,
            "dep_delay": float((batch * 7 + i * 5) % 60),
        }
        rows.append(wr.Message(payload, wr.Position("flights", i % 2, batch * 9 + i // 2)))
    return rows


def main(location: str, batches: int) -> None:
    """Feed so many batches, one a commit; then one more for each line of standard input."""
    begin_us = SystemClock().now_us() - 8 * 3_600 * SECOND
    with DELAYS.open(location, sink=wr.sinks.callback(lambda panes, token: None)) as job:
        first = job.last_commit
        for batch, _ in enumerate(chain(range(batches), sys.stdin), first):
            job.add_messages(flights(batch, begin_us))
            job.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
