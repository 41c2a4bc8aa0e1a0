"""The page in Chromium: every view in both themes and widths, a live job followed, killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.console.ui.chromium import CHROMIUM, chromium
from tests.console.ui.screenshot import LOOKS, VIEWS
from tests.spark.classes import SHARED

ROOT = Path(__file__).parents[3]
AXE = SHARED / "axe-core-4.14.1.js"
#: Axe looks at each theme and each width once.
AXE_LOOKS = [("light", 1280), ("dark", 390)]
#: `windrow ui`, which says sooner that a job makes no progress.
UI = """
import sys
from windrow.console.main import main
from windrow.console.ui import job_reader

job_reader.LEAST_GAP_US = 1_000_000
main(["ui", sys.argv[1], "--port", "0"])
"""
#: The number of the commit that the page shows.
COMMIT = "() => +(document.querySelector('.status').textContent.match(/Commit (\\d+)/) ?? [0, 0])[1]"
pytestmark = pytest.mark.slow


class Live:
    """A job in a process that commits on request."""

    def __init__(self, location: Path) -> None:
        self.location = location
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, batches: int = 0) -> None:
        """Start the job, with so many commits."""
        command = (sys.executable, "-m", "tests.console.ui.live_job", str(self.location), str(batches))
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=silent, stderr=silent
        )

    def commit(self) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.kill()
            self.process.stdin.close()
            self.process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not (Path(CHROMIUM).exists() and AXE.exists()):
        pytest.fail(f"{CHROMIUM} or {AXE} is missing: run docker/browser.sh")
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A job with some commits, which runs."""
    job = Live(tmp_path_factory.mktemp("live") / "job")
    job.start(40)
    yield job
    job.kill()


@pytest.fixture(scope="module")
def address(live: Live) -> Iterator[str]:
    """Serve the job with `windrow ui` and return its address."""
    command = (sys.executable, "-c", UI, str(live.location))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        printed = server.stdout.readline().strip()
        yield f"{printed}jobs/job"
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Any]:
    """Opens a page of a theme and a width; what goes elsewhere, or wrong in it, fails the test."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []
    here = address.rpartition("/jobs/")[0]

    def new(scheme: Any = "light", width: int = 1280) -> Page:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: None if r.url.startswith(here) else wrong.append(r.url))
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        return page

    yield new
    for context in contexts:
        context.close()
    assert not wrong


def shows(page: Page, commit: int) -> None:
    """Wait until the page shows a commit."""
    page.wait_for_function(f"n => ({COMMIT})() >= n", arg=commit)


def test_every_view_is_whole_in_both_themes_and_widths(opened: Any, address: str) -> None:
    page, axe = opened(), AXE.read_text(encoding="utf-8")
    page.goto(address)
    shows(page, 40)
    for name, path in VIEWS.items():
        page.goto(address + path)
        page.evaluate(axe)
        for scheme, width in LOOKS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            expect(page.locator("h1")).to_have_count(1)
            beyond = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert beyond <= 0, f"{name} is {beyond} pixels too wide at {width}"
            if (scheme, width) in AXE_LOOKS:
                violations = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
                serious = [v for v in violations if v["impact"] in ("serious", "critical")]
                assert not serious, (name, [(v["id"], v["nodes"][0]["html"][:200]) for v in serious])


def test_the_page_follows_ten_commits_and_keeps_focus_and_text(opened: Any, address: str, live: Live) -> None:
    page = opened()
    page.goto(f"{address}/table?operator=delays&table=windows")
    page.locator("#contains").focus()
    page.keyboard.type("JF")
    begun = page.evaluate(COMMIT)
    for number in range(begun + 1, begun + 11):
        live.commit()
        shows(page, number)
    assert page.evaluate("document.activeElement.id") == "contains"
    page.keyboard.type("K")
    page.keyboard.press("Enter")
    expect(page.locator(".count")).to_contain_text("rows")
    assert "contains=JFK" in page.url
    assert set(page.locator("tbody td:nth-child(2)").all_inner_texts()) == {"JFK"}
    live.commit()
    shows(page, begun + 11)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "contains"


def test_by_keyboard_a_window_leads_to_its_explanation_and_back(opened: Any, address: str) -> None:
    page = opened()
    page.goto(f"{address}/table?operator=delays&table=windows&page=1")
    page.locator("tbody tr:first-child a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Explain")
    expect(page.locator(".explanation")).to_have_count(1)
    page.go_back()
    expect(page.locator("h1")).to_contain_text("Windows")


def test_a_look_back_stays_at_its_commit(opened: Any, address: str) -> None:
    page = opened()
    page.goto(f"{address}/table?operator=delays&table=windows")
    slider = page.locator("#as_of")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator(".banner").first).to_contain_text("As of commit")
    expect(page.locator("[data-events]")).to_have_count(0)
    page.locator(".banner a").first.click()
    expect(page.locator("[data-events]")).to_have_count(1)


def test_a_job_that_is_killed_is_said_to_stand_still_until_it_is_started_again(
    opened: Any, address: str, live: Live
) -> None:
    page = opened()
    page.goto(f"{address}/table?operator=delays&table=windows")
    page.locator("#contains").focus()
    live.kill()
    expect(page.locator(".status")).to_contain_text("none since", timeout=60_000)
    expect(page.locator(".banner.bad")).to_contain_text("no progress since")
    assert page.evaluate("document.activeElement.id") == "contains", "the banner moved what follows it"
    before = page.evaluate(COMMIT)
    live.start(1)
    shows(page, before + 1)
    expect(page.locator(".banner.bad")).to_have_count(0)
