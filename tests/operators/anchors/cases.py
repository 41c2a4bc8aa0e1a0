"""Any windows around anchors, and any messages for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies
from tests.operators.over.cases import ALL, SCHEMA, closed, drawn, halves, rows

TIME = pa.timestamp("us", "UTC")
MARKERS = pa.schema(
    [
        ("at", TIME),
        ("k", pa.string()),
        ("since", pa.int64()),
        ("until", pa.int64()),
        ("cut", pa.int64()),
        ("x", pa.int64()),
    ]
)


def marker(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds; where windows lie, from the anchor on."""
    at = row["at"]
    times = {
        name: None if row[name] is None else (row[name] + (at or 0)) * S // 2
        for name in ("since", "until", "cut")
    }
    return Drawn({**row, "at": None if at is None else at * S // 2, **times}, "markers", 0)


markers = st.fixed_dictionaries(
    {
        "at": st.integers(0, 29).flatmap(lambda n: st.none() if n == 0 else st.integers(0, 14)),
        "k": st.sampled_from(["a", "a", "a", "a", "a", "", None]),
        "since": st.sampled_from([-1, 0, -2, -3, -4, -5, 1, 2, -2, -1, None]),
        "until": st.sampled_from([0, 1, 2, 3, -1, -2, 5, 8, 2, 1, None]),
        "cut": st.sampled_from([-2, -1, 0, -4, 2, None]),
        "x": st.sampled_from([0, 1, 2]),
    }
)


def moments(anchors: pa.Table) -> pa.Table:
    """Raises for some anchors."""
    if 2 in anchors["x"].to_pylist():
        raise KeyError("x")
    return pa.table({"start": anchors["since"], "end": anchors["until"], "obsolete": anchors["cut"]})


HALF = pa.scalar(S // 2, pa.duration("us"))


@st.composite
def spans(draw: st.DrawFn) -> Any:
    kind, edges = (
        draw(st.sampled_from(["fixed", "columns", "promised", "promised", "expressions", "function"])),
        draw(closed),
    )
    match kind:
        case "fixed":
            start, end = draw(halves), draw(halves)
            return wr.range_between(start, end, closed=edges if start != end else "both")
        case "columns":
            return wr.between("since", "until", closed=edges)
        case "promised":
            return wr.between("since", "until", obsolete="cut", closed=edges)
        case "expressions":
            later = pc.add(wr.col("at"), HALF)
            return wr.between(wr.col("since"), later, obsolete=pc.subtract(wr.col("at"), HALF), closed=edges)
        case _:
            return wr.between(function=moments, name="moments", closed=edges)


@st.composite
def corrected(draw: st.DrawFn) -> dict[str, Any]:
    """Half of them once and for good."""
    early, mode = (
        draw(st.sampled_from([wr.never, wr.every_batch, wr.every("2 seconds")])),
        draw(st.sampled_from(["retracting", "accumulating"])),
    )
    late = draw(st.sampled_from([wr.every_batch, wr.every("3 seconds")]))
    emit = wr.Emit(early=early, late=late, mode=mode, only_if_changed=draw(st.booleans()))
    lateness = draw(st.sampled_from(["0 seconds", "2 seconds", "5 seconds"]))
    return draw(st.sampled_from([{}, {"emit": emit, "allowed_lateness": lateness}]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4, unique=True))
    clock = draw(st.integers(0, 4)) == 0
    span = wr.range_between(draw(halves), draw(halves)) if clock else draw(spans())
    fixed, by = hasattr(span, "start_us"), () if clock else draw(st.sampled_from(["k", ("k",), ()]))
    watermarks = ["0 seconds", "2 seconds", wr.fixed("3 seconds")]
    explicit = draw(st.integers(0, 3)) == 0
    first, second = (wr.explicit() if explicit else draw(st.sampled_from(watermarks)) for _ in range(2))
    ahead = draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"]))
    ticks = wr.sources.clock(
        draw(st.sampled_from(["500 ms", "1500 ms"])), start=draw(st.sampled_from([None, 250_000, 2 * S]))
    )
    input = draw(st.sampled_from([None, "readings"])) if clock else "readings"
    agg = {name: ALL[name] for name in names}
    if fixed:
        own = st.booleans() if draw(st.booleans()) else st.just(False)
        agg = {
            name: a.over(wr.range_between(draw(halves), draw(halves))) if draw(own) else a
            for name, a in agg.items()
        }
    told_again = {} if clock or (not fixed and span.promises) else draw(corrected())
    definition = wr.Over(
        by=by,
        event_time="t",
        agg=agg,
        frame=span,
        **told_again,
        anchors=ticks
        if clock
        else wr.Input(
            "markers",
            event_time="at",
            watermark=second,
            max_ahead=ahead,
            where=draw(st.sampled_from([None, None, wr.col("x") < 2])),
            deliver=draw(policies("x")),
        ),
        retention=None
        if fixed
        else draw(st.sampled_from(["4 seconds", "2 seconds", "4 seconds", wr.forever])),
        empty=draw(st.sampled_from(["emit", "emit", "skip"])),
        select=draw(st.sampled_from([None, (), ("k", "x")])) if not clock else None,
        watermark=first,
        null_keys=draw(st.sampled_from(["group", "group", "dead_letter"])),
        max_ahead=ahead,
        integer_overflow=draw(st.sampled_from(["dead_letter", "decimal"])),
        input=input,
        where=draw(st.sampled_from([None, None, wr.col("x") > 0])),
        deliver=draw(policies("x")),
    )
    readings = rows.map(drawn).map(lambda one: one._replace(input=input))
    both = readings if clock else st.one_of(readings, markers.map(marker))
    schema: Any = {"readings": SCHEMA, "markers": MARKERS}
    schema = schema if not clock else SCHEMA if input is None else {"readings": SCHEMA}
    return Case(
        definition=definition, messages=both, schema=schema, start_us=draw(st.sampled_from([0, 10 * S]))
    )


def reading(t: float, k: str, x: int) -> Drawn:
    return Drawn({"t": int(t * S), "k": k, "x": x, "y": x / 2}, "readings", 0)


def mark(at: float, k: str | None, since: float, until: float, cut: float | None) -> Drawn:
    moments = {"since": int(since * S), "until": int(until * S), "cut": None if cut is None else int(cut * S)}
    return Drawn({"at": int(at * S), "k": k, **moments, "x": 0}, "markers", 0)


OPERATOR = Operator(
    cases(),
    wr.Over(
        by="k",
        event_time="t",
        input="readings",
        anchors=wr.Input("markers", event_time="at", max_ahead=wr.forever),
        frame=wr.between("since", "until", obsolete="cut"),
        agg={"n": wr.count(), "mean": wr.avg("y"), "values": wr.collect_list("x")},
        retention="10 seconds",
        max_ahead=wr.forever,
    ),
    {"readings": SCHEMA, "markers": MARKERS},
    [
        reading(0, "a", 1),
        mark(1, "a", 0, 3, 0.5),
        reading(1, "a", 2),
        reading(3, "b", 3),
        mark(2, "a", 0, 2, None),
        mark(3, "b", 2, 5, None),
        reading(3.5, "a", 4),
        mark(8, None, 7, 9, 7),
        reading(5, "b", 5),
        mark(9, "b", 1, 12, None),
        reading(11, "a", 6),
        mark(30, "a", 29, 31, 29),
    ],
)
