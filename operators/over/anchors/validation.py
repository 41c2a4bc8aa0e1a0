"""Validation of OVER windows around the messages of another input, and their part in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.between import Between, Ticks
from windrow.core.emit import Emit, Never
from windrow.core.errors import (
    BadAggregate,
    BadDuration,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    RetentionMissing,
    UnknownColumn,
)
from windrow.core.expressions import Expr
from windrow.core.frames import RangeBetween, make_frame
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark, bounded
from windrow.core.suggestions import meant_aggregation
from windrow.core.time import duration_us, show_duration
from windrow.operators.operator import Taker
from windrow.operators.over import emission_options

if TYPE_CHECKING:
    from windrow.operators.over.definition import OverDefinition

EMPTY = ("emit", "skip")


def own_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition with anchors, from the user's options."""
    anchors, by = (
        options["anchors"],
        check.names(options["by"], "by", "name a column, several, or () for no key"),
    )
    _check_anchors(anchors, by, options["input"])
    _check_watermarks(options["watermark"], anchors)
    agg = _framed(plain_agg(options["agg"]), options["frame"])
    span = _hull(agg) or _span(options["frame"], anchors)
    if options["ttl"] is not None:
        raise ConfigurationError(
            f"ttl={options['ttl']!r} is of frames that count messages, and around anchors they are of time: leave it out"
        )
    if options["empty"] not in EMPTY:
        raise ConfigurationError(f"empty={options['empty']!r}: use 'emit', a row of no message, or 'skip'")
    emit = Emit.append() if options["emit"] is None else options["emit"]
    emitted = {"emit": emit, "late_us": emission_options.late_us(options["allowed_lateness"], emit)}
    if emitted["late_us"] or not isinstance(emit.early, Never):
        _check_corrected(emit, anchors, span)
    queried_us = emission_options.queried_us(options["retention"]) if isinstance(span, RangeBetween) else 0
    kept = {"ttl_us": None, "retention": _kept(options, span, by), "queried_us": queried_us}
    return {"agg": agg, **kept, **emitted, "anchors": anchors, "span": span, "empty": options["empty"]}


def _framed(agg: dict[str, Aggregation], frame: Any) -> dict[str, Aggregation]:
    """Return the aggregations, each with its own frame if it has one."""
    if all(aggregation.frame is None for aggregation in agg.values()):
        return agg
    default = None if frame is None or isinstance(frame, Between) else make_frame(frame)
    framed = {alias: a if a.frame is not None else replace(a, frame=default) for alias, a in agg.items()}
    for alias, aggregation in framed.items():
        if not isinstance(aggregation.frame, RangeBetween) or isinstance(frame, Between):
            raise BadWindow(
                f"agg {alias!r}: {agg[alias]!r} with frame={frame!r}: around anchors frames are of time, and beside one of its "
                f"own none says where it lies; use {agg[alias]!r}.over(wr.range_between('-1 hour', 0))"
            )
    return framed


def _hull(agg: Mapping[str, Aggregation]) -> RangeBetween | None:
    """Return the range that covers all frames; None if no aggregation has one of its own."""
    frames = [a.frame for a in agg.values() if isinstance(a.frame, RangeBetween)]
    if not frames:
        return None
    return RangeBetween(min(f.low_us for f in frames), max(f.high_us for f in frames))


def _check_corrected(emit: Emit, anchors: Input | Ticks, span: Between | RangeBetween) -> None:
    """Reject options that early rows and updates cannot be combined with."""
    if isinstance(anchors, Ticks):
        raise ConfigurationError(
            f"{emit!r} with anchors={anchors!r}, which are made when nothing comes before them: leave emit= and "
            "allowed_lateness= out"
        )
    if isinstance(span, Between) and span.promises:
        raise ConfigurationError(
            f"{emit!r} with frame={span!r}: what an anchor promises is of those behind it, and one that comes late is not; "
            "leave out obsolete=, and say retention=, or leave out emit= and allowed_lateness="
        )


def refuse_alone(options: Mapping[str, Any]) -> None:
    """Reject options of anchors in a definition without anchors."""
    if isinstance(options["frame"], Between):
        raise BadWindow(
            f"frame={options['frame']!r} is of anchors: name their input, anchors=wr.Input('markers', event_time='t')"
        )
    if options["empty"] != "emit":
        raise ConfigurationError(f"empty={options['empty']!r} is of windows around anchors=: leave it out")


def _check_anchors(anchors: Any, by: tuple[str, ...], source: str | None) -> None:
    if not isinstance(anchors, Input | Ticks):
        raise ConfigurationError(
            f"anchors={anchors!r}: use wr.Input('markers', event_time='t'), or wr.sources.clock('1 second')"
        )
    if isinstance(anchors, Input):
        anchors.refuse_rules("wr.Over")
    if isinstance(anchors, Ticks):
        if by:
            raise ConfigurationError(
                f"by={by!r} with anchors={anchors!r}: a clock has no key; leave by= out, or use wr.Aggregate with "
                "wr.hopping windows"
            )
        return
    if source is None or anchors.name == source:
        raise ConfigurationError(
            f"input={source!r} with anchors={anchors!r}: messages come from two inputs; give the one that is aggregated "
            "a name of its own, e.g. input='readings'"
        )
    if anchors.window is not None or anchors.static or anchors.by is not None:
        raise ConfigurationError(
            f"anchors={anchors!r}: an input of anchors has no window= (frame= says where windows lie), no by= of its own, and "
            "is not static: leave them out"
        )


def _check_watermarks(watermark: Any, anchors: Input | Ticks) -> None:
    own = isinstance(watermark, Watermark) and watermark.kind == "explicit"
    if isinstance(anchors, Input) and own != (anchors.watermark.kind == "explicit"):
        raise BadWatermark(
            f"watermark={watermark!r} with anchors={anchors!r}: an explicit watermark is of all inputs, use "
            "wr.explicit() for both"
        )


