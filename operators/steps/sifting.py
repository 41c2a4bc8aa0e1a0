"""A step whose slice holds rows on which Arrow, numpy or Python raise: these become dead letters, the others count.

Operators raise for what the program says wrongly (`WindrowError`), and bury the rows that they know to be malformed. What is
left are values that an expression or an aggregation cannot take, such as a division by zero: they are found by trying parts
of the slice, and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.errors import WindrowError
from windrow.operators.steps.columns import MALFORMED_ROW, RAW
from windrow.stores.kv import KV, Overlay

Row = tuple[str, int]
Tables = Mapping[str, pa.Table]
R = TypeVar("R")

#: Of a slice that breaks so often the program is to blame.
MOST = 1_000
_OF_DATA = (pa.ArrowException, ValueError, TypeError, ArithmeticError)


def is_of_data(error: BaseException) -> bool:
    """True if it may be a value that made a step raise: not the machine, not windrow itself."""
    return isinstance(error, _OF_DATA) and not isinstance(error, (WindrowError, MemoryError, OSError))


def sifted(step: Callable[[KV, Tables], R], kv: Overlay, tables: Tables) -> R:
    """`step(kv, tables)` on an overlay in which nothing is written yet, without the rows that make it raise."""
    try:
        return step(kv, tables)
    except Exception as error:
        if not is_of_data(error):
            raise
        kv.close()
        wrong = culprits(step, kv, tables, error)
    return step(kv, marked(tables, wrong))


def sifted_into(step: Callable[[KV, Tables], R], kv: KV, tables: Tables) -> R:
    """`sifted`, written into a store."""
    tried = Overlay(kv)
    result = sifted(step, tried, tables)
    kv.write(tried.batch)
    return result


def culprits(step: Callable[[KV, Tables], Any], kv: KV, tables: Tables, error: Exception) -> dict[Row, str]:
    """The rows, (table, number), that make a step raise, and what it raised. Raises `error` where no row is to blame."""
    rows = [(name, row) for name, table in tables.items() for row in range(len(table))]
    found: dict[Row, str] = {}

    def raised(some: Collection[Row]) -> Exception | None:
        chosen = set(some)
        try:
            step(Overlay(kv), marked(tables, {row: "" for row in rows if row not in chosen}))
        except Exception as raised:
            return raised
        return None

    def look(some: list[Row]) -> None:
        why = raised(some)
        if why is None:
            return
        if len(some) > 1:
            look(some[: len(some) // 2])
            look(some[len(some) // 2 :])
            return
        if not is_of_data(why) or len(found) == MOST:
            raise why
        found[some[0]] = f"{type(why).__name__}: {why}"

    if raised(()) is not None:
        raise error
    look(rows)
    if not found:
        raise error
    return found


def marked(tables: Tables, wrong: Mapping[Row, str]) -> dict[str, pa.Table]:
    """The tables, with these rows malformed."""
    by_table: dict[str, dict[int, str]] = {}
    for (name, row), why in wrong.items():
        by_table.setdefault(name, {})[row] = why
    return {name: _marked(table, by_table.get(name, {})) for name, table in tables.items()}


def _marked(table: pa.Table, wrong: Mapping[int, str]) -> pa.Table:
    if not wrong:
        return table
    told: list[str | None] = [None] * len(table)
    raw = pa.nulls(len(table), pa.string())
    if MALFORMED_ROW in table.column_names:
        told, raw = table.column(MALFORMED_ROW).to_pylist(), table.column(RAW)
        table = table.drop_columns([MALFORMED_ROW, RAW])
    for row, why in wrong.items():
        told[row] = why if told[row] is None else told[row]
    return table.append_column(MALFORMED_ROW, pa.array(told, pa.string())).append_column(RAW, raw)
