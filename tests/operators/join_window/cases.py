"""Any join window, and any messages for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies
from windrow.core.windows import Tuples, TupleSession

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("i", pa.int64()), ("v", pa.int64())]
)
WINDOWS = (
    wr.tumbling("3 seconds"),
    wr.tumbling("3 seconds", offset="1 second"),
    wr.hopping("4 seconds", "2 seconds"),
    wr.hopping("3 seconds", "2 seconds"),
    wr.hopping("1 second", "3 seconds", gaps=True),
    wr.calendar("day", time_zone="Europe/Berlin"),
    wr.global_window(),
    wr.session("1 second"),
    wr.session("500 ms"),
    wr.session(wr.col("v") * 500_000),
    wr.session("1 second", cut=wr.tumbling("3 seconds", offset="1 second")),
    wr.tuples(3),
    wr.tuples(2, step=1),
    wr.tuples(5, step=2),
    wr.session(messages=0),
    wr.session(messages=2),
)
TRIGGERS = (wr.every_batch, wr.every_batch, wr.never, wr.every(2), wr.every("5 seconds"))


def drawn(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds."""
    time = row["t"] if row["t"] is None else row["t"] * S // 2
    return Drawn({**row, "t": time}, None, row["v"] % 2)


rows = st.fixed_dictionaries(
    {
        # Mostly close to each other: what is far ahead makes all the rest late.
        "t": st.integers(0, 19).flatmap(
            lambda n: st.none() if n == 0 else st.integers(0, 60) if n == 1 else st.integers(0, 14)
        ),
        "k": st.sampled_from(["a", "a", "b", "", None]),
        "i": st.sampled_from([1, 1, 2, 3, None]),
        "v": st.integers(0, 3),
    }
)


@st.composite
def kept(draw: st.DrawFn, window: Any) -> tuple[Any, Any]:
    """Retention, and allowed lateness."""
    if isinstance(window, Tuples):
        counts = (wr.Retain(windows=2), wr.Retain(messages=6), wr.Retain(windows=3, per="job"))
        return draw(st.sampled_from([wr.forever, *counts])), None
    if isinstance(window, TupleSession):
        return draw(st.sampled_from([wr.forever, wr.Retain(messages=4, per="job")])), None
    if window == wr.global_window():
        return wr.forever, None
    time = draw(st.sampled_from([None, "0 seconds", "2 seconds", "5 seconds"]))
    lateness = draw(st.sampled_from([None, None, "0 seconds"]))
    if draw(st.booleans()):
        return wr.forever if time is None else time, lateness
    sizes = {"windows": draw(st.sampled_from([None, 2])), "messages": draw(st.sampled_from([None, 5]))}
    return wr.Retain(
        wr.forever if time is None else time, **sizes, per=draw(st.sampled_from(["key", "job"]))
    ), lateness


@st.composite
def cases(draw: st.DrawFn) -> Case:
    window = draw(st.sampled_from(WINDOWS))
    retention, lateness = draw(kept(window))
    ids = draw(st.sampled_from([None, None, None, wr.ids("i")]))
    where = [None, None, None, wr.lit(6) / wr.col("v") > 2]
    definition = wr.JoinWindow(
        by=draw(st.sampled_from(["k", ("k",)] if isinstance(window, TupleSession) else [(), "k", ("k",)])),
        event_time="t",
        window=window,
        retention=retention,
        join_keys=draw(st.sampled_from([(), "i", ("i", "v")])),
        allowed_lateness=lateness,
        emit=draw(
            st.none()
            | st.builds(
                wr.Emit,
                early=st.sampled_from(TRIGGERS),
                late=st.sampled_from(TRIGGERS),
                on_time=st.sampled_from([True, True, False]),
            )
        ),
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit(), wr.fixed("3 seconds")])),
        null_keys=draw(st.sampled_from(["group", "group", "dead_letter"])),
        max_ahead=draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"])),
        ids=ids,
        input=draw(st.sampled_from([None, None, "orders"])),
        where=draw(st.sampled_from(where)),
        deliver=draw(policies("v", counting=ids is None)),
    )
    schema = draw(st.sampled_from([SCHEMA, None]))
    start_us = draw(st.sampled_from([0, 10 * S]))
    named = rows.map(drawn).map(lambda one: one._replace(input=definition.input_name))
    return Case(definition=definition, messages=named, schema=schema, start_us=start_us)


OPERATOR = Operator(
    cases(),
    wr.JoinWindow(
        by="k",
        event_time="t",
        window=wr.hopping("4 seconds", "2 seconds"),
        retention="10 seconds",
        join_keys="i",
        watermark="1 second",
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch),
        max_ahead=wr.forever,
    ),
    SCHEMA,
    [
        drawn({"t": t, "k": k, "i": i, "v": v})
        for v, (t, k, i) in enumerate(
            [
                (0, "a", 1),
                (3, "a", 1),
                (3, "b", 1),
                (9, "a", 2),
                (9, None, 1),
                (None, "a", 2),
                (5, "b", 3),
                (30, "b", 1),
            ]
        )
    ],
)
