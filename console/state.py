"""`windrow windows`, `messages`, `table`, `explain`: the state of a job, running or not, as of a commit."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC
from functools import partial
from typing import Any, TextIO

import pyarrow as pa

from windrow.console.text import modules_from_here, say_facts, say_json, say_table, shown
from windrow.console.views import explained
from windrow.core.errors import ConfigurationError
from windrow.core.messages import Position
from windrow.core.time import instant_us, is_number
from windrow.runners.state import State, read_state
from windrow.runners.state.definitions import imported, location_and_log
from windrow.runners.state.explain import Explanation


def open_state(options: argparse.Namespace) -> State:
    """Open the state of the options; user definitions are imported from the folder where the command runs."""
    with modules_from_here():
        definition = None if options.definition is None else imported(options.definition)
        location, log = location_and_log(options.location)
    return read_state(location, log=log, as_of=options.as_of, definition=definition)


def table(options: argparse.Namespace, out: TextIO) -> int:
    """Print one of an operator's tables, sorted."""
    name, operator, input = options.table, options.operator, options.input
    with open_state(options) as state:
        numbers = state.timed(name, operator, input) is None
        start, end = (_bound(text, numbers=numbers) for text in (options.start, options.end))
        key = _key(options, state, name)
        if options.last is None:
            rows = state.table(name, start, end, key=key, operator=operator, input=input).to_pylist()
        else:
            page = partial(state.page, name, start, end, key=key, operator=operator, input=input)
            rows = page(descending=True, limit=options.last).rows.to_pylist()[::-1]
    _say_rows(rows, options, out)
    return 0


def explain(options: argparse.Namespace, out: TextIO) -> int:
    """Print the content of the windows that start at a time, or of the rows of a join, and its origin."""
    if options.why_not:
        with open_state(options) as state:
            lines = state.why_not(offsets_of(options.window), operator=options.operator)
        print("\n".join(lines), file=out)
        return 0
    with open_state(options) as state:
        has_windows = "windows" in state.tables(
            options.operator
        )  # else it emits rows, by the times of messages
        start = instant(
            options.window, numbers=has_windows and state.timed("windows", options.operator) is None
        )
        found = state.explain(start, key=_key(options, state, "windows"), operator=options.operator)
        commit = state.commit
    if not found:
        key, lists = f" for {options.key}" if options.key else "", "windows" if has_windows else "messages"
        raise ConfigurationError(
            f"no window that starts at {options.window}, or row of a message of then, is held at {options.location} as of "
            f"commit {commit}{key}: `windrow {lists}` lists what there is"
        )
    for i, one in enumerate(found):
        if options.json:
            say_json({**explained(one), "as_of": commit}, out)
            continue
        if i:
            print(file=out)
        say_explanation(one, out)
    return 0


def offsets_of(value: str) -> dict[str, int]:
    """Read `order=17,ack=4`."""
    pairs = [text.partition("=") for text in value.split(",")]
    if any(not name or not offset.isdecimal() for name, _, offset in pairs):
        raise ConfigurationError(f"--why-not {value}: write PATTERN=OFFSET, as order=17 or order=17,ack=4")
    return {name: int(offset) for name, _, offset in pairs}


def say_explanation(one: Explanation, out: TextIO) -> None:
    """Print one explanation."""
    say_facts({**_facts(one), **_positions(one)}, out)
    for line in one.reasons:
        print(f"  {line}", file=out)
    rows = [
        (t.commit, t.messages, " ".join(f"{s or '(no source)'}/{p} [{a}, {b})" for s, p, a, b in t.ranges))
        for t in one.commits
    ]
    if rows:
        say_table(("commit", "messages", "took"), rows, out)
    if not one.complete:
        print(
            "What some commits brought is not known: it is no longer kept, or merged with older messages.",
            file=out,
        )


