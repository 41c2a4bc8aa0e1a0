"""Processes and their children, by ps."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


def below(pid: int) -> list[Process]:
    """All that a process has started, and what these have, nearest first."""
    told = subprocess.run(
        ["ps", "-Aww", "-o", "pid=,ppid=,args="], check=True, stdout=subprocess.PIPE, text=True
    )
    there = [
        Process(int(line[0]), int(line[1]), line[2] if len(line) > 2 else "")
        for line in (text.split(None, 2) for text in told.stdout.splitlines())
    ]
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [p for p in there if p.parent in parents]
        found += children
        parents = {p.pid for p in children}
    return found


def kill(pid: int) -> bool:
    """`kill -9`. False if there is no such process any more."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_tree(pid: int) -> None:
    """`kill -9` of a process and all below it, the process first."""
    doomed = below(pid)
    kill(pid)
    for process in doomed:
        kill(process.pid)
