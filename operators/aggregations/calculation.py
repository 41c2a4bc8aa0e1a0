"""Calculation: the aggregations of a definition, bound to the types of its input. It lifts, merges and finishes all at once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.core.aggregation import Aggregation
from windrow.core.arrays import BoolArray
from windrow.core.errors import UnknownColumn
from windrow.core.expressions import Expr, note
from windrow.core.time import START_OF_TIME_US
from windrow.core.windows import Session
from windrow.operators.aggregations import KERNELS, RETRACTABLE, Arguments, Failure, Kernel, Typed
from windrow.operators.aggregations.base import Parts, SumOverflow, fold, lift_where, take_or_null
from windrow.operators.aggregations.user import evaluate_table_functions
from windrow.operators.steps.columns import ACCUMULATOR, MESSAGES, PENDING, POSITION_COLUMNS, START
from windrow.operators.steps.groups import Groups, combine
from windrow.operators.steps.intake import Slice, user_columns

#: A part that is no kernel's: the number of messages that an aggregation added to windows of messages has seen.
SEEN = "#"
#: Kinds that depend on the order of positions.
_ORDERED = frozenset(
    {"first", "last", "earliest", "latest", "any_value", "max_by", "min_by"}
    | {"collect_list", "sort_list", "top_k_by"}
)


class Aggregating(Protocol):
    """The part of a definition that a calculation reads: the aggregations and their columns."""

    @property
    def by(self) -> tuple[str, ...]: ...
    @property
    def event_time(self) -> str: ...
    @property
    def agg(self) -> Mapping[str, Aggregation]: ...
    @property
    def integer_overflow(self) -> str: ...


@dataclass(frozen=True)
class Broken:
    """A user aggregate that raised for one group."""

    alias: str
    group: int
    error: BaseException

    @property
    def detail(self) -> str:
        """Return the text of a dead letter."""
        return f"{self.alias}: {''.join(traceback.format_exception(self.error)[-6:])}"


class Calculation:
    """All aggregations of one definition over input of one schema.

    The accumulator of alias `a` and part `p` is the column `a.<a>.<p>` of a state row.
    """

    def __init__(self, definition: Aggregating, schema: pa.Schema) -> None:
        self.definition = definition
        #: Aggregations added to existing state, with the first start of windows in which they have seen all messages.
        recomputed = dict.fromkeys(dict(getattr(definition, "recomputed_us", ())), START_OF_TIME_US)
        since: dict[str, int] = {**recomputed, **dict(getattr(definition, "since_us", ()))}
        self._since_us = tuple(since.items())
        self.numbered = numbered = getattr(definition, "numbered", False)
        #: Those whose windows are of messages: the messages that they have seen are counted.
        self._counted = tuple(since) if numbered else ()
        #: Event time from which kept messages are tried one by one, where an added aggregation raises on some.
        self._tried = dict.fromkeys(since, START_OF_TIME_US) if numbered else since
        self.input_schema, self.schema = (
            schema,
            with_columns_of([definition.agg[a] for a, _ in self._since_us], schema),
        )
        schema = self.schema
        self.kernels: dict[str, Kernel | None] = {}
        #: True if messages are kept to be found again when they are retracted.
        self._finds = getattr(definition, "takes_back", False) and getattr(definition, "session", False)
        kinds = RETRACTABLE if getattr(definition, "takes_back", False) and not self._finds else KERNELS
        options = {"integer_overflow": definition.integer_overflow}
        empty = schema.empty_table()
        for alias, aggregation in definition.agg.items():
            types = tuple(self._argument(empty, a, aggregation).type for a in aggregation.args)
            if aggregation.kind == "table_function":
                self.kernels[alias] = None
            else:
                self.kernels[alias] = kinds[aggregation.kind](Typed(aggregation, types, options))
            if aggregation.condition is not None:
                aggregation.condition.evaluate(empty)
        self.ordered = any(a.kind in _ORDERED for a in definition.agg.values())

    def _argument(self, table: pa.Table, argument: str | Expr, aggregation: Aggregation) -> pa.Array:
        if isinstance(argument, Expr):
            return combine(argument.evaluate(table))
        if argument not in table.column_names:
            raise UnknownColumn.lacking(argument, repr(aggregation), user_columns(table))
        return combine(table.column(argument))

    @property
    def output(self) -> list[pa.Field]:
        """Return the fields of the aggregates."""
        fields = []
        for alias, aggregation in self.definition.agg.items():
            kernel = self.kernels[alias]
            if kernel is None:
                assert aggregation.function is not None
                fields.append(pa.field(alias, aggregation.function.returns))
            else:
                fields.append(pa.field(alias, kernel.output_type()))
        return fields

    @property
    def regroups(self) -> bool:
        """True if accumulators of neighbours may be merged first, without a change of bits."""
        return all(kernel is None or kernel.regroups for kernel in self.kernels.values())

    @property
    def runs_code(self) -> bool:
        """True if user code merges accumulators, which may raise."""
        return any(a.kind == "user" for a in self.definition.agg.values())

    @property
    def order_free(self) -> bool:
        """True if accumulators may be merged in any order, without a change of bits: counts, and integers and the like."""
        return self.regroups and all(
            a.kind in ("count", "sum", "avg")
            or (a.kind in ("min", "max") and not pa.types.is_floating(self._kernel(alias).output_type()))
            for alias, a in self.definition.agg.items()
        )

    def _kernel(self, alias: str) -> Kernel:
        kernel = self.kernels[alias]
        assert kernel is not None
        return kernel

    def input_columns(self) -> list[str] | None:
        """Return the columns that have to be kept with a message; None: all of them."""
        window = getattr(self.definition, "window", None)
        if self._finds:
            return None
        if isinstance(window, Session) and isinstance(window.gap, Expr) and window.max_length_us is not None:
            return None  # the range of a message is computed again
        names = [self.definition.event_time, *self.definition.by]
        for aggregation in self.definition.agg.values():
            if aggregation.kind == "table_function" or aggregation.condition is not None:
                return None
            for argument in aggregation.args:
                if isinstance(argument, Expr):
                    return None
                names.append(argument)
        return list(dict.fromkeys(names))

    def lift(self, rows: Slice, *, kept: bool = False) -> dict[str, pa.Array]:
        """Return accumulators of single rows. kept: they were counted, perhaps before an added aggregation raises on them."""
        rows = self._whole(rows)
        times = pa.array(rows.times)
        order, sign = rows.order if self.ordered else None, rows.sign
        columns: dict[str, pa.Array] = {}
        arguments: dict[str | Expr, pa.Array] = {}
        since = self._tried if kept else {}
        for alias, aggregation in self.definition.agg.items():
            kernel = self.kernels[alias]
            if kernel is None:
                if not kept:
                    try_all({alias: aggregation}, rows.table)
                continue
            try:
                for argument in aggregation.args:
                    if argument not in arguments:
                        made = partial(self._argument, argument=argument, aggregation=aggregation)
                        arguments[argument] = _of_seen(made, rows, since.get(alias))
                lifted = Arguments(times, order, tuple(arguments[a] for a in aggregation.args), sign)
                if aggregation.condition is None:
                    parts = kernel.lift(lifted)
                else:
                    mask = _of_seen(aggregation.condition.evaluate, rows, since.get(alias))
                    parts = lift_where(kernel, lifted, combine(mask))
            except Exception as error:
                note(error, f"{alias}={aggregation!r}")
                raise
            for part, column in parts.items():
                columns[f"{ACCUMULATOR}{alias}.{part}"] = column
        for alias in self._counted:
            columns[f"{ACCUMULATOR}{alias}.{SEEN}"] = pa.array(np.ones(len(rows), dtype=np.int64))
        return columns

    def parts_of(self, alias: str, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        prefix = f"{ACCUMULATOR}{alias}."
        return {
            name[len(prefix) :]: combine(column)
            for name, column in columns.items()
            if name.startswith(prefix) and name != prefix + SEEN
        }

    def merge(
        self, columns: Mapping[str, pa.Array], groups: Groups
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return accumulators of groups, of rows that came together."""
        return self._merge(columns, groups, lambda kernel, *more: kernel.merge(*more))

    def fold(
        self, columns: Mapping[str, pa.Array], groups: Groups
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return accumulators of groups, a left fold in row order: earlier folds make no difference."""
        return self._merge(columns, groups, fold)

    def _merge(
        self, columns: Mapping[str, pa.Array], groups: Groups, merge: Callable[..., Parts]
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        merged: dict[str, pa.Array] = {}
        broken: list[Broken] = []
        for alias, kernel in self.kernels.items():
            if kernel is None:
                continue
            parts = self.parts_of(alias, columns)
            if not parts:
                continue
            failures: list[Failure] = []
            for part, column in merge(kernel, parts, groups, failures).items():
                merged[f"{ACCUMULATOR}{alias}.{part}"] = column
            broken += [Broken(alias, f.group, f.error) for f in failures]
        for name in (f"{ACCUMULATOR}{alias}.{SEEN}" for alias in self._counted):
            if name in columns:
                merged[name] = groups.aggregate([(pc.fill_null(combine(columns[name]), 0), "sum")])[0]
        return merged, broken

    def finish(self, columns: Mapping[str, pa.Array], size: int) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return values; an overflowed sum is a `Broken` with a `SumOverflow`."""
        values: dict[str, pa.Array] = {}
        broken: list[Broken] = []
        for alias, kernel in self.kernels.items():
            if kernel is None:
                continue
            failures: list[Failure] = []
            value = combine(kernel.finish(self.parts_of(alias, columns), size, failures))
            broken += [Broken(alias, f.group, f.error) for f in failures]
            if value.null_count:
                for g in np.flatnonzero(kernel.overflowed(value).to_numpy(zero_copy_only=False)).tolist():
                    broken.append(Broken(alias, g, SumOverflow(f"{alias}: the sum does not fit int64")))
            values[alias] = value
        ordered = {a: values[a] for a in self.kernels if a in values}
        if self._counted and MESSAGES in columns:
            return of_whole(ordered, broken, {alias: self.saw_all(alias, columns) for alias in self._counted})
        return self.masked(ordered, broken, columns[START]) if START in columns else (ordered, broken)

    def saw_all(self, alias: str, columns: Mapping[str, pa.Array]) -> BoolArray:
        """True for windows of messages that all came after their aggregation."""
        discarding = self.definition.emit.mode == "discarding"  # type: ignore[attr-defined]
        there = combine(columns[PENDING if discarding else MESSAGES]).to_numpy()
        seen = columns.get(f"{ACCUMULATOR}{alias}.{SEEN}")
        zero = np.zeros(len(there), dtype=np.int64)
        return np.asarray((zero if seen is None else pc.fill_null(combine(seen), 0).to_numpy()) == there)

    def masked(
        self, values: Mapping[str, pa.Array], broken: list[Broken], starts: pa.Array | pa.ChunkedArray
    ) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Set values to null in windows that begin before their aggregation was added to the state; drop their failures."""
        begins = combine(starts).to_numpy()
        return of_whole(values, broken, {alias: begins >= us for alias, us in self._since_us})

    def _whole(self, rows: Slice) -> Slice:
        """Return rows with the columns of added aggregations; they are null in messages without them."""
        table = rows.table
        if self._since_us:
            for field in self.schema:
                if field.name not in table.column_names:
                    table = table.append_column(field, pa.nulls(len(table), field.type))
        return rows if table is rows.table else Slice(table, rows.times)

    def table_functions(self, rows: Slice, groups: Groups) -> tuple[dict[str, pa.Array], list[Broken]]:
        """Return values of the functions of the window's messages."""
        values: dict[str, pa.Array] = {}
        broken: list[Broken] = []
        for alias, aggregation in self.definition.agg.items():
            if aggregation.kind != "table_function":
                continue
            assert aggregation.function is not None
            table, kept = rows.table, groups
            names = user_columns(table)
            if aggregation.function.envelope:
                names += [name for name in POSITION_COLUMNS if name in table.column_names]
            part = rows
            if aggregation.condition is not None:
                mask = combine(_of_seen(aggregation.condition.evaluate, rows, self._tried.get(alias)))
                chosen = np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
                part = rows.take(chosen)
                kept = Groups.of_codes(groups.codes[chosen], groups.size)
            value, failures = evaluate_table_functions(
                aggregation.function, part.table.select(names), kept, pa.array(part.times)
            )
            values[alias] = value
            broken += [Broken(alias, f.group, f.error) for f in failures]
        return values, broken


def try_all(agg: Mapping[str, Aggregation], table: pa.Table) -> None:
    """Raise where an expression of an aggregation raises on a message, which then does not count."""
    for alias, aggregation in agg.items():
        try:
            for expression in aggregation.expressions:
                expression.evaluate(table)
        except pa.ArrowException as error:
            note(error, f"{alias}={aggregation!r}")
            raise


def of_whole(
    values: Mapping[str, pa.Array], broken: list[Broken], whole: Mapping[str, BoolArray]
) -> tuple[dict[str, pa.Array], list[Broken]]:
    """Set values to null where an aggregation has not seen all messages of a window; drop failures there."""
    left = dict(values)
    for alias, saw in whole.items():
        if alias in left:
            left[alias] = take_or_null(combine(left[alias]), np.where(saw, np.arange(len(saw)), -1))
    return left, [b for b in broken if b.alias not in whole or whole[b.alias][b.group]]


def _of_seen(
    evaluate: Callable[[pa.Table], pa.Array | pa.ChunkedArray], rows: Slice, since_us: int | None
) -> pa.Array | pa.ChunkedArray:
    """Evaluate rows that were counted; null where it raises on those before `since_us`, in whose windows the aggregation has
    no value, and on those that came before the aggregation was added."""
    try:
        return evaluate(rows.table)
    except pa.ArrowException:
        if since_us is None:
            raise
    seen = np.flatnonzero(rows.times >= since_us)
    places = np.full(len(rows.times), -1)
    places[seen] = np.arange(len(seen))
    return take_or_null(_where_it_can(evaluate, rows.table.take(pa.array(seen))), places)


def _where_it_can(evaluate: Callable[[pa.Table], pa.Array | pa.ChunkedArray], table: pa.Table) -> pa.Array:
    """Evaluate row by row if needed; null where it raises."""
    try:
        return combine(evaluate(table))
    except pa.ArrowException:
        if len(table) == 1:
            return pa.nulls(1, evaluate(table.slice(0, 0)).type)
        half = len(table) // 2
        parts = (_where_it_can(evaluate, t) for t in (table.slice(0, half), table.slice(half)))
        return pa.concat_arrays(list(parts))


def with_columns_of(aggregations: Iterable[Aggregation], schema: pa.Schema) -> pa.Schema:
    """Return the schema with the columns of these aggregations, also those that no message has had."""
    for aggregation in aggregations:
        for name in aggregation.columns:
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.null()))
        conditions = [] if aggregation.condition is None else [aggregation.condition]
        for expression in (*(a for a in aggregation.args if isinstance(a, Expr)), *conditions):
            schema = _with_those_of(expression, schema)
    return schema


def _with_those_of(expression: Expr, schema: pa.Schema) -> pa.Schema:
    while True:
        try:
            expression.evaluate(schema.empty_table())
            return schema
        except UnknownColumn as error:
            if error.column is None:
                raise
            schema = schema.append(pa.field(error.column, pa.null()))


def values_differ(left: pa.Array, right: pa.Array) -> BoolArray:
    """True where two columns of results differ; null equals null and NaN equals NaN."""
    left, right = combine(left), combine(right)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        one_null = pc.xor(left.is_null(), right.is_null())
        return np.asarray(one_null.to_numpy(zero_copy_only=False), dtype=bool)
    if pa.types.is_nested(left.type) or pa.types.is_nested(right.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([repr(a) != repr(b) for a, b in pairs], dtype=bool)
    same = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    both_null = pc.and_(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(left.type) and pa.types.is_floating(right.type):
        nan = pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False).to_numpy(zero_copy_only=False)
        both_null = both_null | nan
    different: BoolArray = ~(same | both_null)
    return different


def any_differ(before: Sequence[pa.Array], after: Sequence[pa.Array], size: int) -> BoolArray:
    different = np.zeros(size, dtype=bool)
    for left, right in zip(before, after, strict=True):
        different |= values_differ(left, right)
    return different
