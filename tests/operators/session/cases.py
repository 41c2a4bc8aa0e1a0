"""Any aggregate over session windows, and any messages for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow as wr
from tests.operators.aggregate.cases import (
    FULL,
    INCREMENTAL,
    MIXED,
    SCHEMA,
    TIMED,
    TRIGGERS,
    Scaled,
    messages,
    shown,
    trigger,
)
from tests.operators.contract import Case, S


@st.composite
def sessions(draw: st.DrawFn, *, unbounded: bool = False, plain: bool = False) -> Scaled:
    """Any definition; unbounded: nothing is ever too late, and all is told in the end. plain: without gaps of messages' own,
    keys that are made, and filters.
    """

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    unit_us, base_us = S, pick(0, -20 * S, 10**9 * S)

    def units(n: int) -> timedelta:
        return timedelta(microseconds=n * unit_us)

    cut = pick(None, None, wr.tumbling("10 seconds", offset="3 seconds"), wr.calendar("day", time_zone="UTC"))
    kept, lateness = (None, None) if unbounded else (pick(None, 0, 8, 25), pick(None, None, 0, 4))
    if lateness is not None and kept is not None:
        lateness = min(lateness, kept)
    gap, longest = pick(*map(units, (1, 2, 3, 5)), *([] if plain else [wr.col("v") * S])), None
    names = draw(st.lists(st.sampled_from([*INCREMENTAL]), min_size=1, max_size=4, unique=True))
    modes = ["accumulating", "retracting"]
    if draw(st.integers(0, 3)) == 0:
        names.append(draw(st.sampled_from([*FULL])))
        if not unbounded:
            longest = pick(None, units(3), units(7))
    if longest is None and not unbounded:
        modes.append("discarding")
    triggers = [*TRIGGERS, *MIXED, *TIMED]
    early = draw(st.sampled_from(triggers))
    late = draw(st.sampled_from(["every_batch", "period 5"] if unbounded else triggers))
    emit = wr.Emit(
        early=trigger(early),
        late=trigger(late),
        on_time=unbounded or pick(True, True, False),
        mode=pick(*modes),
        only_if_changed=not {"always 6", "event_always 6"} & {early, late} and draw(st.booleans()),
        closing_pane=draw(st.booleans()),
        drop_late=pick(False, False, False, True) and lateness is None and not unbounded,
    )
    if {"when 2", "either 3"} & {early, late} and "n" not in names:
        names.append("n")
    window, retention, by = (
        wr.session(gap, cut=cut, max_length=longest),
        None,
        pick((), "k", "k", ("k", "g"), "f", *([] if plain else [{"big": wr.col("v") > 1}])),
    )
    timed = any("event" in name for name in (early, late))
    if by and not unbounded and not timed and draw(st.integers(0, 4)) == 0:
        window, lateness = wr.session(messages=pick(0, 1, 2, 4)), None
        retention = pick(wr.forever, wr.Retain(messages=4, per="job"))
    elif longest is None and not unbounded:
        sizes = {"windows": pick(None, None, 2), "messages": pick(None, None, 5)}
        retention = wr.Retain(wr.forever if kept is None else units(kept), **sizes, per=pick("key", "job"))
    definition = wr.Aggregate(
        by=by,
        event_time="t",
        window=window,
        agg={name: {**INCREMENTAL, **FULL}[name] for name in names},
        retention=retention or (wr.forever if kept is None else units(kept)),
        allowed_lateness=None if lateness is None else units(lateness),
        watermark=pick(units(0), units(3), wr.bounded(units(2), idle="20 seconds"), wr.explicit()),
        emit=emit,
        null_keys=pick("group", "group", "dead_letter"),
        max_ahead=wr.forever if unbounded else pick(wr.forever, None, units(40)),
        integer_overflow=pick("dead_letter", "decimal"),
        ids=None if unbounded else pick(None, None, wr.ids("u")),
        input=pick(None, None, None, "readings"),
        where=None
        if plain
        else pick(None, None, None, wr.col("v") > 1, wr.lit(6) / wr.col("v") < 4, wr.col("x").is_valid()),
    )
    return Scaled(definition, base_us, unit_us, draw(st.booleans()))


@st.composite
def jobs(draw: st.DrawFn) -> Case:
    scaled = draw(sessions())
    names = SCHEMA.names if scaled.definition.ids is not None else SCHEMA.names[:-1]
    schema = draw(st.sampled_from([None, pa.schema([SCHEMA.field(name) for name in names])]))
    rows = messages(close=draw(st.booleans()))
    return Case(
        definition=scaled.definition,
        messages=rows.map(lambda row: scaled.drawn(row, whole=schema is None)),
        schema=schema,
        unit_us=scaled.unit_us,
        start_us=scaled.base_us,
    )


OPERATOR = shown(jobs(), wr.session("5 seconds"))
