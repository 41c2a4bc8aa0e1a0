"""`windrow dead-letters`: messages that a job could not count, by reason, each with the operator that could not."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts
from windrow.testing import ManualClock

Run = Callable[..., Said]


def filled(path: Path) -> str:
    """A job of two operators that take one input: both judge each message."""
    late = {"watermark": "0 seconds", "allowed_lateness": "0 seconds"}
    hours = counts(name="hours", window=wr.tumbling("1 hour"), **late)
    tens = counts(name="tens", **late)
    with wr.open([hours, tens], str(path / "job"), clock=ManualClock()) as op:
        for i, t in enumerate([25_000_000, "no time", 0, None]):
            op.add_message(wr.Message({"k": "a", "x": i, "t": t}, wr.Position("topic", 0, i)))
        op.flush()
        assert [(x.operator, x.reason, x.position.offset) for x in op.dead_letters() if x.position] == [
            ("hours", "malformed", 1), ("tens", "malformed", 1), ("tens", "too_late", 2),
            ("hours", "malformed", 3), ("tens", "malformed", 3),
        ]  # fmt: skip
        letters = op.dead_letters()
    with wr.read_state(str(path / "job")) as state:
        assert state.dead_letters() == letters
    return str(path / "job")


def test_dead_letters_are_listed_by_reason_with_operator_and_payload(windrow: Run, tmp_path: Path) -> None:
    job = filled(tmp_path)
    code, out, err = windrow("dead-letters", job)
    assert (code, err) == (0, "")
    malformed, too_late = out.split("\n\n")
    first, head, *rows = malformed.splitlines()
    assert first == "malformed: 4" and len(rows) == 4
    assert head.split() == ["operator", "commit", "position", "detail", "payload"]
    assert rows[0].startswith("hours") and "topic/0 1" in rows[0] and '"t": "no time"' in rows[0]
    first, head, row = too_late.splitlines()
    assert first == "too_late: 1" and row.startswith("tens") and "1970-01-01 00:00" in row


def test_the_warning_of_dead_letters_has_the_command_that_lists_them(
    windrow: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    [command] = set(re.findall("look='windrow ([^']*)'", caplog.text))
    assert windrow(*shlex.split(command)).out.startswith("malformed: 4")


def test_a_lost_file_of_dead_letters_is_warned_of_wherever_they_are_listed(
    windrow: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = filled(tmp_path)
    for path in (tmp_path / "job" / "dead").iterdir():
        path.unlink()
    with wr.read_state(job) as state:
        for listed in (state.dead_letters, state.dead_letters_table):
            caplog.clear()
            assert len(listed()) == 0
            assert "dead letters are gone" in caplog.text and "windrow verify" in caplog.text
    caplog.clear()
    windrow("dead-letters", job)
    assert "dead letters are gone" in caplog.text


def test_dead_letters_can_be_narrowed_down_and_are_json_for_programs(windrow: Run, tmp_path: Path) -> None:
    job = filled(tmp_path)
    lines = windrow("dead-letters", job, "--json").lines
    assert [line["reason"] for line in lines] == ["malformed"] * 4 + ["too_late"]
    lines = windrow("dead-letters", job, "--reason", "malformed", "--operator", "tens", "--json").lines
    assert [(line["operator"], line["offset"]) for line in lines] == [("tens", 1), ("tens", 3)]
    out = windrow("dead-letters", job, "--last", "1").out
    assert out.startswith("malformed: 4\n") and len(out.splitlines()) == 7
    said = windrow("dead-letters", job, "--operator", "tons")
    assert said.code == 1 and "--operator tons: the operators are ['hours', 'tens']" in said.err


def test_a_job_without_dead_letters_prints_nothing(windrow: Run, tmp_path: Path) -> None:
    with counts().open(str(tmp_path / "job")):
        pass
    assert windrow("dead-letters", tmp_path / "job") == Said(0, "", "")
