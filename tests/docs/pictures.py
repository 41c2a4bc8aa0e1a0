"""The picture of time and watermarks (docs/explanation/time.md): drawn of what a job did, so it cannot say anything else."""

from __future__ import annotations

import ast
import re
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import windrow as wr
from windrow.testing import ManualClock

JOB = wr.Aggregate(
    event_time="t",
    window=wr.tumbling("1 hour"),
    agg={"n": wr.count()},
    watermark="20 minutes",
    allowed_lateness="1 hour",
    retention="3 hours",
    emit=wr.Emit(early=wr.every("30 minutes"), late=wr.every_batch),
)
#: When a message came, and when it happened.
CAME = (
    ("05:10", "05:05"),
    ("05:20", "05:18"),
    ("05:35", "05:12"),
    ("05:50", "05:40"),
    ("06:05", "05:58"),
    ("06:10", "06:04"),
    ("06:25", "06:15"),
    ("06:35", "06:27"),
    ("06:45", "05:50"),
    ("07:00", "06:50"),
    ("07:20", "07:08"),
    ("07:30", "07:22"),
    ("07:40", "05:30"),
)
BEGIN, END, TOP = "05:00", "08:00", "07:50"
LEFT, RIGHT, BOTTOM, HIGH = 84, 644, 480, 30
STYLE = """
    .page { fill: #ffffff; } .plot { fill: #f3f6fa; } .other { fill: #e7edf4; } .axis { stroke: #8c9bab; }
    .ideal { stroke: #8c9bab; stroke-dasharray: 4 4; } .mark { stroke: #2f6fbf; stroke-width: 2.5; fill: none; }
    text { fill: #1c2733; } .soft { fill: #55636f; } .blue { fill: #2f6fbf; } .dot { fill: #1c2733; }
    .early { fill: #a8720a; } .on { fill: #2b8a50; } .late { fill: #b54e29; } .in { fill: #ffffff; font-weight: 600; }
    .dead { stroke: #b3261e; stroke-width: 2.5; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0f161d; } .plot { fill: #18212a; } .other { fill: #202b36; } .axis { stroke: #6d7d8d; }
      .ideal { stroke: #6d7d8d; } .mark { stroke: #6ea8f0; } text { fill: #e4ebf2; } .soft { fill: #a9b7c4; }
      .blue { fill: #6ea8f0; } .dot { fill: #e4ebf2; } .in { fill: #ffffff; } .dead { stroke: #ff8a80; }
    }
"""
SHADE = {"EARLY": "early", "ON_TIME": "on", "LATE": "late"}


@dataclass
class Seen:
    """Trace of a job: its watermark after each message, its panes, and the messages that it could not count."""

    marks: list[tuple[datetime, datetime]] = field(default_factory=list)
    panes: list[tuple[datetime, wr.Pane]] = field(default_factory=list)
    dead: set[datetime] = field(default_factory=set)


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2013-07-01T{time}:00+00:00")


def run() -> Seen:
    """Run the job on CAME."""
    seen, clock = Seen(), ManualClock(at(BEGIN))
    with tempfile.TemporaryDirectory() as folder, JOB.open(folder, clock=clock) as op:
        for came, happened in CAME:
            clock.set(at(came))
            op.add_message({"t": at(happened)})
            op.timeout()
            seen.panes += [(at(came), pane) for pane in op.get_result()]
            op.flush()
            seen.marks.append((at(came), datetime.fromtimestamp(op.watermark / 1e6, UTC)))
        seen.dead = {
            datetime.fromtimestamp(letter.event_time_us / 1e6, UTC)
            for letter in op.dead_letters()
            if letter.event_time_us is not None
        }
    return seen


def x(time: datetime) -> float:
    return round(LEFT + (RIGHT - LEFT) * ((time - at(BEGIN)) / (at(END) - at(BEGIN))), 1)


def y(time: datetime) -> float:
    return round(BOTTOM - (BOTTOM - HIGH) * ((time - at(BEGIN)) / (at(TOP) - at(BEGIN))), 1)


def windows() -> list[str]:
    """A band for each window, and the axes."""
    drawn = []
    for n, hour in enumerate((at("05:00"), at("06:00"), at("07:00"))):
        left, right = x(hour), x(hour + timedelta(hours=1))
        shade = "other" if n % 2 else "plot"
        drawn.append(
            f'<rect class="{shade}" x="{left}" y="{HIGH}" width="{right - left:.1f}" height="{BOTTOM - HIGH}"/>'
        )
        drawn.append(
            f'<text class="soft" x="{(left + right) / 2:.1f}" y="{BOTTOM + 40}" text-anchor="middle">window</text>'
        )
    for time in ("05:00", "06:00", "07:00", "08:00"):
        drawn.append(f'<text x="{x(at(time))}" y="{BOTTOM + 20}" text-anchor="middle">{time}</text>')
    for time in ("05:00", "05:30", "06:00", "06:30", "07:00", "07:30"):
        drawn.append(f'<text x="{LEFT - 10}" y="{y(at(time)) + 4}" text-anchor="end">{time}</text>')
    drawn.append(f'<path class="axis" d="M{LEFT} {HIGH}V{BOTTOM}H{RIGHT}" fill="none"/>')
    across, up = (LEFT + RIGHT) // 2, (HIGH + BOTTOM) // 2
    for text, place in (
        ("event time: when it happened", f'x="{across}" y="{BOTTOM + 62}"'),
        ("now: when it came", f'x="24" y="{up}" transform="rotate(-90 24 {up})"'),
    ):
        drawn.append(f'<text class="soft" text-anchor="middle" {place}>{text}</text>')
    return drawn


