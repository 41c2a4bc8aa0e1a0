"""Views of a join: the windows and the messages of each input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrays import IntArray
from windrow.core.errors import ConfigurationError
from windrow.core.inputs import Input
from windrow.core.keys import encode_key, plain_number
from windrow.core.messages import StoredMessage, TupleWindow, WindowInfo
from windrow.core.policy import RESERVED_COLUMNS
from windrow.core.time import END_OF_TIME_US, START_OF_TIME_US, Instant, instant_us
from windrow.core.types import concat
from windrow.core.windows import Rows
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.logic import JoinOperator
from windrow.operators.join.output import NOBODY, Columns, joined_schema, prefixes
from windrow.operators.join.reach import LEFT, RIGHT
from windrow.operators.join.tables import Raised
from windrow.operators.join.windows import windows_of_input
from windrow.operators.steps.intake import Slice
from windrow.operators.steps.output_columns import POSITION, TIME_WINDOW_TYPE, TUPLE_WINDOW_TYPE, stamp_us
from windrow.operators.steps.progress import Progress
from windrow.operators.view import (
    Provenance,
    Query,
    View,
    key_of,
    merged,
    message_columns,
    of_key,
    rows_without_prefix,
    stored,
    union,
)
from windrow.stores.kv import KV


class JoinView(View):
    """A view over the messages of both sides. Joins store no windows; these are computed from the messages."""

    logic: JoinOperator
    definition: JoinDefinition

    # -- its rows ---------------------------------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        schemas = []
        for kv in self.stores:
            left, right = self.logic.inputs.schemas(kv)
            schemas.append(joined_schema(self.logic.inputs.called(kv, (left, right)), left, right))
        return union(schemas) or pa.schema([])

    def key_types(self, input: str | None = None) -> dict[str, pa.DataType]:
        side = self._side(self.definition.left.name if input is None else input)
        known = message_columns(self._schemas(side))
        return {b: known.field(b).type for b in self.logic.readings[side].by}

    def _side(self, input: str | None) -> int:
        return LEFT if self.input(input).name == self.definition.left.name else RIGHT

    def _input_of(self, side: int) -> Input:
        input: Input = (self.definition.left, self.definition.right)[side]
        return input

    def source_prefix(self, input: str) -> str:
        return self._input_of(prefixes(self.definition).index(input)).source_prefix

    def _schemas(self, side: int) -> list[pa.Schema]:
        return [self.logic.inputs.schemas(kv)[side] for kv in self.stores]

    # -- windows ----------------------------------------------------------------------------------------------------

    def windows(self, query: Query) -> list[WindowInfo]:
        side = self._side(query.input)
        low, high = query.times
        tables = self.messages(Query(key=query.key, input=query.input))
        if not tables:
            return []
        [rows] = tables
        return windows_of_input(self._input_of(side).window, rows, low, high, self.watermark_us)

    def windows_table(self, query: Query) -> pa.Table:
        side = self._side(query.input)
        window = self._input_of(side).window
        kind = TUPLE_WINDOW_TYPE if isinstance(window, Rows) else TIME_WINDOW_TYPE
        rows = []
        for info in self.windows(query):
            span: dict[str, int | None]
            if isinstance(info.window, TupleWindow):
                span = {"first": info.window.first, "last": info.window.last}
            else:
                span = {"start": stamp_us(info.window.start_us), "end": stamp_us(info.window.end_us)}
            first, last = (None if p is None else p._asdict() for p in (info.first, info.last))
            rows.append(
                {
                    "window": span,
                    **info.key,
                    "messages": info.messages,
                    "first": first,
                    "last": last,
                    "fired": info.fired,
                }
            )
        schema = pa.schema(
            [
                ("window", kind),
                *self._window_keys(side),
                ("messages", pa.int64()),
                ("first", POSITION),
                ("last", POSITION),
                ("fired", pa.bool_()),
            ]
        )
        return pa.Table.from_pylist(rows, schema)

    def _window_keys(self, side: int) -> list[pa.Field]:
        """Return the key columns of windows that are of a key."""
        return []

    # -- messages ---------------------------------------------------------------------------------------------------

    def messages(self, query: Query) -> list[Slice]:
        side = self._side(query.input)
        low, high = query.bounds
        wanted = key_of(self.logic.readings[side].by, query.key)
        tables = [self._of_both(kv, self.logic.lasting(kv, side), low, high, wanted) for kv in self.stores]
        layout = self.logic.stores[side].layout
        by = self.logic.readings[side].by if layout.has_fields else ()
        prefix = self._input_of(side).source_prefix
        return [rows_without_prefix(r, prefix) for r in merged(tables, by, fields_first=layout.fields_first)]

    def _of_both(
        self,
        kv: KV,
        side: int,
        low: tuple[int, Any],
        high: tuple[int, Any],
        wanted: Mapping[str, Any] | None,
    ) -> Slice:
        """Return messages of a side in a shard. In a self-join of newest rows by other columns, the other side keeps
        other messages of the input: these are added, all by time.
        """
        rows, join = self._kept(kv, side, low, high, wanted), self.definition
        if not (join.is_self_join and join.by_rows and join.left_keys != join.right_keys):
            return rows
        others = self._kept(kv, 1 - side, low, high, wanted)
        both = Slice(concat([rows.table, others.table]), np.concatenate([rows.times, others.times]))
        if both.order is None:
            return both
        places = zip(both.times.tolist(), both.order.to_pylist(), strict=True)
        first = {place: row for row, place in reversed(list(enumerate(places)))}
        return both.take(np.array([first[place] for place in sorted(first)], dtype=np.int64))

    def _kept(
        self,
        kv: KV,
        side: int,
        low: tuple[int, Any],
        high: tuple[int, Any],
        wanted: Mapping[str, Any] | None,
    ) -> Slice:
        """Return messages of a side in a shard; their sources have the input's prefix."""
        by = self.logic.readings[side].by
        whole = None
        if wanted and len(wanted) == len(by) == len(set(wanted) & set(by)):
            whole = encode_key([plain_number(wanted[b]) for b in by])
        rows: Slice = self.logic.kept(kv, side, low, high, whole)
        return rows.take(np.flatnonzero(of_key(rows.table, wanted))) if wanted else rows

    def message_schema(self, input: str | None = None) -> pa.Schema:
        return message_columns(self._schemas(self._side(input)))

    # -- why --------------------------------------------------------------------------------------------------------

    def made_at(self, at: Instant, key: Any) -> list[Provenance]:
        """Return the rows that a message of that time is part of."""
        at_us = instant_us(at, "time")
        rows = [row for kv in self.stores for row in self._provenance(kv, at_us, key, settled=False)]
        return [m for m in rows if at_us in [s.event_time_us for messages in _all(m) for s in messages]]

    def made_of(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Provenance]]:
        """Return the provenance of rows. rows: rows that the join emitted, or the columns another operator keeps of them."""
        names = [n for n in rows[0] if n not in RESERVED_COLUMNS] if rows else []
        known = self.schema().names
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"column {name!r} is none of the rows of {self.definition.name!r}, which have {known}: give a row of these"
                )
        wanted = [tuple(_plain(row[n]) for n in names) for row in rows]
        keys = {tuple(_plain(row[b]) for b in self.definition.by if b in row) for row in rows}
        [key] = keys if len(keys) == 1 else [()]
        by_row: dict[tuple[Any, ...], list[Provenance]] = {}
        for kv in self.stores:
            for provenance in self._provenance(
                kv, None, key if len(key) == len(self.definition.by) else None, settled=True
            ):
                assert provenance.row is not None
                by_row.setdefault(tuple(_plain(provenance.row[n]) for n in names), []).append(provenance)
        return [by_row.get(row, []) for row in wanted]

    def _provenance(self, kv: KV, at_us: int | None, key: Any, *, settled: bool) -> Iterator[Provenance]:
        """Yield the rows that kept messages make, in the order of their left messages, then the unmatched ones.

        at_us: only messages that can match one of that time; settled: an unmatched message counts even if its possible
        partners are evicted, because its row was emitted.
        """
        left_key = key_of(self.definition.by, key)
        right_key = left_key and {
            self.definition.right_keys[self.definition.by.index(b)]: v for b, v in left_key.items()
        }
        both = [
            self._kept(kv, self.logic.lasting(kv, side), (low, None), (high, None), wanted)
            for side, (low, high), wanted in zip(
                (LEFT, RIGHT), self._around(at_us), (left_key, right_key), strict=True
            )
        ]
        columns = self.logic.inputs.called(kv, self.logic.inputs.schemas(kv))
        messages = [
            stored(rows_without_prefix(rows, self._input_of(s).source_prefix)) for s, rows in enumerate(both)
        ]
        li, ri = self._emitted(kv, both, columns, settled=settled)
        rows = columns.rows(both[LEFT].table, both[RIGHT].table, li, ri).to_pylist()
        names = prefixes(self.definition)
        semi: dict[int, list[StoredMessage]] = {}
        for row, left, right in zip(rows, li.tolist(), ri.tolist(), strict=True):
            row.pop("__pair", None)
            of_left = [] if left == NOBODY else [messages[LEFT][left]]
            of_right = [] if right == NOBODY else [messages[RIGHT][right]]
            if self.definition.how == "semi":
                if left in semi:
                    semi[left] += of_right
                    continue
                semi[left] = of_right
            yield Provenance(None, row, {names[LEFT]: of_left, names[RIGHT]: of_right})

    def _emitted(
        self, kv: KV, both: Sequence[Slice], columns: Columns, *, settled: bool
    ) -> tuple[IntArray, IntArray]:
        """Return (left row, right row) of kept messages that made a row, NOBODY for a missing partner."""
        return _emitted(self.logic, kv, both, columns, settled=settled)

    def _around(self, at_us: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the first and last time of the messages of each side that decide rows with a message of that time: left ones
        of that time, or that can match one of it; right ones that these can match.
        """
        if at_us is None:
            return (START_OF_TIME_US, END_OF_TIME_US), (START_OF_TIME_US, END_OF_TIME_US)
        left = self._met(RIGHT, at_us, at_us)
        return left, self._met(LEFT, *left)

    def _met(self, side: int, first_us: int, last_us: int) -> tuple[int, int]:
        """Return the range from `first` to `last`, extended by the times that messages of a side there can match."""
        low, high = self.logic.reach.partners(side, np.array([first_us, last_us], dtype=np.int64))
        return min(first_us, int(low[0])), max(last_us, int(high[1]))


def _all(provenance: Provenance) -> Sequence[Sequence[StoredMessage]]:
    assert provenance.messages is not None
    return list(provenance.messages.values())


def _plain(value: Any) -> Any:
    """Return a value that can be looked up, and equals itself."""
    return repr(value) if isinstance(value, (list, dict)) or value != value else value


# -- which messages made a row ----------------------------------------------------------------------------------------


def _emitted(
    logic: Any, kv: KV, both: Sequence[Slice], columns: Columns, *, settled: bool
) -> tuple[IntArray, IntArray]:
    """Return (left row, right row) of kept messages that made a row, NOBODY for a missing partner.

    A message whose possible partners are evicted may or may not have been unmatched: it is left out unless `settled`.
    """
    reached_us = Progress.load(kv, logic.aux_cf).watermark_us
    done_us, how = logic.done(reached_us), logic.definition.how
    sides, raised = (logic.definition.left, logic.definition.right), Raised()
    if how == "asof" and not settled:
        # A static input may have got a newer answer since.
        answered = np.flatnonzero(both[LEFT].times < (START_OF_TIME_US if sides[RIGHT].static else done_us))
        best = logic._latest(both[LEFT].take(answered), both[RIGHT], columns, raised)
        good = np.array([row not in raised for row in range(len(best))], dtype=bool)
        blocks = [(answered[good], best[good])]
    else:
        blocks = [logic._pairs(both, both, columns, raised)]
    for side in () if how == "semi" or (how == "asof" and not settled) else logic.followed:
        before = done_us if how == "asof" else logic.reach.expired_before(side, done_us)
        lonely = both[side].times < before
        if not (settled and (how == "asof" or sides[1 - side].static)):
            lonely[blocks[0][side]] = False
        rows = np.flatnonzero(lonely)
        none = np.full(len(rows), NOBODY, dtype=np.int64)
        blocks.append((rows, none) if side == LEFT else (none, rows))
    if how == "anti":
        del blocks[0]
    if not settled:
        floors = [
            END_OF_TIME_US
            if isinstance(sides[side].window, Rows) or side in logic.sizes.sides
            else logic._floor(logic.lasting(kv, side), reached_us, done_us)
            for side in (LEFT, RIGHT)
        ]
        blocks = [_certain(logic, pairs, both, floors) for pairs in blocks]
    return np.concatenate([f[LEFT] for f in blocks]), np.concatenate([f[RIGHT] for f in blocks])


def _certain(
    logic: Any, found: tuple[IntArray, IntArray], both: Sequence[Slice], floors: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """Return the pairs without unmatched messages whose possible partners may be evicted."""
    sure = np.ones(len(found[LEFT]), dtype=bool)
    for side in (LEFT, RIGHT):
        alone = np.flatnonzero(found[1 - side] == NOBODY)
        low, _ = logic.reach.partners(side, both[side].times[found[side][alone]])
        sure[alone] &= low >= floors[1 - side]
    return found[LEFT][sure], found[RIGHT][sure]
