"""A user's job, checked with `mypy --strict` by test_consumer.py: the public API is typed as users write it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

import windrow as wr
from windrow.testing.clock import ManualClock


class Product:
    def initial(self) -> int:
        return 1

    def add(self, state: int, value: int) -> int:
        return state * value

    def merge(self, left: int, right: int) -> int:
        return left * right

    def finish(self, state: int) -> int:
        return state


# A type checker takes no notice of what a decorator makes of a class: call it instead.
product = wr.aggregate_function(name="product", version=1, returns=pa.int64())(Product)


@wr.aggregate_function(name="spread", returns=pa.int64())
def spread(messages: pa.Table) -> int:
    delays = messages["delay"].to_pylist()
    return int(max(delays) - min(delays))


delays = wr.Aggregate(
    by=("origin", "carrier"),
    event_time="departure",
    window=wr.hopping(timedelta(hours=1), "15 minutes"),
    agg={
        "flights": wr.count(),
        "late": wr.count().where(wr.col("delay") > 15),
        "delay": wr.avg("delay"),
        "product": product("delay"),
    },
    watermark=wr.bounded("5 minutes", idle="1 minute"),
    retention=wr.Retain("7 days", windows=1000),
    emit=wr.Emit(early=wr.every("10 seconds"), mode="retracting"),
)
spreads = wr.Aggregate(
    event_time="departure", window=wr.tuples(10), agg={"s": spread("delay")}, retention=wr.Retain(windows=3)
)


def run(location: str) -> list[str]:
    lines: list[str] = []
    with delays.open(location, clock=ManualClock(), sink=None) as op:
        moment = datetime(2013, 7, 1, 5, 10, tzinfo=UTC)
        op.add_message(
            wr.Message(
                {"origin": "JFK", "carrier": "AA", "departure": moment, "delay": 4}, wr.Position("f", 0, 0)
            )
        )
        op.timeout()
        op.drain()
        for pane in op.get_result():
            token = pane.token
            assert token is not None
            lines.append(f"{token.commit} {pane.timing.value} {pane.index} {pane['flights']}")
        for window in op.get_windows(moment, moment, key=("JFK", "AA")):
            lines.append(f"{window.messages} {window.values}")
        letters: list[wr.DeadLetter] = op.dead_letters()
        lines.append(f"{len(letters)} {op.next_offsets()}")
        op.flush()
    try:
        wr.tumbling("0 seconds")
    except wr.ConfigurationError as error:
        lines.append(error.code)
    return lines
