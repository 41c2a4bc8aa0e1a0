"""Chaining of joins: the rows that a join forwards downstream, and the rows that it takes from an upstream operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windrow.core.emit import EveryBatch
from windrow.core.errors import BadTrigger, BadWatermark, BadWindow, ConfigurationError, UnknownColumn
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, bounded
from windrow.core.time import show_duration
from windrow.core.windows import Hopping, Rows, Tumbling
from windrow.operators.join.spans import spans
from windrow.operators.operator import Taker

if TYPE_CHECKING:
    from windrow.operators.join.definition import JoinDefinition


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
