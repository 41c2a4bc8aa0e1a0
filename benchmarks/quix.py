"""`python quix.py <servers> <topic in> <topic out> <rows> <current|final> <group> <folder>`: the aggregation by Quix Streams.

Runs in an environment of its own, because Quix Streams pins another confluent-kafka; so it imports nothing of windrow's.
Exactly once, everything else at its defaults. Waits for a line on standard input before it begins; prints when its first
record came and when all of it was committed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Mean, Sum

WINDOW_MS = 10_000


def main(
    servers: str, topic_in: str, topic_out: str, rows: int, emission: str, group: str, folder: str
) -> None:
    seen = {"rows": 0, "begin": 0.0}

    def count(topic: str, partition: int, offset: int) -> None:
        seen["rows"] += 1
        if seen["rows"] == rows:
            app.stop()

    def event_time(value: Any, headers: Any, timestamp: int, kind: Any) -> int:
        seen["begin"] = seen["begin"] or time.time()
        return int(value["t"]) // 1000

    app = Application(
        servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        state_dir=os.path.join(folder, group),
        processing_guarantee="exactly-once",
        on_message_processed=count,
        auto_create_topics=True,
        loglevel="WARNING",
    )
    source = app.topic(topic_in, value_deserializer="json", timestamp_extractor=event_time)
    target = app.topic(topic_out, value_serializer="json")
    windows = (
        app.dataframe(source)
        .tumbling_window(WINDOW_MS, grace_ms=WINDOW_MS)
        .agg(n=Count(), s=Sum("v"), a=Mean("v"))
    )
    results = windows.current() if emission == "current" else windows.final(closing_strategy="partition")
    results.to_topic(target)
    print("ready", flush=True)
    sys.stdin.readline()
    app.run()
    print(json.dumps({"begin": seen["begin"], "end": time.time(), "rows": seen["rows"]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), *sys.argv[5:8])
