"""Any rules over two inputs of events, and any messages for them."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S
from windrow.core.errors import ConfigurationError

TIME = pa.timestamp("us", "UTC")
COLUMNS = {
    "a": {"at": TIME, "k": pa.string(), "v": pa.int64(), "other": pa.int64()},
    "b": {"at": TIME, "k": pa.string(), "v": pa.int64(), "until": pa.int64()},
}
#: Rows of a table, which random rules of some tests ask for.
FACTS = {"at": TIME, "k": pa.string(), "id": pa.int64(), "v": pa.int64(), "gone": pa.bool_()}
SCHEMAS = {name: pa.schema(columns) for name, columns in COLUMNS.items()}
EDGES = ("0 seconds", "1 second", "2 seconds", "3 seconds")


def seconds(n: int) -> str:
    return f"{n} seconds"


Pick: TypeAlias = Callable[..., Any]


def picking(seed: int) -> Pick:
    """Protocol of a random choice among options."""
    draw = random.Random(seed)
    return lambda *options: options[draw.randrange(len(options))]


def relations(pick: Pick, other: str, *, lasting: bool) -> Any:
    """A temporal operator that bounds both ways, now and then with one that does not, or with a complement."""
    low, high = sorted((pick(-2, -1, 0, 0, 1, 2), pick(0, 1, 2, 3)))
    near = (seconds(low) if low else 0, seconds(high) if high else 0)
    made = [
        wr.after(other, *near),
        wr.before(other, *near),
        wr.coincides(other, seconds(max(high, 1))),
        wr.meets(other, seconds(2)),
        wr.met_by(other, seconds(1)),
    ]
    if lasting:
        made += [
            wr.during(other, seconds(3)),
            wr.includes(other, seconds(3)),
            wr.overlaps(other),
            wr.overlapped_by(other, seconds(2)),
            wr.starts(other, seconds(1)),
            wr.started_by(other),
            wr.finishes(other),
            wr.finished_by(other, seconds(1)),
        ]
    one = pick(*made)
    return pick(*[one] * 8, [one, ~wr.coincides(other)], [one, wr.after(other, -wr.forever, seconds(1))])


def alone(pick: Pick, column: str, *, lasting: bool) -> Any:
    """Temporal operators that compare a message with an instant, now and then by a time column of its own."""
    near = datetime.fromtimestamp(pick(2, 3, 5), UTC)
    made = [wr.after(near), wr.before(near, "-1 second", "3 seconds"), ~wr.after(near, 0, "2 seconds")]
    return pick(
        *[()] * 6, pick(*made), wr.coincides(near, "2 seconds", **({} if lasting else {"this": column}))
    )


def fact(pick: Pick, other: str) -> Any:
    """A pattern of facts, now and then with a condition that raises."""
    raising = wr.lit(6) / (wr.col("v") - wr.col(f"{other}.v")) > 0
    return wr.fact(
        "c",
        where=pick(None, None, wr.col("v") > 0, wr.col("v") >= wr.col(f"{other}.v"), raising),
        on=pick((), {"id": f"{other}.v"}),
        time=pick((), (), wr.after("x", "-2 seconds", "4 seconds")),
        wait=pick(None, None, seconds(2), seconds(20)),
    )


def framed(pick: Pick, input: str) -> Any:
    """Aggregations of the last messages."""
    return wr.accumulate(
        input,
        agg={"c": wr.count(), "s": wr.sum("v"), "m": wr.avg("v"), "l": wr.last("v")},
        frame=pick(1, 2, 3, wr.range_between("-2 seconds", 0, closed="right"), seconds(1)),
        where=pick(None, wr.col("v") > 0),
        having=pick(None, None, wr.col("m") > 1, wr.col("c") < 3),
        empty=pick({}, {"m": 0.0}),
    )


def rule(pick: Pick, *, lasting: bool, like: Any = None, facts: bool = False) -> Any:
    """One rule: one to three events, those of another one's inputs, an absence or an aggregate now and then."""
    like = like if like and like.events else None
    events = [p.input for p in like.events.values()] if like else [pick("a", "b") for _ in "xyz"]
    instants = alone(pick, "other" if events[0] == "a" else "until", lasting=lasting)
    when: dict[str, Any] = {"x": wr.event(events[0], where=pick(None, None, wr.col("v") > 0), time=instants)}
    names = ["x"]
    for name, input in zip("yz", events[1:] if like else events[1 : 1 + pick(0, 1, 1, 2)], strict=False):
        other = pick(*names)
        raising = wr.lit(6) / (wr.col("v") - wr.col("x.v")) > 1
        when[name] = wr.event(
            input,
            frame=pick(*[None] * 5, 2, wr.range_between("-3 seconds", 0, closed="right")),
            time=relations(pick, other, lasting=lasting),
            where=pick(None, None, wr.col("v") >= wr.col(f"{other}.v"), raising),
            on=pick((), (), {"v": f"{other}.v"}),
            other_than=pick((), other),
        )
        names.append(name)
    for name in ("n", "m")[: pick(0, 1, 1, 2)]:
        other = pick(*names)
        raising = wr.lit(6) / wr.col("v") > 2
        shared = {
            "time": relations(pick, other, lasting=lasting),
            "where": pick(None, None, wr.col("v") > 1, wr.col("v") != wr.col("x.v"), raising),
            "other_than": pick((), other),
        }
        if pick(True, True, False):
            when[name] = wr.absent(pick("a", "b"), **shared)
        else:
            when[name] = wr.accumulate(
                pick("a", "b"),
                agg={"c": wr.count(), "s": wr.sum("v"), "m": wr.avg("v"), "l": wr.last("v")},
                having=pick(None, wr.col("c") < 2, wr.col("m") > wr.col("x.v")),
                empty=pick({}, {"m": 0.0}),
                **shared,
            )
    if pick(*[False] * 7, True):
        when = {"x": framed(pick, events[0])}
        then = {"v": wr.col("x.s"), "w": wr.col("x.m")}
        if facts:
            when["f"] = wr.fact("c", on=pick((), {"v": "x.c"}), where=pick(None, wr.col("v") > 0))
        return wr.Rule(when=when, then=then)
    if facts:
        when["f"] = fact(pick, pick(*names))
        if pick(True, False, False):
            when["g"] = fact(pick, pick(*names, "f"))
        when = dict(sorted(when.items(), key=lambda _: pick(0, 1)))
    then = {"v": wr.col("x.v"), "w": pick(wr.col(f"{names[-1]}.v") + 1, wr.lit(7) / wr.col("x.v"))}
    then |= {f"{n}_c": wr.col(f"{n}.c") for n in ("n", "m") if n in when and when[n].agg}
    return wr.Rule(when=when, then=then, delay=pick(*[None] * 6, seconds(8)))


