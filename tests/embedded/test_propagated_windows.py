"""An aggregate in a chain whose rows keep the windows that they came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing import ManualClock, TestDriver

S = 1_000_000


def users(window: Any, **changed: Any) -> wr.Aggregate:
    """Count by user and site."""
    options: dict[str, Any] = {
        "by": ("site", "user"), "event_time": "t", "window": window, "agg": {"n": wr.count()}, "retention": "1 hour",
        "emit": wr.Emit.append(), "name": "users",
    }  # fmt: skip
    return wr.Aggregate(**(options | changed))


def sites(**changed: Any) -> wr.Aggregate:
    options: dict[str, Any] = {
        "by": "site", "event_time": "window_time", "window": wr.inherited(), "retention": "1 hour", "name": "sites",
        "agg": {"users": wr.count(), "n": wr.sum("n")},
    }  # fmt: skip
    return wr.Aggregate(**(options | changed))


def visit(second: float, user: str = "ann", site: str = "x") -> dict[str, Any]:
    return {"t": int(second * S), "user": user, "site": site, "page": int(second)}


def brief(panes: list[wr.Pane]) -> list[tuple[Any, ...]]:
    return [(p.window.start_us // S, p.window.end_us // S, p.key["site"], p["users"], p["n"]) for p in panes]  # type: ignore[union-attr]


def test_sessions_of_users_are_windows_of_sites(tmp_path: Path) -> None:
    with TestDriver(wr.chain(users(wr.session("5 seconds")), sites()), tmp_path) as driver:
        driver.feed(
            [
                visit(1),
                visit(4),
                visit(1, "bob"),
                visit(4, "bob"),
                visit(2, "eve"),
                visit(4, "eve"),
                visit(1, "joe", "y"),
            ]
        )
        driver.feed([visit(30)])
        assert brief(driver.panes()) == [(1, 6, "y", 1, 1), (1, 9, "x", 2, 4), (2, 9, "x", 1, 2)]
        driver.drain()
        assert brief(driver.check(dead_letters=True).panes)[3:] == [(30, 35, "x", 1, 1)]


@pytest.mark.parametrize(
    ("window", "first"),
    [
        (wr.hopping("10 seconds", "5 seconds"), [(-5, 5), (0, 10), (5, 15)]),
        (wr.tumbling("10 seconds", offset="3 seconds"), [(-7, 3), (3, 13)]),
        (wr.calendar("day", time_zone="UTC"), [(0, 86_400)]),
    ],
    ids=repr,
)
def test_windows_of_any_kind_stay_what_they_are(window: Any, first: list[Any], tmp_path: Path) -> None:
    with TestDriver(
        wr.chain(
            users(window),
            sites(emit=wr.Emit.append()),
            sites(name="last", agg={"users": wr.max("users"), "n": wr.sum("n")}),
        ),
        tmp_path,
    ) as driver:
        driver.feed([visit(1), visit(1, "bob"), visit(9)])
        driver.drain()
        panes = driver.check(dead_letters=True).panes
        assert [span[:2] for span in brief(panes)] == first
        assert {p["users"] for p in panes} <= {1, 2}


def test_late_rows_come_to_the_window_that_they_are_of(tmp_path: Path) -> None:
    early = users(wr.hopping("10 seconds", "5 seconds"), emit=wr.Emit(late=wr.every_batch, mode="discarding"))
    last = sites(emit=wr.Emit(early=wr.every_batch, late=wr.every_batch, mode="retracting"))
    with TestDriver(wr.chain(early, last), tmp_path) as driver:
        for second in (1, 20, 2, 3, 40, 12):
            driver.feed([visit(second), visit(second, "bob")])
            driver.next_offsets()
            driver.restart()
        driver.drain()
        assert len(driver.check(dead_letters=True).panes) > 10


def test_windows_are_asked_for_and_explained(tmp_path: Path) -> None:
    chain = wr.chain(
        users(wr.session("5 seconds"), agg={"n": wr.count(), "m": wr.median("page")}),
        sites(agg={"users": wr.median("n"), "n": wr.sum("n")}),
    )
    with chain.open(str(tmp_path), clock=ManualClock()) as op:
        op.add_messages(
            [
                wr.Message(visit(s, u), wr.Position("", 0, i))
                for i, (s, u) in enumerate(
                    [(1, "ann"), (4, "ann"), (2, "bob"), (3, "eve"), (4, "eve"), (60, "ann")]
                )
            ]
        )
        op.timeout()
        windows = op.get_windows(operator="sites")
        assert [(w.window.start_us // S, w.window.end_us // S, w.key, w.values["n"]) for w in windows] == [
            (1, 9, {"site": "x"}, 2),
            (2, 7, {"site": "x"}, 1),
            (3, 9, {"site": "x"}, 2),
        ]
        assert op.get_windows(8 * S, 8 * S, operator="sites") == windows[::2]
        assert op.get_windows(1 * S, 1 * S, operator="sites") == windows[:1]
        assert op.get_windows(operator="sites", key="y") == []
        assert [m.payload["n"] for m in op.get_messages(operator="sites")] == [1, 2, 2]
    with wr.read_state(str(tmp_path)) as state:
        assert state.get_windows(operator="sites") == windows
        [why] = state.explain(1 * S, operator="sites")
        assert [p.offset for p in why.outside or ()] == [0, 1]
        [why] = state.explain(2 * S, operator="sites")
        assert [p.offset for p in why.outside or ()] == [2] and [t.messages for t in why.commits] == [1]


def test_its_text_builds_it_again() -> None:
    assert eval(repr(sites()), {"wr": wr}) == sites()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: sites().open("nowhere"), e.BadWindow, "takes its messages from outside"),
        (lambda: wr.open([sites(), users(wr.tumbling("1 second"))], "nowhere"), e.BadWindow, "from outside"),
        (lambda: sites().foreach_batch("nowhere"), e.BadWindow, "takes its messages from outside"),
        (lambda: wr.chain(sites(emit=wr.Emit.append()), sites(name="more")), e.BadWindow, "takes its messages from outside"),
        (lambda: wr.chain(users(wr.tumbling("1 second")), sites(event_time="t")), e.BadWindow, "'window_time'"),
        (lambda: sites(retention=wr.Retain("1 hour", windows=3)), e.BadWindow, "kept by time"),
        (lambda: wr.JoinWindow(event_time="t", window=wr.inherited(), retention="1 hour"), e.BadWindow, "join window"),
        (lambda: sites(by=("site", "window_start")), e.ReservedColumn, "the window itself"),
        (
            lambda: wr.CoGroup(
                inputs=(wr.Input("a", event_time="t"),), window=wr.inherited(), agg={"n": wr.count()}, retention="1 hour"
            ),
            e.BadWindow,
            "name one",
        ),
    ],
)  # fmt: skip
def test_what_has_no_window_to_inherit_is_refused(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()
