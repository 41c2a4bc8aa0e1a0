"""`python -m windrow.testing.simulation`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from windrow.testing import simulation
from windrow.testing.generated_jobs import drawn
from windrow.testing.scenario import load
from windrow.testing.seeds import Play, command
from windrow.testing.simulation.runner import outlet_of, play
from windrow.testing.simulation.sinks import OUTLETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns how many seeds have failed, at most 100."""

    def more(parser: argparse.ArgumentParser) -> None:
        sinks = ", ".join(sorted(OUTLETS))
        parser.add_argument("--sink", help=f"one of {sinks}, or module:factory (default: any)")

    def player(arguments: argparse.Namespace) -> Play:
        return partial(
            play, job=load(arguments.job) if arguments.job else drawn, outlet=outlet_of(arguments.sink)
        )

    described = str(simulation.__doc__).splitlines()[0]
    prog = "windrow.testing.simulation"
    return command(prog, described, player, arguments, seeds=10_000, more=more, repeat=("job", "sink"))


if __name__ == "__main__":
    sys.exit(main())
