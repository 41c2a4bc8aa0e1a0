"""`python -m tests.drills.webhook --kills 10`: `kill -9` of a job of alerts whose webhook server fails by plan.

The server answers 500, answers too late, or never. It kills the job before it stores a row, between storing and answering, or
after its answer. It honours the idempotency key: at the end it has each row of an undisturbed run once.
"""

from __future__ import annotations

import argparse
import http.server
import json
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import windrow as wr
from windrow.connectors import notifications
from windrow.core.messages import Message, Position
from windrow.core.show import json_text, rfc3339
from windrow.testing import ManualClock

ROOT = Path(__file__).parents[2]
S, COMMIT = 1_000_000, 12
#: Answers, again and again: a status; "late", 200 when the client has given up; "never".
PLAN = (200, 500, 200, "late", 200, 503, 500, "never", 200, 200, 200)
MOMENTS = ("before it is stored", "before the answer", "after the answer")
X = wr.col("x")
DEFINITION = wr.Alert(
    by="k",
    event_time="t",
    when=X > 60,
    until=X < 30,
    variables={"load": X},
    actions={
        "mail": wr.Action(delay="3 seconds"),
        "log": wr.Action(repeat=wr.every(2)),
    },
    max_ahead=wr.forever,
)


def message(offset: int) -> Message:
    """Return a message of the source: the same at every reading."""
    x = (offset * 7919) % 101
    return Message({"t": offset * S // 2, "k": "abc"[offset % 3], "x": x}, Position("s", 0, offset))


def feed(location: str, sink: Any, end: int) -> None:
    """Feed on from the job's last offset."""
    with DEFINITION.open(location, clock=ManualClock(), sink=sink) as op:
        offset = op.next_offsets().get(("s", 0), 0)
        while offset < end:
            op.add_messages([message(o) for o in range(offset, min(offset + COMMIT, end))])
            offset = min(offset + COMMIT, end)
        op.next_offsets()


class Server(http.server.ThreadingHTTPServer):
    """A receiver that honours the key. stored: rows by key; requests: how often each key came."""

    daemon_threads = True

    def __init__(self, kills: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        chance = random.Random(seed)
        self.stored: dict[str, dict[str, Any]] = {}
        self.requests, self.answers = Counter[str](), Counter[str]()
        self.plan, self.moments = cycle(PLAN), cycle(MOMENTS)
        self.killed = Counter[str]()
        self.until_kill = [chance.randint(1, 9) for _ in range(kills)]
        self.child: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"

    def moment_of_kill(self) -> str | None:
        """Return when this request kills the job, if it does."""
        if not self.until_kill:
            return None
        self.until_kill[0] -= 1
        if self.until_kill[0]:
            return None
        del self.until_kill[0]
        return next(self.moments)

    def kill(self, moment: str) -> None:
        assert self.child is not None
        self.killed[moment] += 1
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


class _Answers(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server, key = self.server, self.headers["Idempotency-Key"]
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests[key] += 1
        kill, answer = server.moment_of_kill(), next(server.plan)
        if kill == MOMENTS[0]:
            return server.kill(kill)
        if answer in (200, "late"):
            server.stored.setdefault(key, row)
        if kill == MOMENTS[1]:
            return server.kill(kill)
        server.answers[str(answer)] += 1
        if answer in ("late", "never"):
            select.select([self.connection], [], [])  # until the client gives up
        if answer != "never":
            self.send_response(200 if answer == "late" else answer)
            self.end_headers()
            self.wfile.flush()
        if kill is not None:
            server.kill(kill)
        return None

    def log_message(self, *_: Any) -> None: ...


def drill(kills: int, seed: int = 1, messages: int | None = None) -> dict[str, Any]:
    """Run the drill, and return its figures."""
    end = messages or 40 * (kills + 1)
    with tempfile.TemporaryDirectory(prefix="windrow-webhook-") as name, Server(kills, seed) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        command = [sys.executable, "-m", __spec__.name, "--job", f"{name}/job", "--url", server.url]
        code: int | None = None
        with tempfile.TemporaryFile() as said:
            while code != 0:
                with subprocess.Popen(
                    [*command, "--messages", str(end)], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT
                ) as child:
                    server.child = child
                    code = child.wait()
                said.seek(0)
                assert code in (0, -signal.SIGKILL), said.read()[-3000:]
        server.shutdown()
        undisturbed = wr.sinks.memory()
        feed(f"{name}/undisturbed", undisturbed, end)
    expected = Counter(_identity(json.loads(json_text(row.values, rfc3339))) for row in undisturbed.panes)
    stored = Counter(map(_identity, server.stored.values()))
    return {
        "kills": dict(server.killed),
        "answers": dict(server.answers),
        "requests": server.requests.total(),
        "keys that came again": sum(n > 1 for n in server.requests.values()),
        "rows": expected.total(),
        "missing": (expected - stored).total(),
        "twice or wrong": (stored - expected).total(),
    }


def _identity(row: dict[str, Any]) -> str:
    return json.dumps([row[name] for name in DEFINITION.output_columns])


def ok(figures: dict[str, Any]) -> bool:
    """True if each row is there once, and the job was killed at each moment with rows that were sent again."""
    return not figures["missing"] and not figures["twice or wrong"] and figures["keys that came again"] > 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.webhook", description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job is not None:
        notifications._FIRST_WAIT_S = 0.02
        sink = wr.sinks.webhook(options.url, timeout="300 ms")
        feed(options.job, sink, options.messages)
        return 0
    figures = drill(options.kills, options.seed, options.messages)
    print(json.dumps(figures))
    return 0 if ok(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
