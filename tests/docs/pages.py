"""Pages that are written from code and tests: `make pages` writes them; a test fails where one says something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import api, pictures, references, statements

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "assets/first-job.svg": pictures.first_job_picture,
    "assets/watermark.svg": pictures.watermark_picture,
    "reference/errors.md": references.errors_page,
    "reference/cli.md": references.commands_page,
    "reference/metrics.md": references.metrics_page,
    **api.pages(),
    **statements.pages(),
}

if __name__ == "__main__":
    for folder in (api.FOLDER, statements.FOLDER):
        (DOCS / folder).mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
