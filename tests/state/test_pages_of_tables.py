"""Pages of a table, and a state that follows its job: each as reading all of it anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.checkpoint.shard_reader import ShardView
from windrow.core.errors import ConfigurationError
from windrow.operators.view import Query
from windrow.runners.state import State
from windrow.stores.kv import Batch
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
        rows: list[dict[str, Any]] = []
        while page := state.page("windows", order=order, descending=descending, after=len(rows), limit=3):
            assert (page.total, page.after) == (len(expected), len(rows))
            if not len(page.rows):
                break
            rows += page.rows.to_pylist()
        assert rows == expected


def test_the_own_order_is_that_of_the_table_and_runs_backwards(location: str) -> None:
    with wr.read_state(location) as state:
        expected = state.windows_table()
        assert state.page("windows", limit=4, after=2).rows.equals(expected.slice(2, 4))
        backwards = state.page("windows", descending=True, limit=100).rows.to_pylist()
        assert backwards == expected.to_pylist()[::-1]
        assert state.page("windows", after=1_000).rows.equals(expected.slice(0, 0))
        assert state.page("messages", limit=3).rows.equals(state.messages_table().slice(0, 3))


def test_an_open_operator_has_the_pages_of_its_state(tmp_path: Path) -> None:
    with COUNTS.open(str(tmp_path), clock=ManualClock()) as op:
        _feed(op, 0)
        _feed(op, 3)
        with wr.read_state(str(tmp_path)) as state:
            for asked in (
                {},
                {"order": "n", "descending": True},
                {"after": 3, "limit": 2},
                {"contains": "B"},
            ):
                ours, other = op.page(**asked), state.page("windows", **asked)  # type: ignore[arg-type]
                assert (ours.total, ours.rows) == (other.total, other.rows)
            assert op.page("messages", limit=3).rows.equals(state.page("messages", limit=3).rows)
        op.add_message({"key": "new", "t": "2013-07-01 07:00Z", "v": 1})
        assert op.page(contains="new").total == 1, "steps that are not committed count, as in get_windows"
        with pytest.raises(ConfigurationError, match="is no column"):
            op.page(order="nothing")


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


EMISSIONS = {
    "blocks": {},
    "pages": {"emit": wr.Emit(early=wr.every_batch)},
    "late": {"allowed_lateness": "2 hours"},
    "values": {"agg": {"n": wr.count(), "all": wr.collect_list("v")}},
    "hopping": {"window": wr.hopping("2 hours", "1 hour")},
    "global": {"by": ()},
    "limited": {"retention": wr.Retain("9 hours", windows=2), "emit": wr.Emit(early=wr.every_batch)},
    "first": {"emit": wr.Emit.update()},
    "second": {
        "by": "total",
        "event_time": "window_time",
        "agg": {"n": wr.count()},
        "emit": wr.Emit(early=wr.every_batch),
        "name": "second",
    },
}


def _aggregate(name: str) -> Any:
    """Return the operator of a name; "retracted": a chain whose second one counts keys by their sums, which change."""
    if name == "retracted":
        return _aggregate("first").then(_aggregate("second"))
    options: dict[str, Any] = {
        "by": "key",
        "event_time": "t",
        "window": wr.tumbling("1 hour"),
        "retention": "3 hours",
        "agg": {"n": wr.count(), "total": wr.sum("v")},
    }
    return wr.Aggregate(**options | EMISSIONS[name])


def _drawn(draw: random.Random, commit: int) -> Iterator[dict[str, Any]]:
    """Yield the messages of a commit: none, few or many, of sixty keys, some of them late."""
    for _ in range(draw.choice((0, 1, 3, 80))):
        hour = max(commit // 3 - draw.choice((0, 0, 0, 1, 2)), 0)
        second = 3_600 * hour + draw.randrange(3_600)
        key = draw.choice((None, *(f"key {n}" for n in range(60))))
        yield {"key": key, "t": 1_000_000 * second, "v": draw.randrange(9)}


@pytest.mark.parametrize(
    "name", ["blocks", "pages", "late", "values", "hopping", "global", "limited", "retracted"]
)
def test_windows_that_are_kept_in_memory_are_as_windows_read_anew(name: str, tmp_path: Path) -> None:
    draw, location = random.Random(name), str(tmp_path)
    with _aggregate(name).open(location, clock=ManualClock()) as op:
        op.add_message({"key": "first", "t": 0, "v": 0})
        op.flush()
        with wr.read_state(location) as state:
            for commit in range(16):
                op.add_messages([*_drawn(draw, commit)])
                if draw.random() < 0.7:  # of steps that are not committed
                    table = op._ask("windows", None, None, lambda view: view.windows_table(Query()))
                    assert op.page(limit=10_000).rows.equals(table), commit
                op.flush()
                state.refresh()
                if draw.random() < 0.7:
                    rows = state.page("windows", limit=10_000).rows
                    assert op.page(limit=10_000).rows.equals(rows), commit
                    with wr.read_state(location) as anew:
                        assert rows.equals(anew.windows_table()), commit
                        by = state.definition().by
                        keys = rows.column(by[0]).to_pylist() if by else [None]
                        key = draw.choice(keys or [None])
                        assert state.windows_table(key=key).equals(anew.windows_table(key=key))


def test_windows_of_several_shards_are_kept_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs have the keys of three shards; a view over their stores answers for all."""
    definition, draw, changes = _aggregate("pages"), random.Random(3), dict[int, Batch]()
    follow = ShardView.follow

    def noted(view: ShardView, known: Any) -> Batch:
        changes[id(view.kv)] = followed = follow(view, known)
        return followed

    monkeypatch.setattr(ShardView, "follow", noted)
    with ExitStack() as stack:
        jobs = [definition.open(str(tmp_path / f"{n}"), clock=ManualClock()) for n in range(3)]
        for op in map(stack.enter_context, jobs):
            op.add_message({"key": "first", "t": 0, "v": 0})
            op.flush()
        states = [stack.enter_context(wr.read_state(str(tmp_path / f"{n}"))) for n in range(3)]
        kept = None
        for commit in range(16):
            messages = [*_drawn(draw, commit)]
            for n, op in enumerate(jobs):
                op.add_messages([m for m in messages if len(str(m["key"])) % 3 == n])
                op.flush()
            changes.clear()
            watermark_us = min(s.watermark for s in states if s.refresh())
            stores = [s._views[0].kv for s in states]
            view = definition.logic().view(stores, watermark_us)
            kept = view.kept(kept, [changes.get(id(kv), Batch()) for kv in stores])
            anew = definition.logic().view(stores, watermark_us)
            assert view.windows_table(Query()).equals(anew.windows_table(Query())), commit


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
