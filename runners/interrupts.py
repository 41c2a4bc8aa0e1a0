"""Ctrl-C and SIGTERM handling: a running loop commits what has come, then ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from windrow.core.logs import get_logger

logger = get_logger()

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which the first SIGINT or SIGTERM only sets `asked`; a second one has its normal effect.
    In another thread than the main one, and where the program has a handler of its own, nothing changes.
    """

    def __init__(self, what: str) -> None:
        self._what, self._before = what, dict[signal.Signals, Any]()
        self.asked: signal.Signals | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if _nobodys(handler):
                    self._before[number] = handler
                    signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self.asked = signal.Signals(number)
        logger.warning(f"{self.asked.name}: {self._what} ends when what it has taken is committed")

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


def _nobodys(handler: Any) -> bool:
    """True if the program has none of its own: Python's, the system's, or Spark's, which cancels all jobs."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")
