"""The definition of OVER windows: a frozen value, checked when built, whose `repr` builds it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from windrow.core import check
from windrow.core.aggregation import Aggregation
from windrow.core.between import Between, Ticks
from windrow.core.deliver import Policy
from windrow.core.emit import Emit, Never
from windrow.core.errors import (
    BadAggregate,
    BadDuration,
    BadTrigger,
    BadWatermark,
    BadWindow,
    ConfigurationError,
    RetentionMissing,
)
from windrow.core.expressions import Expr
from windrow.core.frames import Frame, RangeBetween, RowsBetween, make_frame
from windrow.core.inputs import Input
from windrow.core.policy import UNBOUNDED_US, Forever, Retention, Watermark, bounded, forever
from windrow.core.positions import Positions
from windrow.core.suggestions import meant_aggregation
from windrow.core.time import Duration, TimeUnit, duration_us, show_duration
from windrow.operators.one_input import OneInput
from windrow.operators.operator import Logic, Taker
from windrow.operators.oracle.oracle import Oracle
from windrow.operators.over import emission_options
from windrow.operators.steps.input_filter import filter_of


@dataclass(frozen=True, repr=False, init=False)
class OverDefinition(OneInput):
    """An OVER window around each message: one row per message, with its columns and aggregates of its neighbours.

    by: key columns (one name or several); () for no key: neighbours are messages of the same key
    event_time: the column of event time
    agg: name -> aggregation, e.g. {"mean": wr.avg("x"), "so_far": wr.count().over()}; `.over(...)` gives one a frame of its
        own: `.over(10)` the last ten messages, `.over("10 seconds")` those of the last ten seconds, `.over()` all so far
    frame: of the others: wr.rows_between(-2, 0), wr.range_between("-2 seconds", "1 second"), a pair of these ends, or what
        `.over` takes: 10, "10 seconds"
    ttl: for frames that count messages: neighbours are no further apart in event time than this, and a quiet key is kept
        so long; or wr.forever, the default without keys, and under retention=wr.forever
    select: the message columns in its row, besides key and event time; by default all
    allowed_lateness: how late a message may come and still have a row, and correct those of others
    emit: rows emitted besides the on-time row: wr.Emit(early=, late=, mode=, only_if_changed=), whose triggers are wr.never,
        wr.every_batch or wr.every("10 seconds"); by default none, wr.Emit.append()
    integer_overflow: "dead_letter" or "decimal", for integer sums beyond int64
    name, watermark, null_keys, time_zone, event_time_unit, max_ahead, positions, input, where, deliver: as for `wr.Aggregate`;
        a message that does not pass has no row, and is no neighbour
    dead_letter_limit, dead_letter_retention: as for `wr.Aggregate`
    anchors: another input around whose messages the windows are, instead of its own: wr.Input("markers", event_time="t")
        with the same key columns, or wr.sources.clock("1 second"). Then `input=` names this one, `select` is of the anchors,
        and `frame` is wr.range_between(...), also of each aggregation, or wr.between("begin", "end"): columns of each anchor
    retention: how long past the watermark messages are kept for queries, or wr.forever; no shorter than frames need them.
        With wr.between: how far from the time of its anchor a window may reach; what reaches further is a dead letter
        `out_of_retention`. wr.forever, or, without keys, an obsolete time in its place: any time
    empty: "emit" or "skip": whether an anchor without a message in its window has a row

    A row is emitted when the watermark has passed the message and its frames: nothing can come on time any more that would
    change it. A message that comes later than `allowed_lateness` is a dead letter `too_late`: it is in no row.

    Raises `ConfigurationError` and its kinds (WR1xx), whose message names the conflicting values and the remedy.

    >>> import tempfile, windrow as wr
    >>> smooth = wr.Over(event_time="t", frame=wr.rows_between(-1, 1), agg={"mean": wr.avg("x")}, ttl="1 hour")
    >>> with tempfile.TemporaryDirectory() as folder, smooth.open(folder) as op:
    ...     for second, x in enumerate((3, 6, 0, 3)):
    ...         op.add_message({"t": f"2013-07-01 05:10:0{second}Z", "x": x})
    ...     op.drain()
    ...     [(row["x"], row["mean"]) for row in op.get_result()]
    [(6, 3.0), (0, 3.0)]
    """

    agg: Mapping[str, Aggregation]
    select: tuple[str, ...] | None
    ttl_us: int | None
    integer_overflow: str
    retention: Retention
    anchors: Input | Ticks | None
    span: Between | RangeBetween | None
    empty: str
    queried_us: int
    emit: Emit

    @check.suggests
    def __init__(
        self,
        *,
        by: str | Sequence[str] = (),
        event_time: str,
        agg: Mapping[str, Aggregation],
        frame: Frame | Between | tuple[Any, Any] | int | Duration | None = None,
        ttl: Duration | Forever | None = None,
        select: str | Sequence[str] | None = None,
        watermark: Duration | Watermark = "0 seconds",
        allowed_lateness: Duration = "0 seconds",
        emit: Emit | None = None,
        name: str = "over",
        null_keys: str = "group",
        time_zone: str | None = None,
        event_time_unit: TimeUnit | None = None,
        max_ahead: Duration | Forever | None = None,
        integer_overflow: str = "dead_letter",
        positions: Positions | None = None,
        dead_letter_limit: int = 10_000,
        dead_letter_retention: Duration | Forever | None = None,
        input: str | None = None,
        where: pc.Expression | None = None,
        deliver: Policy | None = None,
        anchors: Input | Ticks | None = None,
        retention: Duration | Forever | None = None,
        empty: str = "emit",
    ) -> None:
        where = filter_of(where)
        arguments = check.arguments(locals())
        remedy = "name columns, e.g. select=('x', 'y'), or leave it out for all"
        self._fill(
            arguments,
            select=None if select is None else check.names(select, "select", remedy),
            integer_overflow=integer_overflow,
            **(_own_fields(arguments) if anchors is None else own_fields(arguments)),
        )
        columns = self.output_columns or (*self.by, self.output_time, *self.agg)
        twice = [c for c in columns if columns.count(c) > 1]
        if twice:
            raise ConfigurationError(
                f"column {twice[0]!r} of {self.name!r} is emitted twice: rows have the columns {list(columns)}; "
                "give the aggregate another name"
            )

    @property
    def frames(self) -> dict[str, Frame]:
        """The frame of each aggregation."""
        return {alias: a.frame for alias, a in self.agg.items() if a.frame is not None}

    @property
    def output_columns(self) -> tuple[str, ...] | None:
        if self.select is None:
            return None
        return (*dict.fromkeys((*self.by, self.output_time, *self.select)), *self.agg)

    @property
    def output_time(self) -> str:
        """The column of event time of its rows."""
        return self.anchors.event_time if isinstance(self.anchors, Input) else self.event_time

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (*super().inputs, self.anchors) if isinstance(self.anchors, Input) else super().inputs

    @property
    def back_us(self) -> int | None:
        """Return how far before its anchor a window may begin; None: any time."""
        return max(-self.span.low_us, 0) if isinstance(self.span, RangeBetween) else self.retention.time_us

    @property
    def source(self) -> Self:
        """The definition's own input alone, whose messages are aggregated."""
        return self._changed(anchors=None, select=())

    @property
    def markers(self) -> Self:
        """The input of its anchors by itself."""
        assert isinstance(self.anchors, Input)
        names = ("event_time", "watermark", "time_zone", "max_ahead_us", "positions", "where", "deliver")
        own = {n: getattr(self.anchors, n) for n in names}
        unit, name = self.anchors.event_time_unit, self.anchors.name
        return self._changed(anchors=None, agg={}, input_name=name, event_time_unit=unit, **own)

    @property
    def by_arrival(self) -> bool:
        """True if messages count as they come."""
        return _is_by_arrival(self.agg)

    @property
    def corrects(self) -> bool:
        """True if rows are emitted early, or updated."""
        return (self.late_us > 0 and not self.by_arrival) or not isinstance(self.emit.early, Never)

    @property
    def emits_updates(self) -> bool:
        return self.corrects

    @property
    def emission_mode(self) -> str:
        return self.emit.mode if self.corrects else "once"

    @property
    def tables(self) -> tuple[str, ...]:
        return () if self.by_arrival else ("messages",)

    @property
    def periods(self) -> frozenset[int] | None:
        return self.emit.periods if self.corrects else frozenset()

    def describe(self) -> dict[str, Any]:
        return self._described(
            "over",
            agg={alias: a.describe() for alias, a in self.agg.items()},
            select=None if self.select is None else list(self.select),
            ttl=None if self.ttl_us is None else show_duration(self.ttl_us),
            integer_overflow=None if self.integer_overflow == "dead_letter" else self.integer_overflow,
            corrects=show_duration(self.late_us) if self.corrects else None,
            **described(self),
        )

    def columns_of(self, input: Input) -> tuple[str, ...]:
        return (input.event_time, *self.by)

    def with_watermarks(self, watermarks: Mapping[str, Watermark]) -> Self:
        changed = super().with_watermarks(watermarks)
        if not isinstance(self.anchors, Input) or self.anchors.name not in watermarks:
            return changed
        anchors = replace(self.anchors, watermark=watermarks[self.anchors.name])
        written = {**dict(changed.written), "anchors": repr(anchors)}
        return changed._changed(anchors=anchors, written=tuple(written.items()))

    def taker(self, before: str) -> Taker:
        if isinstance(self.anchors, Input) and before != self.input_name:
            return anchors_taker(self, before)
        taker = super().taker(before)
        selected = self.select if self.anchors is None and self.select is not None else ()
        columns = (*taker.columns, *selected, *(c for a in self.agg.values() for c in a.columns))
        uses = tuple(e for a in self.agg.values() for e in a.expressions)
        return replace(taker, columns=tuple(dict.fromkeys(columns)), uses=uses)

    def of_forwarded_rows(self, input: Input) -> Self:
        if isinstance(self.anchors, Input) and input.name == self.anchors.name:
            return self._changed(anchors=replace(input, max_ahead_us=None))
        return super().of_forwarded_rows(input)

    def times_of(self, event_time: str) -> Input | None:
        return None if isinstance(self.anchors, Ticks) else self.inputs[-1]

    def output_delay_us(self, event_time: str) -> int:
        if self.anchors is not None:
            return output_delay_us(self)
        waits = waits_rows(self.agg)
        if not waits:
            return waits_us(self.agg)
        return UNBOUNDED_US if self.ttl_us is None else waits * self.ttl_us

    def check_followed(self, taker: Taker) -> None:
        if self.anchors is None:
            super().check_followed(taker)
        if self.corrects and (self.emit.mode != "retracting" or taker.keeps):
            ways = (
                "use mode='retracting', which takes them back first, or"
                if not taker.keeps
                else f"{taker.keeps};"
            )
            raise BadTrigger(
                f"{self.emit!r} of {self.name!r}, before {taker.name!r}: its rows are updated, and would be counted as "
                f"often; {ways} leave out emit= and allowed_lateness="
            )
        if self.anchors is not None:
            check_followed(self, taker)
            return
        if self.by_arrival:
            raise BadWindow(
                f"{self.name!r}, before {taker.name!r}, emits rows as messages come, however late in event time, so that "
                f"{taker.name!r} could not say when it has all of a time; use order='event_time'"
            )
        if self.output_delay_us(taker.event_time) >= UNBOUNDED_US:
            raise ConfigurationError(
                f"{taker.name!r} follows {self.name!r}, whose rows wait for messages that may never come, under "
                "ttl=wr.forever: its watermark would never move; give a ttl such as '1 hour'"
            )

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.delivery_stage import delivering
        from windrow.operators.over.anchors.corrections import CorrectedAnchors
        from windrow.operators.over.anchors.logic import AnchoredOvers
        from windrow.operators.over.arrival import ArrivalOvers
        from windrow.operators.over.corrections import CorrectedOvers
        from windrow.operators.over.logic import Overs

        if self.anchors is not None:
            return delivering(CorrectedAnchors(self) if self.corrects else AnchoredOvers(self))
        if self.by_arrival:
            return delivering(ArrivalOvers(self))
        return delivering(CorrectedOvers(self) if self.corrects else Overs(self))

    def oracle(self, schemas: Mapping[str, pa.Schema] | None = None) -> Oracle:
        from windrow.operators.oracle.delivery_stage import delivering
        from windrow.operators.over.anchors.oracle import AnchoredOracle
        from windrow.operators.over.oracle import ArrivalOracle, OverOracle

        if self.anchors is not None:
            return delivering(self, AnchoredOracle(self), schemas)
        return delivering(self, ArrivalOracle(self) if self.by_arrival else OverOracle(self), schemas)


