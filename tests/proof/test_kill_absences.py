"""`kill -9` of a process while a thousand absences wait: each is emitted once."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import windrow as wr
from tests.deep import usually
from tests.proof.test_kill import run
from windrow.core.messages import Message, Position

KILLS = usually(1, deep=20)
#: Every other fire is put out; time goes on by ticks, each a commit.
FIRES, TICKS, MS = 2_000, 13, 1_000

ALARMS = wr.Rules(
    by="room",
    inputs=[wr.Input("fires", event_time="at"), wr.Input("sprinklers", event_time="at")],
    rules={
        "no water": wr.Rule(
            when={
                "fire": wr.event("fires"),
                "water": wr.absent("sprinklers", time=wr.after("fire", 0, "10 seconds")),
            },
            then={"since": wr.col("fire.at")},
        )
    },
)


def message(name: str, offset: int, room: int, at_ms: int) -> Message:
    return Message({"room": room, "at": at_ms * MS}, Position(name, 0, offset))


def commit(number: int) -> dict[str, list[Message]]:
    """The messages of a commit: first all fires and sprinklers, then a tick of both inputs."""
    if number == 0:
        fires = [message("fires", i, i, i) for i in range(FIRES)]
        water = [message("sprinklers", i // 2, i, i + 500) for i in range(0, FIRES, 2)]
        return {"fires": fires, "sprinklers": water}
    at_ms, room = 10_000 + 200 * number, -number
    tick = message("fires", FIRES + number - 1, room, at_ms)
    return {
        "fires": [tick],
        "sprinklers": [message("sprinklers", FIRES // 2 + number - 1, room, at_ms)],
    }


def feed(location: str, out: str, store: str) -> None:
    """Feed on from the job's last offset, in the child process."""
    with ALARMS.open(location, sink=wr.sinks.parquet(out), store=store) as op:
        read = {name: offset for (name, *_), offset in op.next_offsets().items()}
        begun = read.get("fires", 0)
        for number in range(begun - FIRES + 1 if begun else 0, TICKS):
            op.add_messages(commit(number))
            op.next_offsets()


def test_each_absence_is_emitted_once_however_often_the_process_is_killed(tmp_path: Path) -> None:
    job, out, chance = tmp_path / "job", tmp_path / "out", random.Random(4)
    while_waiting = killed = 0
    while killed < KILLS:
        # Once the sink has files rows are emitted, commit by commit; before that all of them wait.
        watched = job / "log" if killed == 0 else chance.choice([job / "changelog", out])
        killed += run(job, out, "rocksdb", watched, chance.randint(2, 5), module=__name__) != 0
        while_waiting += len(rooms(out)) < FIRES // 2
    assert run(job, out, "rocksdb", None, module=__name__) == 0
    assert while_waiting == killed
    assert sorted(rooms(out)) == list(range(1, FIRES, 2))


def rooms(out: Path) -> list[int]:
    """The rooms of the rows that readers of the sink see."""
    if not any(out.glob("*.parquet")):
        return []
    return [room for room in wr.read_panes(str(out))["room"].to_pylist() if room >= 0]


if __name__ == "__main__":
    feed(*sys.argv[1:])
