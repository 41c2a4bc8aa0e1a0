"""Pushdown: the part of a step that SQL can do before rows cross, and the outcome of the groups that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windrow.core.inputs import Input
from windrow.operators.steps.step import StepResult


@dataclass(frozen=True, slots=True)
class Pushdown:
    """The part of an `ingest` that SQL can do before rows cross: rows of one slice of time and one key become one group.

    parts: accumulator -> SQL aggregate. length_us, offset_us: of slices; a length of 0: all time is one. window: (size, hop) of
    the newest window of a time, None where no window ends.
    retention_us, lateness_us: how long after its end a window is kept, and takes rows. first_times: the first time of each
    group is needed, too. late_rows: late rows are known by their time; else all rows of a batch with such have to cross.
    faults: SQL that is true of a row with a value that cannot be counted.
    """

    input: Input
    by: tuple[str, ...]
    nulls_count: bool
    parts: Mapping[str, str]
    length_us: int
    offset_us: int
    window: tuple[int, int] | None
    retention_us: int | None
    lateness_us: int
    first_times: bool = False
    late_rows: bool = True
    faults: str | None = None


@dataclass
class Grouped:
    """The outcome of groups. step: of those that counted; rows: number of input rows; uncounted: rows that are too late, or too
    far ahead of now, so that the groups that hold them do not count. faulty: rows that must be checked one by one. extent:
    [first, last] offset of each partition.
    """

    step: StepResult
    rows: int = 0
    uncounted: int = 0
    faulty: int = 0
    extent: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
