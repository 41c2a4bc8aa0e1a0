"""HTML of definitions in notebooks: example windows on a time axis, with the panes that each emits, and the arguments."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from windrow.core.emit import Emit, EveryPeriod, Never
from windrow.core.frames import RangeBetween
from windrow.core.messages import Window
from windrow.core.notebook import cell, document
from windrow.core.time import DAY_US, show_duration
from windrow.core.windows import Calendar, Hopping, Session, Sliding, Tumbling, Tuples
from windrow.drawing.timeline import Dot, Emission, Span, timeline_picture, windows_picture
from windrow.operators.operator import Definition
from windrow.operators.oracle.windows import tuple_windows_of, windows_of

#: Examples begin on a Monday, the first day of a year.
BEGIN_US = 19_723 * DAY_US
_MOST_MARKS = 12


def definition_html(definition: Definition) -> str:
    """Return the picture and the arguments of each operator of a definition, in their order."""
    parts = definition.parts
    if len(parts) == 1:
        return document(*_part(parts[0]))
    drawn = []
    for part in parts:
        upstream = ", ".join(f"{input} from {name}" for input, name in definition.fed_by(part.name).items())
        origin = f" ({cell(upstream)})" if upstream else ""
        drawn += [f"<h4>{cell(part.name)}{origin}</h4>", *_part(part)]
    return document(*drawn)


def _part(definition: Definition) -> list[str]:
    return [
        window_example(definition),
        f"<pre>{'<br>'.join(cell(line) for line in _lines(repr(definition)))}</pre>",
    ]


def _lines(built: str) -> list[str]:
    """Return a call with an argument a line."""
    try:
        call = ast.parse(built, mode="eval").body
    except SyntaxError:
        return [built]
    if not isinstance(call, ast.Call):
        return [built]
    arguments = [ast.get_source_segment(built, arg) or "" for arg in call.args]
    arguments += [f"{k.arg}={ast.get_source_segment(built, k.value)}" for k in call.keywords]
    return [f"{ast.get_source_segment(built, call.func)}(", *(f"    {text}," for text in arguments), ")"]


def window_example(definition: Definition) -> str:
    """Draw example windows of an operator, and when it emits; empty where it has none, or they depend on the messages."""
    window: Any = getattr(definition, "window", None) or getattr(definition, "frame", None)
    title = f"Example windows of {definition.name}"
    match window:
        case Tuples(size=size, step=step):
            numbers = sorted({w for n in range(1, 2 * size + step) for w in tuple_windows_of(window, n)})[:6]
            spans = [Span(w.first, w.last + 1, repr(w)) for w in numbers]
            return windows_picture(spans, title=title, description=repr(window), numbers=True)
        case Sliding(before_us=before, after_us=after):
            return _around(-(before or DAY_US), after if after is not None else DAY_US, title, repr(window))
        case RangeBetween(start_us=start, end_us=end):
            return _around(start, end, title, repr(window))
        case Session() if window.own_gap is None:
            return _sessions(definition, window.gap_us, title)
        case Tumbling() | Hopping() | Calendar():
            return _emitting(definition, _consecutive(window), title)
    return ""


def _around(start_us: int, end_us: int, title: str, description: str) -> str:
    """Draw the range around one message that is joined or aggregated with it."""
    span = Span(BEGIN_US + start_us, BEGIN_US + max(end_us, 1), description)
    return windows_picture([span], title=title, description=description, dots=[Dot(BEGIN_US, "a message")])


def _sessions(definition: Definition, gap_us: int, title: str) -> str:
    """Draw two sessions: messages no further apart than the gap, and one after it."""
    times = [BEGIN_US + gap_us * n // 10 for n in (0, 6, 11, 32)]
    sessions = [Window(times[0], times[2] + gap_us), Window(times[3], times[3] + gap_us)]
    dots = [Dot(time, "a message") for time in times]
    described = f"Messages at most {show_duration(gap_us)} apart are one session, which ends that long after its last one."
    messages = windows_picture(
        [Span(w.start_us, w.end_us, f"session {n + 1}") for n, w in enumerate(sessions)],
        title=title,
        description=described,
        dots=dots,
    )
    return messages + _emitting(definition, sessions, f"Panes of {definition.name}")


def _consecutive(window: Tumbling | Hopping | Calendar) -> list[Window]:
    """Return some windows, one after the other."""
    windows: list[Window] = []
    time_us = BEGIN_US
    while len(windows) < (5 if isinstance(window, Hopping) else 3):
        assigned = windows_of(window, time_us)
        windows += [w for w in assigned if w not in windows]
        time_us = max([w.start_us for w in assigned], default=time_us) + _hop(window, assigned)
    return windows[:5]


def _hop(window: Tumbling | Hopping | Calendar, found: Sequence[Window]) -> int:
    if isinstance(window, Hopping):
        return window.hop_us
    return found[-1].end_us - found[-1].start_us


def _emitting(definition: Definition, windows: Sequence[Window], title: str) -> str:
    """Draw windows with the panes that they emit as the watermark passes."""
    emit = getattr(definition, "emit", None)
    lateness = getattr(definition, "allowed_lateness_us", 0)
    rows = []
    for window in windows:
        size = window.end_us - window.start_us
        drawn_lateness = min(lateness, size)
        until = window.end_us + drawn_lateness if lateness else None
        span = Span(window.start_us, window.end_us, repr(window), until=until)
        rows.append((span, _panes(emit, window, drawn_lateness) if isinstance(emit, Emit) else []))
    description = "" if emit is None else f"The watermark moves to the right; {emit!r}."
    if lateness > windows[0].end_us - windows[0].start_us:
        description += " Late messages are accepted for longer than is drawn."
    return timeline_picture(rows, title=title, description=description)


def _panes(emit: Emit, window: Window, lateness_us: int) -> list[Emission]:
    """Return the panes of an example window, each at the watermark at which it is due."""
    size = window.end_us - window.start_us
    panes = []
    match emit.early:
        case Never():
            pass
        case EveryPeriod(period_us=period) if size // period <= _MOST_MARKS:
            first = -(-(window.start_us + 1) // period) * period
            panes += [Emission(at, "early", repr(emit.early)) for at in range(first, window.end_us, period)]
        case trigger:
            panes.append(Emission(window.start_us + size // 2, "early", repr(trigger)))
    if emit.on_time:
        panes.append(Emission(window.end_us, "on-time", "as the watermark passes the end of the window"))
    if lateness_us and not isinstance(emit.late, Never):
        panes.append(Emission(window.end_us + lateness_us // 2, "late", repr(emit.late)))
    if emit.closing_pane:
        panes.append(
            Emission(window.end_us + lateness_us, "late" if lateness_us else "on-time", "as it closes")
        )
    return panes
