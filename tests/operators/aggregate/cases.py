"""Any windowed aggregate, and any messages for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies
from windrow.core.time import to_datetime

HOUR = 3600 * S
SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("g", pa.int64()),
        ("f", pa.float64()),
        ("x", pa.float64()),
        ("v", pa.int64()),
        ("u", pa.int64()),
    ]
)


@wr.aggregate_function(name="longest", returns=pa.int64())
class longest:
    """The largest value, as a user would write it."""

    def initial(self) -> int | None:
        return None

    def add(self, state: int | None, value: int | None) -> int | None:
        return value if state is None else state if value is None else max(state, value)

    def merge(self, a: int | None, b: int | None) -> int | None:
        return self.add(a, b)

    def finish(self, state: int | None) -> int | None:
        return state


@wr.aggregate_function(name="rows", returns=pa.int64())
def rows(messages: pa.Table) -> Any:
    """A function of the window's messages."""
    return len(messages) + 100 * pc.count(messages.column("t")).as_py()


INCREMENTAL = {
    "n": wr.count(),
    "nv": wr.count("v"),
    "sum": wr.sum("v"),
    "sumx": wr.sum("x"),
    "avg": wr.avg("x"),
    "min": wr.min("x"),
    "max": wr.max("x"),
    "var": wr.variance("v"),
    "dev": wr.stddev("v", ddof=0),
    "first": wr.first("v"),
    "last": wr.last("v"),
    "earliest": wr.earliest("v"),
    "latest": wr.latest("v"),
    "any": wr.any_value("v"),
    "list": wr.collect_list("v"),
    "timely": wr.collect_list("x", order="event_time"),
    "set": wr.collect_set("v"),
    "distinct": wr.count_distinct("x"),
    "about": wr.approx_count_distinct("v"),
    "mid": wr.approx_percentile("v", 0.5),
    "top": wr.top_k("v", 2),
    "tops": wr.top_k_by("f", "x", 2),
    "sorted": wr.sort_list("v", "x", descending=True),
    "largest": wr.reduce(max, "v", name="largest"),
    "by": wr.max_by("v", "x"),
    "least": wr.min_by("x", "v"),
    "weighted": wr.weighted_avg("x", "v"),
    "where": wr.sum("v").where(wr.col("v") > 1),
    "expr": wr.sum(wr.col("x") * 2),
    "divided": wr.sum(wr.lit(6) / wr.col("v")),  # raises where a whole "v" is 0
    "user": longest("v"),
}
FULL = {"median": wr.median("v"), "p": wr.percentile("x", 0.25), "rows": rows()}

TRIGGERS = ["never", "every_batch", "every 2", "every 3", "period 5", "period 7"]
STEADY = ["never", "period 5", "period 7", "all_of 2"]
MIXED = ["any_of 3", "all_of 2", "when 2"]
#: Triggers of windows of time alone.
TIMED = ["after 4", "either 3", "always 6", "event 4", "event_all 2", "event_always 6"]
#: Late ones of windows of time alone.
ENDING = ["past_end", "past_end_all 2", "past_end_any 3"]


@dataclass(frozen=True)
class Scaled:
    """A definition, and the scale of its event times."""

    definition: wr.Aggregate
    base_us: int
    unit_us: int
    datetimes: bool

    def time(self, t: int) -> int:
        return self.base_us + t * self.unit_us

    def drawn(self, row: dict[str, Any], *, whole: bool = True) -> Drawn:
        """The message of a drawn row. whole: a column that it does not have is null."""
        payload = {name: value for name, value in row.items() if name not in ("p", "bad", "u")}
        if whole:
            payload.setdefault("v", None)
        if self.definition.ids is not None:
            payload["u"] = row["u"]
        time_us = self.time(row["t"])
        payload["t"] = row.get("bad", to_datetime(time_us) if self.datetimes else time_us)
        return Drawn(payload, self.definition.input_name, row["p"])


