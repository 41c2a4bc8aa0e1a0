"""The definition of a chain: the rows of one operator are the messages of the next, in the same commit.

Seed 002 "window propagation"; semantics "Chains". A frozen value, checked when built, whose `repr` builds it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from windrow.core.emit import EveryBatch, Never
from windrow.core.errors import (
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    ReservedColumn,
    UnknownColumn,
)
from windrow.core.inputs import Input
from windrow.core.policy import (
    UNBOUNDED_US,
    Watermark,
    bounded,
)
from windrow.core.show import call
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US
from windrow.core.windows import Global, Hopping, Tumbling
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.join.definition import JoinDefinition, spans

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
        if any(isinstance(p, JoinDefinition) for p in self.parts[1:]):
            _check_inputs(self)

    @property
    def first(self) -> Any:
        return self.parts[0]

    @property
    def last(self) -> Any:
        return self.parts[-1]

    @property
    def name(self) -> str:
        """That of the last operator, whose panes or rows are the results."""
        return self.parts[-1].name

    @property
    def by(self) -> tuple[str, ...]:
        """The key columns that all operators share, by their names in the first: rows that differ in them never meet."""
        return tuple(names[0] for names in self.shared_keys)

    @property
    def shared_keys(self) -> tuple[tuple[str, ...], ...]:
        """Of each key that all operators share: its name in the rows of every operator. A join gives it its left name."""
        return tuple(names for b in self.first.by if (names := self._followed(b)) is not None)

    def _followed(self, name: str) -> tuple[str, ...] | None:
        names = [name]
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            if isinstance(part, JoinDefinition):
                left = handed_side(before, part) == "left"
                named = {(a if left else b): a for a, b in part.on}
            else:
                named = {b: b for b in part.by}
            if names[-1] not in named:
                return None
            names.append(named[names[-1]])
        return tuple(names)

    # -- inputs: where messages come from outside -------------------------------------------------------------------

    @property
    def by_input(self) -> bool:
        """True if messages name their input: an operator is a join."""
        return any(isinstance(p, JoinDefinition) for p in self.parts)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs from outside, in the order of the operators that take them; an aggregate's has its name."""
        return tuple(i for part in range(len(self.parts)) for i in self.inputs_of(part))

    def inputs_of(self, part: int) -> tuple[Input, ...]:
        """The inputs of an operator that come from outside."""
        definition = self.parts[part]
        if isinstance(definition, JoinDefinition):
            if part == 0:
                return definition.inputs
            side = handed_side(self.parts[part - 1], definition)
            return (definition.right if side == "left" else definition.left,)
        return (_input_of(definition),) if part == 0 else ()

    def key_columns(self, given: Input) -> tuple[int, tuple[str, ...]]:
        """(the operator that takes an input from outside, what `shared_keys` are called in it)."""
        part = next(i for i in range(len(self.parts)) if given in self.inputs_of(i))
        definition = self.parts[part]
        names = tuple(followed[part] for followed in self.shared_keys)
        if isinstance(definition, JoinDefinition) and given.name != definition.left.name:
            right = dict(definition.on)
            names = tuple(right[n] for n in names)
        return part, names

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        """The same chain under other watermarks, by input; what shapes the state stays."""
        parts: list[Part] = []
        for i, part in enumerate(self.parts):
            own = {n.name: watermarks.get(n.name, n.watermark) for n in self.inputs_of(i)}
            if isinstance(part, JoinDefinition):
                left, right = (own.get(n.name, n.watermark) for n in (part.left, part.right))
                parts.append(part.with_watermarks(left, right))
            else:
                parts.append(part.with_watermark(own[part.name]) if own else part)
        return replace(self, parts=tuple(parts))

    # What a runner asks of its one input is asked of the first operator's.

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
        return None if self.by_input else self.first.ids

    @property
    def positions(self) -> Any:
        return self.first.positions

    @property
    def dead_letter_limit(self) -> int:
        return self.first.dead_letter_limit  # type: ignore[no-any-return]

    @property
    def logics(self) -> tuple[Part, ...]:
        """The parts, those after the first as they take the rows of the one before."""
        taking: list[Part] = [self.first]
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            if isinstance(part, JoinDefinition):
                taking.append(part.of_handed_rows(handed_side(before, part)))
            else:
                taking.append(part.of_handed_rows())
        return tuple(taking)

    def behind_us(self, part: int) -> int:
        """How far the watermark of the next operator stays behind that of `part`."""
        first, second = self.parts[part : part + 2]
        return _behind_us(first, _taker(first, second).event_time) if isinstance(first, JoinDefinition) else 0

    def watermark_of(self, name: str, watermark_us: int) -> int:
        """The watermark of an operator where the chain's is `watermark_us`."""
        for i, part in enumerate(self.parts):
            if i and watermark_us != END_OF_TIME_US:
                watermark_us = max(watermark_us - self.behind_us(i - 1), START_OF_TIME_US)
            if part.name == name:
                break
        return watermark_us

    def source_prefix(self, name: str) -> str:
        """What the sources of an aggregate's messages begin with, and whoever fed them did not write."""
        return f"{name}:" if self.by_input and name == self.first.name else ""

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


def columns_of(definition: JoinDefinition | ChainDefinition, given: Input) -> tuple[str, ...]:
    """The columns that an input from outside must have."""
    if isinstance(definition, JoinDefinition):
        return join_columns(definition, given)
    part = definition.parts[definition.key_columns(given)[0]]
    return join_columns(part, given) if isinstance(part, JoinDefinition) else part.needs


