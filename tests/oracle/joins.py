"""Short words for tests of joins: a message is (second, key, name), a row (timing, left name, right name)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import windrow as wr
from windrow.core.messages import JoinedRow, Message, Position
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.oracle import JoinOracle
from windrow.operators.oracle.oracle import Outcome

S = 1_000_000
START, END = START_OF_TIME_US, END_OF_TIME_US
Row = tuple[str, str | None, str | None]


def join(how: str = "inner", *, left: Any = None, right: Any = None, **options: Any) -> JoinDefinition:
    """A join of inputs `l` and `r` on `k`; left and right are windows."""
    return wr.Join(
        left=wr.Input("l", event_time="t", window=left, watermark=wr.explicit()),
        right=wr.Input("r", event_time="t", window=right, watermark=wr.explicit()),
        how=how,
        **{"on": "k", **options},
    )


def self_join(how: str = "inner", *, window: Any = None, **options: Any) -> JoinDefinition:
    """A join of input `l` with itself."""
    one = wr.Input("l", event_time="t", window=window, watermark=wr.explicit())
    return wr.Join(left=one, right=one, how=how, **{"on": "k", **options})


class Play:
    """A join's oracle, fed with few words; offsets count up in the order of arrival."""

    def __init__(self, definition: JoinDefinition) -> None:
        schema = pa.schema({"t": pa.int64(), "k": pa.string(), "a": pa.string()})
        self.oracle = JoinOracle(definition, {i.name: schema for i in definition.inputs})
        self.watermark_us, self.now_us = START, 0
        self.dead: list[tuple[str, str]] = []
        self._names: list[str] = []

    def feed(self, *, left: Iterable[Any] = (), right: Iterable[Any] = ()) -> list[Row]:
        """One ingest."""
        made = {
            name: [self._message(name, *one) for one in side] for name, side in (("l", left), ("r", right))
        }
        return self._emitted(self.oracle.ingest(made, self.now_us, self.watermark_us))

    def left(self, *message: Any) -> list[Row]:
        return self.feed(left=[message])

    def right(self, *message: Any) -> list[Row]:
        return self.feed(right=[message])

    def to(self, second: float) -> list[Row]:
        """Advance the watermark."""
        self.watermark_us = int(second * S)
        return self._emitted(self.oracle.advance(self.watermark_us, self.now_us))

    def clock(self, second: int) -> list[Row]:
        """Advance `now`."""
        self.now_us = second * S
        return self._emitted(self.oracle.advance(self.watermark_us, self.now_us))

    def end(self) -> list[Row]:
        """Advance the watermark to the end of time, where nothing is kept."""
        self.watermark_us = END
        rows = self._emitted(self.oracle.advance(END, self.now_us))
        assert self.oracle.is_empty
        return rows

    def kept(self, name: str) -> list[str]:
        return [m.payload["a"] for m in self.oracle.kept(name)]

    def _message(self, name: str, second: Any, key: Any, text: str) -> Message:
        time = int(second * S) if isinstance(second, (int, float)) and second == second else second
        self._names.append(text)
        return Message({"t": time, "k": key, "a": text}, Position(f"{name}:s", 0, len(self._names) - 1))

    def _emitted(self, step: Outcome) -> list[Row]:
        for letter in step.dead:
            assert letter.position is not None
            self.dead.append((letter.reason, self._names[letter.position.offset]))
        return [self._row(row) for row in step.rows]

    def _row(self, row: JoinedRow) -> Row:
        one, two = ("left", "right") if self.oracle.definition.is_self_join else ("l", "r")
        if self.oracle.definition.how in ("semi", "anti"):
            return row.timing.value, row["a"], None
        return row.timing.value, row[f"{one}_a"], row[f"{two}_a"]
