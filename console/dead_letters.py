"""`windrow dead-letters`: the messages that a job could not count, by reason."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from windrow.console.state import place
from windrow.console.text import modules_from_here, say_json, say_table
from windrow.core.errors import ConfigurationError
from windrow.core.messages import Position
from windrow.core.time import show_instant
from windrow.runners.state import State
from windrow.runners.state.definitions import location_and_log

Row = dict[str, Any]


def show(options: argparse.Namespace, out: TextIO) -> int:
    """Print dead letters that are kept, reason by reason, the most frequent first; oldest first within a reason."""
    with modules_from_here():
        location, log = location_and_log(options.location)
    with State(location, log=log, shards=()) as state:
        operators, rows = state.operators, state.dead_letters_table().to_pylist()
    if options.operator is not None and options.operator not in operators:
        raise ConfigurationError(f"--operator {options.operator}: the operators are {list(operators)}")
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        if options.operator in (None, row["operator"]) and options.reason in (None, row["reason"]):
            by_reason.setdefault(row["reason"], []).append(row)
    for number, (reason, of_reason) in enumerate(
        sorted(by_reason.items(), key=lambda one: (-len(one[1]), one[0]))
    ):
        shown = of_reason if options.last is None else of_reason[-options.last :]
        if options.json:
            for row in shown:
                say_json(row, out)
            continue
        if number:
            print(file=out)
        print(f"{reason}: {len(of_reason)}", file=out)
        lines = [_line(row) for row in shown]
        columns = [name for name in lines[0] if any(line[name] is not None for line in lines)]
        say_table(columns, ([line[name] for name in columns] for line in lines), out)
    return 0


def _line(row: Row) -> Row:
    """Format a dead letter as one line: of a traceback its last line."""
    position = None
    if row["offset"] is not None:
        position = place(Position(row["source"], row["partition"], row["offset"], row["ordinal"] or 0))
    time_us = row["event_time_us"]
    return {
        "operator": row["operator"],
        "input": row["input"],
        "commit": row["commit"],
        "position": position,
        "event time": None if time_us is None else show_instant(time_us),
        "detail": row["detail"].strip().splitlines()[-1] if row["detail"] else None,
        "payload": row["payload"],
    }
