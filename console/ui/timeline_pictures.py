"""Pictures of the page: one key's windows against the watermark, and rows by commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.console import views
from windrow.console.ui.cells import between, cell, time
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us
from windrow.drawing.charts import stem_picture
from windrow.drawing.timeline import Emission, Span, timeline_picture

_TIMINGS = {"EARLY": "early", "ON_TIME": "on-time", "LATE": "late"}


def timeline_of(found: views.Timeline) -> str:
    """Draw the windows of a key, the newest first, with the panes that were emitted."""
    rows = [(_span(span, found), [_emission(p, span) for p in span.panes]) for span in found.spans[::-1]]
    if not rows:
        return ""
    known = START_OF_TIME_US < found.watermark_us < END_OF_TIME_US and not found.numbered
    key = ", ".join(f"{n} {cell(v).text}" for n, v in found.key.items())
    return timeline_picture(
        rows,
        title=f"Windows of {found.operator}{f', {key}' if key else ''}",
        description=f"{len(rows)} windows with their panes. The table below lists the same.",
        watermark=found.watermark_us if known else None,
        numbers=found.numbered,
        style=False,
    )


def _span(span: views.Span, found: views.Timeline) -> Span:
    bounds = [str(b) if found.numbered else time(b) for b in (span.start, span.end)]
    values = ", ".join(f"{n} {cell(v).text}" for n, v in span.values.items())
    return Span(
        span.start,
        span.end,
        "" if span.panes else values,
        "" if found.numbered else bounds[0][5:16],
        f"{between(*bounds)}, {span.status}: {values}",
        span.status == "open",
    )


def _emission(pane: views.Emission, span: views.Span) -> Emission:
    timing = _TIMINGS.get(pane.timing, "on-time")
    if pane.kind != "INSERT":
        timing = "merged" if span.merged else "retracted"
    values = ", ".join(f"{n} {cell(v).text}" for n, v in pane.values.items())
    at = pane.watermark_us if pane.watermark_us > START_OF_TIME_US else span.start
    return Emission(
        min(at, span.end + 4 * (span.end - span.start)), timing, f"commit {pane.commit}, {values}"
    )


def commits_picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw the rows that commits took, over time."""
    points = [(instant_us(row["now"]), float(row["rows"])) for row in rows[::-1]]
    if len(points) < 2:
        return ""
    return stem_picture(
        points,
        title="Rows by commit",
        description=f"Rows of the last {len(points)} commits. The list of commits has the numbers.",
        width=880,
        height=120,
        style=False,
    )
