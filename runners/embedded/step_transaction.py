"""Step transactions: steps run on a copy of the staged commit; all of them take effect, or none.

Whatever a step raises (a full disk, Ctrl-C, user code), it changes nothing, so its messages can be tried again.
`Whole` guards the takeover of a successful attempt: an operator interrupted inside it is broken. A broken operator
commits nothing and has to be opened again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import pyarrow as pa

from windrow.checkpoint.records import Mark, Step
from windrow.core.positions import Partition
from windrow.operators.operator import Logic
from windrow.operators.steps.poison_rows import sifted
from windrow.operators.steps.step import StepResult
from windrow.stores.kv import KV, Overlay


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
