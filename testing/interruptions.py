"""Errors and interrupts, instead of kills: an operator in this process, hit where a seed says, used on or opened again.

    python -m windrow.testing.interruptions                      # 1,000 seeds
    python -m windrow.testing.interruptions --seed 7             # one, its story told
    python -m windrow.testing.interruptions --seed 7 --shrink    # with as few of its hits as it takes to fail

A reader feeds a job from topics that it can read again. Any of its calls may raise Ctrl-C or a lack of memory at any line, or
an error of the disk out of any call; sinks refuse. After that the reader does what people do: it calls again, asks for
`next_offsets()` and reads on from there, closes and opens again, or lets everything fall. In the end nothing goes wrong any
more, the rest is read, and what the job has told is compared with the oracle: no message, pane or dead letter may be lost,
doubled or wrong. The simulation (`windrow.testing.simulation`) has what this has not: kills, lost power, several drivers.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import pkgutil
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from tqdm import tqdm

import windrow as wr
from windrow import operators
from windrow.checkpoint import job
from windrow.checkpoint.layout import JobFolders
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import Commit
from windrow.connectors.pane_files import DEAD_LETTERS, PaneFiles
from windrow.core.errors import OperatorClosed, WindrowError
from windrow.core.messages import Message, Position, Token
from windrow.runners.embedded import engine
from windrow.testing.clock import ManualClock
from windrow.testing.driver import TestDriver
from windrow.testing.hits import Error, Hit, disk_broken, disk_full, interrupt, no_memory

S = 1_000_000
START_US = 1_577_836_800 * S
SOURCES = (("topic", 0), ("topic", 1))
ERRORS: tuple[Error, ...] = (interrupt, interrupt, no_memory, disk_full, disk_broken)
#: What a hit may come out as. Anything else is a mistake that it has brought to light.
EXPECTED = (KeyboardInterrupt, MemoryError, OSError, WindrowError)
#: What is raised by a sink that has enough.
Refused = OSError


#: What makes a message one that cannot be counted, be it that nothing is computed of it.
ALWAYS_WRONG: tuple[Mapping[str, Any], ...] = (
    {"t": None},
    {"t": "no time"},
    {"t": float("nan")},
    {"k": "\ud800"},
)
WRONG = (*ALWAYS_WRONG, {"v": "a"}, {"v": 2**70}, {"v": [1]})


class Wrong(AssertionError):
    """Something was lost, doubled, or is not what it should be."""


def _aggregate(**options: Any) -> wr.Aggregate:
    given = {
        "by": "k",
        "event_time": "t",
        "window": wr.tumbling("10 seconds"),
        "agg": {"n": wr.count(), "total": wr.sum("v")},
        "watermark": "3 seconds",
        "retention": "30 seconds",
        "name": "panes",
    }
    return wr.Aggregate(**{**given, **options})


JOBS: dict[str, Any] = {
    "counts": _aggregate(),
    "early and late": _aggregate(
        emit=wr.Emit(early=wr.every(timedelta(seconds=2)), late=wr.every(timedelta(seconds=1)))
    ),
    "retracting": _aggregate(emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode="retracting")),
    "medians": _aggregate(agg={"n": wr.count(), "middle": wr.median("v")}),
    "tuples": _aggregate(window=wr.tuples(3), retention=wr.forever, emit=wr.Emit(early=wr.every_batch)),
    "join": wr.Join(
        left=wr.Input("left", event_time="t"),
        right=wr.Input("right", event_time="t"),
        on="k",
        within=("-3 seconds", "5 seconds"),
        how="left",
        retention="30 seconds",
        name="panes",
    ),
}


@dataclass
class Outlet:
    """A sink that keeps what it is given, by operator and commit, and refuses when it is told to."""

    refuses: Callable[[], bool]
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        table = panes.table()
        if self.refuses():
            raise Refused("the sink refuses")
        known = self.tables.setdefault((panes.operator, token.commit), table)
        if not known.equals(table):
            raise Wrong(f"commit {token.commit} of {panes.operator} was published twice, with other rows")
        if self.refuses():
            raise Refused("the sink has it, and does not answer")

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    def rows(self, operator: str) -> int:
        return sum(len(t) for (name, _), t in self.tables.items() if name == operator)


@dataclass
class Report:
    """What one seed was. failure: None if all is as promised."""

    seed: int
    hits: int
    story: list[str]
    counts: Counter[str]
    failure: BaseException | None


# Operators load what they are made of when they are asked for: lines of that are no lines of a step, and stand in the way of
# whoever plays a seed in another process.
for _module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
    importlib.import_module(_module.name)


def play(seed: int, *, hits: int | None = None) -> Report:
    """Play a seed, with the first so many of its hits (default: all)."""
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None, ignore_cleanup_errors=True
        ) as folder,
        patch.object(engine, "SNAPSHOT_EVERY", 4),
        patch.object(engine, "TIDY_SHARE", 0.0),  # a seed tells the same story everywhere
        patch.object(job, "KEEP_COMMITS", 6),
    ):
        reader = Reader(seed, folder, hits)
        failure: BaseException | None = None
        try:
            reader.run()
        except Exception as error:
            failure = error
        finally:
            reader.let_go()
        return Report(seed, reader.hits, reader.story, reader.counts, failure)


def shrink(seed: int) -> Report:
    """A failing seed with as few of its hits as it takes to fail: its tail is cut."""
    report = play(seed)
    for hits in range(report.hits):
        shorter = play(seed, hits=hits)
        if shorter.failure is not None:
            return shorter
    return report


class Reader:
    """Whoever feeds the job: in one process, with a loop and an `except`."""

    def __init__(self, seed: int, folder: str, most_hits: int | None) -> None:
        self.random = random.Random(seed)
        self.location = os.path.join(folder, "job")
        self.kind = self.random.choice(sorted(JOBS))
        self.definition = JOBS[self.kind]
        self.definition.logic().view([], 0)  # modules that come late would be lines to hit, the first time
        self.by_input = self.definition.by_input
        self.clock = ManualClock(START_US + 3_600 * S)
        self.with_sink = self.random.random() < 0.6
        self.panes, self.letters = Outlet(self._refuses), Outlet(self._refuses)
        #: What `get_result` gave, by commit, and up to which commit it was acknowledged.
        self.given: dict[int, list[Any]] = {}
        self.acknowledged = 0
        #: All commits of the log, which keeps only the last few.
        self.commits: dict[int, Commit] = {}
        self.hits, self._most_hits = 0, most_hits
        self._lengths: dict[tuple[str, bool], int] = {}  # of deeds, in lines or calls, as last seen
        self.calm = False
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.op: Any = None
        inputs = [i.name for i in self.definition.inputs] if self.by_input else [None]
        self.topics = {
            (name, partition): self._messages(partition) for name in inputs for partition in SOURCES
        }
        self.at = dict.fromkeys(self.topics, 0)

    def _messages(self, partition: tuple[str, int]) -> list[Message]:
        chance, messages = self.random, []
        for offset in range(chance.choice([5, 20, 60])):
            time_us = START_US + (offset + chance.choice([0, 0, 0, 1, 2, -6, -40])) * S
            payload: dict[str, Any] = {"k": chance.choice("abc"), "t": time_us, "v": offset}
            if chance.random() < 0.06:
                wrong = chance.choice(ALWAYS_WRONG if self.definition.told_columns is None else WRONG)
                payload |= wrong
            messages.append(Message(payload, Position(*partition, offset)))
        return messages

    # -- the story --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Hits, an undisturbed end, checks. Raises `Wrong`, or what no hit may come out as."""
        self.say(f"seed: {self.kind}, {'with' if self.with_sink else 'without'} sinks")
        for _ in range(self.random.randint(10, 40)):
            try:
                self._turn()
            except EXPECTED as error:
                self.say(f"    raised {type(error).__name__}: {str(error)[:150]}")
                self.counts[f"raised {type(error).__name__}"] += 1
                escaped = True
            else:
                escaped = False
            self._note_commits()
            if escaped:
                self._go_on()
                self._note_commits()
        self.calm = True
        self.say("from here on nothing goes wrong")
        if self.op is None or not self._still_good():
            self.let_go()
            self._open()
        self._ask_offsets()
        while any(self._next(source, 50) for source in self.topics):
            for source in self.topics:
                self._add_messages(source, self._next(source, 50))
                self._note_commits()
        self.op.drain()
        self._take_results()
        self._note_commits()
        self.op.close()
        self._note_commits()
        self.op = None
        self._check()

    def _note_commits(self) -> None:
        """Read the log on, before what is settled goes from it."""
        folder = JobFolders(self.location).log
        if os.path.isdir(folder):
            log = FileLog(folder)
            if log.tail().last_commit is not None:
                self.commits |= {record.commit: record for record in log.commits()}
            log.close()

    def _still_good(self) -> bool:
        try:
            self.op.timeout()
        except WindrowError as error:
            self.say(f"    unusable: {str(error)[:150]}")
            return False
        return True

    def _turn(self) -> None:
        if self.op is None:
            self._do("open", self._open)
            return
        chance = self.random
        source = chance.choice(sorted(self.topics, key=str))
        some = self._next(source, chance.choice([1, 3, 12]))
        deed = chance.choices(
            ["one by one", "together", "timeout", "results", "offsets", "clock", "again", "look"],
            [5, 4, 3, 3, 1, 1, 1, 1],
        )[0]
        if deed == "one by one" and some:
            self._do(f"add {len(some)} of {source}", lambda: self._add_one_by_one(source, some))
        elif deed == "together" and some:
            self._do(f"add together {len(some)} of {source}", lambda: self._add_messages(source, some))
        elif deed == "clock":
            self.clock.advance(timedelta(microseconds=chance.randrange(3 * S)))
        elif deed == "results":
            self._do("results", self._take_results)
        elif deed == "offsets":
            self._do("offsets", self._ask_offsets)
        elif deed == "again":
            self._do("close and open", self._again)
        elif deed == "look":
            asked = {"input": self.definition.inputs[0].name} if self.by_input else {}
            self._do("get_windows", lambda: self.op.get_windows(**asked))
        else:
            self._do("timeout", self.op.timeout)

    def _do(self, what: str, deed: Callable[[], object]) -> None:
        """Do it, perhaps with a hit."""
        self.say(what)
        chance = self.random
        if self.calm or chance.random() > 0.4:
            deed()
            return
        error, calls = chance.choice(ERRORS), chance.random() < 0.4
        if calls and error is interrupt:
            error = disk_full
        # Where a deed begins there is most to be struck, and each of its later parts should have its turn.
        length = self._lengths.get((what.partition(" ")[0], calls), 100 if calls else 5_000)
        nth = chance.randint(1, length) if chance.random() < 0.7 else int(length ** chance.random())
        hit = Hit(error, nth, calls=calls, answered=chance.random() < 0.5)
        if self._most_hits is not None and self.hits >= self._most_hits:
            deed()
            return
        try:
            with hit:
                deed()
        finally:
            if hit.at is None:
                self._lengths[what.partition(" ")[0], calls] = hit.passed + 1
            else:
                self.hits += 1
                self.say(f"    hit {self.hits}: {hit.at}")
                self.counts["hits"] += 1

    def _refuses(self) -> bool:
        if self.calm or self.random.random() > 0.08:
            return False
        if self._most_hits is not None and self.hits >= self._most_hits:
            return False
        self.hits += 1
        self.counts["refused"] += 1
        self.say(f"    hit {self.hits}: a sink refuses")
        return True

    def _go_on(self) -> None:
        """What people do when a call has raised."""
        chosen = self.random.choice(["call again", "offsets", "close", "fall"])
        self.say(f"    and then: {chosen}")
        if self.op is None or chosen == "call again":
            return
        try:
            if chosen == "offsets":
                self._ask_offsets()
            elif chosen == "close":
                self._do("    close", self._close)
            else:
                self.let_go()
        except EXPECTED as error:
            self.say(f"    raised {type(error).__name__}: {str(error)[:150]}")
            self.let_go()

    def say(self, line: str) -> None:
        self.story.append(line)

    # -- the job ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        options: dict[str, Any] = {}
        if self.with_sink:
            options = {"sink": self.panes, "dead_letters": self.letters}
        self.op = self.definition.open(self.location, clock=self.clock, **options)
        try:
            self._ask_offsets()
        except BaseException:
            self.let_go()  # where to read on from is not known
            raise

    def _close(self) -> None:
        op, self.op = self.op, None
        try:
            op.close()
        finally:
            self._end(op)

    def _again(self) -> None:
        self._close()
        self._open()

    def let_go(self) -> None:
        """As if the process had ended: what is staged is lost, and nothing keeps the folder."""
        op, self.op = self.op, None
        if op is not None:
            self._end(op)

    def _end(self, op: Any) -> None:
        with contextlib.suppress(*EXPECTED):
            op.abandon()
        gc.collect()

    def _next(self, source: Any, n: int) -> list[Message]:
        return self.topics[source][self.at[source] : self.at[source] + n]

    def _add_one_by_one(self, source: Any, messages: Sequence[Message]) -> None:
        for message in messages:
            self._fed(partial(self.op.add_message, message, *self._input(source)))
            self.at[source] += 1

    def _add_messages(self, source: Any, messages: Sequence[Message]) -> None:
        if messages:
            self._fed(partial(self.op.add_messages, messages, *self._input(source)))
            self.at[source] += len(messages)

    def _fed(self, feed: Callable[[], object]) -> None:
        try:
            feed()
        except OperatorClosed:
            self.let_go()
            raise

    def _input(self, source: Any) -> tuple[str, ...]:
        return (source[0],) if self.by_input else ()

    def _ask_offsets(self) -> None:
        try:
            offsets: Mapping[Any, Any] = self.op.next_offsets()
        except OperatorClosed:
            self.let_go()
            raise
        for name, partition in self.topics:
            reached = offsets.get(name, {}) if self.by_input else offsets
            self.at[name, partition] = reached.get(partition, 0)

    def _take_results(self) -> None:
        """What `get_result` gives is kept, and acknowledged by `flush`."""
        try:
            results = self.op.get_result()
            commits = {r.commit: [one for one in results if one.commit == r.commit] for r in results}
            if commits and min(commits) <= self.acknowledged:
                raise Wrong(f"commit {min(commits)} was given again, {self.acknowledged} was acknowledged")
            if any(self.given.setdefault(commit, some) != some for commit, some in commits.items()):
                raise Wrong(f"of the commits {sorted(commits)} one was given twice, with other panes")
            self.op.flush()
            self.acknowledged = max(commits, default=self.acknowledged)
        except OperatorClosed:
            self.let_go()
            raise

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        driver: Any = TestDriver(self.definition, self.location, clock=self.clock)
        try:
            for (name, _), messages in self.topics.items():
                for message in messages:
                    known = message
                    if any(message.payload.items() >= wrong.items() for wrong in WRONG):
                        # What the oracle takes for malformed: it knows no types.
                        known = Message(
                            {**message.payload, "t": None, "k": None, "v": None}, message.position
                        )
                    driver.know(known, name)
            driver.commits = lambda: [record for _, record in sorted(self.commits.items())]
            if sorted(self.commits) != list(range(1, driver.op.last_commit + 1)):
                raise Wrong(f"commits {sorted(self.commits)} were seen, the last is {driver.op.last_commit}")
            told = self._told()
            expected = driver.check(told)
            total = sum(len(m) for m in self.topics.values())
            taken = sum(step.rows for step in driver.steps())
            if taken != total:
                raise Wrong(f"{taken} messages were taken, there are {total}")
            self.counts["panes"] += len(told)
            self.counts["dead letters"] += len(expected.dead_letters)
            if self.with_sink and self.letters.rows(DEAD_LETTERS) != len(expected.dead_letters):
                raise Wrong(
                    f"the sink has {self.letters.rows(DEAD_LETTERS)} dead letters, {len(expected.dead_letters)} were told"
                )
        finally:
            driver.op.abandon()

    def _told(self) -> list[Any]:
        """All panes, or rows of the join, that came out, commit by commit."""
        if not self.with_sink:
            return [one for _, some in sorted(self.given.items()) for one in some]
        tables = {commit: table for (name, commit), table in self.panes.tables.items() if name == "panes"}
        return [one for _, table in sorted(tables.items()) for one in self.definition.values(table, "")]


