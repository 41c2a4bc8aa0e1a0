"""Pages that are written from code and tests: `make pages` writes them; a test fails where one says something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import api, features, pictures, references

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "features.md": features.page,
    "assets/watermark.svg": pictures.watermark_picture,
    "reference/api.md": api.page,
    "reference/errors.md": references.errors_page,
    "reference/cli.md": references.commands_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
