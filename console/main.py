"""The command line: `windrow describe | commits | panes | fork | reset`.

Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 wrong usage. With `--json` standard output is
JSON and nothing else: one object, or one object a line where there are many.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

import windrow
from windrow.console import jobs, panes
from windrow.core.errors import WindrowError

OK, REFUSED, USAGE = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    top = argparse.ArgumentParser(prog="windrow", description="Look at, copy and clear windrow jobs.")
    top.add_argument("--version", action="version", version=f"windrow {windrow.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace, TextIO], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    describe = add("describe", jobs.describe, "Say what a job is and how far it has come.")
    commits = add("commits", jobs.commits, "List the commits that a job's log keeps.")
    fork = add("fork", jobs.fork, "Copy a job's state, as of its last commit, to a new job elsewhere.")
    reset = add("reset", jobs.reset, "Delete a job's state. What sinks have stays.")
    for command in (describe, commits, fork, reset):
        command.add_argument(
            "location", help="where the job was opened; with writeStream, <checkpointLocation>/windrow"
        )
    commits.add_argument("--last", type=_positive, metavar="N", help="only the newest N")
    fork.add_argument("new_location", help="where the copy goes; nothing may be there yet")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    table = add("panes", panes.show, "Print the panes that a Parquet sink has.")
    table.add_argument("directory", help="the directory given to wr.sinks.parquet")
    table.add_argument("--operator", help="only of this operator")
    table.add_argument("--latest", action="store_true", help="only the current pane of each (key, window)")
    table.add_argument("--last", type=_positive, metavar="N", help="only the newest N")
    for command in (describe, commits, fork, reset, table):
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
    return top


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options, sys.stdout))
    except (WindrowError, OSError) as error:
        print(f"windrow {options.command}: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"windrow {options.command}: stopped", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
