"""Tables and JSON on standard output, and names on the command line."""

from __future__ import annotations

import io
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, TextIO

from windrow.core.show import json_text
from windrow.core.time import instant_us, show_instant


@contextmanager
def modules_from_here() -> Iterator[None]:
    """Import the user's modules from the folder where the command runs."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)


#: Characters that control the terminal, or turn the direction of text: JSON holds them as escapes only, too.
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Readable(io.TextIOBase):
    """A stream for people and programs: no key, name or other text of a log can control the terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(readable(text))

    def flush(self) -> None:
        self._out.flush()


def readable(text: str) -> str:
    """Escape the unreadable characters of a text."""
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say_json(value: Any, out: TextIO) -> None:
    """Print one line of JSON; a value that JSON lacks is printed as text."""
    print(json_text(value, _as_text), file=out)


def _as_text(value: Any) -> str:
    """Format a value that JSON lacks: times in ISO 8601, with their zone where they have one."""
    return value.isoformat() if isinstance(value, (datetime, date)) else str(value)


def driver() -> str:
    """Return the name of this process, for the log."""
    return f"windrow:{socket.gethostname()}:{os.getpid()}"


def shown(value: Any) -> Any:
    """Format a value for people: null is nothing, and empty text is quoted."""
    if isinstance(value, datetime):
        return show_instant(instant_us(value)) if value.tzinfo is not None else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "''" if value == "" else value


def say_facts(facts: Mapping[str, Any], out: TextIO) -> None:
    """Print names and values in two columns; a value of several lines stays aligned, an empty one is left out."""
    shown = {name: str(value) for name, value in facts.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        first, *rest = value.splitlines()
        print(f"{name:<{width}}  {first}", file=out)
        for line in rest:
            print(f"{'':<{width}}  {line}", file=out)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """Print columns as wide as their widest value; numbers to the right."""
    listed = [
        ["" if v is None else str(v).replace("\n", "\\n").replace("\t", "\\t") for v in row] for row in rows
    ]
    listed = [[readable(v) for v in row] for row in listed]  # or columns are not aligned
    numbers = [
        all(_is_number(row[i]) for row in listed if row[i]) and bool(listed) for i in range(len(columns))
    ]
    widths = [max(len(name), *(len(row[i]) for row in listed), 0) for i, name in enumerate(columns)]
    for row in [list(columns), *listed]:
        cells = [
            f"{v:>{w}}" if right else f"{v:<{w}}" for v, w, right in zip(row, widths, numbers, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=out)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def long(us: int | None) -> str:
    """Format a duration by its two largest units."""
    if us is None:
        return ""
    rest, parts = abs(us) // 1_000_000, []
    for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        n, rest = divmod(rest, seconds)
        if n:
            parts.append(f"{n:,} {unit}")
    return ("-" if us < 0 else "") + (" ".join(parts[:2]) or "0 s")
