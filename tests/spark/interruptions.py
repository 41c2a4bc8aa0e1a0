"""Stops, cancelled jobs and sinks that refuse, at moments that a seed chooses: lives of one Spark job, the last one calm.

    PYSPARK_PYTHON=.venv/bin/python .venv/bin/python -m tests.spark.interruptions --seeds 50

Nothing in the input is late, so what has to come out does not depend on when a life ended: each window once, and each
malformed row as one dead letter. `windrow.testing.interruptions` strikes the same code inside one process, at every line.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

import windrow as wr
from windrow.connectors.pane_files import DEAD_LETTERS
from windrow.core.errors import WindrowError
from windrow.testing.expected_output import Broken
from windrow.testing.interruptions import Outlet

from .conftest import SCHEMA, Feed, at, session

SECOND = 1_000_000


class Lives:
    """One job on Spark, begun again and again."""

    def __init__(self, spark: Any, seed: int, folder: Path) -> None:
        self.spark, self.folder, self.random = spark, folder, random.Random(seed)
        self.calm, self.story = False, [f"seed {seed}"]
        self.panes, self.dead_letters = Outlet(self._refuses), Outlet(self._refuses)
        full = self.random.random() < 0.3
        self.definition = wr.Aggregate(
            by="k",
            event_time="t",
            window=wr.tumbling("10 seconds"),
            agg={"n": wr.count(), "total": wr.sum("v"), **({"middle": wr.median("v")} if full else {})},
            watermark="5 seconds",
            retention="1 hour",
            name="panes",
        )
        self.feed = Feed(folder / "input", SCHEMA)
        self.wanted: Counter[tuple[int, str]] = Counter()
        self.malformed = 0
        self._second = 0.0

    def _refuses(self) -> bool:
        refuses = not self.calm and self.random.random() < 0.15
        if refuses:
            self.story.append("a sink refuses")
        return refuses

    def produce(self, files: int) -> None:
        for _ in range(files):
            rows = []
            for _ in range(self.random.randint(1, 6)):
                self._second += self.random.choice([0.0, 1.0, 3.0])
                key = self.random.choice("ab")
                if self.random.random() < 0.15:
                    rows.append({"t": None, "k": key, "v": 1})
                    self.malformed += 1
                    continue
                rows.append({"t": at(self._second), "k": key, "v": 1})
                self.wanted[int(self._second) // 10, key] += 1
            self.feed.add(rows)

    def start(self) -> Any:
        writer = (
            self.definition.writeStream(
                self.feed.stream(self.spark, maxFilesPerTrigger=self.random.choice([1, 1, 2]))
            )
            .sink(self.panes)
            .deadLetters(self.dead_letters)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )
        if self.random.random() < 0.3:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="50 milliseconds").start()

    def live(self) -> None:
        """Start, be interrupted, end."""
        how = self.random.choice(["stop", "stop at a commit", "cancel", "cancel", "end"])
        self.story.append(how)
        query = None
        try:
            query = self.start()
            if how == "stop at a commit":
                commits = self.random.randint(1, 4)
                for _ in range(200):
                    if len(query.recentProgress) >= commits or query.awaitTermination(0.02):
                        break
            else:
                query.awaitTermination(self.random.uniform(0.05, 2.5))
            if how == "cancel":
                self.spark.sparkContext.cancelAllJobs()
                query.awaitTermination(self.random.uniform(0.05, 3.0))
        except Exception as error:
            if not isinstance(error, (WindrowError, OSError)) and "StreamingQueryException" not in repr(
                type(error)
            ):
                raise
            self.story.append(f"    {type(error).__name__}: {str(error)[:120]}")
        finally:
            if query is not None:
                query.stop()

    def run(self) -> None:
        """Lives with interruptions, a calm one that drains, checks."""
        self.produce(self.random.randint(2, 8))
        for _ in range(self.random.randint(1, 4)):
            self.live()
            if self.random.random() < 0.5:
                self.produce(self.random.randint(1, 3))
        self.calm = True
        self.story.append("from here on nothing goes wrong")
        query = self.start()
        try:
            query.drain()
        finally:
            query.stop()
        self.check()

    def check(self) -> None:
        """Every window once, with all its rows; every malformed row once."""
        emitted: Counter[tuple[int, str]] = Counter()
        for (name, _), table in self.panes.tables.items():
            if name != "panes":
                continue
            for row in table.to_pylist():
                window = row["window"]["start"].timestamp() // 10, row["k"]
                if window in emitted or row["pane"]["timing"] != "ON_TIME":
                    raise Broken(f"window {window} was told again: {row}")
                emitted[window] = row["n"]
        if emitted != self.wanted:
            raise Broken(f"lost {self.wanted - emitted}, too many {emitted - self.wanted}")
        letters = self.dead_letters.rows(DEAD_LETTERS)
        if letters != self.malformed:
            raise Broken(f"{letters} dead letters were given, {self.malformed} rows are malformed")


def play(spark: Any, seed: int, folder: Path) -> None:
    """Raises what is not as promised, with its story."""
    lives = Lives(spark, seed, folder)
    try:
        lives.run()
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}\n" + "\n".join(lives.story)) from error


def main() -> int:
    """The command. Returns how many seeds have failed, at most 100."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.interruptions", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: 50)")
    arguments = parser.parse_args()
    spark, failed = session(), 0
    for seed in (
        progress := tqdm(range(arguments.first, arguments.first + arguments.seeds), unit="seed", disable=None)
    ):
        with tempfile.TemporaryDirectory(prefix="windrow-", ignore_cleanup_errors=True) as folder:
            try:
                play(spark, seed, Path(folder))
            except Broken as wrong:
                failed += 1
                progress.write(f"seed {seed}: {wrong}")
    spark.stop()
    print(f"{arguments.seeds} seeds, {failed} failed")
    return min(failed, 100)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.exit(main())
