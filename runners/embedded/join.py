"""A join on a directory, in this process: seed 003's join window operator with `add_message` for each input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.core.errors import InputError, UnknownColumn
from windrow.core.join import Input, JoinDefinition
from windrow.core.messages import JoinedRow, Message, Position, StoredMessage, WindowInfo
from windrow.core.time import Instant
from windrow.core.types import concat
from windrow.operators.columns import SOURCE
from windrow.operators.join_output import Columns, to_joined
from windrow.operators.learning import Needs, learn
from windrow.runners.embedded.operator import COMMIT_ROWS, COMMIT_STEPS, EmbeddedOperator
from windrow.runners.embedded.positions import extent, with_positions
from windrow.runners.embedded.queries import joined_messages, joined_windows
from windrow.runners.rows import table_of

Messages: TypeAlias = "Iterable[Message] | pa.Table | pa.RecordBatch"


class EmbeddedJoin(EmbeddedOperator):
    """One join on one directory. Use it as a context manager, from one thread."""

    definition: JoinDefinition

    def __init__(
        self,
        definition: JoinDefinition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: Mapping[str, pa.Schema] | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> None:
        self._declared = dict(schema or {})
        if self._declared:
            check_schemas(definition, self._declared)
        super().__init__(
            definition,  # type: ignore[arg-type]
            location,
            clock=clock,
            sink=sink,
            dead_letters=dead_letters,
            log=log,
        )

    # -- feeding ----------------------------------------------------------------------------------------------------

    def add_message(self, message: Message, input: str | None = None) -> None:
        """Take in one message of an input: a step of its own. `input` may be left out where a stream is joined with itself.

        A message at or below `next_offsets()` is a replay and does nothing. Raises `OperatorPaused` while the sink refuses
        what is pending.
        """
        self.add_messages([message], input)

    def add_messages(self, messages: Messages | Mapping[str, Messages], input: str | None = None) -> None:
        """Take in many messages as one step: those of one input, or {input name: messages} of both.

        A step takes its left messages first; in a join over time their order makes no difference. A table without rows tells
        what columns an input has.
        """
        self._ready()
        given = messages if isinstance(messages, Mapping) else {self._input(input).name: messages}
        tables = {}
        for name, some in given.items():
            table = self._table_for(self._input(name), some)
            # A table without rows tells what columns its input has, before the first message does.
            if len(table) or (isinstance(some, pa.Table) and not len(some)):
                tables[name] = table
        if not tables:
            return
        first: dict[tuple[str, int], int] = {}
        following: dict[tuple[str, int], int] = {}
        for table in tables.values():
            low, high = extent(table)
            first.update(low)
            following.update(high)
        tables = self._with_declared(tables)
        now_us = self._now()
        rows = sum(len(t) for t in tables.values())
        self._run(
            "ingest", now_us, lambda kv: self._operator.ingest(kv, tables, now_us), first, following, rows
        )
        self._advance_to(self._watermark(now_us), now_us)
        if len(self._steps) >= COMMIT_STEPS or self._rows >= COMMIT_ROWS:
            self._commit()

    def _input(self, name: str | None) -> Input:
        inputs = self._inputs
        if name is None and len(inputs) == 1:
            return inputs[0]
        for given in inputs:
            if given.name == name:
                return given
        raise InputError(f"input {name!r} of {self._whole.name!r}: say which, of {[i.name for i in inputs]}")

    @property
    def _inputs(self) -> tuple[Input, ...]:
        return self._whole.inputs  # type: ignore[no-any-return]

    def _table_for(self, given: Input, messages: Messages) -> pa.Table:
        """New messages of an input as a slice, in position order; their sources carry the input's name."""
        if isinstance(messages, pa.RecordBatch):
            messages = pa.Table.from_batches([messages])
        prefix = given.source_prefix
        if isinstance(messages, pa.Table):
            reached = {
                (s.removeprefix(prefix), p): n for (s, p), n in self._offsets.items() if s.startswith(prefix)
            }
            table = with_positions(messages, given.positions, reached)
            self._replayed(len(messages) - len(table))
            named = pc.binary_join_element_wise(prefix, table.column(SOURCE), "")
            return table.set_column(table.column_names.index(SOURCE), SOURCE, named)
        number = self._offsets.get((prefix, 0), 0)
        placed_at: list[Message] = []
        for message in messages:
            if message.position is None:
                position, number = Position(prefix, 0, number), number + 1
            else:
                at = Position(*message.position)
                position = at._replace(source=prefix + at.source)
            placed_at.append(Message(message.payload, position))
        placed = self._place(placed_at, in_position_order=True)
        return table_of(
            placed.messages,
            placed.positions,
            event_time=given.event_time,
            time_zone=given.time_zone,
            schema=self._known(given),
            needs=self._needs(given),
            counts=self._counters,
        )

    def _with_declared(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """A step with the columns that are declared, also of an input that has no messages in it."""
        whole = dict(tables)
        for name, schema in self._declared.items():
            whole[name] = schema.empty_table()
            if name in tables:
                learn(schema, tables[name].schema)  # refuses what does not go together
                whole[name] = concat([whole[name], tables[name]])
        return whole

    def _known(self, given: Input) -> pa.Schema | None:
        """The columns of an input as known so far, or declared."""
        known = self._columns_of(given)
        return learn(known, self._declared[given.name]) if given.name in self._declared else known

    def _columns_of(self, given: Input) -> pa.Schema | None:
        side = 0 if given.name == self.definition.left.name else 1
        known: pa.Schema = self._operator.schemas(self._overlay)[side]
        return known

    def _needs(self, given: Input) -> Needs:
        needs: Needs = self._operator.needs_of(self._overlay, given.name)
        return needs

    def _learn_schema(self) -> None:
        """Each side's columns are in the state."""

    # -- results ----------------------------------------------------------------------------------------------------

    def get_result(self) -> list[JoinedRow]:  # type: ignore[override]
        """The rows of committed steps since the last `flush`, each with its token. Commits what is staged first."""
        self._ready()
        self._commit()
        return [row for table in self._outputs for row in to_joined(table, self._job.job)]

    def get_windows(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        input: str | None = None,
    ) -> list[WindowInfo]:
        """The windows of an input that hold a kept message and overlap the closed range `[start, end]`, sorted.

        Tumbling and hopping windows are those that cover a message, a sliding one ends where a message stands, an unbounded one
        holds all, one of rows the newest. `key`: only messages of it. Seed 003 "Get Windows".
        """
        self._ready()
        given = self._input(input)
        side = 0 if given.name == self.definition.left.name else 1
        return self._read(lambda: joined_windows(self._operator, self._overlay, side, start, end, key))

    def get_messages(
        self,
        start: tuple[Instant, int] | Instant | None = None,
        end: tuple[Instant, int] | Instant | None = None,
        *,
        input: str | None = None,
        key: Any = None,
    ) -> list[StoredMessage]:
        """Kept messages of an input from `(time, offset)` to `(time, offset)`, both inclusive, in key order.

        `key`: the key fields' values (one value, a tuple, or a mapping by that input's names). Seed 003 "Get Messages".
        """
        self._ready()
        given = self._input(input)
        side = 0 if given.name == self.definition.left.name else 1
        return self._read(lambda: joined_messages(self._operator, self._overlay, side, start, end, key))

    def next_offsets(self, topic: str | None = None, *, input: str | None = None) -> Any:
        """Where to go on reading: {input: {(source, partition): next offset}}; with `topic`, what `Consumer.assign` takes.

        `input`: of that input alone. A topic that feeds both is read from the lower of their offsets where none is named.
        """
        self._ready()
        self._commit()
        by_input: dict[str, dict[tuple[str, int], int]] = {i.name: {} for i in self._inputs}
        for (source, partition), offset in self._offsets.items():
            name, _, rest = source.partition(":")
            by_input[name][rest, partition] = offset
        if input is not None:
            by_input = {input: by_input[self._input(input).name]}
        if topic is None:
            return by_input if input is None else by_input[input]
        from windrow.connectors.kafka.cluster import topic_partitions

        merged: dict[tuple[str, int], int] = {}
        for offsets in by_input.values():
            for at, offset in offsets.items():
                merged[at] = min(offset, merged.get(at, offset))
        return topic_partitions(topic, merged)

    @property
    def columns(self) -> list[str]:
        """The columns of the join's rows as known so far."""
        return self._operator.columns(self._overlay)  # type: ignore[no-any-return]


def check_schemas(definition: JoinDefinition, declared: Mapping[str, pa.Schema]) -> None:
    """Refuse declared columns that cannot be joined."""
    sides = []
    names = [i.name for i in definition.inputs]
    for name in declared:
        if name not in names:
            raise InputError(f"schema= of {name!r}, which is no input of {definition.name!r}: it has {names}")
    for given, keys in ((definition.left, definition.left_keys), (definition.right, definition.right_keys)):
        schema = declared.get(given.name, pa.schema([]))
        for column in (given.event_time, *keys):
            if given.name in declared and column not in schema.names:
                raise UnknownColumn(
                    f"column {column!r} of input {given.name!r} is not in its schema, which has {schema.names}"
                )
        sides.append(schema)
    Columns.of(definition, *sides)
