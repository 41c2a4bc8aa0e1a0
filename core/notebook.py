"""HTML of values in notebooks: pictures of panes and windows over a table of them, both cut with a notice.

Values come as they are: `windrow.core.messages`, whose values show themselves by this module, is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from windrow.core.time import show_instant
from windrow.drawing.steps import EmittedWindow, Step, steps_picture
from windrow.drawing.timeline import Span, timeline_picture

#: So many items have a place in a picture and in a table; the others are counted.
MOST = 20
#: Longer text is cut.
MOST_TEXT = 200
STYLE = "text-align: left; vertical-align: top; white-space: pre-wrap"


def document(*parts: str) -> str:
    """Return parts as one block."""
    return f"<div>{''.join(parts)}</div>"


def cell(value: Any) -> str:
    """Format a value for people: a position of a message is one word."""
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        place = value._asdict()
        text = f"{place['source'] or '(no source)'}/{place['partition']} {place['offset']}"
    return escape(text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…")


def table(rows: Sequence[Mapping[str, Any]], total: int | None = None, noun: str = "row") -> str:
    """Return rows as a table. total: how many there are, where these are the first of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th scope="col" style="{STYLE}">{cell(name)}</th>' for name in columns)
    lines = "".join(
        "<tr>" + "".join(f'<td style="{STYLE}">{cell(row.get(name))}</td>' for name in columns) + "</tr>"
        for row in rows
    )
    listed = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>" if rows else ""
    return listed + notice(len(rows), len(rows) if total is None else total, noun)


def notice(shown: int, total: int, noun: str) -> str:
    """Return how many items are left out, or that there is none."""
    if total == 0:
        return f"<p>no {noun}s</p>"
    return f"<p>{total - shown:,} more {noun}s are not listed</p>" if total > shown else ""


def facts(pairs: Mapping[str, Any]) -> str:
    """Return names and values, a line each; empty ones are left out."""
    lines = "".join(
        f'<tr><th scope="row" style="{STYLE}">{cell(name)}</th><td style="{STYLE}">{cell(value)}</td></tr>'
        for name, value in pairs.items()
        if value not in (None, "", (), {})
    )
    return f"<table><tbody>{lines}</tbody></table>"


def words(values: Mapping[str, Any]) -> str:
    """Return names and values as one line."""
    return " ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def timing_of(timing: str, kind: str) -> str:
    """Return the timing of a pane as pictures name it."""
    return "retracted" if kind == "RETRACT" else timing.lower().replace("_", "-")


def bounds(window: Any) -> tuple[int, int]:
    """Return a window as a range without its end."""
    if _is_numbered(window):
        return window.first, window.last + 1
    return window.start_us, window.end_us


def _is_numbered(window: Any) -> bool:
    """True for a window of sequence numbers."""
    return hasattr(window, "first")


def emitted_window(pane: Any) -> EmittedWindow:
    """Return a pane as pictures take it."""
    label = " ".join([*map(str, pane.key.values()), f"#{pane.index}", words(pane.values)])
    return EmittedWindow(*bounds(pane.window), timing_of(pane.timing, pane.kind), label, str(pane))


def panes_picture(panes: Sequence[Any]) -> str:
    """Draw panes, each as a bar over its window."""
    steps = [
        Step("" if p.commit < 0 else f"commit {p.commit}", None, None, [emitted_window(p)]) for p in panes
    ]
    listed = "; ".join(map(str, panes))
    numbers = _is_numbered(panes[0].window)
    return steps_picture(steps, title=f"{len(panes)} panes", description=listed, numbers=numbers)


def windows_timeline(windows: Sequence[Any]) -> str:
    """Draw windows on a time axis, each in a lane of its own."""
    rows = [
        (
            Span(
                *bounds(w.window),
                words(w.values),
                " ".join(map(str, w.key.values())),
                f"{w.window!r} {words(w.key)}: {words(w.values)}, {w.messages} messages, {w.panes} panes",
                not w.fired,
            ),
            (),
        )
        for w in windows
    ]
    listed = "; ".join(span.detail for span, _ in rows)
    numbers = _is_numbered(windows[0].window)
    return timeline_picture(rows, title=f"{len(windows)} windows", description=listed, numbers=numbers)


def of_items(items: Iterable[Any], total: int) -> str:
    """Return the HTML of a list of panes, rows, windows or messages, of which `items` are the first."""
    shown = list(items)
    rows = [row_of(item) for item in shown]
    first = shown[0] if shown else None
    noun = "row" if not hasattr(first, "window") else "pane" if hasattr(first, "timing") else "window"
    drawn = ""
    if shown and noun != "row":
        drawn = panes_picture(shown) if noun == "pane" else windows_timeline(shown)
    return document(drawn, table(rows, total, noun))


def row_of(item: Any) -> dict[str, Any]:
    """Return an item as a line of a table: the fields of its mappings are columns."""
    if isinstance(item, Mapping):
        return dict(item)
    if not hasattr(item, "__dataclass_fields__"):
        return {"": item}
    row: dict[str, Any] = {}
    for name in item.__dataclass_fields__:
        value = getattr(item, name)
        if name == "token":
            continue
        if isinstance(value, Mapping):
            row |= value
        elif name == "event_time_us":
            row["event time"] = None if value is None else show_instant(value)
        else:
            row[name] = value
    return row
