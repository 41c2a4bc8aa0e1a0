"""Any aggregate over several inputs, and any messages for it: those of aggregates, spread over inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.aggregate.cases import SCHEMA, Scaled, messages
from tests.operators.aggregate.cases import cases as aggregates
from tests.operators.contract import Case, Drawn, Operator, S, policies
from tests.operators.session.cases import sessions

NAMES = ("a", "b", "c")
#: What the second input calls its event time, and where it has keys of its own its keys.
TIME, KEYS = "at", {"k": "key", "g": "group", "f": "float"}
WHERES = (wr.col("v") > 1, wr.lit(6) / wr.col("v") < 4, wr.col("x").is_valid())


class Tally:
    """List the messages of each input in order: a repeated, reordered or misrouted message shows."""

    def initial(self) -> str:
        return ""

    def merge(self, older: str, newer: str) -> str:
        return older + newer

    def finish(self, state: str) -> str:
        return state


def tally(names: Sequence[str]) -> wr.Aggregation:
    """A class with a method for each of these inputs; the first takes a column, the others an expression besides."""

    def add(name: str) -> Any:
        return lambda self, state, *values: f"{state} {name}{values}"

    body = type("Tally", (Tally,), {f"add_{name}": add(name) for name in names})
    made = wr.aggregate_function(name="tally", returns=pa.string())(body)
    return made(**{n: ("v", wr.col("x").is_valid()) if n != names[0] else "v" for n in names})


@dataclass(frozen=True)
class Spread:
    """A definition, and the aggregate whose messages its inputs take."""

    definition: wr.CoGroup
    scaled: Scaled

    def drawn(self, name: str, row: dict[str, Any], *, whole: bool = True) -> Drawn:
        """The message of a drawn row as that input has it."""
        source = self.definition.input(name)
        payload = dict(self.scaled.drawn(row, whole=whole).payload)
        if source.by is not None:
            payload |= {KEYS[k]: payload[k] for k in self.definition.by}
        if source.event_time == TIME:
            payload[TIME] = payload.pop("t")
        return Drawn(payload, name, row["p"])

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        arrow_schemas = {}
        columns = [f for f in SCHEMA if f.name != "u" or self.definition.ids is not None]
        for source in self.definition.inputs:
            kinds = {(source.event_time if f.name == "t" else f.name): f.type for f in columns}
            if source.by is not None:
                kinds |= {KEYS[k]: SCHEMA.field(k).type for k in self.definition.by}
            arrow_schemas[source.name] = pa.schema(list(kinds.items()))
        return arrow_schemas


@st.composite
def spread(draw: st.DrawFn) -> Spread:
    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    kinds = (aggregates(), aggregates(ids=True), aggregates(full=True), sessions(plain=True))
    scaled = draw(st.one_of(*kinds))
    made, names = scaled.definition, NAMES[: pick(1, 2, 2, 2, 3)]

    def units(n: int) -> timedelta:
        return timedelta(microseconds=n * scaled.unit_us)

    explicit = pick(False, False, False, True)
    inputs = [
        wr.Input(
            name,
            event_time=TIME if name == "b" else "t",
            by=tuple(KEYS[k] for k in made.by) if name == "b" and made.by and draw(st.booleans()) else None,
            watermark=wr.explicit()
            if explicit
            else pick(
                units(0), units(0), units(3), wr.bounded(units(2), idle="4 seconds"), wr.fixed("5 seconds")
            ),
            max_ahead=pick(wr.forever, wr.forever, units(40)),
            where=pick(None, None, None, *WHERES),
        )
        for name in names
    ]
    agg = {
        alias: a.of("a") if alias == "rows" else _of(a, pick(None, *names)) for alias, a in made.agg.items()
    }
    if any(a.input is not None for a in agg.values()):
        agg.setdefault("all", wr.count())
    if draw(st.booleans()):
        agg["tally"] = tally(names[: pick(1, 2, 3)])
    definition = wr.CoGroup(
        inputs=inputs,
        by=made.by,
        window=made.window,
        agg=agg,
        retention=wr.forever if made.retention == wr.core.policy.Retention() else made.retention,
        allowed_lateness=None if made.emit.drop_late else _lateness(made),
        emit=made.emit,
        null_keys=made.null_keys,
        integer_overflow=made.integer_overflow,
        ids=made.ids,
    )
    return Spread(definition, scaled)


def _of(aggregation: Any, name: str | None) -> Any:
    return aggregation if name is None else aggregation.of(name)


def _lateness(definition: wr.Aggregate) -> timedelta | None:
    unbounded = definition.allowed_lateness_us >= wr.core.policy.UNBOUNDED_US
    return None if unbounded else timedelta(microseconds=definition.allowed_lateness_us)


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    one = draw(spread())
    inputs = tuple(
        replace(each, deliver=draw(policies("v", counting=one.definition.ids is None)))
        for each in one.definition.user_inputs
    )
    one = replace(one, definition=one.definition._changed(user_inputs=inputs))
    schema = draw(st.sampled_from([None, one.schemas]))
    names = [i.name for i in one.definition.inputs]
    rows = st.tuples(st.sampled_from(names), messages(close=draw(st.booleans())))
    return Case(
        definition=one.definition,
        messages=rows.map(lambda drawn: one.drawn(*drawn, whole=schema is None)),
        schema=schema,
        unit_us=one.scaled.unit_us,
        start_us=one.scaled.base_us,
    )


def shown(names: Sequence[str] = ("a", "b")) -> Operator:
    emit = wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting")
    aggregate = wr.Aggregate(
        by="k", event_time="t", window=wr.hopping("10 seconds", "5 seconds"), agg={"n": wr.count()},
        retention="1 minute", emit=emit,
    )  # fmt: skip
    definition = wr.CoGroup(
        inputs=[
            wr.Input("a", event_time="t", watermark="1 second", max_ahead=wr.forever),
            wr.Input("b", event_time=TIME, by="key", watermark="2 seconds", max_ahead=wr.forever),
        ],
        by="k",
        window=aggregate.window,
        agg={
            "n": wr.count(),
            "sum": wr.sum("x").of("a"),
            "twice": wr.sum(wr.col("v") * 2).of("b"),
            "middle": wr.median("v"),
            "list": wr.collect_list("v").where(wr.col("x") > 0.5).of("b"),
            "tally": tally("ab"),
        },
        retention="1 minute",
        emit=emit,
    )
    one = Spread(definition, Scaled(aggregate, 0, S, True))
    stand = [(1, "a"), (2, None), (9, "a"), (17, "b"), (5, "a"), (90, "a"), (3, "b"), (91, "b")]
    rows = [
        {"p": 0, "t": t, "k": k, "g": None, "f": None, "x": n / 4, "v": n} for n, (t, k) in enumerate(stand)
    ]
    drawn = [one.drawn(names[n % 2], row) for n, row in enumerate(rows)]
    return Operator(jobs(), definition, one.schemas, drawn)


OPERATOR = shown()
