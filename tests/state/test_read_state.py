"""`wr.read_state`: what it answers is what the operator itself answered after that commit, and nobody notices."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.state.jobs import JOIN, KINDS, SECOND, Elsewhere, aggregate, answers, begun, feed, listing
from windrow.core import errors as e
from windrow.runners.state import reader
from windrow.testing.clock import ManualClock


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    """One process, which reads one job after the other."""
    process = Elsewhere()
    yield process
    process.close()


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_reads_a_live_store_as_of_its_last_commit(
    tmp_path: Path, kind: str, elsewhere: Elsewhere
) -> None:
    definition, clock = KINDS[kind], ManualClock()
    with definition.open(str(tmp_path / "job"), clock=clock, sink=wr.sinks.memory()) as op:
        for at in range(0, 60, 10):
            if at == 30:
                op.engine.shard.kv.flush()  # what is on disk is somewhere in between
            feed(op, range(at, at + 10))
            clock.advance("1 second")
            op.timeout()
            before = listing(tmp_path / "job")
            said = elsewhere.ask(tmp_path / "job", kind)
            assert said == {"commit": op.last_commit, "answers": answers(op, definition)}
            assert listing(tmp_path / "job") == before
    assert any("StoredMessage" in t or "WindowInfo" in t for t in said["answers"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_retained_commit_can_be_read_as_it_was(tmp_path: Path, kind: str) -> None:
    history: dict[int, Any] = {}
    begun(KINDS[kind], tmp_path / "job", range(60), history)
    before = listing(tmp_path / "job")
    for commit, expected in history.items():
        with wr.read_state(str(tmp_path / "job"), as_of=commit) as state:
            assert state.commit == commit
            assert answers(state, KINDS[kind]) == expected
    assert len(history) == 6 and len({repr(h) for h in history.values()}) == 6
    assert listing(tmp_path / "job") == before


@pytest.mark.parametrize("kind", ["incremental", "full state", "join"])
@pytest.mark.parametrize("lost", ["store", "store and its head", "store and segments"])
def test_without_the_store_snapshots_and_segments_show(
    tmp_path: Path, kind: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1 if lost == "store and segments" else 100)
    history: dict[int, Any] = {}
    begun(KINDS[kind], tmp_path / "job", range(60), history)
    if lost == "store and its head":
        (tmp_path / "job" / "local" / "shard-0000" / "CURRENT").unlink()
    else:
        shutil.rmtree(tmp_path / "job" / "local")
    before = listing(tmp_path / "job")
    with wr.read_state(str(tmp_path / "job")) as state:
        assert answers(state, KINDS[kind]) == history[max(history)]
        assert state._views[0].way == "snapshot"
    assert listing(tmp_path / "job") == before


def test_a_damaged_store_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    history: dict[int, Any] = {}
    begun(KINDS["full state"], tmp_path / "job", range(60), history)
    for file in (tmp_path / "job" / "local" / "shard-0000").glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[len(data) // 4] ^= 0xFF
        file.write_bytes(data)
    before = listing(tmp_path / "job")
    with wr.read_state(str(tmp_path / "job")) as state:
        assert answers(state, KINDS["full state"]) == history[max(history)]
        assert state._views[0].way == "segments"
    assert listing(tmp_path / "job") == before


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    history: dict[int, Any] = {}
    begun(KINDS["full state"], tmp_path / "job", range(60), history)
    shutil.rmtree(tmp_path / "job" / "local")
    *_, newest = sorted((tmp_path / "job" / "snapshots" / "manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    with wr.read_state(str(tmp_path / "job")) as state:
        assert answers(state, KINDS["full state"]) == history[max(history)]
        assert (state._views[0].way, state._views[0].base) == ("snapshot", 2)


def test_the_store_of_another_job_is_not_read(tmp_path: Path) -> None:
    history: dict[int, Any] = {}
    begun(KINDS["full state"], tmp_path / "job", range(40), history)
    begun(KINDS["full state"], tmp_path / "other", range(20))
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.copytree(tmp_path / "other" / "local", tmp_path / "job" / "local")
    with wr.read_state(str(tmp_path / "job")) as state:
        assert answers(state, KINDS["full state"]) == history[max(history)]
        assert state._views[0].way == "segments"


def test_a_job_that_sweeps_while_it_is_read_is_read_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Elsewhere
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    definition, clock, history = KINDS["full state"], ManualClock(), {}
    read = set()
    with definition.open(str(tmp_path / "job"), clock=clock, sink=wr.sinks.memory()) as op:
        for at in range(0, 400, 10):
            feed(op, range(at, at + 10))
            clock.advance("1 second")
            op.timeout()
            history[op.last_commit] = answers(op, definition)
            if at % 50 == 0:
                elsewhere.begin(tmp_path / "job", "full state")
            elif at % 50 == 40:
                said = elsewhere.end()
                assert said["answers"] == history[said["commit"]]
                read.add(said["commit"])
    assert len(read) == 8


def test_windows_of_an_incremental_operator_come_from_the_changelog_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    history: dict[int, Any] = {}
    begun(KINDS["incremental"], tmp_path / "job", range(60), history)
    shutil.rmtree(tmp_path / "job" / "local")
    shutil.rmtree(tmp_path / "job" / "snapshots")
    with wr.read_state(str(tmp_path / "job")) as state:
        assert answers(state, KINDS["incremental"]) == history[max(history)]
        assert state._views[0].way == "changelog"


def test_a_commit_whose_files_are_gone_is_refused_naming_the_oldest_and_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    history: dict[int, Any] = {}
    definition = KINDS["full state"]
    begun(definition, tmp_path / "job", range(80), history)
    shutil.rmtree(tmp_path / "job" / "snapshots")
    readable = []
    for commit in history:
        try:
            with wr.read_state(str(tmp_path / "job"), as_of=commit) as state:
                assert answers(state, definition) == history[commit]
            readable.append(commit)
        except e.StateLost as error:
            refusal = error.message
    assert readable == [8]
    assert "commit 7" in refusal and "the oldest that can is 8, the newest 8" in refusal
    for unknown in (0, 9, -1):
        with pytest.raises(e.StateLost, match=f"commit {unknown} .*the newest 8"):
            wr.read_state(str(tmp_path / "job"), as_of=unknown)


def test_files_that_are_swept_while_they_are_read_are_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(KINDS["full state"], tmp_path / "job", range(30))
    view, calls = reader.open_view, [0]

    def swept(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] < reader.ATTEMPTS:
            raise FileNotFoundError("swept")
        return view(*arguments, **options)

    monkeypatch.setattr(reader, "open_view", swept)
    with wr.read_state(str(tmp_path / "job")) as state:
        assert state.get_windows() != []
    assert calls == [reader.ATTEMPTS]
    calls[0] = -100
    with pytest.raises(FileNotFoundError):
        wr.read_state(str(tmp_path / "job"))
    assert calls == [-100 + reader.ATTEMPTS]


def test_a_reader_follows_when_asked(tmp_path: Path) -> None:
    with aggregate().open(str(tmp_path / "job"), clock=ManualClock(), sink=wr.sinks.memory()) as op:
        feed(op, range(10))
        op.timeout()
        with wr.read_state(str(tmp_path / "job")) as state:
            then = state.get_windows()
            feed(op, range(10, 20))
            op.timeout()
            assert (state.commit, state.get_windows()) == (1, then)
            assert state.refresh() == 2
            assert state.get_windows() == op.get_windows() != then
    with pytest.raises(e.OperatorClosed, match="read it again"):
        state.get_windows()


def test_reading_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    with wr.read_state(str(tmp_path / "job")) as state:
        assert os.listdir(tmp_path / "scratch") != []
        state.get_windows()
    assert os.listdir(tmp_path / "scratch") == []
    with pytest.raises(e.StateLost):
        wr.read_state(str(tmp_path / "job"), as_of=77)
    assert os.listdir(tmp_path / "scratch") == []


def test_a_job_without_commits_and_one_that_was_reset_are_empty(tmp_path: Path) -> None:
    KINDS["full state"].open(str(tmp_path / "job")).close()
    with wr.read_state(str(tmp_path / "job")) as state:
        assert (state.commit, state.get_windows(), state.commits()) == (0, [], [])
        assert state.windows_table().num_rows == 0 and state.messages_table().num_rows == 0
    begun(aggregate(), tmp_path / "other", range(20))
    from windrow.checkpoint import job_admin

    job_admin.reset(str(tmp_path / "other"), now_us=0, driver="test")
    with wr.read_state(str(tmp_path / "other")) as state:
        assert state.operators == ()
        with pytest.raises(e.ConfigurationError, match="no operator"):
            state.get_windows()
    with pytest.raises(e.JobMismatch, match="no windrow location"):
        wr.read_state(str(tmp_path))


# -- definitions ----------------------------------------------------------------------------------------------------


def test_a_definition_that_the_log_cannot_show_is_asked_for(tmp_path: Path) -> None:
    @wr.aggregate_function(name="late", returns=pa.int64())
    def late(table: pa.Table) -> int:
        return sum(x > 3 for x in table["x"].to_pylist())

    definition = aggregate(agg={"late": late("x")})
    begun(definition, tmp_path / "job", range(30))
    with wr.read_state(str(tmp_path / "job")) as state:
        assert state.commit == 3 and len(state.commits()) == 3
        with pytest.raises(e.ConfigurationError, match="pass definition="):
            state.get_windows()
    with wr.read_state(str(tmp_path / "job"), definition=definition) as state:
        assert [w.values["late"] for w in state.get_windows()][:3] == [2, 2, 2]


def test_a_text_that_gives_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    monkeypatch.setattr("windrow.runners.state.definitions.evaluate", lambda text: aggregate(by=()))
    state = wr.read_state(str(tmp_path / "job"))
    with state, pytest.raises(e.ConfigurationError, match="gives something else: pass definition="):
        state.get_windows()


def test_another_definition_is_refused_naming_both(tmp_path: Path) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    other = aggregate(by=())
    with pytest.raises(e.DefinitionChanged) as refused:
        wr.read_state(str(tmp_path / "job"), definition=[other])
    assert repr(aggregate()) in refused.value.message and repr(other) in refused.value.message
    with pytest.raises(e.JobMismatch, match="'aggregate'"):
        wr.read_state(str(tmp_path / "job"), definition=aggregate(name="another"))


def test_a_watermark_of_the_users_own_is_not_needed_to_read(tmp_path: Path) -> None:
    definition = aggregate(watermark=wr.custom(lambda marks, now: min(marks.values()), name="mine"))
    begun(definition, tmp_path / "job", range(30))
    with wr.read_state(str(tmp_path / "job")) as state:
        assert state.watermark == 29 * SECOND and state.get_windows() != []


def test_a_query_that_means_nothing_is_refused(tmp_path: Path) -> None:
    begun(JOIN, tmp_path / "join", range(20))
    begun(aggregate(), tmp_path / "job", range(20))
    with wr.read_state(str(tmp_path / "join")) as state:
        with pytest.raises(e.ConfigurationError, match=r"say which, of \['orders', 'payments'\]"):
            state.get_windows()
        with pytest.raises(e.ConfigurationError, match=r"say which, of \['orders', 'payments'\]"):
            state.windows_table()
        with pytest.raises(
            e.ConfigurationError, match=r"'sessions' of 'join' is none of \['windows', 'messages'\]"
        ):
            state.table("sessions")
        with pytest.raises(e.ConfigurationError, match=r"say which, of \['orders', 'payments'\]"):
            state.get_messages()
    with wr.read_state(str(tmp_path / "job")) as state:
        with pytest.raises(
            e.ConfigurationError,
            match="input 'left' is none of 'aggregate', whose one input has no name: leave",
        ):
            state.get_messages(input="left")
        with pytest.raises(e.ConfigurationError, match="keeps no messages"):
            state.get_messages()
        with pytest.raises(e.ConfigurationError, match=r"'other' is none of \['aggregate'\]"):
            state.get_windows(operator="other")


# -- tables ---------------------------------------------------------------------------------------------------------


def test_tables_have_what_the_lists_have(tmp_path: Path) -> None:
    begun(KINDS["full state"], tmp_path / "job", range(40))
    with wr.read_state(str(tmp_path / "job")) as state:
        infos, rows = state.get_windows(), state.windows_table().to_pylist()
        assert [(w.key["k"], w.values["middle"], w.messages, w.panes, w.fired) for w in infos] == [
            (r["k"], r["middle"], r["messages"], r["panes"], r["fired"]) for r in rows
        ]
        assert [w.first._asdict() for w in infos if w.first] == [r["first"] for r in rows]
        stored, rows = state.get_messages(), state.messages_table().to_pylist()
        assert [m.payload for m in stored] == [{n: r[n] for n in ("k", "t", "x")} for r in rows]
        assert [(m.position.offset, m.event_time_us) for m in stored] == [
            (r["stored"]["offset"], int(r["stored"]["time"].timestamp() * 1e6)) for r in rows
        ]
        assert state.commits_table().column("rows").to_pylist() == [10, 10, 10, 10]


def test_a_table_of_a_join_s_messages_and_rows(tmp_path: Path) -> None:
    begun(JOIN, tmp_path / "job", range(40))
    with wr.read_state(str(tmp_path / "job")) as state:
        rows = state.messages_table(input="payments").to_pylist()
        assert [r["x"] for r in rows] == [m.payload["x"] for m in state.get_messages(input="payments")] != []
        panes = state.panes()
        assert {"k", "orders_x", "payments_x", "pane", "commit"} <= set(panes.column_names)
        assert panes.num_rows > 0


def test_panes_that_are_kept_and_dead_letters(tmp_path: Path) -> None:
    clock = ManualClock()
    with aggregate().open(str(tmp_path / "job"), clock=clock, sink=(sink := wr.sinks.memory())) as op:
        feed(op, range(40))
        op.add_message(wr.Message({"k": "a", "t": None, "x": 1}, wr.Position("topic", 0, 40)))
        op.timeout()
        letters = op.dead_letters()
    assert sink is not None
    with wr.read_state(str(tmp_path / "job")) as state:
        assert state.dead_letters() == letters != []
        assert state.dead_letters_table().column("reason").to_pylist() == ["malformed"]
        panes = state.panes()
        assert panes.num_rows == 9 and set(panes.column("commit").to_pylist()) <= {1, 2}
