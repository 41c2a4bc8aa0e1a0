"""Tabs of a job: its views as rows of plain values, in the order that the reader chooses, for `windrow top`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.console import views
from windrow.console.state import flat, say_explanation
from windrow.console.text import long, readable
from windrow.core.clock import SystemClock
from windrow.core.errors import ConfigurationError
from windrow.core.time import instant_us, show_instant
from windrow.operators.view import WINDOWS
from windrow.runners.state import State

#: So many rows of a view are read; `/` finds others.
MOST = 200
#: Longer values are cut in a table; Enter shows them whole.
MOST_TEXT = 40
#: Dead letters are read of so many commits, which have a file each: `windrow dead-letters` lists all.
COMMITS_OF_LETTERS = 20


@dataclass(frozen=True)
class Query:
    """The rows that a reader wants of a view."""

    contains: str = ""
    order: str | None = None
    descending: bool = False


@dataclass(frozen=True)
class Listing:
    """Rows of a view, as plain values. orders: columns that the view can be sorted by; notice: shown in place of rows."""

    rows: Sequence[Mapping[str, Any]]
    total: int
    orders: tuple[str, ...] = ()
    notice: str = ""

    @property
    def columns(self) -> list[str]:
        """Return the columns of all rows, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


@dataclass(frozen=True)
class Tab:
    """One view. explain: returns the origin of a row as text; None where the row itself is all that there is."""

    title: str
    read: Callable[[State, Query], Listing]
    explain: Callable[[State, Mapping[str, Any]], str] | None = None


def tabs_of(state: State) -> list[Tab]:
    """Return the views of a job: those of every job, then the tables of each operator."""
    tabs = [
        Tab("Operators", _operators),
        Tab("Commits", lambda state, query: _selected(views.commits(state), query)),
        Tab("Watermark", lambda state, query: _selected(views.partitions(state), query)),
        Tab("Dead letters", _dead_letters),
    ]
    for operator in views.operators(state):
        for table in operator.tables:
            several = len(operator.inputs) > 1 and not (
                table == WINDOWS and _has_own_windows(state, operator.name)
            )
            for input_name in operator.inputs if several else (None,):
                title = " ".join(filter(None, (operator.name, input_name, table)))
                explain = (
                    partial(_explain, operator.name) if table == WINDOWS and input_name is None else None
                )
                tabs.append(Tab(title, partial(_table, operator.name, table, input_name), explain))
    return tabs


def _has_own_windows(state: State, operator: str) -> bool:
    """True if windows of an operator of several inputs are its own, and not those of an input."""
    try:
        state.page(WINDOWS, operator=operator, limit=1)
    except ConfigurationError:
        return False
    return True


def _operators(state: State, query: Query) -> Listing:
    """Return the operators of a job, each with its watermark."""
    rows = [
        {
            "operator": one.name,
            "kind": one.kind,
            "watermark": show_instant(one.watermark_us),
            "definition": one.missing or one.text,
        }
        for one in views.operators(state)
    ]
    return _selected(rows, query)


def _dead_letters(state: State, query: Query) -> Listing:
    """Return the dead letters of the newest commits that have some, the newest first."""
    table = state.dead_letters_table(last=COMMITS_OF_LETTERS)
    return _selected(table.to_pylist()[::-1], query)


def _table(operator: str, table: str, input_name: str | None, state: State, query: Query) -> Listing:
    """Return rows of a table of an operator."""
    if operator in state.missing:
        return Listing([], 0, notice=f"{state.missing[operator]}. Give --definition MODULE:NAME")
    page = state.page(
        table,
        order=query.order or "start",
        descending=query.descending,
        contains=query.contains or None,
        limit=MOST,
        operator=operator,
        input=input_name,
    )
    orders = ("start", "key", *(f.name for f in page.rows.schema if not pa.types.is_nested(f.type)))
    return Listing(page.rows.to_pylist(), page.total, orders)


def _selected(rows: Sequence[Mapping[str, Any]], query: Query) -> Listing:
    """Return the rows of a query among those that are in memory."""
    wanted = query.contains.casefold()
    kept = [row for row in rows if any(wanted in str(v).casefold() for v in row.values())]
    if query.order is not None:
        order = query.order
        known = [row for row in kept if row.get(order) is not None]
        known.sort(key=lambda row: _sortable(row[order]), reverse=query.descending)
        kept = known + [row for row in kept if row.get(order) is None]
    elif query.descending:
        kept = kept[::-1]
    return Listing(kept[:MOST], len(kept), tuple(rows[0]) if rows else ())


def _sortable(value: Any) -> tuple[bool, Any]:
    """Return a value by which values of several types can be sorted: numbers come first."""
    number = isinstance(value, (int, float))
    return not number, value if number else str(value)


def _explain(operator: str, state: State, row: Mapping[str, Any]) -> str:
    """Return the origin of a window as text."""
    window, by = row["window"], state.definition(operator).by
    start = next(iter(window.values()))
    what = start if isinstance(start, int) or start is None else instant_us(start)
    out = io.StringIO()
    for one in state.explain(what, key={name: row[name] for name in by} or None, operator=operator):
        say_explanation(one, out)
    return readable(out.getvalue())


def cells(row: Mapping[str, Any], columns: Sequence[str], most: int = MOST_TEXT) -> list[str]:
    """Return the values of a row as short text."""
    line = flat(dict(row))
    texts = [readable("" if line.get(name) is None else str(line[name])) for name in columns]
    return [text if len(text) <= most else text[: most - 1] + "…" for text in texts]


def columns_of(listing: Listing) -> list[str]:
    """Return the columns of a listing as they are shown: windows are spread out."""
    return list(dict.fromkeys(name for row in listing.rows for name in flat(dict(row))))


def status(state: State) -> str:
    """Return job, commit and what it is behind, in one line."""
    health = views.health(state.look, SystemClock().now_us())
    facts = [state.job, f"commit {state.commit}"]
    if health.age_us is not None:
        facts.append(f"{long(health.age_us)} ago")
    if health.lag_us is not None:
        facts.append(f"watermark {long(health.lag_us)} behind")
    if health.unpublished:
        facts.append(f"{health.unpublished} unpublished")
    return " · ".join(facts)
