"""Several operators in one embedded job: each tells what it tells alone, in one commit for all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

S = 1_000_000


def aggregate(name: str, **changes: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "k", "event_time": "t", "window": wr.tumbling("5 seconds"), "agg": {"n": wr.count(), "v": wr.sum("v")},
        "watermark": "2 seconds", "retention": "30 seconds", "allowed_lateness": "5 seconds", "name": name,
    }  # fmt: skip
    return wr.Aggregate(**(options | changes))


FIVES = aggregate("fives", emit=wr.Emit(early=wr.every_batch))
MEDIANS = aggregate("medians", window=wr.tumbling("10 seconds"), agg={"mid": wr.median("v")})
ONCE = wr.Deduplicate(by="k", event_time="t", within="4 seconds", watermark="2 seconds", name="once")
CHAIN = aggregate("ones", window=wr.tumbling("1 second"), emit=wr.Emit.append(), allowed_lateness=None).then(
    aggregate("tens", event_time="window_time", window=wr.tumbling("10 seconds"), watermark="0 seconds")
)
ALL = [FIVES, MEDIANS, ONCE, CHAIN]


def message(i: int) -> wr.Message:
    late = {7: 9, 23: 17, 30: 40}.get(i, i * 7 % 4)
    return wr.Message(
        {"k": "ab"[i % 3 % 2], "t": max(i - late, 0) * S, "v": i * 5 % 9}, wr.Position("s", i % 2, i)
    )


def fed(op: Any, clock: ManualClock, numbers: range) -> None:
    for at in range(numbers.start, numbers.stop, 10):
        for i in range(at, at + 4):
            op.add_message(message(i))
        op.add_messages([message(i) for i in range(at + 4, at + 10)])
        clock.advance("10 seconds")
        op.timeout()


def alone(definition: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Return the rows and dead letters of the operator in a job of its own."""
    clock = ManualClock()
    with definition.open(str(folder / definition.name), clock=clock) as op:
        fed(op, clock, range(60))
        op.drain()
        return [str(row) for row in op.get_result()], [d.reason for d in op.dead_letters()]


def test_each_emits_what_it_emits_alone_whatever_happens_to_the_job(tmp_path: Path) -> None:
    wanted = {d.name: alone(d, tmp_path / "alone") for d in ALL}
    clock, place = ManualClock(), str(tmp_path / "job")
    with wr.open(ALL, place, clock=clock) as op:
        fed(op, clock, range(30))
        windows = op.get_windows(operator="fives")
        assert [m.payload["v"] for m in op.get_messages(operator="medians")]
    for folder in ("local", "snapshots", "segments"):
        shutil.rmtree(tmp_path / "job" / folder, ignore_errors=True)
    with pytest.raises(e.StateLost, match="replay="):
        wr.open(ALL, place, clock=clock)
    with wr.open(ALL, place, clock=clock, replay=lambda asked: [message(i) for i in range(60)]) as op:
        assert op.get_windows(operator="fives") == windows
        fed(op, clock, range(20, 60))
        op.drain()
        assert op.counters["rows"] == 60 and op.counters["replayed"] == 10
        for name, (rows, _) in wanted.items():
            assert [str(row) for row in op.get_result(name)] == rows, name
            assert len(rows) > 3
        assert len(op.dead_letters()) == sum(len(letters) for _, letters in wanted.values())
        assert len(op.get_result()) == sum(len(rows) for rows, _ in wanted.values())
        assert op.result_table("once").num_rows == len(wanted["once"][0])
        with pytest.raises(wr.ConfigurationError, match=r"\['fives', 'medians', 'once', 'tens'\]"):
            op.get_result("ones")
        with pytest.raises(wr.ConfigurationError, match="name one"):
            op.result_table()
    with wr.read_state(place) as state:
        assert state.operators == ("fives", "medians", "once", "ones", "tens")
        assert state.panes("tens").num_rows == len(wanted["tens"][0])
        assert {d.name for d in ALL} <= state.watermarks.keys()


def test_inputs_that_have_names_go_to_whom_they_are_for(tmp_path: Path) -> None:
    left, right = (wr.Input(name, event_time="t", watermark="2 seconds") for name in ("o", "s"))
    join = wr.Join(left=left, right=right, on="k", within=("-2 seconds", "2 seconds"), name="pairs")
    sums = aggregate("sums", input="o")
    emitted: dict[str, list[Any]] = {"pairs": [], "sums": []}

    def hears(name: str) -> Any:
        return wr.sinks.callback(lambda rows, token: emitted[name].extend(rows))

    with wr.open([join, sums], str(tmp_path), sink={name: hears(name) for name in emitted}) as op:
        for i in range(20):
            op.add_message(message(i), "os"[i % 2])
        op.drain()
    twin: list[Any] = []
    with join.open(str(tmp_path / "join"), sink=wr.sinks.callback(lambda rows, _: twin.extend(rows))) as op:
        for i in range(20):
            op.add_message(message(i), "os"[i % 2])
        op.drain()
    assert [r.values for r in emitted["pairs"]] == [r.values for r in twin] != []
    assert sum(r["n"] for r in emitted["sums"] if r.timing == "ON_TIME") == 10


@pytest.mark.parametrize(
    "verb",
    [
        lambda operators: wr.open(operators, "nowhere"),
        lambda operators: wr.foreach_batch(operators, "nowhere"),
        wr.writeStream,
        lambda operators: wr.together(operators, o=None),
    ],
    ids=["open", "foreach_batch", "writeStream", "together"],
)
def test_what_is_no_list_of_operators_says_what_is(verb: Any) -> None:
    for operators in (FIVES, "fives", None):
        with pytest.raises(
            wr.ConfigurationError, match=r"give operators in a list, \[first, second\]; one alone"
        ):
            verb(operators)
    with pytest.raises(wr.ConfigurationError, match="no operators: give one or several"):
        verb([])
    with pytest.raises(wr.ConfigurationError, match=r"an operator of a job='fives': give operators"):
        verb([FIVES, "fives"])


def test_what_cannot_stand_side_by_side_is_refused(tmp_path: Path) -> None:
    def refused(*definitions: Any) -> str:
        with pytest.raises(wr.ConfigurationError) as error:
            wr.open(definitions, str(tmp_path))
        return str(error.value)

    assert "named ['fives', 'fives']" in refused(FIVES, FIVES)
    assert "has one event time and one watermark" in refused(FIVES, aggregate("other", watermark="1 second"))
    assert "give it input='o'" in refused(aggregate("named", input="o"), FIVES)
    assert "knows messages by" in refused(FIVES, aggregate("ids", ids="v"))
    with pytest.raises(e.UnknownOption, match=r"open has no option 'clok': did you mean 'clock'\?"):
        wr.open([FIVES], str(tmp_path), clok=None)  # type: ignore[call-arg]


def test_tables_and_a_job_of_one(tmp_path: Path) -> None:
    table = pa.table(
        {"k": ["a"] * 3, "t": pa.array([0, S, 30 * S], pa.timestamp("us", "UTC")), "v": [1, 2, 3]}
    )
    with wr.open([FIVES], str(tmp_path / "one")) as op:
        op.add_messages(table)
        assert len(op.get_result()) == len(op.get_result("fives")) == 3
    with wr.open([FIVES, MEDIANS], str(tmp_path / "two")) as op:
        op.add_messages(table)
        assert (len(op.get_result("fives")), len(op.get_result("medians"))) == (3, 1)
