"""Small charts: bars, and a line over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from windrow.drawing.axis import axis_over
from windrow.drawing.svg import CHARACTER, fitted, picture, tag, text, tooltip

MOST_BARS = 30


def bars_picture(
    values: Sequence[tuple[str, float]],
    *,
    title: str,
    description: str = "",
    width: float = 440,
    style: bool = True,
) -> str:
    """Draw a horizontal bar for each named value, with the value at its right."""
    shown, cut = values[:MOST_BARS], len(values) - MOST_BARS
    labels = [f"{value:,.6g}" for _, value in shown]
    names = min(max((len(name) for name, _ in shown), default=0) * CHARACTER, width * 0.4)
    room = width - names - max(map(len, labels), default=0) * CHARACTER - 24
    highest = max((value for _, value in shown if isfinite(value)), default=0) or 1
    body = []
    for n, ((name, value), label) in enumerate(zip(shown, labels, strict=True)):
        y, long = 4.0 + 20 * n, max(room * _share(value, highest), 1.0)
        body.append(tag("g", tooltip(f"{name}: {label}"), text(fitted(name, names + CHARACTER), 4, y + 13)))
        body.append(tag("rect", class_="mark", x=names + 12, y=y + 3, width=long, height=13, rx=2))
        body.append(text(label, names + 18 + long, y + 13, class_="soft"))
    height = 8.0 + 20 * max(len(shown), 1)
    if cut > 0:
        notice = f"{cut:,} more are not drawn"
        body.append(text(notice, 4, height + 10, class_="soft"))
        height, description = height + 18, f"{description} {notice}.".strip()
    return picture(body, width, height, title=title, description=description, style=style)


def _share(value: float, highest: float) -> float:
    """Return the length of a bar as a share of the longest; not a number and less than zero have none."""
    return min(max(value, 0) / highest, 1) if value == value else 0


def line_picture(
    points: Sequence[tuple[int, float]],
    *,
    title: str,
    description: str = "",
    width: float = 440,
    height: float = 120,
    style: bool = True,
) -> str:
    """Draw values over time (microseconds since the epoch) as a line from zero upwards; one that is not finite is a gap."""
    known = [value for _, value in points if isfinite(value)]
    highest, lowest = max(known, default=0.0), min(0.0, min(known, default=0.0))
    top, bottom = 8.0, height - 38
    label = f"{highest:,.4g}"
    axis = axis_over([time for time, _ in points], len(label) * CHARACTER + 14, width - 32)
    reach = (highest - lowest) or 1.0
    path, pen = "", "M"
    for time, value in points:
        if not isfinite(value):
            pen = "M"
            continue
        path += f"{pen}{axis.x(time):.1f} {bottom - (bottom - top) * (value - lowest) / reach:.1f}"
        pen = "L"
    body = [*axis.drawn(top, bottom), text(label, 4, top + 8, class_="soft")]
    body.append(text(f"{lowest:,.4g}", 4, bottom, class_="soft"))
    body.append(tag("path", class_="line", d=path) if path else "")
    return picture(body, width, height, title=title, description=description, style=style)