def reach_us(agg: Mapping[str, Aggregation]) -> int:
    """Return how far before a message the frames of time begin."""
    return max([0, *(-a.frame.low_us for a in agg.values() if isinstance(a.frame, RangeBetween))])


def waits_us(agg: Mapping[str, Aggregation]) -> int:
    """Return how far after a message the frames of time end."""
    ends = [a.frame.high_us for a in agg.values() if isinstance(a.frame, RangeBetween)]
    return max([0, *ends])


def reach_rows(agg: Mapping[str, Aggregation]) -> int:
    """Return how many messages before one the frames of messages begin; a running one keeps none."""
    lows = [a.frame.low for a in agg.values() if isinstance(a.frame, RowsBetween)]
    return max([0, *(-low for low in lows if low is not None)])


def waits_rows(agg: Mapping[str, Aggregation]) -> int:
    """Return for how many following messages the frames of messages wait."""
    return max([0, *(a.frame.high for a in agg.values() if isinstance(a.frame, RowsBetween))])


def _own_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for emission and retention of windows around the input's own messages."""
    refuse_alone(options)
    framed, retention = _framed(options["agg"], options["frame"]), options["retention"]
    ttl, by_arrival = _ttl(options, framed), _is_by_arrival(framed)
    ttl_us = ttl if isinstance(ttl, int) else None
    emit = Emit.append() if options["emit"] is None else options["emit"]
    late_us = emission_options.late_us(options["allowed_lateness"], emit)
    corrects = late_us > 0 or not isinstance(emit.early, Never)
    if corrects and ttl_us is None and waits_rows(framed):
        raise BadTrigger(
            f"{emit!r} with allowed_lateness={options['allowed_lateness']!r} under ttl=wr.forever: rows that wait for messages "
            "would be remembered for good; give a ttl such as '1 hour'"
        )
    if by_arrival and (corrects or retention is not None):
        raise ConfigurationError(
            "emit=, allowed_lateness= and retention= are for the order of event time: with order='position' rows are emitted "
            "for good, and messages kept as long as they count; leave them out"
        )
    queried_us = emission_options.queried_us(retention)
    kept_us = max(reach_us(framed) + late_us, 0 if ttl_us is None else ttl_us + late_us, queried_us)
    endless = isinstance(ttl, Forever) or isinstance(retention, Forever)
    kept = {"ttl_us": ttl_us, "retention": Retention(None if endless else kept_us), "queried_us": queried_us}
    columns = {"emit": emit, "late_us": UNBOUNDED_US if by_arrival else late_us}
    return {"agg": framed, **kept, **columns, "anchors": None, "span": None, "empty": "emit"}


