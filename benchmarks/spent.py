"""Processor time and memory of a run, summed over all processes of a side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Spent:
    """Seconds of processor time, and by the clock."""

    cpu: float = 0.0
    seconds: float = 0.0


@contextmanager
def measured(cpu: Callable[[], float]) -> Iterator[Spent]:
    """Measure the processor time of the block."""
    spent = Spent()
    begin, at = cpu(), time.perf_counter()
    yield spent
    spent.cpu, spent.seconds = cpu() - begin, time.perf_counter() - at


def all_processes() -> float:
    """The clock of this process and all that came of it."""
    return cpu_seconds([os.getpid()])


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and their descendants, including those that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    processes = list(pids)
    for pid in processes:
        processes += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in processes) / os.sysconf("SC_CLK_TCK")
