"""`windrow top`: its tabs show what a state holds, follow commits, and are moved by keys alone, in 80 x 24."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

import windrow as wr
from tests.console.small_jobs import minutes
from tests.operators.test_contract import OPERATORS
from windrow.console import top_app
from windrow.console.main import main
from windrow.console.tabs import Query, cells, columns_of, tabs_of
from windrow.console.top import print_once
from windrow.console.top_app import Explanation, TopApp
from windrow.runners.state import State

COUNTS = minutes("1 hour")
EVIL = "[bold]<script>/\x1b[31m"
Play = Callable[[Pilot[None], TopApp], Awaitable[None]]


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is looked at again where a test says so."""
    monkeypatch.setattr(top_app, "EVERY_S", 1e6)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    with COUNTS.open(str(tmp_path)) as op:
        op.add_messages([{"k": f"key {n:03}", "t": n * 1_000_000} for n in range(90)])
        op.add_messages(
            [{"k": EVIL, "t": 1}, {"k": "x" * 10_000, "t": 1}, {"k": None, "t": 1}, {"k": "a", "t": "no"}]
        )
        op.flush()
    return tmp_path


def played(folder: Path, play: Play, **options: Any) -> None:
    """Run the application without a terminal while `play` presses its keys."""

    async def run() -> None:
        with wr.read_state(str(folder), **options) as state:
            app = TopApp(state)
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(pilot, app)
                await play(pilot, app)

    asyncio.run(run())


async def settled(pilot: Pilot[None], app: TopApp) -> None:
    """Wait until nothing is read, and all that was read is shown."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], app: TopApp, *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot, app)


async def go_to(pilot: Pilot[None], app: TopApp, title: str) -> None:
    for _ in app.views:
        if app.view.title == title:
            return
        await press(pilot, app, "tab")
    raise AssertionError(f"no tab {title!r}")


def shown(app: TopApp) -> list[list[str]]:
    table = app.query_one(DataTable)
    return [[str(value) for value in table.get_row_at(n)] for n in range(table.row_count)]


def notice(app: TopApp) -> str:
    return str(app.query_one("#notice", Static).content)


def test_tabs_show_the_tables_of_the_state(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        assert [view.title for view in app.views] == [
            "Operators",
            "Commits",
            "Watermark",
            "Dead letters",
            "counts windows",
        ]
        for view in app.views:
            await go_to(pilot, app, view.title)
            listing = view.read(app.state, Query())
            assert shown(app) == [cells(row, columns_of(listing)) for row in listing.rows]
            assert listing.rows, view.title
        assert len(shown(app)) == app.state.windows_table().num_rows == 93
        assert app.state.job in str(app.query_one("#status", Static).content)

    played(job, play)


def test_slash_finds_o_orders_and_r_reverses(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        await go_to(pilot, app, "counts windows")
        await press(pilot, app, "slash", *"Y 08", "enter")
        at = columns_of(app.listing).index("k")
        assert [row[at] for row in shown(app)] == [f"key {n:03}" for n in range(80, 90)]
        assert "with 'Y 08'" in notice(app)
        while app.queries["counts windows"].order != "k":
            await press(pilot, app, "o")
        await press(pilot, app, "r")
        assert [row[at] for row in shown(app)] == [f"key {n:03}" for n in range(89, 79, -1)]
        await press(pilot, app, "escape")
        assert len(shown(app)) == 93
        await press(pilot, app, "slash", *"??", "enter")
        assert shown(app) == [] and "nothing here" in notice(app)

    played(job, play)


def test_enter_explains_a_window_and_shows_other_rows_whole(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        await go_to(pilot, app, "counts windows")
        await press(pilot, app, "slash", *"007", "enter", "enter")
        assert isinstance(app.screen, Explanation)
        assert "k=key 007" in app.screen.text and "commit" in app.screen.text
        await press(pilot, app, "escape")
        await go_to(pilot, app, "Dead letters")
        await press(pilot, app, "enter")
        assert isinstance(app.screen, Explanation) and "malformed" in app.screen.text
        await press(pilot, app, "q")
        assert not isinstance(app.screen, Explanation)
        await press(pilot, app, "q")
        assert not app.is_running or app._exit

    played(job, play)


def test_enter_right_after_another_tab_explains_the_row_that_is_on_screen(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        app.turn.acquire()  # nothing is read
        await pilot.press("tab", "tab", "tab", "tab")
        app.query_one(DataTable).action_select_cursor()
        app.turn.release()
        await settled(pilot, app)
        assert isinstance(app.screen, Explanation) and app.screen.text.startswith("operator: counts")

    played(job, play)


def test_commits_are_followed_and_what_cannot_be_read_stays_on_screen(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        await go_to(pilot, app, "counts windows")
        with COUNTS.open(str(job)) as op:
            op.add_messages([{"k": "later", "t": 2_000_000}])
            op.flush()
        app.follow()
        await settled(pilot, app)
        before = shown(app)
        assert any("later" in row for row in before)
        (job / "log").rename(job / "gone")
        app.follow()
        await settled(pilot, app)
        assert shown(app) == before and "cannot be read" in notice(app)
        (job / "gone").rename(job / "log")
        app.follow()
        await settled(pilot, app)
        assert shown(app) == before and "cannot be read" not in notice(app)

    played(job, play)


def test_keys_of_any_kind_are_text(job: Path) -> None:
    async def play(pilot: Pilot[None], app: TopApp) -> None:
        await go_to(pilot, app, "counts windows")
        await press(pilot, app, "slash", *"<", "enter")
        [row] = shown(app)
        assert "[bold]<script>/\\u001b[31m" in row
        svg = app.export_screenshot()
        assert "\x1b" not in svg and "&lt;script&gt;" in svg
        await press(pilot, app, "slash", *"xx", "enter")
        assert max(map(len, shown(app)[0])) == 40

    played(job, play)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_table_of_every_operator_has_a_tab(name: str, tmp_path: Path) -> None:
    operator = OPERATORS[name]
    with operator.definition.open(str(tmp_path), schema=operator.schema) as op:
        op.add_messages(
            operator.tables if operator.definition.by_input else next(iter(operator.tables.values()))
        )
        op.flush()
    with wr.read_state(str(tmp_path), definition=operator.definition) as state:
        titles = [tab.title for tab in tabs_of(state)]
        for tab in tabs_of(state):
            listing = tab.read(state, Query())
            assert listing.total >= len(listing.rows)
            if tab.explain is not None and listing.rows:
                assert tab.explain(state, listing.rows[0]) or None in listing.rows[0].values()
        for part in operator.definition.parts:
            for table in part.tables:
                assert any(t.startswith(part.name) and t.endswith(table) for t in titles), (titles, table)


def test_without_a_terminal_it_prints_once_and_ends(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(job)]) == 0
    printed = capsys.readouterr().out
    assert "counts windows: 93 rows" in printed and "key 042" in printed and "malformed" in printed
    assert main(["top", str(job), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["counts windows"]) == 93 and said["Commits"][-1]["commit"] == 1
    assert "\x1b" not in printed and max(map(len, printed.splitlines())) < 400


def test_a_job_without_a_commit_and_a_place_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with COUNTS.open(str(tmp_path / "new")):
        pass
    out = io.StringIO()
    with State(str(tmp_path / "new")) as state:
        print_once(state, out)
    assert "Commits: 0 rows" in out.getvalue()
    assert main(["top", str(tmp_path / "missing")]) == 1
    assert "is no windrow location" in capsys.readouterr().err
