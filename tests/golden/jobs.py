"""Small jobs of every kind; the archive has some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.testing import ManualClock

#: The time of the clock as the archive's jobs begin.
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)

S = 1_000_000
#: The first half is in the archive, the second goes on with it.
FIRST, SECOND = range(0, 48), range(48, 80)
#: Messages of a commit.
TOGETHER = 8


@dataclasses.dataclass(frozen=True)
class Kind:
    """A job. inputs: in the order in which messages take turns; a name that comes twice takes two of them."""

    make: Callable[[], Any]
    inputs: tuple[str, ...] = ()


def aggregate(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("x")},
        "watermark": "4 seconds",
        "retention": "1 minute",
    }
    return wr.Aggregate(**(options | changes))


def join(left: dict[str, Any] | None = None, right: dict[str, Any] | None = None, **changes: Any) -> Any:
    times = {"event_time": "t", "watermark": "4 seconds"}
    options: dict[str, Any] = {
        "left": wr.Input("orders", **(times | (left or {}))),
        "right": wr.Input("payments", **(times | (right or {}))),
        "on": "k",
        "name": "join",
    }
    return wr.Join(**(options | changes))


NUMBERS = {
    "n": wr.count(),
    "some": wr.count("x"),
    "total": wr.sum("x"),
    "mean": wr.avg("f"),
    "low": wr.min("x"),
    "high": wr.max("s"),
    "spread": wr.stddev("f"),
    "about": wr.approx_count_distinct("x"),
    "middle": wr.approx_percentile("f", 0.5),
    "newest": wr.last("s"),
    "oldest": wr.earliest("s"),
    "weighted": wr.weighted_avg("f", "x"),
    "least": wr.min_by("s", "x"),
}
ALL = {"n": wr.count(), "middle": wr.median("x"), "texts": wr.collect_list("s"), "top": wr.top_k("x", 2)}


def seconds() -> Any:
    return aggregate(window=wr.tumbling("5 seconds"), emit=wr.Emit.append(), name="seconds")


def tens() -> Any:
    return wr.Aggregate(
        by="k",
        event_time="window_time",
        window=wr.tumbling("20 seconds"),
        agg={"n": wr.sum("n"), "most": wr.max("total")},
        retention="2 minutes",
        name="tens",
    )


def shipped() -> Any:
    return join(within=("-10 seconds", "10 seconds"), allowed_lateness="20 seconds", name="shipped")


def of_pairs() -> Any:
    return wr.Aggregate(
        by="k",
        event_time="orders_t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count(), "texts": wr.collect_set("payments_s")},
        retention="2 minutes",
        emit=wr.Emit(early=wr.every_batch),
        name="pairs",
    )


def refunded() -> Any:
    return wr.Join(
        left=wr.Input("shipped", event_time="orders_t"),
        right=wr.Input("refunds", event_time="t", watermark="4 seconds"),
        on="k",
        within=("-20 seconds", "20 seconds"),
        how="left",
        allowed_lateness="20 seconds",
        name="refunded",
    )


def of_input(name: str) -> Any:
    return aggregate(input=name, name=f"{name}_sums", emit=wr.Emit.append(), window=wr.tumbling("5 seconds"))


def both() -> Any:
    return wr.Join(
        left=wr.Input("orders_sums", event_time="window_time"),
        right=wr.Input("payments_sums", event_time="window_time"),
        on="k",
        within=("0 seconds", "0 seconds"),
        allowed_lateness="10 seconds",
        name="both",
    )


class Silence:
    """Counts, and tells when a key was silent for six seconds, or for as long by the clock."""

    def on_message(self, key: Any, message: Any, state: Any, timers: Any) -> Any:
        if "due" in state:
            timers.cancel(state["due"])
        state["n"] = state.get("n", 0) + 1
        state["due"] = timers.time + timedelta(seconds=6)
        state["seen"] = [*state.get("seen", []), message["k"]][-3:]
        timers.set(state["due"])
        timers.set(timers.now + timedelta(seconds=5), of="now")
        return {"what": "message", "n": state["n"]} if state["n"] % 4 == 0 else None

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        yield {"what": f"silent {timers.of}", "n": state.get("n")}


def process(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "function": Silence,
        "emits": {"what": pa.string(), "n": pa.int64()},
        "ttl": "30 seconds",
    }
    return wr.Process(**(options | changes))


def deduplicate(**changes: Any) -> Any:
    options: dict[str, Any] = {"by": "k", "event_time": "t", "ids": wr.ids("id"), "within": "20 seconds"}
    return wr.Deduplicate(**(options | {"watermark": "4 seconds"} | changes))


def near(**changes: Any) -> Any:
    options: dict[str, Any] = {"by": "k", "event_time": "t", "watermark": "4 seconds", "ttl": "30 seconds"}
    return wr.Over(**(options | changes))


def listed(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "watermark": "4 seconds",
        "retention": "1 minute",
    }
    return wr.JoinWindow(**(options | changes))


def cogroup(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "inputs": (
            wr.Input("orders", event_time="t", watermark="4 seconds"),
            wr.Input("payments", event_time="t", by="s", watermark="6 seconds"),
        ),
        "by": "k",
        "window": wr.hopping("10 seconds", "5 seconds"),
        "agg": {
            "n": wr.count(),
            "x": wr.sum("x").of("orders"),
            "f": wr.max(wr.col("f") * 2).of("payments"),
            "some": wr.count().where(wr.col("x") > 3).of("payments"),
        },
        "retention": "1 minute",
    }
    return wr.CoGroup(**(options | changes))


def rules(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "inputs": [
            wr.Input("orders", event_time="t", watermark="4 seconds"),
            wr.Input("payments", event_time="t", watermark="6 seconds"),
        ],
        "by": "k",
        "rules": {
            "paid": wr.Rule(
                when={
                    "order": wr.event("orders", where=wr.col("x") > 0),
                    "paid": wr.event("payments", time=wr.after("order", 0, "5 seconds")),
                },
                then={"x": wr.col("order.x"), "f": wr.col("paid.f")},
            ),
            "unpaid": wr.Rule(
                when={
                    "order": wr.event("orders"),
                    "none": wr.absent("payments", time=wr.after("order", 0, "8 seconds")),
                    "before": wr.accumulate(
                        "orders", time=wr.before("order", "1 us", "2 minutes"), agg={"n": wr.count()}
                    ),
                },
                then={"x": wr.col("order.x"), "n": wr.col("before.n")},
            ),
        },
        "allowed_lateness": "2 seconds",
    }
    return wr.Rules(**(options | changes))


TWO = ("orders", "payments")
KINDS: dict[str, Kind] = {
    "incremental": Kind(
        lambda: aggregate(
            window=wr.hopping("10 seconds", "5 seconds"),
            agg=NUMBERS,
            allowed_lateness="20 seconds",
            emit=wr.Emit(early=wr.every("4 seconds"), late=wr.every_batch, mode="retracting"),
        )
    ),
    "full state": Kind(lambda: aggregate(agg=ALL, emit=wr.Emit(early=wr.every(2)), by=("k", "s"))),
    "full state, large": Kind(lambda: aggregate(agg=ALL, scale="large", emit=wr.Emit(mode="discarding"))),
    "ids": Kind(lambda: aggregate(ids=wr.ids("id"), emit=wr.Emit(late=wr.every("7 seconds")))),
    "tuples": Kind(
        lambda: aggregate(window=wr.tuples(4, step=2), agg=NUMBERS, retention=wr.Retain(windows=3))
    ),
    "tuples, full state": Kind(
        lambda: aggregate(
            window=wr.tuples(5), agg=ALL, retention=wr.Retain(windows=2), emit=wr.Emit(early=wr.every_batch)
        )
    ),
    "global": Kind(
        lambda: aggregate(window=wr.global_window(), retention=wr.forever, emit=wr.Emit(early=wr.every(3)))
    ),
    "calendar": Kind(
        lambda: aggregate(window=wr.calendar("day", time_zone="Europe/Paris"), retention="3 days", by=())
    ),
    "limited by key": Kind(lambda: aggregate(retention=wr.Retain("1 minute", windows=2))),
    "limited by job": Kind(
        lambda: aggregate(retention=wr.Retain("1 minute", messages=9, per="job"), agg=ALL)
    ),
    "final": Kind(lambda: aggregate(emit=wr.Emit.final(), allowed_lateness="10 seconds")),
    "join": Kind(lambda: join(within=("-5 seconds", "10 seconds"), how="left"), TWO),
    "join, waiting": Kind(
        lambda: join(
            within=("-5 seconds", "10 seconds"), how="full", emit=wr.Emit(early=wr.every("5 seconds"))
        ),
        TWO,
    ),
    "join, windows": Kind(
        lambda: join({"window": wr.tumbling("10 seconds")}, {"window": wr.sliding("8 seconds")}, how="anti"),
        TWO,
    ),
    "join, rows of a key": Kind(
        lambda: join({"window": wr.rows(2)}, {"window": wr.rows(3)}, how="left", retention="1 minute"), TWO
    ),
    "join, rows of an input": Kind(
        lambda: join({"window": wr.rows(3, per="input")}, {"window": wr.rows(3, per="input")}), TWO
    ),
    "as-of": Kind(lambda: join(within=("-20 seconds", "0 seconds"), how="asof"), TWO),
    "static": Kind(
        lambda: join(
            right={"static": True, "watermark": "0 seconds"}, within=("-1 minute", "0 seconds"), how="left"
        ),
        TWO,
    ),
    "itself": Kind(
        lambda: wr.Join(
            left=wr.Input("orders", event_time="t", watermark="4 seconds"),
            right=wr.Input("orders", event_time="t", watermark="4 seconds"),
            on="k",
            within=("1 second", "6 seconds"),
        ),
        ("orders",),
    ),
    "chain": Kind(lambda: wr.chain(seconds(), tens())),
    "chain, join first": Kind(lambda: wr.chain(shipped(), of_pairs()), TWO),
    "chain, two joins": Kind(lambda: wr.chain(shipped(), refunded()), (*TWO, "refunds")),
    "graph": Kind(lambda: wr.chain(of_input("orders"), of_input("payments"), both()), TWO),
    "deduplicate": Kind(deduplicate),
    "alert": Kind(
        lambda: wr.Alert(
            by="k",
            event_time="t",
            watermark="4 seconds",
            frame="8 seconds",
            agg={"n": wr.count(), "mean": wr.avg("f"), "two": wr.sum("x").over(2)},
            variables={"some": wr.col("n") * 2},
            when=wr.col("n") > 2,
            until=wr.col("n") < 2,
            actions={
                "mail": wr.Action(delay="2 seconds", repeat=wr.every("5 seconds")),
                "log": wr.Action(repeat=wr.every(2)),
            },
            evaluate=wr.every("7 seconds"),
            ttl="30 seconds",
        )
    ),
    "alert, counted": Kind(
        lambda: wr.Alert(
            by="k",
            event_time="t",
            watermark="4 seconds",
            frame=3,
            agg={"texts": wr.collect_list("s"), "total": wr.sum("x")},
            when=wr.col("total") > 9,
            actions={"log": wr.Action(repeat=wr.every(1))},
            ttl="30 seconds",
        )
    ),
    "process": Kind(process),
    "sessions": Kind(
        lambda: aggregate(
            window=wr.session("5 seconds"),
            agg=NUMBERS,
            allowed_lateness="20 seconds",
            emit=wr.Emit(early=wr.every("4 seconds"), late=wr.every_batch, mode="retracting"),
        )
    ),
    "sessions, full state": Kind(
        lambda: aggregate(
            window=wr.session("4 seconds", cut=wr.tumbling("30 seconds")),
            agg=ALL,
            by=("k", "s"),
            emit=wr.Emit(early=wr.every(2), late=wr.every("7 seconds"), closing_pane=True),
        )
    ),
    "over": Kind(
        lambda: near(
            frame=wr.range_between("-8 seconds", "3 seconds", closed="left"),
            agg=NUMBERS | {"last": wr.collect_list("s").over(3), "so far": wr.sum("f").over()},
        )
    ),
    "over, waiting": Kind(
        lambda: near(frame=wr.rows_between(-2, 2, partial="null"), agg=NUMBERS, select=("s", "x"))
    ),
    "join, limited": Kind(
        lambda: join(
            within=("-5 seconds", "10 seconds"), how="left", retention=wr.Retain("1 minute", messages=4)
        ),
        TWO,
    ),
    "join window": Kind(
        lambda: listed(
            window=wr.hopping("10 seconds", "5 seconds"),
            join_keys="s",
            emit=wr.Emit(early=wr.every(3), late=wr.every("7 seconds")),
        )
    ),
    "join window, sessions": Kind(
        lambda: listed(
            window=wr.session("3 seconds"), join_keys="x", emit=wr.Emit(early=wr.every("4 seconds"))
        )
    ),
    "join window, tuples": Kind(
        lambda: listed(
            by=(), window=wr.tuples(4, step=2), retention=wr.Retain(windows=3), emit=wr.Emit(early=wr.never)
        )
    ),
    "join window, sessions by messages": Kind(
        lambda: listed(
            window=wr.session(messages=3),
            join_keys="s",
            retention=wr.Retain(messages=20, per="job"),
            emit=wr.Emit(early=wr.every(3)),
        )
    ),
    "over, anchors": Kind(
        lambda: wr.Over(
            by="k",
            event_time="t",
            input="orders",
            anchors=wr.Input("payments", event_time="t", watermark="4 seconds"),
            frame=wr.between(
                wr.col("t") - timedelta(seconds=9),
                "t",
                obsolete=wr.col("t") - timedelta(seconds=8),
                closed="right",
            ),
            agg=NUMBERS | {"seen": wr.collect_list("s")},
            retention="20 seconds",
            watermark="4 seconds",
            select=("x",),
        ),
        TWO,
    ),
    "chain, any": Kind(
        lambda: wr.chain(
            deduplicate(),
            aggregate(watermark="0 seconds", emit=wr.Emit.append(), window=wr.tumbling("5 seconds")),
            process(event_time="window_time"),
        )
    ),
    "cogroup": Kind(lambda: cogroup(emit=wr.Emit(early=wr.every(3), late=wr.every_batch)), TWO),
    "cogroup, full state": Kind(
        lambda: cogroup(
            agg={"n": wr.count(), "middle": wr.median("x"), "texts": wr.collect_list("id").of("payments")},
            window=wr.tumbling("10 seconds"),
        ),
        TWO,
    ),
    "join, sessions": Kind(
        lambda: join(
            window=wr.session("3 seconds"), retention="1 minute", how="full", allowed_lateness="5 seconds"
        ),
        TWO,
    ),
    "join, sessions of one": Kind(
        lambda: join(
            left={"window": wr.session("2 seconds")},
            retention="30 seconds",
            how="right",
            where=wr.col("orders_x") < 9,
        ),
        TWO,
    ),
    "join, sessions by size": Kind(
        lambda: join(
            left={"window": wr.session((wr.col("x") + 1) * 500_000)},
            retention=wr.Retain("1 minute", windows=6, per="job"),
            how="full",
            allowed_lateness="5 seconds",
        ),
        TWO,
    ),
    "delays": Kind(
        lambda: aggregate(
            window=wr.hopping("10 seconds", "5 seconds"),
            emit=wr.Emit(
                early=wr.any_of(wr.every(3), wr.delay("4 seconds")),
                late=wr.all_of(wr.delay("2 seconds"), wr.every(2)),
                mode="retracting",
            ),
        )
    ),
    "sessions, delays": Kind(
        lambda: aggregate(
            window=wr.session("2 seconds"),
            emit=wr.Emit(early=wr.any_of(wr.when(wr.col("n") > 2), wr.delay("4 seconds")), late=wr.every(2)),
        )
    ),
    "over, corrected": Kind(
        lambda: near(
            frame=wr.range_between("-8 seconds", "3 seconds"),
            agg=NUMBERS | {"last": wr.collect_list("s").over(wr.rows_between(-2, 0))},
            allowed_lateness="30 seconds",
            emit=wr.Emit(early=wr.every_batch, late=wr.every("7 seconds"), mode="retracting"),
        )
    ),
    "over, anchors corrected": Kind(
        lambda: wr.Over(
            by="k",
            event_time="t",
            input="orders",
            anchors=wr.Input("payments", event_time="t", watermark="4 seconds"),
            frame=("-8 seconds", "2 seconds"),
            agg=NUMBERS,
            watermark="4 seconds",
            allowed_lateness="30 seconds",
            emit=wr.Emit(late=wr.every("7 seconds"), mode="retracting"),
            select=("x",),
        ),
        TWO,
    ),
    "throttled": Kind(
        lambda: wr.chain(
            wr.Delivery(
                by="k", event_time="t", policy=wr.deliver.throttle("4 seconds"), watermark="4 seconds"
            ),
            aggregate(watermark="0 seconds"),
        )
    ),
    "chain, corrected": Kind(
        lambda: wr.chain(
            aggregate(
                window=wr.session("2 seconds"),
                emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"),
            ),
            aggregate(
                name="of_sessions",
                by="n",
                event_time="window_time",
                window=wr.tumbling("20 seconds"),
                agg={"sessions": wr.count(), "least": wr.min("total"), "kinds": wr.count_distinct("k")},
                watermark="0 seconds",
            ),
        )
    ),
    "rules": Kind(lambda: rules(), TWO),
    "cogroup, sessions": Kind(
        lambda: cogroup(
            window=wr.session("3 seconds"), emit=wr.Emit(early=wr.every_batch, mode="retracting")
        ),
        TWO,
    ),
}
#: The jobs of the archive: of each operator.
ARCHIVE = Path(__file__).parent / "jobs.tar.xz"
ARCHIVED = (
    "full state, large",
    "join, waiting",
    "chain, any",
    "over, anchors",
    "join window",
    "cogroup, sessions",
    "throttled",
    "alert",
    "rules",
)


def row(i: int) -> dict[str, Any]:
    """Message i is of about second i; some come late, some cannot be counted, some values are null."""
    second = i - 45 if i % 19 == 17 else i + (0, 3, -4, 1)[i % 4]
    return {
        "t": None if i % 23 == 20 else max(second, 0) * S,
        "k": "abc"[i * 7 // 4 % 3] if i % 29 != 11 else None,
        "x": i * 7 % 11 if i % 9 else None,
        "f": i / 8,
        "s": f"s{i % 5}",
        "id": i - i % 3,
    }


def feed(op: Any, kind: Kind, numbers: range, clock: Any) -> None:
    """The messages of these numbers, a commit every few: one by one, then together."""
    for first in range(numbers.start, numbers.stop, TOGETHER):
        rows = [
            (
                wr.Message(row(i), wr.Position("topic", 0, i)),
                kind.inputs[i * 5 // 3 % len(kind.inputs)] if kind.inputs else None,
            )
            for i in range(first, first + TOGETHER)
        ]
        source_of = (lambda name: (name,)) if kind.inputs else (lambda name: ())
        for message, name in rows[: TOGETHER // 2]:
            op.add_message(message, *source_of(name))
        for name in dict.fromkeys(n for _, n in rows):
            op.add_messages([m for m, n in rows[TOGETHER // 2 :] if n == name], *source_of(name))
        clock.advance("3 seconds")
        op.timeout()


# -- what they say --------------------------------------------------------------------------------------------------


def begin(kind: Kind, location: str) -> dict[str, Any]:
    """The first half of a job, and what can be asked of it then."""
    clock = ManualClock(BEGIN)
    with kind.make().open(location, clock=clock) as op:
        feed(op, kind, FIRST, clock)
        op.flush()
        op.timeout()
        return state_of(op, kind, location)


def known(kind: Kind, location: str) -> dict[str, Any]:
    """Ask a reopened job every question."""
    with kind.make().open(location, clock=ManualClock(BEGIN)) as op:
        return state_of(op, kind, location)


def go_on(kind: Kind, location: str) -> dict[str, Any]:
    """The second half, and the end: what it tells."""
    clock = ManualClock(BEGIN)
    clock.advance(f"{len(FIRST)} seconds")
    with kind.make().open(location, clock=clock) as op:
        feed(op, kind, SECOND, clock)
        op.drain()
        emitted = [said(one) for one in op.get_result()]
        letters = [[d.reason, plain(d.position), d.commit, d.input] for d in op.dead_letters()]
        return {"told": emitted, "letters": letters, "counters": plain(dict(op.counters))}


def state_of(op: Any, kind: Kind, location: str) -> dict[str, Any]:
    """Return the answers of an open operator and of a reader."""
    summary: dict[str, Any] = {"commit": op.last_commit, "watermark": op.watermark}
    definition = kind.make()
    for part in definition.parts:
        name, tables = part.name, tables_of(part)
        named = {"operator": name} if len(definition.parts) > 1 else {}
        if "windows" in tables:
            summary[f"{name}.windows"] = plain(op.get_windows(**named))
        if "messages" in tables:
            inputs = [{"input": i} for i in _inputs_of(part)] or [{}]
            summary[f"{name}.messages"] = [plain(op.get_messages(**named, **i)) for i in inputs]
        if "state" in tables:
            with wr.read_state(location, definition=definition) as state:
                for table in ("state", "timers"):
                    summary[f"{name}.{table}"] = plain(state.table(table, operator=name).to_pylist())
    return summary


def tables_of(part: Any) -> Sequence[str]:
    """The tables of an operator that may be asked for."""
    kind = str(part.describe().get("operator", "aggregate"))
    if kind == "aggregate":
        return ("windows", "messages") if part.full_state else ("windows",)
    return {"join": ("messages",), "over": ("messages",), "process": ("state", "timers")}.get(kind, ())


def _inputs_of(part: Any) -> list[str]:
    if getattr(part, "anchors", None) is not None:
        return [source.name for source in part.inputs]
    return [part.left.name, part.right.name] if hasattr(part, "left") else []


def said(one: Any) -> list[Any]:
    """A pane, or a row."""
    pane = [one.timing.value, plain(one.values), one.commit]
    if hasattr(one, "window"):
        pane += [plain(one.window), plain(one.key), one.index, one.kind.value]
    elif (one.index, one.kind.value) != (0, "INSERT"):
        pane += [one.index, one.kind.value]
    return pane


def plain(value: Any) -> Any:
    """Values as JSON has them."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Enum():
            return value.value
        case datetime() | date() | Decimal() | timedelta():
            return str(value)
        case dict():
            return {str(k): plain(v) for k, v in value.items()}
        case Sequence():
            return [plain(v) for v in value]
    return [plain(getattr(value, f.name)) for f in dataclasses.fields(value)]
