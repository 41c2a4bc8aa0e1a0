"""`windrow windows`, `messages`, `explain`: what they print is what the operator answers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import windrow as wr
from tests.console.small_jobs import Said
from tests.state.jobs import JOIN, KINDS, SECOND, aggregate, begun, feed, listing
from windrow.testing.clock import ManualClock

Run = Callable[..., Said]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("made") / "job"
    begun(KINDS["full state"], job, range(60))
    return job


@pytest.fixture
def job(template: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(template, tmp_path / "job"))


def test_windows_of_a_running_job(windrow: Run, tmp_path: Path) -> None:
    with aggregate().open(str(tmp_path / "job"), clock=ManualClock(), sink=wr.sinks.memory()) as op:
        feed(op, range(60))
        op.timeout()
        before = listing(tmp_path / "job")
        code, _, err = said = windrow("windows", tmp_path / "job", "--json")
        assert (code, err) == (0, "")
        windows = [(w.key["k"], w.values["n"], w.values["total"], w.fired) for w in op.get_windows()]
        assert [(r["k"], r["n"], r["total"], r["fired"]) for r in said.lines] == windows != []
        assert listing(tmp_path / "job") == before


def test_windows_between_two_times_of_one_key_as_of_a_commit(windrow: Run, job: Path) -> None:
    range_ = ("--start", "1970-01-01 00:00:20", "--end", "1970-01-01T00:00:30+00:00", "--key", "b")
    lines = windrow("windows", job, *range_, "--as-of", 3, "--json").lines
    assert [(r["k"], r["n"], r["middle"]) for r in lines] == [("b", 3, 25.0)]
    lines = windrow("windows", job, *range_, "--json").lines
    assert [(r["k"], r["n"], r["middle"]) for r in lines] == [("b", 3, 25.0), ("b", 3, 34.0)]


def test_windows_for_people_are_a_table(windrow: Run, job: Path) -> None:
    head, *rows = windrow("windows", job, "--last", 2).out.splitlines()
    assert head.split() == ["start", "end", "k", "n", "middle", "messages", "first", "last", "panes", "fired"]
    assert [row.split()[:5] for row in rows] == [
        ["1970-01-01", "00:00:50", "1970-01-01", "00:01", k] for k in ("b", "c")
    ]


def test_keys_are_read_as_their_column_is(windrow: Run, tmp_path: Path) -> None:
    with aggregate(by=("i", "k")).open(str(tmp_path / "job"), sink=wr.sinks.memory()) as op:
        op.add_message(wr.Message({"i": 7, "k": "a=b", "t": 0, "x": 1}))
        op.add_message(wr.Message({"i": 8, "k": "a=b", "t": 0, "x": 1}))
    lines = windrow("windows", tmp_path / "job", "--key", "i=7", "--key", "k=a=b", "--json").lines
    assert [(r["i"], r["k"]) for r in lines] == [(7, "a=b")]
    assert len(windrow("windows", tmp_path / "job", "--key", "k=a=b", "--json").lines) == 2
    for key, why in (("7", "write --key NAME=VALUE"), ("i=seven", "the key is of type int64")):
        code, out, err = windrow("windows", tmp_path / "job", "--key", key)
        assert (code, out) == (1, "") and why in err


@pytest.mark.parametrize("command", [("windows",), ("messages",), ("table", "windows"), ("explain", 0)])
def test_a_key_that_there_is_not_is_refused(windrow: Run, job: Path, command: tuple[object, ...]) -> None:
    code, out, err = windrow(command[0], job, *command[1:], "--key", "x=b")
    assert (code, out) == (1, "") and "'x' is no key, the keys are ['k']" in err and "--key k=x=b" in err


def test_what_is_no_time_is_refused(windrow: Run, job: Path) -> None:
    for text in ("--5", "\u00b2", "-", "noon"):
        code, out, err = windrow("windows", job, f"--start={text}")
        assert (code, out) == (1, "") and "is no time" in err


def test_messages_between_two_bounds(windrow: Run, job: Path) -> None:
    lines = windrow("messages", job, "--start", "10000000@11", "--end", 13 * SECOND, "--json").lines
    assert [r["x"] for r in lines] == [11, 12, 13]
    head, row = windrow("messages", job, "--key", "a", "--last", 1).out.splitlines()
    assert sorted(head.split()) == ["k", "position", "t", "time", "x"]
    assert row.split()[2:4] == ["topic/0", "57"] and "a" in row.split()


def test_messages_of_one_input_of_a_join(windrow: Run, tmp_path: Path) -> None:
    begun(JOIN, tmp_path / "job", range(60))
    with JOIN.open(str(tmp_path / "job"), clock=ManualClock()) as op:
        kept = [m.payload["x"] for m in op.get_messages(input="payments", key="a")]
    lines = windrow("messages", tmp_path / "job", "--input", "payments", "--key", "a", "--json").lines
    assert [r["x"] for r in lines] == kept != []
    code, _, err = windrow("messages", tmp_path / "job")
    assert code == 1 and "['orders', 'payments']" in err
    lines = windrow("windows", tmp_path / "job", "--input", "payments", "--json").lines
    with wr.read_state(str(tmp_path / "job")) as state:
        windows = [(w.messages, w.fired) for w in state.get_windows(input="payments")]
    assert [(r["messages"], r["fired"]) for r in lines] == windows != []
    code, _, err = windrow("windows", tmp_path / "job")
    assert code == 1 and "'join' has several inputs: say which, of ['orders', 'payments']" in err


def test_a_window_is_explained_by_the_positions_of_its_messages(windrow: Run, job: Path) -> None:
    [one] = windrow("explain", job, "1970-01-01 00:00:30", "--key", "b", "--json").lines
    assert [p["offset"] for p in one["positions"]] == [31, 34, 37]
    assert (one["messages"], one["first"]["offset"], one["last"]["offset"]) == (3, 31, 37)
    assert one["commits"] == [{"commit": 4, "messages": 3, "took": [["topic", 0, 30, 40]]}]
    assert one["complete"] is True
    said = windrow("explain", job, "1970-01-01 00:00:30", "--key", "b").out.splitlines()
    assert said[0].split() == ["window", "[1970-01-01", "00:00:30,", "00:00:40)Z"]
    assert [line.split()[-1] for line in said if "topic/0 3" in line] == ["31", "37", "31", "34", "37"]
    assert said[-1].split() == ["4", "3", "topic/0", "[30,", "40)"]


def test_rows_of_a_join_are_explained_by_the_time_of_a_message(windrow: Run, tmp_path: Path) -> None:
    begun(JOIN, tmp_path / "job", range(40))
    lines = windrow("explain", tmp_path / "job", 12 * SECOND, "--key", "a", "--json").lines
    assert [
        (row["inputs"]["orders"][0]["offset"], row["inputs"]["payments"][0]["offset"]) for row in lines
    ] == [(offset, 12) for offset in (15, 18, 21)]  # those before are kept no more
    assert {row["operator"] for row in lines} == {"join"} and all(row["complete"] for row in lines)
    said = windrow("explain", tmp_path / "job", 12 * SECOND, "--key", "a").out
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("payments")] == ["12"] * 3
    code, _, err = windrow("explain", tmp_path / "job", 12 * SECOND, "--key", "b")
    assert code == 1 and "row of a message of then" in err


def test_without_messages_first_and_last_position_and_commits_explain(windrow: Run, tmp_path: Path) -> None:
    hour = aggregate(window=wr.tumbling("1 hour"), by=(), retention="2 hours")
    begun(hour, tmp_path / "job", range(30))
    [one] = windrow("explain", tmp_path / "job", 0, "--json").lines
    assert one["positions"] is None
    assert (one["first"]["offset"], one["last"]["offset"]) == (0, 29)
    assert [(c["commit"], c["messages"]) for c in one["commits"]] == [(1, 10), (2, 10), (3, 10)]
    [one] = windrow("explain", tmp_path / "job", 0, "--as-of", 2, "--json").lines
    assert [c["commit"] for c in one["commits"]] == [1, 2]


def test_folding_many_blocks_is_no_message(windrow: Run, tmp_path: Path) -> None:
    hour = aggregate(
        window=wr.tumbling("1 hour"), by=(), retention="2 hours", emit=wr.Emit(early=wr.every_batch)
    )
    begun(hour, tmp_path / "job", range(300))
    [one] = windrow("explain", tmp_path / "job", 0, "--json").lines
    assert [c["messages"] for c in one["commits"]] == [10] * 30


def test_a_message_too_late_for_one_window_is_not_among_its_messages(windrow: Run, tmp_path: Path) -> None:
    hopping = aggregate(
        window=wr.hopping("20 seconds", "10 seconds"), by=(), watermark="0 seconds", agg={"m": wr.median("x")},
        allowed_lateness="0 seconds",
    )  # fmt: skip
    with hopping.open(str(tmp_path / "job"), clock=ManualClock(), sink=wr.sinks.memory()) as op:
        for offset, second in enumerate((5, 22, 15)):  # at 22, [0, 20) is closed; [10, 30) takes 15 still
            op.add_message(wr.Message({"t": second * SECOND, "x": offset}, wr.Position("topic", 0, offset)))
        op.timeout()
    reasons = {}
    for start in (0, 10 * SECOND):
        [one] = windrow("explain", tmp_path / "job", start, "--json").lines
        reasons[start] = [p["offset"] for p in one["positions"]], one["messages"]
    assert reasons == {0: ([0], 1), 10 * SECOND: ([2, 1], 2)}


def test_a_tuple_window_is_explained_by_its_first_number(windrow: Run, tmp_path: Path) -> None:
    begun(KINDS["tuples, full state"], tmp_path / "job", range(60))
    [one] = windrow("explain", tmp_path / "job", 9, "--key", "b", "--json").lines
    assert [p["offset"] for p in one["positions"]] == [25, 28, 31, 34]
    assert [(c["commit"], c["messages"]) for c in one["commits"]] == [(3, 2), (4, 2)]


def test_what_older_commits_brought_is_said_to_be_unknown(
    windrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.runners.embedded.engine.SNAPSHOT_EVERY", 2)
    monkeypatch.setattr("windrow.checkpoint.job.KEEP_COMMITS", 1)
    hour = aggregate(window=wr.tumbling("1 hour"), by=(), retention="2 hours")
    begun(hour, tmp_path / "job", range(80))
    [one] = windrow("explain", tmp_path / "job", 0, "--json").lines
    assert one["complete"] is False and one["messages"] == 80
    assert 0 < len(one["commits"]) < 8
    assert "no longer kept" in windrow("explain", tmp_path / "job", 0).out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("windows", "--start", "noon"), "'noon' is no time"),
        (("messages", "--start", "0@x"), "'x' is no offset"),
        (("explain", "1999-01-01"), "no window that starts at 1999-01-01"),
        (("windows", "--as-of", "99"), "commit 99"),
        (("windows", "--operator", "other"), "none of ['aggregate']"),
    ],
)
def test_what_cannot_be_answered_is_1_with_the_reason(
    windrow: Run, job: Path, arguments: tuple[str, ...], why: str
) -> None:
    code, out, err = windrow(arguments[0], job, *arguments[1:])
    assert (code, out) == (1, "") and why in err


def test_a_definition_that_the_log_cannot_show_is_named(
    windrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_jobs.py").write_text(
        "import pyarrow as pa\nimport windrow as wr\nfrom tests.state.jobs import aggregate\n"
        "@wr.aggregate_function(name='rows', returns=pa.int64())\n"
        "def rows(table): return table.num_rows\n"
        "late = aggregate(agg={'late': rows('x')})\n"
    )
    monkeypatch.chdir(tmp_path)

    @wr.aggregate_function(name="rows", returns=pa.int64())
    def rows(table: pa.Table) -> int:
        return table.num_rows

    begun(aggregate(agg={"late": rows("x")}), tmp_path / "job", range(20))
    assert "pass definition=" in windrow("windows", "job").err
    lines = windrow("windows", "job", "--definition", "my_jobs:late", "--json").lines
    assert [r["late"] for r in lines][:3] == [4, 3, 3]
    for wrong, message in (
        ("my_jobs", ""),
        ("my_jobs:none", ""),
        ("nothing:late", ""),
        ("os:system", "built-in function"),
    ):
        code, _, err = windrow("windows", "job", "--definition", wrong)
        assert code == 1 and (message or wrong) in err
    (tmp_path / "file").write_text("")
    assert "is no windrow location" in windrow("windows", "file").err


def test_rows_around_messages_are_explained_by_the_time_of_a_message(windrow: Run, tmp_path: Path) -> None:
    last_two = wr.Over(
        by="k", event_time="t", frame=("-2 seconds", 0), agg={"n": wr.count()}, retention="1 hour"
    )
    with last_two.open(str(tmp_path / "job")) as op:
        for t in (0, 1, 9):
            op.add_message(wr.Message({"k": "a", "t": t * SECOND}, wr.Position("s", 0, t)))
    [one] = windrow("explain", tmp_path / "job", "1970-01-01 00:00:01", "--key", "a", "--json").lines
    assert [p["offset"] for p in one["positions"]] == [0, 1]
    assert "s/0 1" in windrow("explain", tmp_path / "job", 1 * SECOND).out
    code, _, err = windrow("explain", tmp_path / "job", "1970-01-01 00:00:05")
    assert code == 1 and "`windrow messages` lists" in err
