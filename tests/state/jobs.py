"""Jobs of every kind that state is read of, and a process that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import structlog

import windrow as wr
from windrow.testing.clock import ManualClock

SECOND = 1_000_000


def aggregate(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("x")},
        "watermark": "5 seconds",
        "retention": "1 minute",
    }
    return wr.Aggregate(**(options | changed))


JOIN = wr.Join(
    left=wr.Input("orders", event_time="t", watermark="5 seconds"),
    right=wr.Input("payments", event_time="t", watermark="5 seconds"),
    on="k",
    within=("-10 seconds", "10 seconds"),
    how="left",
)
KINDS: dict[str, Any] = {
    "incremental": aggregate(),
    "hopping": aggregate(window=wr.hopping("20 seconds", "5 seconds")),
    "full state": aggregate(agg={"n": wr.count(), "middle": wr.median("x")}),
    "tuples": aggregate(window=wr.tuples(4, step=2), retention=wr.Retain(windows=3)),
    "tuples, full state": aggregate(
        window=wr.tuples(4), retention=wr.Retain(windows=3), agg={"middle": wr.median("x")}
    ),
    "join": JOIN,
}


def feed(op: Any, numbers: range) -> None:
    """Message `i` is of second `i` and one of three keys; in a join every third is a payment."""
    for i in numbers:
        message = wr.Message({"k": "abc"[i % 3], "t": i * SECOND, "x": i}, wr.Position("topic", 0, i))
        if op.definition.by_input:
            op.add_message(message, "payments" if i % 4 == 0 else "orders")
        else:
            op.add_message(message)


def answers(state: Any, definition: Any) -> dict[str, str]:
    """Return the answers of an open operator, or of a state that is read."""
    facts: dict[str, Any] = {"watermark": state.watermark}
    if definition.by_input:
        facts["messages"] = [state.get_messages(input=i.name) for i in definition.inputs]
        facts["some"] = state.get_messages(5 * SECOND, (30 * SECOND, 30), input="orders", key="a")
    else:
        facts["windows"] = state.get_windows()
        facts["some windows"] = state.get_windows(2, 30 * SECOND, key="b")
        if definition.full_state:
            facts["messages"] = state.get_messages()
            facts["some"] = state.get_messages(5 * SECOND, (30 * SECOND, 30), key="a")
    return {name: repr(value) for name, value in facts.items()}


def begun(
    definition: Any,
    location: Path | str,
    numbers: range,
    history: dict[int, Any] | None = None,
    **options: Any,
) -> None:
    """A job with a commit every ten messages; `history` gets what it answered after each commit."""
    clock = ManualClock()
    with definition.open(str(location), clock=clock, sink=wr.sinks.memory(), **options) as op:
        for at in range(numbers.start, numbers.stop, 10):
            feed(op, range(at, min(at + 10, numbers.stop)))
            clock.advance("1 second")
            op.timeout()
            if history is not None:
                history[op.last_commit] = answers(op, definition)


def listing(location: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and modification time. RocksDB writes its LOG whenever it likes."""
    return {
        str(p.relative_to(location)): (0, 0) if p.name == "LOG" else (p.stat().st_size, p.stat().st_mtime_ns)
        for p in location.rglob("*")
    }


class Elsewhere:
    """Another process, which reads the state of a location whenever it is asked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.state.jobs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def ask(self, location: Path | str, kind: str) -> dict[str, Any]:
        self.begin(location, kind)
        return self.end()

    def begin(self, location: Path | str, kind: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(location), kind]) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()


def _answer_questions() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for line in sys.stdin:
        location, kind = json.loads(line)
        with wr.read_state(location) as state:
            facts = answers(state, KINDS[kind])
            print(json.dumps({"commit": state.commit, "answers": facts}), flush=True)


if __name__ == "__main__":
    _answer_questions()
