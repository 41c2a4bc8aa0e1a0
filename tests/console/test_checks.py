"""`windrow verify`, `doctor` and `completion`."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import windrow as wr
from tests.console.small_jobs import Said
from tests.state.jobs import KINDS, aggregate, begun, feed, listing
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import encode
from windrow.checkpoint.storage import FolderRecords
from windrow.console import checks
from windrow.stores.kv import Batch
from windrow.stores.rocks import RocksKV
from windrow.testing.clock import ManualClock

Run = Callable[..., Said]


def ages_fast(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 3)
    patch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 2)


@pytest.fixture(params=["incremental", "full state"], scope="module")
def template(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("made") / "job"
    with pytest.MonkeyPatch.context() as patch:
        ages_fast(patch)
        begun(KINDS[request.param], job, range(80))
    return job


@pytest.fixture
def job(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    ages_fast(monkeypatch)
    return Path(shutil.copytree(template, tmp_path / "job"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


# -- verify ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_job_is_found_whole_and_nothing_is_written(windrow: Run, tmp_path: Path, kind: str) -> None:
    begun(KINDS[kind], tmp_path / "job", range(60))
    before = listing(tmp_path / "job")
    code, out, err = windrow("verify", tmp_path / "job")
    assert (code, err) == (0, "") and out.splitlines()[-1] == "whole"
    assert listing(tmp_path / "job") == before


def test_swept_files_are_not_missed(windrow: Run, job: Path) -> None:
    [report] = windrow("verify", job, "--json").lines
    assert report["wrong"] == []
    assert report["checked"]["snapshots"] == 2 and report["checked"]["bases"] == 2
    assert report["checked"]["comparisons"] >= 4


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_running_job_is_whole(windrow: Run, tmp_path: Path, on_disk: bool) -> None:
    """Also where its store, which has no log of its own, has nothing on disk yet."""
    with aggregate().open(str(tmp_path / "job"), clock=ManualClock(), sink=wr.sinks.memory()) as op:
        feed(op, range(20))
        op.timeout()
        if on_disk:
            op.engine.shard.kv.flush()
        feed(op, range(20, 40))
        op.timeout()
        assert windrow("verify", tmp_path / "job").code == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "log/*.wrl",
        "changelog/0*.seg",
        "changelog/base_part*.seg",
        "snapshots/blobs/*",
        "snapshots/manifests/*",
        "panes/*",
    ],
)
def test_a_flipped_bit_is_found(windrow: Run, job: Path, pattern: str) -> None:
    files = sorted(job.glob(pattern))
    flip(files[-2 if pattern.startswith("log") else -1])  # the last record would be torn, and void
    code, out, _ = windrow("verify", job)
    assert code == 1 and "WRONG" in out
    [report] = windrow("verify", job, "--json").lines
    assert report["wrong"] != []


def test_a_torn_pane_file_and_one_of_other_rows_are_found(windrow: Run, job: Path) -> None:
    *_, other, torn = sorted((job / "panes").iterdir())
    torn.write_bytes(torn.read_bytes()[:-20])
    pq.write_table(pq.read_table(other).slice(1), other)
    [report] = windrow("verify", job, "--json").lines
    assert [w["what"] for w in report["wrong"]] == [str(other), str(torn)]
    assert all("is damaged: it has digest" in w["why"] for w in report["wrong"])


def test_a_file_that_is_gone_and_still_needed_is_missed(windrow: Run, job: Path) -> None:
    covered = max(int(m.name.split("-")[1]) for m in (job / "snapshots" / "manifests").iterdir())
    gone = max(f for f in (job / "changelog").glob("0*.seg") if int(f.name.split("-")[0]) <= covered)
    gone.unlink()
    [report] = windrow("verify", job, "--json").lines
    assert report["wrong"] == []
    for manifest in (job / "snapshots" / "manifests").iterdir():
        manifest.unlink()
    [report] = windrow("verify", job, "--json").lines
    [why] = [w["why"] for w in report["wrong"] if w["what"] == str(gone)]
    assert "no snapshot covers it" in why


def test_a_store_that_says_something_else_is_found(windrow: Run, job: Path) -> None:
    with RocksKV(job / "local" / "shard-0000", ("aggregate.windows",)) as kv:
        [(key, value), *_] = list(kv.scan("aggregate.windows"))
        batch = Batch()
        batch.put("aggregate.windows", key, value[:-1] + bytes((value[-1] ^ 1,)))
        kv.write(batch)
    code, out, _ = windrow("verify", job)
    assert code == 1 and f"key {key.hex()}: the store and the" in out
    with RocksKV(job / "local" / "shard-0000", ("aggregate.windows",)) as kv:
        batch = Batch()
        batch.delete("aggregate.windows", key)
        kv.write(batch)
    assert "and not in the store" in windrow("verify", job).out


def test_offsets_marks_and_watermarks_that_go_back_are_found(windrow: Run, tmp_path: Path) -> None:
    begun(aggregate(), tmp_path / "job", range(30))
    log = FileLog(tmp_path / "job" / "log")
    state = log.tail()
    last = state.last_commit
    assert last is not None
    back = replace(
        last,
        seq=state.next_seq,
        commit=last.commit + 1,
        next_offsets={p: o - 5 for p, o in last.next_offsets.items()},
        marks={p: replace(m, max_time_us=0) for p, m in last.marks.items()},
        meta={**last.meta, "watermarks": {"aggregate": 0}},
        published=last.commit,
        shards=(),
    )
    FolderRecords(tmp_path / "job" / "log").create(back.seq, encode(back))
    [report] = windrow("verify", tmp_path / "job", "--json").lines
    whys = " ".join(w["why"] for w in report["wrong"] if w["what"] == "commit 4")
    assert "offset of (':topic', 0) goes back from 30 to 25" in whys
    assert "mark of" in whys and "watermark of 'aggregate' goes back" in whys


def test_a_store_that_is_damaged_is_found_though_the_job_would_come_back(windrow: Run, job: Path) -> None:
    (job / "local" / "shard-0000" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    code, out, _ = windrow("verify", job)
    assert code == 1 and "built anew" in out
    shutil.rmtree(job / "local")
    assert windrow("verify", job).code == 0


def test_of_a_sink_the_last_published_commit_is_shown(windrow: Run, tmp_path: Path) -> None:
    with aggregate().open(
        str(tmp_path / "job"), clock=ManualClock(), sink=wr.sinks.parquet(str(tmp_path / "out" / "panes"))
    ) as op:
        feed(op, range(30))
    sink = tmp_path / "out" / "panes"
    [report] = windrow("verify", sink, "--json").lines
    assert report["commit"] == wr.read_panes(str(sink))["commit"].to_pylist()[-1] > 0
    part = next(sink.glob("part-*"))
    (tmp_path / "out" / "dead").mkdir()
    shutil.copy(part, tmp_path / "out" / "dead")
    code, _, err = windrow("verify", tmp_path / "out")
    assert code == 1 and "is no windrow location" in err and "delete" not in err


# -- doctor ---------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_everything(windrow: Run, tmp_path: Path) -> None:
    findings = {f["what"]: f for f in windrow("doctor", tmp_path, "--json").lines}
    assert list(findings) == [
        "python", "time zones", "rocksdict", "pyspark", "java", "PYSPARK_PYTHON", "confluent-kafka", "disk space", "disk"
    ]  # fmt: skip
    assert findings["rocksdict"]["state"] == findings["disk"]["state"] == "ok"
    assert all(f["remedy"] for f in findings.values() if f["state"] != "ok")
    assert list(tmp_path.iterdir()) == []
    assert windrow("doctor", tmp_path).out.splitlines()[0].split() == ["what", "state", "found", "remedy"]


@pytest.mark.parametrize(
    ("variable", "value", "what", "says"),
    [
        ("PYSPARK_PYTHON", "/nowhere/python", "PYSPARK_PYTHON", "is no program"),
        ("PYSPARK_PYTHON", "/bin/false", "PYSPARK_PYTHON", "cannot import windrow"),
        ("JAVA_HOME", "/nowhere", "java", "Java 17 or newer"),
    ],
)
def test_what_is_wrong_comes_with_its_remedy_and_1(
    windrow: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    what: str,
    says: str,
) -> None:
    monkeypatch.setenv(variable, value)
    said = windrow("doctor", tmp_path, "--json")
    [finding] = [f for f in said.lines if f["what"] == what]
    assert said.code == 1 and finding["state"] == "wrong" and says in finding["remedy"]


@pytest.mark.parametrize("asked", ["", "--spark", "--kafka"])
def test_what_is_missing_comes_with_how_to_get_it_and_1_where_it_was_asked_for(
    windrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(checks, "_installed", lambda name: None if name != "rocksdict" else "0")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    said = windrow("doctor", tmp_path, "--json", *filter(None, [asked]))
    states = {f["what"]: f["state"] for f in said.lines}
    assert said.code == bool(asked)
    assert all(f["remedy"] for f in said.lines if f["state"] in ("missing", "optional"))
    assert states["pyspark"] == states["java"] == ("missing" if asked == "--spark" else "optional")
    assert states["confluent-kafka"] == ("missing" if asked == "--kafka" else "optional")


def test_too_little_room_is_wrong(windrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FREE_BYTES", 1 << 60)
    said = windrow("doctor", tmp_path, "--json")
    assert said.code == 1 and [f["remedy"] for f in said.lines if f["what"] == "disk space"] == ["make room"]


# -- completion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["windrow", "ver"], ["verify"]),
        (["windrow", "windows", "x", "--as"], ["--as-of"]),
        (["windrow", "completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes_commands_and_options(windrow: Run, words: list[str], completed: list[str]) -> None:
    listed = " ".join(f"'{w}'" for w in words)
    ask = (
        f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _windrow; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    code = windrow("completion", "bash").out + ask
    said = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == completed and said.stderr == ""


def test_zsh_runs_the_completion_of_bash(windrow: Run) -> None:
    script = windrow("completion", "zsh").out
    assert script.startswith("autoload") and script.endswith(windrow("completion", "bash").out)
    assert windrow("completion", "fish").code == 2
    assert sys.executable not in script
