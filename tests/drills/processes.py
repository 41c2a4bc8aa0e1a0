"""The processes of a job, by ps."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    command: str


def of_session(pid: int) -> list[Process]:
    """All that a process which leads a session has started, and what these have.

    A parent may be dead: Python workers outlive their daemon, and Spark goes on using them.
    """
    listing = subprocess.run(
        ["ps", "-Aww", "-o", "pid=,args="], check=True, stdout=subprocess.PIPE, text=True
    )
    session = []
    for line in listing.stdout.splitlines():
        number, _, command = line.strip().partition(" ")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if int(number) != pid and os.getsid(int(number)) == pid:
                session.append(Process(int(number), command))
    return session


def kill(pid: int) -> bool:
    """`kill -9`. False if there is no such process any more."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_session(pid: int) -> None:
    """`kill -9` of a process and all that it has started, the process first."""
    doomed = of_session(pid)
    kill(pid)
    for process in doomed:
        kill(process.pid)