# -- command ------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns how many seeds have failed, at most 100."""
    parser = argparse.ArgumentParser(
        prog="python -m windrow.testing.interruptions", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--seed", type=int, help="play this seed and tell its story")
    parser.add_argument("--hits", type=int, help="with --seed: only its first so many hits happen")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: as few of its hits as it takes to fail"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default: 1,000)")
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes (default: 1)")
    given = parser.parse_args(arguments)
    _quiet()
    if given.seed is not None:
        report = shrink(given.seed) if given.shrink else play(given.seed, hits=given.hits)
        print("\n".join(report.story))
        print("all is as promised" if report.failure is None else _told(report))
        return int(report.failure is not None)
    totals: Counter[str] = Counter()
    failed = 0
    seeds = range(given.first, given.first + given.seeds)
    with contextlib.ExitStack() as stack:
        reports: Iterator[Report] = map(play, seeds)
        if given.jobs > 1:
            pool = multiprocessing.get_context("spawn").Pool(given.jobs, _quiet)
            reports = stack.enter_context(pool).imap(play, seeds, chunksize=4)
        progress = tqdm(reports, total=given.seeds, unit="seed", disable=None)
        for report in progress:
            totals += report.counts
            if report.failure is not None:
                failed += 1
                progress.write(_told(report))
    print(f"{given.seeds:,} seeds, {failed} failed")
    for name, n in sorted(totals.items()):
        print(f"  {name:<24}{n:>10,}")
    return min(failed, 100)


def _quiet() -> None:
    """Operators that are hit have much to say."""
    logging.getLogger("windrow").setLevel(logging.CRITICAL)


def _told(report: Report) -> str:
    again = f"python -m windrow.testing.interruptions --seed {report.seed} --shrink"
    return f"seed {report.seed}, {report.hits} hits: {type(report.failure).__name__}: {report.failure}\n  {again}"


if __name__ == "__main__":
    sys.exit(main())
