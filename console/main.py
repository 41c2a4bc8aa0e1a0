"""Command line: `windrow describe | health | watermark | windows | messages | table | panes | explain | dead-letters |
commits | ui | top | metrics | verify | doctor | backup | fork | reset`, and `windrow completion`.

Exit codes: 0 done, and for `health`, `verify` and `doctor` nothing wrong; 1 refused or failed, with the reason on standard
error, or something is wrong, as standard output says; 2 wrong usage. With `--json` standard output is
JSON and nothing else: one object, or one object a line where there are many.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, cast

import windrow
from windrow.console import checks, completion, dead_letters, health, jobs, metrics, panes, state
from windrow.console import top as terminal
from windrow.console.text import Readable, readable
from windrow.console.ui import command as page
from windrow.core.errors import WindrowError

OK, REFUSED, USAGE = 0, 1, 2
#: The library's name of an argument, and the option of the command line.
_OPTION = re.compile(r"\b(operator|input|key)=(?!\w)")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
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
    well = add("health", health.health, "Say how a job is, for probes: 1 where it is worse than asked for.")
    mark = add(
        "watermark", health.watermark, "Say what holds the watermark, or set back a time that ran ahead."
    )
    commits = add("commits", jobs.commits, "List the commits that a job's log keeps.")
    backup = add("backup", jobs.backup, "Copy a job's files, running or not, to a folder that opens.")
    fork = add("fork", jobs.fork, "Copy a job's state, as of its last commit, to a new job elsewhere.")
    reset = add("reset", jobs.reset, "Delete a job's state. What sinks have stays.")
    windows = add("windows", state.table, "Print the windows that a job holds, running or not.")
    messages = add("messages", state.table, "Print the messages that a job keeps, running or not.")
    table = add(
        "table", state.table, "Print a table of an operator's, as the state or timers of a process function."
    )
    explain = add(
        "explain",
        state.explain,
        "Say which messages are in a window, or in a row of a join, and which commits put them there.",
    )
    dead = add(
        "dead-letters",
        dead_letters.show,
        "List by reason the messages that a job could not count, with payload.",
    )
    verify = add("verify", checks.verify, "Check every file of a job, or of a Parquet sink.")
    looks = (describe, well, mark, windows, messages, table, explain, dead, commits)
    for command in (*looks, verify, backup, fork, reset):
        text = "where the job was opened; with writeStream, <checkpointLocation>/windrow"
        if command in looks:
            text += (
                "; of a job with its log in Kafka log:SERVERS/NAME, or log:MODULE:NAME of any other transport"
            )
        command.add_argument("location", help=text)
    _health(well, mark)
    _queries(windows, messages, table, explain, commits)
    dead.add_argument("--reason", help="only of this reason, e.g. too_late")
    dead.add_argument("--operator", help="only of this operator")
    dead.add_argument("--last", type=_positive, metavar="N", help="only the newest N of each reason")
    backup.add_argument("folder", help="where the copy goes; nothing may be there yet")
    fork.add_argument("new_location", help="where the copy goes; nothing may be there yet")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    top.set_defaults(parser=top)  # which completion is made of
    _servers(add)
    for command in (*looks, verify, backup, fork, reset, *_others(add)):
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
    return top


def _page(page_of: argparse.ArgumentParser) -> None:
    """Add the arguments of `ui`."""
    page_of.add_argument("location", nargs="+", help="as of the other commands; several are listed")
    page_of.add_argument(
        "--host", default="127.0.0.1", help="listen here; others than this machine need a token"
    )
    page_of.add_argument(
        "--port", type=int, default=8080, help="listen here; 0 for a free one (default: 8080)"
    )
    page_of.add_argument(
        "--definition",
        metavar="MODULE:NAME",
        help="the job's definition, where its log cannot reproduce it; with one location",
    )


def _health(well: argparse.ArgumentParser, mark: argparse.ArgumentParser) -> None:
    """Add the arguments of `health` and `watermark`."""
    well.add_argument("--max-age", metavar="TIME", help="1 where the last commit is older, e.g. 5m")
    well.add_argument("--max-lag", metavar="TIME", help="1 where the watermark is farther behind the clock")
    well.add_argument(
        "--max-unpublished", type=int, metavar="N", help="1 where more commits are not known to be out"
    )
    well.add_argument("--size", action="store_true", help="count the bytes below the location, too")
    mark.add_argument("--set", metavar="TIME", help="lower the watermark to this; fences who runs the job")
    mark.add_argument(
        "--set-now",
        nargs="?",
        const="clock",
        metavar="TIME",
        help="lower the job's now, by default to the clock",
    )
    mark.add_argument(
        "--definition", metavar="MODULE:NAME", help="the job's definition, where its log cannot reproduce it"
    )


def _queries(
    windows: argparse.ArgumentParser,
    messages: argparse.ArgumentParser,
    table: argparse.ArgumentParser,
    explain: argparse.ArgumentParser,
    commits: argparse.ArgumentParser,
) -> None:
    """Add the arguments of the commands that query state."""
    commits.add_argument("--last", type=_positive, metavar="N", help="only the newest N")
    explain.add_argument(
        "--why-not",
        action="store_true",
        help="of rules: which condition keeps the messages PATTERN=OFFSET (several as order=17,ack=4) from a match",
    )
    explain.add_argument(
        "window",
        help="when the window starts, e.g. '2013-07-01 05:00'; of tuple windows its first number; of a join the time of a "
        "message, which names the rows that it is in; of rules the time of a match, or PATTERN=OFFSET",
    )
    table.add_argument(
        "table", help="which: windows, messages; state, timers of a process function; pending of rules"
    )
    for command, name in ((windows, "windows"), (messages, "messages"), (table, None)):
        if name is not None:
            command.set_defaults(table=name)
        bound = (
            "TIME, or TIME@OFFSET"
            if command is messages
            else "a time, in UTC unless it names a zone, or microseconds"
        )
        command.add_argument("--start", help=f"from here on: {bound}")
        command.add_argument("--end", help=f"up to here, included: {bound}")
        command.add_argument("--last", type=_positive, metavar="N", help="only the newest N")
        command.add_argument("--input", help="of a join: which input")
    for command in (windows, messages, table, explain):
        command.add_argument(
            "--key", action="append", help="only this key: VALUE, or NAME=VALUE for each key column"
        )
        command.add_argument("--operator", help="of this operator, where the job has several")
        _definition(command)


def _definition(command: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that open a state."""
    command.add_argument(
        "--definition",
        metavar="MODULE:NAME",
        help="the job's definition, where its log cannot reproduce it",
    )
    command.add_argument("--as-of", type=int, metavar="COMMIT", help="as it was after this commit")


