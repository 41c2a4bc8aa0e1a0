"""Reader of one job for all readers of its page: one thread, one `State`, and a few older states."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

from windrow.checkpoint.health import Health
from windrow.checkpoint.records import now_of
from windrow.console import views
from windrow.console.text import modules_from_here
from windrow.core.clock import SystemClock
from windrow.core.errors import WindrowError
from windrow.runners.state import State, read_state
from windrow.runners.state.definitions import location_and_log

T = TypeVar("T")

#: A state is read at most so often, and so that reading takes no more than this share of one core.
EVERY_S, SHARE = 0.25, 0.05
#: A state as of an older commit has scratch files: so many stay open.
OLDER_STATES = 3
#: A job makes no progress when nothing has come for so many of its usual gaps, and for so long at least.
GAPS, LEAST_GAP_US = 10, 10_000_000
#: A reader that waits for news has a sign of life every so often.
SILENCE_S = 10.0


class JobReader:
    """A job at a location. Its thread does all reading; `run` hands it work.

    error: why the job cannot be read now; since_us: since when
    """

    def __init__(self, name: str, location: str, definition: Any = None) -> None:
        self.name, self.location, self.definition = name, location, definition
        self.state: State | None = None
        self.error: str | None = None
        self.since_us = 0
        self._older: OrderedDict[int, State] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"windrow-ui-{name}")
        self._spent_s = 0.0
        self._polling = asyncio.Lock()
        self._next_poll_s = 0.0

    async def run(self, read: Callable[[], T]) -> T:
        """Run `read()` in the job's thread."""

        def timed() -> T:
            begun = time.thread_time()
            try:
                return read()
            finally:
                self._spent_s += time.thread_time() - begun

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    async def poll(self) -> None:
        """Follow the job, unless that was done a moment ago."""
        async with self._polling:
            if time.monotonic() < self._next_poll_s:
                return
            await self.run(self._follow)
            spent, self._spent_s = self._spent_s, 0.0
            self._next_poll_s = time.monotonic() + max(EVERY_S, spent / SHARE)

    def _follow(self) -> None:
        try:
            if self.state is None:
                with modules_from_here():
                    location, log = location_and_log(self.location)
                self.state = read_state(location, log=log, definition=self.definition)
            else:
                self.state.refresh()
            self.error = None
        except (WindrowError, OSError) as error:
            if self.error is None:
                self.since_us = SystemClock().now_us()
            self.error = str(error)

    def as_of(self, commit: int | None) -> State:
        """Return the state after a commit, None for the newest. To be called in the job's thread."""
        if self.state is None:
            self._follow()
        if self.state is None:
            raise LookupError(self.error)
        if commit is None or commit == self.state.commit:
            return self.state
        if commit not in self._older:
            with modules_from_here():
                location, log = location_and_log(self.location)
            self._older[commit] = read_state(location, log=log, as_of=commit, definition=self.definition)
            while len(self._older) > OLDER_STATES:
                self._older.popitem(last=False)[1].close()
        self._older.move_to_end(commit)
        return self._older[commit]

    def health(self) -> Health | None:
        """Return the job's health; None where it cannot be read."""
        return None if self.state is None else views.health(self.state.look, SystemClock().now_us())

    def stalled_since(self, health: Health | None) -> int | None:
        """Return when the job made progress last, if that is longer ago than usual."""
        if self.state is None or health is None or health.age_us is None:
            return None
        times = [us for c in self.state.commits()[-20:] if (us := now_of(c)) is not None]
        gaps = [b - a for a, b in pairwise(times)]
        usual = max(int(GAPS * median(gaps)) if gaps else 0, LEAST_GAP_US)
        return SystemClock().now_us() - health.age_us if health.age_us > usual else None

    async def news(self) -> AsyncIterator[str]:
        """Yield the number of the commit, or what else changed, whenever it does; and now and then without a change."""
        before, heard_s = None, 0.0
        while True:
            await self.poll()
            stalled = await self.run(lambda: self.stalled_since(self.health()) is not None)
            mark = f"{0 if self.state is None else self.state.commit} {self.error or ''} {stalled}"
            if mark != before or time.monotonic() - heard_s > SILENCE_S:
                before, heard_s = mark, time.monotonic()
                yield str(0 if self.state is None else self.state.commit)
            await asyncio.sleep(max(0.05, self._next_poll_s - time.monotonic()))

    def close(self) -> None:
        """Close all states."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for state in (*self._older.values(), *([] if self.state is None else [self.state])):
            state.close()