def _facts(one: Explanation) -> dict[str, Any]:
    info = one.window
    if info is None:
        return {"row": _words(one.row or {})}
    return {
        "window": repr(info.window),
        "key": _words(info.key),
        "values": _words(info.values),
        "messages": info.messages,
        "panes": f"{info.panes} so far",
        "first": place(info.first),
        "last": place(info.last),
        **({} if one.joined_by is None else {"joined by": place(one.joined_by)}),
    }


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={shown(v)}" for k, v in values.items())


def _positions(one: Explanation) -> dict[str, str]:
    """Return its messages' positions, by input where it has several; then those from outside, if its messages are rows."""
    by_input = one.inputs if len(one.inputs) > 1 else {"positions": one.positions or ()}
    emitted = {name: list(positions) for name, positions in by_input.items()}
    if one.rows and one.outside is not None:
        emitted["outside"] = list(one.outside)
    return {name: "\n".join(place(p) or "" for p in positions) for name, positions in emitted.items()}


def place(position: Position | None) -> str | None:
    if position is None:
        return None
    source, partition, offset, ordinal = position
    return f"{source or '(no source)'}/{partition} {offset}{f'.{ordinal}' if ordinal else ''}"


def _say_rows(rows: list[dict[str, Any]], options: argparse.Namespace, out: TextIO) -> None:
    if options.json:
        for row in rows:
            say_json(row, out)
        return
    if rows:
        lines = [flat(row) for row in rows]
        say_table(list(lines[0]), (list(line.values()) for line in lines), out)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a row to one line: windows are spread out, positions are one word."""
    line: dict[str, Any] = {}
    for name, value in row.items():
        if name == "window":
            line |= {n: shown(v) for n, v in value.items()}
        elif name in ("first", "last") and isinstance(value, dict):
            line[name] = place(Position(**value))
        elif name == "stored":
            stored = {n: v for n, v in value.items() if n != "time"}
            line |= {"time": shown(value["time"]), "position": place(Position(**stored))}
        else:
            line[name] = shown(value)
    return line


# -- what people write ----------------------------------------------------------------------------------------------


def instant(text: str | None, *, numbers: bool = False) -> int | None:
    """Parse a time to microseconds, UTC where it names no zone; a number is kept."""
    if text is None:
        return None
    if is_number(text) and (numbers or len(text) != 4):
        return int(text)
    return instant_us(text, zone=UTC)


def _bound(text: str | None, *, numbers: bool) -> Any:
    """TIME, TIME@OFFSET, or a number."""
    if text is None or "@" not in text:
        return instant(text, numbers=numbers)
    time, _, offset = text.rpartition("@")
    try:
        return instant(time), int(offset)
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: {offset!r} is no offset, write TIME@OFFSET") from error


def _key(options: argparse.Namespace, state: State, table: str) -> dict[str, Any] | None:
    """Parse `--key value` where there is one key field, `--key name=value` for each where there are several."""
    if not options.key:
        return None
    types = state.key_types(options.operator, getattr(options, "input", None), table)
    by = list(types)
    wanted: dict[str, Any] = {}
    for text in options.key:
        name, equals, value = text.partition("=")
        if equals and name not in by:
            itself = f", or --key {by[0]}={text} for a value with '=' in it" if len(by) == 1 else ""
            raise ConfigurationError(
                f"--key {text}: {name!r} is no key, the keys are {by}: write --key NAME=VALUE{itself}"
            )
        if not equals:
            if len(by) != 1:
                raise ConfigurationError(f"--key {text}: the keys are {by}, write --key NAME=VALUE")
            name, value = by[0], text
        wanted[name] = value
    return {name: typed(value, types.get(name)) for name, value in wanted.items()}


def typed(text: str, kind: pa.DataType | None) -> Any:
    """Convert a key's value to the type of its column."""
    if kind is None or pa.types.is_null(kind):
        return text
    try:
        return pa.array([text]).cast(kind).to_pylist()[0]
    except pa.ArrowException as error:
        raise ConfigurationError(f"--key {text}: the key is of type {kind} ({error})") from error