def watermark(seen: Seen) -> list[str]:
    """The line of what happens to be now, and the watermark behind it."""
    (first, mark), *later = seen.marks
    path = f"M{x(max(mark, at(BEGIN)))} {y(first)}"
    for now, mark in later:
        path += f"V{y(now)}H{x(max(mark, at(BEGIN)))}"
    ideal = f"M{x(at(BEGIN))} {y(at(BEGIN))}L{x(at(TOP))} {y(at(TOP))}"
    return [
        f'<path class="ideal" d="{ideal}" fill="none"/>',
        f'<path class="mark" d="{path}V{y(at(TOP))}"/>',
    ]


def messages(seen: Seen) -> list[str]:
    """A dot for each message, a cross for each that could not be counted."""
    drawn = []
    for came, happened in CAME:
        right, up = x(at(happened)), y(at(came))
        if at(happened) in seen.dead:
            drawn.append(
                f'<path class="dead" d="M{right - 5} {up - 5}l10 10m0 -10l-10 10"/>'
                f'<text x="{right + 10}" y="{up + 4}">dead letter: too late</text>'
            )
        else:
            drawn.append(
                f'<circle class="dot" cx="{right}" cy="{up}" r="4.5"><title>{happened}, came {came}</title></circle>'
            )
    return drawn


def panes(seen: Seen) -> list[str]:
    """Draw each pane in the band of its window at the time of its emission."""
    drawn = []
    for now, pane in seen.panes:
        assert isinstance(pane.window, wr.Window)
        middle, up = x(pane.window.start + timedelta(minutes=30)), y(now) - 24
        drawn.append(
            f'<rect class="{SHADE[pane.timing]}" x="{middle - 52:.1f}" y="{up:.1f}" width="104" height="18" rx="4"/>'
            f'<text class="in" x="{middle:.1f}" y="{up + 13:.1f}" text-anchor="middle" font-size="11.5">'
            f"{pane.timing} n={pane['n']}</text>"
        )
    return drawn


def legend() -> list[str]:
    left = RIGHT + 24
    lines = [
        ('<circle class="dot" cx="{x}" cy="{y}" r="4.5"/>', "a message"),
        ('<path class="mark" d="M{x} {y}m-8 0h16"/>', "watermark: newest event"),
        ("", "time so far, less 20 minutes"),
        ('<path class="ideal" d="M{x} {y}m-8 0h16" fill="none"/>', "now: nothing can lie"),
        ("", "to the right of it"),
        ('<rect class="early" x="{l}" y="{t}" width="16" height="10" rx="2"/>', "pane before the watermark"),
        ("", "passes the end of its window"),
        ('<rect class="on" x="{l}" y="{t}" width="16" height="10" rx="2"/>', "pane when it does"),
        ('<rect class="late" x="{l}" y="{t}" width="16" height="10" rx="2"/>', "pane after that"),
    ]
    drawn = []
    for n, (sign, text) in enumerate(lines):
        up = 60 + 24 * n
        drawn.append(sign.format(x=left, y=up, l=left - 8, t=up - 5))
        drawn.append(f'<text class="soft" x="{left + 18}" y="{up + 4}">{text}</text>')
    return drawn


def watermark_picture() -> str:
    """The picture, as SVG."""
    seen = run()
    drawn = [*windows(), *watermark(seen), *panes(seen), *messages(seen), *legend()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 560" role="img" aria-label="Messages, watermark and panes" '
        f'font-family="-apple-system, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="13">\n'
        f"  <!-- Written by `make pages` from what the job in tests/docs/pictures.py did. -->\n"
        f'  <style>{STYLE}  </style>\n  <rect class="page" width="880" height="560" rx="10"/>\n  '
        + "\n  ".join(line for line in drawn if line)
        + "\n</svg>\n"
    )


def first_job_picture() -> str:
    """The picture of docs/tutorial/first-job.md, by the code of the page that makes it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-job.md").read_text("utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```\n", page, re.M | re.S)[:6])
    wanted = ("import windrow", "delays =", "def flight", "flights =")
    body = [node for node in ast.parse(code).body if ast.unparse(node).startswith(wanted)]
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), "first-job.md", "exec"), namespace)
    return str(namespace["delays"].plot(namespace["flights"]))
