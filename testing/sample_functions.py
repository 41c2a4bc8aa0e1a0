"""A function for the process operators that seeds draw."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any


class Busy:
    """A process function that keeps state and sets timers of both kinds, as its messages order."""

    def on_message(self, key: Any, message: dict[str, Any], state: Any, timers: Any) -> Any:
        state["n"] = state.get("n", 0) + 1
        match message["i"]:
            case 0:
                raise ValueError("no")
            case 1:
                timers.set(timers.time + timedelta(seconds=3))
            case 2:
                timers.set(timers.now + timedelta(seconds=4), of="now")
            case 3 if state["n"] > 3:
                state.clear()
                return None
        return {"said": "message", "n": state["n"]}

    def on_timer(self, key: Any, at: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        state["fired"] = state.get("fired", 0) + 1
        yield {"said": timers.of, "n": state["fired"]}