def trigger(text: str) -> Any:
    kind, _, n = text.partition(" ")
    match kind:
        case "every":
            return wr.every(int(n))
        case "period":
            return wr.every(timedelta(seconds=int(n)))
        case "always":
            return wr.every(timedelta(seconds=int(n)), always=True)
        case "event" | "event_always":
            always = kind == "event_always"
            return wr.every(timedelta(seconds=int(n)), always=always, event_time=True)
        case "event_all":
            return wr.all_of(wr.every(int(n)), wr.every("3 seconds", event_time=True))
        case "past_end_all":
            return wr.all_of(wr.past_end, wr.every(int(n)))
        case "past_end_any":
            return wr.any_of(wr.all_of(wr.past_end, wr.every("5 seconds")), wr.every(int(n)))
        case "after":
            return wr.delay(timedelta(seconds=int(n)))
        case "when":
            return wr.when(wr.col("n") >= int(n))
        case "any_of":
            return wr.any_of(wr.every(int(n)), wr.every("5 seconds"))
        case "all_of":
            return wr.all_of(wr.every(int(n)), wr.every("5 seconds"))
        case "either":
            return wr.any_of(
                wr.when(wr.lit(6) / wr.col("n") < 3), wr.all_of(wr.delay("3 seconds"), wr.every(int(n)))
            )
    return getattr(wr, kind)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    modes: tuple[str, ...] = ("accumulating", "discarding", "retracting"),
    unbounded: bool = False,
    steady: bool = False,
    ids: bool = False,
    full: bool = False,
) -> Scaled:
    """Any definition; unbounded: nothing is ever too late; steady: one whose messages added one by one are run together.

    ids: messages are known by the column "u", or by it and another. full: they are kept.
    """

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    kind = pick("tumbling", "hopping", "uneven", "calendar", "global")
    if not steady and draw(st.integers(0, 2)) == 0:
        kind = pick("gaps", "tuples", "sliding", "hops")
    unit_us, base_us = (
        (6 * HOUR, 1_603_400_000 * S) if kind == "calendar" else (S, pick(0, -20 * S, 10**9 * S))
    )

    def units(n: int) -> timedelta:
        return timedelta(microseconds=n * unit_us)

    window = {
        "tumbling": lambda: wr.tumbling(units(10), offset=units(pick(0, 3))),
        "hopping": lambda: wr.hopping(units(10), units(5)),
        "uneven": lambda: wr.hopping(units(10), units(4), offset=units(1)),
        "gaps": lambda: wr.hopping(units(3), units(7), gaps=True),
        "calendar": lambda: wr.calendar(
            pick("day", "2 days", "week"), time_zone=pick("Europe/Berlin", "UTC")
        ),
        "global": wr.global_window,
        "tuples": lambda: wr.tuples(3),
        "sliding": lambda: wr.tuples(2, step=1),
        "hops": lambda: wr.tuples(5, step=2),
    }[kind]()
    tuples = isinstance(window, wr.core.windows.Tuples)
    lateness = None
    limits: dict[str, Any] = {
        "windows": pick(None, None, 2),
        "messages": pick(None, None, 5),
        "per": pick("key", "job"),
    }
    if steady:
        limits = {}
    triggers = STEADY if steady else [*TRIGGERS, *MIXED, *([] if tuples else TIMED)]
    retention: Any = wr.forever
    if tuples and not unbounded:
        retention = pick(
            wr.forever, wr.Retain(windows=2), wr.Retain(messages=6), wr.Retain(windows=3, per="job")
        )
    elif not (tuples or kind == "global" or unbounded):
        kept = pick(None, 0, 8, 25)
        retention = wr.Retain(wr.forever if kept is None else units(kept), **limits)
        lateness = pick(None, None, 0, 4)
        lateness = None if lateness is None or (kept is not None and lateness > kept) else units(lateness)
    drop_late = pick(False, False, False, True) and lateness is None and not unbounded
    early = draw(st.sampled_from(triggers))
    # What waits for a count, or for nothing, is told or not by the cut.
    fixed = not (tuples or steady)
    lates = ["every_batch", "period 5"] if unbounded else [*triggers, *(ENDING if fixed else [])]
    late = draw(st.sampled_from(lates))
    emit = wr.Emit(
        early=trigger(early),
        late=trigger(late),
        on_time=unbounded or pick(True, True, False),
        mode=draw(st.sampled_from(modes)),
        only_if_changed=not {"always 6", "event_always 6"} & {early, late} and draw(st.booleans()),
        closing_pane=draw(st.booleans()),
        drop_late=drop_late,
    )
    names = draw(
        st.lists(
            st.sampled_from([n for n in INCREMENTAL if not steady or n not in ("user", "largest")]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    if {"when 2", "either 3"} & {early, late} and "n" not in names:
        names.append("n")
    if steady and "any" not in names and draw(st.booleans()):
        names.append("any")
    if full or draw(st.integers(0, 3)) == 0:
        names.append(draw(st.sampled_from([*FULL])))
    definition = wr.Aggregate(
        by=pick((), "k", "k", ("k", "g"), "f"),
        event_time="t",
        window=window,
        agg={name: {**INCREMENTAL, **FULL}[name] for name in names},
        retention=retention,
        allowed_lateness=lateness,
        watermark=pick(
            units(0),
            units(3),
            wr.bounded(units(2), idle="20 seconds"),
            wr.bounded(units(1), partitions=[("s", 0), ("s", 1)]),
            wr.explicit(),
            wr.fixed("5 seconds"),
            wr.custom(_custom, name="smallest"),
        ),
        emit=emit,
        null_keys=pick("group", "group", "dead_letter"),
        max_ahead=wr.forever if unbounded else pick(wr.forever, wr.forever, None, units(10), units(40)),
        integer_overflow=pick("dead_letter", "decimal"),
        ids=pick(wr.ids("u"), wr.ids("u"), wr.ids("u", "g")) if ids else None,
        input=pick(None, None, None, "readings"),
        where=pick(None, None, None, wr.col("v") > 1, wr.lit(6) / wr.col("v") < 4, wr.col("x").is_valid()),
    )
    return Scaled(definition, base_us, unit_us, draw(st.booleans()))


def _custom(marks: dict[tuple[str, int], int], now_us: int) -> int | None:
    return min(marks.values()) - S if marks else None


BAD_TIMES = ["no time", None, math.nan, True, 2**62, 1.5, datetime(2020, 1, 1)]


@st.composite
def messages(draw: st.DrawFn, *, good: bool = False, close: bool = False) -> dict[str, Any]:
    """A row; good: it can be counted; close: its time is near that of the others, and its partition any of two."""
    row: dict[str, Any] = {
        "p": draw(st.sampled_from([0, 1] if close else [0, 0, 0, 1])),
        "t": draw(st.integers(3, 18) if close else st.one_of(st.integers(-5, 60), st.integers(0, 14))),
        "k": draw(st.sampled_from(["a", "b", None])),
        "g": draw(st.sampled_from([1, 2, None])),
        "f": draw(st.sampled_from([0.0, -0.0, 1.5, math.nan, None])),
        "x": draw(st.sampled_from([None, 0.25, -3.0, 7.5, 7.5, math.nan])),
        "v": draw(st.sampled_from([None, 0, 1, 2, 3, 5, -4])),
        "u": draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, None])),
    }
    if not good and draw(st.integers(0, 12)) == 0:
        row["bad"] = draw(st.sampled_from(BAD_TIMES))
    if not good and draw(st.integers(0, 12)) == 0:
        row["v"] = 2**62
    if draw(st.integers(0, 12)) == 0:
        del row["v"]
    return row


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["any", "any", "any", "steady", "ids", "ids", "full"]))
    scaled = draw(cases(steady=kind == "steady", ids=kind == "ids", full=kind == "full"))
    policy = draw(policies("v", counting=scaled.definition.ids is None))
    scaled = replace(scaled, definition=scaled.definition._changed(deliver=policy))
    names = SCHEMA.names if scaled.definition.ids is not None else SCHEMA.names[:-1]
    schema = draw(st.sampled_from([None, pa.schema([SCHEMA.field(name) for name in names])]))
    rows = messages(close=kind == "steady")
    return Case(
        definition=scaled.definition,
        # A column that no message has had, and nobody has declared, is a mistake.
        messages=rows.map(lambda row: scaled.drawn(row, whole=schema is None)),
        schema=schema,
        unit_us=scaled.unit_us,
        start_us=scaled.base_us,
    )


def shown(cases: st.SearchStrategy[Case], window: Any, **agg: Any) -> Operator:
    """Case of the suites for one plain definition of the kind."""
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=window,
        agg={"n": wr.count(), "sum": wr.sum("x"), **agg, "list": wr.collect_list("v")},
        watermark="1 second",
        retention="1 minute",
        emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
        max_ahead=wr.forever,
    )
    scaled = Scaled(definition, 0, S, True)
    stand = [(1, "a"), (2, None), (9, "a"), (17, "b"), (5, "a"), (90, "a"), (3, "b"), (91, "b")]
    rows = [
        {"p": 0, "t": t, "k": k, "g": None, "f": None, "x": n / 4, "v": n} for n, (t, k) in enumerate(stand)
    ]
    return Operator(cases, definition, SCHEMA, [scaled.drawn(row) for row in rows])


OPERATOR = shown(jobs(), wr.hopping("10 seconds", "5 seconds"), middle=wr.median("v"))
