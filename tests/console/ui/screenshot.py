"""The pictures of the page in the documentation: `python -m tests.console.ui.screenshot` writes them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.console.ui.chromium import chromium

ROOT = Path(__file__).parents[3]
#: Name of the picture -> the view.
PICTURES = {
    "page.png": "",
    "page-timeline.png": "/timeline?operator=delays&k.origin=JFK&k.carrier=B6",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        job = partial(command, "tests.console.ui.live_job", f"{folder}/ckpt/flights")
        subprocess.run(job("120", "0"), cwd=ROOT, check=True)
        running = stack.enter_context(subprocess.Popen(job("10000", "1"), cwd=ROOT))
        stack.callback(running.kill)
        serve = command("windrow.console.main", "ui", "ckpt/flights", "--port", "0")
        server = stack.enter_context(subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        browser = stack.enter_context(chromium())
        assert server.stdout is not None
        address = f"{server.stdout.readline().strip()}jobs/flights"
        for name, view in PICTURES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 920}, color_scheme="light")
            page.goto(address + view)
            page.wait_for_function("() => document.querySelector('.status').textContent.startsWith('Commit')")
            page.screenshot(path=ROOT / "docs" / "assets" / name)


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


if __name__ == "__main__":
    main()
