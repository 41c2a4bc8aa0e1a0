"""Messages that operators of a chain have lost come back from the source: filed again, or by running all steps again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.filed import filed
from windrow.checkpoint.shard import MessagesLost
from windrow.core import errors as e
from windrow.operators.join.time_layout import BlockJoinOperator
from windrow.operators.operator import FileAgain, RunAgain
from windrow.runners.embedded import Embedded
from windrow.testing.clock import ManualClock

S = 1_000_000


def counted(name: str, **changes: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k", "event_time": "t", "window": wr.tumbling("4 seconds"), "agg": {"n": wr.count(), "v": wr.sum("v")},
        "retention": "30 seconds", "allowed_lateness": "10 seconds", "name": name,
    }  # fmt: skip
    return wr.Aggregate(**(options | changes))


def kept_rows(column: str = "v", **changes: Any) -> wr.Aggregate:
    """Keeps what it takes."""
    agg = {"mid": wr.median(column), "all": wr.collect_list(column)}
    return counted(**({"name": "last", "window": wr.hopping("8 seconds", "4 seconds"), "agg": agg} | changes))


ONCE_TOLD: dict[str, Any] = {"emit": wr.Emit.append(), "allowed_lateness": None}
FIRST = counted("first", watermark="3 seconds", **ONCE_TOLD)
ONCE = wr.Deduplicate(
    by="k", event_time="t", ids="id", within="8 seconds", watermark="3 seconds", name="once"
)


def joined(name: str = "first", left: str = "o", right: str = "s", time: str = "t") -> wr.Join:
    return wr.Join(
        left=wr.Input(left, event_time=time, watermark="0 seconds" if time != "t" else "3 seconds"),
        right=wr.Input(right, event_time="t", watermark="3 seconds"),
        on="k", within=("-4 seconds", "6 seconds"), how="left", allowed_lateness="5 seconds", name=name,
    )  # fmt: skip


class Larger:
    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        before, state["v"] = state.get("v", -1), message["v"]
        return {"v": message["v"]} if message["v"] > before else None


LARGER = wr.Process(
    by="k", event_time="t", function=Larger, emits={"v": pa.int64()}, ttl="30 seconds", watermark="3 seconds"
)
MEDIANS = kept_rows(name="first", agg={"v": wr.max("v"), "mid": wr.median("v")}, **ONCE_TOLD)
PAIRS = counted("last", event_time="o_t", agg={"n": wr.count(), "v": wr.sum("s_v")})
TUPLES = kept_rows(
    event_time="window_time", window=wr.tuples(3), retention=wr.Retain(windows=2), allowed_lateness=None
)
OF_TWO = wr.chain(
    counted("a", input="o", **ONCE_TOLD),
    counted("b", input="s", agg={"v": wr.median("v")}, **ONCE_TOLD),
    wr.Join(
        left=wr.Input("a", event_time="window_time"),
        right=wr.Input("b", event_time="window_time"),
        on="k",
        within=("0 seconds", "4 seconds"),
        name="last",
    ),
)
#: Of each, how its messages come back.
CHAINS: dict[str, tuple[wr.Chain, type]] = {
    "messages of the first": (MEDIANS.then(counted("last", event_time="window_time")), FileAgain),
    "a join first": (joined().then(PAIRS), FileAgain),
    "rows of an aggregate": (FIRST.then(kept_rows(event_time="window_time")), RunAgain),
    "rows of a join": (joined().then(kept_rows("s_v", event_time="o_t")), RunAgain),
    "rows of a join, joined": (joined().then(joined("last", "first", "p", "o_t")), RunAgain),
    "what came once": (ONCE.then(kept_rows()), RunAgain),
    "rows of a function": (LARGER.then(kept_rows()), RunAgain),
    "the last rows of a key": (FIRST.then(TUPLES), RunAgain),
    "numbered rows first, of two inputs": (OF_TWO, RunAgain),
}
ALL = [pytest.param(chain, how, id=name) for name, (chain, how) in CHAINS.items()]


def message(i: int) -> wr.Message:
    """Out of order, some too late, some twice."""
    late = {7: 9, 23: 17, 30: 40, 53: 7}.get(i, i * 7 % 4)
    payload = {"k": "ab"[i * i % 3 % 2], "t": max(i - late, 0) * S, "v": i * 5 % 9, "id": i - i % 2}
    return wr.Message(payload, wr.Position("s", i % 2, i))


def again(asked: Any) -> Any:
    """More than is asked for, in no order."""
    everything = [message(i) for i in range(70)][::-1]
    named = [name for name in asked if isinstance(name, str)]
    return {name: everything for name in named} if named else everything


def fed(op: Embedded, clock: ManualClock, numbers: range) -> None:
    names = [i.name for i in op.definition.inputs] if op.definition.by_input else [None]
    for at in range(numbers.start, numbers.stop, 10):
        clock.advance("10 seconds")
        for name in names:
            batch = [message(i) for i in range(at, min(at + 10, numbers.stop))]
            for one in batch[:4]:
                op.add_message(one, name)
            op.add_messages(batch[4:], name)
        op.timeout()


def kept(op: Embedded) -> dict[str, Any]:
    logic, kv = op.engine.logic, op.engine.shard.kv
    state: dict[str, Any] = {
        cf: [one[0] if isinstance(one, tuple) else one for one in filed(kv, cf)] for cf in logic.message_cfs
    }
    for part in op.definition.parts:
        if "messages" in part.tables and logic.part(part.name).message_cfs:
            if isinstance(logic.part(part.name), BlockJoinOperator):
                for cf in logic.part(part.name).message_cfs:
                    del state[cf]  # those of several steps lie together
            for source in part.inputs if part.by_input else (None,):
                name = None if source is None else source.name
                state[f"{part.name} {name}"] = op.get_messages(operator=part.name, input=name)
    return state


def lose(location: Path) -> None:
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(location / folder, ignore_errors=True)


@pytest.mark.parametrize(("chain", "how"), ALL)
def test_what_a_chain_lost_comes_back_and_continues_alike(chain: wr.Chain, how: type, tmp_path: Path) -> None:
    assert isinstance(chain.logic().refiling(), how)
    clock, emitted = ManualClock(), []
    with chain.open(str(tmp_path / "whole"), clock=clock) as op:
        fed(op, clock, range(45))
        before = kept(op)
        op.flush()
    assert any(len(v) > 2 for v in before.values())
    shutil.copytree(tmp_path / "whole", tmp_path / "lost")
    begun_us = clock.now_us()
    for folder in ("lost", "whole"):
        clock = ManualClock(begun_us)
        if folder == "lost":
            lose(tmp_path / folder)
            with pytest.raises(MessagesLost, match="replay="):
                chain.open(str(tmp_path / folder), clock=clock)
        with chain.open(str(tmp_path / folder), clock=clock, replay=again) as op:
            assert kept(op) == before
            fed(op, clock, range(45, 60))
            op.drain()
            emitted.append([str(row) for row in op.get_result()])
    assert emitted[0] == emitted[1] and emitted[0]


def test_a_chain_that_cannot_be_run_from_its_first_step_on_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 3)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 2)
    chain, clock = CHAINS["rows of an aggregate"][0], ManualClock()
    with chain.open(str(tmp_path), clock=clock) as op:  # without replay=, the log forgets
        fed(op, clock, range(70))
        op.flush()
        fed(op, clock, range(70, 71))
    lose(tmp_path)
    with pytest.raises(
        e.StateLost,
        match=r"log begins at commit \d+.*'last' keeps rows of 'first', which needs all steps to run again",
    ):
        chain.open(str(tmp_path), clock=clock, replay=again)


def test_a_source_that_says_something_else_than_then_is_refused(tmp_path: Path) -> None:
    chain, clock = CHAINS["the last rows of a key"][0], ManualClock()
    with chain.open(str(tmp_path), clock=clock) as op:
        fed(op, clock, range(45))
    lose(tmp_path)
    with pytest.raises(e.StateLost, match="the source gives"):
        chain.open(str(tmp_path), clock=clock, replay=lambda asked: again(asked)[:-5])

    def other(asked: Any) -> list[wr.Message]:
        return [wr.Message({**m.payload, "k": "c"}, m.position) for m in again(asked)]

    with pytest.raises(e.StateLost, match="comes to other steps, or other numbers"):
        chain.open(str(tmp_path), clock=clock, replay=other)
    assert not [name for name in os.listdir(tmp_path / "local") if "replay" in name]
