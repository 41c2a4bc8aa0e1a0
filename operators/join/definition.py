"""The definition of a join of two inputs: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Join Window Operator", "Semantic Difference between Join and Aggregator Windows".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import pyarrow as pa

from windrow.core.emit import Emit, EveryBatch
from windrow.core.errors import BadTrigger, BadWatermark, BadWindow, ConfigurationError, UnknownColumn
from windrow.core.expressions import Expr
from windrow.core.inputs import Input
from windrow.core.messages import JoinedRow
from windrow.core.policy import UNBOUNDED_US, Retention, Watermark, bounded
from windrow.core.show import call
from windrow.core.time import show_duration
from windrow.core.windows import Hopping, Rows, Session, Tumbling
from windrow.operators.join.spans import Within, spans
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
    written: tuple[tuple[str, str], ...] = field(default=(), compare=False)

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

    #: Joins know their messages by position, not by ids.
    ids = None

    # -- the seam ---------------------------------------------------------------------------------------------------

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return columns_of(self, input)

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
        return taker(self, before)

    def check_followed(self, taker: Taker) -> None:
        check_followed(self, taker)

    def output_delay_us(self, event_time: str) -> int:
        return output_delay_us(self, event_time)

    def times_of(self, event_time: str) -> Input | None:
        return times_of(self, event_time)

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


def taker(join: JoinDefinition, before: str) -> Taker:
    """Return the taker of the upstream operator's rows: the side whose input has its name."""
    names = [join.left.name, join.right.name]
    if join.is_self_join:
        raise ConfigurationError(
            f"{join.name!r}, which follows {before!r}, joins {names[0]!r} with itself: a join in a chain takes the rows of "
            f"{before!r} on one side, and something else on the other; name its inputs {before!r} and something else"
        )
    if before not in names:
        raise ConfigurationError(
            f"{join.name!r}, which follows {before!r}, joins the inputs {names}, neither of which is {before!r}: name "
            f"the input that takes its rows {before!r}, e.g. wr.Input({before!r}, event_time=...)"
        )
    input, other = (join.left, join.right) if join.left.name == before else (join.right, join.left)
    if input.static:
        raise ConfigurationError(
            f"input {before!r} of {join.name!r} takes the rows of {before!r} and is static=True: only an input from "
            "outside can be static; leave it out"
        )
    follows = other.watermark.kind == "explicit" and input.watermark == other.watermark
    if input.watermark != bounded() and not follows:
        raise BadWatermark(
            f"watermark={input.watermark!r} of {join.name!r}, which follows {before!r}: its watermark is that of "
            f"{before!r}, leave it out"
        )
    if input.positions is not None:
        raise ConfigurationError(
            f"positions={input.positions!r} of {join.name!r}, which follows {before!r}: its messages are the rows of "
            f"{before!r}, each emitted once and in order; leave it out"
        )
    makes = join.inputs.index(input) in join.session_sides
    uses = (join.own_gap,) if join.own_gap is not None and makes else ()
    return Taker(join.name, input, columns_of(join, input), _keeps(join), join.allowed_lateness_us, uses)


def _keeps(join: JoinDefinition) -> str:
    """Return the reason why a join cannot accept retractions; "" if it can."""
    if join.sessions is not None:
        return f"its sessions, {join.sessions!r}, would come apart again, with all that met in them: use within=..."
    if join.by_rows:
        counted = join.left.window if isinstance(join.left.window, Rows) else join.right.window
        return f"{counted!r} counts what came, and what a message displaced does not come again: use windows of time"
    if join.sizes is not None:
        return f"retention={join.retention!r} lets go of what may still be taken back: keep messages by time"
    if not isinstance(join.emit.early, EveryBatch) or not isinstance(join.emit.late, EveryBatch):
        return f"{join.emit!r} lets rows wait that may be gone when they are emitted: use wr.every_batch"
    return ""


def columns_of(join: JoinDefinition, input: Input) -> tuple[str, ...]:
    """Return the columns that an input of a join must have."""
    keys = join.left_keys if input.name == join.left.name else ()
    keys += join.right_keys if input.name == join.right.name else ()
    return tuple(dict.fromkeys((input.event_time, *keys)))


