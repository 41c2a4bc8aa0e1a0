"""Pages of docs/reference that draw the bytes of persisted values, and their examples."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGES = ("formats", "formats-windows", "formats-operators")
_BLOCK = re.compile(r'^```hex title="([a-z0-9-]+)"\n(.*?)^```$', re.M | re.S)


@cache
def examples_of_formats() -> dict[str, bytes]:
    """Return the bytes of every named example."""
    folder = Path(__file__).parents[1] / "docs" / "reference"
    blocks = _BLOCK.findall("".join((folder / f"{page}.md").read_text(encoding="utf-8") for page in PAGES))
    assert len({name for name, _ in blocks}) == len(blocks)
    return {
        name: bytes.fromhex("".join(line.split("|")[0] for line in body.splitlines()))
        for name, body in blocks
    }
