"""Pending commit: steps since the last commit, the progress they lead to, and the rows they emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.checkpoint.records import UNREAD, Mark, Step
from windrow.checkpoint.replay import FILING
from windrow.core.positions import Partition
from windrow.operators.steps.step import StepResult
from windrow.runners.embedded.positions import Passed
from windrow.runners.embedded.step_transaction import Attempt
from windrow.stores.kv import Overlay


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