def _servers(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that run until Ctrl-C."""
    _page(add("ui", page.ui, "Serve jobs as a live page on this machine, until it is stopped."))
    watch = add(
        "top", terminal.top, "Follow the views of a job in the terminal; without one, print them once."
    )
    watch.add_argument("location", help="as of the other commands")
    watch.add_argument("--json", action="store_true", help="print JSON, for programs")
    _definition(watch)
    serve = add("metrics", metrics.serve, "Serve the numbers of jobs' logs to Prometheus, until Ctrl-C.")
    serve.add_argument(
        "locations", nargs="+", metavar="location", help="where a job was opened, or log:SERVERS/NAME"
    )
    serve.add_argument("--port", type=int, default=9464, help="the port to listen on (default: 9464; 0: any)")
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: this machine only)"
    )


def _others(add: Callable[..., argparse.ArgumentParser]) -> tuple[argparse.ArgumentParser, ...]:
    """Add the commands that take no location; return those of them that print JSON."""
    table = add("panes", panes.show, "Print the panes that a Parquet sink has.")
    table.add_argument("directory", help="the directory given to wr.sinks.parquet")
    table.add_argument("--operator", help="only of this operator")
    table.add_argument("--latest", action="store_true", help="only the current pane of each (key, window)")
    table.add_argument("--last", type=_positive, metavar="N", help="only the newest N")
    doctor = add("doctor", checks.doctor, "Check Python, Java, Spark, RocksDB, Kafka and the disk.")
    for part in checks.OPTIONAL_PARTS:
        doctor.add_argument(
            f"--{part}", action="store_true", help=f"1 where something for {part.title()} is missing"
        )
    doctor.add_argument(
        "folder",
        nargs="?",
        default=".",
        help="a folder on the disk that locations will be on (default: here)",
    )
    complete = add(
        "completion", completion.show, "Print a script that completes windrow's commands in a shell."
    )
    complete.add_argument("shell", choices=completion.SHELLS)
    return table, doctor


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        code = int(options.run(options, cast("TextIO", Readable(sys.stdout))))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # A reader such as `head` has closed the pipe. Nothing is left for Python to write when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (WindrowError, OSError) as error:
        said = _OPTION.sub(r"--\1", str(error))
        print(readable(f"windrow {options.command}: {said}"), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"windrow {options.command}: stopped", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
