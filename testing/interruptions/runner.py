"""A seed of interruptions: its story, played in a folder of its own."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import tempfile
import warnings
from collections.abc import Collection
from functools import cache, partial
from random import Random
from typing import Any
from unittest.mock import patch

from windrow import operators
from windrow.checkpoint import job as jobs
from windrow.runners.embedded import engine
from windrow.testing.generated_jobs import one_definition
from windrow.testing.interruptions.checks import Checks
from windrow.testing.interruptions.reader import Reader
from windrow.testing.scenario import Played, feed_of, scenario_of
from windrow.testing.seeds import Report, Summary, check, quiet, shrunk

#: Modules that Arrow loads on first use.
LATE = ("pyarrow.acero", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")


def play(seed: int, *, job: Played = one_definition, faults: Collection[int] | None = None) -> Report:
    """Play a seed, with those of its hits alone (default: all)."""
    _load_everything()
    feed = feed_of(job, Random(f"job of {seed}"))
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None, ignore_cleanup_errors=True
        ) as folder,
        patch.object(engine, "SNAPSHOT_EVERY", 4),
        patch.object(engine, "TIDY_SHARE", 0.0),  # a seed runs alike on every machine
        patch.object(jobs, "KEEP_COMMITS", 6),
        quiet(),
        warnings.catch_warnings(),
    ):
        # An interrupt right after a file is opened leaves it to the garbage collector, which warns.
        warnings.simplefilter("ignore", ResourceWarning)
        reader = Reader(seed, folder, feed, faults)
        failure: BaseException | None = None
        try:
            reader.disturbed()
            reader.come_to_rest()
            Checks(reader).kept()
            reader.end()
            Checks(reader).all()
        except Exception as error:
            failure = error
        finally:
            reader.let_go()
            gc.collect()
        return Report(seed, tuple(reader.faults), reader.story, reader.counts, failure)


@cache
def _load_everything() -> None:
    """Load all parts of operators, which are otherwise loaded on use: those lines are no lines of a step, and would differ in
    another process that plays the seed.
    """
    for name in LATE:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
        importlib.import_module(module.name)


def shrink(seed: int, *, job: Played = one_definition) -> Report:
    """Return a failing seed with as few of its hits as it takes to fail."""
    again = partial(play, job=job)
    return shrunk(again, again(seed))


def interrupt(
    operators: Any,
    messages: Any = None,
    *,
    seeds: int = 100,
    first: int = 0,
    processes: int = 1,
) -> Summary:
    """Feed a job of yours in this process, and let any of its calls raise Ctrl-C, a lack of memory or an error of the disk.

    operators: a definition, a `wr.chain`, or a `Scenario`; or a function of a `random.Random` that gives one
    messages: as for `simulate`
    seeds, first: how many, from which on
    processes: in so many processes; what is played has to be picklable

    After a hit the reader calls again, reads on from `next_offsets()`, or closes and opens again; sinks refuse, and messages
    that are kept are lost and read again. In the end the output is compared with the oracle. Raises `SeedFailed` with the
    fewest hits that show the error. The same seeds run alike on every machine.

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> summary = interrupt(counts, [{"t": f"2013-07-01 05:{minute}Z"} for minute in range(10, 50)], seeds=3)
    >>> summary.failed
    0
    """
    each = partial(play, job=scenario_of(operators, messages))
    return check(each, range(first, first + seeds), processes, "interrupt(..., first={seed}, seeds=1)")
