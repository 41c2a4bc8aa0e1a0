"""A static input whose rows come whenever they like, and messages kept for longer than they can match: as the oracle says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from tests.deep import examples
from tests.operators.join.cases import ALL
from tests.operators.join.test_time_layout import Form
from windrow.core.messages import Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.steps.columns import OFFSET, ORDINAL, PARTITION, SOURCE, TIMING

S = 1_000_000
SCHEMA = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ingest"),
            st.lists(st.tuples(st.sampled_from("lr"), st.sampled_from("ab"), st.integers(0, 40)), min_size=1, max_size=4),
        ),
        st.tuples(st.just("advance"), st.sampled_from([1, 3, 10])),
    ),
    min_size=3,
    max_size=12,
)  # fmt: skip
#: A left message that has matched, or not, and a static row of its time that comes when it can match no other any more.
AFTERWARDS = [
    ("ingest", [("l", "a", 5), ("l", "b", 5)]),
    ("ingest", [("r", "a", 5)]),
    ("advance", 20),
    ("ingest", [("r", "a", 5), ("r", "b", 5)]),
    ("ingest", [("r", "a", 5), ("r", "b", 5)]),
    ("advance", 30),
    ("ingest", [("r", "a", 5), ("r", "b", 5)]),
]


def definition(how: str, scale: str, *, on: bool, kept: int) -> wr.Join:
    within = ("-2 seconds", "0 seconds") if how == "asof" else ("-2 seconds", "2 seconds")
    left = wr.Input("l", event_time="t", max_ahead=wr.forever)
    right = wr.Input("r", event_time="t", max_ahead=wr.forever, static=True)
    return wr.Join(
        left=left, right=right, on="k" if on else (), within=within, how=how, scale=scale,
        retention=f"{kept} seconds", allowed_lateness="0 seconds",
    )  # fmt: skip


def row(values: dict[str, Any], timing: Any) -> str:
    chosen = {name: value for name, value in values.items() if name.endswith("v")}
    return f"{timing} {sorted(chosen.items())}"


def check(join: wr.Join, steps: list[tuple[str, Any]], *, rows: bool) -> None:
    form = Form(join, rows=rows)
    oracle = join.oracle({"l": SCHEMA, "r": SCHEMA})
    positions = {SOURCE: pa.string(), PARTITION: pa.int64(), OFFSET: pa.int64(), ORDINAL: pa.int64()}
    nothing = pa.schema([*SCHEMA, *positions.items()]).empty_table()
    form.ingest({"l": nothing, "r": nothing})  # the columns of both are known, as the oracle knows them
    watermark_us, offset = START_OF_TIME_US, 0
    for kind, what in [*steps, ("end", 0)]:
        if kind == "ingest":
            messages: dict[str, list[Message]] = {}
            tables: dict[str, pa.Table] = {}
            for name, key, second in what:
                offset += 1
                payload = {"t": second * S, "k": key, "v": offset}
                messages.setdefault(name, []).append(Message(payload, Position(f"{name}:s", 0, offset)))
            for name, batch in messages.items():
                columns = {c: [m.payload[c] for m in batch] for c in ("t", "k", "v")}
                at = {SOURCE: [f"{name}:s"] * len(batch), OFFSET: [m.payload["v"] for m in batch]}
                columns |= at | {PARTITION: [0] * len(batch), ORDINAL: [0] * len(batch)}
                table = pa.table(columns)
                tables[name] = table.set_column(0, "t", table.column("t").cast(SCHEMA.field("t").type))
            step, taken = form.ingest(tables), oracle.ingest(messages, 0, watermark_us)
        else:
            watermark_us = END_OF_TIME_US if kind == "end" else max(watermark_us, 0) + what * S
            step, taken = form.advance(watermark_us), oracle.advance(watermark_us, 0)
        emitted = [row(r, r[TIMING]) for pane in step.panes for r in pane.to_pylist()]
        assert sorted(emitted) == sorted(row(r.values, r.timing.value) for r in taken.rows)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("scale", ["small", "large"])
@pytest.mark.parametrize("how", ALL)
def test_a_static_row_that_comes_after_the_watermark(how: str, scale: str, rows: bool) -> None:
    for on in (True, False):
        check(definition(how, scale, on=on, kept=60), AFTERWARDS, rows=rows)


@given(
    how=st.sampled_from(ALL),
    scale=st.sampled_from(["small", "large"]),
    on=st.booleans(),
    kept=st.sampled_from([2, 9, 60]),
    rows=st.booleans(),
    steps=STEPS,
)
@examples(25, deep=5_000)
def test_whatever_comes_next_to_a_static_side_is_emitted_as_the_oracle_says(
    how: str, scale: str, on: bool, kept: int, rows: bool, steps: list[tuple[str, Any]]
) -> None:
    check(definition(how, scale, on=on, kept=kept), steps, rows=rows)
