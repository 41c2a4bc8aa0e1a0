"""Poison rows, on which Arrow, numpy or Python raise within a step: these become dead letters, the others count.

Operators raise for errors in the program (`WindrowError`), and make dead letters of rows that they know to be malformed. The
remaining poison rows have values that an expression or an aggregation cannot take, such as a division by zero. They are
found by trying parts of the slice, and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from windrow.core.errors import WindrowError
from windrow.core.expressions import error_text
from windrow.operators.steps.columns import MALFORMED_ROW, PASSED_OVER, RAW, SIGN
from windrow.operators.steps.groups import combine
from windrow.stores.kv import KV, Overlay

Row = tuple[str, int]
Tables = Mapping[str, pa.Table]
R = TypeVar("R")

#: The limit of poison rows of a slice; beyond it the program is to blame. One of many steps that succeeded has none.
MOST, OF_STEPS = 1_000, math.inf
_OF_DATA = (pa.ArrowException, ValueError, TypeError, ArithmeticError)


def is_of_data(error: BaseException) -> bool:
    """True if it may be a value that made a step raise: not the machine, not windrow itself."""
    return isinstance(error, _OF_DATA) and not isinstance(error, (WindrowError, MemoryError, OSError))


@contextmanager
def own_code(name: str) -> Iterator[None]:
    """Make errors of windrow's own code fail the step, where they would look like those of a value. name: of the operator"""
    try:
        yield
    except Exception as error:
        if not is_of_data(error):
            raise
        raise RuntimeError(
            f"a step of {name!r} failed: {error_text(error)}. No message is to blame, it is a fault of windrow: please "
            "report it"
        ) from error


def sifted(step: Callable[[KV, Tables], R], kv: Overlay, tables: Tables, most: float = MOST) -> R:
    """Return `step(kv, tables)` on an unwritten overlay, without the rows that make it raise, at most `most`."""
    try:
        return step(kv, tables)
    except Exception as error:
        if not is_of_data(error):
            raise
        kv.close()
        wrong = culprits(step, kv, tables, error, most=most)
    return step(kv, marked(tables, wrong))


def sifted_into(step: Callable[[KV, Tables], R], kv: KV, tables: Tables, most: float = MOST) -> R:
    """Run `sifted`, and write its changes into a store."""
    tried = Overlay(kv)
    result = sifted(step, tried, tables, most)
    kv.write(tried.batch)
    return result


def culprits(
    step: Callable[[KV, Tables], Any],
    kv: KV,
    tables: Tables,
    error: Exception,
    *,
    in_place: bool = False,
    most: float = MOST,
) -> dict[Row, str]:
    """Return the rows, (table, number), that make a step raise, and their errors. Raises `error` if no row is to blame. Of rows
    that raise together, as a pair in a condition does, it is the last. Retractions are in each part, as a message that is
    retracted raises with no other any more.

    Parts are tried without the other rows; in_place: with them, passed over, for a step that depends on row indices.
    """
    errors: dict[Row, str] = {}
    always: list[Row] = []
    part_of = _passing_over if in_place else _chosen

    def raised(some: Sequence[Row]) -> Exception | None:
        try:
            step(Overlay(kv), part_of(tables, [*always, *some]))
        except Exception as raised:
            return raised
        return None

    def look(some: Sequence[Row]) -> None:
        why = raised(some)
        if why is None:
            return
        if len(some) > 1:
            look(some[: len(some) // 2])
            look(some[len(some) // 2 :])
            return
        blame(some[0], why)

    def blame(row: Row, why: Exception) -> None:
        if not is_of_data(why) or len(errors) == most:
            raise why
        errors[row] = error_text(why)

    back, forward = _by_sign(tables)
    if not back or raised(back) is not None:
        if raised(()) is not None:
            raise error
    else:
        always += back
        back = []
    for rows in filter(None, (back, forward)):
        look(rows)
        left = [row for row in rows if row not in errors]
        # If rows raise only together, the last of them is to blame.
        while len(left) > 1 and (why := raised(left)) is not None:
            row, why = _first_raising(left, raised, why)
            blame(left.pop(row), why)
        always += left
    if not errors:
        raise error
    return errors


def _first_raising(
    rows: Sequence[Row], raised: Callable[[Sequence[Row]], Exception | None], why: Exception
) -> tuple[int, Exception]:
    """Return (the first row that raises together with those before it, its error). why: the error of all of them."""
    fine, wrong = 0, len(rows)
    while wrong - fine > 1:
        middle = (fine + wrong) // 2
        there = raised(rows[:middle])
        fine, wrong, why = (middle, wrong, why) if there is None else (fine, middle, there)
    return wrong - 1, why


def _by_sign(tables: Tables) -> tuple[list[Row], list[Row]]:
    """Return (the retractions, the other rows)."""
    by_sign: tuple[list[Row], list[Row]] = ([], [])
    for name, table in tables.items():
        new = (
            combine(table.column(SIGN)).to_numpy() > 0
            if SIGN in table.column_names
            else np.ones(len(table), dtype=bool)
        )
        for row, is_new in enumerate(new.tolist()):
            by_sign[is_new].append((name, row))
    return by_sign


def _chosen(tables: Tables, some: Sequence[Row]) -> dict[str, pa.Table]:
    """Return the tables with these rows alone."""
    by_table: dict[str, list[int]] = {name: [] for name in tables}
    for name, row in some:
        by_table[name].append(row)
    return {name: table.take(pa.array(sorted(by_table[name]), pa.int64())) for name, table in tables.items()}


def _passing_over(tables: Tables, some: Sequence[Row]) -> dict[str, pa.Table]:
    """Return all rows in place, with all but these marked as passed over."""
    chosen = set(some)
    rows = ((name, row) for name, table in tables.items() for row in range(len(table)))
    return marked(tables, {row: PASSED_OVER for row in rows if row not in chosen})


def marked(tables: Tables, wrong: Mapping[Row, str]) -> dict[str, pa.Table]:
    """Return the tables, with these rows malformed."""
    by_table: dict[str, dict[int, str]] = {}
    for (name, row), why in wrong.items():
        by_table.setdefault(name, {})[row] = why
    return {name: _marked(table, by_table.get(name, {})) for name, table in tables.items()}


def _marked(table: pa.Table, wrong: Mapping[int, str]) -> pa.Table:
    if not wrong:
        return table
    emitted: list[str | None] = [None] * len(table)
    raw = pa.nulls(len(table), pa.string())
    if MALFORMED_ROW in table.column_names:
        emitted, raw = table.column(MALFORMED_ROW).to_pylist(), table.column(RAW)
        table = table.drop_columns([MALFORMED_ROW, RAW])
    for row, why in wrong.items():
        emitted[row] = why if emitted[row] is None else emitted[row]
    return table.append_column(MALFORMED_ROW, pa.array(emitted, pa.string())).append_column(RAW, raw)
