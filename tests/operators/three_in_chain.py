"""A chain of a deduplication, an aggregate and a process function, in a module that Spark's workers can import."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

import windrow as wr

ONCE = wr.Deduplicate(
    by="k", event_time="t", ids="v", within="20 seconds", watermark="5 seconds", name="once"
)
FIVES = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("5 seconds"), agg={"n": wr.count(), "mid": wr.median("v")},
    retention="1 minute", emit=wr.Emit.append(), name="fives",
)  # fmt: skip


class Growth:
    """Function that emits the increase since the last message, and a row after ten seconds without one."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> dict[str, Any]:
        before = state.get("n", 0)
        state["n"] = message["n"]
        timers.set(timers.time + timedelta(seconds=10))
        return {"what": "more", "n": message["n"] - before}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> dict[str, Any]:
        return {"what": "timer", "n": state["n"]}


GROWTH = wr.Process(
    by="k", event_time="window_time", function=Growth, emits={"what": pa.string(), "n": pa.int64()}, ttl="1 hour",
    name="growth",
)  # fmt: skip
CHAIN = wr.chain(ONCE, FIVES, GROWTH)
