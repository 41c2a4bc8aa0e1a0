"""`windrow panes`: the table of a Parquet sink."""

from collections.abc import Callable
from pathlib import Path

import pytest

import windrow as wr
from tests.console.small_jobs import Said, counts, run_job
from windrow.testing import ManualClock

Run = Callable[..., Said]


def filled(path: Path, **changed: object) -> Path:
    run_job(counts(**changed), path / "job", range(30), sink=wr.sinks.parquet(str(path / "out")))
    return path / "out"


def test_panes_are_a_table_with_a_line_each(windrow: Run, tmp_path: Path) -> None:
    code, out, err = windrow("panes", filled(tmp_path))
    head, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["start", "end", "k", "n", "total", "pane", "commit"]
    assert rows[0].split("  ")[0].strip() == "1970-01-01 00:00"
    assert [row.split()[-5:] for row in rows[:2]] == [
        ["4", "18", "ON_TIME", "#0", "2"],
        ["3", "12", "ON_TIME", "#0", "2"],
    ]


def test_empty_text_and_null_do_not_look_alike(windrow: Run, tmp_path: Path) -> None:
    job, out = str(tmp_path / "job"), tmp_path / "out"
    definition = counts(agg={"least": wr.min("x")})
    with definition.open(job, clock=ManualClock(), sink=wr.sinks.parquet(str(out))) as op:
        for i, (k, x) in enumerate([("", None), (None, ""), (None, "x"), ("end", "x")]):
            op.add_message(wr.Message({"k": k, "x": x, "t": i * 5_000_000}, wr.Position("topic", 0, i)))
    head, *rows = windrow("panes", out).out.splitlines()
    k, least, end = head.index(" k ") + 1, head.index("least"), head.index("pane")
    assert [(row[k:least].strip(), row[least:end].strip()) for row in rows] == [("", "''"), ("''", "")]
    table = windrow("windows", job).out
    assert [line.count("''") for line in table.splitlines()] == [0, 1, 1, 0, 0]
    why = windrow("explain", job, "1970-01-01 00:00").out
    assert "k=''" in why and "k=None" in why and "least=''" in why


def test_panes_as_json_are_whole_rows(windrow: Run, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    lines = windrow("panes", directory, "--json").lines
    table = wr.read_panes(str(directory)).to_pylist()
    assert [line["n"] for line in lines] == [row["n"] for row in table]
    assert lines[0]["pane"] == {"timing": "ON_TIME", "index": 0, "is_last": False, "kind": "INSERT"}
    assert lines[0]["window"] == {"start": "1970-01-01T00:00:00+00:00", "end": "1970-01-01T00:00:10+00:00"}


def test_latest_keeps_the_current_pane_of_each_key_and_window(windrow: Run, tmp_path: Path) -> None:
    directory = filled(tmp_path, emit=wr.Emit(early=wr.every_batch, mode="retracting"))
    everything = windrow("panes", directory, "--json").lines
    current = windrow("panes", directory, "--latest", "--json").lines
    assert {line["pane"]["kind"] for line in everything} == {"INSERT", "RETRACT"}
    assert {line["pane"]["kind"] for line in current} == {"INSERT"}
    named = [(line["window"]["start"], line["k"]) for line in current]
    assert len(named) == len(set(named)) == len({(e["window"]["start"], e["k"]) for e in everything})


def test_retractions_are_marked(windrow: Run, tmp_path: Path) -> None:
    directory = filled(tmp_path, emit=wr.Emit(early=wr.every_batch, mode="retracting"))
    assert "RETRACT" in windrow("panes", directory).out


def test_last_keeps_the_newest(windrow: Run, tmp_path: Path) -> None:
    directory = filled(tmp_path)
    everything = windrow("panes", directory, "--json").lines
    assert windrow("panes", directory, "--last", 2, "--json").lines == everything[-2:]


@pytest.mark.parametrize(
    "changed",
    [
        {"window": wr.tuples(3), "retention": wr.Retain(windows=5)},
        {"window": wr.global_window(), "retention": wr.forever, "emit": wr.Emit(early=wr.every_batch)},
    ],
    ids=["tuples", "global"],
)
def test_windows_of_every_kind_are_shown(windrow: Run, tmp_path: Path, changed: dict[str, object]) -> None:
    directory = filled(tmp_path, **changed)
    for options in ([], ["--json"], ["--latest"]):
        code, out, err = windrow("panes", directory, *options)
        assert (code, err) == (0, "") and out != ""


def test_several_operators_in_one_directory_have_to_be_chosen_from(windrow: Run, tmp_path: Path) -> None:
    out = wr.sinks.parquet(str(tmp_path / "out"))
    run_job(counts(name="one"), tmp_path / "a", range(30), sink=out)
    run_job(counts(name="two", by=()), tmp_path / "b", range(30), sink=out)
    code, _, err = windrow("panes", tmp_path / "out")
    assert code == 1 and "['one', 'two']" in err and "--operator" in err
    lines = windrow("panes", tmp_path / "out", "--operator", "two", "--json").lines
    assert lines and all("k" not in line for line in lines)
    code, _, err = windrow("panes", tmp_path / "out", "--operator", "three")
    assert code == 1 and "'three'" in err and "['one', 'two']" in err


def test_a_directory_without_panes_is_refused(windrow: Run, tmp_path: Path) -> None:
    code, out, err = windrow("panes", tmp_path)
    assert (code, out) == (1, "") and "holds no panes" in err


@pytest.mark.parametrize("json", [False, True])
def test_what_a_log_holds_moves_no_terminal(windrow: Run, tmp_path: Path, json: bool) -> None:
    key = "a\x1b]0;mine\x07\x9b2J\r\u202eb\nc\x00"
    definition = counts(emit=wr.Emit(early=wr.every_batch))
    with definition.open(str(tmp_path / "job"), sink=wr.sinks.parquet(str(tmp_path / "out"))) as op:
        op.add_message(wr.Message({"k": key, "t": 1_000_000, "x": 1}, wr.Position("to\x1b[2Jpic", 0, 0)))
        op.timeout()
    flag = ["--json"] * json
    for command in (
        ["panes", tmp_path / "out"],
        ["windows", tmp_path / "job"],
        ["explain", tmp_path / "job", "1970-01-01 00:00:00"],
        ["describe", tmp_path / "job"],
        ["health", tmp_path / "job"],
        ["watermark", tmp_path / "job"],
        ["windows", tmp_path / "no\x1b[2Jwhere"],
    ):
        said = windrow(*command, *flag)
        shown = said.out + said.err
        assert shown and not set(shown) & set("\x1b\x07\x9b\r\u202e\x00"), command
        if command[0] in ("panes", "windows") and said.code == 0:
            assert len(said.out.splitlines()) == (1 if json else 2)
            assert not json or said.lines[0]["k"] == key