def _framed(agg: Any, frame: Any) -> dict[str, Aggregation]:
    """Return the aggregations, each with its frame."""
    default = None if frame is None else make_frame(frame)
    framed: dict[str, Aggregation] = {}
    for alias, aggregation in plain_agg(agg).items():
        if aggregation.frame is None and default is None:
            raise BadWindow(
                f"agg {alias!r}: {aggregation!r} has no frame: give frame=, e.g. wr.rows_between(-9, 0), or one of its own, "
                f"{aggregation!r}.over(10)"
            )
        framed[alias] = aggregation if aggregation.frame else replace(aggregation, frame=default)
    _check_together(framed)
    return framed


def _check_together(framed: Mapping[str, Aggregation]) -> None:
    """Reject frames that would need two kinds of history, and waiting, at once."""
    frames = {alias: a.frame for alias, a in framed.items()}
    waiting = [a for a, f in frames.items() if isinstance(f, RowsBetween) and f.high > 0]
    timed = [a for a, f in frames.items() if isinstance(f, RangeBetween) or (f is not None and f.peers)]
    orders = {f.order if isinstance(f, RowsBetween) else "event_time": a for a, f in frames.items()}
    if len(orders) > 1:
        by_time, by_position = orders["event_time"], orders["position"]
        same = "say order='position' of both, or " if isinstance(frames[by_time], RowsBetween) else ""
        raise BadWindow(
            f"agg {by_position!r} over {frames[by_position]!r} counts messages as they come, {by_time!r} over "
            f"{frames[by_time]!r} by event time: {same}give them to two operators, wr.Over(...), side by side"
        )
    if waiting and timed:
        raise BadWindow(
            f"agg {waiting[0]!r} over {frames[waiting[0]]!r} waits for messages, {timed[0]!r} over {frames[timed[0]]!r} for "
            "event time: give them to two operators, wr.Over(...), side by side or in a chain"
        )


