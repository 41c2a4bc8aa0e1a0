"""The definition of a join of two inputs: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Join Window Operator", "Semantic Difference between Join and Aggregator Windows".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import pyarrow as pa

from windrow.core.emit import Emit
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.messages import JoinedRow
from windrow.core.policy import (
    Retention,
    Watermark,
)
from windrow.core.show import Raw, call
from windrow.core.windows import Rows, Session
from windrow.operators.join import chaining
from windrow.operators.join.spans import Within
from windrow.operators.operator import Definition, Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.output_rows import to_rows

How = Literal["inner", "left", "right", "full", "semi", "anti", "asof"]
HOWS = ("inner", "left", "right", "full", "semi", "anti", "asof")
#: A predicate of the user's over candidate pairs: two tables of as many rows, to a boolean for each.
PairFunction = Callable[[pa.Table, pa.Table], Any]


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on candidate pairs: an expression over both sides' columns, or a named function of two tables."""

    expression: Expr | None = None
    function: PairFunction | None = field(default=None, compare=False)
    name: str = ""

    def __repr__(self) -> str:
        return repr(self.expression) if self.function is None else call("pairs", name=self.name)


def pairs(function: PairFunction, *, name: str) -> Where:
    """Return a condition of your own on candidate pairs, for `where=` of a join.

    function: takes (left table, right table) of pyarrow, row by row a pair, and gives as many booleans
    name: identifies the function in the fingerprint: use another one when its meaning changes

    >>> pairs(lambda left, right: [True] * left.num_rows, name="all")
    wr.pairs(name='all')
    """
    return Where(function=function, name=name)


