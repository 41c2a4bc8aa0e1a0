"""Seeds of a simulation: runs in one or several processes, shrinking of failures, and the command."""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tqdm import tqdm


@dataclass
class Report:
    """The report of one seed.

    faults: the numbers of the faults that happened, of all that the seed had. story: the events. counts: of events.
    failure: the broken guarantee; None if there is none.
    """

    seed: int
    faults: tuple[int, ...]
    story: list[str]
    counts: Counter[str]
    failure: BaseException | None


@dataclass(frozen=True)
class Summary:
    """The summary of many seeds. failed: how many; counts: how often each event happened. `print` it."""

    seeds: int
    failed: int
    counts: Counter[str]

    def __str__(self) -> str:
        lines = [f"{self.seeds:,} seeds, {self.failed} failed"]
        deaths = {k.removeprefix(DIES): n for k, n in self.counts.items() if k.startswith(DIES)}
        others = {k: n for k, n in self.counts.items() if not k.startswith(DIES)}
        for title, counts in (("processes died at", deaths), ("besides", others)):
            if counts:
                lines.append(f"{title}:")
                lines += [f"  {name:<32}{n:>10,}" for name, n in sorted(counts.items())]
        return "\n".join(lines)


#: The prefix of counts of processes that died.
DIES = "dies: "


class SeedFailed(AssertionError):
    """The failure of a seed: a broken guarantee.

    message: the failure, with the schedule and how to play it again
    report: the smallest schedule that shows it: `seed`, `faults`, `story`, `failure`
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


class Play(Protocol):
    """A function that plays a seed, with only the given faults; None: with all."""

    def __call__(self, seed: int, *, faults: Collection[int] | None = None) -> Report: ...


def shrunk(play: Play, report: Report) -> Report:
    """Shrink a failing seed to as few of its faults as it takes to fail: its tail is cut, then each other is left out."""
    for n in range(len(report.faults)):
        shorter = play(report.seed, faults=report.faults[:n])
        if shorter.failure is not None:
            report = shorter
            break
    for fault in reversed(report.faults[:-1]):
        without = play(report.seed, faults=[f for f in report.faults if f != fault])
        if without.failure is not None and len(without.faults) < len(report.faults):
            report = without
    return report


def how(failure: BaseException | None) -> str:
    """Return the failure in a line."""
    return str(failure) if isinstance(failure, Failure) else f"{type(failure).__name__}: {failure}"


def failure_text(report: Report, again: str) -> str:
    """Describe the failure of a seed. again: the command that plays seeds of this kind."""
    n = len(report.faults)
    what = f"seed {report.seed}, {n} fault{'' if n == 1 else 's'}: {how(report.failure)}"
    return f"{what}\n  {again} --seed {report.seed} --shrink"


def all_of(play: Play, seeds: Sequence[int], processes: int = 1) -> Iterator[Report]:
    """Yield the report of each seed, in order, with a progress bar on a terminal."""
    with contextlib.ExitStack() as stack:
        reports: Iterator[Report] = map(play, seeds)
        if processes > 1:
            # Not forked: Arrow has threads.
            pool = multiprocessing.get_context("spawn").Pool(processes)
            reports = stack.enter_context(pool).imap(partial(_plain, play), seeds, chunksize=4)
        yield from tqdm(reports, total=len(seeds), unit="seed", disable=None)


def _plain(play: Play, seed: int) -> Report:
    """Return a report that can be pickled: any exception is replaced by its text."""
    report = play(seed)
    if report.failure is not None:
        report.failure = Failure(how(report.failure))
    return report


class Failure(AssertionError):
    """The text of an exception that another process raised."""


def check(play: Play, seeds: Sequence[int], processes: int, again: str) -> Summary:
    """Play all seeds, up to the first that fails. Raises `SeedFailed`, with the smallest schedule that does."""
    counts: Counter[str] = Counter()
    for report in all_of(play, seeds, processes):
        counts += report.counts
        if report.failure is not None:
            small = shrunk(play, play(report.seed))
            of = f"{len(small.faults)} of its {len(report.faults)} faults"
            story = "\n".join(small.story)
            raise SeedFailed(
                f"seed {small.seed} with {of}: {how(small.failure)}\n{story}\nAgain: {again.format(seed=small.seed)}",
                small,
            ) from small.failure
    return Summary(len(seeds), 0, counts)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the logs: jobs that are killed, or hit, log much."""
    plain = logging.getLogger("windrow")
    structlog: Any = sys.modules.get("structlog")  # a program that has configured it has imported it
    configured = structlog is not None and structlog.is_configured()
    level, before = plain.level, structlog.get_config() if configured else None
    plain.setLevel(logging.CRITICAL)
    if before is not None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        plain.setLevel(level)
        if before is not None:
            structlog.configure(**before)


# -- command ------------------------------------------------------------------------------------------------------------


def command(
    prog: str,
    description: str,
    player: Callable[[argparse.Namespace], Play],
    arguments: Sequence[str] | None,
    *,
    seeds: int,
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    repeat: Sequence[str] = ("job",),
) -> int:
    """Run the command of a simulation. Returns how many seeds have failed, at most 100.

    player: plays seeds as the arguments say. seeds: how many by default. more: adds arguments; repeat: those that are needed
    to play a seed again.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument(
        "--job",
        help="module:name of a Scenario, or of a function of a random.Random that draws one (default: any job)",
    )
    parser.add_argument("--seed", type=int, help="play this seed and print its story")
    parser.add_argument(
        "--faults", help="with --seed: only those of its faults happen, e.g. 3,7; '' for none"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: with as few of its faults as it takes to fail"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many (default: {seeds:,})")
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes (default: 1)")
    more(parser)
    parsed = parser.parse_args(arguments)
    play = player(parsed)
    options = [f" --{name} {getattr(parsed, name)}" for name in repeat if getattr(parsed, name)]
    again = f"python -m {prog}{''.join(options)}"
    if parsed.seed is not None:
        return _one(play, parsed, again)
    counts: Counter[str] = Counter()
    failed = 0
    for report in all_of(play, range(parsed.first, parsed.first + parsed.seeds), parsed.jobs):
        counts += report.counts
        if report.failure is not None:
            failed += 1
            tqdm.write(failure_text(report, again))
    print(Summary(parsed.seeds, failed, counts))
    return min(failed, 100)


def _one(play: Play, value: Any, again: str) -> int:
    """Play one seed, and print its story."""
    faults = None if value.faults is None else [int(n) for n in value.faults.split(",") if n]
    report = play(value.seed, faults=faults)
    if value.shrink and report.failure is not None:
        report = shrunk(play, report)
    print("\n".join(report.story))
    if report.failure is None:
        print("all is as promised")
        return 0
    print(how(report.failure))
    print(f"  {again} --seed {report.seed} --faults {','.join(map(str, report.faults)) or repr('')}")
    return 1
