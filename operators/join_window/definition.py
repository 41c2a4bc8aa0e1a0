"""The definition of a join window: a frozen value, checked when built, whose `repr` builds it again.

Seed 003 "Configuration of A Join Window Operator".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregations import collect_list
from windrow.core.deliver import Policy
from windrow.core.emit import Emit, EveryBatch, EveryCount, EveryPeriod, Never, every_batch
from windrow.core.errors import BadTrigger, BadWindow, ConfigurationError
from windrow.core.expressions import col
from windrow.core.inputs import Input
from windrow.core.messages import JoinedRow
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark
from windrow.core.positions import Ids, Positions
from windrow.core.time import DAY_US, Duration, TimeUnit
from windrow.core.windows import Calendar, Hopping, Inherited, Session, Tumbling, WindowSpec
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.aggregate.panes import make_window
from windrow.operators.aggregate.validation import normalise
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.steps.columns import KEPT
from windrow.operators.steps.output_rows import to_rows

#: The aggregation of a window: the names of the messages that it has to emit.
NEW = "new"
_TIME = "name the column that holds the time of the event"
_DAYS = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}


class Windowing(AggregateDefinition):
    """The windows of a join window: an aggregate that collects the messages that came since its last emission."""

    @property
    def full_state(self) -> bool:
        """True: messages are kept."""
        return True

    @property
    def emits_evicted(self) -> bool:
        """True if windows emit when they are evicted: no other operator would emit their messages."""
        return self.emit.on_time


@dataclass(frozen=True, repr=False, init=False)
class JoinWindowDefinition(OneInput):
    """A join window, which emits each message once, in its first window, and keeps all of them for joins of your own.

    by: key columns (one name or several), each key with windows of its own; () for no key. Sessions are of these keys
    event_time: the column of event time
    window: wr.tumbling, wr.hopping, wr.calendar, wr.session (by pauses or by messages of others), wr.tuples or wr.global_window
    retention: a window and its messages are kept until the watermark is this far past its end ("7 days"), wr.Retain(...) by
        size too, or wr.forever
    join_keys: the columns by which kept messages are looked up (one name or several): they lie together by these
    allowed_lateness: a window accepts messages until the watermark is this far past its end; default: its retention
    emit: wr.Emit(early=..., late=...), each wr.every_batch (the default of both: at once), a count, a period or wr.never;
        other messages are emitted when the window ends
    ids: the columns by which a message is known, as for `wr.Aggregate`
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where, deliver: as for `wr.Aggregate`
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`

    Rows are the messages, with the column `window`: the first window that takes the message, and no other emits it. So a join
    from rows to the kept messages of another operator matches each pair once.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import tempfile, windrow as wr
    >>> orders = wr.JoinWindow(event_time="t", window=wr.hopping("2 minutes", "1 minute"), retention="1 hour", join_keys="id")
    >>> with tempfile.TemporaryDirectory() as folder, orders.open(folder) as op:
    ...     for minute, order in ((0, 1), (0, 3), (1, 9)):
    ...         op.add_message({"t": f"2013-07-01 09:0{minute}Z", "id": order})
    ...     [row["id"] for row in op.get_result()], [m.payload["id"] for m in op.get_messages(key=3)]
    ([1, 3, 9], [3])
    """

    window: WindowSpec
    join_keys: tuple[str, ...]
    emit: Emit
    retention: Retention
    windowing: Windowing = field(compare=False)

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        window: WindowSpec,
        retention: Duration | Retention | Forever | None = None,
        join_keys: str | Sequence[str] = (),
        watermark: Duration | Watermark = "0 seconds",
        allowed_lateness: Duration | None = None,
        emit: Emit | None = None,
        name: str = "join_window",
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        positions: Positions | None = None,
        ids: Ids | str | Sequence[str] | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
        deliver: Policy | None = None,
    ) -> None:
        arguments = check.arguments(locals())
        _check_window(window)
        joined = check.names(
            join_keys, "join_keys", "name a column, several as join_keys=('id', 'site'), or ()"
        )
        by = check.names(by, "by", "name a column, several as by=('origin', 'carrier'), or () for no key")
        twice = [column for column in (*by, *joined) if (*by, *joined).count(column) > 1]
        if twice:
            raise ConfigurationError(
                f"by={by!r} and join_keys={joined!r} name {twice[0]!r} twice: messages lie by all of them, name each once"
            )
        options = {n: v for n, v in arguments.items() if n not in ("join_keys", "deliver")}
        emit = Emit(early=every_batch, late=every_batch) if emit is None else emit
        options |= {
            "by": by,
            "event_time": check.of_type(event_time, str, "event_time", _TIME),
            "emit": _of_rows(emit),
        }
        made = normalise(**options, agg={NEW: collect_list(col(KEPT))}, scale="large")
        windowing = object.__new__(Windowing)
        windowing._set(**made)
        own = {n: made[n] for n in ("window", "retention", "ids", "where")}
        self._fill(
            {**arguments, "ids": made["ids"], "where": made["where"]},
            **own,
            join_keys=joined,
            emit=emit,
            late_us=made["allowed_lateness_us"],
            windowing=windowing,
        )

    def _changed(self, **changes: Any) -> Self:
        return super()._changed(**changes, windowing=self.windowing._changed(**_shared(changes)))

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns by which kept messages are filed, and looked up: session keys, then join keys."""
        return (*self.by, *self.join_keys)

    @property
    def tables(self) -> tuple[str, ...]:
        return ("windows", "messages")

    @property
    def periods(self) -> frozenset[int] | None:
        return self.emit.periods

    def one_shard(self) -> str | None:
        return super().one_shard() or self.windowing.one_shard()

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return (*super().columns_of(input), *self.join_keys)

    def describe(self) -> dict[str, Any]:
        return self._described(
            "join_window",
            window=repr(self.window),
            join_keys=list(self.join_keys) if self.join_keys else None,
        )

    def filing(self) -> dict[str, Any]:
        return {**super().filing(), **self.windowing.filing()}

    def values(self, rows: pa.Table, job: str) -> Iterator[JoinedRow]:
        """Yield the values of a pane, with the window as a value."""
        tuples = self.windowing.numbered
        if len(rows) == 0:
            return
        window = rows.column("window").combine_chunks()
        bounds = [window.field(i).cast(pa.int64()).to_pylist() for i in (0, 1)]
        for row, start, end in zip(to_rows(rows, job), *bounds, strict=True):
            row.values["window"] = make_window(start, end, tuples=tuples)
            yield row

    def times_of(self, event_time: str) -> Input | None:
        return self.inputs[0]

    def output_delay_us(self, event_time: str) -> int:
        """Return the longest time from a message to its row, which is emitted at the latest when its window ends."""
        return 0 if isinstance(self.emit.early, EveryBatch) else _span_us(self.window)

    def taker(self, before: str) -> Taker:
        gap = self.windowing.own_gap
        return replace(super().taker(before), uses=() if gap is None else (gap,))

    def check_followed(self, taker: Taker) -> None:
        super().check_followed(taker)
        if self.output_delay_us(taker.event_time) >= UNBOUNDED_US:
            raise ConfigurationError(
                f"{taker.name!r} follows {self.name!r}, which emits messages under {self.emit!r} when windows of "
                f"{self.window!r} end, however long after them that is: its watermark would never move; use "
                "emit=wr.Emit(early=wr.every_batch)"
            )

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery_stage import delivering
        from windrow.operators.join_window.logic import JoinWindows

        return delivering(JoinWindows(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.join_window.oracle import (
            JoinWindowOracle,
            SessionJoinWindowOracle,
            TupleSessionJoinWindowOracle,
        )
        from windrow.operators.oracle.delivery_stage import delivering

        of_sessions = TupleSessionJoinWindowOracle if self.windowing.numbered else SessionJoinWindowOracle
        oracle = of_sessions(self) if self.windowing.session else JoinWindowOracle(self)
        return delivering(self, oracle, schemas)


def _shared(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the changes that its windows share."""
    return {
        name: value for name, value in changes.items() if name in AggregateDefinition.__dataclass_fields__
    }


def _check_window(window: Any) -> None:
    """Reject windows in which a message cannot be emitted exactly once."""
    if isinstance(window, Inherited):
        raise BadWindow(f"{window!r} of a join window: no operator before it has windows, name one")
    if isinstance(window, Session) and window.max_length_us is not None:
        raise BadWindow(
            f"{window!r} of a join window: a message that comes late may move every cut after it, and an emitted message "
            "has its window already; use cut=wr.tumbling(...) or cut=wr.calendar(...)"
        )


def _of_rows(emit: Emit) -> Emit:
    """Return the emission of messages, each emitted once. Rejects updates and retractions."""
    check.of_type(emit, Emit, "emit", "use wr.Emit(...)", BadTrigger)
    plain = Emit(early=emit.early, late=emit.late, on_time=emit.on_time, drop_late=emit.drop_late)
    if emit != plain:
        raise BadTrigger(
            f"{emit!r} of a join window: a message is emitted once and never retracted, use {plain!r}"
        )
    for trigger in (emit.early, emit.late):
        simple = isinstance(trigger, (Never, EveryBatch, EveryCount, EveryPeriod))
        if not simple or (isinstance(trigger, EveryPeriod) and (trigger.always or trigger.event_time)):
            raise BadTrigger(
                f"{trigger!r} of a join window: use wr.every_batch (at once), wr.every(100), wr.every('10 seconds') or "
                "wr.never"
            )
    return replace(emit, mode="discarding", only_if_changed=True)


def _span_us(window: WindowSpec) -> int:
    """Return the longest duration of a window."""
    match window:
        case Tumbling(size_us=size_us) | Hopping(size_us=size_us):
            return size_us
        case Calendar(unit=unit, n=n):
            return (n * _DAYS[unit] + 1) * DAY_US  # a change of clocks, too
        case _:
            return UNBOUNDED_US