def _span(frame: Any, anchors: Input | Ticks) -> Between | RangeBetween:
    span = frame if frame is None or isinstance(frame, Between) else make_frame(frame)
    if isinstance(span, RangeBetween) or (isinstance(span, Between) and isinstance(anchors, Input)):
        return span
    ways = "wr.range_between('-1 second', '1 second')"
    if isinstance(anchors, Input):
        ways = f"wr.between('begin', 'end') or {ways}"
    raise BadWindow(f"frame={frame!r} with anchors={anchors!r}: use {ways}")


def _kept(options: Mapping[str, Any], span: Between | RangeBetween, by: tuple[str, ...]) -> Retention:
    """Return how far from the time of an anchor a window may reach."""
    retention = options["retention"]
    if isinstance(span, RangeBetween):
        # Kept longer they are for queries alone.
        if isinstance(retention, Forever):
            return Retention(None)
        return Retention(max(-span.start_us, span.end_us, 0, emission_options.queried_us(retention)))
    if isinstance(retention, Forever):
        return Retention(None)
    if retention is None:
        if span.promises and not by:
            return Retention(None)
        keys = ", and a key without anchors promises nothing" if span.promises else ""
        raise RetentionMissing(
            f"frame={span!r} may reach back any time{keys}, so that all messages would be kept: say how far from its anchor a "
            "window may reach, e.g. retention='1 hour', or retention=wr.forever"
        )
    kept_us = duration_us(retention, "retention")
    if kept_us < 0:
        raise BadDuration(f"retention {retention!r} is negative: use '0 seconds' or more, or wr.forever")
    return Retention(kept_us)


def plain_agg(agg: Any) -> dict[str, Aggregation]:
    """Return the aggregations, all of one frame."""
    if not isinstance(agg, Mapping) or not agg:
        raise BadAggregate(f"agg={agg!r}: name at least one, e.g. agg={{'mean': wr.avg('x')}}")
    for alias, aggregation in agg.items():
        if not isinstance(alias, str) or not isinstance(aggregation, Aggregation):
            near = meant_aggregation(aggregation, str(alias))
            remedy = f"did you mean {near}?" if near else "use e.g. wr.avg('x')"
            raise BadAggregate(f"agg {alias!r}: {aggregation!r} is no aggregation: {remedy}")
        if not aggregation.of_all:
            instead = "leave .of(...) out" if aggregation.input else "use a class with `add`"
            raise BadAggregate(f"agg {alias!r}: {aggregation!r}: wr.Over aggregates one input; {instead}")
        if alias.startswith("__"):
            raise BadAggregate(f"agg {alias!r}: names with two underscores first are ours, rename it")
    return dict(agg)


def described(over: OverDefinition) -> dict[str, Any]:
    """Return the options of anchors that shape the state."""
    anchors = over.anchors
    if anchors is None:
        return {"anchors": None}
    kept = over.retention.time_us
    shape: dict[str, Any] = {
        "frame": repr(over.span),
        "retention": None if kept is None else show_duration(kept),
    }
    if isinstance(anchors, Ticks):
        return {"anchors": shape | {"clock": repr(anchors)}}
    shape |= {
        "input": anchors.name,
        "event_time": anchors.event_time,
        "time_zone": anchors.time_zone,
        "event_time_unit": anchors.event_time_unit,
        "where": None if anchors.where is None else repr(anchors.where),
    }
    return {"anchors": shape}


# -- in a graph -------------------------------------------------------------------------------------------------------


def taker(over: OverDefinition, before: str) -> Taker:
    """Return the taker of anchors from the operator `before`."""
    anchors = over.anchors
    assert isinstance(anchors, Input)
    if before != anchors.name:
        raise ConfigurationError(
            f"{over.name!r}, which follows {before!r}, takes the inputs {[i.name for i in over.inputs]}, neither of which is "
            f"{before!r}: name the input that takes its rows {before!r}"
        )
    follows = over.watermark.kind == "explicit" and anchors.watermark == over.watermark
    if (anchors.watermark != bounded() and not follows) or anchors.positions is not None:
        raise BadWatermark(
            f"anchors={anchors!r} of {over.name!r} are the rows of {before!r}, whose watermark and places they have: leave "
            "watermark= and positions= out"
        )
    moments = over.span.moments.values() if isinstance(over.span, Between) else ()
    named = [*over.by, *(over.select or ()), *(m for m in moments if isinstance(m, str))]
    uses = tuple(m for m in moments if isinstance(m, Expr))
    return Taker(over.name, anchors, tuple(dict.fromkeys(named)), uses=uses)


def check_followed(over: OverDefinition, second: Taker) -> None:
    """Reject a downstream operator that reads another time than that of the anchors, or that would wait for good."""
    time = over.output_time
    if second.event_time != time:
        raise UnknownColumn(
            f"event_time={second.event_time!r} of {second.name!r}: a row of {over.name!r} has the time of its anchor; use "
            f"event_time={time!r}"
        )
    if over.output_columns is not None:
        second.check_columns(over.output_columns, f"{over.name!r}, whose rows")
    if output_delay_us(over) >= UNBOUNDED_US:
        raise ConfigurationError(
            f"{second.name!r} follows {over.name!r}, whose windows may end any time after their anchors: its watermark "
            "would never move; give a retention such as '1 hour'"
        )


def output_delay_us(over: OverDefinition) -> int:
    """Return how far the event times of its rows trail the watermark."""
    if isinstance(over.span, RangeBetween):
        return max(over.span.high_us, 0)
    kept = over.retention.time_us
    return UNBOUNDED_US if kept is None else kept
