"""Reader of Spark's own checkpoint of a query, where it can be read: the plans of its batches.

Spark writes the plan of batch n to `offsets/n` before it calls us: a line "v1", one of metadata, then one for each source, how
far the batch reads it ("-": not at all yet). The heartbeat is the last source.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from windrow.core.errors import JobMismatch

#: The option for the number of plans that Spark keeps, and its default.
RETAIN, RETAINED = "spark.sql.streaming.minBatchesToRetain", 100


@dataclass(frozen=True)
class SparkCheckpoint:
    """A reader of one checkpoint. folder: Spark's checkpoint. beats: the heartbeat is a source. retained: kept plans."""

    folder: str
    beats: bool = False
    retained: int = RETAINED

    def had_beats(self) -> bool | None:
        """True if the heartbeat was among the sources so far; None where no batch was planned."""
        try:
            plans = [int(name) for name in os.listdir(os.path.join(self.folder, "offsets")) if name.isdigit()]
        except FileNotFoundError:
            return None
        plan = self._plan(max(plans)) if plans else None
        if plan is None:
            return None
        try:
            with open(
                os.path.join(self.folder, "sources", str(len(plan) - 1), "0"),
                encoding="utf-8",
                errors="replace",
            ) as file:
                begun = file.read()
        except FileNotFoundError:
            return False
        # A stream that begins with the clock notes when it began.
        return len(plan) > 1 and re.fullmatch(r"v1\n\d+", begun) is not None

    def with_beats(self, wanted: bool, available_now: bool) -> bool:
        """True if the heartbeat has to be among the sources: Spark lets no checkpoint change them.

        Under `availableNow` the heartbeat changes little, so that the checkpoint decides.
        """
        had = self.had_beats()
        if had is None or had == wanted:
            return wanted
        if available_now:
            return had
        begun, asked = ("with", "without") if had else ("without", "with")
        remedy = "leave that out" if had else 'use .option("heartbeat", "none")'
        raise JobMismatch(
            f"the query at {self.folder} was begun {begun} a heartbeat, this one is started {asked}, and Spark lets no "
            f"checkpoint change its sources: {remedy}, or delete that folder (rows with positions go on where the job stopped)"
        )

    def nothing_came(self, after: int, until: int) -> bool:
        """True if no batch from `after + 1` to `until` reads anything but heartbeats. False where that is unknown."""
        if os.path.isdir(os.path.join(self.folder, "state")):
            return False  # Spark's own operators keep state: they may emit rows though nothing has come
        before = self._without_beats(after)
        return before is not None and all(
            self._without_beats(batch) == before for batch in range(after + 1, until + 1)
        )

    def _without_beats(self, batch: int) -> list[str] | None:
        plan = self._plan(batch)
        return None if plan is None else plan[: len(plan) - self.beats]

    def _plan(self, batch: int) -> list[str] | None:
        """Return how far a batch reads each source; None where its plan is gone, or of an unknown version."""
        try:
            with open(os.path.join(self.folder, "offsets", str(batch)), encoding="utf-8") as file:
                version, _, *offsets = file.read().split("\n")
        except (FileNotFoundError, ValueError):
            return None
        return offsets if version == "v1" else None
