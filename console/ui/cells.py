"""Cells of tables: values as short text for people, and the links between the views of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from windrow.console.state import place, typed
from windrow.console.text import readable
from windrow.core.errors import ConfigurationError
from windrow.core.messages import Position
from windrow.core.show import json_text
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, instant_us, show_instant

#: Text of a cell is cut here, and of a payload there.
CELL_CHARACTERS, PAYLOAD_CHARACTERS = 160, 4_000
#: Longer text may be broken into lines.
LONG = 48
#: A name made by a machine, such as that of an alert.
ID = re.compile("[0-9a-f]{32}")
#: Between the two ends of a range.
RANGE = " \u2013 "
#: Prefixes of parameters that name a key: its text, that it is null.
KEY, NULL_KEY = "k.", "null."


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a table. more: how many characters are left out; href: where it leads."""

    text: str
    kind: str = ""
    more: int = 0
    href: str = ""


def cell(value: Any, most: int = CELL_CHARACTERS) -> Cell:
    """Return a value as a cell: null, numbers, times, positions, and all else as text."""
    if value is None:
        return Cell("null", "null")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, (int, float)):
        return Cell(f"{value:.6g}" if isinstance(value, float) else f"{value}", "number")
    text = _text(value)
    kind = "long" if len(text) > LONG else "id" if ID.fullmatch(text) else ""
    if text == "":
        return Cell("empty text", "null")
    text = readable(text)
    return Cell(text[:most], kind, max(0, len(text) - most))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return show_instant(instant_us(value)) if value.tzinfo is not None else str(value)
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Mapping):
        if {"source", "partition", "offset"} <= set(value):
            at = place(Position(**{n: v for n, v in value.items() if n in Position._fields})) or ""
            return f"{value['binding']} {at}" if value.get("binding") else at
        if len(value) == 2 and set(value) in ({"start", "end"}, {"first", "last"}):
            return between(*("∞" if v is None else _text(v) for v in value.values()))
        if "timing" in value:
            last, kind = " last" * bool(value["is_last"]), f" {value['kind']}" * (value["kind"] != "INSERT")
            return f"{timing_of(value['timing'])} #{value['index']}{last}{kind}"
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and "offset" in v for v in value):
        return ", ".join(map(_text, value))
    return json_text(value, _text) if isinstance(value, (Mapping, list, tuple)) else str(value)


def source_name(source: str) -> str:
    """Format a source: an input whose messages have none is named alone."""
    return source.removesuffix(":") or "(no source)"


def timing_of(timing: str) -> str:
    """Format the timing of a pane: early, on time, late."""
    return timing.lower().replace("_", " ")


def aligned(column: Sequence[Cell]) -> list[Cell]:
    """Return the numbers of a column with as many decimals as the one that has most; those with an exponent stay."""
    texts = [one.text for one in column if one.kind == "number"]
    places = max((len(text.partition(".")[2]) for text in texts), default=0)
    if not places or any(not text.lstrip("-").replace(".", "", 1).isdecimal() for text in texts):
        return [*column]
    return [
        replace(one, text=f"{Decimal(one.text):.{places}f}") if one.kind == "number" else one
        for one in column
    ]


def moment(time_us: int, *, numbers: bool = False) -> str:
    """Return when a window starts, as an address names it."""
    known = START_OF_TIME_US < time_us < END_OF_TIME_US and not numbers
    return show_instant(time_us) if known else str(time_us)


def between(start: str, end: str) -> str:
    """Format a range of two times or numbers; a day that both share is named once."""
    day, _, clock = end.partition(" ")
    return f"{start}{RANGE}{clock if clock and start.startswith(day) else end}"


def time(time_us: int | None) -> str:
    """Format a time to the second."""
    return "" if time_us is None else show_instant(time_us).partition(".")[0].removesuffix("Z")


@dataclass(frozen=True)
class Links:
    """Addresses of the views of one job. kept: parameters that every one of them keeps."""

    job: str
    kept: Mapping[str, Any] = field(default_factory=dict)

    def to(self, view: str = "", **parameters: Any) -> str:
        """Return the address of a view; parameters that are None are left out."""
        asked = {n: v for n, v in {**self.kept, **parameters}.items() if v is not None and v is not False}
        query = urlencode({n: 1 if v is True else v for n, v in asked.items()})
        path = f"/jobs/{quote(self.job, safe='')}{f'/{view}' if view else ''}"
        return f"{path}?{query}" if query else path


def key_parameters(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an address that name a key."""
    return {
        NULL_KEY + name if value is None else KEY + name: 1 if value is None else _parameter(value)
        for name, value in key.items()
    }


def _parameter(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (datetime, date)) else str(value)


def key_from(parameters: Mapping[str, str], types: Mapping[str, pa.DataType]) -> dict[str, Any] | None:
    """Return the key that parameters name; None where they name none, or not all of it."""
    key: dict[str, Any] = {}
    for name, kind in types.items():
        if NULL_KEY + name in parameters:
            key[name] = None
        elif KEY + name in parameters:
            key[name] = _value(parameters[KEY + name], kind)
    return key if key and len(key) == len(types) else None


def _value(text: str, kind: pa.DataType) -> Any:
    if not (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        return typed(text, kind)
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ConfigurationError(f"key {text!r} is of bytes: write them as hexadecimal digits") from error


def utc(time_us: int) -> str:
    """Return a time for a `datetime` attribute."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
