"""docs/reference/formats.md is true: what it shows of the topics is what is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windrow.connectors.kafka.changelog import encode_key, encode_marker
from windrow.connectors.kafka.segments import encode_chunk

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
WRITTEN = {
    "log-chunk": encode_chunk("segments/7-2-aa.seg", 0, 2, b"hay"),
    "log-copied-key": encode_key("w", b"\x01\x02"),
    "log-copied-marker": encode_marker("job-1", 2, 7),
}


def test_every_example_of_the_page_is_here() -> None:
    assert set(re.findall(r'^```hex title="(log-[a-z-]+)"$', PAGE, re.M)) == WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_the_page_shows(name: str) -> None:
    [body] = re.findall(rf'^```hex title="{name}"\n(.*?)^```$', PAGE, re.M | re.S)
    assert bytes.fromhex("".join(line.split("|")[0] for line in body.splitlines())) == WRITTEN[name]
