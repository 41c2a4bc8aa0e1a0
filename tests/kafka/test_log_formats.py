"""Topics of a log, as docs/reference/formats.md shows them."""

from __future__ import annotations

import pytest

from tests.format_pages import examples_of_formats
from windrow.connectors.kafka.changelog import encode_key, encode_marker
from windrow.connectors.kafka.segments import encode_chunk

WRITTEN = {
    "log-chunk": encode_chunk("segments/7-2-aa.seg", 0, 2, b"hay"),
    "log-copied-key": encode_key("w", b"\x01\x02"),
    "log-copied-marker": encode_marker("job-1", 2, 7),
}


def test_every_example_of_the_page_is_here() -> None:
    assert {name for name in examples_of_formats() if name.startswith("log-")} == WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_the_page_shows(name: str) -> None:
    assert examples_of_formats()[name] == WRITTEN[name]
