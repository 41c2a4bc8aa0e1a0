"""HTML of jobs in notebooks: an open operator or a read state, with its progress and the windows that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windrow.core.messages import WindowInfo
from windrow.core.notebook import MOST, cell, document, facts, notice, windows_timeline
from windrow.core.time import show_instant
from windrow.operators.operator import Definition


def job_html(
    title: str,
    progress: Mapping[str, Any],
    watermarks: Mapping[str, int],
    definitions: Sequence[Definition],
    windows: Callable[[str], Sequence[WindowInfo]],
) -> str:
    """Return a job as HTML: its progress, and the newest windows of each operator that has windows of its own.

    windows: returns those of an operator, in order
    """
    marks = "\n".join(f"{name}: {show_instant(us)}" for name, us in watermarks.items())
    parts = [f"<p><strong>{cell(title)}</strong></p>", facts({**progress, "watermark": marks})]
    for definition in definitions:
        if "windows" not in definition.tables or len(definition.inputs) > 1:
            continue
        infos = windows(definition.name)
        newest = infos[-MOST:]
        count = f", the newest {len(newest)} of {len(infos):,}" if len(infos) > len(newest) else ""
        parts.append(f"<p>Windows of {cell(definition.name)}{count}</p>")
        parts.append(windows_timeline(newest) if newest else notice(0, 0, "window"))
    return document(*parts)
