"""Windows on a time axis, and the panes of windows against the watermark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windrow.drawing.axis import Axis, axis_over
from windrow.drawing.svg import CHARACTER, fitted, picture, tag, text, tooltip

#: More windows than this are cut, with a notice.
MOST = 40
WIDTH, MARGIN, LANE, TOP = 880, 16, 24, 20
#: Timings of panes, each with the shape of its mark around (0, 0), so that colour alone says nothing.
SHAPES = {
    "early": "M-6 0L4 -6V6Z",
    "on-time": "M-5 -5H5V5H-5Z",
    "late": "M6 0L-4 -6V6Z",
    "retracted": "M0 -6.5L6.5 0L0 6.5L-6.5 0Z",
    "merged": "M0 -6A6 6 0 1 1 -0.1 -6Z",
}
WORDS = {
    "early": "early",
    "on-time": "on time",
    "late": "late",
    "retracted": "retracted",
    "merged": "merged into another window",
}


@dataclass(frozen=True)
class Span:
    """A window: a range of event time in microseconds, or of numbers, without its end.

    label: inside it, such as its values; name: at its left, such as its key; detail: under the pointer
    open: False where it accepts no message any more
    until: the watermark at which it no longer accepts late messages; None where that is not known
    """

    start: int
    end: int
    label: str = ""
    name: str = ""
    detail: str = ""
    open: bool = True
    until: int | None = None


@dataclass(frozen=True)
class Emission:
    """A pane of a window, at the watermark when it was emitted. timing: a key of SHAPES; detail: under the pointer."""

    at: int
    timing: str
    detail: str = ""


@dataclass(frozen=True)
class Dot:
    """A message at its event time. dead: it was not counted."""

    at: int
    detail: str = ""
    dead: bool = False


def windows_picture(
    spans: Sequence[Span],
    *,
    title: str,
    description: str = "",
    watermark: int | None = None,
    dots: Sequence[Dot] = (),
    numbers: bool = False,
    most: int = MOST,
    style: bool = True,
) -> str:
    """Draw windows on an axis, in as few lanes as hold them. `timeline_picture` gives each a lane, and draws panes."""
    shown, cut = spans[:most], len(spans) - most
    axis = _axis(shown, watermark, [d.at for d in dots], numbers, names=False)
    ends: list[int] = []
    lanes = []
    for span in shown:
        lane = next((n for n, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.end]
        lanes.append(lane)
    top = TOP + (LANE if dots else 0)
    bottom = top + LANE * max(len(ends), 1)
    body = [*axis.drawn(TOP, bottom)]
    body += [window_bar(span, axis, top + LANE * lane) for span, lane in zip(shown, lanes, strict=True)]
    body += [message_dot(dot, axis, TOP + LANE / 2) for dot in dots]
    body += watermark_line(axis, watermark, TOP, bottom)
    return _finished(body, bottom + 42, cut, title, description, style)


def timeline_picture(
    rows: Sequence[tuple[Span, Sequence[Emission]]],
    *,
    title: str,
    description: str = "",
    watermark: int | None = None,
    numbers: bool = False,
    most: int = MOST,
    style: bool = True,
) -> str:
    """Draw each window in a lane of its own, with a mark for each pane at the watermark when it was emitted.

    Marks left of the end of a window are early, those right of it late. A dashed line ends where messages become too late.
    """
    shown, cut = rows[:most], len(rows) - most
    spans = [span for span, _ in shown]
    axis = _axis(spans, watermark, [e.at for _, panes in shown for e in panes], numbers, names=True)
    bottom = TOP + LANE * max(len(shown), 1)
    body = [*axis.drawn(TOP, bottom)]
    for n, (span, panes) in enumerate(shown):
        y = TOP + LANE * n
        name = fitted(span.name, axis.left - MARGIN - 8)
        body.append(tag("g", tooltip(span.name), text(name, MARGIN, y + 16)) if name else "")
        body += [window_bar(span, axis, y), _lateness(span, axis, y)]
        body += [emission_mark(pane, axis, y + LANE / 2) for pane in panes]
    body += watermark_line(axis, watermark, TOP, bottom)
    timings = [t for t in SHAPES if any(e.timing == t for _, panes in shown for e in panes)]
    body += _legend(timings, bottom + 48)
    return _finished(body, bottom + (62 if timings else 42), cut, title, description, style)


def window_bar(span: Span, axis: Axis, y: float) -> str:
    """Draw a window as a bar with its label."""
    left, right = axis.x(span.start), axis.x(span.end)
    shape = tag(
        "rect",
        tooltip(span.detail),
        class_="window" if span.open else "closed",
        x=left + 0.5,
        y=y + 3,
        width=max(right - left - 1, 2.0),
        height=LANE - 6,
        rx=3,
    )
    label = fitted(span.label, right - left - 10)
    return shape + (text(label, left + 6, y + 16) if label else "")


def message_dot(dot: Dot, axis: Axis, y: float) -> str:
    """Draw a message as a dot, one that was not counted as a cross."""
    x = axis.x(dot.at)
    if dot.dead:
        return tag("path", tooltip(dot.detail), class_="dead", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")
    return tag("circle", tooltip(dot.detail), class_="dot", cx=x, cy=y, r=4)


def emission_mark(pane: Emission, axis: Axis, y: float) -> str:
    """Draw the mark of a pane: its shape and colour say its timing."""
    small = " scale(0.75)" if pane.timing == "early" else ""  # there are many
    place = f"translate({axis.x(pane.at):.1f} {y:.1f}){small}"
    detail = f"{WORDS[pane.timing]}: {pane.detail}" if pane.detail else WORDS[pane.timing]
    return tag("path", tooltip(detail), class_=f"pane {pane.timing}", d=SHAPES[pane.timing], transform=place)


def watermark_line(axis: Axis, watermark: int | None, top: float, bottom: float) -> list[str]:
    """Draw the watermark as a vertical line, where the axis has it."""
    if watermark is None or not axis.has(watermark):
        return []
    x = axis.x(watermark)
    half = len("watermark") * CHARACTER / 2
    near = min(max(x, axis.left + half), axis.right - half)
    return [
        tag("path", class_="line", d=f"M{x:.1f} {top - 2:.1f}V{bottom:.1f}"),
        text("watermark", near, top - 4, class_="mark", anchor="middle"),
    ]


def _axis(
    spans: Sequence[Span], watermark: int | None, others: Sequence[int], numbers: bool, *, names: bool
) -> Axis:
    values = [v for span in spans for v in (span.start, span.end)] + list(others)
    values += [span.until for span in spans if span.until is not None and names]
    if watermark is not None and values and not numbers:
        wide = max(values) - min(values)
        near = min(values) - wide <= watermark <= max(values) + wide
        values += [watermark] if near else []
    longest = max((len(span.name) for span in spans), default=0) if names else 0
    left = MARGIN + (min(longest * CHARACTER, 180) + 12 if longest else 0)
    return axis_over(values, left, WIDTH - MARGIN, numbers=numbers)


def _lateness(span: Span, axis: Axis, y: float) -> str:
    if span.until is None or span.until <= span.end or span.end >= axis.end:
        return ""
    path = f"M{axis.x(span.end):.1f} {y + LANE / 2:.1f}H{axis.x(span.until):.1f}m0 -4v8"
    return tag("path", tooltip("accepts late messages"), class_="lateness", d=path)


def _legend(timings: Sequence[str], y: float) -> Iterator[str]:
    x = float(MARGIN) + 6
    for timing in timings:
        yield tag("path", class_=timing, d=SHAPES[timing], transform=f"translate({x:.1f} {y - 4:.1f})")
        yield text(WORDS[timing], x + 12, y, class_="soft")
        x += 36 + len(WORDS[timing]) * CHARACTER


def _finished(body: list[str], height: float, cut: int, title: str, description: str, style: bool) -> str:
    if cut > 0:
        notice = f"{cut:,} more are not drawn"
        body = [*body, text(notice, MARGIN, height + 8, class_="soft")]
        height, description = height + 20, f"{description} {notice}.".strip()
    return picture(body, WIDTH, height, title=title, description=description, style=style)
