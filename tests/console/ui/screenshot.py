"""Pictures of the page: `python -m tests.console.ui.screenshot` writes those of the documentation; with a folder, every view in
both themes and widths into it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.console.ui.chromium import chromium

ROOT = Path(__file__).parents[3]
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]
#: Name -> the view, after the address of the job.
VIEWS = {
    "overview": "",
    "windows": "/table?operator=delays&table=windows&order=delay&down=1",
    "messages": "/table?operator=delays&table=messages",
    "panes": "/table?operator=delays&table=panes",
    "keys": "/timeline?operator=delays",
    "timeline": "/timeline?operator=delays&k.origin=JFK&k.carrier=B6",
    "commits": "/commits",
    "watermark": "/watermark",
    "dead letters": "/dead-letters",
    "explain": "/explain",
    "empty": "/table?operator=delays&table=windows&contains=nobody",
    "error": "/table?operator=none&table=windows",
}
#: Pictures of the documentation.
PICTURES = {"page.png": "overview", "page-timeline.png": "timeline"}


def main(folder: str | None = None) -> None:
    """Write the pictures of a job with 120 commits."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        job = [sys.executable, "-m", "tests.console.ui.live_job", f"{place}/ckpt/flights", "120"]
        running = stack.enter_context(subprocess.Popen(job, cwd=ROOT, stdin=subprocess.PIPE))
        stack.callback(running.kill)
        serve = [sys.executable, "-m", "windrow.console.main", "ui", "ckpt/flights", "--port", "0"]
        server = stack.enter_context(subprocess.Popen(serve, cwd=place, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        page = stack.enter_context(chromium()).new_page()
        page.set_default_timeout(120_000)
        assert server.stdout is not None
        address = f"{server.stdout.readline().strip()}jobs/flights"
        page.goto(address)
        page.wait_for_function("() => document.querySelector('.status').textContent.startsWith('Commit 120')")
        for name, view in PICTURES.items() if folder is None else ():
            taken(page, address + VIEWS[view], "light", 1280, ROOT / "docs" / "assets" / name, whole=False)
        if folder is not None:
            page.goto(f"{address}/table?operator=delays&table=windows")
            explained = page.locator("td a[href*=explain]").first.get_attribute("href") or ""
            views = {**VIEWS, "explained": explained.removeprefix("/jobs/flights"), "as of": "?as_of=110"}
            for name, view in views.items():
                for scheme, width in LOOKS:
                    file = Path(folder) / f"{name.replace(' ', '-')}-{scheme}-{width}.png"
                    taken(page, address + view, scheme, width, file, whole=True)


def taken(page: Any, address: str, scheme: str, width: int, file: Path, *, whole: bool) -> None:
    """Write the picture of a view."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 920})
    page.goto(address)
    page.screenshot(path=file, full_page=whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