def check_followed(first: JoinDefinition, second: Taker) -> None:
    """Check that the first join emits each row once and never with a time in the past."""
    for timing, trigger in (("early", first.emit.early), ("late", first.emit.late)):
        if not isinstance(trigger, EveryBatch):
            raise BadTrigger(
                f"Emit({timing}={trigger!r}) of {first.name!r}, before {second.name!r}: rows that wait for a period of now "
                "come late, however short it is; use wr.every_batch"
            )
    if first.takes_back:
        _check_taken_back(first, second)
    sides = _times(first)
    side = sides.get(second.event_time)
    names = " or ".join(repr(n) for n in sides)
    if side is None:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r} is the event time of no input of {first.name!r}: use {names}"
        )
    source = first.left if side == "left" else first.right
    if source.static:
        raise ConfigurationError(
            f"event_time={second.event_time!r} of {second.name!r} is the time of {source.name!r}, which is static and may be "
            f"as old as it likes: use the event time of the other input of {first.name!r}"
        )
    null = {"left": "right", "right": "left", "full": "right and left", "asof": "right"}.get(first.how, "")
    if side in null:
        raise ConfigurationError(
            f"event_time={second.event_time!r} of {second.name!r} is null in rows of {first.name!r} without a {side} message, "
            f"since how={first.how!r}: use the time of the other input, or how='inner'"
        )
    if output_delay_us(first, second.event_time) >= UNBOUNDED_US and first.sessions is not None:
        raise BadWindow(
            f"{first!r} emits messages of sessions of any length, so that no window of {second.name!r} "
            "would ever end: bound pairs with within=('-1 hour', '1 hour') and use how='inner'"
        )
    if output_delay_us(first, second.event_time) >= UNBOUNDED_US:
        raise BadWindow(
            f"{first!r} sets no bound to how late its rows come, so that no window of {second.name!r} would ever end: bound it "
            "with within=('-1 hour', '1 hour') or retention='1 day', and not by wr.forever"
        )


def _check_taken_back(first: JoinDefinition, second: Taker) -> None:
    """Check that the next operator accepts retractions for as long as the join emits them."""
    if second.keeps:
        raise BadTrigger(
            f"{first.name!r} takes rows that may be taken back, and takes back its own; {second.name!r} cannot take that back: "
            f"{second.keeps}; or let the operators before {first.name!r} emit each row once, with emit=wr.Emit.append()"
        )
    if second.allowed_lateness_us < first.allowed_lateness_us:
        downstream, own = (
            "any time" if late_us >= UNBOUNDED_US else show_duration(late_us)
            for late_us in (second.allowed_lateness_us, first.allowed_lateness_us)
        )
        raise BadTrigger(
            f"{first.name!r} may take rows back for {own}, and put others in their place at another time; {second.name!r} "
            f"takes nothing that is later than {downstream}, and would count both: allow as much"
        )


def _times(join: JoinDefinition) -> dict[str, str]:
    """Return the columns of a join's rows that are an input's event time, with the side of each."""
    left, right = join.left.event_time, join.right.event_time
    if join.how in ("semi", "anti") or left in join.left_keys:
        return {left: "left"}
    a, b = ("left", "right") if join.is_self_join else (join.left.name, join.right.name)
    sides = {f"{a}_{left}": "left", f"{b}_{right}": "right"}
    if left != right:
        sides = {left: "left", right: "right", **sides}
    return sides


def times_of(join: JoinDefinition, event_time: str) -> Input:
    """Return the input whose times a column of its rows has."""
    return join.left if _times(join)[event_time] == "left" else join.right


def output_delay_us(join: JoinDefinition, event_time: str) -> int:
    """Return how far the event times of on-time rows trail the join's watermark.

    A match is emitted when its later message arrives. An unmatched row is emitted when the watermark, less the allowed
    lateness, has passed every possible partner.
    """
    side = _times(join)[event_time]
    source, other = (join.left, join.right) if side == "left" else (join.right, join.left)
    before, after = spans(join.left, join.right, join.within)
    reach = before if side == "left" else after
    if join.sessions is not None:  # they may be as long as they like, and messages are alone until they end
        bounded_by = reach if join.how in ("inner", "semi") else None
        return UNBOUNDED_US if bounded_by is None else bounded_by
    kept_us = join.retention.time_us
    far = min(UNBOUNDED_US if us is None else us for us in (reach, kept_us))
    if join.how in ("left", "right", "anti"):
        waits_for = (other, source) if join.takes_back else (other,)
        aligned = max(w.size_us if isinstance(w := i.window, (Tumbling, Hopping)) else 0 for i in waits_for)
        return min(far + join.allowed_lateness_us + aligned, UNBOUNDED_US)
    if join.how == "asof":
        return join.allowed_lateness_us
    return far
