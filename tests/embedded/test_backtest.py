"""A backtest emits what a job in the same commits emits, and says when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing import ManualClock

T0_US = int(datetime(2013, 7, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000
SECOND_US = 1_000_000


def messages(n: int, seed: int, key: str = "k") -> pa.Table:
    """Some messages a second, out of order by up to three seconds, in the order in which they arrive."""
    draw = np.random.default_rng(seed)
    arrived = np.sort(draw.integers(0, n * 400_000, n)) + T0_US
    return pa.table(
        {
            "t": pa.array(arrived - draw.integers(0, 3 * SECOND_US, n)),
            "arrived": pa.array(arrived),
            key: pa.array(draw.integers(0, 3, n)),
            "x": pa.array(draw.normal(size=n)),
        }
    )


def count(**options: Any) -> wr.Aggregate:
    arguments = {
        "window": wr.tumbling("10 seconds"),
        "retention": "1 minute",
        "agg": {"n": wr.count(), "x": wr.sum("x")},
    }
    return wr.Aggregate(**{"by": "k", "event_time": "t", "name": "counts", **arguments, **options})


PAIRS = wr.Join(
    left=wr.Input("a", event_time="t", watermark="2 seconds"),
    right=wr.Input("b", event_time="t", watermark="2 seconds"),
    on="k",
    within=("0 seconds", "2 seconds"),
    how="left",
)
PLAIN: dict[str, wr.Aggregate | wr.Over | wr.Chain | wr.Join] = {
    "early and late": count(emit=wr.Emit(early=wr.every(3), late=wr.every_batch), watermark="1 second"),
    "periods of now": count(emit=wr.Emit(early=wr.every("2 seconds")), watermark="1 second"),
    "neighbours": wr.Over(
        by="k", event_time="t", frame=wr.range_between("-5 seconds", 0), agg={"m": wr.avg("x")}, watermark="1 second"
    ),
    "a chain": wr.chain(
        count(emit=wr.Emit.append()),
        wr.Aggregate(event_time="window_time", window=wr.tumbling("1 minute"), agg={"n": wr.sum("n")}, retention="1 hour"),
    ),
    "a join": PAIRS,
}  # fmt: skip


def recorded(definition: Any, frames: Mapping[str, pa.Table], folder: Path) -> pa.Table:
    """The rows that a job publishes which is fed by the second, as its messages arrive."""
    clock, published = ManualClock(T0_US), []
    with definition.open(str(folder), clock=clock) as op:
        last = max(table["arrived"][-1].as_py() for table in frames.values())
        for second in range((last - T0_US) // SECOND_US + 1):
            clock.advance("1 second")
            low, high = T0_US + second * SECOND_US, T0_US + (second + 1) * SECOND_US
            slices = {
                name: table.filter(
                    (pa.compute.field("arrived") >= low) & (pa.compute.field("arrived") < high)
                )
                for name, table in frames.items()
            }
            slices = {name: table for name, table in slices.items() if len(table)}
            if slices:
                op.add_messages(slices if definition.by_input else slices[""])
            else:
                op.timeout()
            published.append(op.result_table())
            op.engine.unflushed.clear()
        op.drain()
        return pa.concat_tables([t for t in [*published, op.result_table()] if len(t)])


@pytest.mark.parametrize("name", PLAIN)
def test_a_recorded_job_and_its_backtest_emit_the_same_rows(name: str, tmp_path: Path) -> None:
    definition = PLAIN[name]
    frames = {"a": messages(40, 1), "b": messages(40, 2)} if name == "a join" else {"": messages(50, 3)}
    rows = recorded(definition, frames, tmp_path)
    replayed = definition.backtest(frames if definition.by_input else frames[""], arrived="arrived")
    assert replayed.drop_columns("emitted_at").equals(rows)
    assert len(rows) > (1 if name == "a chain" else 8)
    times = replayed["emitted_at"].to_pylist()
    live = [time for time in times if time is not None]
    assert live == sorted(live) and times == live + [None] * (len(times) - len(live))


def test_rows_have_the_end_of_the_commit_that_emits_them() -> None:
    rows = count(by=(), emit=wr.Emit.append()).backtest(
        [{"t": "2013-07-01 05:00:01Z", "x": 1.0}, {"t": "2013-07-01 05:00:12.5Z", "x": 2.0}],
        commits="5 seconds",
        drain=False,
    )
    assert [(str(row["emitted_at"]), row["x"]) for row in rows.to_pylist()] == [
        ("2013-07-01 05:00:15+00:00", 1.0)
    ]


def test_rows_that_only_the_end_of_event_time_emits_have_no_time() -> None:
    rows = count(by=(), emit=wr.Emit.append()).backtest([{"t": "2013-07-01 05:00:01Z", "x": 1.0}])
    assert [(row["emitted_at"], row["x"]) for row in rows.to_pylist()] == [(None, 1.0)]


def test_an_input_without_messages_has_no_arrivals() -> None:
    lonely = wr.Rules(
        by="x",
        inputs=[wr.Input("a", event_time="t"), wr.Input("b", event_time="t")],
        rules={
            "no": wr.Rule(when={"a": wr.event("a"), "b": wr.absent("b", time=wr.after("a", 0, "1 second"))})
        },
    )
    rows = lonely.backtest(a=[{"t": "2013-07-01 05:00:01Z", "x": 1.0}], b=[])
    assert [row["x"] for row in rows.to_pylist()] == [1.0]
    assert len(count().backtest([])) == 0


def test_time_passes_between_messages_where_rows_wait_for_it() -> None:
    fixed = count(by=(), watermark=wr.fixed("0 seconds"), emit=wr.Emit.append())
    rows = fixed.backtest(
        [{"t": "2013-07-01 05:00:01Z", "x": 1.0}, {"t": "2013-07-01 05:01:00Z", "x": 2.0}], drain=False
    )
    assert [str(row["emitted_at"]) for row in rows.to_pylist()] == ["2013-07-01 05:00:10+00:00"]


def test_what_arrives_late_is_late() -> None:
    table = pa.table(
        {
            "t": [T0_US + 1, T0_US + 60 * SECOND_US, T0_US + 2],
            "at": [T0_US, T0_US + 1, T0_US + SECOND_US],
            "x": [1.0] * 3,
        }
    )
    letters: list[Any] = []
    rows = count(by=(), allowed_lateness="0 seconds", emit=wr.Emit.append()).backtest(
        table, arrived="at", dead_letters=lambda dead, token: letters.extend(dead)
    )
    assert [row["n"] for row in rows.to_pylist()] == [1, 1]
    assert [letter.reason for letter in letters] == ["too_late"]
    in_time = count(by=(), allowed_lateness="0 seconds", emit=wr.Emit.append()).backtest(table)
    assert [row["n"] for row in in_time.to_pylist()] == [2, 1]


def test_messages_with_positions_are_read_in_their_order() -> None:
    """A later position does not overtake an earlier one that arrives after it."""
    table = pa.table(
        {
            "t": [T0_US + 20 * SECOND_US, T0_US, T0_US + 30 * SECOND_US],
            "o": [0, 1, 2],
            "x": [1.0, 2.0, 3.0],
        }
    )
    rows = count(by=(), positions=wr.positions("o"), watermark="1 minute", emit=wr.Emit.append()).backtest(
        table
    )
    assert sorted(row["x"] for row in rows.to_pylist()) == [1.0, 2.0, 3.0]


def test_frames_without_rows_have_the_columns_of_rows() -> None:
    rows = PAIRS.backtest(a=messages(1, 0).slice(1), b=messages(1, 0).slice(1))
    assert (len(rows), rows.column_names[-1]) == (0, "emitted_at")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: count().backtest(messages(1, 0), commits="0 seconds"),
            e.BadDuration,
            ["'0 seconds'", "'1 second'"],
        ),
        (
            lambda: count().backtest(pa.table({"x": [1]})),
            e.ConfigurationError,
            ["'t'", "arrived='received_at'", "['x']"],
        ),
        (
            lambda: count().backtest(messages(1, 0), arrived="rcv"),
            e.ConfigurationError,
            ["'rcv'", "'t'", "arrive"],
        ),
        (
            lambda: PAIRS.backtest(messages(1, 0)),
            e.ConfigurationError,
            ["['a', 'b']", "backtest(a=frame, b=frame)"],
        ),
        (
            lambda: count(agg={"emitted_at": wr.count()}).backtest(messages(1, 0)),
            e.ReservedColumn,
            ["'emitted_at'", "rename"],
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(call: Any, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words)
