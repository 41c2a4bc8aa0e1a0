"""Small chart: values at moments."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from windrow.drawing.axis import axis_over
from windrow.drawing.svg import CHARACTER, picture, tag, text


def stem_picture(
    points: Sequence[tuple[int, float]],
    *,
    title: str,
    description: str = "",
    width: float = 440,
    height: float = 120,
    style: bool = True,
) -> str:
    """Draw values at moments (microseconds since the epoch) as lines from zero; one that is not finite is left out."""
    known = [value for _, value in points if isfinite(value)]
    highest, lowest = max(known, default=0.0), min(0.0, min(known, default=0.0))
    top, bottom = 8.0, height - 38
    label = f"{highest:,.4g}"
    axis = axis_over([time for time, _ in points], len(label) * CHARACTER + 14, width - 48)
    reach = (highest - lowest) or 1.0
    zero = bottom - (bottom - top) * -lowest / reach
    path = "".join(
        f"M{axis.x(time):.1f} {zero:.1f}V{zero - (bottom - top) * value / reach:.1f}"
        for time, value in points
        if isfinite(value)
    )
    body = [*axis.drawn(top, bottom), text(label, 4, top + 8, class_="soft")]
    body.append(text(f"{lowest:,.4g}", 4, bottom, class_="soft"))
    body.append(tag("path", class_="line", d=path) if path else "")
    return picture(body, width, height, title=title, description=description, style=style)
