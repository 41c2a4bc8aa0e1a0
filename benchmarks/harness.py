"""Runs interleaved, medians, ratios: what every benchmark of this package has in common."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from tqdm import tqdm

from .sparks import end_session


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of ours beside a figure to compare it with.

    ratio: how many times as good as the other we are, whatever the unit. bound: the ratio or figure that is required, aimed
    at or only told; meets: True if it is reached, None where nothing is asked.
    """

    name: str
    unit: str
    ours: float
    other: float | None = None
    other_name: str = ""
    ratio: float | None = None
    bound: str = ""
    meets: bool | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Context:
    """Settings of a benchmark. commits: of a soak, events: of Nexmark, keys: of a cluster; None for the benchmark's own."""

    quick: bool
    rounds: int
    bar: Any
    commits: int | None = None
    events: int | None = None
    keys: int | None = None

    def step(self, text: str) -> None:
        """Say what comes next."""
        self.bar.set_postfix_str(text)

    def interleave(
        self, sides: Mapping[str, Callable[[], float]], rounds: int | None = None
    ) -> dict[str, list[float]]:
        """Run the sides A B C A B C, so that whatever else the machine does meets all of them alike."""
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(self.rounds if rounds is None else rounds):
            for name, run in sides.items():
                self.step(f"{name}, round {i + 1}")
                samples[name].append(run())
        return samples


#: A benchmark: name, and what makes its rows.
Benchmark = Callable[[Context], list[Row]]


def rate(name: str, unit: str, ours: float, other: float, other_name: str, **more: Any) -> Row:
    """More is better."""
    return _row(name, unit, ours, other, other_name, ours / other, **more)


def cost(name: str, unit: str, ours: float, other: float, other_name: str, **more: Any) -> Row:
    """Less is better; a ratio of 2 means that we take half of what the other takes."""
    return _row(name, unit, ours, other, other_name, other / ours, **more)


def _row(
    name: str,
    unit: str,
    ours: float,
    other: float,
    other_name: str,
    ratio: float,
    *,
    required: float | None = None,
    aim: float | None = None,
    samples: dict[str, list[float]] | None = None,
) -> Row:
    least = required if required is not None else aim
    bound = "" if least is None else f"{'required' if required is not None else 'aim'} >= {least:g}x"
    meets = None if least is None else ratio >= least
    return Row(name, unit, ours, other, other_name, ratio, bound, meets, samples or {})


def median(values: list[float]) -> float:
    return statistics.median(values)


def fresh(run: Callable[..., float], *arguments: Any) -> float:
    """Return the result of `run` in a new process, in which nothing ran before. A JVM that it starts ends with it, so that none
    lives beside what is measured next. run: of a module, as another process finds it by its name."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), quiet) as alone:
        return alone.submit(_alone, run, arguments).result()


def _alone(run: Callable[..., float], arguments: tuple[Any, ...]) -> float:
    try:
        return run(*arguments)
    finally:
        end_session()


def quiet() -> None:
    """Show only the warnings of windrow."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))


@contextmanager
def scratch() -> Iterator[str]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as path:
        yield path


def run(
    benchmarks: Mapping[str, Benchmark],
    *,
    quick: bool,
    rounds: int,
    commits: int | None = None,
    events: int | None = None,
    keys: int | None = None,
) -> list[Row]:
    """Run them one after the other, with a progress bar; each prints its rows as soon as it has them. No JVM lives longer than
    its benchmark."""
    measures: list[Row] = []
    with tqdm(total=len(benchmarks), unit="benchmark", dynamic_ncols=True) as bar:
        for name, benchmark in benchmarks.items():
            bar.set_description(name)
            rows = benchmark(Context(quick, rounds, bar, commits, events, keys))
            end_session()
            measures += rows
            bar.write(table(rows))
            bar.update()
    return measures


def figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """The rows as text."""
    head = ("", "unit", "windrow", "other", "", "ratio", "", "")
    lines = [head]
    for r in rows:
        ratio = "" if r.ratio is None else f"{r.ratio:.2f}x"
        verdict = "" if r.meets is None else ("ok" if r.meets else "FAILS")
        lines.append((r.name, r.unit, figure(r.ours), figure(r.other), r.other_name, ratio, r.bound, verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = {0, 1, 4, 6, 7}
    return "\n".join(
        "  ".join(
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(x, widths, strict=True))
        ).rstrip()
        for x in lines
    )


def write(rows: list[Row], path: str, about: dict[str, Any]) -> None:
    """The rows as JSON; benchmarks that did not run this time keep what the file says of them."""
    kept: dict[str, Any] = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            kept = {r["name"]: r for r in json.load(file)["rows"]}
    kept.update({r.name: asdict(r) for r in rows})
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"about": about, "rows": list(kept.values())}, file, indent=1)
        file.write("\n")
