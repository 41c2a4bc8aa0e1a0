"""The conditions of an alert over its evaluations: variables, `when` and `until`, of whole columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.arrays import BoolArray, IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.expressions import Expr, error_text
from windrow.operators.alert.definition import CARRIED, FIELDS, AlertDefinition
from windrow.operators.alert.status import (
    CANCEL,
    NAMES,
    OPEN,
    REPEAT,
    Statuses,
    Transitions,
    status_functions,
    transitions,
)
from windrow.operators.steps.groups import combine
from windrow.operators.steps.output_columns import STAMP
from windrow.operators.steps.poison_rows import is_of_data

#: Evaluations on which a condition raises, with the exception.
Raised = dict[int, str]


@dataclass(frozen=True)
class Carried:
    """The state of each key before a step: its status, its count of repeats, and the times of its opening and last change."""

    status: Statuses
    count: IntArray
    open_us: IntArray
    change_us: IntArray

    def columns(self, names: Collection[str]) -> dict[str, pa.Array]:
        """Return those of the window fields that this state determines."""
        closed = self.status == CANCEL
        fields: dict[str, Callable[[], pa.Array]] = {
            "before_status": lambda: pa.DictionaryArray.from_arrays(pa.array(self.status), list(NAMES)).cast(
                pa.string()
            ),
            "count": lambda: pa.array(self.count),
            "open_time": lambda: pa.array(self.open_us, mask=closed).cast(STAMP),
            "change_time": lambda: pa.array(self.change_us, mask=closed).cast(STAMP),
        }
        return {name: field() for name, field in fields.items() if name in names}

    def take(self, some: IntArray | slice) -> Carried:
        return Carried(self.status[some], self.count[some], self.open_us[some], self.change_us[some])

    def put(self, some: IntArray, other: Carried) -> None:
        """Set those of some keys."""
        self.status[some], self.count[some] = other.status, other.count
        self.open_us[some], self.change_us[some] = other.open_us, other.change_us

    def after(self, derived: Transitions, moments: IntArray) -> Carried:
        """Return the state after evaluations of these transitions: one of each key, or each with its own state."""
        opens, changes = derived.after == OPEN, derived.after != derived.before
        return Carried(
            derived.after,
            derived.count,
            np.where(opens, moments, self.open_us),
            np.where(changes, moments, self.change_us),
        )


class Conditions:
    """The expressions of a definition."""

    def __init__(self, definition: AlertDefinition) -> None:
        self.variables, self._when, self._until = definition.variables, definition.when, definition.until
        self._all = of_all = definition.conditions
        self._by_status = any(one.mentions("before_status") for one in of_all)
        #: The window fields that they mention.
        self.fields = frozenset(name for name in FIELDS if self.mention([name]))
        self.in_rounds = any(one.mentions(name) for one in of_all for name in CARRIED)

    def mention(self, names: Iterable[str]) -> bool:
        """True if some condition or variable is over one of these columns."""
        return any(one.mentions(name) for name in names for one in self._all)

    def check(self, table: pa.Table) -> None:
        """Raise where a condition over columns of these types is no condition."""
        table = self.with_variables(table)
        for what, condition in (("when", self._when), ("until", self._until)):
            if condition is not None:
                check_condition(condition, what, table)

    def with_variables(self, table: pa.Table) -> pa.Table:
        for name, expression in self.variables.items():
            table = table.append_column(name, combine(expression.evaluate(table, f"variables[{name!r}]")))
        return table

    def sound(self, table: pa.Table, carried: Carried, raised: Raised) -> Statuses:
        """Return the status function of each evaluation; of those on which a condition raises, any.

        carried: as if it were the only one of its key
        """
        of = partial(self._functions, table, carried)
        functions: Statuses = bisected(of, slice(0, len(table)), raised)
        return functions

    def _functions(self, table: pa.Table, carried: Carried, rows: slice) -> Statuses:
        table, carried = table.slice(rows.start, rows.stop - rows.start), carried.take(rows)
        n, answers = len(table), list[tuple[BoolArray, BoolArray]]()
        for status in (CANCEL, OPEN, REPEAT) if self._by_status and not self.in_rounds else (None,):
            if status is not None:
                carried = Carried(
                    np.full(n, status, np.uint8), carried.count, carried.open_us, carried.change_us
                )
            whole = table
            for name, column in carried.columns(self.fields).items():
                whole = whole.append_column(name, column)
            whole = self.with_variables(whole)
            when = true_of(self._when, whole, "when")
            answers.append((when, when if self._until is None else ~true_of(self._until, whole, "until")))
        opens, stays = answers[0][0], [holds for _, holds in answers[-2:]]
        return status_functions(opens, np.column_stack([stays[0], stays[-1]]))


def judge(
    conditions: Conditions,
    table: pa.Table,
    heads: BoolArray,
    moments: IntArray,
    brought: Carried,
    expired: BoolArray,
) -> tuple[BoolArray, Transitions, Carried, Raised]:
    """Judge evaluations: whether each is possible, their transitions, and the state of the evaluations before each.

    table: keys, aggregates and those window fields that do not follow from other evaluations. brought: by the keys of heads.
    expired: true for evaluations that cancel, whatever conditions are
    """
    of_key = np.cumsum(heads) - 1
    if conditions.in_rounds and not heads.all():
        return _in_rounds(conditions, table, of_key, moments, brought, expired)
    raised: Raised = {}
    functions = conditions.sound(table, brought.take(of_key), raised)
    raised = _judged(functions, raised, expired)
    kept = np.ones(len(table), dtype=bool)
    kept[list(raised)] = False
    of_key = of_key[kept]
    heads = np.r_[True, of_key[1:] != of_key[:-1]][: len(of_key)]
    own = brought.take(of_key[heads])
    made = transitions(functions[kept], heads, own.status, own.count)
    return kept, made, _before(made, moments[kept], heads, own), raised


def _before(derived: Transitions, moments: IntArray, heads: BoolArray, brought: Carried) -> Carried:
    """Return the state before each evaluation."""
    of_key, places = np.cumsum(heads) - 1, np.arange(len(heads))
    first = np.maximum.accumulate(np.where(heads, places, 0))

    def former(marks: BoolArray, start: IntArray) -> IntArray:
        last = np.r_[-1, np.maximum.accumulate(np.where(marks, places, -1))[:-1]] if len(places) else places
        return np.where(last >= first, moments[last], start[of_key])

    count = np.r_[0, derived.count[:-1]] if len(places) else places
    count[heads] = brought.count
    opens = former(derived.after == OPEN, brought.open_us)
    return Carried(derived.before, count, opens, former(derived.after != derived.before, brought.change_us))


def _judged(functions: Statuses, raised: Raised, expired: BoolArray) -> Raised:
    """Cancel expired alerts. Returns the evaluations, none of these, on which a condition raises."""
    functions[expired] = CANCEL
    return {number: why for number, why in raised.items() if not expired[number]}


def nothing_judged() -> tuple[Transitions, Carried]:
    """Return the transitions of no evaluations."""
    none, numbers = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    return Transitions(none, none, numbers, numbers), Carried(none, numbers, numbers, numbers)


def _in_rounds(
    conditions: Conditions,
    table: pa.Table,
    of_key: IntArray,
    moments: IntArray,
    brought: Carried,
    expired: BoolArray,
) -> tuple[BoolArray, Transitions, Carried, Raised]:
    """Judge in rounds, as `judge`: round n has the n-th evaluation of all keys, and sees the state after the former rounds."""
    n = len(table)
    begins = np.searchsorted(of_key, of_key, side="left")
    depths = np.arange(n) - begins
    before, after = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    counts, opening = np.zeros(n, np.int64), np.full(n, -1)
    carried, raised, kept = brought.take(of_key), Raised(), np.ones(n, dtype=bool)
    opened = np.full(len(brought.status), -1)
    for depth in range(int(depths.max()) + 1):
        here = np.flatnonzero(depths == depth)
        keys = of_key[here]
        carried.put(here, brought.take(keys))
        failed: Raised = {}
        chosen, own = table.take(pa.array(here)), carried.take(here)
        functions = conditions.sound(chosen, own, failed)
        failed = _judged(functions, failed, expired[here])
        raised |= {int(here[i]): why for i, why in failed.items()}
        good = np.ones(len(here), dtype=bool)
        good[list(failed)] = False
        here, keys, own = here[good], keys[good], own.take(np.flatnonzero(good))
        made = transitions(functions[good], np.ones(len(here), dtype=bool), own.status, own.count)
        left = own.after(made, moments[here])
        brought.put(keys, left)
        before[here], after[here], counts[here] = made.before, made.after, made.count
        opened[keys] = np.where(made.after == OPEN, here, opened[keys])
        opening[here] = np.where((made.before != CANCEL) | (made.after == OPEN), opened[keys], -1)
    kept[list(raised)] = False
    numbers = np.cumsum(kept) - 1
    opening = np.where(opening >= 0, numbers[opening], -1)[kept]
    chosen = np.flatnonzero(kept)
    return (
        kept,
        Transitions(before[chosen], after[chosen], counts[chosen], opening),
        carried.take(chosen),
        raised,
    )


def true_of(condition: Expr, table: pa.Table, what: str | None = None) -> BoolArray:
    """True where a condition is; null is not."""
    answer = combine(condition.evaluate(table, what))
    if pa.types.is_null(answer.type):
        return np.zeros(len(table), dtype=bool)
    mask: BoolArray = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask


def check_condition(condition: Expr, what: str, table: pa.Table) -> None:
    """Raise where an expression over columns of these types is no condition."""
    kind = condition.evaluate(table).type
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise ConfigurationError(
            f"{what}={condition} is of type {kind}: use a condition, such as a comparison"
        )


def bisected(of: Callable[[slice], Any], rows: slice, raised: Raised) -> Any:
    """Return values of rows, false for those of which one cannot be computed."""
    try:
        return of(rows)
    except Exception as error:
        if not is_of_data(error) or rows.start == rows.stop:
            raise
        if rows.stop - rows.start == 1:
            raised[rows.start] = error_text(error)
            return np.zeros_like(of(slice(0, 0)), shape=(1, *of(slice(0, 0)).shape[1:]))
    middle = (rows.start + rows.stop) // 2
    halves = slice(rows.start, middle), slice(middle, rows.stop)
    return np.concatenate([bisected(of, half, raised) for half in halves])