def part_named(definition: Any, name: str) -> Any:
    """The operator of that name, in a definition that has it."""
    return next(p for p in parts_of(definition) if p.name == name)


@dataclass(frozen=True)
class _Taker:
    """How an operator takes what the one before it tells: what it calls its event time, what columns it names."""

    name: str
    event_time: str
    columns: tuple[str, ...]


def handed_side(before: Part, join: JoinDefinition) -> str:
    """The side of a join that takes the rows of the operator before it: the one that has its name."""
    return "left" if join.left.name == before.name else "right"


def handed_input(before: Part, join: JoinDefinition) -> Input:
    """The input of a join that takes the rows of the operator before it."""
    return join.left if handed_side(before, join) == "left" else join.right


def join_columns(join: JoinDefinition, given: Input) -> tuple[str, ...]:
    """The columns that an input of a join must have."""
    keys = join.left_keys if given.name == join.left.name else ()
    keys += join.right_keys if given.name == join.right.name else ()
    return tuple(dict.fromkeys((given.event_time, *keys)))


def _input_of(first: AggregateDefinition) -> Input:
    """The input of an aggregate, as one of several."""
    return Input(
        first.name,
        first.event_time,
        None,
        first.watermark,
        first.time_zone,
        first.max_ahead_us,
        first.positions,
        event_time_unit=first.event_time_unit,
    )


def _taker(first: Part, second: Part) -> _Taker:
    if isinstance(second, JoinDefinition):
        given = handed_input(first, second)
        return _Taker(second.name, given.event_time, join_columns(second, given))
    wanted = dict.fromkeys([*second.by, *(c for a in second.agg.values() for c in a.columns)])
    return _Taker(second.name, second.event_time, tuple(wanted))


def _check_pair(first: Part, second: Part) -> None:
    if isinstance(second, JoinDefinition):
        _check_handed(first, second)
        given = handed_input(first, second)
        watermark, positions, ids = given.watermark, given.positions, None
        outside = second.right if given is second.left else second.left
        follows = outside.watermark.kind == "explicit" and watermark == outside.watermark
    else:
        watermark, positions, ids, follows = second.watermark, second.positions, second.ids, False
    if watermark != bounded() and not follows:
        raise BadWatermark(
            f"watermark={watermark!r} of {second.name!r}, which follows {first.name!r}: its watermark is that of "
            f"{first.name!r}, leave it out"
        )
    for option, value in (("positions", positions), ("ids", ids)):
        if value is not None:
            raise ConfigurationError(
                f"{option}={value!r} of {second.name!r}, which follows {first.name!r}: its messages are the rows of "
                f"{first.name!r}, each told once and in order; leave it out"
            )
    taker = _taker(first, second)
    if isinstance(first, JoinDefinition):
        _check_join(first, taker)
    else:
        _check_aggregate(first, taker)


def _check_handed(first: Part, join: JoinDefinition) -> None:
    """A join takes the rows of the operator before it on one side, and an input from outside on the other."""
    names = [join.left.name, join.right.name]
    if join.is_self_join:
        raise ConfigurationError(
            f"{join.name!r}, which follows {first.name!r}, joins {names[0]!r} with itself: a join in a chain takes the rows of "
            f"{first.name!r} on one side and an input from outside on the other; name its inputs {first.name!r} and something "
            "else"
        )
    if first.name not in names:
        raise ConfigurationError(
            f"{join.name!r}, which follows {first.name!r}, joins the inputs {names}, neither of which is {first.name!r}: name "
            f"the input that takes its rows {first.name!r}, e.g. wr.Input({first.name!r}, event_time=...)"
        )
    if handed_input(first, join).static:
        raise ConfigurationError(
            f"input {first.name!r} of {join.name!r} takes the rows of {first.name!r} and is static=True: only an input from "
            "outside can be static; leave it out"
        )


def _check_inputs(chain: ChainDefinition) -> None:
    """Inputs from outside have names of their own, which are not those of operators, and one kind of watermark."""
    names = [i.name for i in chain.inputs]
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise ConfigurationError(
            f"the chain has the inputs {names}, and {twice[0]!r} twice: each message goes to one operator; give the inputs "
            "names of their own, and feed it to both"
        )
    own = chain.first.name if isinstance(chain.first, AggregateDefinition) else None
    for i, part in enumerate(chain.parts):
        for given in chain.inputs_of(i):
            if given.name != own and given.name in [p.name for p in chain.parts]:
                raise ConfigurationError(
                    f"input {given.name!r} of {part.name!r} comes from outside and has the name of an operator of the chain: "
                    + (
                        f"a join takes the rows of the operator before it, {chain.parts[i - 1].name!r}; "
                        if i
                        else ""
                    )
                    + "give the input another name"
                )
    kinds = {i.watermark.kind == "explicit" for i in chain.inputs}
    if len(kinds) > 1:
        shown = ", ".join(f"{i.name!r}: {i.watermark!r}" for i in chain.inputs)
        raise BadWatermark(
            f"the inputs of the chain have the watermarks {shown}: an explicit watermark is the whole chain's, use "
            "wr.explicit() on all inputs"
        )


def _check_aggregate(first: AggregateDefinition, second: _Taker) -> None:
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
    for column in second.columns:
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


def _check_join(first: JoinDefinition, second: _Taker) -> None:
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
