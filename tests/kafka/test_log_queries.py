"""Queries of jobs whose log is in Kafka: what a reader anywhere is told is what the operator answered."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.console.ui.browsing import browsing
from tests.state.jobs import KINDS, SECOND, answers, begun, feed, listing
from windrow.connectors.kafka.log import KafkaLog
from windrow.connectors.kafka.topics import PartitionReader
from windrow.console.main import main
from windrow.core import errors as e
from windrow.core.show import json_text
from windrow.testing.clock import ManualClock

# -- from anywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_job_is_read_from_its_topics_alone(tmp_path: Path, log: KafkaLog, kind: str) -> None:
    definition, clock = KINDS[kind], ManualClock()
    with definition.open(str(tmp_path / "job"), log=log, clock=clock, sink=wr.sinks.memory()) as op:
        for at in range(0, 60, 20):
            feed(op, range(at, at + 20))
            clock.advance("1 second")
            op.timeout()
            with wr.read_state(log=log) as state:
                assert state.commit == op.last_commit
                assert answers(state, definition) == answers(op, definition)
                assert state.location == repr(log)
        feed(op, range(60, 70))
        op.timeout()
        state = wr.read_state(log=log, as_of=1)
        assert state.refresh() == 1
        state.close()


def test_the_page_shows_a_job_by_the_name_of_its_log_and_sends_there_from_its_local_folder(
    tmp_path: Path, log: KafkaLog
) -> None:
    named, location = f"log:{log.kafka.servers}/{log.name}", str(tmp_path / "job")
    begun(KINDS["incremental"], tmp_path / "job", range(40), log=log)
    with browsing(named, location) as reader, wr.read_state(log=log) as state:
        [operator] = state.operators
        page = reader.json("table", operator=operator, table="windows")
        assert page["rows"] == json.loads(
            json_text(
                state.windows_table().to_pylist(),
                lambda v: v.isoformat() if hasattr(v, "isoformat") else str(v),
            )
        )
        assert reader.names[0] == log.name and named in html.unescape(reader.html())
        assert len(reader.json("commits")["commits"]) == len(state.commits())
        local = html.unescape(reader.get(f"/jobs/{reader.names[1]}").text)
        assert "log:SERVERS/NAME" in local, local


@pytest.mark.parametrize("kind", ["incremental", "full state", "join"])
def test_every_commit_can_be_read_as_it_was(tmp_path: Path, log: KafkaLog, kind: str) -> None:
    history: dict[int, Any] = {}
    begun(KINDS[kind], tmp_path / "job", range(40), history, log=log)
    shutil.rmtree(tmp_path / "job")
    for commit, expected in history.items():
        with wr.read_state(log=log, as_of=commit) as state:
            assert answers(state, KINDS[kind]) == expected
    assert len({repr(expected) for expected in history.values()}) == 4


def test_where_segments_are_gone_the_changelog_serves(
    tmp_path: Path, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    begun(KINDS["incremental"], tmp_path / "job", range(30), log=log)
    history: dict[int, Any] = {}
    begun(KINDS["incremental"], tmp_path / "job", range(30, 70), history, log=log)
    assert PartitionReader(log.kafka, f"{log.name}-segments", 0).bounds()[0] > 0
    with wr.read_state(log=log) as state:
        assert answers(state, KINDS["incremental"]) == history[max(history)]
        assert state._views[0].way == "changelog"
    with pytest.raises(e.StateLost, match=r"commit 1 of .* cannot be read any more"):
        wr.read_state(log=log, as_of=1)


def test_panes_and_dead_letters_come_from_the_topics_too(tmp_path: Path, log: KafkaLog) -> None:
    definition = KINDS["incremental"]
    with definition.open(str(tmp_path / "job"), log=log, clock=ManualClock(), sink=wr.sinks.memory()) as op:
        feed(op, range(60))
        op.add_message(wr.Message({"k": "a", "t": "never", "x": 1}, wr.Position("topic", 0, 60)))
        op.timeout()
        letters = op.dead_letters()
        with wr.read_state(str(tmp_path / "job"), log=log) as state:
            panes = state.panes()
    shutil.rmtree(tmp_path / "job")
    with wr.read_state(log=log) as state:
        assert state.panes().equals(panes) and len(panes) == 15
        assert state.dead_letters() == letters and len(letters) == 1
        assert state.dead_letters_table().column("reason").to_pylist() == ["malformed"]
        [why] = state.explain(0, key="a")
        assert [(t.commit, t.messages) for t in why.commits] == [(1, 4)]


# -- beside a cache ---------------------------------------------------------------------------------------------------


def test_a_cache_is_used_and_left_alone(tmp_path: Path, log: KafkaLog) -> None:
    history: dict[int, Any] = {}
    begun(KINDS["full state"], tmp_path / "job", range(40), history, log=log)
    before = listing(tmp_path / "job")
    with wr.read_state(str(tmp_path / "job"), log=log) as state:
        assert state._views[0].way == "store"
        assert answers(state, KINDS["full state"]) == history[max(history)]
    (tmp_path / "job" / "segments").rename(tmp_path / "elsewhere")
    (tmp_path / "job" / "segments").mkdir()
    with wr.read_state(str(tmp_path / "job"), log=log, as_of=2) as state:
        assert answers(state, KINDS["full state"]) == history[2]
    assert list((tmp_path / "job" / "segments").iterdir()) == []
    (tmp_path / "job" / "segments").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "job" / "segments")
    after = listing(tmp_path / "job")
    assert {name: after[name] for name in before if name != "segments"} == {
        name: answer for name, answer in before.items() if name != "segments"
    }


def test_what_does_not_belong_together_is_refused(tmp_path: Path, log: KafkaLog, kafka: wr.Kafka) -> None:
    begun(KINDS["incremental"], tmp_path / "job", range(10), log=log)
    other = wr.kafka_log(kafka, f"{log.name}-b")
    with pytest.raises(e.JobMismatch, match="holds no job: no driver has ever opened it"):
        wr.read_state(log=other)
    begun(KINDS["incremental"], tmp_path / "other", range(10), log=other)
    with pytest.raises(e.JobMismatch, match=r"is a cache of job-.* and log=.* holds job-"):
        wr.read_state(str(tmp_path / "job"), log=other)
    with KINDS["incremental"].open(str(tmp_path / "files")):
        pass
    with pytest.raises(e.JobMismatch, match="holds the log of a job in files"):
        wr.read_state(str(tmp_path / "files"), log=log)
    with pytest.raises(e.ConfigurationError, match="neither a location nor log= is given"):
        wr.read_state()


# -- by name ----------------------------------------------------------------------------------------------------------

HERE: KafkaLog


def test_the_command_line_takes_a_log_for_a_location(
    tmp_path: Path, log: KafkaLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(KINDS["full state"], tmp_path / "job", range(40), log=log)
    named = f"log:{log.kafka.servers}/{log.name}"
    monkeypatch.setitem(globals(), "HERE", log)
    capsys.readouterr()

    def lines(*arguments: str) -> list[Any]:
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    for location in (named, f"log:{__name__}:HERE"):
        [facts] = lines("describe", location)
        assert (facts["location"], facts["commit"], facts["next_offsets"]) == (
            repr(log),
            4,
            [["topic", 0, 40]],
        )
        assert [line["rows"] for line in lines("commits", location, "--last", "2")] == [10, 10]
        assert [m["x"] for m in lines("messages", location, "--start", str(37 * SECOND))] == [37, 38, 39]
        assert {w["middle"] for w in lines("windows", location, "--key", "a", "--last", "1")} == {34.5}
        assert lines("explain", location, "1970-01-01 00:00:30", "--key", "b")[0]["messages"] == 3
    assert main(["describe", str(tmp_path / "job")]) == 1
    assert "at the command line log:SERVERS/NAME" in capsys.readouterr().err
    assert main(["windows", "log:nothing"]) == 1
    assert "write log:servers/name" in capsys.readouterr().err
    assert main(["windows", "log:json:dumps"]) == 1
    assert "name a transport" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["full state", "join"])
def test_a_watermark_is_set_back_where_the_log_is_in_kafka(
    tmp_path: Path, log: KafkaLog, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(KINDS[kind], tmp_path / "job", range(40), log=log)
    shutil.rmtree(tmp_path / "job")  # nothing of the job is on this machine
    assert main(["watermark", f"log:{log.kafka.servers}/{log.name}", "--set", str(5 * SECOND)]) == 0
    assert "to 1970-01-01 00:00:05" in capsys.readouterr().out
    with KINDS[kind].open(str(tmp_path / "job"), log=log, clock=ManualClock()) as op:
        assert op.watermark == 5 * SECOND
        feed(op, range(40, 60))
        op.timeout()
        assert op.watermark > 30 * SECOND


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_the_state_of_a_job_by_the_name_of_its_log(
    tmp_path: Path, log: KafkaLog, spark: Any
) -> None:
    begun(KINDS["full state"], tmp_path / "job", range(40), log=log)
    shutil.rmtree(tmp_path / "job")
    frame = spark.read.format("windrow").option("table", "messages")
    rows = frame.load(f"log:{log.kafka.servers}/{log.name}").orderBy("x").collect()
    assert [row.x for row in rows] == list(range(40))
