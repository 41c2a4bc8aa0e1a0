"""Messages of sessions that are late: by their own window, and never by a session that they would have joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr

S = 1_000_000
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "accumulated": {"n": wr.count()},
    "kept messages": {"n": wr.count(), "mid": wr.median("v")},
}


def emitted(folder: Path, messages: str, **options: Any) -> tuple[list[str], list[str]]:
    """(panes, reasons of dead letters) of pairs of a key and a time, each a step of its own."""
    arguments: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session("3 seconds"),
        "agg": {"n": wr.count()},
        "watermark": "0 seconds",
        "retention": "1 hour",
        "emit": wr.Emit.append(),
    }
    with wr.Aggregate(**arguments | options).open(str(folder)) as op:
        for one in messages.split(", "):
            key, time = one.split()
            op.add_message({"k": key, "t": round(float(time) * S), "v": float(time)})
        panes = [
            f"{p.key['k']} [{p.window.start_us / S:g}, {p.window.end_us / S:g}) {p['n']}"
            for p in op.get_result()
        ]
        return panes, [letter.reason for letter in op.dead_letters()]


@pytest.mark.parametrize("agg", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_a_message_next_to_a_closed_session_whose_own_window_is_open_begins_another_one(
    tmp_path: Path, agg: Any
) -> None:
    panes, dead = emitted(tmp_path, "a 11.6, z 14.601, z 14.602, a 14.5, z 30, z 31", agg=agg)
    assert panes == ["a [11.6, 14.6) 1", "a [14.5, 17.5) 1", "z [14.601, 17.602) 2"]
    assert dead == []


@pytest.mark.parametrize("retention", ["0 seconds", "1 hour"])
@pytest.mark.parametrize("agg", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_an_open_session_takes_what_falls_into_it_whatever_the_retention(
    tmp_path: Path, retention: str, agg: Any
) -> None:
    messages = "a 10, a 12, a 12.1, a 8, b 8, z 30"
    panes, dead = emitted(tmp_path, messages, retention=retention, agg=agg)
    assert panes == ["a [8, 15.1) 4"]
    assert dead == ["out_of_retention" if retention == "0 seconds" else "too_late"]


def test_sessions_that_overlap_are_asked_for_and_explained_each_with_its_own_messages(tmp_path: Path) -> None:
    definition = wr.Aggregate(
        by="k",
        event_time="t",
        window=wr.session("3 seconds"),
        agg={"all": wr.collect_list("v"), "mid": wr.median("v")},
        watermark=wr.explicit(),
        allowed_lateness="1 second",
        retention="1 hour",
        name="visits",
    )
    with definition.open(str(tmp_path)) as op:
        for time, watermark in ((10, 10), (12, 10), (20, 17), (17.5, 17), (14.8, 17), (12.5, 17), (9.6, 17)):
            op.add_message({"k": "a", "t": round(time * S), "v": float(time)})
            op.advance_watermark(watermark * S)
        op.flush()
        sessions = {(w.window.start_us / S, w.window.end_us / S): w.values["mid"] for w in op.get_windows()}
        assert sessions == {(10, 15): 11, (9.6, 23): 14.8}
        assert [m.payload["v"] for m in op.get_messages()] == [9.6, 10, 12, 12.5, 14.8, 17.5, 20]
    state = wr.read_state(str(tmp_path))
    for start, offsets in ((10, [0, 1]), (9.6, [6, 5, 4, 3, 2])):
        [made] = state.explain(round(start * S), key="a")
        assert [position.offset for position in made.positions] == offsets
