"""The definition of a chain: the rows of one operator are the messages of the next, in the same commit.

Seed 002 "window propagation"; semantics "Chains". A frozen value, checked when built, whose `repr` builds it again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from windrow.core.definition import UNBOUNDED_US, AggregateDefinition, bounded
from windrow.core.emit import EveryBatch, Never
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.join import JoinDefinition, spans
from windrow.core.show import call
from windrow.core.windows import Global, Hopping, Tumbling

Part: TypeAlias = "AggregateDefinition | JoinDefinition"

#: Columns of a pane on its way to the next operator, beside keys and aggregates: the last moment of its window, which is
#: its event time there, so that it stays inside its window; and the window itself.
WINDOW_TIME, WINDOW_START, WINDOW_END = "window_time", "window_start", "window_end"
WINDOW_COLUMNS = (WINDOW_TIME, WINDOW_START, WINDOW_END)


@dataclass(frozen=True, repr=False)
class ChainDefinition:
    """Operators of which each gets the rows of the one before it. See `wr.chain`."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ConfigurationError(f"a chain of {len(self.parts)} operators: give two or more")
        names = [p.name for p in self.parts]
        if len(set(names)) != len(names):
            raise ConfigurationError(
                f"the operators of a chain are named {names}: give each a name of its own with name=..."
            )
        for first, second in zip(self.parts, self.parts[1:], strict=False):
            _check_pair(first, second)

    @property
    def first(self) -> Any:
        return self.parts[0]

    @property
    def last(self) -> AggregateDefinition:
        assert isinstance(self.parts[-1], AggregateDefinition)
        return self.parts[-1]

    @property
    def name(self) -> str:
        """That of the last operator, whose panes are the results."""
        return self.last.name

    @property
    def by(self) -> tuple[str, ...]:
        """The key columns that all operators share: rows that differ in them never meet."""
        shared = set.intersection(*(set(p.by) for p in self.parts))
        return tuple(b for b in self.first.by if b in shared)

    # What a runner asks of its input is asked of the first operator's.

    @property
    def event_time(self) -> str:
        return self.first.event_time  # type: ignore[no-any-return]

    @property
    def watermark(self) -> Any:
        return self.first.watermark

    @property
    def needs(self) -> tuple[str, ...]:
        return self.first.needs  # type: ignore[no-any-return]

    @property
    def ids(self) -> Any:
        return self.first.ids

    @property
    def positions(self) -> Any:
        return self.first.positions

    @property
    def dead_letter_limit(self) -> int:
        return self.first.dead_letter_limit  # type: ignore[no-any-return]

    def behind_us(self, part: int) -> int:
        """How far the watermark of the next operator stays behind that of `part`."""
        first, second = self.parts[part : part + 2]
        return _behind_us(first, second.event_time) if isinstance(first, JoinDefinition) else 0  # type: ignore[union-attr]

    def with_first(self, first: Any) -> Self:
        return replace(self, parts=(first, *self.parts[1:]))

    def with_watermark(self, watermark: Any) -> Self:
        return self.with_first(self.first.with_watermark(watermark))

    def describe(self) -> dict[str, Any]:
        """What shapes the state, as plain values: the text behind the fingerprint."""
        return {"operator": "chain", "parts": [{"name": p.name, **p.describe()} for p in self.parts]}

    @property
    def fingerprint(self) -> str:
        """Hex digest of `describe()`: of the parts and their order."""
        text = json.dumps(self.describe(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return call("chain", *self.parts)


def parts_of(definition: Any) -> tuple[Part, ...]:
    """The operators of a definition."""
    return definition.parts if isinstance(definition, ChainDefinition) else (definition,)


def first_of(definition: Any) -> Any:
    """The operator that the input goes to."""
    return parts_of(definition)[0]


def part_named(definition: Any, name: str) -> Any:
    """The operator of that name, in a definition that has it."""
    return next(p for p in parts_of(definition) if p.name == name)


def _check_pair(first: Part, second: Part) -> None:
    if isinstance(second, JoinDefinition):
        raise ConfigurationError(
            f"{second.name!r} is a join and has two inputs, {first.name!r} gives it one: a join can only begin a chain"
        )
    if second.watermark != bounded():
        raise BadWatermark(
            f"watermark={second.watermark!r} of {second.name!r}, which follows {first.name!r}: its watermark is that of "
            f"{first.name!r}, leave it out"
        )
    for option, value in (("positions", second.positions), ("ids", second.ids)):
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} of {second.name!r}, which follows {first.name!r}: its messages are the rows of "
                f"{first.name!r}, each told once and in order; leave it out"
            )
    if isinstance(first, JoinDefinition):
        _check_join(first, second)
    else:
        _check_aggregate(first, second)


