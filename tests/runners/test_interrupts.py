"""Ctrl-C and SIGTERM end a loop after what it has taken is committed; a program's own handlers stay."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.runners.embedded import consume
from windrow.runners.interrupts import Interrupts

DEFINITION = wr.Aggregate(
    by="k", event_time="t", window=wr.tumbling("10 seconds"), agg={"n": wr.count()}, retention="1 hour"
)


@pytest.fixture(autouse=True)
def in_the_foreground() -> Iterator[None]:
    """Restore the handler of Ctrl-C: a shell's background processes ignore it, and so would the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Records:
    """Stands for the consumer: a message a turn, and a signal in the middle of the second one."""

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.turns = number, 0
        self.op: Any = None

    def begin(self, open_at: Any, location: str) -> None:
        self.op = open_at(location)

    def turn(self, tick_s: float) -> None:
        self.turns += 1
        assert self.turns < 3, "nobody has ended the loop"
        if self.turns == 2:
            signal.raise_signal(self.number)
        self.op.add_message(wr.Message({"k": "a", "t": self.turns}))

    def end(self) -> None:
        self.op.close()

    def abandon(self) -> None:
        self.op.abandon()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_when_what_it_has_taken_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    monkeypatch.setattr(consume, "_Alone", lambda stream: Records(number))
    before = signal.getsignal(number)
    if number is signal.SIGTERM:
        assert before is signal.SIG_DFL
    consume.run(DEFINITION.open, str(tmp_path), None)  # type: ignore[arg-type]
    assert signal.getsignal(number) is before
    with DEFINITION.open(str(tmp_path)) as op:
        assert [w.messages for w in op.get_windows()] == [2]
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_signal_does_what_it_always_did() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts("it") as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked is signal.SIGINT
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_programs_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        with Interrupts("it") as interrupts:
            signal.raise_signal(signal.SIGTERM)
        assert got == [signal.SIGTERM] and interrupts.asked is None
    finally:
        signal.signal(signal.SIGTERM, before)
