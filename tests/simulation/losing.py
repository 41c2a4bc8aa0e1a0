"""A sink that loses rows, and jobs that do not keep what they promise, for who has to see a simulation fail."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.testing import Scenario
from windrow.testing.simulation.sinks import MemoryOutlet


class Outlet(MemoryOutlet):
    """Sink that loses commits 4, 9, 14, ..."""

    def read(self) -> list[Any]:
        return [row for row in super().read() if row.commit % 5 != 4]


class Numbers:
    """Numbers messages in itself, not in its state: after a crash it begins anew."""

    def __init__(self) -> None:
        self.n = 0

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        self.n += 1
        return {"number": self.n}


VISITS = wr.Process(
    by="user",
    event_time="t",
    function=Numbers(),
    emits={"number": pa.int64()},
    ttl="1 day",
    name="visits",
)


def messages(chance: Random) -> list[dict[str, Any]]:
    """Some visits."""
    return [
        {"t": f"2013-07-01 05:{minute:02}Z", "user": chance.choice(["ann", "bob"])} for minute in range(40)
    ]


#: A job that is wrong.
numbers = Scenario(VISITS, messages)
#: One that is right: what people who were in came out with.
pairs = Scenario(
    [
        wr.Join(
            left=wr.Input("ins", event_time="t", watermark="5 minutes"),
            right=wr.Input("outs", event_time="t", watermark="5 minutes"),
            on="user",
            within=("0 minutes", "30 minutes"),
            how="left",
            name="stays",
        ),
        wr.Aggregate(
            input="ins",
            event_time="t",
            watermark="5 minutes",
            window=wr.tumbling("15 minutes"),
            agg={"n": wr.count()},
            retention="1 hour",
            name="crowds",
        ),
    ],
    lambda chance: {"ins": messages(chance), "outs": messages(chance)},
)