def _check_aggregate(first: AggregateDefinition, second: AggregateDefinition) -> None:
    """Panes that are each a contribution of their own: none says again what another one said."""
    if first.tuple_window or isinstance(first.window, Global):
        raise BadWindow(
            f"{first.window!r} of {first.name!r} has no end in event time, by which {second.name!r} could file its panes: use "
            "wr.tumbling, wr.hopping or wr.calendar"
        )
    emit = first.emit
    once = isinstance(emit.early, Never) and (first.allowed_lateness_us == 0 or isinstance(emit.late, Never))
    told_once = emit.mode == "discarding" or (emit.mode == "accumulating" and once)
    if not told_once or not emit.on_time or emit.closing_pane:
        raise BadTrigger(
            f"{emit!r} of {first.name!r}, before {second.name!r}: {_trouble(first)}; use emit=wr.Emit.append(), or "
            "mode='discarding' with on_time=True and no closing pane"
        )
    if second.event_time != WINDOW_TIME:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r}: a pane of {first.name!r} has the time {WINDOW_TIME!r}, the "
            f"last moment of its window; use event_time={WINDOW_TIME!r}"
        )
    made = (*first.by, *first.agg)
    clash = [c for c in made if c in WINDOW_COLUMNS]
    if clash:
        raise ReservedColumn(
            f"column {clash[0]!r} of {first.name!r} would clash with the column of that name that {second.name!r} gets (panes "
            f"bring {', '.join(WINDOW_COLUMNS)} beside keys and aggregates): rename it"
        )
    wanted = dict.fromkeys([*second.by, *(c for a in second.agg.values() for c in a.columns)])
    for column in wanted:
        if column not in (*made, *WINDOW_COLUMNS):
            raise UnknownColumn(
                f"column {column!r} of {second.name!r} is none of {first.name!r}, whose panes have "
                f"{[*made, *WINDOW_COLUMNS]}: add it to by= or agg= of {first.name!r}"
            )


def _trouble(first: AggregateDefinition) -> str:
    emit = first.emit
    if emit.mode == "retracting":
        return "panes are taken back, and no operator takes a message back"
    if emit.closing_pane:
        return "a closing pane tells a window again"
    if not emit.on_time:
        return "without ON_TIME panes what is left of a window is told when it is late"
    return "early and late panes tell a window several times, and it would be counted as often"


def _check_join(first: JoinDefinition, second: AggregateDefinition) -> None:
    """Rows that are each told once, at a time that lies in no past."""
    for timing, trigger in (("early", first.emit.early), ("late", first.emit.late)):
        if not isinstance(trigger, EveryBatch):
            raise BadTrigger(
                f"Emit({timing}={trigger!r}) of {first.name!r}, before {second.name!r}: rows that wait for a period of now "
                "come late, however short it is; use wr.every_batch"
            )
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
    if _behind_us(first, second.event_time) >= UNBOUNDED_US:
        raise BadWindow(
            f"{first!r} sets no bound to how late its rows come, so that no window of {second.name!r} would ever end: bound it "
            "with within=('-1 hour', '1 hour') or retention='1 day', and not by wr.forever"
        )


def _times(join: JoinDefinition) -> dict[str, str]:
    """Columns of a join's rows that are an input's event time, and of which side."""
    left, right = join.left.event_time, join.right.event_time
    if join.how in ("semi", "anti") or left in join.left_keys:
        return {left: "left"}
    a, b = ("left", "right") if join.is_self_join else (join.left.name, join.right.name)
    found = {f"{a}_{left}": "left", f"{b}_{right}": "right"}
    if left != right:
        found = {left: "left", right: "right", **found}
    return found


def _behind_us(join: JoinDefinition, event_time: str) -> int:
    """How far behind the join's watermark lie the times of rows in which nothing late had a part.

    A match is told when its later message comes; a message without one when the watermark less the allowed lateness has
    passed all that it could have met.
    """
    side = _times(join)[event_time]
    other = join.right if side == "left" else join.left
    before, after = spans(join.left, join.right, join.within)
    reach = before if side == "left" else after
    kept_us = join.retention.time_us
    far = min(UNBOUNDED_US if us is None else us for us in (reach, kept_us))
    if join.how in ("left", "right", "anti"):
        aligned = other.window.size_us if isinstance(other.window, (Tumbling, Hopping)) else 0
        return min(far + join.allowed_lateness_us + aligned, UNBOUNDED_US)
    if join.how == "asof":
        return join.allowed_lateness_us
    return far
