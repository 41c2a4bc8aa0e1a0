"""Pages of a table, and a state that follows its job: each as reading all of it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core.errors import ConfigurationError
from windrow.runners.state import State
from windrow.testing.clock import ManualClock

COUNTS = wr.Aggregate(
    by="key",
    event_time="t",
    window=wr.tumbling("1 hour"),
    retention="1 day",
    agg={"n": wr.count(), "total": wr.sum("v"), "all": wr.collect_list("v"), "middle": wr.median("v")},
)
KEYS = ["b", "a", None, "<c>", "B2", "a", "d", "b"]


def _feed(op: Any, commit: int) -> None:
    for i, key in enumerate(KEYS[: 4 + commit]):
        time = f"2013-07-01 {5 + (i + commit) % 3:02d}:1{i}Z"
        op.add_message({"key": key, "t": time, "v": (7 * i) % 5 if i % 3 else None})
    op.flush()


@pytest.fixture
def location(tmp_path: Path) -> Iterator[str]:
    with COUNTS.open(str(tmp_path / "job"), clock=ManualClock()) as op:
        for commit in range(3):
            _feed(op, commit)
        yield str(tmp_path / "job")


def _sorted(rows: list[dict[str, Any]], column: str, descending: bool) -> list[dict[str, Any]]:
    """Sort as the field does: nulls last in both directions, equal rows in the order they have."""
    known = sorted((r for r in rows if r[column] is not None), key=lambda r: r[column], reverse=descending)
    return [*known, *(r for r in rows if r[column] is None)]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", ["key", "n", "total", "messages", "fired"])
def test_pages_in_an_order_are_all_rows_sorted(location: str, order: str, descending: bool) -> None:
    with wr.read_state(location) as state:
        expected = _sorted(state.windows_table().to_pylist(), order, descending)
        found: list[dict[str, Any]] = []
        while page := state.page("windows", order=order, descending=descending, after=len(found), limit=3):
            assert (page.total, page.after) == (len(expected), len(found))
            if not len(page.rows):
                break
            found += page.rows.to_pylist()
        assert found == expected


def test_the_own_order_is_that_of_the_table_and_runs_backwards(location: str) -> None:
    with wr.read_state(location) as state:
        expected = state.windows_table()
        assert state.page("windows", limit=4, after=2).rows.equals(expected.slice(2, 4))
        backwards = state.page("windows", descending=True, limit=100).rows.to_pylist()
        assert backwards == expected.to_pylist()[::-1]
        assert state.page("windows", after=1_000).rows.equals(expected.slice(0, 0))
        assert state.page("messages", limit=3).rows.equals(state.messages_table().slice(0, 3))


def test_contains_finds_text_and_numbers_whatever_their_case(location: str) -> None:
    with wr.read_state(location) as state:
        rows = state.windows_table().to_pylist()
        page = state.page("windows", contains="b", limit=100)
        assert page.rows.to_pylist() == [r for r in rows if "b" in (r["key"] or "").lower()]
        assert page.total == len(page.rows) > 0
        by_key = state.page("windows", contains="b", order="key", descending=True, limit=100).rows.to_pylist()
        assert by_key == _sorted(page.rows.to_pylist(), "key", True)
        assert state.page("windows", contains="nobody").total == 0


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"order": "nothing"}, "order='nothing' is no column"),
        ({"order": "all"}, "order='all': its values are lists or structs"),
        ({"after": -1}, "after=-1"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_a_page_that_cannot_be_is_an_error(location: str, asked: dict[str, Any], error: str) -> None:
    with wr.read_state(location) as state, pytest.raises(ConfigurationError, match=error):
        state.page("windows", **asked)


def test_a_state_that_follows_a_job_is_as_one_read_anew(tmp_path: Path) -> None:
    location = str(tmp_path / "job")
    with COUNTS.open(location, clock=ManualClock()) as op:
        _feed(op, 0)
        with wr.read_state(location) as state:
            opened = state._views[0]
            for commit in range(1, 5):
                state.page("windows")
                _feed(op, commit)
                op.add_message({"key": "late", "t": "no time", "v": 1})
                op.flush()
                assert state.refresh() == op.last_commit
                with wr.read_state(location) as anew:
                    _equal(state, anew)
            assert state.refresh() == op.last_commit
            assert state._views[0] is opened, "the store was opened anew for a small commit"


def test_a_state_follows_another_driver(tmp_path: Path) -> None:
    location = str(tmp_path / "job")
    with COUNTS.open(location, clock=ManualClock()) as op:
        _feed(op, 0)
    with wr.read_state(location) as state, COUNTS.open(location, clock=ManualClock()) as op:
        _feed(op, 1)
        state.refresh()
        with wr.read_state(location) as anew:
            _equal(state, anew)


def _equal(state: State, anew: State) -> None:
    assert state.commit == anew.commit
    assert state.windows_table().equals(anew.windows_table())
    assert state.page("windows", limit=1_000).rows.equals(anew.windows_table())
    assert state.messages_table().equals(anew.messages_table())
    assert state.commits() == anew.commits()
    assert state.watermarks == anew.watermarks
    assert state.dead_letters_table().equals(anew.dead_letters_table())
    assert state.look.last_commit == anew.look.last_commit
