"""A process function that does all that one can do, by what its messages say, and any messages for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.contract import Case, Drawn, Operator, S, policies

SCHEMA = pa.schema(
    [("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("i", pa.int64()), ("v", pa.int64())]
)
EMITS = {"what": pa.string(), "n": pa.int64()}


class Everything:
    """Column i says what to do."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        state.setdefault("seen", []).append(message["v"])
        state["last"] = timers.time
        in_seconds = timedelta(seconds=message["v"])
        match message["i"]:
            case 0:
                state["n"] = 1_000
                timers.set(timers.time)
                raise ValueError("no")
            case 1:
                timers.set(timers.time + in_seconds)
            case 2:
                timers.set(timers.now + in_seconds, of="now")
            case 3:
                timers.cancel(timers.time + in_seconds)
                timers.cancel(timers.now + in_seconds, of="now")
            case 4:
                state.clear()
                return None
            case 6:
                state["quiet"] = True
        return {"what": f"{key} {state['seen']}", "n": state["n"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        state["fired"] = state.get("fired", 0) + 1
        yield {"what": f"{key} {at} {timers.of} {sorted(state)} {state.get('last')}", "n": state.get("n")}
        match state["fired"] % 5:
            case 1 if "quiet" not in state:
                timers.set(at + timedelta(seconds=1), of=timers.of)
                yield {"what": "again"}
            case 2:
                timers.cancel(at + timedelta(seconds=0.5), of=timers.of)
                timers.cancel(at + timedelta(seconds=1), of=timers.of)
            case 4:
                timers.set(at, of=timers.of)  # which it may not


def drawn(row: dict[str, Any]) -> Drawn:
    """Times are in half seconds."""
    time = row["t"] if row["t"] is None else row["t"] * S // 2
    return Drawn({**row, "t": time}, None, row["v"] % 2)


rows = st.fixed_dictionaries(
    {
        "t": st.one_of(st.integers(0, 12), st.integers(0, 12), st.integers(0, 60), st.none()),
        "k": st.sampled_from(["a", "a", "a", ""]),
        "i": st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4, 5, 6]),
        "v": st.integers(0, 3),
    }
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    definition = define(
        by=draw(st.sampled_from(["k", ("k", "v"), ()])),
        ttl=draw(st.sampled_from(["0 seconds", "1 second", "3 seconds", "10 seconds", wr.forever])),
        watermark=draw(st.sampled_from(["0 seconds", "2 seconds", wr.explicit()])),
        where=draw(st.sampled_from([None, None, wr.col("v") > 0, wr.lit(6) / wr.col("v") > 2])),
        deliver=draw(policies("v")),
    )
    return Case(definition=definition, messages=rows.map(drawn), schema=SCHEMA)


def define(**options: Any) -> wr.Process:
    return wr.Process(
        event_time="t",
        function=Everything,
        emits=EMITS,
        max_ahead=wr.forever,
        **{"ttl": "5 seconds", **options},
    )


OPERATOR = Operator(
    cases(),
    define(by="k"),
    SCHEMA,
    [
        # No timer renews itself: what is set at the end of time is dropped, and `apply` goes there at once.
        drawn({"t": t, "k": k, "i": i, "v": v})
        for v, (t, k, i) in enumerate(
            [(0, "a", 1), (3, "a", 6), (3, "b", 0), (4, "b", 1), (9, "a", 3), (30, "b", 6)]
        )
    ],
)
