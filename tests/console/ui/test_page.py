"""The page: the rows of `wr.read_state` at every address, who may read, and what is wrong is said."""

from __future__ import annotations

import html
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow as wr
from tests.console.ui.browsing import Reader, browsing
from tests.operators.contract import Case, life
from tests.operators.test_contract import FOUND, OPERATORS
from windrow.checkpoint import job_admin
from windrow.console import views
from windrow.console.main import main
from windrow.console.ui.cells import cell
from windrow.core.envelope import Kind, seal, unseal
from windrow.core.show import json_text
from windrow.testing.clock import ManualClock

KEYS = [
    {"k": "<script>alert(1)</script>", "b": b"\x00\xff"},
    {"k": "a/b?c&d=e#f%20", "b": b""},
    {"k": None, "b": None},
    {"k": "", "b": b"x"},
    {"k": "x" * 10_000, "b": b"\x01" * 5_000},
]
SCHEMA = pa.schema([("k", pa.string()), ("b", pa.binary()), ("t", pa.timestamp("us", "UTC"))])
ODD = wr.Aggregate(
    name="odd",
    by=("k", "b"),
    event_time="t",
    window=wr.tumbling("1 hour"),
    retention="1 day",
    agg={"n": wr.count()},
    emit=wr.Emit(early=wr.every_batch),
)


def plain(value: Any) -> Any:
    """A value after it was JSON, as commands print it."""
    text = json_text(value, lambda v: v.isoformat() if hasattr(v, "isoformat") else str(v))
    return json.loads(text)


def whole(reader: Reader, **asked: Any) -> list[Any]:
    """All pages of a table."""
    rows: list[Any] = []
    page = 1
    while True:
        answer = reader.json("table", **asked, page=page)
        assert "error" not in answer, answer
        rows += answer["rows"]
        if len(rows) >= answer["total"]:
            return rows
        page += 1


