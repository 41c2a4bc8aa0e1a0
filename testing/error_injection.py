"""Error injection: one error or interrupt, raised at the nth line that windrow runs, or at the nth call into the system.

`Hit` needs no support by the code that it hits. At a line it raises before the line is run, as Ctrl-C and a lack of memory do;
at a call it raises before the call is made, or when it has been made and only its answer is lost.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import windrow

#: The code to hit: the library, without the code of tests.
LIBRARY = os.path.dirname(os.path.abspath(windrow.__file__))
_ROOTS = tuple(
    os.path.realpath(os.path.join(LIBRARY, name)) + os.sep
    for name in ("core", "stores", "operators", "checkpoint", "connectors", "runners")
)
_SYSTEM = frozenset(("posix", "_io", "io", "rocksdict"))
#: Calls that cannot fail.
_HARMLESS = frozenset(("fspath", "getpid", "urandom", "isatty", "S_ISDIR", "closed"))

Error = Callable[[], BaseException]


def interrupt() -> BaseException:
    """Ctrl-C."""
    return KeyboardInterrupt("hit")


def no_memory() -> BaseException:
    return MemoryError("hit")


def disk_full() -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def disk_broken() -> BaseException:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class Hit:
    """An injected error: a context manager around the code to hit. `at` is the place of the hit, None if nothing was hit.

    error: makes the exception to raise. nth: from 1. calls: count calls into the operating system and the store, not lines.
    answered: with calls, raise after the call. strikes: False to only find the place. Settings of debuggers and coverage
    are put aside meanwhile. Garbage collection is off: it flushes a store that was never closed, and an error in that flush
    reaches no caller.
    """

    def __init__(
        self, error: Error, nth: int, *, calls: bool = False, answered: bool = False, strikes: bool = True
    ) -> None:
        self.error, self.nth, self.calls, self.answered = error, nth, calls, answered
        self.strikes = strikes
        self.at: str | None = None
        self._left = nth

    @property
    def passed(self) -> int:
        """Return the number of lines or calls that ran, up to `nth`."""
        return self.nth - self._left

    def __enter__(self) -> Hit:
        self._collects = gc.isenabled()
        gc.disable()
        if self.calls:
            self._before: Any = sys.getprofile()
            sys.setprofile(self._profile)
        else:
            self._before = sys.gettrace()
            sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        (sys.setprofile if self.calls else sys.settrace)(self._before)
        if self._collects:
            gc.enable()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if _struck(frame) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._strike(frame, "")
        return self._line

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == ("c_return" if self.answered else "c_call") and _is_system(argument):
            caller: FrameType | None = frame
            while caller is not None and not _struck(caller):
                caller = caller.f_back
            if caller is not None and "error_injection.py" not in frame.f_code.co_filename:
                self._strike(caller, f"{'after' if self.answered else 'before'} {argument.__qualname__} ")

    def _strike(self, frame: FrameType, what: str) -> None:
        if self.at is not None:
            return
        self._left -= 1
        if self._left:
            return
        path = os.path.realpath(frame.f_code.co_filename)
        name = os.path.relpath(path, os.path.dirname(os.path.dirname(_ROOTS[0])))
        error = self.error()
        self.at = f"{type(error).__name__} {what}at {name}:{frame.f_lineno} in {frame.f_code.co_name}"
        if self.strikes:
            raise error


_known: dict[str, bool] = {}


def _struck(frame: FrameType) -> bool:
    """True in the library's own code."""
    path = frame.f_code.co_filename
    if path not in _known:
        _known[path] = os.path.realpath(path).startswith(_ROOTS)
    return _known[path]


def _is_system(function: Any) -> bool:
    """True for calls of files, folders and RocksDB."""
    if function.__name__ in _HARMLESS:
        return False
    owner = getattr(function, "__self__", None)
    name = getattr(owner, "__name__", None) if isinstance(owner, type(os)) else type(owner).__module__
    return name is not None and name.partition(".")[0] in _SYSTEM