def _is_by_arrival(agg: Mapping[str, Aggregation]) -> bool:
    return any(isinstance(a.frame, RowsBetween) and a.frame.order == "position" for a in agg.values())


def _ttl(options: Mapping[str, Any], framed: Mapping[str, Aggregation]) -> int | Forever | None:
    """Return the longest pause between neighbours, in microseconds; None if no frame counts messages."""
    counted, ttl = [a for a in framed.values() if isinstance(a.frame, RowsBetween)], options["ttl"]
    if ttl is None:
        if not counted:
            return None
        if not options["by"] or isinstance(options["retention"], Forever):
            return forever  # a single partition, or all messages ever
        raise RetentionMissing(
            f"{counted[0]!r} counts messages however far apart they are, so that each key would be remembered for good: say "
            "for how long, e.g. ttl='1 day', or ttl=wr.forever"
        )
    if not counted:
        raise ConfigurationError(
            f"ttl={ttl!r} says how far apart messages may be that are counted, and all frames are of time: leave it out"
        )
    if isinstance(ttl, Forever):
        return ttl
    ttl_us = duration_us(ttl, "ttl")
    if ttl_us < 0:
        raise BadDuration(f"ttl {ttl!r} is negative: use '0 seconds' or more, or wr.forever")
    return ttl_us


EMPTY = ("emit", "skip")


def own_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition with anchors, from the user's options."""
    anchors, by = (
        options["anchors"],
        check.names(options["by"], "by", "name a column, several, or () for no key"),
    )
    _check_anchors(anchors, by, options["input"])
    _check_watermarks(options["watermark"], anchors)
    agg = _framed_around(plain_agg(options["agg"]), options["frame"])
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


def _framed_around(agg: dict[str, Aggregation], frame: Any) -> dict[str, Aggregation]:
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


def anchors_taker(over: OverDefinition, before: str) -> Taker:
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
    second.check_rows(over, over.output_time)
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
