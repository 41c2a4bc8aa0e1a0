"""Any alert, and any messages for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("x", pa.int64()), ("y", pa.float64())]
)
AGG: dict[str, Any] = {
    "n": wr.count(),
    "total": wr.sum("x"),
    "mean": wr.avg("y"),
    "newest": wr.latest("x"),
    "list": wr.collect_list("x", order="event_time"),
}


def drawn(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds."""
    time = row["t"] if row["t"] is None else row["t"] * S // 2
    return Drawn({**row, "t": time}, None, (row["x"] or 0) % 2)


rows = st.fixed_dictionaries(
    {
        # Mostly close to each other: what is far ahead makes all the rest too late.
        "t": st.integers(0, 29).flatmap(
            lambda n: st.none() if n == 0 else st.integers(0, 60) if n == 1 else st.integers(0, 14)
        ),
        "k": st.sampled_from(["a", "a", "a", "", None]),
        "x": st.sampled_from([0, 1, 2, 3, 5, 8, None]),
        "y": st.sampled_from([0.5, -1.0, 0.25, 3.0, None, float("nan")]),
    }
)

periods = st.sampled_from(
    [wr.never, wr.never, wr.every(1), wr.every(2), wr.every("2 seconds"), wr.every("5 seconds")]
)


@st.composite
def actions(draw: st.DrawFn) -> Any:
    """Draw actions by name, each with options that an action may have."""
    made = st.builds(
        wr.Action,
        open=st.sampled_from([True, True, False]),
        repeat=periods,
        cancel=st.sampled_from([True, True, False]),
        delay=st.sampled_from([None, None, "1 second", "3 seconds"]),
        where=st.sampled_from([None, None, wr.col("count") < 3]),
    )
    return draw(
        st.one_of(st.none(), st.dictionaries(st.sampled_from(["mail", "chat", "log"]), made, min_size=1))
    )


whens = [
    wr.col("n") > 1,
    wr.col("total") > 4,
    wr.col("newest") > 2,
    wr.col("mean") > 0,
    (wr.col("newest") > 2) & (wr.col("before_status") != "REPEAT"),
    (wr.lit(8) / wr.col("newest")) > 2,
    (wr.col("newest") > 2) & (wr.col("count") < 2),
    wr.col("leaving") & (wr.col("samples") > 0),
    wr.col("twice") > 6,
]
untils = [None, None, wr.col("newest") < 1, wr.col("count") > 1, wr.col("n") < 1, wr.col("total") > 6]
VARIABLES = {
    "twice": wr.col("newest") * 2,
    "since": wr.col("open_time"),
    "gap": wr.col("last_time") - wr.col("first_time"),
}


def alone(expression: Any) -> Any:
    """The same over the columns of a message."""
    return {str(a): b for a, b in zip(whens, OF_MESSAGES, strict=True)}[str(expression)]


OF_MESSAGES = [
    wr.col("x") > 1,
    wr.col("x") > 4,
    wr.col("y") > 0,
    wr.col("x").is_valid(),
    (wr.col("x") > 2) & (wr.col("before_status") != "REPEAT"),
    (wr.lit(8) / wr.col("x")) > 2,
    (wr.col("x") > 2) & (wr.col("count") < 2),
    wr.col("x") > 0,
    wr.col("twice") > 6,
]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    frame = draw(
        st.sampled_from(
            [None, None, "2 seconds", "3 seconds", wr.range_between("-2 seconds", 0, closed="right"), 1, 3]
        )
    )
    when, until = draw(st.sampled_from(whens)), draw(st.sampled_from(untils))
    variables: Any = VARIABLES
    if frame is None:
        when, variables = alone(when), {"twice": wr.col("x") * 2, "since": wr.col("open_time")}
        until = draw(st.sampled_from([None, wr.col("x") < 1, wr.col("count") > 1]))
    agg = dict(AGG)
    if draw(st.booleans()):
        agg["n"] = wr.count().over(draw(st.sampled_from(["1 second", 2])))
    ttl = draw(st.sampled_from([None, "3 seconds", "5 seconds"]))
    if frame in (1, 3) and ttl is None:
        ttl = draw(st.sampled_from([wr.forever, "1 second", "4 seconds"]))
    history = None if frame is None else draw(st.sampled_from([None, "past"]))
    definition = wr.Alert(
        by=draw(st.sampled_from(["k", ("k",), ("k", "x"), ()])),
        event_time="t",
        frame=frame,
        agg=None if frame is None else agg,
        variables=variables,
        when=when,
        until=until,
        evaluate=None if frame is None else draw(st.sampled_from([None, wr.every("2 seconds")])),
        leaving=draw(st.booleans()),
        actions=draw(actions()),
        ttl=ttl,
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit(), wr.fixed("3 seconds")])),
        null_keys=draw(st.sampled_from(["group", "group", "dead_letter"])),
        max_ahead=draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"])),
        input=draw(st.sampled_from([None, None, "readings"])),
        history=history,
        where=draw(st.sampled_from([None, None, wr.col("y") > 0])),
        deliver=draw(policies("x")),
    )
    start_us = draw(st.sampled_from([0, 10 * S]))
    names = [source.name for source in definition.inputs] if definition.by_input else [None]
    named = st.builds(
        lambda row, name: drawn(row)._replace(input=name), rows, st.sampled_from([*names, names[0]])
    )
    schema = dict.fromkeys(names, SCHEMA) if definition.history else SCHEMA
    return Case(definition=definition, messages=named, schema=schema, start_us=start_us)


OPERATOR = Operator(
    cases(),
    wr.Alert(
        by="k",
        event_time="t",
        frame="2 seconds",
        agg={"n": wr.count(), "mean": wr.avg("y"), "two": wr.sum("x").over(2)},
        variables={"jump": wr.col("two") - wr.col("mean")},
        when=wr.col("n") > 1,
        until=wr.col("n") < 1,
        actions={"mail": wr.Action(delay="1 second", repeat=wr.every(1)), "log": wr.Action()},
        ttl="10 seconds",
        history="past",
        input="live",
        max_ahead=wr.forever,
    ),
    {"live": SCHEMA, "past": SCHEMA},
    [
        drawn({"t": t, "k": k, "x": x, "y": x / 2})._replace(input="past" if x < 3 else "live")
        for x, (t, k) in enumerate(
            [
                *[(-7, "a"), (-1, "a"), (-1, "b")],
                *[
                    (0, "a"),
                    (3, "a"),
                    (3, "b"),
                    (4, "a"),
                    (9, None),
                    (None, "a"),
                    (7, "b"),
                    (30, "b"),
                    (31, "b"),
                ],
            ]
        )
    ],
)
