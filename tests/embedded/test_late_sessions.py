"""Messages of sessions that are late: by their own window, and never by a session that they would have joined."""

from __future__ import annotations

from typing import Any

import pytest

import windrow as wr

S = 1_000_000


def emitted(
    location: str, messages: str, *, gap: str = "3 seconds", **options: Any
) -> tuple[list[str], list[str]]:
    """(panes, reasons of dead letters) of `key time` pairs, each a step of its own."""
    given: dict[str, Any] = {
        "by": "k",
        "event_time": "t",
        "window": wr.session(gap),
        "agg": {"n": wr.count()},
        "watermark": "0 seconds",
        "retention": "1 hour",
        "emit": wr.Emit.append(),
    }
    with wr.Aggregate(**given | options).open(location) as op:
        for one in messages.split(", "):
            key, time = one.split()
            op.add_message({"k": key, "t": round(float(time) * S)})
        panes = [
            f"{p.key['k']} [{p.window.start_us / S:g}, {p.window.end_us / S:g}) {p['n']}"
            for p in op.get_result()
        ]
        return panes, [letter.reason for letter in op.dead_letters()]


AGGREGATIONS = {
    "accumulated": {"n": wr.count()},
    "kept messages": {"n": wr.count(), "mid": wr.median("t")},
}


@pytest.mark.parametrize("agg", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_a_message_beside_a_closed_session_whose_own_window_is_open_begins_another_one(
    tmp_path: Any, agg: Any
) -> None:
    panes, dead = emitted(str(tmp_path), "a 11.6, z 14.601, z 14.602, a 14.5, z 30, z 31", agg=agg)
    assert panes == ["a [11.6, 14.6) 1", "a [14.5, 17.5) 1", "z [14.601, 17.602) 2"]
    assert dead == []
