"""Logging of windrow: one entry point, which is quiet by default and never raises.

If the program has configured structlog, that configuration decides. Otherwise records go to Python's logger of that name:
WARNING and above, to standard error, unless the program configures otherwise. A full disk or a closed pipe under a log must
not undo a valid commit. This module does not import structlog, which costs a seventh of windrow's import time. A program that
has configured it has imported it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any


class Logger:
    """Takes an event and its facts: `logger.warning("sink refused", commit=3)`."""

    def __init__(self, name: str, facts: dict[str, Any] | None = None) -> None:
        self._name = name
        self._facts = facts or {}

    def bind(self, **facts: Any) -> Logger:
        """Return the same logger, which adds these facts to every event."""
        return Logger(self._name, {**self._facts, **facts})

    def debug(self, event: str, **facts: Any) -> None:
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log(logging.ERROR, event, facts)

    def log(self, level: int, event: str, *values: Any) -> None:
        """Log as Python's own loggers do: librdkafka reports through this method."""
        self._log(level, event % values if values else event, {})

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        try:
            structlog = sys.modules.get("structlog")
            if getattr(structlog, "is_configured", bool)():
                emitted = structlog.get_logger(self._name)  # type: ignore[union-attr]
                getattr(emitted, logging.getLevelName(level).lower())(event, **{**self._facts, **facts})
                return
            plain = logging.getLogger(self._name)
            if plain.isEnabledFor(level):
                text = " ".join(f"{name}={value!r}" for name, value in {**self._facts, **facts}.items())
                plain.log(level, "%s: %s", event, text)
        except Exception:  # logging is no part of the work
            return


def get_logger(name: str = "windrow") -> Logger:
    """Return the logger of a part of windrow."""
    return Logger(name)
