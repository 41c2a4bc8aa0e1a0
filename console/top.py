"""`windrow top LOCATION`: the views of a job in the terminal, as tabs that follow its commits.

Without a terminal each view is printed once. The job is read only, by one `State`, which moves on as the job commits.
"""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from windrow.console.state import open_state
from windrow.console.tabs import Query, cells, columns_of, status, tabs_of
from windrow.console.text import say_json, say_table
from windrow.core.extras import need
from windrow.runners.state import State


def top(options: argparse.Namespace, out: TextIO) -> int:
    """Show the views of a job in the terminal, or print them once where there is none."""
    with open_state(options) as state:
        if options.json:
            say_json({tab.title: tab.read(state, Query()).rows for tab in tabs_of(state)}, out)
            return 0
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print_once(state, out)
            return 0
        need("textual", "top", "windrow top")
        from windrow.console.top_app import TopApp

        TopApp(state).run()
    return 0


def print_once(state: State, out: TextIO) -> None:
    """Print each view."""
    print(status(state), file=out)
    for tab in tabs_of(state):
        listing = tab.read(state, Query())
        print(f"\n{tab.title}: {listing.notice or f'{listing.total:,} rows'}", file=out)
        if listing.rows:
            columns = columns_of(listing)
            say_table(columns, [cells(row, columns) for row in listing.rows], out)
