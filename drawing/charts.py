"""Small chart: a line over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from windrow.drawing.axis import axis_over
from windrow.drawing.svg import CHARACTER, picture, tag, text


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
