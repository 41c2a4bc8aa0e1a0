"""The state of a join in this process: under which definition it opens, and how it comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from tests.deep import usually
from tests.embedded.test_joins import define, order, shipment
from windrow.checkpoint.shard import MessagesLost
from windrow.core import errors as e
from windrow.testing.clock import ManualClock


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "job")


# -- definitions and state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        lambda: define("left"),
        lambda: define(within=("0 seconds", "20 seconds")),
        lambda: define(on=("id", "time")),
        lambda: define(orders={"window": wr.sliding("10 seconds")}),
    ],
)
def test_state_of_another_join_is_refused_naming_both(location: str, other: Callable[[], wr.Join]) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
    with pytest.raises(e.DefinitionChanged) as error:
        other().open(location, clock=ManualClock())
    assert repr(define()) in str(error.value) and repr(other()) in str(error.value)


def test_what_does_not_shape_state_may_change(location: str) -> None:
    with define().open(location, clock=ManualClock()) as op:
        op.add_message(order(1), "orders")
    changed = define(
        retention="1 hour",
        allowed_lateness="1 minute",
        orders={"watermark": "1 minute"},
        emit=wr.Emit(early=wr.every_batch, late=wr.every("1 minute")),
    )
    with changed.open(location, clock=ManualClock()) as op:
        op.add_message(shipment(2), "shipments")
        assert len(op.get_result()) == 1


def test_a_closed_join_says_so_and_an_open_one_how_far_it_is(location: str) -> None:
    op = define().open(location, clock=ManualClock())
    op.add_message(order(1), "orders")
    op.timeout()
    assert repr(op) == f"<{define()!r} at {location}, commit 1>"
    op.close()
    assert repr(op).endswith(", closed>")
    with pytest.raises(e.OperatorClosed, match="open it again"):
        op.add_message(order(1), "orders")


def test_newest_rows_that_are_joined_with_themselves_by_other_columns_are_those_of_both_sides(
    location: str,
) -> None:
    rows = wr.Input("rows", event_time="t", window=wr.rows(1))
    join = wr.Join(left=rows, right=rows, on={"k": "of"}, within=("0 seconds", "0 seconds"))
    sent = [{"t": 2_000_000, "k": "a", "of": "b"}, {"t": 2_000_000, "k": "a", "of": "a"}]
    with join.open(location, clock=ManualClock()) as op:
        for n, one in enumerate(sent):
            op.add_message(wr.Message(one, wr.Position("s", 0, n)), "rows")
        op.timeout()
        # The first is no longer the newest `k` of "a", and still the newest `of` of "b".
        assert [m.position.offset for m in op.get_messages(input="rows")] == [0, 1]
        assert [m.position.offset for m in op.get_messages(key="a", input="rows")] == [0, 1]


# -- coming back ----------------------------------------------------------------------------------------------------

HOWS = {
    "over time": lambda: define("full", retention="1 minute"),
    "of rows": lambda: define(
        "left", orders={"window": wr.rows(3)}, shipments={"window": wr.rows(2)}, retention="1 minute"
    ),
}


def feed(op: Any, numbers: range) -> None:
    for n in numbers:
        op.add_messages({"orders": [order(n, n % 3, n)], "shipments": [shipment(n + 1, n % 2, n)]})


def begun(location: Path, definition: wr.Join) -> None:
    """A job that took forty of each and was closed; rows acknowledged."""
    with definition.open(str(location), clock=ManualClock()) as op:
        for n in range(0, 40, 10):
            feed(op, range(n, n + 10))
            op.timeout()
        op.get_result()
        op.flush()


def ended(location: Path, definition: wr.Join) -> Any:
    """Run the job that began with forty messages to its end."""
    with definition.open(str(location), clock=ManualClock()) as op:
        feed(op, range(30, 60))  # some are replays
        kept = [op.get_messages(input=name) for name in ("orders", "shipments")]
        op.drain()
        rows = [(r.values, r.timing) for r in op.get_result()]
        return rows, kept, op.next_offsets(), dict(op.counters)


#: Commits from one snapshot to the next: of each join one number, and in deep runs both.
EVERIES = (2, 256)
EVERY = "windrow.runners.embedded.engine.SNAPSHOT_EVERY"


@pytest.fixture(
    scope="module",
    params=usually(list(zip(HOWS, EVERIES, strict=True)), deep=list(product(HOWS, EVERIES))),
    ids=str,
)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[wr.Join, int, Path, Any]:
    """A join, its commits from one snapshot to the next, a job that was begun, and what that comes to undisturbed."""
    how, every = request.param
    definition, folder = HOWS[how](), tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EVERY, every)
        begun(folder / "begun", definition)
        shutil.copytree(folder / "begun", folder / "ended")
        return definition, every, folder / "begun", ended(folder / "ended", definition)


@pytest.mark.parametrize("lost", ["local", "nothing", "CURRENT", "one file"])
def test_a_store_that_is_lost_or_damaged_is_built_anew(
    tmp_path: Path, undisturbed: tuple[wr.Join, int, Path, Any], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, every, job, wanted = undisturbed
    monkeypatch.setattr(EVERY, every)
    shutil.copytree(job, tmp_path / "job")
    store = tmp_path / "job" / "local" / "shard-0000"
    if lost == "local":
        shutil.rmtree(store.parent)
    elif lost == "CURRENT":
        (store / "CURRENT").write_bytes(b"nonsense\n")
    elif lost == "one file":
        max(store.glob("*.sst"), key=lambda p: p.stat().st_size).unlink()
    assert ended(tmp_path / "job", definition) == wanted
    assert wanted[0] != []


def test_lost_messages_are_refused_with_a_remedy_that_a_join_has(tmp_path: Path) -> None:
    begun(tmp_path / "job", define("full"))
    for folder in ("local", "segments"):
        shutil.rmtree(tmp_path / "job" / folder)
    with pytest.raises(MessagesLost, match=r"messages are lost.*replay=.*restore the folders"):
        define("full").open(str(tmp_path / "job"), clock=ManualClock())
