"""Spans of anchors: the windows that their columns give, or that the user's function computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.between import Between, SpanFunction
from windrow.core.expressions import Expr
from windrow.core.frames import RangeBetween
from windrow.core.time import END_OF_TIME_US
from windrow.core.types import is_text
from windrow.operators.steps.columns import END, START
from windrow.operators.steps.dead_letters import FUNCTION_FAILED, MALFORMED, OUT_OF_RETENTION, DeadLetters
from windrow.operators.steps.groups import combine
from windrow.operators.steps.intake import Slice, countable, event_times, in_known_times, user_columns
from windrow.operators.steps.poison_rows import marked

if TYPE_CHECKING:
    from windrow.operators.over.definition import OverDefinition

#: Before that time no later window of the key begins; null where nothing is promised.
OBSOLETE = "__obsolete"
_WHAT = ("start", "end", "obsolete")


def low_of(span: Between | RangeBetween, start_us: IntArray) -> IntArray:
    """Return the first microsecond of windows that begin there."""
    return start_us + int(span.closed in ("right", "neither"))


def high_of(span: Between | RangeBetween, end_us: IntArray) -> IntArray:
    """Return the last microsecond of windows that end there."""
    return end_us - int(span.closed in ("left", "neither"))


def around(span: RangeBetween, times: IntArray) -> pa.Table:
    """Return the windows of a fixed frame around these times: columns `START` and `END`."""
    return pa.table({START: times + span.start_us, END: times + span.end_us})


def without_timeless(definition: OverDefinition, table: pa.Table, known: pa.Schema | None) -> pa.Table:
    """Return anchors with the columns for start, end and obsolete time in the known types. One with a value that is no time is
    malformed, and decides no type."""
    span, reading = definition.span, definition.markers
    names = {m for m in span.moments.values() if isinstance(m, str)} if isinstance(span, Between) else set()
    zone, unit = reading.time_zone, reading.event_time_unit
    for name in sorted(names.intersection(table.column_names)):
        before = known.field(name).type if known is not None and name in known.names else None
        table = in_known_times(table, name, zone, before, unit, "column")
        values = combine(table.column(name))
        if not (is_text(values.type) or pa.types.is_floating(values.type)):
            continue  # of each other type either all values are times, or none may be
        times = event_times(table.column(name), name, zone, unit)
        wrong = pc.and_(values.is_valid(), times.is_null())
        emitted = {("", i): f"column {name!r} is {values[i].as_py()!r:.100}, no time" for i in _places(wrong)}
        if emitted:
            values = pc.if_else(wrong, pa.scalar(None, values.type), values)
            if values.null_count == len(values):
                values = pa.nulls(len(values))
            table = table.set_column(table.column_names.index(name), name, values)
            table = marked({"": table}, emitted)[""]
    return table


def _places(mask: pa.Array) -> list[int]:
    """Return the rows for which it is true."""
    return [int(i) for i in np.flatnonzero(mask.to_numpy(zero_copy_only=False))]


def found_spans(definition: OverDefinition, rows: Slice, dead: DeadLetters) -> tuple[pa.Table, IntArray]:
    """Return `START`, `END` and, with promises, `OBSOLETE` of each anchor; and the numbers of those with a window."""
    span, times = definition.span, rows.times
    if isinstance(span, RangeBetween):
        return around(span, times), np.arange(len(times))
    assert span is not None
    moments, failed = _moments(definition, span, rows.table)
    stamps = pa.array(times)
    if failed:
        places = np.array(sorted(failed), dtype=np.int64)
        dead.add_rows(FUNCTION_FAILED, [failed[i] for i in places.tolist()], rows.table, places, stamps)
    start, end = (moments[what].fill_null(0).to_numpy() for what in _WHAT[:2])
    there = moments["start"].is_valid().to_numpy(zero_copy_only=False)
    there &= moments["end"].is_valid().to_numpy(zero_copy_only=False)
    called = np.ones(len(times), dtype=bool)
    called[list(failed)] = False
    good = there & (start <= end)
    dead.add_rows(
        MALFORMED,
        f"{span!r} gives no start, or no end that is not before it",
        rows.table,
        np.flatnonzero(called & ~good),
        stamps,
    )
    obsolete = moments["obsolete"]
    kept_us = definition.retention.time_us
    if kept_us is not None:
        far = good & ((start < times - kept_us) | (high_of(span, end) > times + kept_us))
        detail = f"its window reaches further from its own time than the retention of {definition.name!r}"
        dead.add_rows(OUT_OF_RETENTION, detail, rows.table, np.flatnonzero(far), stamps)
        good &= ~far
        obsolete = _null_below(obsolete, times - kept_us)
    columns = {START: start, END: end} | ({OBSOLETE: obsolete} if span.promises else {})
    return pa.table(columns), np.flatnonzero(good & called)


def _null_below(values: pa.Array, least: IntArray) -> pa.Array:
    """Return obsolete times with null for those that say no more than the retention does."""
    numbers: IntArray = values.fill_null(END_OF_TIME_US).to_numpy()
    none: BoolArray = (numbers < least) | values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.where(none, 0, numbers), mask=none)


def _moments(
    definition: OverDefinition, span: Between, anchors: pa.Table
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return start, end and obsolete time of each anchor, int64, null without one; and the errors of the function by anchor."""
    failed: dict[int, str] = {}
    if span.function is None:
        columns: Mapping[str, pa.Array] = {
            what: combine(m.evaluate(anchors, what) if isinstance(m, Expr) else anchors.column(m))
            for what, m in span.moments.items()
        }
    else:
        columns, failed = _called(span.function, anchors.select(user_columns(anchors)))
    moments, reading = {}, definition.markers
    for what in _WHAT:
        times = pa.nulls(len(anchors), pa.int64())
        if what in columns:
            times = event_times(columns[what], what, reading.time_zone, reading.event_time_unit)
        inside = countable(times, 0, None).to_numpy(zero_copy_only=False)
        moments[what] = pa.array(np.where(inside, times.fill_null(0).to_numpy(), 0), mask=~inside)
    return moments, failed


def _called(function: SpanFunction, anchors: pa.Table) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Call the user's function on all anchors at once; if it raises, on one after the other."""
    try:
        return _answer(function, anchors), {}
    except MemoryError:
        raise
    except Exception as error:  # the user's code may raise anything
        if len(anchors) == 1:
            return {}, {0: f"{type(error).__name__}: {error}"}
    parts, failed = list[dict[str, pa.Array]](), dict[int, str]()
    for row in range(len(anchors)):
        part, broken = _called(function, anchors.slice(row, 1))
        parts.append(part)
        if broken:
            failed[row] = broken[0]
    kinds = {what: part[what].type for part in parts for what in part}
    columns = {
        what: pa.concat_arrays(
            [part[what].cast(kind) if what in part else pa.nulls(1, kind) for part in parts]
        )
        for what, kind in kinds.items()
    }
    return columns, failed


def _answer(function: SpanFunction, anchors: pa.Table) -> dict[str, pa.Array]:
    answer = function(anchors)
    if (
        not isinstance(answer, pa.Table)
        or len(answer) != len(anchors)
        or not {"start", "end"} <= set(answer.column_names)
    ):
        raise ValueError(
            f"{answer!r:.100} is no table of {len(anchors)} rows with the columns start and end: return one row for each anchor"
        )
    return {what: combine(answer.column(what)) for what in _WHAT if what in answer.column_names}
