"""Any graph of operators: lines, joins of what operators tell, operators side by side; and any messages for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S
from windrow.core.time import duration_us
from windrow.core.windows import Session

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("g", pa.int64()), ("v", pa.int64())]
)
LATENESS = st.sampled_from([None, "0 seconds", "3 seconds"])
WATERMARKS = st.sampled_from(["0 seconds", "2 seconds", wr.explicit()])
AGGREGATIONS = {"least": wr.min, "first": wr.first, "median": wr.median}


@st.composite
def emits(draw: st.DrawFn, modes: tuple[str, ...], *, before: bool) -> wr.Emit:
    """Emissions of the last operator, or of one before another."""
    mode = draw(st.sampled_from(modes))
    triggers = st.sampled_from([wr.never, wr.every_batch, wr.every(2), wr.every("3 seconds")])
    if before and mode == "accumulating":
        return draw(st.sampled_from([wr.Emit.append(), wr.Emit(late=wr.never), wr.Emit.final()]))
    return wr.Emit(early=draw(triggers), late=draw(triggers), mode=mode)


@st.composite
def aggregates(
    draw: st.DrawFn,
    after: tuple[str, str] | None,
    name: str,
    *,
    last: bool,
    outside: tuple[str, Any] | None = None,
) -> wr.Aggregate:
    """after: (event time, column to sum) of the operator before it; outside: (name, watermark) of an input that is named."""
    event_time, column = after or ("t", "v")
    keys = [("k",), ("k", "g"), ()] if after is None or after[0] == "window_time" else [("k",), ()]
    by = draw(st.sampled_from(keys[: 3 if outside is None else 2] if after is None else [("k",), ()]))
    seconds = st.sampled_from([wr.tumbling("1 second"), wr.hopping("3 seconds", "2 seconds")])
    tens = st.sampled_from(
        [wr.tumbling("10 seconds"), wr.hopping("6 seconds", "4 seconds"), wr.tumbling("1 second")]
        + [wr.inherited()] * 2 * (event_time == "window_time")
    )
    agg: dict[str, Any] = {"n": wr.sum(column), "rows": wr.count()}
    if last:
        chosen = draw(st.sets(st.sampled_from(sorted(AGGREGATIONS))))
        agg |= {name: AGGREGATIONS[name](column) for name in sorted(chosen)}
    if after is not None and draw(st.sampled_from([False, False, True])):
        agg["share"] = wr.sum(wr.lit(6) / wr.col(column))  # which a row may make raise
    emit = draw(emits(("accumulating", "discarding", *(("retracting",) if last else ())), before=not last))
    lateness = None if emit.drop_late else draw(LATENESS)
    if emit.mode == "discarding" or lateness != "3 seconds":  # else a session that was told may grow
        seconds |= st.just(wr.session("1 second"))
    return wr.Aggregate(
        by=by,
        event_time=event_time,
        window=draw(tens if after else seconds),
        agg=agg,
        watermark=outside[1] if outside else draw(WATERMARKS) if after is None else "0 seconds",
        input=outside[0] if outside else None,
        retention="20 seconds",
        allowed_lateness=lateness,
        emit=emit,
        name=name,
    )


@st.composite
def joins(draw: st.DrawFn) -> tuple[wr.Join, str]:
    """A join and the column that is the event time of what follows it."""
    how = draw(st.sampled_from(["inner", "left", "right", "semi", "anti", "asof"]))
    within = (
        ("-3 seconds", "0 seconds")
        if how == "asof"
        else draw(st.sampled_from([("-2 seconds", "3 seconds"), None]))
    )
    windows = [None, None] if within else draw(
        st.sampled_from([[wr.sliding("2 seconds"), wr.sliding("1 second")], [wr.tumbling("4 seconds"), None],
                         [wr.rows(2), None]])
    )  # fmt: skip
    watermark = draw(WATERMARKS)
    left, right = (
        wr.Input(name, event_time="t", window=window, watermark=watermark)
        for name, window in zip(("o", "s"), windows, strict=True)
    )
    join = wr.Join(
        left=left, right=right, on="k", within=within, how=how, name="first",
        allowed_lateness=draw(LATENESS), retention="20 seconds",
    )  # fmt: skip
    times = {"left": ["o_t"], "asof": ["o_t"], "right": ["s_t"], "semi": ["t"], "anti": ["t"]}
    return join, draw(st.sampled_from(times.get(how, ["o_t", "s_t"])))


@st.composite
def chains(draw: st.DrawFn) -> wr.Chain:
    """Operators in a line, of aggregates, or of a join and an aggregate."""
    if draw(st.booleans()):
        join, time = draw(joins())
        column = {"o_t": "o_v", "s_t": "s_v", "t": "v"}[time]
        second = draw(aggregates((time, column), "second", last=True))
        return wr.chain(join, second)
    first = draw(aggregates(None, "first", last=False))
    parts = [first]
    if draw(st.sampled_from([False, False, True])):
        parts.append(draw(aggregates(("window_time", "n"), "middle", last=False)))
    parts.append(draw(aggregates(("window_time", "n"), "second", last=True)))
    kept = [parts[0]]
    for part in parts[1:]:  # keys can only be left out
        by = tuple(b for b in part.by if b in kept[-1].by)
        kept.append(part if by == part.by else part._changed(by=by))
    return wr.chain(*kept)


@st.composite
def followed(draw: st.DrawFn, before: wr.Join | wr.Aggregate, time: str, column: str) -> list[Any]:
    """A later join on either side, and the event time and column that an aggregate after it may take."""
    how = draw(st.sampled_from(["inner", "left", "right", "semi", "anti", "asof"]))
    handed_left = how == "asof" or draw(st.booleans())
    within = ("-3 seconds", "0 seconds") if how == "asof" else ("-2 seconds", "4 seconds")
    windows = draw(st.sampled_from([(None, None), (wr.rows(2), None)])) if how != "asof" else (None, None)
    theirs = watermark_kind(before)
    rows = wr.Input(before.name, event_time=time, window=windows[0], watermark=theirs)
    own = wr.Input(
        "p", event_time="t", window=windows[1],
        watermark=theirs if theirs == wr.explicit() else draw(st.sampled_from(["0 seconds", "2 seconds"])),
        static=draw(st.sampled_from([False, False, True])),
    )  # fmt: skip
    left, right = (rows, own) if handed_left else (own, rows)
    join = wr.Join(
        left=left, right=right, on="k", within=within, how=how, name="joined",
        allowed_lateness=draw(LATENESS), retention="20 seconds",
    )  # fmt: skip
    both = ("left", "right") if how not in ("left", "semi", "anti", "asof") else ("left",)
    side = draw(st.sampled_from(("right",) if how == "right" else both))
    clash = column == "v" and how not in ("semi", "anti")
    if (side == "left") == handed_left:
        return [join, f"first_{time}" if clash else time, f"first_{column}" if clash else column]
    return [join, None if own.static else "p_t" if clash else "t", "p_v" if clash else "v"]


def watermark_kind(before: Any) -> Any:
    return wr.explicit() if before.inputs[0].watermark == wr.explicit() else "0 seconds"


@st.composite
def chains_of_joins(draw: st.DrawFn) -> wr.Chain:
    """A join or an aggregate, then a join, then perhaps an aggregate."""
    if draw(st.booleans()):
        first, time = draw(joins())
        column = {"o_t": "o_v", "s_t": "s_v", "t": "v"}[time]
    else:
        first, time, column = (
            draw(aggregates(None, "first", last=False).filter(lambda a: a.by)),
            "window_time",
            "n",
        )
    join, time, column = draw(followed(first, time, column))
    if time is None or draw(st.booleans()):
        return wr.chain(first, join)
    return wr.chain(first, join, draw(aggregates((time, column), "second", last=True)))


@st.composite
def graphs(draw: st.DrawFn) -> wr.Chain:
    """Draw a graph that is no chain: operators side by side, on inputs of their own or on one, and a join of their rows;
    then perhaps one with an input of its own, or an aggregate.
    """
    watermarks = draw(st.sampled_from([["0 seconds", "2 seconds"], [wr.explicit()]]))
    outside = {name: draw(st.sampled_from(watermarks)) for name in "osp"}
    if draw(st.booleans()):
        sources = ("o", draw(st.sampled_from("os")))
        parts: list[Any] = [
            draw(aggregates(None, name, last=False, outside=(source, outside[source])))
            for name, source in zip(("first", "other"), sources, strict=True)
        ]
        times, values = ("window_time", "window_time"), ("n", "n")
    else:
        shared = draw(st.sampled_from([None, wr.sliding("3 seconds")]))
        parts = [
            wr.Join(
                left=wr.Input("o", event_time="t", window=window, watermark=outside["o"]),
                right=wr.Input(theirs, event_time="t", watermark=outside[theirs]),
                on="k", within=("-1 second", "3 seconds"), how=draw(st.sampled_from(["inner", "left", "semi"])),
                name=name, retention="20 seconds", allowed_lateness=draw(LATENESS),
            )
            for name, theirs, window in (("first", "s", None), ("other", "p", shared))
        ]  # fmt: skip
        times = tuple("t" if p.how == "semi" else "o_t" for p in parts)
        values = tuple("v" if p.how == "semi" else "o_v" for p in parts)
    sides = [wr.Input(p.name, event_time=time) for p, time in zip(parts, times, strict=True)]
    both = wr.Join(
        left=sides[0], right=sides[1], on="k", within=("-2 seconds", "4 seconds"), name="both", retention="20 seconds",
        how=draw(st.sampled_from(["inner", "left", "full", "semi"])), allowed_lateness=draw(LATENESS),
    )  # fmt: skip
    parts.append(both)
    clash = [n for n in (times[0], values[0]) if both.how != "semi" and n in (times[1], values[1])]
    time, value = (f"first_{n}" if n in clash else n for n in (times[0], values[0]))
    if both.how != "full" and draw(st.booleans()):
        parts.append(draw(aggregates((time, value), "second", last=True)))
    return wr.chain(*parts)


class Numbers:
    """A running number of each key, told at once, and its end when nothing came for a while."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        timers.set(timers.time + timedelta(seconds=2))
        return {"n": state["n"], "v": message["v"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Any:
        return {"n": -1, "v": None}


@st.composite
def rows_emitted_once(draw: st.DrawFn) -> wr.Chain:
    """A deduplication, a function, or both, before an aggregate; or a deduplication of panes."""
    within = draw(st.sampled_from(["0 seconds", "2 seconds", "20 seconds"]))
    if draw(st.sampled_from([False, False, True])):
        first = draw(aggregates(None, "first", last=False).filter(lambda a: a.by))
        last = wr.Deduplicate(by="k", ids=wr.ids("n"), event_time="window_time", within=within, name="second")
        return wr.chain(first, last)
    watermark = draw(WATERMARKS)
    once = wr.Deduplicate(
        by="k", ids=wr.ids("g"), event_time="t", within=within, watermark=watermark, name="once"
    )
    numbers = {"by": "k", "event_time": "t", "function": Numbers, "ttl": within, "name": "numbers"}
    emits = {"n": pa.int64(), "v": pa.int64()}
    parts: list[Any] = {
        "once": [once],
        "numbers": [wr.Process(**numbers, emits=emits, watermark=watermark)],
        "both": [once, wr.Process(**numbers, emits=emits)],
    }[draw(st.sampled_from(["once", "numbers", "both"]))]
    return wr.chain(*parts, draw(aggregates(("t", "v"), "second", last=True)))


TAKING = {
    "n": wr.sum("n"), "rows": wr.count(), "least": wr.min("n"), "most": wr.max("n"), "mean": wr.avg("n"),
    "spread": wr.stddev("n"), "kinds": wr.collect_set("n"), "high": wr.count().where(wr.col("n") > 1),
    "middle": wr.median("n"), "top": wr.top_k("n", 2),
}  # fmt: skip
#: And one on which a row may raise.
RAISING = {**TAKING, "share": wr.sum(wr.lit(6) / wr.col("n"))}


def corrected(name: str, draw: st.DrawFn, lateness: list[str], **settings: Any) -> wr.Aggregate:
    """An aggregate that tells a window again and again, each time in place of what it told before."""
    triggers = st.sampled_from([wr.never, wr.every_batch, wr.every(2), wr.every("3 seconds")])
    session = isinstance(settings["window"], Session)
    early, late = (wr.every_batch, wr.every_batch) if session else (draw(triggers), draw(triggers))
    mode = draw(st.sampled_from(["accumulating", "retracting"]))
    emit = wr.Emit(
        early=early, late=late, mode=mode, only_if_changed=draw(st.booleans()), closing_pane=draw(st.booleans())
    )  # fmt: skip
    own = draw(st.sampled_from(lateness))
    return wr.Aggregate(retention="20 seconds", allowed_lateness=own, emit=emit, name=name, **settings)


@st.composite
def corrections(draw: st.DrawFn, taking: dict[str, Any] = TAKING) -> wr.Chain:
    """An aggregate whose panes are corrected, and one or two that count them again, by key, by value, or all of them."""
    window = draw(
        st.sampled_from(
            [wr.tumbling("1 second"), wr.hopping("3 seconds", "2 seconds"), wr.session("1 second")]
        )
    )
    lateness = ["0 seconds", "3 seconds", "20 seconds"]
    first = corrected(
        "first", draw, lateness, by="k", event_time="t", window=window, agg={"n": wr.sum("v")}, watermark=draw(WATERMARKS)
    )  # fmt: skip
    parts, columns = [first], ["k", "n"]
    for name in ("second", "third")[: draw(st.sampled_from([1, 1, 2]))]:
        # What is taken back after all is where more is allowed than before.
        theirs = [
            late for late in lateness if duration_us(late, "") >= parts[-1].allowed_lateness_us
        ] if isinstance(window, Session) else lateness  # fmt: skip
        by = draw(st.sampled_from([(), *((c,) for c in columns)]))
        window = draw(st.sampled_from([wr.tumbling("4 seconds"), wr.hopping("6 seconds", "4 seconds")]))
        chosen = draw(st.sets(st.sampled_from(sorted(taking)), max_size=3)) | {"n"}
        agg = {alias: taking[alias] for alias in sorted(chosen) if alias not in by}
        settings = {
            "by": by,
            "event_time": "window_time",
            "window": window,
            "agg": agg or {"rows": wr.count()},
        }
        parts.append(corrected(name, draw, theirs, **settings))
        columns = [c for c in (*by, "n") if (c == "n" and c in agg) or c in by]
        if "n" not in agg:
            break
    return wr.chain(*parts)


@st.composite
def corrected_sessions(draw: st.DrawFn, taking: dict[str, Any] = TAKING) -> wr.Chain:
    """Sessions of panes, or of rows around messages, that are told early and corrected: they grow, and fall apart."""
    outside, lateness = draw(WATERMARKS), ["0 seconds", "3 seconds", "20 seconds"]
    windows = [wr.tumbling("1 second"), wr.hopping("3 seconds", "2 seconds"), wr.session("1 second")]
    window, rows_around = draw(st.sampled_from(windows)), draw(st.sampled_from([False, False, True]))
    if rows_around:
        triggers = st.sampled_from([wr.every_batch, wr.every("3 seconds")])
        first: Any = wr.Over(
            by="k", event_time="t", frame=wr.range_between("-2 seconds", "1 second"), agg={"n": wr.sum("v")},
            allowed_lateness=draw(st.sampled_from(lateness[:2])), watermark=outside,
            emit=wr.Emit(early=draw(triggers), late=draw(triggers), mode="retracting"), name="first",
        )  # fmt: skip
    else:
        first = corrected(
            "first", draw, lateness, by=draw(st.sampled_from(["k", ("k", "g")])), event_time="t", window=window,
            agg={"n": wr.sum("v"), "rows": wr.count()}, watermark=outside,
        )  # fmt: skip
        lateness = [late for late in lateness if duration_us(late, "") >= first.allowed_lateness_us] if isinstance(
            window, Session
        ) else lateness  # fmt: skip
    shapes = [
        wr.session("1 second"),
        wr.session("2 seconds"),
        wr.session("2 seconds", cut=wr.tumbling("5 seconds")),
    ]
    shapes += [wr.session("3 seconds", max_length="5 seconds")]
    if not rows_around:
        shapes += [wr.session(wr.col("rows") * S), wr.session(wr.col("rows") * S, max_length="4 seconds")]
    triggers = st.sampled_from(
        [
            wr.never,
            wr.every_batch,
            wr.every(2),
            wr.every("3 seconds"),
            wr.delay("2 seconds"),
            wr.when(wr.col("n") > 2),
        ]
    )
    mode = draw(st.sampled_from(["accumulating", "retracting"]))
    emission = {"on_time": draw(st.sampled_from([True, True, False])), "only_if_changed": draw(st.booleans())}
    emit = wr.Emit(
        early=draw(triggers), late=draw(triggers), mode=mode, closing_pane=draw(st.booleans()), **emission
    )
    kinds = {**taking, "first": wr.first("n"), "all": wr.collect_list("n"), "latest": wr.last("n")}
    chosen = draw(st.sets(st.sampled_from(sorted(kinds)), max_size=3)) | {"n"}
    by, late = draw(st.sampled_from([(), ("k",), ("k",), ("n",)])), draw(st.sampled_from(lateness))
    once = {"emit": wr.Emit.append()} if "0 seconds" in lateness else {"allowed_lateness": late}
    shape = draw(st.sampled_from(shapes))
    if shape.max_length_us is not None:
        chosen |= {"middle"}
    second = wr.Aggregate(
        by=by, event_time="t" if rows_around else "window_time", window=shape,
        agg={alias: kinds[alias] for alias in sorted(chosen) if alias not in by} or {"rows": wr.count()},
        retention="20 seconds", name="second",
        **draw(st.sampled_from([once, *[{"emit": emit, "allowed_lateness": late}] * 4])),
    )  # fmt: skip
    return wr.chain(first, second)


@st.composite
def around(draw: st.DrawFn) -> wr.Chain:
    """Windows around messages whose rows are told early and corrected, and an aggregate that takes them back."""
    triggers = st.sampled_from([wr.never, wr.every_batch, wr.every("3 seconds")])
    lateness = draw(st.sampled_from(["0 seconds", "3 seconds", "8 seconds"]))
    late = draw(triggers.filter(lambda trigger: trigger != wr.never))
    counted = draw(st.sampled_from([None, wr.rows_between(-1, 0), wr.rows_between(-1, 1, partial="emit")]))
    first = wr.Over(
        by="k", event_time="t", frame=counted or wr.range_between("-2 seconds", "1 second"), agg={"n": wr.sum("v")},
        ttl=None if counted is None else "4 seconds", allowed_lateness=lateness, watermark=draw(WATERMARKS),
        emit=wr.Emit(early=draw(triggers), late=late, mode="retracting"), name="first",
    )  # fmt: skip
    by = draw(st.sampled_from([(), ("k",), ("n",)]))
    chosen = draw(st.sets(st.sampled_from(sorted(RAISING)), max_size=3)) | {"rows"}
    second = corrected(
        "second", draw, ["0 seconds", "3 seconds", "20 seconds"], by=by, event_time="t",
        window=draw(st.sampled_from([wr.tumbling("4 seconds"), wr.hopping("6 seconds", "4 seconds")])),
        agg={alias: RAISING[alias] for alias in sorted(chosen) if alias not in by},
    )  # fmt: skip
    return wr.chain(first, second)


@st.composite
def corrected_joins(draw: st.DrawFn) -> wr.Chain:
    """Joins of rows that may be taken back: of one aggregate, or of two, or of windows around messages; then perhaps a further
    one, or an aggregate of it."""
    outside = wr.explicit() if draw(st.booleans()) else "2 seconds"
    lateness = ["0 seconds", "3 seconds", "20 seconds"]
    windows = [wr.tumbling("1 second"), wr.hopping("3 seconds", "2 seconds"), wr.session("1 second")]
    keys = draw(st.sampled_from([("k",), ("k", "g")]))

    def before(name: str, source: str | None, window: Any) -> Any:
        if name == "first" and draw(st.sampled_from([False, False, True])):
            triggers = st.sampled_from([wr.every_batch, wr.every("3 seconds")])
            return wr.Over(
                by="k", event_time="t", frame=wr.range_between("-2 seconds", "1 second"), agg={"n": wr.sum("v")},
                allowed_lateness=draw(st.sampled_from(lateness[:2])), watermark=outside, input=source, select=("v",),
                emit=wr.Emit(early=draw(triggers), late=draw(triggers), mode="retracting"), name=name,
            )  # fmt: skip
        return corrected(
            name, draw, lateness, by=keys, event_time="t", window=window, agg={"n": wr.sum("v")}, watermark=outside,
            input=source,
        )  # fmt: skip

    parts = [before("first", "o", draw(st.sampled_from(windows)))]
    if draw(st.booleans()):
        parts.append(before("other", draw(st.sampled_from("os")), draw(st.sampled_from(windows))))
    times = {p.name: "window_time" if isinstance(p, wr.Aggregate) else "t" for p in parts}
    within, shapes = draw(
        st.sampled_from(
            [(("-2 seconds", "3 seconds"), [None, None]), (("2 seconds", "4 seconds"), [None, None]),
             (("-4 seconds", "-1 seconds"), [None, None]), (None, [wr.sliding("2 seconds"), wr.sliding("1 second")]),
             (None, [wr.tumbling("4 seconds"), None])]
        )
    )  # fmt: skip
    named = [*times.items(), ("p", "t")][:2]
    if draw(st.booleans()):
        named.reverse()
    how = draw(st.sampled_from(["inner", "left", "right", "full", "semi", "anti", "asof"]))
    if how == "asof":
        within, shapes = ("-3 seconds", "0 seconds"), [None, None]
    left, right = (
        wr.Input(
            name, event_time=time, window=shape,
            watermark=outside if name == "p" or outside == wr.explicit() else "0 seconds",
        )
        for (name, time), shape in zip(named, shapes, strict=True)
    )  # fmt: skip
    least = max(
        (p.allowed_lateness_us for p in parts if isinstance(getattr(p, "window", None), Session)), default=0
    )
    own = draw(st.sampled_from([late for late in lateness if duration_us(late, "") >= least]))
    where = draw(st.sampled_from([None, None, wr.col("n") != 2])) if len(parts) == 1 else None
    join = wr.Join(
        left=left, right=right, on="k", within=within, how=how, where=where, allowed_lateness=own, retention="20 seconds",
        name="joined", scale=draw(st.sampled_from([None, "small", "large"])),
    )  # fmt: skip
    parts.append(join)
    alone = how in ("semi", "anti")
    both = named[0][1] == named[1][1] and not alone
    time = f"{left.name}_{left.event_time}" if both else left.event_time
    if how in ("right", "full") or draw(st.booleans()):
        return wr.chain(*parts)
    keeps = [late for late in lateness if duration_us(late, "") >= join.allowed_lateness_us]
    settings = {
        "by": "k",
        "event_time": time,
        "window": wr.tumbling("4 seconds"),
        "agg": {"rows": wr.count(), "m": wr.max(time)},
    }
    if draw(st.booleans()):
        return wr.chain(*parts, corrected("second", draw, keeps, **settings))
    further = wr.Join(
        left=wr.Input("joined", event_time=time, watermark=outside if outside == wr.explicit() else "0 seconds"),
        right=wr.Input("q", event_time="t", watermark=outside), on="k", within=("-3 seconds", "2 seconds"),
        how=draw(st.sampled_from(["inner", "left", "semi"])), allowed_lateness=draw(st.sampled_from(keeps)),
        retention="20 seconds", name="further",
    )  # fmt: skip
    return wr.chain(*parts, further)


def drawn(graph: wr.Chain, row: dict[str, Any]) -> Drawn:
    """Times are in half seconds."""
    payload = {"t": row["t"] * S // 2, "k": row["k"], "g": row["g"], "v": row["v"]}
    return Drawn(payload, graph.inputs[row["side"] % len(graph.inputs)].name if graph.by_input else None)


rows = st.fixed_dictionaries(
    {
        "t": st.integers(0, 50),
        "k": st.sampled_from("ab"),
        "g": st.integers(0, 1),
        "v": st.integers(-5, 5),
        "side": st.integers(0, 5),
    }
)


def schema_of(graph: wr.Chain) -> Any:
    return {source.name: SCHEMA for source in graph.inputs} if graph.by_input else SCHEMA


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    graph = draw(
        st.one_of(
            chains(),
            chains_of_joins(),
            graphs(),
            rows_emitted_once(),
            corrections(RAISING),
            around(),
            corrected_sessions(RAISING),
            corrected_joins(),
        )
    )
    return Case(
        definition=graph,
        messages=rows.map(lambda row: drawn(graph, row)),
        schema=schema_of(graph),
        start_us=draw(st.sampled_from([0, 100 * S])),
    )


def _shown() -> Operator:
    """Counts of the orders, joined with the shipments, and counted again."""
    counts = wr.Aggregate(
        by="k", event_time="t", window=wr.tumbling("1 second"), agg={"n": wr.count(), "sum": wr.sum("v")}, input="orders",
        watermark="1 second", retention="1 minute", emit=wr.Emit.append(), max_ahead=wr.forever, name="counts",
    )  # fmt: skip
    join = wr.Join(
        left=wr.Input("counts", event_time="window_time"),
        right=wr.Input("shipments", event_time="t", watermark="1 second", max_ahead=wr.forever),
        on="k", within=("-2 seconds", "3 seconds"), how="left", allowed_lateness="0 seconds", retention="30 seconds",
    )  # fmt: skip
    totals = wr.Aggregate(
        by="k", event_time="window_time", window=wr.tumbling("10 seconds"),
        agg={"n": wr.sum("n"), "most": wr.max("sum"), "shipped": wr.count("v")}, retention="1 minute", name="totals",
    )  # fmt: skip
    graph = wr.chain(counts, join, totals)
    sides = [(0, 1, "a"), (1, 3, "a"), (0, 2, "a"), (0, 7, "b"), (1, 60, "a"), (0, 61, "b"), (1, 64, "b")]
    rows = [{"side": side, "t": t, "k": k, "g": 0, "v": v} for v, (side, t, k) in enumerate(sides)]
    return Operator(jobs(), graph, schema_of(graph), [drawn(graph, row) for row in rows])


OPERATOR = _shown()
