"""Small jobs for the command line to look at."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import windrow as wr
from windrow.testing.clock import ManualClock

SECOND = 1_000_000


class Said(NamedTuple):
    """Answer of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON, a value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def counts(**changed: Any) -> wr.Aggregate:
    """Counts and sums by key, windows of ten seconds."""
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("x")},
        "watermark": "5 seconds",
        "retention": "1 minute",
    }
    return wr.Aggregate(**(options | changed))


def minutes(retention: str) -> wr.Aggregate:
    """Counts by key and minute."""
    return wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.tumbling("1 minute"),
        agg={"n": wr.count()},
        retention=retention,
        max_ahead=wr.forever,
        name="counts",
    )


def messages(numbers: Sequence[int]) -> list[wr.Message]:
    """Message `i` is of second `i`, of one of three keys."""
    return [
        wr.Message({"k": "abc"[i % 3], "t": i * SECOND, "x": i}, wr.Position("topic", 0, i)) for i in numbers
    ]


def run_job(
    definition: wr.Aggregate, location: Path | str, numbers: Sequence[int], **options: Any
) -> list[wr.Pane]:
    """Feed a job, a commit every ten messages, and return what it said."""
    clock = ManualClock("2020-01-01 00:00Z")
    clock.advance(f"{numbers[0]} seconds")
    panes = []
    with definition.open(str(location), clock=clock, **options) as operator:
        for at in range(0, len(numbers), 10):
            operator.add_messages(messages(numbers[at : at + 10]))
            clock.advance("10 seconds")
            operator.timeout()
            if "sink" not in options:
                panes += operator.get_result()
                operator.flush()
    return panes
