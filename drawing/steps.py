"""Steps of a stream, one below the other: the message of each, the watermark after it, and the panes that it emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.drawing.axis import axis_over
from windrow.drawing.svg import CHARACTER, fitted, picture, tag, text, tooltip
from windrow.drawing.timeline import MARGIN, WIDTH, WORDS, Dot, message_dot

#: More steps than this are cut, with a notice.
MOST = 60
ROW, CHIP, TOP = 28, 22, 30.0


@dataclass(frozen=True)
class EmittedWindow:
    """A pane with its window. timing: a key of `timeline.SHAPES`; detail: under the pointer."""

    start: int
    end: int
    timing: str
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Step:
    """One step: its name, the message that it ingests, the watermark after it, the panes that it emits."""

    name: str
    dot: Dot | None
    watermark: int | None
    emitted: Sequence[EmittedWindow] = ()


def steps_picture(
    steps: Sequence[Step],
    *,
    title: str,
    description: str = "",
    numbers: bool = False,
    more: int = 0,
    style: bool = True,
) -> str:
    """Draw steps downwards, event time to the right: dots are messages, the line is the watermark, bars are panes.

    more: steps that there are besides these
    """
    shown, cut = steps[:MOST], len(steps[MOST:]) + more
    values = [
        v
        for s in shown
        for v in ([s.dot.at] if s.dot else []) + [t for e in s.emitted for t in (e.start, e.end)]
    ]
    longest = max((len(step.name) for step in shown), default=0)
    left = MARGIN + min(longest * CHARACTER, 220) + 16
    axis = axis_over(values, left, WIDTH - MARGIN, numbers=numbers)
    body, drawn, y = list[str](), list[str](), TOP
    line = list[tuple[float, float]]()
    for n, step in enumerate(shown):
        head = ROW if step.dot is not None or not step.emitted else 6
        height = head + CHIP * len(step.emitted)
        if n % 2 == 0:
            body.append(tag("rect", class_="band", x=0, y=y, width=WIDTH, height=height))
        drawn.append(text(fitted(step.name, left - MARGIN - 8), MARGIN, y + 18))
        if step.dot is not None:
            drawn.append(message_dot(step.dot, axis, y + ROW / 2))
        if step.watermark is not None:
            line.append((axis.x(step.watermark), y + ROW / 2))
        for m, pane in enumerate(step.emitted):
            drawn.append(_chip(pane, axis.x(pane.start), axis.x(pane.end), y + head + CHIP * m - 2))
        y += height
    body += axis.drawn(TOP, y)
    if line:
        path = f"M{line[0][0]:.1f} {line[0][1]:.1f}" + "".join(f"V{down:.1f}H{x:.1f}" for x, down in line[1:])
        body.append(tag("path", tooltip("watermark"), class_="line", d=f"{path}V{y:.1f}"))
    body += drawn
    dots = [s.dot for s in shown if s.dot is not None]
    timings = [e.timing for s in shown for e in s.emitted]
    body += _legend(timings, messages=bool(dots), dead=any(d.dead for d in dots), watermark=bool(line))
    if cut > 0:
        notice = f"{cut:,} more steps are not drawn"
        body.append(text(notice, MARGIN, y + 46, class_="soft"))
        description = f"{description} {notice}.".strip()
    return picture(
        body, WIDTH, y + (56 if cut > 0 else 42), title=title, description=description, style=style
    )


def _chip(pane: EmittedWindow, left: float, right: float, y: float) -> str:
    """Draw a pane as a bar over its window, with its label inside, else at its right or left."""
    shape = tag(
        "rect",
        tooltip(pane.detail),
        class_=pane.timing,
        x=left,
        y=y,
        width=max(right - left, 4.0),
        height=18,
        rx=4,
    )
    wide = len(pane.label) * CHARACTER + 12
    if wide <= right - left:
        return shape + text(pane.label, (left + right) / 2, y + 13, class_="chip", anchor="middle")
    if wide <= WIDTH - right:
        return shape + text(pane.label, right + 6, y + 13)
    return shape + text(fitted(pane.label, left - 12), left - 6, y + 13, anchor="end")


def _legend(timings: Sequence[str], *, messages: bool, dead: bool, watermark: bool) -> list[str]:
    """Draw what dots, line and bars are, above the first step."""
    x, y = float(MARGIN), 14.0
    entries = [(tag("circle", class_="dot", cx=6, cy=0, r=4), "message")] if messages else []
    if dead:
        entries.append((tag("path", class_="dead", d="M2 -4l8 8m0 -8l-8 8"), "dead letter"))
    if watermark:
        entries.append((tag("path", class_="line", d="M0 0h12"), "watermark"))
    for timing in [t for t in WORDS if t in timings]:
        entries.append(
            (tag("rect", class_=timing, x=0, y=-5, width=12, height=10, rx=2), f"pane, {WORDS[timing]}")
        )
    drawn = []
    for sign, word in entries:
        drawn.append(tag("g", sign, text(word, 18, 4, class_="soft"), transform=f"translate({x:.1f} {y})"))
        x += 36 + len(word) * CHARACTER
    return drawn
