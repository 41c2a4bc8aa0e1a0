"""A join in a graph: what its rows are to the operator that takes them, and how it takes rows of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.emit import EveryBatch
from windrow.core.errors import BadTrigger, BadWatermark, BadWindow, ConfigurationError, UnknownColumn
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, bounded
from windrow.core.windows import Hopping, Tumbling
from windrow.operators.join.spans import spans
from windrow.operators.operator import Taker

if TYPE_CHECKING:
    from windrow.operators.join.definition import JoinDefinition


def taker(join: JoinDefinition, before: str) -> Taker:
    """How a join takes the rows of the operator `before`: on the side whose input has its name."""
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
    given, other = (join.left, join.right) if join.left.name == before else (join.right, join.left)
    if given.static:
        raise ConfigurationError(
            f"input {before!r} of {join.name!r} takes the rows of {before!r} and is static=True: only an input from "
            "outside can be static; leave it out"
        )
    follows = other.watermark.kind == "explicit" and given.watermark == other.watermark
    if given.watermark != bounded() and not follows:
        raise BadWatermark(
            f"watermark={given.watermark!r} of {join.name!r}, which follows {before!r}: its watermark is that of "
            f"{before!r}, leave it out"
        )
    if given.positions is not None:
        raise ConfigurationError(
            f"positions={given.positions!r} of {join.name!r}, which follows {before!r}: its messages are the rows of "
            f"{before!r}, each told once and in order; leave it out"
        )
    return Taker(join.name, given, columns_of(join, given))


def columns_of(join: JoinDefinition, given: Input) -> tuple[str, ...]:
    """The columns that an input of a join must have."""
    keys = join.left_keys if given.name == join.left.name else ()
    keys += join.right_keys if given.name == join.right.name else ()
    return tuple(dict.fromkeys((given.event_time, *keys)))


def check_followed(first: JoinDefinition, second: Taker) -> None:
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
    if behind_us(first, second.event_time) >= UNBOUNDED_US:
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


def times_of(join: JoinDefinition, event_time: str) -> Input:
    """The input whose times a column of its rows has."""
    return join.left if _times(join)[event_time] == "left" else join.right


def behind_us(join: JoinDefinition, event_time: str) -> int:
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
