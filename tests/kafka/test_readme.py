"""The tutorial's way from a broker to panes on a topic, as it is printed there; and README's, on the same topic."""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer

import windrow as wr

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, heading: str) -> list[str]:
    """The blocks of code and of output after a heading."""
    section = (ROOT / page).read_text(encoding="utf-8").partition(heading)[2]
    return [block for _, block in re.findall(r"```(python|text)\n(.*?)```", section, re.DOTALL)]


def test_tutorial_and_readme_go_from_a_broker_to_panes_on_a_topic(
    kafka: wr.Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = uuid.uuid4().hex

    def run(program: str, sink: str) -> None:
        for topic, now in (("flights", f"flights-{name}"), ("delays", sink)):
            program = re.sub(rf'(?<=[(\[ ])"{topic}"(?=[,)\]])', f'"{now}"', program)
        exec(program.replace("localhost:9092", kafka.servers), namespace)

    namespace: dict[str, object] = {}
    program, printed, *_ = blocks("docs/tutorial/kafka-to-kafka.md", "## The job")
    run(program, f"delays-{name}")
    assert capsys.readouterr().out.splitlines()[-1] == printed.strip()

    folder = (
        tmp_path / "readme"
    )  # in that of the tutorial it would go on where the tutorial's job ended, with nothing to read
    folder.mkdir()
    monkeypatch.chdir(folder)
    namespace = {}
    run(blocks("README.md", "## In a Python process")[0], "")
    lines = blocks("README.md", "## Kafka to Kafka, exactly once")[0]
    run(lines.replace(")  # until Ctrl-C", ", available_now=True)"), f"readme-{name}")
    said, expected = json.loads(first_record(kafka, f"readme-{name}")), json.loads(printed)
    assert {**said, "commit": 0} == {**expected, "commit": 0}


def first_record(kafka: wr.Kafka, topic: str) -> bytes:
    """Read the first record of a topic, or fail after a minute."""
    settings = kafka.settings(group_id=topic, isolation_level="read_committed", auto_offset_reset="earliest")
    reader, notice, until = Consumer(settings), None, time.monotonic() + 60
    reader.subscribe([topic])
    try:
        while time.monotonic() < until:
            if (record := reader.poll(1)) is not None and not (notice := record.error()):
                return record.value() or b""
    finally:
        reader.close()
    pytest.fail(f"no record came to {topic} within a minute; the last notice of the client: {notice}")
