"""Step results, and the begin and end of a step that all operators share."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.policy import UNBOUNDED_US
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US


@dataclass
class StepResult:
    """The result of a step: panes, dead letters, event-time marks, counts."""

    panes: list[pa.Table] = field(default_factory=list)
    dead: pa.Table | None = None
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: (start, key) of windows whose last pane is among these, if a closing pane is asked for.
    ended: set[tuple[int, int, bytes]] = field(default_factory=set)
    #: Sessions evicted by the count limit, with their contents.
    evicted: list[pa.Table] = field(default_factory=list)
    #: Panes of operators inside a chain, by name.
    inner: dict[str, list[pa.Table]] = field(default_factory=dict)
    #: The number of groups that SQL made of the rows, or could have made; 0 if no caller needs it.
    groups: int = 0

    @property
    def silent(self) -> bool:
        """True if the result is empty."""
        parts = (self.marks, self.counts, self.ended, any(self.inner.values()))
        return not self.panes and self.dead is None and not any(parts)

    def then(self, later: StepResult) -> StepResult:
        """Return this step and a later one as one result."""
        dead = [d for d in (self.dead, later.dead) if d is not None]
        counts = dict(self.counts)
        for name, n in later.counts.items():
            counts[name] = counts.get(name, 0) + n
        return StepResult(
            self.panes + later.panes,
            pa.concat_tables(dead) if dead else None,
            {p: max(t, self.marks.get(p, t)) for p, t in {**self.marks, **later.marks}.items()},
            counts,
            self.ended | later.ended,
            self.evicted + later.evicted,
            {n: self.inner.get(n, []) + later.inner.get(n, []) for n in {**self.inner, **later.inner}},
            self.groups + later.groups,
        )


def limit(time_us: int, minus_us: int) -> int:
    """Return `time_us - minus_us`, bounded to int64; an unbounded one reaches back to the start of time."""
    if minus_us >= UNBOUNDED_US:
        return START_OF_TIME_US
    return max(time_us - minus_us, START_OF_TIME_US)


def passed(watermark_us: int, by_us: int) -> int:
    """Return the time that the watermark is `by_us` or more past; at the end of time everything, even without bounds."""
    return END_OF_TIME_US if watermark_us >= END_OF_TIME_US else limit(watermark_us, by_us)


@dataclass(frozen=True, slots=True)
class Redone:
    """Steps that run again, one after the other: their times, watermarks and numbers."""

    nows_us: IntArray
    watermarks_us: IntArray
    numbers: IntArray
