"""`definition.apply` of frames in this process: the rows of every operator are those of an open one, fed all and drained."""

from __future__ import annotations

import tempfile
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.contract import Case
from tests.operators.test_contract import FOUND, OPERATORS
from windrow.core.errors import UnknownColumn
from windrow.testing import ManualClock
from windrow.testing.ledger import values_equal

COUNTS = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count(), "v": wr.sum("v")}
)  # fmt: skip
PAIRS = wr.Join(
    left=wr.Input("orders", event_time="t"), right=wr.Input("paid", event_time="t"), on="k", within=("0 s", "5 s")
)  # fmt: skip
ROWS = [{"k": "a", "t": f"1970-01-01T0{i // 6}:{i % 6}0Z", "v": i} for i in range(9)]
TABLE = pa.Table.from_pylist(ROWS)


def opened(case: Any, frames: dict[str, Any], store: str = "memory") -> tuple[list[Any], list[Any]]:
    """Give rows and dead letters of an open operator whose watermark moves once, past all."""
    definition = case.definition
    still = definition.with_watermarks({one.name: wr.explicit() for one in definition.inputs})
    with (
        tempfile.TemporaryDirectory() as folder,
        still.open(folder, clock=ManualClock(case.start_us), store=store) as op,
    ):
        op.add_messages(frames if definition.by_input else next(iter(frames.values())))
        op.drain()
        return op.result_table().to_pylist(), op.dead_letters()


@pytest.mark.parametrize("name", FOUND)
@given(data=st.data())
@examples(3, deep=2_000)
def test_apply_gives_the_rows_and_dead_letters_of_an_open_operator(name: str, data: st.DataObject) -> None:
    case = data.draw(OPERATORS[name].cases)
    drawn = data.draw(st.lists(case.messages, max_size=20))
    frames = {
        one.name: [dict(m.payload) for m in drawn if m.input in (None, one.name)]
        for one in case.definition.inputs
    }
    letters: list[Any] = []
    try:
        rows = case.definition.apply(
            frames if case.definition.by_input else next(iter(frames.values())),
            clock=ManualClock(case.start_us),
            dead_letters=lambda fallen, token: letters.extend(fallen),
        )
    except UnknownColumn:  # of messages without it, whose columns the case declares
        with pytest.raises(UnknownColumn):
            opened(case, frames)
        return
    if any(frames.values()):
        wanted, dead = opened(case, frames)
        assert values_equal(rows.to_pylist(), wanted)
        assert letters == dead
    else:
        assert len(rows) == 0 and letters == []


@pytest.mark.parametrize("name", FOUND)
def test_apply_takes_tables_of_every_operator_and_keeps_their_columns_without_rows(name: str) -> None:
    operator = OPERATORS[name]
    definition, tables = operator.definition, operator.tables
    case = Case(definition=definition, messages=st.nothing())
    wanted, _ = opened(case, tables)
    rows = (
        definition.apply(**tables) if definition.by_input else definition.apply(next(iter(tables.values())))
    )
    assert wanted and values_equal(rows.to_pylist(), wanted)
    empty = {name: table.slice(0, 0) for name, table in tables.items()}
    none = definition.apply(empty if definition.by_input else next(iter(empty.values())))
    assert len(none) == 0 and none.schema.names == rows.schema.names


def test_a_frame_of_polars_comes_back_as_one_and_any_other_as_an_arrow_table() -> None:
    of_polars = COUNTS.apply(pl.from_arrow(TABLE))
    assert isinstance(of_polars, pl.DataFrame)
    assert of_polars["n"].to_list() == [6, 3] and of_polars["window_start"].dt.hour().to_list() == [0, 1]
    for frame in (TABLE, TABLE.to_batches()[0], TABLE.to_pandas(), ROWS, [wr.Message(row) for row in ROWS]):
        rows = COUNTS.apply(frame)
        assert isinstance(rows, pa.Table) and rows["v"].to_pylist() == [15, 21]
    assert isinstance(COUNTS.apply(pl.from_arrow(TABLE.slice(0, 0))), pl.DataFrame)
    joined = PAIRS.apply(orders=pl.DataFrame(ROWS), paid=pd.DataFrame(ROWS))
    assert isinstance(joined, pl.DataFrame) and len(joined) == 9


def test_apply_writes_nothing_and_logs_what_it_could_not_count(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with structlog.testing.capture_logs() as logs:
        rows = COUNTS.apply([*ROWS, {"k": "a", "t": "no time", "v": 1}])
    assert len(rows) == 2 and list(tmp_path.iterdir()) == []
    [entry] = [e for e in logs if e["log_level"] == "warning"]
    assert entry["counts"] == {"dead.malformed": 1} and entry["operator"] == "aggregate"
    assert "no time" in str(entry["first"])


def test_dead_letters_of_two_runs_come_to_one_parquet_sink(tmp_path: Any) -> None:
    sink = wr.sinks.parquet(str(tmp_path / "dead"))
    for _ in range(2):
        COUNTS.apply([*ROWS, {"k": "a", "t": "no time", "v": 1}], dead_letters=sink)
    assert wr.read_panes(sink.path).column("reason").to_pylist() == ["malformed"] * 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: COUNTS.apply({"orders": TABLE}), "'aggregate' has one input without a name"),
        (lambda: COUNTS.apply(orders=TABLE), "'aggregate' has one input without a name"),
        (lambda: PAIRS.apply(TABLE), r"one frame is given: give each by its name, e.g. apply\(orders=frame"),
        (lambda: PAIRS.apply(orders=TABLE), r"takes the inputs \['orders', 'paid'\], given are \['orders'\]"),
        (lambda: PAIRS.apply({"orders": TABLE, "pay": TABLE}), r"given are \['orders', 'pay'\]"),
    ],
)
def test_frames_that_are_not_those_of_the_inputs_are_refused(call: Any, said: str) -> None:
    with pytest.raises(wr.ConfigurationError, match=said):
        call()


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(wr.WindrowError, match="None is a NoneType, not many messages"):
        COUNTS.apply()
