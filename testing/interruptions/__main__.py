"""`python -m windrow.testing.interruptions`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from windrow.testing import interruptions
from windrow.testing.generated_jobs import one_definition
from windrow.testing.interruptions.runner import play
from windrow.testing.scenario import load
from windrow.testing.seeds import Play, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns how many seeds have failed, at most 100."""

    def player(arguments: argparse.Namespace) -> Play:
        return partial(play, job=load(arguments.job) if arguments.job else one_definition)

    described = str(interruptions.__doc__).splitlines()[0]
    return command("windrow.testing.interruptions", described, player, arguments, seeds=1_000)


if __name__ == "__main__":
    sys.exit(main())