def definition(pick: Pick, *, facts: bool = False) -> Any:
    """Rules over both inputs. Raises `ConfigurationError` where they contradict themselves, or nothing bounds them."""
    lasting = pick(False, False, True)
    shared = {
        "watermark": pick("0 seconds", "1 second", wr.explicit(), wr.fixed("3 seconds")),
        "max_ahead": wr.forever,
    }
    rules = {"one": rule(pick, lasting=lasting, facts=facts)}
    for name in ("two", "three")[: pick(0, 1, 2)]:
        like = pick(None, rules["one"], rules["one"])
        rules[name] = rule(pick, lasting=lasting, like=like, facts=facts and pick(True, False))
    ends: dict[str, Any] = {"end": "until", "longest": pick(None, seconds(4), seconds(4))} if lasting else {}
    table = {"key": pick(None, "id", "id"), "deleted": pick(None, "gone"), "event_time": "at"}
    tables = [wr.Table("c", **table, **pick({}, {"by": ()}))] if facts else []
    expires = pick(*[None] * 4, seconds(2), wr.at_least(seconds(2)))
    return wr.Rules(
        by=pick((), "k", "k"),
        inputs=[
            wr.Input("a", event_time="at", where=pick(None, None, wr.col("v") < 3), **shared),
            wr.Input("b", event_time="at", expires=expires, **ends, **shared),
            *tables,
        ],
        rules=rules,
        allowed_lateness=pick(*EDGES),
        emit=pick(None, None, wr.Emit(late=wr.every_batch, mode="retracting")),
        null_keys=pick("group", "group", "dead_letter"),
    )


def sound(pick: Pick, *, facts: bool = False) -> Any:
    """A definition that is accepted."""
    while True:
        with contextlib.suppress(ConfigurationError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return definition(pick, facts=facts)


rows = st.fixed_dictionaries(
    {
        "input": st.sampled_from(["a", "b"]),
        "t": st.integers(0, 19).flatmap(
            lambda n: st.none() if n == 0 else st.integers(0, 60) if n == 1 else st.integers(0, 14)
        ),
        "k": st.sampled_from(["p", "p", "p", "q", None]),
        "v": st.sampled_from([0, 1, 1, 2, 3, None]),
        "more": st.sampled_from([0, 0, 1, 2, 4, 6, -1, None]),
        "partition": st.integers(0, 1),
    }
)


def drawn(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds; the other end comes some of them later."""
    at = None if row["t"] is None else row["t"] * S // 2
    end = None if row["more"] is None else (at or 0) + row["more"] * S // 2
    other = "other" if row["input"] == "a" else "until"
    payload = {"at": at, "k": row["k"], "v": row["v"], other: end}
    if row["input"] == "c":
        payload = {"at": at, "k": row["k"], "id": row["id"], "v": row["v"], "gone": row["more"] == 2}
    return Drawn(payload, row["input"], row["partition"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    made = sound(picking(draw(st.integers(0, 1 << 32))))
    return Case(
        definition=made, messages=rows.map(drawn), schema=SCHEMAS, start_us=draw(st.sampled_from([0, 10 * S]))
    )


OPERATOR = Operator(
    cases(),
    wr.Rules(
        by="k",
        inputs=[
            wr.Input("a", event_time="at", watermark="1 second", max_ahead=wr.forever),
            wr.Input("b", event_time="at", watermark="1 second", max_ahead=wr.forever),
        ],
        rules={
            "pair": wr.Rule(
                when={"x": wr.event("a"), "y": wr.event("b", time=wr.after("x", 0, "2 seconds"))},
                then={"x": wr.col("x.v"), "y": wr.col("y.v")},
            ),
            "alone": wr.Rule(
                when={"x": wr.event("a"), "n": wr.absent("b", time=wr.after("x", 0, "2 seconds"))},
                then={"x": wr.col("x.v")},
            ),
        },
    ),
    SCHEMAS,
    [
        drawn({"input": name, "t": t, "k": k, "v": v, "more": 0, "partition": 0})
        for v, (name, t, k) in enumerate(
            [
                ("a", 0, "p"),
                ("b", 2, "p"),
                ("a", 4, "q"),
                ("a", 9, "p"),
                ("b", 1, "p"),
                ("a", None, "p"),
                ("b", 40, "q"),
                ("a", 40, None),
            ]
        )
    ],
)
