"""Any windows around messages, and any messages for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("x", pa.int64()), ("y", pa.float64())]
)


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
        "x": st.sampled_from([0, 1, 2, 3, 5, 8, None, 2**62]),
        "y": st.sampled_from([0.5, -1.0, 0.25, 3.0, None, float("nan"), float("inf")]),
    }
)
halves = st.integers(-5, 5).map(lambda n: f"{n * 500} ms")
closed = st.sampled_from(["both", "both", "left", "right", "neither"])


@wr.aggregate_function(name="spread", returns=pa.int64())
def spread(messages: pa.Table) -> int:
    """Raises where there is nothing to take it of."""
    numbers = [x for x in messages["x"].to_pylist() if x is not None]
    return max(numbers) - min(numbers)


@wr.aggregate_function(name="stood", returns=pa.string(), envelope=True)
def stood(messages: pa.Table) -> str:
    """Return the place and the time of each message."""
    names = ("__partition", "__offset", "__ordinal", "t", "x")
    return repr([[str(row[name]) for name in names] for row in messages.to_pylist()])


ALL: dict[str, Any] = {
    "n": wr.count(),
    "numbers": wr.count("y"),
    "total": wr.sum("x"),
    "sum": wr.sum("y"),
    "mean": wr.avg("x"),
    "average": wr.avg("y"),
    "least": wr.min("y"),
    "most": wr.max("y"),
    "lowest": wr.min("x"),
    "highest": wr.max("x"),
    "dev": wr.stddev("x"),
    "population": wr.stddev("y", ddof=0),
    "first": wr.first("x"),
    "latest": wr.latest("y"),
    "any": wr.any_value("x"),
    "values": wr.collect_list("x"),
    "in time": wr.collect_list("y", order="event_time"),
    "keys": wr.max("k"),
    "soonest": wr.min("t"),
    "middle": wr.median("y"),
    "large": wr.sum("x").where(wr.col("x") > 1),
    "tenth": wr.max(wr.lit(10) / wr.col("x")),
    "spread": spread(),
    "stood": stood(),
}


@st.composite
def counted(draw: st.DrawFn, waits: bool) -> Any:
    low, high = draw(st.integers(-4, 2 if waits else 0)), draw(st.integers(-2, 3 if waits else 0))
    partial = draw(st.sampled_from(["skip", "emit", "null"]))
    try:
        return wr.rows_between(low, high, closed=draw(closed), partial=partial)
    except wr.ConfigurationError:  # it would hold nothing
        return wr.rows_between(low, low, partial=partial)


@st.composite
def timed(draw: st.DrawFn) -> Any:
    start, end = draw(halves), draw(halves)
    return wr.range_between(start, end, closed=draw(closed) if start != end else "both")


@st.composite
def framed(draw: st.DrawFn) -> dict[str, Any]:
    """Aggregations and their frames: of time and past messages, or of messages past and future; and running ones."""
    waits = draw(st.booleans())
    frames = counted(waits) if waits else st.one_of(timed(), timed(), counted(False))
    names = draw(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4, unique=True))
    expressions = {name: ALL[name].over(draw(frames)) for name in names}
    for name in draw(st.lists(st.sampled_from(sorted(ALL)), max_size=2, unique=True)):
        if ALL[name].function is None and ALL[name].kind != "median":
            peers = not waits and draw(st.booleans())
            expressions[f"{name} so far"] = ALL[name].over(
                wr.range_between(wr.unbounded, 0) if peers else None
            )
    return expressions


triggers = st.sampled_from([wr.every_batch, wr.every_batch, wr.every("2 seconds"), wr.never])


@st.composite
def arriving(draw: st.DrawFn) -> dict[str, Any]:
    """Aggregations of messages as they come."""
    names = draw(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=3, unique=True))
    rows = {}
    for name in names:
        frame = draw(counted(True))
        rows[name] = ALL[name].over(replace(frame, order="position"))
    running = wr.rows_between(wr.forever, 0, order="position")
    for name in draw(st.lists(st.sampled_from(["n", "total", "most", "first", "values"]), max_size=1)):
        rows[f"{name} so far"] = ALL[name].over(running)
    return rows


@st.composite
def corrected(draw: st.DrawFn) -> dict[str, Any]:
    """Half of them once and for good."""
    lateness = draw(st.sampled_from([0, 0, 0, 2, 5]))
    early, late = draw(triggers), draw(triggers)
    if late == wr.never and lateness:
        late = wr.every_batch
    mode = draw(st.sampled_from(["retracting", "accumulating"]))
    emit = wr.Emit(early=early, late=late, mode=mode, only_if_changed=draw(st.booleans()))
    return draw(st.sampled_from([{}, {"emit": emit, "allowed_lateness": f"{lateness} seconds"}]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    agg, told_again = draw(framed()), draw(corrected())
    if draw(st.integers(0, 3)) == 0:
        agg, told_again = draw(arriving()), {}
    is_counted = any(not hasattr(a.frame, "low_us") for a in agg.values())
    waits = any(getattr(a.frame, "high", 0) > 0 for a in agg.values())
    ttls: list[Any] = ["0 seconds", "1 second", "2 seconds", "4 seconds"]
    if not (waits and told_again):
        ttls.append(wr.forever)
    definition = wr.Over(
        by=draw(st.sampled_from(["k", ("k",), ("k", "x"), ()])),
        event_time="t",
        agg=agg,
        ttl=draw(st.sampled_from(ttls)) if is_counted else None,
        select=draw(st.sampled_from([None, (), ("x",), ("k", "y")])),
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit(), wr.fixed("3 seconds")])),
        null_keys=draw(st.sampled_from(["group", "group", "dead_letter"])),
        max_ahead=draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"])),
        integer_overflow=draw(st.sampled_from(["dead_letter", "decimal"])),
        input=draw(st.sampled_from([None, None, "readings"])),
        where=draw(st.sampled_from([None, None, wr.col("y") > 0, wr.lit(4) / wr.col("x") > 1])),
        deliver=draw(policies("x")),
        **told_again,
    )
    start_us = draw(st.sampled_from([0, 10 * S]))
    named = rows.map(drawn).map(lambda one: one._replace(input=definition.input_name))
    return Case(definition=definition, messages=named, schema=SCHEMA, start_us=start_us)


OPERATOR = Operator(
    cases(),
    wr.Over(
        by="k",
        event_time="t",
        frame=wr.range_between("-2 seconds", "1 second"),
        agg={
            "n": wr.count(),
            "mean": wr.avg("y"),
            "two": wr.sum("x").over(wr.rows_between(-1, 0, partial="emit")),
            "so far": wr.max("y").over(),
        },
        ttl="10 seconds",
        max_ahead=wr.forever,
    ),
    SCHEMA,
    [
        drawn({"t": t, "k": k, "x": x, "y": x / 2})
        for x, (t, k) in enumerate(
            [(0, "a"), (3, "a"), (3, "b"), (9, "a"), (9, None), (None, "a"), (7, "b"), (30, "b"), (31, "b")]
        )
    ],
)
