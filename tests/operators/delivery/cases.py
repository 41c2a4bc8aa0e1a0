"""Any delivery, and any messages for it."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Operator, S
from tests.operators.deduplicate.cases import SCHEMA, drawn, rows

policies = st.sampled_from(
    [
        wr.deliver.latest(),
        wr.deliver.newest(2),
        wr.deliver.newest(3, per="input"),
        wr.deliver.latest(record="dead_letters"),
        wr.deliver.throttle("1 second"),
        wr.deliver.throttle("4 seconds", per="input"),
        wr.deliver.within("0 seconds"),
        wr.deliver.within("6 seconds"),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    definition = wr.Delivery(
        by=draw(st.sampled_from(["k", ("k", "i"), ()])),
        event_time="t",
        policy=(policy := draw(policies)),
        mark=None if policy.record else draw(st.sampled_from([None, None, "skipped"])),
        guarantee=draw(st.sampled_from([None, wr.col("v") == 3, wr.lit(6) / wr.col("v") > 2])),
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit(), wr.fixed("3 seconds")])),
        null_keys=draw(st.sampled_from(["group", "dead_letter"])),
        max_ahead=draw(st.sampled_from([wr.forever, wr.forever, "5 seconds"])),
        input=draw(st.sampled_from([None, None, "orders"])),
        where=draw(st.sampled_from([None, None, wr.col("v") > 0])),
    )
    named = rows.map(drawn).map(lambda one: one._replace(input=definition.input_name))
    schema: pa.Schema | None = draw(st.sampled_from([SCHEMA, None]))
    return Case(
        definition=definition, messages=named, schema=schema, start_us=draw(st.sampled_from([0, 10 * S]))
    )


OPERATOR = Operator(
    cases(),
    wr.Delivery(by="k", event_time="t", policy=wr.deliver.newest(2), max_ahead=wr.forever),
    SCHEMA,
    [
        drawn({"t": t, "k": k, "i": 1, "v": v})
        for v, (t, k) in enumerate([(0, "a"), (3, "a"), (3, "b"), (9, "a"), (9, None), (None, "a"), (2, "a")])
    ],
)
