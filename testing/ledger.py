"""Ledger of panes: the final state of a consumer, and the equality of panes or rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from windrow.core.messages import Kind, Pane, TupleWindow, Window
from windrow.core.time import instant_us
from windrow.operators.oracle.aggregates import is_nan

#: Sums of floats depend on the order of addition; design section 4.
RELATIVE_TOLERANCE = 1e-9
ABSOLUTE_TOLERANCE = 1e-12

#: The types of most values, which are equal or are not.
_PLAIN = frozenset({bool, int, str, bytes, type(None)})

LedgerKey = tuple[tuple[tuple[str, Any], ...], Window | TupleWindow]


class LedgerBroken(AssertionError):
    """An error: inserts minus retracts left something else than at most the current pane."""


def values_equal(a: Any, b: Any) -> bool:
    """Equality of results: floats within 1e-9 relative, NaN equals NaN, an integer equals the same float."""
    if type(a) is type(b) and type(a) in _PLAIN:
        return bool(a == b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(values_equal(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(values_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if is_nan(a) or is_nan(b):
        return is_nan(a) and is_nan(b)
    if (
        isinstance(a, int | float)
        and isinstance(b, int | float)
        and isinstance(a, float) | isinstance(b, float)
    ):
        return math.isclose(a, b, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    return bool(a == b)


def panes_equal(a: Pane, b: Pane) -> bool:
    """True if two panes say the same; in which commit they were sent does not count.

    a, b: panes
    """
    return (
        (a.window, a.timing, a.index, a.is_last, a.kind) == (b.window, b.timing, b.index, b.is_last, b.kind)
        and values_equal(a.key, b.key)
        and values_equal(a.values, b.values)
    )


def same_output(a: Any, b: Any) -> bool:
    """True if two panes, or two rows of one kind, have equal values; the commit that emitted them does not count.

    Rows of one commit share their columns: a column that one of two rows does not have is null.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, Pane):
        return panes_equal(a, b)
    said = [f.name for f in fields(a) if f.name not in ("commit", "token")]
    return all(values_equal(_plain(getattr(a, name)), _plain(getattr(b, name))) for name in said)


def _plain(value: Any) -> Any:
    """Return the fields that are not null; a time as microseconds."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in value if value[name] is not None}
    return instant_us(value) if isinstance(value, datetime) and value.tzinfo is not None else value


def all_panes_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """True if two runs emitted the same panes, or rows, in the same order.

    a, b: lists of panes, or of rows
    """
    return len(a) == len(b) and all(same_output(x, y) for x, y in zip(a, b, strict=True))


def ledger_key(key: dict[str, Any], window: Window | TupleWindow) -> LedgerKey:
    """Return a (key, window) as a value that can be looked up (one NaN, no negative zero)."""
    fields = [
        (name, "NaN" if is_nan(v) else v + 0.0 if isinstance(v, float) else v) for name, v in key.items()
    ]
    return (tuple(fields), window)


def ledger(
    panes: Iterable[Pane], *, retracting: bool = False, grows: bool = False
) -> dict[LedgerKey, dict[str, Any]]:
    """Return the current values of every (key, window) after `panes`, in the order they were sent.

    Raises `LedgerBroken` where a retraction is not of the current pane, where an insert
    has the wrong index, where anything comes after a pane marked `is_last`, and, if `retracting`, where a
    second insert comes without a retraction of the first. grows: windows grow, and their indexes go on.
    """
    current: dict[LedgerKey, Pane] = {}
    panes_of: dict[LedgerKey, int] = {}
    ended: set[LedgerKey] = set()
    for pane in panes:
        key = ledger_key(pane.key, pane.window)
        if key in ended:
            raise LedgerBroken(f"{pane} comes after a pane marked as the last")
        held = current.get(key)
        if pane.kind is Kind.RETRACT:
            if held is None or held.index != pane.index or not values_equal(held.values, pane.values):
                raise LedgerBroken(f"{pane} takes back what is not there: {held}")
            del current[key]
            continue
        if retracting and held is not None:
            raise LedgerBroken(f"{pane} comes while {held} is current")
        if pane.index != panes_of.get(key, 0) and not (grows and pane.index > panes_of.get(key, -1)):
            raise LedgerBroken(f"{pane} should have index {panes_of.get(key, 0)}")
        panes_of[key] = pane.index + 1
        current[key] = pane
        if pane.is_last:
            ended.add(key)
    return {key: pane.values for key, pane in current.items()}
