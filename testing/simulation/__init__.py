"""Simulation of the whole commit protocol: one seed decides a schedule of faults, then an undisturbed end, then checks.

    python -m windrow.testing.simulation                           # 10,000 seeds, each with a job of its own
    python -m windrow.testing.simulation --job my.module:orders    # a job of yours: a windrow.testing.Scenario
    python -m windrow.testing.simulation --seed 7                  # one seed, with its schedule
    python -m windrow.testing.simulation --seed 7 --shrink         # with as few of its faults as it takes to fail

The code under test is the real one: the log, the job, shards, recovery, operators, segments, snapshots, sinks, and the
driver's decisions (`runners.protocol`). Simulated are the media and Spark: a checkpoint that repeats a batch until it is
noted, tasks that are tried again or twice. More: docs/explanation/simulation.md.
"""

from windrow.testing.simulation.runner import play as play
from windrow.testing.simulation.runner import shrink as shrink
from windrow.testing.simulation.runner import simulate as simulate
