"""A seed of the simulation: its schedule, played in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.extras import need
from windrow.testing.generated_jobs import drawn
from windrow.testing.scenario import Played, load_name, scenario_of
from windrow.testing.seeds import Report, Summary, check, quiet, shrunk
from windrow.testing.simulation.schedule import Simulation
from windrow.testing.simulation.sinks import OUTLETS, OutletOf
from windrow.testing.simulation.world import ProcessDied


def play(
    seed: int,
    *,
    job: Played = drawn,
    outlet: OutletOf | None = None,
    faults: Collection[int] | None = None,
) -> Report:
    """Play the schedule of a seed, with those of its faults alone (default: all)."""
    need(
        "confluent_kafka", "testing", "the simulation"
    )  # some seeds keep the log, or put rows, in a Kafka that is simulated
    shared = "/dev/shm"
    with (
        tempfile.TemporaryDirectory(
            prefix="windrow-", dir=shared if os.path.isdir(shared) else None
        ) as folder,
        _one_core(),
        quiet(),
    ):
        inner = os.path.join(folder, "world")  # the disk has a folder next to it
        os.mkdir(inner)
        simulation = Simulation(seed, inner, job, outlet=outlet, faults=faults)
        failure: BaseException | None = None
        try:
            simulation.run()
        except (Exception, ProcessDied) as error:
            failure = error
        world = simulation.world
        return Report(seed, tuple(world.faults), world.trace, world.counts, failure)


def shrink(seed: int, *, job: Played = drawn, outlet: OutletOf | None = None) -> Report:
    """Return the schedule of a failing seed with as few of its faults as it takes to fail."""
    again = partial(play, job=job, outlet=outlet)
    return shrunk(again, again(seed))


def simulate(
    operators: Any,
    messages: Any = None,
    *,
    seeds: int = 100,
    first: int = 0,
    processes: int = 1,
    sink: str | OutletOf | None = None,
) -> Summary:
    """Play a job of yours under kills, lost power, several drivers and lost answers, a schedule a seed.

    operators: a definition, several that are one job, or a `Scenario`; or a function of a `random.Random` that gives one, so
        that each seed has a job of its own
    messages: dicts, or a pyarrow Table, in the order in which they come; {input: these} where inputs have names; or a function
        of a `random.Random` that gives them
    seeds, first: how many, from which on
    processes: in so many processes; what is played has to be picklable
    sink: the kind of sink: "kafka", "memory" or "parquet"; by default any

    Real are checkpoint, shards, recovery and the driver's decisions; Spark, Kafka, disk and clocks are simulated. The rows and
    dead letters of every commit are compared with the oracle, and the state with that of an undisturbed run. Raises
    `SeedFailed` with the smallest schedule that shows the error. The same seeds play the same schedules everywhere. Needs the
    extra `testing`.

    >>> import windrow as wr
    >>> counts = wr.Aggregate(event_time="t", window=wr.tumbling("1 hour"), retention="1 day", agg={"n": wr.count()})
    >>> summary = simulate(counts, [{"t": f"2013-07-01 05:{minute}Z"} for minute in range(10, 50)], seeds=3)
    >>> summary.failed
    0
    """
    job = scenario_of(operators, messages)
    outlet = outlet_of(sink) if isinstance(sink, str) else sink
    each = partial(play, job=job, outlet=outlet)
    return check(each, range(first, first + seeds), processes, "simulate(..., first={seed}, seeds=1)")


def outlet_of(name: str | None) -> OutletOf | None:
    """Return the sink of that name, or of module:factory; None for any."""
    if name is None or name in OUTLETS:
        return None if name is None else OUTLETS[name]
    made: Any = load_name(name)
    outlet: OutletOf = made
    return outlet


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Use one core: for tables of a few rows more threads only cost."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)
