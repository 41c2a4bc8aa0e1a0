"""Any deduplication, and any messages for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("i", pa.int64()), ("v", pa.int64())]
)


def drawn(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds."""
    time = row["t"] if row["t"] is None else row["t"] * S // 2
    return Drawn({**row, "t": time}, None, row["v"] % 2)


rows = st.fixed_dictionaries(
    {
        # Mostly close to each other: what is far ahead makes all the rest too late.
        "t": st.integers(0, 19).flatmap(
            lambda n: st.none() if n == 0 else st.integers(0, 60) if n == 1 else st.integers(0, 12)
        ),
        "k": st.sampled_from(["a", "a", "a", "", None]),
        "i": st.sampled_from([1, 1, 1, 1, 2, None]),
        "v": st.integers(0, 3),
    }
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ids = draw(st.sampled_from([wr.ids("i"), wr.ids("i", "v"), None]))
    definition = wr.Deduplicate(
        by=draw(st.sampled_from(["k", ("k",), ()] if ids else ["k"])),
        event_time="t",
        ids=ids,
        within=draw(st.sampled_from(["0 seconds", "1 second", "2 seconds", "3 seconds", wr.forever])),
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit(), wr.fixed("3 seconds")])),
        null_keys=draw(st.sampled_from(["group", "dead_letter"])),
        max_ahead=draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"])),
        input=draw(st.sampled_from([None, None, "orders"])),
        where=draw(st.sampled_from([None, None, wr.col("v") > 0, wr.lit(6) / wr.col("v") > 2])),
        deliver=draw(policies("v", counting=ids is None)),
    )
    schema = draw(st.sampled_from([SCHEMA, None]))
    start_us = draw(st.sampled_from([0, 10 * S]))
    named = rows.map(drawn).map(lambda one: one._replace(input=definition.input_name))
    return Case(definition=definition, messages=named, schema=schema, start_us=start_us)


OPERATOR = Operator(
    cases(),
    wr.Deduplicate(by="k", event_time="t", ids=wr.ids("i"), within="2 seconds", max_ahead=wr.forever),
    SCHEMA,
    [
        drawn({"t": t, "k": k, "i": i, "v": v})
        for v, (t, k, i) in enumerate(
            [(0, "a", 1), (3, "a", 1), (3, "b", 1), (9, "a", 1), (9, None, 1), (None, "a", 2)]
        )
    ],
)
