"""A join on a directory, in this process: `add_message` names the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.checkpoint.offsets import Partition
from windrow.checkpoint.transport import FILES, Transport
from windrow.core.clock import Clock
from windrow.core.errors import InputError, UnknownColumn
from windrow.core.inputs import Input
from windrow.core.messages import JoinedRow, Message, Position
from windrow.core.types import concat
from windrow.operators.aggregate.definition import AggregateDefinition
from windrow.operators.join.definition import JoinDefinition
from windrow.operators.join.needs import JoinNeeds
from windrow.operators.join.output import Columns
from windrow.operators.steps.columns import SOURCE
from windrow.operators.steps.learning import Needs, learn
from windrow.operators.steps.sifting import sifted
from windrow.operators.steps.step import StepResult
from windrow.runners.embedded.attempt import one_at_a_time
from windrow.runners.embedded.given import (
    Given,
    Many,
    check_columns,
    check_input,
    many_of,
    message_of,
)
from windrow.runners.embedded.operator import EmbeddedOperator
from windrow.runners.embedded.positions import NOTHING, Passed, extent, place, with_positions
from windrow.runners.embedded.replay import ReadInputsAgain
from windrow.runners.rows import table_of
from windrow.stores.kv import KV, Overlay


class EmbeddedJoin(EmbeddedOperator):
    """One join on one directory. Use it as a context manager; threads that share it take turns."""

    definition: JoinDefinition

    def __init__(
        self,
        definition: JoinDefinition,
        location: str,
        *,
        clock: Clock | None = None,
        sink: Any = None,
        schema: Mapping[str, pa.Schema] | None = None,
        replay: ReadInputsAgain | None = None,
        dead_letters: Any = None,
        log: Transport = FILES,
    ) -> None:
        #: Inputs that are known to have the columns that they need.
        self._checked: set[str] = set()
        self._declared = dict(schema or {})
        if self._declared:
            check_schemas(definition, self._declared)
        super().__init__(
            definition,  # type: ignore[arg-type]
            location,
            clock=clock,
            sink=sink,
            replay=replay,  # type: ignore[arg-type]
            dead_letters=dead_letters,
            log=log,
        )

    # -- feeding ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def add_message(self, message: Given, input: str | None = None) -> None:
        """Take in one message of an input: a step of its own. `input` may be left out where a stream is joined with itself.

        A message at or below `next_offsets()` is a replay and does nothing. Raises `OperatorPaused` while the sink refuses
        what is pending.
        """
        self._check_open()
        self.add_messages([message_of(message)], input)

    @one_at_a_time
    def add_messages(self, messages: Many | Mapping[str, Many], input: str | None = None) -> None:
        """Take in many messages as one step: those of one input, or {input name: messages} of both.

        A step takes its left messages first; in a join over time their order makes no difference. A table without rows tells
        what columns an input has.
        """
        self._check_open()
        given = messages if isinstance(messages, Mapping) else {self._input(input).name: messages}
        many = {name: (self._input(name), many_of(some)) for name, some in given.items()}
        self._make_room()
        tables: dict[str, pa.Table] = {}
        passed = NOTHING
        for name, (of, some) in many.items():
            table, done = self._table_for(of, some, tables)
            passed = passed.then(done)
            # A table without rows tells what columns its input has, before the first message does.
            if len(table) or (isinstance(some, pa.Table) and not len(some)):
                tables[name] = table
        if not tables:
            self._leave(passed)
            return
        first: dict[Partition, int] = {}
        following: dict[Partition, int] = {}
        for table in tables.values():
            low, high = extent(table)
            first.update(low)
            following.update(high)
        tables = self._with_declared(tables)

        def ingest(kv: Overlay, now_us: int) -> StepResult:
            def step(kv: KV, tables: Mapping[str, pa.Table]) -> StepResult:
                result: StepResult = self._operator.ingest(kv, tables, now_us)
                return result

            return sifted(step, kv, tables)

        self._take_in(ingest, first, following, sum(len(t) for t in tables.values()), passed)

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

    def _table_for(
        self, given: Input, messages: pa.Table | list[Message], beside: Mapping[str, pa.Table]
    ) -> tuple[pa.Table, Passed]:
        """New messages of an input as a slice, in position order; their sources carry the input's name."""
        prefix = given.source_prefix
        if isinstance(messages, pa.Table):
            reached = {
                (s.removeprefix(prefix), p): n for (s, p), n in self._offsets.items() if s.startswith(prefix)
            }
            table = with_positions(messages, given.positions, reached)
            named = pc.binary_join_element_wise(prefix, table.column(SOURCE), "")
            passed = Passed({"replayed": len(messages) - len(table)})
            return table.set_column(table.column_names.index(SOURCE), SOURCE, named), passed
        if messages:
            self._check_columns(given, {name for m in messages for name in m.payload}, beside)
        number = self._offsets.get((prefix, 0), 0)
        placed_at: list[Message] = []
        for message in messages:
            if message.position is None:
                position, number = Position(prefix, 0, number), number + 1
            else:
                at = Position(*message.position)
                position = at._replace(source=prefix + at.source)
            placed_at.append(Message(message.payload, position))
        placed = place(placed_at, self._offsets, self._ordinals, in_position_order=True)
        counts = {"replayed": len(messages) - len(placed.messages)}
        table = table_of(
            placed.messages,
            placed.positions,
            event_time=given.event_time,
            time_zone=given.time_zone,
            event_time_unit=given.event_time_unit,
            schema=self._known(given),
            needs=self._needs(given, beside),
            counts=counts,
        )
        return table, Passed(counts, placed.ordinals)

    def _check_columns(self, given: Input, names: set[str], beside: Mapping[str, pa.Table]) -> None:
        """Raise `UnknownColumn` where the first messages of an input lack a column that it needs."""
        if given.name in self._checked:
            return
        known = self._known(given)
        part = next((p for p in self._whole.parts if p.name == given.name), None)
        if isinstance(part, AggregateDefinition):
            check_columns(part, known, names)
        else:
            come = {f.name for f in known or () if not pa.types.is_null(f.type)}
            needs = self._needs(given, beside)
            assert isinstance(needs, JoinNeeds)
            check_input(given.name, sorted(needs.required - come), names)
        self._checked.add(given.name)

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
        known: pa.Schema | None = self._operator.schema_of(self._overlay, given.name)
        return known

    def _needs(self, given: Input, beside: Mapping[str, pa.Table]) -> Needs:
        needs: Needs = self._operator.needs_of(self._overlay, given.name, beside)
        return needs

    def _learn_schema(self) -> None:
        """Each side's columns are in the state."""

    # -- results ----------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_result(self) -> list[JoinedRow]:  # type: ignore[override]
        """The rows of committed steps since the last `flush`, each with its token. Commits what is staged first."""
        self._ready()
        self._commit()
        return [row for table in self._outputs for row in self._whole.values(table, self._job.job)]

    @one_at_a_time
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
