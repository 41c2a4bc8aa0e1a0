"""README's way from a broker to panes on a topic, as it is printed there."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

import windrow as wr

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme_goes_from_a_broker_to_panes_on_a_topic(
    kafka: wr.Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = README.read_text(encoding="utf-8").partition("## Kafka to Kafka, exactly once")[2]
    blocks = re.findall(r"```(python|text)\n(.*?)```", section, re.DOTALL)[:2]
    (_, program), (_, printed) = blocks
    name = uuid.uuid4().hex
    for topic in ("flights", "delays"):
        program = program.replace(f'"{topic}",', f'"{topic}-{name}",').replace(
            f'"{topic}")', f'"{topic}-{name}")'
        )
        program = program.replace(f'["{topic}"]', f'["{topic}-{name}"]')
    monkeypatch.chdir(tmp_path)
    exec(program.replace("localhost:9092", kafka.servers), {})
    assert capsys.readouterr().out.splitlines()[-1] == printed.strip()