@pytest.mark.parametrize("name", FOUND)
def test_the_page_has_the_rows_of_read_state(name: str) -> None:
    operator = OPERATORS[name]
    definition = operator.definition
    case = Case(definition=definition, messages=None, schema=operator.schema)  # type: ignore[arg-type]
    with life(case, with_sink=False) as job:
        for i in range(0, len(operator.messages), 3):
            job.act("feed", operator.messages[i : i + 3])
        job.act("commit", None)
        location = job.driver.op.location if hasattr(job.driver.op, "location") else job.driver.location
        with (
            wr.read_state(location, definition=definition) as state,
            browsing(location, definition=definition) as reader,
        ):
            shown = {one.name: one for one in views.operators(state)}
            assert {one["name"] for one in reader.json()["operators"]} == set(state.operators)
            for part, row in shown.items():
                for table in row.tables:
                    several = table in ("windows", "messages") and len(row.inputs) > 1
                    for source in row.inputs if several else [None]:
                        expected = state.table(table, operator=part, input=source).to_pylist()
                        asked = {"operator": part, "table": table} | ({"input": source} if source else {})
                        assert whole(reader, **asked) == plain(expected)
                        text = html.unescape(reader.html("table", **asked))
                        assert all(cell(v).text in text for one in expected[:50] for v in one.values())
                panes = state.panes(part).to_pylist()
                assert whole(reader, operator=part, table="panes", order="start") == plain(panes)
            commits = reader.json("commits")["commits"]
            assert [{k: c[k] for k in views.commit_row(state.commits()[0])} for c in commits] == [
                views.commit_row(c) for c in state.commits()[::-1]
            ]
            letters = state.dead_letters_table().to_pylist()
            assert sum(reader.json("dead-letters")["reasons"].values()) == len(letters)
            for view in ("", "commits", "watermark", "dead-letters", "explain"):
                assert "<h1>" in reader.html(view)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job with keys that are hard to write, running."""
    location = str(tmp_path_factory.mktemp("odd") / "job")
    with ODD.open(location, clock=ManualClock("2013-07-01 08:00Z"), schema=SCHEMA) as op:
        for commit in range(2):
            for i, key in enumerate(KEYS):
                op.add_message(
                    wr.Message(
                        {**key, "t": f"2013-07-01 0{5 + commit}:1{i}Z"}, wr.Position("s", 0, 9 * commit + i)
                    )
                )
            op.flush()
        op.add_message(wr.Message({"k": "y" * 5_000_000, "t": "no time"}, wr.Position("s", 1, 0)))
        op.flush()
        yield location


def test_every_key_leads_to_its_timeline_and_its_explanation(odd: str) -> None:
    with browsing(odd) as reader:
        text = reader.html("table", operator="odd", table="windows")
        assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text
        links = {html.unescape(part.split('"')[0]) for part in text.split('href="')[1:]}
        timelines = sorted(link for link in links if "/timeline?operator=odd&" in link)
        explained = sorted(link for link in links if "/explain?" in link)
        assert (len(timelines), len(explained)) == (len(KEYS), 2 * len(KEYS))
        for link in [one for one in timelines if "k.k=" in one or "null.k=" in one]:
            answer = json.loads(reader.get(link, headers={"Accept": "application/json"}).text)
            assert len(answer["windows"]) == 2, link
            assert [len(w["panes"]) for w in answer["windows"]] == [2, 1]
        for link in explained:
            [one] = json.loads(reader.get(link, headers={"Accept": "application/json"}).text)["explanations"]
            assert one["values"] == {"n": 1}


def test_a_payload_of_five_megabytes_is_cut(odd: str) -> None:
    with browsing(odd) as reader:
        payload = reader.json("dead-letters")["letters"][0]["payload"]  # the job keeps its beginning
        assert payload.startswith('{"k": "yyy') and len(payload) < 5_000
        assert "<dd>s / 0</dd>" in reader.html()  # what holds the watermark back, by its name outside
        text = reader.html("dead-letters")
        assert len(text) < 50_000 and "96 more characters" in text


def test_a_table_as_of_a_commit_is_that_of_read_state(odd: str) -> None:
    with browsing(odd) as reader, wr.read_state(odd, as_of=1) as state:
        answer = reader.json("table", operator="odd", table="windows", as_of=1)
        assert (answer["as_of"], answer["rows"]) == (1, plain(state.windows_table().to_pylist()))
        assert "As of commit 1" in reader.html("table", operator="odd", table="windows", as_of=1)


def test_a_commit_that_is_collected_stays_where_it_is_open_and_is_refused_with_the_way_back_where_not(
    tmp_path: Path,
) -> None:
    location, asked = tmp_path / "job", {"operator": "odd", "table": "windows"}
    with ODD.open(str(location), clock=ManualClock(), schema=SCHEMA) as op, browsing(str(location)) as reader:
        for hour in range(5, 9):
            op.add_message({**KEYS[0], "t": f"2013-07-01 0{hour}:10Z"})
            op.flush()
        assert reader.json("table", **asked, as_of=1)["total"] == 1
        for folder in ("segments", "changelog"):
            shutil.rmtree(location / folder)  # as garbage collection does of what snapshots cover
        assert reader.json("table", **asked, as_of=1)["total"] == 1, "it is open"
        answer = reader.get(reader.address("table"), params={**asked, "as_of": 2})
        text = html.unescape(answer.text)
        assert answer.status_code == 400 and "commit 2" in text and "cannot be read any more" in text
        assert "The same view as of the newest commit" in text
        assert reader.json("table", **asked)["total"] == 4


@pytest.mark.parametrize(
    ("view", "asked", "code", "said"),
    [
        (
            "table",
            {"operator": "odd", "table": "windows", "page": 9},
            200,
            "There is no page 9: the last one is",
        ),
        ("table", {"operator": "odd", "table": "windows", "page": "x"}, 400, "page='x'"),
        ("table", {"operator": "odd", "table": "windows", "order": "no"}, 400, "order='no' is no column"),
        (
            "table",
            {"operator": "odd", "table": "windows", "contains": "nobody"},
            200,
            "No row contains “nobody”",
        ),
        ("table", {"operator": "none", "table": "windows"}, 400, "operator 'none' is none of ['odd']"),
        ("table", {"operator": "odd", "table": "timers"}, 400, "table 'timers' of 'odd' is none of"),
        ("table", {}, 400, "no table is named"),
        ("table", {"operator": "odd", "table": "windows", "as_of": 99}, 400, "commit 99"),
        ("", {"as_of": "soon"}, 400, "as_of='soon': write a number"),
        ("", {"as_of": "9" * 5_000}, 400, "write a number"),
        ("commits", {"page": "9" * 5_000}, 400, "write a number"),
        ("timeline", {"operator": "odd", "k.k": "a", "k.b": "zz"}, 400, "write them as hexadecimal digits"),
        ("timeline", {"operator": "odd", "k.k": "a", "k.b": "00"}, 200, "No windows of this key"),
        ("explain", {"operator": "odd", "at": "2013-07-01 04:00"}, 200, "Nothing starts at 2013-07-01 04:00"),
        ("explain", {"operator": "odd", "at": "soon"}, 400, "soon"),
        ("explain", {"operator": "odd", "why_not": "order"}, 400, "PATTERN=OFFSET"),
        ("explain", {"operator": "odd", "why_not": "order=1"}, 400, "has no rules"),
        ("dead-letters", {"reason": "none"}, 400, "reason 'none' is none of ['malformed']"),
        ("nothing", {}, 404, "There is no view 'nothing' of a job"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    odd: str, view: str, asked: dict[str, Any], code: int, said: str
) -> None:
    with browsing(odd) as reader:
        answer = reader.get(reader.address(view), params=asked)
        assert (answer.status_code, said in html.unescape(answer.text)) == (code, True), answer.text
        as_json = reader.get(reader.address(view), params={**asked, "format": "json"})
        assert as_json.status_code == code and ("error" in as_json.json()) == (code != 200)


# -- places that are no job -----------------------------------------------------------------------------------------


def test_a_place_without_a_job_is_said_and_read_as_soon_as_there_is_one(tmp_path: Path) -> None:
    location = tmp_path / "job"
    with browsing(str(location)) as reader:
        assert "is no windrow location" in html.unescape(reader.html())
        location.mkdir()
        assert "is no windrow location" in html.unescape(reader.html())
        with ODD.open(str(location), clock=ManualClock(), schema=SCHEMA) as op:
            reader_polls(reader)
            text = reader.html()
            assert "No commit yet" in text and "No windows: nothing has come yet" in text
            for view in ("commits", "watermark", "dead-letters", "explain"):
                assert 'class="empty"' in reader.html(view)
            for table in ("windows", "panes"):
                assert 'class="empty"' in reader.html("table", operator="odd", table=table)
            op.add_message({**KEYS[0], "t": "2013-07-01 05:10Z"})
            op.flush()
            reader_polls(reader)
            assert reader.json("table", operator="odd", table="windows")["total"] == 1


def reader_polls(reader: Reader) -> None:
    """The next request looks at the job again, however soon it comes."""
    for one in reader.jobs.values():
        one._next_poll_s = 0.0


def test_a_job_that_is_gone_stays_on_screen_with_a_notice(tmp_path: Path) -> None:
    location = tmp_path / "job"
    with ODD.open(str(location), clock=ManualClock(), schema=SCHEMA) as op:
        op.add_message({**KEYS[0], "t": "2013-07-01 05:10Z"})
        op.flush()
    with browsing(str(location)) as reader:
        assert reader.json("table", operator="odd", table="windows")["total"] == 1
        location.rename(tmp_path / "elsewhere")
        reader_polls(reader)
        text = reader.html("table", operator="odd", table="windows")
        assert "The job cannot be read since" in text and "&lt;script&gt;" in text
        (tmp_path / "elsewhere").rename(location)
        reader_polls(reader)
        assert "cannot be read" not in reader.html("table", operator="odd", table="windows")


def test_a_definition_that_the_log_cannot_reproduce_is_asked_for(tmp_path: Path) -> None:
    location = str(tmp_path / "job")
    definition = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("1 hour"),
        retention="1 day",
        agg={"n": wr.reduce(max, "v", name="largest")},
    )
    with definition.open(location, clock=ManualClock()) as op:
        op.add_message({"t": "2013-07-01 05:10Z", "v": 3})
        op.flush()
    with browsing(location) as reader:
        assert "--definition MODULE:NAME" in reader.html()
    with browsing(location, definition=definition) as reader:
        assert reader.json("table", operator="aggregate", table="windows")["rows"][0]["n"] == 3


def test_a_job_that_was_reset_is_an_empty_one(tmp_path: Path) -> None:
    location = tmp_path / "job"
    with ODD.open(str(location), clock=ManualClock(), schema=SCHEMA) as op:
        op.add_message({**KEYS[0], "t": "2013-07-01 05:10Z"})
        op.flush()
    with browsing(str(location)) as reader:
        assert reader.json()["job"]["commit"] > 0
        job_admin.reset(str(location), now_us=0, driver="test")
        reader_polls(reader)
        assert "nothing was opened here since the job was reset" in reader.html()
        assert "no operator" in reader.html("explain")


def test_a_log_of_a_newer_release_is_said_with_the_remedy(tmp_path: Path) -> None:
    location = tmp_path / "job"
    with ODD.open(str(location), clock=ManualClock(), schema=SCHEMA):
        pass
    [record] = (location / "log").glob("*.wrl")
    record.write_bytes(seal(Kind.LOG_RECORD, unseal(Kind.LOG_RECORD, record.read_bytes()), 99))
    with browsing(str(location)) as reader:
        assert "upgrade windrow" in reader.html()


def test_a_port_in_use_is_an_error_that_names_another(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", "nowhere", "--port", str(port)]) == 1
    assert f"127.0.0.1:{port} cannot be listened on" in capsys.readouterr().err


def test_two_hundred_operators_are_one_overview(tmp_path: Path) -> None:
    many = [
        wr.Aggregate(
            name=f"n{i}",
            event_time="t",
            window=wr.tumbling("1 hour"),
            retention="1 day",
            agg={"n": wr.count()},
        )
        for i in range(200)
    ]
    location = str(tmp_path / "job")
    with wr.open(many, location, clock=ManualClock()):
        pass
    with browsing(location) as reader:
        assert len(reader.json()["operators"]) == 200
        assert reader.html().count("<h3>") == 200


# -- who may read ---------------------------------------------------------------------------------------------------


def test_the_page_only_reads_and_names_no_other_host(odd: str) -> None:
    with browsing(odd) as reader:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert reader.get(reader.address(""), method).status_code == 405
        answer = reader.get(reader.address(""))
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert reader.get(reader.address(""), headers={"Host": "evil.example"}).status_code == 400
        for name in ("page.css", "pictures.css", "page.js", "icon.svg"):
            answer = reader.get(f"/static/{name}")
            assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        assert reader.get("/static/../web_app.py").status_code == 404


def test_another_machine_shows_a_token_once(odd: str) -> None:
    with browsing(odd, host="192.0.2.1", token="secret") as reader:
        assert reader.get("/").status_code == 403
        assert reader.get("/", params={"token": "wrong"}).status_code == 403
        assert reader.get("/static/page.css").status_code == 403
        answer = reader.get(reader.address("commits"), params={"token": "secret", "page": 1})
        assert answer.status_code == 303 and answer.headers["location"].endswith("/commits?page=1")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert reader.get(reader.address("commits")).status_code == 200


def test_jobs_of_one_name_are_distinguished(odd: str, tmp_path: Path) -> None:
    with browsing(odd, str(tmp_path / "a" / "job"), str(tmp_path / "ckpt" / "windrow")) as reader:
        assert reader.names == ["job", "job~2", "ckpt"]
        text = html.unescape(reader.get("/").text)
        assert text.count("is no windrow location") == 2 and text.count("<h2>") == 3
        assert [j["name"] for j in reader.get("/?format=json").json()["jobs"]] == reader.names
