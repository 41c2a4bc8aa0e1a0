"""Step transactions: steps run on a copy of the staged commit; all of them take effect, or none.

Whatever a step raises (a full disk, Ctrl-C, user code), it changes nothing, so its messages can be tried again.
`Whole` guards the takeover of a successful attempt: an operator interrupted inside it is broken. A broken operator
commits nothing and has to be opened again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from windrow.checkpoint.records import UNREAD, Mark, Step
from windrow.checkpoint.replay import FILING
from windrow.core.positions import Partition
from windrow.operators.operator import Logic
from windrow.operators.steps.poison_rows import sifted
from windrow.operators.steps.step import StepResult
from windrow.runners.embedded.positions import Passed
from windrow.stores.kv import KV, Overlay

# -- pending commit ---------------------------------------------------------------------------------------------------
# Pending commit: steps since the last commit, the progress they lead to, and the rows they emitted.


@dataclass
class Staged:
    """Steps that came through, on the store as the last commit left it."""

    overlay: Overlay
    #: Progress of the job with these steps.
    marks: dict[Partition, Mark]
    offsets: dict[Partition, int]
    ordinals: dict[Partition, int]
    watermark_us: int
    now_us: int | None
    #: `now` of the last advance, and of the one before it.
    advanced_us: int | None
    advanced_before_us: int | None = None
    #: The steps that the commit records.
    steps: list[Step] = field(default_factory=list)
    rows: int = 0
    fresh_marks: dict[Partition, int] = field(default_factory=dict)
    panes: list[pa.Table] = field(default_factory=list)
    inner: dict[str, list[pa.Table]] = field(default_factory=dict)
    dead: list[pa.Table] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    #: Offsets that a delivery policy skipped unread: partition, first offset, the offset after the last.
    unread: list[tuple[Partition, int, int]] = field(default_factory=list)
    #: True if all of it is an advance that changes nothing.
    idle: bool = False

    @property
    def fresh(self) -> bool:
        """True if nothing is staged."""
        return not self.steps and not self.counters

    @property
    def matters(self) -> bool:
        """True if it has to be committed."""
        return bool((self.steps and not self.idle) or self.counters)

    @property
    def result(self) -> StepResult:
        """Return the emitted rows."""
        return StepResult(self.panes, inner=self.inner)

    def seen_us(self, marks: Mapping[Partition, Mark] | None = None) -> dict[Partition, int]:
        """Return `now` of the newest message of each partition."""
        marks = self.marks if marks is None else marks
        return {p: m.seen_us for p, m in marks.items() if m.seen_us is not None}

    def largest_us(self, marks: Mapping[Partition, Mark] | None = None) -> dict[Partition, int]:
        """Return the largest event time of each partition."""
        marks = self.marks if marks is None else marks
        return {p: m.max_time_us for p, m in marks.items() if m.max_time_us is not None}

    def stage(self, attempt: Attempt) -> None:
        """Stage the steps of a successful attempt."""
        self.now_us = attempt.now_us if self.now_us is None else max(attempt.now_us, self.now_us)
        self.watermark_us = attempt.watermark_us
        if attempt.advanced:
            self.advanced_before_us, self.advanced_us = self.advanced_us, attempt.now_us
        for result in attempt.results:
            self.panes += result.panes
            for name, panes in result.inner.items():
                self.inner.setdefault(name, []).extend(panes)
            if result.dead is not None:
                self.dead.append(result.dead)
            for name, n in result.counts.items():
                self.count(name, n)
        self.idle = False
        self.marks = attempt.marks
        self.fresh_marks.update(attempt.fresh_marks)
        self.offsets.update(attempt.following)
        self.rows += attempt.rows
        self.count("rows", attempt.rows)
        self.steps += attempt.steps

    def pass_over(self, unread: Mapping[Partition, tuple[int, int]], now_us: int) -> None:
        """Note that nothing in `[from, to)` of these partitions was read. now_us: as of then."""
        self.now_us = now_us if self.now_us is None else max(now_us, self.now_us)
        for partition, (first, following) in sorted(unread.items()):
            self.offsets[partition] = following
            self.unread.append((partition, first, following))
            self.count("unread", following - first)

    def meta(self, now_us: int, filing: Mapping[str, Any]) -> dict[str, Any]:
        """Return the further metadata of its commit."""
        meta: dict[str, Any] = {
            "ordinals": [[s, p, o] for (s, p), o in sorted(self.ordinals.items())],
            "now_us": now_us,
        }
        if filing:
            meta[FILING] = dict(filing)
        if self.unread:
            meta[UNREAD] = [[s, p, first, following] for (s, p), first, following in self.unread]
        return meta

    def leave(self, passed: Passed) -> None:
        """Note input that is done with: ingested, or known already."""
        for name, n in passed.counts.items():
            self.count(name, n)
        self.ordinals.update(passed.ordinals)

    def count(self, name: str, n: int) -> None:
        if n:
            self.counters[name] = self.counters.get(name, 0) + n


# -- step transaction -------------------------------------------------------------------------------------------------


class Attempt:
    """An `ingest` and an `advance`, or one of the two, on an overlay of their own."""

    def __init__(self, base: KV, marks: Mapping[Partition, Mark], watermark_us: int, now_us: int) -> None:
        self.kv = Overlay(base)
        self.marks = dict(marks)
        self.watermark_us = watermark_us
        self.now_us = now_us
        self.advanced = False
        self.results: list[StepResult] = []
        self.steps: list[Step] = []
        self.following: dict[Partition, int] = {}
        self.fresh_marks: dict[Partition, int] = {}
        self.rows = 0

    def ingest(
        self,
        step: Callable[[Overlay], StepResult],
        first: dict[Partition, int],
        following: dict[Partition, int],
        rows: int,
    ) -> None:
        """Ingest rows from the `first` offsets to those that follow."""
        self.note(step(self.kv))
        self.following.update(following)
        self.rows += rows
        self.steps.append(
            Step(
                kind="ingest",
                now_us=self.now_us,
                watermark_us=self.watermark_us,
                first_offsets=first,
                next_offsets=following,
                rows=rows,
            )
        )

    def advance(self, step: Callable[[KV], StepResult], watermark_us: int) -> None:
        """Bring event time to `watermark_us`."""
        self.watermark_us, self.advanced = watermark_us, True
        self.note(step(self.kv))
        self.steps.append(Step(kind="advance", now_us=self.now_us, watermark_us=watermark_us))

    def ones(self, steps: Sequence[Step], marks: Mapping[Partition, Mark]) -> None:
        """Record the single-message steps that one `ingest` and one `advance` replaced, and their marks."""
        self.steps, self.marks = list(steps), dict(marks)

    def note(self, result: StepResult) -> None:
        """Keep the result of a step."""
        self.results.append(result)
        for partition, largest in result.marks.items():
            self.mark(partition, largest)

    def mark(self, partition: Partition, largest: int) -> None:
        """Raise the mark of a partition to an event time, where it is not above it."""
        known = self.marks.get(partition)
        highest = largest if known is None or known.max_time_us is None else max(largest, known.max_time_us)
        self.marks[partition] = Mark(max_time_us=highest, seen_us=self.now_us)
        self.fresh_marks[partition] = highest


def ingested(logic: Logic, kv: Overlay, tables: Mapping[str, pa.Table], now_us: int) -> StepResult:
    """Ingest the messages of a step, by input, into an overlay in which nothing is written yet."""
    # The last of the messages that raise together is at fault, whichever input was named first.
    in_order = {i.name: tables[i.name] for i in logic.definition.inputs if i.name in tables}
    return sifted(lambda kv, some: logic.ingest(kv, some, now_us), kv, in_order)


class Whole:
    """A critical section, `with whole:`. An exception inside leaves it `torn`, and `broken` is called with the exception."""

    __slots__ = ("_broken", "torn")

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken = broken
        self.torn = False

    def __enter__(self) -> None:
        self.torn = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.torn = False
        else:
            self._broken(error)


P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method of an operator so that threads take turns."""

    @functools.wraps(method)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with args[0]._turn:  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return alone