@dataclass(frozen=True, repr=False)
class JoinDefinition(Definition):
    """A join of two inputs. See `wr.Join` for the parameters."""

    left: Input
    right: Input
    on: tuple[tuple[str, str], ...]
    within: Within | None
    how: str
    where: Where | None
    retention: Retention
    allowed_lateness_us: int
    emit: Emit
    name: str
    scale: str
    dead_letter_limit: int
    dead_letter_retention_us: int | None
    #: The sessions that both inputs make together.
    window: Session | None = None
    #: True if an input may retract messages: its operator corrects rows that it has emitted.
    takes_back: bool = False
    written: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, one of them where a stream is joined with itself."""
        return (self.left,) if self.is_self_join else (self.left, self.right)

    @property
    def is_self_join(self) -> bool:
        return self.left.name == self.right.name

    @property
    def by_rows(self) -> bool:
        """True if a side's window counts messages."""
        return isinstance(self.left.window, Rows) or isinstance(self.right.window, Rows)

    @property
    def sessions(self) -> Session | None:
        """The sessions in which messages meet: of both inputs together, or of one."""
        own = (input.window for input in (self.left, self.right))
        return self.window or next((window for window in own if isinstance(window, Session)), None)

    @property
    def own_gap(self) -> Expr | None:
        """Return the expression for the dynamic session gap of each message; None without one."""
        return None if self.sessions is None else self.sessions.own_gap

    @property
    def session_sides(self) -> tuple[int, ...]:
        """The sides, left is 0, whose messages make the sessions."""
        sides = enumerate((self.left, self.right))
        return tuple(side for side, i in sides if self.window or isinstance(i.window, Session))

    @property
    def sizes(self) -> str | None:
        """Return the scope of a limited message count: "key", or "job" for a whole input."""
        if self.retention.messages is None or self.sessions is not None:  # sessions are evicted as a whole
            return None
        return self.retention.per if self.on else "job"

    @property
    def by(self) -> tuple[str, ...]:  # type: ignore[override]
        """The key columns, by their left names."""
        return self.left_keys

    @property
    def left_keys(self) -> tuple[str, ...]:
        return tuple(left for left, _ in self.on)

    @property
    def right_keys(self) -> tuple[str, ...]:
        return tuple(right for _, right in self.on)

    def describe(self) -> dict[str, Any]:
        """Return the options that shape the state, as plain values: the text behind the fingerprint."""
        return {
            "operator": "join",
            "how": self.how,
            "inputs": [
                {
                    "name": i.name,
                    "event_time": i.event_time,
                    "window": repr(i.window),
                    "time_zone": i.time_zone,
                    "event_time_unit": i.event_time_unit,
                    "where": None if i.where is None else repr(i.where),
                }
                for i in (self.left, self.right)
            ],
            "on": [list(pair) for pair in self.on],
            "within": None if self.within is None else [self.within.low_us, self.within.high_us],
            "where": None if self.where is None else repr(self.where),
            "scale": self.scale,
            "sizes": self.sizes,
            "sessions": None if self.window is None else repr(self.window),
        }

    def __repr__(self) -> str:
        return call("Join", **{n: Raw(v) if isinstance(v, str) else v for n, v in self.written})

    #: Joins know their messages by position, not by ids.
    ids = None

    # -- the seam ---------------------------------------------------------------------------------------------------

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return chaining.columns_of(self, input)

    def keys(self, input: Input) -> tuple[str, ...]:
        return self.left_keys if input.name == self.left.name else self.right_keys

    def one_shard(self) -> str | None:
        if not self.on:
            return "it has no keys"
        if self.is_self_join and self.left_keys != self.right_keys:
            return f"it joins {self.left.name!r} with itself on different columns"
        for input in (self.left, self.right):
            if isinstance(input.window, Rows) and input.window.per == "input":
                return f"{input.window!r} counts the rows of a whole input"
        return super().one_shard()

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        left, right = (
            replace(i, watermark=watermarks.get(i.name, i.watermark)) for i in (self.left, self.right)
        )
        return self._changed(left=left, right=right)

    def filing(self) -> dict[str, Any]:
        return {
            **super().filing(),
            "allowed_lateness_us": self.allowed_lateness_us,
            "max_ahead_us": [input.max_ahead_us for input in self.inputs],
        }

    @property
    def periods(self) -> frozenset[int] | None:
        return self.emit.periods

    @property
    def tables(self) -> tuple[str, ...]:
        return ("windows", "messages")

    @property
    def known_by(self) -> None:
        return None

    @property
    def emission_mode(self) -> str:
        return "retracting" if self.takes_back else "once"

    @property
    def emits_updates(self) -> bool:
        return self.takes_back

    def taking_back(self) -> Self:
        return self._changed(takes_back=True)

    def with_retractions(self) -> Self:
        return self  # it does as it is

    def values(self, rows: pa.Table, job: str) -> Iterator[JoinedRow]:
        return to_rows(rows, job)

    def taker(self, before: str) -> Taker:
        return chaining.taker(self, before)

    def check_followed(self, taker: Taker) -> None:
        chaining.check_followed(self, taker)

    def output_delay_us(self, event_time: str) -> int:
        return chaining.output_delay_us(self, event_time)

    def times_of(self, event_time: str) -> Input | None:
        return chaining.times_of(self, event_time)

    def of_forwarded_rows(self, input: Input) -> Self:
        forwarded = replace(input, max_ahead_us=None)
        left, right = (forwarded if i.name == input.name else i for i in (self.left, self.right))
        return self._changed(left=left, right=right)

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery_stage import delivering
        from windrow.operators.join.hash_layout import KeyedJoinOperator
        from windrow.operators.join.logic import JoinOperator
        from windrow.operators.join.retractable_join import CorrectedJoinOperator
        from windrow.operators.join.row_count_join import RowsJoinOperator
        from windrow.operators.join.sessions.logic import SessionJoinOperator
        from windrow.operators.join.time_layout import BlockJoinOperator

        if self.sessions is not None:
            return delivering(SessionJoinOperator(self))
        if self.takes_back:
            return delivering(CorrectedJoinOperator(self))
        if self.by_rows:
            return delivering(RowsJoinOperator(self))
        if self.sizes is not None:
            return delivering(JoinOperator(self))
        by_time = BlockJoinOperator(self)
        return delivering(by_time if by_time.suits else KeyedJoinOperator(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.join.oracle import JoinOracle
        from windrow.operators.join.retractable_oracle import CorrectedJoinOracle
        from windrow.operators.join.sessions.oracle import SessionJoinOracle
        from windrow.operators.oracle.delivery_stage import delivering

        over_time = CorrectedJoinOracle if self.takes_back else JoinOracle
        oracle = over_time(self, schemas) if self.sessions is None else SessionJoinOracle(self, schemas)
        return delivering(self, oracle, schemas)
