"""Reader that feeds a job: in one process, with a loop and an `except`."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.checkpoint.job_paths import JobFolders
from windrow.checkpoint.log import FileLog
from windrow.checkpoint.records import Commit
from windrow.connectors.pane_files import PaneFiles
from windrow.core.errors import ConfigurationError, OperatorClosed, WindrowError
from windrow.core.messages import Message, Position, Token
from windrow.core.time import START_OF_TIME_US
from windrow.testing.clock import ManualClock
from windrow.testing.error_injection import Error, Hit, disk_broken, disk_full, interrupt, no_memory
from windrow.testing.expected_output import Broken
from windrow.testing.scenario import Feed

# -- A sink that keeps its input, and refuses on request --------------------------------------------------------------

#: The exception of a sink that refuses.
Refused = OSError


@dataclass
class Outlet:
    """A sink of rows by operator and commit. A commit that is published again has to be the same."""

    refuses: Callable[[], bool]
    tables: dict[tuple[str, int], pa.Table] = field(default_factory=dict)

    def publish(self, token: Token, panes: PaneFiles) -> None:
        table = panes.table()
        if self.refuses():
            raise Refused("the sink refuses")
        known = self.tables.setdefault((panes.operator, token.commit), table)
        if not known.equals(table):
            raise Broken(f"commit {token.commit} of {panes.operator} was published twice, with other rows")
        if self.refuses():
            raise Refused("the sink has it, and does not answer")

    def last_commit(self, job: str, operator: str) -> int | None:
        return None

    def rows(self, operator: str) -> int:
        return sum(len(t) for (name, _), t in self.tables.items() if name == operator)


# -- reader -----------------------------------------------------------------------------------------------------------

#: A topic that is read again has so many partitions.
PARTITIONS = 2
ERRORS: tuple[Error, ...] = (interrupt, interrupt, no_memory, disk_full, disk_broken)
#: Errors that a hit may come out as. Any other one is a bug that the hit has revealed.
EXPECTED = (KeyboardInterrupt, MemoryError, OSError, WindrowError)
#: Folders of kept messages: lost ones come back from the source.
KEPT_IN = ("local", "snapshots", "segments")

#: An input, and a partition of its topic.
Source = tuple[str, int]


class Reader:
    """A reader of the topics of a feed into its own job, which reacts as people do when a call raises.

    faults: the numbers of the hits and refusals that happen, of all that the seed would have; None: all
    """

    def __init__(self, seed: int, folder: str, feed: Feed, faults: Collection[int] | None = None) -> None:
        if len(feed.definitions) > 1:
            raise ConfigurationError(
                f"{len(feed.definitions)} operators side by side are no job of one process: give one, or a wr.chain, or "
                "let windrow.testing.simulate play them"
            )
        self.random, self.feed = random.Random(seed), feed
        self.location = os.path.join(folder, "job")
        [self.definition] = feed.definitions
        self.definition.logic().view([], 0)  # modules that come late would be lines to hit, the first time
        self.clock = ManualClock(feed.start_us)
        self.with_sink = self.random.random() < 0.6
        #: True if the operator has its columns declared beforehand.
        self.declares = len(self.definition.parts) > 1 or self.random.random() < 0.3
        self.outlet, self.dead_letters = Outlet(self._refuses), Outlet(self._refuses)
        #: Results of `get_result`, by commit, and the commit up to which they were acknowledged.
        self.received: dict[int, list[Any]] = {}
        self.acknowledged = 0
        #: Watermarks that were set explicitly.
        self.pushed: set[int] = set()
        #: The moments up to which each input was declared complete, where all of them have explicit watermarks.
        moving = [one for one in self.definition.inputs if not one.static]
        explicit = all(one.watermark.kind == "explicit" for one in moving)
        self._complete: dict[str, list[int]] = {one.name: [] for one in moving if explicit}
        #: All commits of the log, which keeps only the last few.
        self.commits: dict[int, Commit] = {}
        self.only = None if faults is None else frozenset(faults)
        #: The number of possible faults so far, and the numbers of those that happened.
        self.chances, self.faults = 0, list[int]()
        self._lengths: dict[tuple[str, bool], int] = {}  # of deeds, in lines or calls, as last seen
        self.calm = False
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.op: Any = None
        self.topics = self._topics()
        self.at = dict.fromkeys(self.topics, 0)

    def _topics(self) -> dict[Source, list[Message]]:
        """Return the messages to read, some of which cannot be counted."""
        chance = self.random
        topics: dict[Source, list[Message]] = {
            (name, n): [] for name in self.feed.inputs for n in range(PARTITIONS)
        }
        for name, row in self.feed.arrivals:
            n = chance.randrange(PARTITIONS)
            topic = topics[name, n]
            payload = dict(row)
            if self.feed.wrong and chance.random() < 0.06:
                payload |= chance.choice(self.feed.wrong)
            topic.append(Message(payload, Position(name, n, len(topic))))
        return topics

    # -- the story --------------------------------------------------------------------------------------------------

    def disturbed(self) -> None:
        """Play turns whose calls may be hit. Raises `Broken`, or an error that no hit may come out as."""
        self.say(f"{self.definition!r}")
        self.say(f"{len(self.feed.arrivals)} messages, {'with' if self.with_sink else 'without'} sinks")
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

    def come_to_rest(self) -> None:
        """Stop all faults, and read the rest."""
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
        self.op.timeout()
        self._collect_results()
        self._note_commits()

    def end(self) -> None:
        """Drain and close the job."""
        self.op.drain()
        self._collect_results()
        self._note_commits()
        self.op.close()
        self._note_commits()
        self.op = None

    def _note_commits(self) -> None:
        """Read the log on, before settled records are removed."""
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
        chance = self.random
        if self.op is None:
            if chance.random() < 0.15:
                self._lose_messages()
            self._do("open", self._open)
            return
        source = chance.choice(sorted(self.topics))
        messages = self._next(source, chance.choice([1, 3, 12]))
        deed = chance.choices(
            ["one by one", "together", "timeout", "results", "offsets", "clock", "again", "look", "push"],
            [5, 4, 3, 3, 1, 1, 1, 1, 1],
        )[0]
        if deed == "one by one" and messages:
            self._do(f"add {len(messages)} of {source}", lambda: self._add_one_by_one(source, messages))
        elif deed == "together" and messages:
            self._do(
                f"add together {len(messages)} of {source}", lambda: self._add_messages(source, messages)
            )
        elif deed == "clock":
            self.clock.advance(timedelta(microseconds=chance.randrange(3 * self.feed.unit_us)))
        elif deed == "results":
            self._do("results", self._collect_results)
        elif deed == "offsets":
            self._do("offsets", self._ask_offsets)
        elif deed == "again":
            self._do("close and open", self._again)
        elif deed == "look":
            self._do("look", self._look)
        elif deed == "push":
            self._do("push", partial(self._push, chance.randrange(-3, 8) * self.feed.unit_us))
        else:
            self._do("timeout", self.op.timeout)

    # -- faults -----------------------------------------------------------------------------------------------------

    def _inject_fault(self) -> bool:
        """True if the next of the seed's faults may happen."""
        self.chances += 1
        if self.only is None or self.chances in self.only:
            return True
        self.calm = self.chances > max(self.only, default=0)
        return False

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
        # The first lines of an action can fail most, and each of its later parts should have its turn.
        kind = (what.partition(" ")[0], calls)
        length = self._lengths.get(kind, 100 if calls else 5_000)
        nth = chance.randint(1, length) if chance.random() < 0.7 else int(length ** chance.random())
        answered = chance.random() < 0.5
        strikes = self._inject_fault()
        number = self.chances
        hit = Hit(error, nth, calls=calls, answered=answered, strikes=strikes)
        try:
            with hit:
                deed()
        finally:
            if hit.at is None:
                self._lengths[kind] = hit.passed + 1
            elif strikes:
                self.faults.append(number)
                self.say(f"    hit {number}: {hit.at}")
                self.counts["hits"] += 1

    def _refuses(self) -> bool:
        if self.calm or self.random.random() > 0.08 or not self._inject_fault():
            return False
        self.faults.append(self.chances)
        self.counts["refused"] += 1
        self.say(f"    hit {self.chances}: a sink refuses")
        return True

    def _go_on(self) -> None:
        """React as people do after a call has raised."""
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

    def _lose_messages(self) -> None:
        """Lose a disk with the messages that the job keeps; they come back from the source."""
        if (
            self._again_of() is None
            or self.calm
            or not os.path.isdir(self.location)
            or not self._inject_fault()
        ):
            return
        self.faults.append(self.chances)
        self.counts["messages lost"] += 1
        self.say(f"    hit {self.chances}: the messages that are kept are lost")
        for name in KEPT_IN:
            shutil.rmtree(os.path.join(self.location, name), ignore_errors=True)

    def say(self, line: str) -> None:
        self.story.append(line)

    # -- the job ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        options: dict[str, Any] = {"replay": self._again_of()}
        if self.with_sink:
            outlets = {part.name: self.outlet for part in self.definition.parts}
            options |= {"sink": outlets, "dead_letters": self.dead_letters}
        if self.declares:
            schemas = self.feed.schemas
            options["schema"] = schemas if self.feed.by_input else next(iter(schemas.values()))
        self.op = self.definition.open(self.location, clock=self.clock, **options)  # type: ignore[attr-defined]
        try:
            self._ask_offsets()
        except BaseException:
            self.let_go()  # where to read on from is not known
            raise

    def _again_of(self) -> Any:
        """Return a function that reads the topics again where messages are lost; None where the job allows none."""
        alone = len(self.definition.parts) == 1 and self.definition.ids is None
        if not alone or self.definition.logic().refiling() is None:
            return None

        def everything(name: str) -> list[Message]:
            return [m for (of, _), messages in self.topics.items() if of == name for m in messages]

        if self.feed.by_input:
            return lambda ranges: {name: everything(name) for name in ranges}
        return lambda ranges: everything(next(iter(self.feed.inputs)))

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
        """Drop the operator as if the process had ended: staged steps are lost, and nothing keeps the folder."""
        op, self.op = self.op, None
        if op is not None:
            self._end(op)

    def _end(self, op: Any) -> None:
        with contextlib.suppress(*EXPECTED):
            op.abandon()
        gc.collect()

    def _next(self, source: Source, n: int) -> list[Message]:
        return self.topics[source][self.at[source] : self.at[source] + n]

    def _add_one_by_one(self, source: Source, messages: Sequence[Message]) -> None:
        for message in messages:
            self._fed(partial(self.op.add_message, message, *self._input(source)))
            self.at[source] += 1

    def _add_messages(self, source: Source, messages: Sequence[Message]) -> None:
        if messages:
            self._fed(partial(self.op.add_messages, messages, *self._input(source)))
            self.at[source] += len(messages)

    def _fed(self, feed: Callable[[], object]) -> None:
        try:
            feed()
        except OperatorClosed:
            self.let_go()
            raise

    def _input(self, source: Source) -> tuple[str, ...]:
        return (source[0],) if self.feed.by_input else ()

    def _ask_offsets(self) -> None:
        try:
            offsets: Mapping[Any, Any] = self.op.next_offsets()
        except OperatorClosed:
            self.let_go()
            raise
        for name, n in self.topics:
            reached = offsets.get(name, {}) if self.feed.by_input else offsets
            self.at[name, n] = reached.get((name, n), 0)

    def _push(self, by_us: int) -> None:
        """Say that input is complete up to a moment near the watermark."""
        reached = self.op.watermark
        to_us = (self.feed.start_us if reached < 0 else reached) + by_us
        if not self._complete or self.random.random() < 0.25:
            self.pushed.add(to_us)
            self.op.advance_watermark(to_us)
            return
        input = self.random.choice(sorted(self._complete))
        self._complete[input].append(to_us)
        # The job may have missed any call that was hit: it is at one of these moments, and never ahead of the least input.
        least_us = min(max(moments, default=START_OF_TIME_US) for moments in self._complete.values())
        self.pushed |= {one for moments in self._complete.values() for one in moments if one <= least_us}
        self.op.advance_watermark(to_us, input)

    def _look(self) -> None:
        """Query the operator."""
        if "windows" in self.definition.tables:
            inputs = [i.name for i in self.definition.inputs] if self.feed.by_input else []
            self.op.get_windows(**({"input": inputs[0]} if inputs else {}))
        else:
            self.op.health()

    def _collect_results(self) -> None:
        """Keep the rows of `get_result`, and acknowledge them with `flush`."""
        try:
            results = list(self.op.get_result())
            commits = {r.commit: [one for one in results if one.commit == r.commit] for r in results}
            if commits and min(commits) <= self.acknowledged:
                raise Broken(f"commit {min(commits)} was given again, {self.acknowledged} was acknowledged")
            if any(self.received.setdefault(commit, panes) != panes for commit, panes in commits.items()):
                raise Broken(f"of the commits {sorted(commits)} one was given twice, with other panes")
            self.op.flush()
            self.acknowledged = max(commits, default=self.acknowledged)
        except OperatorClosed:
            self.let_go()
            raise
