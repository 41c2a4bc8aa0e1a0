"""Debian's Chromium, which Playwright drives; it asks nothing of the network by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"
OFF = ("gpu", "background-networking", "component-update", "sync")
SWITCHES = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in OFF)]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        try:
            yield browser
        finally:
            browser.close()
