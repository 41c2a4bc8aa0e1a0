"""Validation of sessions in a join: rejects options that cannot be combined with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from windrow.core.errors import BadWindow, RetentionMissing
from windrow.core.inputs import Input
from windrow.core.policy import Retention
from windrow.core.time import DAY_US
from windrow.core.windows import Session


def check_sessions(
    left: Input, right: Input, window: Any, *, on: Sequence[tuple[str, str]], how: str, retention: Any
) -> None:
    """Reject sessions that are impossible. window: of both inputs together."""
    own = [given.window for given in (left, right)]
    if window is None and not any(isinstance(w, Session) for w in own):
        return
    if window is not None and not isinstance(window, Session):
        raise BadWindow(
            f"window={window!r} of a join: both inputs make sessions together, wr.session('10 minutes'); give windows of other "
            "kinds to the inputs, wr.Input(..., window=...), or to a join window for each, wr.JoinWindow(window=...)"
        )
    sessions = [w for w in (window, *own) if w is not None]
    if len(sessions) > 1:
        raise BadWindow(
            f"{sessions[0]!r} and {sessions[1]!r} do not go together: use window=wr.session(...) of the join for sessions of "
            "both inputs, or that of one input for sessions of its messages, and leave the other out"
        )
    [session] = sessions
    assert isinstance(session, Session)
    if session.max_length_us is not None:
        raise BadWindow(
            f"{session!r} of a join: a message that comes late would move every cut after it, and rows of a join are not taken "
            "back; use cut=wr.tumbling(...) or cut=wr.calendar(...)"
        )
    if not on:
        raise BadWindow(
            f"{session!r} of a join without keys: sessions are of a key, name it, on='user'; without one, use wr.sliding"
        )
    if how == "asof":
        raise BadWindow(
            f"how='asof' with {session!r}: it looks back from each message, use within=... without sessions"
        )
    if left.name == right.name:
        raise BadWindow(
            f"{session!r} of a join of {left.name!r} with itself: give the stream to the join twice, under two names"
        )
    for given in (left, right):
        if given.static:
            raise BadWindow(
                f"input {given.name!r} is static, and {session!r} ends with the watermark, which it does not hold: leave "
                "static=True out"
            )
    sized = isinstance(retention, Retention) and (retention.windows, retention.messages) != (None, None)
    if sized and retention.time_us is None and window is None:
        raise RetentionMissing(
            f"{retention!r} counts the sessions of {session!r}, and not the messages of the other input that are in none: say "
            f"how long these are kept, {replace(retention, time_us=DAY_US)!r}"
        )
